# SPDX-License-Identifier: Apache-2.0
"""The domain of a server group: its records in Placement, and their meaning.

Pure. All records are four kinds of providers *without inventory*, each a child of the one
before. So they are never allocation candidates and need no service of their own:

=========  ==========================  =====================================================
domain     ``hpc-fabric:LEVEL:...``    for example a leaf; a root, with a UUID from its name
room       ``hpc-room:N/K/SIZE:...``   keeps N places for a group's members, K to a host
record     ``hpc-group:GROUP``         the group's domain; the name is unique, so one INSERT of
                                       Placement's decides between any number of schedulers
ticket     ``hpc-member:SERVER``       one a member, taken before its claim; its UUID is the
                                       server's. A provider with a child cannot be deleted: a
                                       record that goes had no member
=========  ==========================  =====================================================

**Rooms of any size.** A scheduler creates a room first and checks it afterwards: it reads the
domain again, and keeps the room only if all rooms together fit into the free places. Of two
rooms that are created at the same time the later scheduler has seen the other one. So both may
withdraw, but two that do not fit never both stay. The number of slots need not be fixed before.
"""

from __future__ import annotations

import enum
import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import attrs

#: Namespace of all UUIDs that are derived here; fixed for ever.
_NAMESPACE: Final = uuid.UUID("b5a1d7c4-52f4-5a0e-8f57-6e6f76616870")

DOMAIN_PREFIX: Final = "hpc-fabric:"
ROOM_PREFIX: Final = "hpc-room:"
RECORD_PREFIX: Final = "hpc-group:"
TICKET_PREFIX: Final = "hpc-member:"

#: The level of the domain that all hosts are in, for ``hpc:fabric_policy=preferred``.
ANYWHERE: Final = "anywhere"

_ROOM: Final = re.compile(
    re.escape(ROOM_PREFIX)
    + r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})/([0-9a-f]{0,16}):([^:]{1,64}):[0-9a-f]{8}"
)
_DOMAIN: Final = re.compile(re.escape(DOMAIN_PREFIX) + r"([a-z_]+):(.*):[0-9a-f]{8}")
#: Longest name of a provider (placement/schemas/resource_provider.py).
_LONGEST: Final = 200


@attrs.frozen(order=True)
class GroupDomain:
    """A domain of the fabric (level and name) that has a resource provider in Placement."""

    #: The word of ``hpc:fabric``, or ANYWHERE.
    level: str
    #: Unique among the domains of the level; "" for ANYWHERE.
    name: str

    @property
    def uuid(self) -> str:
        """The UUID of the domain's resource provider."""
        return str(uuid.uuid5(_NAMESPACE, f"domain:{self.level}:{self.name}"))

    @property
    def provider_name(self) -> str:
        """The name of the domain's resource provider.

        It contains a part of the UUID, because databases compare names without regard to case,
        accents or blanks at the end.
        """
        tail = f":{self.uuid[:8]}"
        head = f"{DOMAIN_PREFIX}{self.level}:"
        text = self.name.encode("ascii", "backslashreplace").decode()
        return head + text[: _LONGEST - len(head) - len(tail)] + tail

    def __str__(self) -> str:
        return f"{self.level} {self.name}" if self.name else self.level


#: Domain of servers whose policy is preferred, if no smaller domain holds them.
EVERYWHERE: Final = GroupDomain(ANYWHERE, "")


@attrs.frozen
class GroupProvider:
    """The fields of a resource provider that the records of groups use."""

    uuid: str
    name: str
    parent: str | None
    root: str

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> GroupProvider:
        """Read a provider from Placement's JSON.

        :raises KeyError, TypeError: it is not one.
        """
        return cls(
            uuid=str(document["uuid"]),
            name=str(document["name"]),
            parent=document.get("parent_provider_uuid"),
            root=str(document.get("root_provider_uuid") or document["uuid"]),
        )


@attrs.frozen
class GroupRecord:
    """The record of a server group in Placement, with the tickets of its members below it."""

    uuid: str
    #: The server group's UUID.
    group: str
    #: UUIDs of servers, sorted.
    tickets: tuple[str, ...] = ()


@attrs.frozen
class Size:
    """The size of the request's servers: a key for equal servers, and how many fit on an empty
    host.
    """

    #: Hexadecimal, equal for servers of the same size.
    key: str = ""
    #: Number of such servers that an empty host takes.
    per_host: int = 1


#: Size of servers about which nothing is known.
ANY_SIZE: Final = Size()


