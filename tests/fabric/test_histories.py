# SPDX-License-Identifier: Apache-2.0
"""Random histories with faults: a fixed share here, the others in the full set or by hand."""

import json

import pytest

from tests.fabric.histories import run_histories


@pytest.mark.parametrize(
    "count", [10, pytest.param(500, marks=pytest.mark.slow)], ids=["ten", "five-hundred"]
)
def test_random_histories_come_to_rest(tidy, view, count):
    view.look_again()
    found = run_histories(tidy, view, count, seed=count)
    print(f"\nRESULT: {json.dumps(found)}")
    assert found["wrong"] == []
    assert found["not_at_rest"] == []
    assert found["histories"] == count
    assert found["left_in_the_file"] == []
    assert sum(found["faults"].values()) > count / 4
    assert found["rounds_of_reading"] > count
    assert found["lists_of_ports"] > count
