# SPDX-License-Identifier: Apache-2.0
"""Each test waits for another day once in four days, and no job of the full set leaves any out."""

import datetime

from tests.quarters import is_left_out
from tools import test_sets

pytest_plugins = ["pytester"]

FIRST = datetime.date(2026, 12, 30)
NAMES = [f"tests/unit/test_a.py::test_{number}[a b]" for number in range(400)]


def test_each_is_left_out_once_in_four_days():
    days = [FIRST + datetime.timedelta(days=number) for number in range(4)]
    assert {sum(is_left_out(name, day) for day in days) for name in NAMES} == {1}
    assert all(60 < sum(is_left_out(name, day) for name in NAMES) < 140 for day in days)


def test_the_full_set_leaves_out_none():
    jobs = [job for job in test_sets.JOBS if "--three-quarters" in job.words]
    assert jobs
    assert not [job.name for job in jobs if test_sets.FULL in job.sets]


def test_pytest_leaves_out_those_of_the_day(pytester, monkeypatch):
    file = pytester.makepyfile("\n".join(f"def test_{number}(): pass" for number in range(40)))
    pytester.makeconftest("from tests.conftest import *  # noqa: F403")
    day = datetime.datetime.now(datetime.UTC).date()
    left_out = sum(is_left_out(f"{file.name}::test_{number}", day) for number in range(40))
    monkeypatch.setenv("NOVA_HPC_NO_SKIP", "")
    result = pytester.runpytest_subprocess("--three-quarters", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=40 - left_out, deselected=left_out)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=40)
