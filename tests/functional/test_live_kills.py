# SPDX-License-Identifier: Apache-2.0
"""nova-compute is killed at each step of a live migration, at the source or the destination."""

from __future__ import annotations

import os
from typing import Any

import attrs
import pytest
from nova import rpc

from tests.functional.live_kills import Kill, LiveKillWorld
from virt_driver_patches.driver.broken_moves import (
    BrokenMove,
    BrokenMoves,
    MoveEnd,
    choose_move_end,
)

#: Only some steps of a slow test, ``first:last``.
STEPS = "NOVA_HPC_LIVE_STEPS"
#: A move has at least so many at each host.
FEWEST = 12


class SourceDiesTest(LiveKillWorld):
    """A sample of the steps below."""

    def test_before_and_after_the_copy(self) -> None:
        self.victim, self.others_want = "alpha", False
        prepared = self.kill(3, "database: migrations")
        self.assertEqual((), prepared.complaints)
        self.assertEqual(("active on alpha", "error"), (prepared.server, prepared.moves))
        copied = self.kill(1, "libvirt: the copy has ended")
        self.assertEqual((), copied.complaints)
        self.assertTrue(copied.stray)
        self._expect_look_before_messages()

    def _expect_look_before_messages(self) -> None:
        """What a service finds at its first look is no work of its own."""
        seen: list[str] = []
        look, listen = BrokenMoves.end_moves, rpc.get_server

        def looks(*arguments: Any) -> None:
            seen.append("look")
            look(*arguments)

        def listens(*arguments: Any, **keywords: Any) -> Any:
            seen.append("listen")
            return listen(*arguments, **keywords)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BrokenMoves, "end_moves", looks)
            patch.setattr(rpc, "get_server", listens)
            self.restart("alpha")
        self.assertEqual(["look", "listen"], seen[:2])


class DestinationDiesTest(LiveKillWorld):
    WITH_CELLS = True

    def test_before_and_after_the_copy(self) -> None:
        self.victim, self.others_want = "beta", False
        claimed = self.kill(2, "database: pci_devices")
        self.assertEqual((), claimed.complaints)
        self.assertEqual(("active on alpha", "error"), (claimed.server, claimed.moves))
        arrived = self.kill(1, "database: instances")
        self.assertEqual((), arrived.complaints)
        self.assertEqual(("error on beta", "error"), (arrived.server, arrived.moves))


class LiveKillsTest(LiveKillWorld):
    """All steps; each test has some 20 deaths."""

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
