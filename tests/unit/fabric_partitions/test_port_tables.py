# SPDX-License-Identifier: Apache-2.0
"""Verdicts over P_Key tables: equality, and nothing less."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.fabric.partitions.backends.base import MemberState
from nova_hpc.fabric.partitions.keys import Membership, table_entry
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionMember
from nova_hpc.fabric.partitions.own_partitions import OwnPartitions, parse_own_partitions
from nova_hpc.fabric.partitions.partition_file import PartitionLayout, lay_out_partitions
from nova_hpc.fabric.partitions.port_tables import (
    EndPort,
    FabricPorts,
    PortTables,
    Strangers,
    TableExpectations,
    judge_member,
)
from tests.unit.fabric_partitions.strategies import FEW_GUIDS, FEW_PKEYS, desired_partitions

A, B, C, MANAGER, SWITCH = 0xA, 0xB, 0xC, 0xF, 0x50
FABRIC = FabricPorts(
    {guid: EndPort(guid, "ca", guid, 1, (99, guid)) for guid in (A, B, C, MANAGER)}
    | {SWITCH: EndPort(SWITCH, "switch", 99, 0)},
    MANAGER,
)
LIMITED, OPEN = frozenset({0x7FFF}), frozenset({0xFFFF})
ROW = PartitionMember(1, "port", A, 0x101)
LEAVING = PartitionMember(2, "port", B, 0x101, wanted=False)
NOBODY = OwnPartitions()


def _expect(*members, own=NOBODY, fabric=FABRIC):
    layout = lay_out_partitions(DesiredPartitions(1, members), own)
    return TableExpectations(layout, own, fabric)


def _judge(member, tables, *members, strangers=None, in_force=None, **more):
    return judge_member(
        member, _expect(*(members or (member,)), **more), tables, strangers or Strangers(), in_force
    )


def _both(*entries):
    return PortTables(frozenset(entries), frozenset(entries))


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        (_both(0x7FFF, 0x8101), ""),
        (_both(0x7FFF), "its P_Key table is 0x7fff, and has to be 0x7fff 0x8101"),
        (_both(0x7FFF, 0x0101), "its P_Key table is 0x0101 0x7fff"),
        # A stale key beside the right one.
        (_both(0x7FFF, 0x8101, 0x8102), "is 0x7fff 0x8101 0x8102"),
        (
            PortTables(frozenset({0x7FFF, 0x8101, 0x8102}), frozenset({0x7FFF, 0x8101})),
            "is 0x7fff 0x8101 0x8102",
        ),
        (_both(0xFFFF, 0x8101), "is 0x8101 0xffff"),
        (_both(), "is empty"),
        (PortTables(frozenset({0x7FFF, 0x8101}), LIMITED), "port 10 of the switch with LID 99"),
        (PortTables(frozenset({0x7FFF, 0x8101}), None), "LID 99 could not be read"),
        (PortTables(None, None), "its P_Key table could not be read"),
    ],
)
def test_a_member_is_right_when_both_tables_are_exactly_right(tables, reason) -> None:
    reading = _judge(ROW, tables)
    assert reason in reading.reason
    assert (reading.state is MemberState.AS_DESIRED) == (reason == "")


def test_a_row_that_has_to_go_is_right_when_its_key_is_gone() -> None:
    assert _judge(LEAVING, _both(0x7FFF)).state is MemberState.AS_DESIRED
    assert _judge(LEAVING, _both(0x7FFF, 0x8101)).state is MemberState.DIFFERENT
    # It shares its port and key with one that stays: nothing has to go.
    other = attrs.evolve(LEAVING, row=3, wanted=True)
    assert _judge(LEAVING, _both(0x7FFF, 0x8101), LEAVING, other).state is MemberState.AS_DESIRED


def test_a_port_between_two_adapters_has_no_switch_to_look_at() -> None:
    fabric = FabricPorts({A: EndPort(A, "ca", 1, 1)}, MANAGER)
    tables = PortTables(frozenset({0x7FFF, 0x8101}), None)
    assert _judge(ROW, tables, fabric=fabric).state is MemberState.AS_DESIRED


def test_what_is_not_on_the_fabric_is_right_only_when_the_file_is_in_force() -> None:
    assert _judge(ROW, None).state is MemberState.NOT_ON_FABRIC
    reading = _judge(ROW, None, in_force="opensm was not told")
    assert (reading.state, reading.reason) == (
        MemberState.DIFFERENT,
        "port 0x000000000000000a: opensm was not told",
    )
    silent = attrs.evolve(FABRIC, silent=2)
    reading = _judge(ROW, None, fabric=silent)
    assert reading.state is MemberState.UNKNOWN
    assert "one of 2 ports that are up and do not answer" in reading.reason


def test_a_guid_that_two_ports_have_is_nobodys() -> None:
    doubled = attrs.evolve(FABRIC, doubled={A: ((99, 10), (98, 4))})
    reading = _judge(ROW, _both(0x7FFF, 0x8101), fabric=doubled)
    assert reading.state is MemberState.DIFFERENT
    name = "more than one port of the fabric has the GUID 0x000000000000000a: port 10 of the switch"
    assert name in reading.reason
    (sentence,) = _expect(ROW, fabric=doubled).find_strangers({A: _both(0x7FFF, 0x8101)}).sentences
    assert sentence.startswith(name)
    assert "port 4 of the switch with LID 98" in sentence


@pytest.mark.parametrize("first", list(Membership))
def test_of_two_memberships_of_one_port_the_earlier_row_is_served(first) -> None:
    """A later row of the same port neither demotes nor promotes the one that is served."""
    other = {Membership.FULL: Membership.LIMITED, Membership.LIMITED: Membership.FULL}[first]
    earlier = attrs.evolve(ROW, membership=first)
    later = attrs.evolve(ROW, row=2, membership=other)
    tables = _both(0x7FFF, table_entry(0x101, first))
    assert _judge(earlier, tables, later, earlier).state is MemberState.AS_DESIRED
    reading = _judge(later, tables, later, earlier)
    assert reading.state is MemberState.DIFFERENT
    assert f"is a {first} member of 0x0101" in reading.reason


def test_a_managers_port_is_never_as_desired_and_gets_no_key() -> None:
    fabric = attrs.evolve(FABRIC, managers={MANAGER: "master", B: "standby"})
    for guid, tables in ((MANAGER, _both(0xFFFF, 0x8101)), (B, _both(0x7FFF, 0x8101))):
        row = attrs.evolve(ROW, guid=guid)
        reading = _judge(row, tables, fabric=fabric)
        assert reading.state is MemberState.DIFFERENT
        assert "is a subnet manager's" in reading.reason
        layout = lay_out_partitions(
            DesiredPartitions(1, (row, ROW)), NOBODY, managers=frozenset({guid})
        )
        assert layout.partitions == {0x101: {A: Membership.FULL}}
        assert layout.refused.keys() == {row.row} or guid == A


def test_a_port_that_does_not_answer_is_unknown_and_its_switch_has_the_last_word() -> None:
    assert _judge(ROW, PortTables(None, frozenset({0x7FFF, 0x8101}))).state is MemberState.UNKNOWN
    assert _judge(ROW, PortTables(None, None)).kept is None
    assert _judge(ROW, PortTables(None, LIMITED)).kept is False
    assert _judge(LEAVING, PortTables(None, LIMITED)).state is MemberState.AS_DESIRED
    assert _judge(LEAVING, PortTables(None, None)).state is MemberState.UNKNOWN
    key = PortTables(None, frozenset({0x7FFF, 0x8101}))
    assert _judge(LEAVING, key).state is MemberState.UNKNOWN


def test_a_port_that_comes_up_is_neither_wrong_nor_a_stranger() -> None:
    """An adapter boots with 0xffff; the manager writes its table before the link is active."""
    booting = PortTables(OPEN, OPEN, is_coming_up=True)
    reading = _judge(ROW, booting)
    assert (reading.state, reading.kept) == (MemberState.NOT_ON_FABRIC, None)
    assert _expect(ROW).find_strangers({B: booting}) == Strangers()
    assert _judge(LEAVING, booting).state is MemberState.DIFFERENT


def test_a_port_with_right_tables_and_a_link_in_init_is_not_right() -> None:
    """The link went and came back: the tables stayed, and no data passes until it is active."""
    key = frozenset({0x7FFF, 0x8101})
    reading = _judge(ROW, PortTables(key, key, is_coming_up=True))
    assert (reading.state, reading.kept) == (MemberState.NOT_ON_FABRIC, None)
    assert "is coming up" in reading.reason
    gone = PortTables(LIMITED, LIMITED, is_coming_up=True)
    assert _judge(LEAVING, gone).state is MemberState.AS_DESIRED


@pytest.mark.parametrize("entry", [0xFFFF, 0x8101, 0x8102])
def test_a_key_that_a_node_writes_into_its_own_table_is_its_own_fault(entry) -> None:
    """Its switch port stops such packets, so no other row is concerned."""
    rows = (ROW, attrs.evolve(ROW, row=2, guid=B, pkey=0x103), attrs.evolve(ROW, row=3, guid=C))
    expectations = _expect(*rows)
    right = {A: _both(0x7FFF, 0x8101), C: _both(0x7FFF, 0x8101)}
    node = PortTables(frozenset({0x7FFF, 0x8103, entry}), frozenset({0x7FFF, 0x8103}))
    strangers = expectations.find_strangers({**right, B: node})
    assert strangers.by_pkey == {}
    (sentence,) = strangers.sentences
    assert "port 0x000000000000000b has the P_Key" in sentence
    assert "its switch stops it" in sentence
    states = [
        judge_member(row, expectations, {**right, B: node}[row.guid], strangers, None).state
        for row in rows
    ]
    assert states == [MemberState.AS_DESIRED, MemberState.DIFFERENT, MemberState.AS_DESIRED]
    # A switch that lets everything through stops nothing.
    lax = attrs.evolve(expectations, is_enforced=False)
    assert lax.find_strangers({B: node}).by_pkey == {entry & 0x7FFF: {B}}


def test_a_silent_port_is_known_by_its_place() -> None:
    silent = FabricPorts(
        {guid: port for guid, port in FABRIC.ports.items() if guid not in (A, B)},
        MANAGER,
        silent=2,
        silent_places=frozenset({(99, A), (98, 7)}),
    )
    kept = silent.keep_silent_ports(FABRIC)
    assert kept.ports[A] == FABRIC.ports[A]
    assert B not in kept.ports
    assert kept.silent == 1
    assert silent.keep_silent_ports(None) is silent


def test_own_partitions_are_part_of_every_table() -> None:
    own = parse_own_partitions("storage=0x7001 : ALL=limited, 0xc=full, SELF=full ;")
    expectations = _expect(ROW, own=own)
    assert expectations.entries_of(A) == {0x7FFF, 0x8101, 0x7001}
    assert expectations.entries_of(C) == {0x7FFF, 0xF001}
    assert expectations.entries_of(MANAGER) == {0xFFFF, 0xF001}
    assert expectations.entries_of(SWITCH) == {0x7FFF, 0x7001}


def test_ports_whose_own_partitions_use_all_keys_are_full() -> None:
    text = "".join(f"own{key}={key:#x} : 0xc=full ;\n" for key in range(0x500, 0x51F))
    expectations = _expect(ROW, own=parse_own_partitions(text))
    assert expectations.find_full_ports(31) == {C}
    assert expectations.find_full_ports(32) == frozenset()


def test_an_open_fabric_is_seen_and_no_member_is_right_in_it() -> None:
    expectations = _expect(ROW)
    strangers = expectations.find_strangers(
        {A: _both(0x7FFF, 0x8101), B: PortTables(OPEN, OPEN), MANAGER: _both(0xFFFF, 0x7FFF)}
    )
    assert strangers.by_pkey == {0x7FFF: {B}}
    assert strangers.sentences == (
        "the fabric is open: 1 ports are full members of the default partition, such as "
        "0x000000000000000b",
    )
    reading = _judge(ROW, _both(0x7FFF, 0x8101), strangers=strangers)
    assert reading.state is MemberState.DIFFERENT
    assert "the fabric is open" in reading.reason


@pytest.mark.parametrize(
    "tables", [_both(0x7FFF, 0x8101), PortTables(LIMITED, frozenset({0x7FFF, 0x0101}))]
)
def test_a_stranger_with_a_networks_key_keeps_the_network_closed(tables) -> None:
    strangers = _expect(ROW).find_strangers({A: _both(0x7FFF, 0x8101), B: tables})
    assert "0x000000000000000b has the P_Key 0x" in strangers.sentences[0]
    reading = _judge(ROW, _both(0x7FFF, 0x8101), strangers=strangers)
    assert reading.state is MemberState.DIFFERENT
    assert "0x000000000000000b has the P_Key 0x0101, too" in reading.reason
    # Other networks are not concerned.
    other = attrs.evolve(ROW, pkey=0x102)
    assert _judge(other, _both(0x7FFF, 0x8102), strangers=strangers).reason == ""


def test_what_is_leaving_is_no_stranger_yet() -> None:
    leaving = frozenset({(B, 0x101)})
    read = {B: _both(0x7FFF, 0x8101)}
    assert _expect(ROW, LEAVING).find_strangers(read, leaving) == Strangers({}, ())


def test_less_than_it_may_have_is_no_stranger() -> None:
    assert _expect(ROW).find_strangers({A: _both(0x7FFF, 0x0101)}) == Strangers({}, ())
    assert _expect(ROW).find_strangers({A: PortTables(None, None)}) == Strangers({}, ())


@given(desired_partitions(FEW_GUIDS, FEW_PKEYS), st.data())
def test_verdicts_are_those_of_whole_tables(desired, data) -> None:
    fabric = FabricPorts({guid: EndPort(guid, "ca", guid, 1, (99, guid)) for guid in range(1, 13)})
    layout = lay_out_partitions(desired, NOBODY)
    expectations = TableExpectations(layout, NOBODY, fabric)
    keys = {}
    for pkey, members in layout.partitions.items():
        for guid, membership in members.items():
            keys.setdefault(guid, {0x7FFF}).add(table_entry(pkey, membership))
    guid = data.draw(st.integers(1, 12))
    right = keys.get(guid, {0x7FFF})
    assert expectations.entries_of(guid) == right
    entries = st.frozensets(st.sampled_from([0x7FFF, 0xFFFF, *range(1, 7), *range(0x8001, 0x8007)]))
    drawn = st.one_of(st.just(frozenset(right)), entries)
    tables = PortTables(data.draw(drawn), data.draw(drawn))
    judged = expectations.judge_port(guid, tables)
    assert (judged is None) == (tables.own == right == tables.facing)
    assert (judged is not None) or not expectations.find_strangers({guid: tables}).sentences


def test_a_layout_of_nothing_is_the_default_partition_alone() -> None:
    expectations = TableExpectations(PartitionLayout(), NOBODY, FABRIC)
    assert expectations.entries_of(A) == {0x7FFF}
    assert expectations.entries_of(MANAGER) == {0xFFFF}
