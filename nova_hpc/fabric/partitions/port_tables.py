# SPDX-License-Identifier: Apache-2.0
"""The expected P_Key tables of ports, and their differences from the tables read.

A verdict compares whole tables, the port's and the facing switch port's: the presence of a key
does not exclude a stale key beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from nova_hpc.fabric.partitions.backends.base import FileComparison, MemberReading, MemberState
from nova_hpc.fabric.partitions.keys import (
    DEFAULT_PKEY,
    FULL_MEMBER_BIT,
    Membership,
    format_guid,
    format_pkey,
    table_entry,
)
from nova_hpc.fabric.partitions.members import PartitionMember
from nova_hpc.fabric.partitions.own_partitions import OwnPartitions
from nova_hpc.fabric.partitions.partition_file import PartitionLayout, describe_manager_port


@attrs.frozen
class EndPort:
    """A port of the fabric with a GUID: of an adapter, a router, or a switch itself.

    :ivar kind: ``ca``, ``switch`` (its port 0) or ``router``.
    :ivar number: of the port at its node.
    :ivar facing: LID of the switch and number of its port that this one is connected to; None if
        the other end is not a switch.
    :ivar path: egress ports on the way to it, from the reader's own port on.
    """

    guid: int
    kind: str
    lid: int
    number: int
    facing: tuple[int, int] | None = None
    path: tuple[int, ...] = ()


@attrs.frozen
class FabricPorts:
    """All end ports of a fabric, as one walk found them.

    :ivar manager: GUID of the master subnet manager's port; None if unknown.
    :ivar doubled: GUIDs that more than one port claims -> LID of the switch and number of its port
        for each claim.
    :ivar silent: number of ports that are up, do not answer, and whose GUIDs are unknown.
    :ivar silent_places: LID of the switch and number of its port for each port that is up and does
        not answer.
    :ivar managers: GUID of each port with a subnet manager -> its state: ``master``, ``standby``,
        ``discovering``, ``not active``, ``unknown``.
    """

    ports: Mapping[int, EndPort] = attrs.field(factory=dict)
    manager: int | None = None
    doubled: Mapping[int, tuple[tuple[int, int], ...]] = attrs.field(factory=dict)
    silent: int = 0
    silent_places: frozenset[tuple[int, int]] = frozenset()
    managers: Mapping[int, str] = attrs.field(factory=dict)

    def keep_silent_ports(self, before: FabricPorts | None) -> FabricPorts:
        """Return a copy with silent ports identified by their places: the port found there before.

        A port whose link is down is at no silent place, so it is not kept.

        :param before: the same fabric, as it was found before; None if unknown.
        """
        if before is None or not self.silent_places:
            return self
        kept = {
            guid: port
            for guid, port in before.ports.items()
            if guid not in self.ports and port.facing in self.silent_places
        }
        return attrs.evolve(
            self, ports={**self.ports, **kept}, silent=max(0, self.silent - len(kept))
        )


@attrs.frozen
class PortTables:
    """The P_Key tables of a port and of the switch port facing it, as read, without empty entries.

    :ivar own: of the port; None if it could not be read.
    :ivar facing: of the switch port facing it; None if it could not be read, or does not exist.
    :ivar is_coming_up: the link is in INIT and carries no data; the manager may not have written
        the port's table yet.
    """

    own: frozenset[int] | None
    facing: frozenset[int] | None
    is_coming_up: bool = False


_FULL_DEFAULT: Final = DEFAULT_PKEY | FULL_MEMBER_BIT


def expect_entries(
    guid: int,
    kind: str,
    manages: bool,
    keys: Mapping[int, Membership],
    own: OwnPartitions,
) -> frozenset[int]:
    """Compute the exact P_Key table that a port must have: these entries and no others.

    :param kind: of the port: ``ca``, ``switch`` or ``router``.
    :param manages: whether the port is the subnet manager's.
    :param keys: P_Key -> membership in networks.
    :param own: the administrator's own partitions.
    """
    base = table_entry(DEFAULT_PKEY, Membership.FULL if manages else Membership.LIMITED)
    entries = {entry & 0x7FFF: entry for entry in own.entries_of(guid, kind, manages)}
    networks = {pkey: table_entry(pkey, membership) for pkey, membership in keys.items()}
    return frozenset(({DEFAULT_PKEY: base} | entries | networks).values())


@attrs.frozen
class TableExpectations:
    """The P_Key tables that all ports must have, for one content of the file.

    :ivar is_enforced: switch ports let only the P_Keys of their own tables through (opensm's
        ``part_enforce both``). ibsim does not keep the bits of PortInfo that show this.
    """

    layout: PartitionLayout
    own: OwnPartitions
    fabric: FabricPorts
    is_enforced: bool = True
    _keys: Mapping[int, Mapping[int, Membership]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_keys", self.layout.pkeys_by_guid())

    def entries_of(self, guid: int) -> frozenset[int]:
        """Return the expected P_Key table of the port with *guid*; see :func:`expect_entries`."""
        port = self.fabric.ports.get(guid)
        return expect_entries(
            guid,
            "ca" if port is None else port.kind,
            guid == self.fabric.manager,
            self._keys.get(guid, {}),
            self.own,
        )

    def find_full_ports(self, most: int) -> frozenset[int]:
        """Return GUIDs of ports whose table is full with the administrator's own partitions.

        :param most: keys of one port, beside the default one.
        """
        if len(self.own.pkeys()) < most:
            return frozenset()
        return frozenset(
            guid
            for guid, port in self.fabric.ports.items()
            if len(
                {entry & 0x7FFF for entry in self.own.entries_of(guid, port.kind)} - {DEFAULT_PKEY}
            )
            >= most
        )

    def judge_port(self, guid: int, tables: PortTables) -> str | None:
        """Return the fault of a port's P_Key tables as text; None if they are as expected."""
        port = self.fabric.ports[guid]
        if guid in self.fabric.doubled:
            return _describe_doubled(guid, self.fabric)
        expected = self.entries_of(guid)
        if tables.own is None:
            return "its P_Key table could not be read"
        if tables.own != expected:
            return f"its P_Key table is {_say(tables.own)}, and has to be {_say(expected)}"
        if port.facing is None:
            return None
        at = f"port {port.facing[1]} of the switch with LID {port.facing[0]}"
        if tables.facing is None:
            return f"the P_Key table of {at} could not be read"
        if tables.facing != expected:
            return (
                f"the P_Key table of {at}, which faces it, is {_say(tables.facing)}, and has to "
                f"be {_say(expected)}"
            )
        return None

    def find_strangers(
        self, read: Mapping[int, PortTables], leaving: frozenset[tuple[int, int]] = frozenset()
    ) -> Strangers:
        """Find ports with P_Keys that neither a network nor the administrator gave them.

        :param leaving: GUID and P_Key of rows that are not gone yet; they are not strangers.
        """
        foreign: defaultdict[int, set[int]] = defaultdict(set)
        sentences = []
        for guid, tables in sorted(read.items()):
            if tables.is_coming_up:
                continue
            expected = self.entries_of(guid)
            passed = self._list_passed_entries(guid, tables)
            stopped = (tables.own or frozenset()) - passed
            for entry in sorted(passed | stopped):
                if self._may_have(guid, entry, expected, leaving):
                    continue
                name = f"port {format_guid(guid)} has the P_Key {format_pkey(entry)}"
                if entry in stopped:
                    sentences.append(
                        f"{name} in its own table, which it was not given; its switch stops it"
                    )
                    continue
                foreign[entry & 0x7FFF].add(guid)
                if entry != DEFAULT_PKEY | FULL_MEMBER_BIT:
                    sentences.append(f"{name}, which it was not given")
        opened = foreign.get(DEFAULT_PKEY, set())
        if opened:
            sentences.insert(0, describe_open_fabric(opened))
        sentences.extend(
            _describe_doubled(guid, self.fabric) for guid in sorted(self.fabric.doubled)
        )
        return Strangers(
            {pkey: frozenset(guids) for pkey, guids in foreign.items()}, tuple(sentences)
        )

    def _list_passed_entries(self, guid: int, tables: PortTables) -> frozenset[int]:
        """Return the table entries that let packets of a port into the fabric.

        An enforcing switch port drops packets with keys outside its own table, so the port's own
        table counts only if the switch port does not enforce. An unread table has no entries.
        """
        own, facing = tables.own or frozenset(), tables.facing or frozenset()
        stops = self.is_enforced and self.fabric.ports[guid].facing is not None
        return facing if stops else own | facing

    def _may_have(
        self,
        guid: int,
        entry: int,
        expected: frozenset[int],
        leaving: frozenset[tuple[int, int]],
    ) -> bool:
        if guid == self.fabric.manager and entry | FULL_MEMBER_BIT == _FULL_DEFAULT:
            return True  # With opensm's allow_both_pkeys it has both entries.
        if entry in expected or entry | FULL_MEMBER_BIT in expected:
            return True
        return (guid, entry & 0x7FFF) in leaving


