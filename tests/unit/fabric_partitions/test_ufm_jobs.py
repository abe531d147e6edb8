# SPDX-License-Identifier: Apache-2.0
"""Changes that UFM accepts and makes later: a GUID is never in two partitions of ours."""

from __future__ import annotations

import attrs
import pytest
from oslo_config import cfg

from nova_hpc.conf.partitions import AGENT_GROUP
from nova_hpc.fabric.partitions.backends.base import MemberState
from nova_hpc.fabric.partitions.members import DesiredPartitions
from nova_hpc_ufm.subnet_manager import UfmSubnetManager
from tests.unit.fabric_partitions.ufm_server import RecordedUfm
from tests.unit.fabric_partitions.ufm_site import unbind
from tests.unit.fabric_partitions.ufm_world import FULL, TEXT, A, B, C, states, want

AS_DESIRED, DIFFERENT = MemberState.AS_DESIRED, MemberState.DIFFERENT


class TestJobs:
    """UFM may accept a change with 202 and make it later."""

    def move(self, manager: UfmSubnetManager, ufm: RecordedUfm) -> DesiredPartitions:
        manager.enforce(want(1, (0x101, A, FULL), (0x101, B, FULL), (0x102, C, FULL)))
        ufm.in_jobs = True
        return want(2, (0x102, A, FULL), (0x101, B, FULL), (0x102, C, FULL))

    def test_a_guid_waits_for_its_removal(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        moved = self.move(manager, ufm)
        manager.enforce(moved)

        assert len(ufm.waiting) == 1
        read = manager.read_back(moved)
        assert read.members[1].reason == "UFM is still changing 0x0101, job 1"
        assert [read.members[row].state for row in (2, 3)] == [AS_DESIRED] * 2
        assert not manager.enforce(attrs.evolve(moved, ticket=3))
        ufm.finish_jobs()
        assert manager.enforce(attrs.evolve(moved, ticket=4))
        assert ufm.members("0x101") == {TEXT[B]: "full"}
        ufm.finish_jobs()

        assert states(manager, moved) == [AS_DESIRED] * 3
        assert ufm.members("0x102") == {TEXT[C]: "full", TEXT[A]: "full"}

    def test_other_guids_do_not_wait(self, manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
        moved = self.move(manager, ufm)
        more = want(2, (0x102, A, FULL), (0x101, B, FULL), (0x102, C, FULL), (0x102, 0x4, FULL))

        manager.enforce(more)

        assert len(ufm.waiting) == 2
        ufm.finish_job(1)
        assert ufm.members("0x102").keys() == {TEXT[C], f"{4:016x}"}
        assert moved.members[0].guid == A

    def test_the_next_agent_waits_too(
        self, manager: UfmSubnetManager, ufm: RecordedUfm, conf: cfg.ConfigOpts
    ) -> None:
        """An addition that UFM has accepted from an agent that ended."""
        manager.enforce(want(1, (0x101, B, FULL), (0x102, C, FULL)))
        ufm.in_jobs = True
        manager.enforce(want(2, (0x101, B, FULL), (0x102, C, FULL), (0x101, A, FULL)))
        again = UfmSubnetManager(conf[AGENT_GROUP.name])
        moved = want(3, (0x101, B, FULL), (0x102, C, FULL), (0x102, A, FULL))

        again.enforce(moved)

        assert len(ufm.waiting) == 1
        ufm.finish_jobs()
        assert TEXT[A] in ufm.members("0x101")
        for ticket in (4, 5, 6):
            again.enforce(attrs.evolve(moved, ticket=ticket))
            ufm.finish_jobs()
        assert states(again, moved) == [AS_DESIRED] * 3
        assert ufm.members("0x101") == {TEXT[B]: "full"}
        again.close()

    def test_a_row_does_not_go_while_its_addition_runs(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        manager.enforce(want(1, (0x101, B, FULL)))
        ufm.in_jobs = True
        manager.enforce(want(2, (0x101, B, FULL), (0x101, A, FULL)))
        gone = unbind(want(2, (0x101, B, FULL), (0x101, A, FULL)), 2)
        manager.enforce(gone)

        assert manager.read_back(gone).members[2].state is DIFFERENT
        ufm.finish_jobs()
        manager.enforce(attrs.evolve(gone, ticket=4))
        assert manager.read_back(gone).members[2].state is DIFFERENT
        ufm.finish_jobs()

        assert manager.read_back(gone).members[2].state is AS_DESIRED

    @pytest.mark.parametrize("restarted", [False, True])
    def test_an_addition_whose_answer_was_lost_counts_for_a_minute(
        self, conf: cfg.ConfigOpts, ufm: RecordedUfm, restarted: bool
    ) -> None:
        moment = [0.0]
        manager = UfmSubnetManager(conf[AGENT_GROUP.name], now=lambda: moment[0])
        manager.enforce(want(1, (0x101, B, FULL), (0x102, C, FULL)))
        answer = ufm.answer

        def lose(method: str, *rest: object) -> object:
            if method == "POST":
                return 504, {}, {}
            return answer(method, *rest)

        ufm.answer = lose  # type: ignore[method-assign,assignment]
        manager.enforce(want(2, (0x101, B, FULL), (0x102, C, FULL), (0x101, A, FULL)))
        ufm.answer = answer  # type: ignore[method-assign]
        moved = want(3, (0x101, B, FULL), (0x102, C, FULL), (0x102, A, FULL))
        if restarted:
            manager.close()
            manager = UfmSubnetManager(conf[AGENT_GROUP.name], now=lambda: moment[0])

        manager.enforce(moved)
        assert TEXT[A] not in ufm.members("0x102")
        # UFM makes it after all.
        ufm.admit("0x101", TEXT[A])
        manager.enforce(attrs.evolve(moved, ticket=4))
        assert TEXT[A] not in ufm.members("0x101")
        moment[0] = 61.0
        manager.enforce(attrs.evolve(moved, ticket=5))

        assert ufm.members("0x102") == {TEXT[C]: "full", TEXT[A]: "full"}
        manager.close()

    @pytest.mark.parametrize("status", ["Queued", "In Progress", ""])
    def test_a_state_that_is_not_known_is_no_end(
        self, manager: UfmSubnetManager, ufm: RecordedUfm, status: str
    ) -> None:
        moved = self.move(manager, ufm)
        manager.enforce(moved)
        ufm.jobs["1"]["Status"] = status
        ufm.partitions["0x101"]["guids"].pop(0)

        manager.enforce(attrs.evolve(moved, ticket=3))

        assert len(ufm.waiting) == 1

    @pytest.mark.parametrize(
        "text", ["[]", "null", '"Running"', "[[]]", '{"ID": "other", "Status": "Running"}']
    )
    def test_an_answer_that_is_not_understood_is_no_end(
        self, manager: UfmSubnetManager, ufm: RecordedUfm, text: str
    ) -> None:
        moved = self.move(manager, ufm)
        manager.enforce(moved)
        ufm.partitions["0x101"]["guids"].pop(0)
        answer = ufm.answer

        def say(method: str, path: str, *rest: object) -> object:
            return (200, text, {}) if path == "/jobs/1" else answer(method, path, *rest)

        ufm.answer = say  # type: ignore[method-assign,assignment]

        manager.enforce(attrs.evolve(moved, ticket=3))

        assert len(ufm.waiting) == 1

    @pytest.mark.parametrize("status", [400, 404, 500])
    def test_where_ufm_takes_one_job_a_question(
        self, manager: UfmSubnetManager, ufm: RecordedUfm, status: int
    ) -> None:
        answer = ufm.answer

        def refuse(method: str, path: str, *rest: object) -> object:
            return (status, {}, {}) if "," in path else answer(method, path, *rest)

        ufm.answer = refuse  # type: ignore[method-assign,assignment]
        ufm.in_jobs = True
        rows = ((0x101, A, FULL), (0x102, B, FULL))
        for ticket in (1, 2, 3):
            manager.enforce(want(ticket, *rows))
            ufm.finish_jobs()

        assert states(manager, want(3, *rows)) == [AS_DESIRED] * 2

    def test_jobs_are_asked_for_together(self, manager: UfmSubnetManager, ufm: RecordedUfm) -> None:
        many = [(0x100 + number, 0x1000 + number, FULL) for number in range(1, 9)]
        ufm.in_jobs = True
        manager.enforce(want(1, *many))
        ufm.seen.clear()
        manager.enforce(want(2, *many))
        assert sum(path.startswith("/jobs/") for _, path in ufm.seen) == 1
        # UFM forgets one of them.
        ufm.finish_jobs()
        del ufm.jobs["3"]

        manager.enforce(want(3, *many))
        ufm.finish_jobs()

        assert all(ufm.members(f"{0x100 + number:#x}") for number in range(1, 9))
