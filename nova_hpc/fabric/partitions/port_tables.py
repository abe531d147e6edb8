# SPDX-License-Identifier: Apache-2.0
"""What the P_Key tables of ports have to be, and what is wrong with those that were read.

Verdicts are equality of whole tables, of the port's and of the one of the switch port facing it:
whether a key is there says nothing of a stale key beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import attrs

from nova_hpc.fabric.partitions.backends.base import MemberReading, MemberState
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
from nova_hpc.fabric.partitions.partition_file import PartitionLayout


@attrs.frozen
class EndPort:
    """A port with a GUID.

    :ivar kind: ``ca``, ``switch`` (its port 0) or ``router``.
    :ivar number: of the port at its node.
    :ivar facing: LID of the switch and number of its port that this one is connected to; None:
        there is no switch at the other end.
    :ivar path: ports to leave by on the way to it, from the reader's own port on.
    """

    guid: int
    kind: str
    lid: int
    number: int
    facing: tuple[int, int] | None = None
    path: tuple[int, ...] = ()


@attrs.frozen
class FabricPorts:
    """All end ports of a fabric.

    :ivar manager: GUID of the subnet manager's port; None: unknown.
    :ivar doubled: GUIDs that more than one port says are its own -> LID of the switch and number
        of its port where each is.
    :ivar silent: number of ports that are up and do not answer: their GUIDs are unknown.
    """

    ports: Mapping[int, EndPort] = attrs.field(factory=dict)
    manager: int | None = None
    doubled: Mapping[int, tuple[tuple[int, int], ...]] = attrs.field(factory=dict)
    silent: int = 0


@attrs.frozen
class PortTables:
    """P_Key tables as read, without empty entries.

    :ivar own: of the port; None: it could not be read.
    :ivar facing: of the switch port facing it; None: it could not be read, or there is none.
    """

    own: frozenset[int] | None
    facing: frozenset[int] | None


def expect_entries(
    guid: int,
    kind: str,
    manages: bool,
    keys: Mapping[int, Membership],
    own: OwnPartitions,
) -> frozenset[int]:
    """The entries that the table of a port has to have, and no others.

    :param keys: P_Key -> membership in networks.
    """
    base = table_entry(DEFAULT_PKEY, Membership.FULL if manages else Membership.LIMITED)
    entries = {entry & 0x7FFF: entry for entry in own.entries_of(guid, kind, manages)}
    networks = {pkey: table_entry(pkey, membership) for pkey, membership in keys.items()}
    return frozenset(({DEFAULT_PKEY: base} | entries | networks).values())


@attrs.frozen
class TableExpectations:
    """What the tables of all ports have to be, for one layout."""

    layout: PartitionLayout
    own: OwnPartitions
    fabric: FabricPorts
    _keys: Mapping[int, Mapping[int, Membership]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_keys", self.layout.pkeys_by_guid())

    def entries_of(self, guid: int) -> frozenset[int]:
        """What the table of a port has to be; see :func:`expect_entries`."""
        port = self.fabric.ports.get(guid)
        return expect_entries(
            guid,
            "ca" if port is None else port.kind,
            guid == self.fabric.manager,
            self._keys.get(guid, {}),
            self.own,
        )

    def judge_port(self, guid: int, tables: PortTables) -> str | None:
        """What is wrong with the tables of a port; None: they are exactly right."""
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
        """Look at all ports for keys that nobody has given them.

        :param leaving: GUID and P_Key of rows that are not gone yet: no strangers.
        """
        foreign: defaultdict[int, set[int]] = defaultdict(set)
        sentences = []
        for guid, tables in sorted(read.items()):
            expected = self.entries_of(guid)
            beside = (tables.own or frozenset()) | (tables.facing or frozenset())
            if guid == self.fabric.manager:
                # With opensm's allow_both_pkeys it has both.
                beside -= {DEFAULT_PKEY, DEFAULT_PKEY | FULL_MEMBER_BIT}
            for entry in sorted(beside - expected):
                if entry | FULL_MEMBER_BIT in expected or (guid, entry & 0x7FFF) in leaving:
                    continue
                foreign[entry & 0x7FFF].add(guid)
                if entry != DEFAULT_PKEY | FULL_MEMBER_BIT:
                    sentences.append(
                        f"port {format_guid(guid)} has the P_Key {format_pkey(entry)}, which "
                        "nobody has given it"
                    )
        opened = foreign.get(DEFAULT_PKEY, set())
        if opened:
            sentences.insert(
                0,
                f"the fabric is open: {len(opened)} ports are full members of the default "
                f"partition, such as {format_guid(min(opened))}",
            )
        sentences.extend(
            _describe_doubled(guid, self.fabric) for guid in sorted(self.fabric.doubled)
        )
        return Strangers(
            {pkey: frozenset(guids) for pkey, guids in foreign.items()}, tuple(sentences)
        )


@attrs.frozen
class Strangers:
    """Ports with keys that nobody has given them.

    :ivar by_pkey: P_Key -> GUIDs; under the default P_Key those that are full members of it.
    :ivar sentences: the same for people.
    """

    by_pkey: Mapping[int, frozenset[int]] = attrs.field(factory=dict)
    sentences: tuple[str, ...] = ()

    def full_defaults(self) -> frozenset[int]:
        """GUIDs of full members of the default partition: with any, the fabric is open."""
        return self.by_pkey.get(DEFAULT_PKEY, frozenset())


def judge_member(
    member: PartitionMember,
    expectations: TableExpectations,
    tables: PortTables | None,
    strangers: Strangers,
    file_in_force: str | None,
) -> MemberReading:
    """What was read back of one row.

    :param tables: of its port; None: the fabric does not know the GUID.
    :param file_in_force: why what was written is not in force; None: it is.
    """
    refused = expectations.layout.refused.get(member.row)
    if refused is not None:
        return MemberReading(MemberState.DIFFERENT, refused)
    name = f"port {format_guid(member.guid)}"
    if member.wanted:
        given = expectations.layout.partitions.get(member.pkey, {}).get(member.guid)
        if given is not member.membership:
            return MemberReading(
                MemberState.DIFFERENT,
                f"{name} is a {given or 'no'} member of {format_pkey(member.pkey)}, because a "
                "port of the network with the same physical port is: one table entry has one "
                "membership",
            )
        reason = _name_intruders(member, strangers)
        if reason is not None:
            return MemberReading(MemberState.DIFFERENT, reason)
    if file_in_force is not None and tables is None:
        return MemberReading(MemberState.DIFFERENT, f"{name}: {file_in_force}")
    if tables is None and expectations.fabric.silent:
        return MemberReading(
            MemberState.DIFFERENT,
            f"{name} is not on the fabric, or it is one of {expectations.fabric.silent} ports that "
            "are up and do not answer",
        )
    if tables is None:
        return MemberReading(MemberState.NOT_ON_FABRIC, f"{name} is not on the fabric")
    wrong = expectations.judge_port(member.guid, tables)
    if wrong is None:
        return MemberReading(MemberState.AS_DESIRED)
    return MemberReading(MemberState.DIFFERENT, f"{name}: {wrong}")


def _name_intruders(member: PartitionMember, strangers: Strangers) -> str | None:
    opened = strangers.full_defaults()
    if opened:
        return (
            "the fabric is open: ports are full members of the default partition, such as "
            f"{format_guid(min(opened))}"
        )
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
