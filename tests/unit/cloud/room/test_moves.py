# SPDX-License-Identifier: Apache-2.0
"""The fewest moves that make room, against every sequence of moves."""

from __future__ import annotations

import os

import pytest

from tests.unit.cloud.room import trials

EXAMPLES = int(os.environ.get("NOVA_HPC_EXAMPLES", "12"))
#: Brute force goes no further; a night has the time for one move more.
MOST = 3 if EXAMPLES > 12 else 2
#: A cloud in which no server in the way has a place before another one has moved.
CHAIN = 84


@pytest.mark.parametrize("agreed", [False, True])
@pytest.mark.parametrize("start", range(4))
def test_no_plan_has_more_moves_than_brute_force(start: int, agreed: bool) -> None:
    for seed in (*range(start, EXAMPLES, 4), *((CHAIN,) if not start else ())):
        trial = trials.try_moves(seed, MOST, 2.0, agreed)
        assert not trial.fault, trial
