# SPDX-License-Identifier: Apache-2.0
"""Records, lists and changes at UFM of which one is broken."""

from __future__ import annotations

import pytest

from nova_hpc.fabric.partitions.backends.base import MemberState
from nova_hpc_ufm.subnet_manager import UfmSubnetManager
from tests.unit.fabric_partitions.ufm_server import RecordedUfm
from tests.unit.fabric_partitions.ufm_site import Site, unbind
from tests.unit.fabric_partitions.ufm_world import FULL, LIMITED, TEXT, TWO, A, B, C, states, want

AS_DESIRED, DIFFERENT = MemberState.AS_DESIRED, MemberState.DIFFERENT


class TestOneOfMany:
    """One record, one GUID or one list that is broken concerns its own rows alone."""

    def test_a_partition_without_guids(self, site: Site, ufm: RecordedUfm) -> None:
        site.round()
        del ufm.partitions["0x101"]["guids"]
        site.members = (*TWO[:2], (0x103, C, FULL))
        site.status.pop(3)

        for _ in range(12):
            site.round()

        assert site.status == {1: "ACTIVE", 2: "ACTIVE", 3: "ACTIVE"}
        assert ufm.members("0x103") == {TEXT[C]: "full"}
        assert "0x0101 at UFM are unknown" in site.alarms[0]
        assert len(site.alarms) == 1

    def test_its_rows_are_neither_right_nor_gone(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        manager.enforce(want(1, *TWO))
        del ufm.partitions["0x102"]["guids"]
        gone = unbind(want(1, *TWO), 2)

        manager.enforce(gone)

        read = manager.read_back(gone)
        assert [read.members[row].state for row in (1, 2, 3)] == [
            AS_DESIRED,
            MemberState.UNKNOWN,
            MemberState.UNKNOWN,
        ]
        assert [method for method, _ in ufm.seen].count("DELETE") == 0

    def test_a_guid_that_may_be_in_it_waits(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        manager.enforce(want(1, *TWO))
        entries = ufm.partitions["0x101"].pop("guids")

        manager.enforce(want(2, (0x102, A, FULL), *TWO[1:]))
        assert TEXT[A] not in ufm.members("0x102")
        ufm.partitions["0x101"]["guids"] = entries
        manager.enforce(want(3, (0x102, A, FULL), *TWO[1:]))

        assert TEXT[A] in ufm.members("0x102")
        assert "0x101" not in ufm.partitions

    def test_a_default_record_that_is_broken_makes_no_row_right(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        ufm.partitions["0x7fff"]["membership"] = "some"

        manager.enforce(want(1, *TWO))

        assert states(manager, want(1, *TWO)) == [MemberState.UNKNOWN] * 3
        assert ufm.members("0x101") == {TEXT[A]: "full"}

    def test_a_guid_with_two_memberships_is_named_and_left(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        manager.enforce(want(1, *TWO))
        ufm.admit("0x102", TEXT[B], "limited")

        manager.enforce(want(2, *TWO))

        read = manager.read_back(want(2, *TWO))
        assert [read.members[row].state for row in (1, 2, 3)] == [
            AS_DESIRED,
            MemberState.UNKNOWN,
            AS_DESIRED,
        ]
        assert read.faults == (
            "UFM reports no membership, or two, of 0x0002c90000200002 in the partition 0x0102",
        )
        assert [method for method, _ in ufm.seen].count("DELETE") == 0

    def test_a_later_row_demotes_no_earlier_one(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        rows = ((0x101, A, FULL), (0x101, A, LIMITED))
        manager.enforce(want(1, *rows))

        read = manager.read_back(want(1, *rows))
        assert ufm.members("0x101") == {TEXT[A]: "full"}
        assert [read.members[row].state for row in (1, 2)] == [AS_DESIRED, DIFFERENT]
        assert "as a full member" in read.members[2].reason

    def test_trouble_with_one_guid_keeps_no_other_out(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        """Halves of a list find it with few requests."""
        bad = f"{A + 70:016x}"
        answer = ufm.answer

        def fail(method: str, path: str, query: object, body: object) -> object:
            if isinstance(body, dict) and bad in body.get("guids", ()):
                return 500, {"error": "traceback"}, {}
            return answer(method, path, query, body)

        ufm.answer = fail  # type: ignore[method-assign,assignment]
        many = [(0x101, A + number, FULL) for number in range(100)]

        manager.enforce(want(1, *many, (0x102, 0x7, LIMITED)))

        assert len(ufm.members("0x101")) == 99
        assert ufm.members("0x102") == {f"{7:016x}": "limited"}
        assert len(ufm.seen) < 30
        read = manager.read_back(want(1, *many))
        assert "traceback" in read.members[71].reason

    def test_a_removal_that_ufm_refuses_keeps_no_other_out(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        manager.enforce(want(1, *TWO))
        answer = ufm.answer

        def refuse(method: str, *rest: object) -> object:
            return (400, {"error": "not now"}, {}) if method == "DELETE" else answer(method, *rest)

        ufm.answer = refuse  # type: ignore[method-assign,assignment]
        manager.enforce(want(2, TWO[0], (0x102, C, LIMITED), (0x102, 0x9, FULL)))

        read = manager.read_back(want(2, TWO[0], (0x102, C, LIMITED), (0x102, 0x9, FULL)))
        assert ufm.members("0x102").keys() == {TEXT[B], TEXT[C], f"{9:016x}"}
        assert "not now" in read.faults[0]

    @pytest.mark.parametrize("path", ["/resources/ports", "/resources/vports"])
    @pytest.mark.parametrize("text", [b"<html>", b"{}", b"[{}]", b"[null]"])
    def test_a_list_of_ports_that_is_broken_makes_no_port_absent(
        self, manager: UfmSubnetManager, ufm: RecordedUfm, path: str, text: bytes
    ) -> None:
        manager.enforce(want(1, *TWO))
        answer = ufm.answer

        def break_list(method: str, at: str, *rest: object) -> object:
            return (200, text.decode(), {}) if at == path else answer(method, at, *rest)

        ufm.answer = break_list  # type: ignore[method-assign,assignment]

        read = manager.read_back(want(1, *TWO))

        found = {one.state for one in read.members.values()}
        assert found <= {AS_DESIRED, MemberState.UNKNOWN}
        assert MemberState.UNKNOWN in found
        assert len(read.faults) == 1

    def test_no_port_at_all_is_not_a_fabric_without_ports(
        self, manager: UfmSubnetManager, ufm: RecordedUfm
    ) -> None:
        """UFM has not found its ports yet after a restart."""
        manager.enforce(want(1, *TWO))
        ufm.ports.clear()

        read = manager.read_back(want(1, *TWO))

        assert read.members[1].state is MemberState.UNKNOWN
        assert "UFM lists no port at all" in read.faults[0]
