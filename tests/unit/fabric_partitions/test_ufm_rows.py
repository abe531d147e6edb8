# SPDX-License-Identifier: Apache-2.0
"""Rows at UFM are judged each by itself, and administrators' partitions are no difference."""

from __future__ import annotations

import logging
from pathlib import Path

import attrs
import pytest
from oslo_config import cfg

from nova_hpc.conf.partitions import AGENT_GROUP
from nova_hpc.fabric.partitions.backends.base import MemberState, SubnetManagerError
from nova_hpc.fabric.partitions.members import DesiredPartitions
from nova_hpc_ufm.subnet_manager import UfmSubnetManager
from tests.unit.fabric_partitions.ufm_server import RawAnswer, RecordedUfm
from tests.unit.fabric_partitions.ufm_site import Site, unbind
from tests.unit.fabric_partitions.ufm_world import FULL, TEXT, TWO, A, B, C, states, want

AS_DESIRED, DIFFERENT = MemberState.AS_DESIRED, MemberState.DIFFERENT


class TestAdministrators:
    """A port may be in partitions of administrators, before and after its bind."""

    def test_a_port_of_theirs_becomes_active_and_its_row_goes(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        ufm.put("0x300", "storage", **{f"g{TEXT[A]}": "full"})
        before = dict(ufm.partitions["0x300"])
        assert manager.foreign_pkeys() == {0x300}

        manager.enforce(want(1, *TWO))
        assert states(manager, want(1, *TWO)) == [AS_DESIRED] * 3
        gone = unbind(want(1, *TWO), 1)
        manager.enforce(gone)

        assert states(manager, gone) == [AS_DESIRED] * 3
        assert ufm.partitions["0x300"] == before
        assert "0x101" not in ufm.partitions

    def test_a_port_that_they_add_later_stays_active(self, site: Site, ufm: RecordedUfm) -> None:
        site.round()
        assert set(site.status.values()) == {"ACTIVE"}
        # Another port is bound just before, so that its change could be the harm.
        site.members += ((0x103, 0x0002C90000200004, FULL),)
        ufm.ports.append("0002c90000200004")
        ufm.put("0x300", "storage", **{f"g{TEXT[A]}": "full"})

        for _ in range(20):
            site.round()

        assert site.alarms == []
        assert set(site.status.values()) == {"ACTIVE"}
        assert not any(one.failed for one in site.reports)
        assert set(ufm.partitions) == {"0x7fff", "0x101", "0x102", "0x103", "0x300"}

    def test_their_key_of_a_network_is_named_and_left(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        ufm.put("0x101", "storage", **{f"g{TEXT[A]}": "full"})
        manager.enforce(want(1, *TWO))

        read = manager.read_back(want(1, *TWO))
        assert [read.members[row].state for row in (1, 2, 3)] == [DIFFERENT, AS_DESIRED, AS_DESIRED]
        gone = unbind(want(1, *TWO), 1)
        manager.enforce(gone)

        # Our row goes, and their member stays.
        assert states(manager, gone) == [AS_DESIRED] * 3
        assert ufm.members("0x101") == {TEXT[A]: "full"}

    def test_a_partition_that_ufm_refuses_to_make_is_not_ours(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        answer = ufm.answer

        def make_theirs_first(method: str, path: str, *rest: object) -> object:
            if path.endswith("/add") and "0x101" not in ufm.partitions:
                ufm.put("0x101", "storage", **{f"g{TEXT[C]}": "full"})
            return answer(method, path, *rest)

        ufm.answer = make_theirs_first  # type: ignore[method-assign,assignment]
        for ticket in (1, 2, 3):
            manager.enforce(want(ticket, *TWO))
            manager.read_back(want(ticket, *TWO))

        assert manager.foreign_pkeys() == {0x101}
        assert ufm.members("0x101") == {TEXT[C]: "full"}


class TestIntruders:
    """Members that were added at UFM to our partitions."""

    def test_the_alarm_and_the_log_come_before_the_removal(
        self, site: Site, ufm: RecordedUfm, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        site.round()
        ufm.admit("0x102", TEXT[A])
        then: list[dict[str, str]] = []
        site.on_alarm = lambda texts: then.append(ufm.members("0x102")) if texts else None

        site.round()
        assert len(site.alarms) == 1
        assert (
            "0x0102 at UFM has members that Neutron does not have: 0x0002c90000200001 full"
            in (site.alarms[0])
        )
        assert then == [{TEXT[B]: "full", TEXT[C]: "limited", TEXT[A]: "full"}]
        told = [one for one in caplog.records if "Neutron does not have" in one.message]
        assert len(told) == 1
        site.round()

        assert ufm.members("0x102") == {TEXT[B]: "full", TEXT[C]: "limited"}
        assert any("The agent removes 0x0002c90000200001" in one.message for one in caplog.records)
        for _ in range(3):
            site.round()
        assert set(site.status.values()) == {"ACTIVE"}
        assert site.agent.status.faults == ()

    def test_the_first_reading_of_an_agent_tells_and_removes_nothing(
        self, manager: UfmSubnetManager, ufm: RecordedUfm, conf: cfg.ConfigOpts
    ) -> None:
        """An agent reads once before its first change, and gives the alarm after it."""
        manager.enforce(want(1, *TWO))
        manager.read_back(want(1, *TWO))
        ufm.admit("0x102", TEXT[A])
        again = UfmSubnetManager(conf[AGENT_GROUP.name])

        again.read_back(want(2, *TWO))
        again.enforce(want(2, *TWO))
        assert TEXT[A] in ufm.members("0x102")
        assert "0x0102 at UFM has members" in again.read_back(want(2, *TWO)).faults[0]
        again.enforce(want(3, *TWO))

        assert TEXT[A] not in ufm.members("0x102")
        again.close()

    def test_its_own_row_and_those_of_the_network_are_not_right(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        """They are unknown until it is removed: nothing is undone for them."""
        manager.enforce(want(1, *TWO))
        ufm.admit("0x102", TEXT[A])

        read = manager.read_back(want(1, *TWO))
        assert {one.state for one in read.members.values()} == {MemberState.UNKNOWN}
        assert {one.kept for one in read.members.values()} == {True}
        active = [attrs.evolve(one, port_status="ACTIVE") for one in want(1, *TWO).members]
        assert manager.read_back(DesiredPartitions(1, tuple(active))).members == {}

    def test_a_leftover_of_ours_beside_the_right_key_is_wrong(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        manager.enforce(want(1, *TWO))
        ufm.admit("0x102", TEXT[A])
        rows = want(1, *TWO, (0x102, A, FULL)).members
        desired = DesiredPartitions(1, (*rows[:3], attrs.evolve(rows[3], wanted=False)))

        read = manager.read_back(desired)

        assert [read.members[row].state for row in (1, 2, 3, 4)] == [
            DIFFERENT,
            AS_DESIRED,
            AS_DESIRED,
            DIFFERENT,
        ]
        assert "0x0102" in read.members[1].reason

    def test_a_network_that_ends_takes_no_intruder_with_it_silently(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        manager.enforce(want(1, *TWO))
        manager.read_back(want(1, *TWO))
        ufm.admit("0x101", TEXT[B])

        manager.enforce(want(2, *TWO[1:]))
        assert ufm.members("0x101") == {TEXT[B]: "full"}
        assert "0x0101 at UFM has members" in manager.read_back(want(2, *TWO[1:])).faults[0]
        manager.enforce(want(3, *TWO[1:]))

        assert "0x101" not in ufm.partitions

    def test_one_that_left_with_its_network_and_is_added_again_is_one(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        both = ((0x101, A, FULL), (0x101, B, FULL))
        manager.enforce(want(1, *both))
        manager.enforce(want(2, both[0]))
        manager.read_back(want(2, both[0]))
        ufm.admit("0x101", TEXT[B])

        manager.enforce(want(3, both[0]))

        assert TEXT[B] in ufm.members("0x101")
        assert "0x0101 at UFM has members" in manager.read_back(want(3, both[0])).faults[0]

    def test_a_membership_that_was_changed_or_removed_at_ufm_is_healed(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        manager.enforce(want(1, *TWO))
        manager.read_back(want(1, *TWO))
        ufm.partitions["0x101"]["guids"][0]["membership"] = "limited"
        ufm.partitions.pop("0x102")
        read = manager.read_back(want(2, *TWO))
        assert {one.state for one in read.members.values()} == {DIFFERENT}
        assert {one.kept for one in read.members.values()} == {False}

        assert manager.enforce(want(3, *TWO))

        assert states(manager, want(3, *TWO)) == [AS_DESIRED] * 3


class TestSuddenLoss:
    """An answer without everything that was there is refused and named."""

    @pytest.mark.parametrize("members_alone", [False, True])
    def test_changes_nothing(
        self, site: Site, ufm: RecordedUfm, members_alone: bool, conf: cfg.ConfigOpts
    ) -> None:
        site.members += ((0x103, 0x4, FULL),)
        site.round()
        before = {pkey: dict(body) for pkey, body in ufm.partitions.items()}
        for pkey in ("0x101", "0x102", "0x103"):
            if members_alone:
                ufm.partitions[pkey] = {**before[pkey], "guids": []}
            else:
                del ufm.partitions[pkey]
        ufm.seen.clear()

        for _ in range(3):
            site.clock += site.agent.try_round()

        assert {method for method, _ in ufm.seen} == {"GET"}
        assert any("UFM suddenly lists none of the" in text for text in site.alarms)
        assert "gone" not in {kind for one in site.reports for kind in ("gone",) if one.gone}
        # It was another answer, and the next one is right.
        ufm.partitions.update(before)
        site.round()
        assert set(site.status.values()) <= {"ACTIVE", "DOWN"}
        assert site.agent.status.faults == ()

    def test_the_cure_that_it_names(
        self, site: Site, ufm: RecordedUfm, conf: cfg.ConfigOpts
    ) -> None:
        site.round()
        for pkey in ("0x101", "0x102"):
            del ufm.partitions[pkey]
        with pytest.raises(SubnetManagerError, match=r"remove .*ufm-partitions.good: then"):
            site.manager.enforce(want(9, *TWO))

        Path(conf[AGENT_GROUP.name].state_path, "ufm-partitions.good").unlink()

        site.manager.enforce(want(10, *TWO))
        assert set(ufm.partitions) == {"0x7fff", "0x101", "0x102"}

    def test_the_agents_own_removals_are_none(self, site: Site, ufm: RecordedUfm) -> None:
        site.round()
        site.members = ()

        for _ in range(3):
            site.round()

        assert set(ufm.partitions) == {"0x7fff"}
        assert site.alarms == []


def test_an_answer_that_is_none_changes_nothing(site: Site, ufm: RecordedUfm) -> None:
    site.round()
    before = {pkey: dict(body) for pkey, body in ufm.partitions.items()}
    site.members = TWO[:1]
    for raw in (
        RawAnswer(b"<html>"),
        RawAnswer(b"{}"),
        RawAnswer(b'{"0x7fff": {"partition": "m"}'),
        RawAnswer(b"", 302, {"Location": "https://portal/"}),
    ):
        ufm.raw = [raw]
        site.clock += site.agent.try_round()
        ufm.raw = []
        site.agent.try_round()

    assert ufm.members("0x101") == {TEXT[A]: "full"}
    assert before["0x101"] == ufm.partitions["0x101"]
    assert set(ufm.partitions) == {"0x7fff", "0x101"}
