# SPDX-License-Identifier: Apache-2.0
"""The runner of trials: what it counts as right, and how it goes on."""

from __future__ import annotations

import collections
import json
from pathlib import Path

import attrs
import pytest

from benchmarks.acceptance.__main__ import (
    TRIALS,
    Trial,
    format_table,
    judge_trials,
    list_missing,
    main,
    read_trials,
)
from benchmarks.acceptance.faults import FAULTS, NOTHING
from nova_hpc_guest.accept.causes import CAUSES
from nova_hpc_guest.accept.probes import PROBE_OF

GOOD = Trial("quota", {"cpu-quota": "indicated"}, ("cpu_one",), (), {}, 6, 31.0, 0.5)
QUIET = Trial(NOTHING, {}, (), (), {}, 6, 40.0, 0.1)
UNKNOWN = Trial("slow-read", {}, ("disk_lat",), ("disk_lat",), {}, 6, 20.0, 0.1)


def test_what_faults_name_exists() -> None:
    causes = {cause.name for cause in CAUSES}
    for name, fault in FAULTS.items():
        assert fault.right <= causes, name
        assert set(fault.only) <= set(PROBE_OF), name
        assert bool(fault.right) != (fault.unknown or name == NOTHING), name
    # What the project asks of itself: twelve kinds at least.
    assert sum(bool(fault.right) for fault in FAULTS.values()) >= 12


@pytest.mark.parametrize(
    ("trial", "good", "wrong"),
    [
        (GOOD, True, False),
        (attrs.evolve(GOOD, named={}), False, False),
        (attrs.evolve(GOOD, named={}, slow=()), False, False),
        (attrs.evolve(GOOD, named={"steal": "proved"}), False, True),
        (attrs.evolve(GOOD, named={"steal": "proved", **GOOD.named}), False, True),
        (QUIET, True, False),
        (attrs.evolve(QUIET, slow=("clock",)), False, False),
        (attrs.evolve(QUIET, slow=("clock",), named={"clocksource": "proved"}), False, True),
        (UNKNOWN, True, False),
        (attrs.evolve(UNKNOWN, slow=()), False, False),
        (attrs.evolve(UNKNOWN, named={"disk-limit": "indicated"}), False, True),
    ],
)
def test_what_counts_as_right(trial: Trial, good: bool, wrong: bool) -> None:
    assert (trial.is_good, trial.is_wrong) == (good, wrong)
    enough = [GOOD] * 9 + [QUIET, UNKNOWN]
    assert judge_trials(enough) == 0
    # One of ten may miss its name; nothing else may be amiss.
    missed = trial.fault == "quota" and not wrong
    assert judge_trials([*enough, trial]) == (0 if good or missed else 1)
    assert judge_trials([*enough, trial, trial]) == (0 if good else 1)


def test_the_recorded_trials_are_enough_and_right() -> None:
    trials = read_trials(TRIALS)
    assert judge_trials(trials) == 0
    made = collections.Counter(trial.fault for trial in trials)
    # What takes a GPU could be tried for a few minutes only.
    assert made.pop("gpu-busy") >= 1
    assert made.pop(NOTHING) >= 20
    assert set(made) == set(FAULTS) - {"gpu-busy", NOTHING}
    assert min(made.values()) >= 5


def test_no_trials_are_no_proof() -> None:
    assert judge_trials([]) == 1
    assert judge_trials([QUIET, UNKNOWN]) == 1


def test_a_run_goes_on_where_it_was_ended(tmp_path: Path) -> None:
    file = tmp_path / "trials.jsonl"
    assert read_trials(file) == []
    trials = [GOOD, UNKNOWN, GOOD]
    file.write_text("".join(f"{json.dumps(attrs.asdict(trial))}\n" for trial in trials))
    assert read_trials(file) == trials
    missing = list(list_missing(trials, ["quota", "slow-read"], 3))
    assert missing == ["slow-read", "quota", "slow-read"]
    assert list(list_missing(trials, ["quota"], 2)) == []
    assert len(list(list_missing([], FAULTS, None))) == 20 + 5 * (len(FAULTS) - 1)


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trials.jsonl"
    file.write_text(f"{json.dumps(attrs.asdict(attrs.evolve(GOOD, named={})))}\n")
    assert main(["show", str(file)]) == 1
    out = capsys.readouterr().out
    assert "a quota of 60 % of a CPU" in out
    assert "1 x no cause found" in out
    assert "0 of 1 trials of 1 kinds" in out
    text = format_table([GOOD, QUIET])
    assert "1 x cpu-quota (indicated)" in text
    assert "1 x nothing slow" in text