@attrs.frozen
class GroupRoom:
    """The places of a domain that are reserved for a server group."""

    uuid: str
    group: str
    #: Number of members that the group has announced.
    members: int
    size: Size = ANY_SIZE
    #: None if its scheduler is about to write it, or has died.
    record: GroupRecord | None = None

    @property
    def settled(self) -> bool:
        """Whether a member has a ticket; otherwise its scheduler is about to create one, or has
        died.
        """
        return self.record is not None and bool(self.record.tickets)

    def outstanding(self, placed: Collection[str] = ()) -> int:
        """Count the members of the room's group that are still to come, or that have no place yet.

        :param placed: servers that already have their place.
        """
        tickets = self.record.tickets if self.record else ()
        placed_count = sum(1 for ticket in tickets if ticket in placed)
        return max(self.members, len(tickets)) - placed_count

    def cost(self, size: Size, placed: Collection[str] = ()) -> int:
        """Count the places that the :meth:`outstanding` members take from servers of *size*.

        Servers of another size are counted by the hosts that they fill.
        """
        left = self.outstanding(placed)
        if self.size.key == size.key:
            return left
        return -(-left // self.size.per_host) * size.per_host


@attrs.frozen
class DomainTree:
    """The resource provider of a domain and all providers below it: rooms, records and tickets."""

    domain: str
    #: The provider's name; "" if there is none.
    name: str = ""
    rooms: tuple[GroupRoom, ...] = ()
    #: Providers below it of other kinds, or records in no room, which were created by hand.
    strange: tuple[GroupProvider, ...] = ()

    @classmethod
    def of(cls, domain: str, providers: Iterable[GroupProvider]) -> DomainTree:
        """Make the tree of a domain from the answer to ``GET /resource_providers?in_tree=``."""
        children: dict[str | None, list[GroupProvider]] = {}
        by_uuid = {provider.uuid: provider for provider in providers}
        for provider in sorted(by_uuid.values(), key=lambda provider: provider.uuid):
            children.setdefault(provider.parent, []).append(provider)
        used = {domain}
        rooms = []
        for below in children.get(domain, ()):
            match = _ROOM.fullmatch(below.name)
            if not match:
                continue
            used.add(below.uuid)
            record = None
            for child in children.get(below.uuid, ()):
                if child.name.startswith(RECORD_PREFIX) and record is None:
                    tickets = [
                        ticket.uuid
                        for ticket in children.get(child.uuid, ())
                        if ticket.name.startswith(TICKET_PREFIX)
                    ]
                    used.update((child.uuid, *tickets))
                    record = GroupRecord(
                        child.uuid, child.name[len(RECORD_PREFIX) :], tuple(tickets)
                    )
            size = Size(match[3], int(match[2]))
            rooms.append(GroupRoom(below.uuid, match[4], int(match[1]), size, record))
        return cls(
            domain=domain,
            name=by_uuid[domain].name if domain in by_uuid else "",
            rooms=tuple(rooms),
            strange=tuple(provider for provider in by_uuid.values() if provider.uuid not in used),
        )

    @property
    def tickets(self) -> tuple[str, ...]:
        """UUIDs of the servers with a ticket in this domain, of all groups."""
        return tuple(ticket for room in self.rooms if room.record for ticket in room.record.tickets)

    def promised(
        self, group: str, size: Size, placed: Collection[str] = (), settled: bool = False
    ) -> int:
        """Count the places that are reserved for other groups than *group*.

        :param size: of the servers whose places are counted.
        :param placed: servers that already have their place.
        :param settled: leave out rooms that no member has used, because they may go again.
        """
        return sum(
            room.cost(size, placed)
            for room in self.rooms
            if room.group != group and (room.settled or not settled)
        )


class RoomVerdict(enum.Enum):
    """The next action of a scheduler that created a room for a server group in a fabric domain."""

    STAY = "stay"
    #: The only obstacles are rooms that are not settled, and this one comes before them.
    WAIT = "wait"
    #: The only obstacles are such rooms, and one of them comes first: try elsewhere.
    YIELD = "yield"
    FULL = "full"
    #: Another process has removed the room.
    GONE = "gone"


def judge_new_room(
    tree: DomainTree, room: str, free: int, placed: Collection[str] = ()
) -> RoomVerdict:
    """Decide whether a room that was just created may stay; *tree* was read afterwards.

    If only unsettled rooms of other groups are in the way, the room with the lowest UUID waits
    and the others yield. So two schedulers never wait for each other.

    :param room: UUID of the provider.
    :param free: servers that fit into the domain, without counting the remaining members of
        other groups.
    :param placed: servers that are no longer in *free*.
    """
    own_room = next((candidate for candidate in tree.rooms if candidate.uuid == room), None)
    if own_room is None:
        return RoomVerdict.GONE
    if own_room.members + tree.promised(own_room.group, own_room.size, placed) <= free:
        return RoomVerdict.STAY
    if own_room.members + tree.promised(own_room.group, own_room.size, placed, settled=True) > free:
        return RoomVerdict.FULL
    rivals = [
        rival.uuid for rival in tree.rooms if not rival.settled and rival.group != own_room.group
    ]
    return RoomVerdict.WAIT if room < min(rivals) else RoomVerdict.YIELD


def room_name(group: str, members: int, size: Size = ANY_SIZE) -> str:
    """Build a unique provider name for a room: members, servers' size, group, random digits."""
    return f"{ROOM_PREFIX}{members}/{size.per_host}/{size.key}:{group}:{uuid.uuid4().hex[:8]}"


def domain_of(provider_name: str) -> GroupDomain | None:
    """Parse the name of a domain's provider; None for names of other providers.

    A long name is cut off, and characters outside ASCII are escaped, so it is only for people.
    """
    match = _DOMAIN.fullmatch(provider_name)
    return GroupDomain(match[1], match[2]) if match else None