@attrs.frozen
class Strangers:
    """Ports with P_Keys that they were not given and that their switches let pass.

    :ivar by_pkey: P_Key -> GUIDs; under the default P_Key the GUIDs of its full members.
    :ivar sentences: the same for people, and ports whose switches stop such keys.
    """

    by_pkey: Mapping[int, frozenset[int]] = attrs.field(factory=dict)
    sentences: tuple[str, ...] = ()

    def full_defaults(self) -> frozenset[int]:
        """Return GUIDs of full members of the default partition: with any, the fabric is open."""
        return self.by_pkey.get(DEFAULT_PKEY, frozenset())


def compare_tables(
    expectations: TableExpectations, tables: Mapping[int, PortTables]
) -> FileComparison:
    """Judge each port's P_Key table by a file of partitions, and collect the differences as texts.

    :param tables: GUID -> the tables that were read.
    """
    wrong = [
        f"port {format_guid(guid)}: {reason}"
        for guid, read in sorted(tables.items())
        if (reason := expectations.judge_port(guid, read)) is not None
    ]
    managers = expectations.fabric.managers
    members = frozenset(expectations.layout.pkeys_by_guid()) & managers.keys()
    return FileComparison(len(tables), tuple(wrong), managers, members)


def judge_member(
    member: PartitionMember,
    expectations: TableExpectations,
    tables: PortTables | None,
    strangers: Strangers,
    file_in_force: str | None,
) -> MemberReading:
    """Judge the state of one membership row of Neutron from the P_Key tables of its port.

    :param tables: of its port; None if the fabric does not have the GUID.
    :param file_in_force: why the written file is not in force; None if it is.
    """
    name = f"port {format_guid(member.guid)}"
    reason = expectations.layout.refused.get(member.row)
    if reason is None and member.wanted:
        reason = _refuse_row(member, expectations, strangers)
    if reason is None and tables is None and file_in_force is not None:
        reason = f"{name}: {file_in_force}"
    kept = _find_key(member, expectations, tables)
    if reason is not None:
        return MemberReading(MemberState.DIFFERENT, reason, kept)
    if tables is None:
        return _judge_absent(name, expectations.fabric.silent)
    if tables.is_coming_up and member.wanted:
        reason = f"the link of {name} is coming up: the subnet manager has not made it active"
        return MemberReading(MemberState.NOT_ON_FABRIC, reason)
    if tables.own is None:
        return attrs.evolve(_judge_silent(name, member, expectations, tables), kept=kept)
    wrong = expectations.judge_port(member.guid, tables)
    if wrong is None:
        return MemberReading(MemberState.AS_DESIRED, kept=kept)
    return MemberReading(MemberState.DIFFERENT, f"{name}: {wrong}", kept)


