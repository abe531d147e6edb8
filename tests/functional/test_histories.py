# SPDX-License-Identifier: Apache-2.0
"""Random histories of two nodes; what may happen in them: tests/functional/histories.py."""

from __future__ import annotations

import os

import pytest

from nova_hpc.from_nova import contract
from tests.functional.histories import History, HistoryTest

#: Others than these, ``first:last``: a failed one names its seed.
SEEDS = "NOVA_HPC_SEEDS"


@pytest.mark.skipif((contract.release() or 0) < 34, reason="counts what Nova 34 has under way")
class HistoriesTest(HistoryTest):
    def run_histories(self, first: int, last: int, operations: int) -> None:
        for seed in range(first, last):
            History(self, seed).run(operations)
        found = self.totals
        print(
            f"RESULT: {found.histories} histories, {found.operations} operations, "
            f"{found.kills} kills at {len(found.steps)} different steps: no device lost, given "
            f"twice or reset in use; {found.left_behind} allocations left behind and named, "
            f"{found.released} devices released by hand; {found.by_name}"
        )

    def test_some_histories(self) -> None:
        self.run_histories(0, 6, 6)

    @pytest.mark.slow
    def test_two_hundred_histories(self) -> None:
        first, _, last = os.environ.get(SEEDS, "0:200").partition(":")
        self.run_histories(int(first), int(last), 8)
