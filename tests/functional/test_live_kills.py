# SPDX-License-Identifier: Apache-2.0
"""nova-compute is killed at each step of a live migration, at the source or the destination."""

from __future__ import annotations

import os

import attrs
import pytest

from tests.functional.live_kills import Kill, LiveKillWorld
from virt_driver_patches.driver.broken_moves import BrokenMove, MoveEnd, choose_move_end

#: Only some steps of a slow test, ``first:last``.
STEPS = "NOVA_HPC_LIVE_STEPS"
#: A move has at least so many at each host.
FEWEST = 12


class LiveKillsTest(LiveKillWorld):
    def _expect_well(self, kill: Kill) -> None:
        self.assertEqual((), kill.complaints, f"killed at {kill.number}: {kill.step}")

    # -- a sample --------------------------------------------------------------------

    def test_source_dies_before_and_after_the_copy(self) -> None:
        self.victim = "alpha"
        prepared = self.kill(3, "database: migrations")
        self._expect_well(prepared)
        self.assertEqual(("active on alpha", "error"), (prepared.server, prepared.moves))
        copied = self.kill(1, "libvirt: the copy has ended")
        self._expect_well(copied)
        self.assertTrue(copied.stray)
        over = self.kill(1, "database: console_auth_tokens")
        self._expect_well(over)
        self.assertEqual(("active on beta", "completed"), (over.server, over.moves))

    def test_destination_dies_before_and_after_the_copy(self) -> None:
        self.victim = "beta"
        claimed = self.kill(2, "database: pci_devices")
        self._expect_well(claimed)
        self.assertEqual(("active on alpha", "error"), (claimed.server, claimed.moves))
        copied = self.kill(1, "libvirt: the copy has ended")
        self._expect_well(copied)
        self.assertEqual(("error on beta", "error"), (copied.server, copied.moves))
        arrived = self.kill(1, "database: instances")
        self._expect_well(arrived)
        self.assertEqual(("error on beta", "error"), (arrived.server, arrived.moves))

    # -- all steps -------------------------------------------------------------------

    def _all_steps(self, victim: str, worker: str = "") -> None:
        self.victim, self.worker = victim, worker
        first, _, last = os.environ.get(STEPS, "1:200").partition(":")
        kills: list[Kill] = []
        for number in range(int(first), int(last)):
            kills.append(self.kill(number))
            print(f"{victim}: {kills[-1]}")
            if kills[-1].step is None or any("the end" in each for each in kills[-1].complaints):
                break
        bad = {f"{kill.number} {kill.step}": kill.complaints for kill in kills if kill.complaints}
        strays = sum(kill.stray for kill in kills)
        print(
            f"RESULT: {victim} died at {len(kills)} steps of {worker or victim}, copies "
            f"{'fail' if self.copy_fails else 'succeed'}, {len(bad)} times not all was in order, "
            f"{strays} times libvirt had moved the guest and Nova not"
        )
        self.assertEqual({}, bad)
        if STEPS not in os.environ:
            self.assertGreater(len(kills), FEWEST)

    @pytest.mark.slow
    def test_source_at_each_step(self) -> None:
        self._all_steps("alpha")

    @pytest.mark.slow
    def test_destination_at_each_step(self) -> None:
        self._all_steps("beta")

    @pytest.mark.slow
    def test_source_at_each_step_without_updates(self) -> None:
        self.updates = False
        self._all_steps("alpha")

    @pytest.mark.slow
    def test_destination_at_each_step_without_updates(self) -> None:
        self.updates = False
        self._all_steps("beta")

    @pytest.mark.slow
    def test_source_at_each_step_of_a_copy_that_fails(self) -> None:
        self.copy_fails = True
        self._all_steps("alpha")

    @pytest.mark.slow
    def test_destination_at_each_step_of_a_copy_that_fails(self) -> None:
        self.copy_fails = True
        self._all_steps("beta")

    @pytest.mark.slow
    def test_source_at_each_step_of_the_destination(self) -> None:
        self._all_steps("alpha", worker="beta")

    @pytest.mark.slow
    def test_destination_at_each_step_of_the_source(self) -> None:
        self._all_steps("beta", worker="alpha")


class LiveKillsWithCellsTest(LiveKillsTest):
    """The server has a NUMA cell and pinned CPUs, so the destination has a claim of the move."""

    WITH_CELLS = True


# -- the decision ------------------------------------------------------------------------

HERE = BrokenMove("alpha", "beta", "alpha", busy=False, stays=True)


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({}, MoveEnd.REVERT),
        ({"stays": False}, MoveEnd.WAIT),
        ({"busy": True}, MoveEnd.WAIT),
        ({"server": "beta", "stays": False}, MoveEnd.COMPLETE),
        ({"server": "beta", "busy": True}, MoveEnd.WAIT),
        ({"server": "gamma"}, MoveEnd.FORGET),
        ({"server": None}, MoveEnd.FORGET),
        ({"server": None, "destination": None}, MoveEnd.FORGET),
    ],
)
def test_the_end_of_a_broken_move(changes: dict, end: MoveEnd) -> None:
    assert choose_move_end(attrs.evolve(HERE, **changes)) is end