def _refuse_row(
    member: PartitionMember, expectations: TableExpectations, strangers: Strangers
) -> str | None:
    """Explain why a wanted membership cannot be right, whatever the tables contain; else None."""
    if member.guid in expectations.fabric.managers:
        return describe_manager_port(member.guid)
    return _name_intruders(member, strangers)


def _judge_absent(name: str, silent: int) -> MemberReading:
    if not silent:
        return MemberReading(MemberState.NOT_ON_FABRIC, f"{name} is not on the fabric")
    return MemberReading(
        MemberState.UNKNOWN,
        f"{name} is not on the fabric, or it is one of {silent} ports that are up and do not "
        "answer",
    )


def _judge_silent(
    name: str, member: PartitionMember, expectations: TableExpectations, tables: PortTables
) -> MemberReading:
    """Judge a membership whose port is up and does not answer: the switch port's table decides."""
    stopped = expectations.is_enforced and tables.facing == expectations.entries_of(member.guid)
    if not member.wanted and stopped:
        return MemberReading(MemberState.AS_DESIRED)
    return MemberReading(
        MemberState.UNKNOWN, f"{name} is up and does not answer: its P_Key table could not be read"
    )


def _find_key(
    member: PartitionMember, expectations: TableExpectations, tables: PortTables | None
) -> bool | None:
    """Whether both tables have a row's entry; None if unread, or if the link is coming up."""
    if tables is None or tables.is_coming_up:
        return None
    entry = table_entry(member.pkey, member.membership)
    port = expectations.fabric.ports[member.guid]
    sides = [tables.own] if port.facing is None else [tables.own, tables.facing]
    if any(side is not None and entry not in side for side in sides):
        return False
    return None if None in sides else True


def describe_open_fabric(opened: Iterable[int]) -> str:
    """Return a sentence with number and first GUID of full members of the default partition."""
    guids = sorted(opened)
    return (
        f"the fabric is open: {len(guids)} ports are full members of the default partition, such "
        f"as {format_guid(guids[0])}"
    )


def _name_intruders(member: PartitionMember, strangers: Strangers) -> str | None:
    opened = strangers.full_defaults()
    if opened:
        return describe_open_fabric(opened)
    intruders = strangers.by_pkey.get(member.pkey, frozenset()) - {member.guid}
    if intruders:
        return (
            f"port {format_guid(min(intruders))} has the P_Key {format_pkey(member.pkey)}, too, "
            "and is no member of the network"
        )
    return None


def _describe_doubled(guid: int, fabric: FabricPorts) -> str:
    places = ", ".join(
        f"port {port} of the switch with LID {lid}" for lid, port in fabric.doubled[guid]
    )
    return (
        f"more than one port of the fabric has the GUID {format_guid(guid)}: {places}; opensm may "
        "change nothing until one is gone (ibportstate LID PORT disable)"
    )


def _say(entries: Iterable[int]) -> str:
    return " ".join(format_pkey(entry) for entry in sorted(entries)) or "empty"
