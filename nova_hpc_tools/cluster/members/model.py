# SPDX-License-Identifier: Apache-2.0
"""A cluster as its owner sees it: what Nova and Neutron say of its parts, and its state."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.outside.host_names import is_uuid
from nova_hpc.outside.text import printable
from nova_hpc.wire import cluster_wish, position
from nova_hpc.wire.cluster_wish import Label, Wish
from nova_hpc.wire.position import Position
from nova_hpc.wire.version import LaterError, WireError
from nova_hpc_tools.cluster import wish as wishes

#: States of a server's task in which it goes away.
_GOING: Final = ("deleting", "soft-deleting")


class State(enum.Enum):
    """What a cluster is, in one word."""

    ACTIVE = "ACTIVE"
    #: Every member exists, and some are not ready yet.
    BUILDING = "BUILDING"
    #: Something is missing, or there is more than there should be.
    INCOMPLETE = "INCOMPLETE"
    #: A member is in error.
    ERROR = "ERROR"
    #: Every member exists, and some do not run.
    DEGRADED = "DEGRADED"
    #: The server group was deleted: what is left can be deleted.
    NO_GROUP = "NO_GROUP"
    #: Its records cannot be read.
    UNKNOWN = "UNKNOWN"


@attrs.frozen
class Member:
    """A server of the cluster.

    :ivar launched: it has run once.
    :ivar going: it is being deleted.
    :ivar host: the project's own word for its host; empty while it has none.
    :ivar problem: why its wish must not be acted on: a later release wrote it.
    """

    id: str
    name: str
    status: str
    created: str = ""
    launched: bool = False
    going: bool = False
    host: str = ""
    fault: str = ""
    vcpus: int = 0
    ram_mb: int = 0
    addresses: Mapping[str, tuple[str, ...]] = attrs.Factory(dict)
    position: Position = attrs.Factory(Position)
    wish: Wish | None = None
    problem: str = ""

    @property
    def shown(self) -> str:
        """Its name in a sentence: Nova takes any text."""
        return printable(self.name)

    @property
    def failed(self) -> bool:
        """Whether Nova says that it is in error."""
        return self.status == "ERROR" and not self.going

    @property
    def building(self) -> bool:
        """Whether it is on its way to be active."""
        return self.status == "BUILD" and not self.going


@attrs.frozen
class Port:
    """A port that was made for a member.

    :ivar server: id of the server that has it; empty: none has.
    """

    id: str
    name: str
    server: str = ""


@attrs.frozen
class Group:
    """A server group.

    :ivar label: None: it is no cluster's, or its name cannot be read.
    :ivar problem: why its name cannot be read.
    """

    id: str
    name: str
    policy: str = ""
    rules: Mapping[str, Any] = attrs.Factory(dict)
    members: tuple[str, ...] = ()
    label: Label | None = None
    problem: str = ""


@attrs.frozen
class Cluster:
    """Everything that is known of one cluster.

    :ivar strangers: names of servers in the group that are not the cluster's.
    """

    id: str
    group: Group | None = None
    members: tuple[Member, ...] = ()
    ports: tuple[Port, ...] = ()
    strangers: tuple[str, ...] = ()

    @property
    def wish(self) -> Wish | None:
        """The newest wish of a member, or else the server group's."""
        found = [member.wish for member in self.members if member.wish is not None]
        if found:
            return max(found, key=lambda wish: wish.order)
        return self.group.label.wish if self.group and self.group.label else None

    @property
    def name(self) -> str:
        """The cluster's name; ``?`` where nothing says it, or not one that a cluster can have."""
        if self.wish is not None:
            return self.wish.name
        if self.group is not None:
            if self.group.label is not None:
                return self.group.label.name
            said = self.group.name.removeprefix(cluster_wish.PREFIX).partition(" ")[0]
            return said if cluster_wish.NAME.fullmatch(said) else "?"
        return "?"

    @property
    def wanted(self) -> frozenset[int]:
        """Numbers of the members that there are to be."""
        if self.wish is not None:
            return self.wish.members
        return self.group.label.members if self.group and self.group.label else frozenset()

    @property
    def state(self) -> State:
        """What the cluster is, in one word."""
        return self._judged[0]

    @property
    def reason(self) -> str:
        """Why it is in that state; empty for ACTIVE."""
        return self._judged[1]

    @property
    def _judged(self) -> tuple[State, str]:
        if self.group is None:
            return State.NO_GROUP, "its server group was deleted"
        if self.group.problem:
            return State.UNKNOWN, self.group.problem
        later = next((member.problem for member in self.members if member.problem), "")
        if later:
            return State.UNKNOWN, later
        if not self.wanted:
            return State.UNKNOWN, "no record says how many members there are to be"
        failed = [member for member in self.members if member.failed]
        if failed:
            return State.ERROR, f"{failed[0].shown}: {printable(failed[0].fault) or 'in error'}"
        numbered = number(self)
        missing = self.wanted - numbered.by_number.keys()
        if missing:
            return State.INCOMPLETE, f"{len(missing)} of {len(self.wanted)} members are missing"
        if numbered.surplus:
            return State.INCOMPLETE, f"{len(numbered.surplus)} servers too many"
        building = sum(member.building for member in self.members)
        if building:
            return State.BUILDING, f"{building} of {len(self.wanted)} members are building"
        other = [member for member in self.members if member.status != "ACTIVE"]
        if other:
            return State.DEGRADED, f"{other[0].shown} is {other[0].status}"
        return State.ACTIVE, ""


@attrs.frozen
class Numbered:
    """Which server is which member.

    :ivar surplus: servers that are no member: too many, or not wanted any more.
    :ivar going: servers that are being deleted; the number of each where its name says it.
    """

    by_number: Mapping[int, Member]
    surplus: tuple[Member, ...]
    going: tuple[Member, ...]


def number(cluster: Cluster, wanted: Collection[int] | None = None) -> Numbered:
    """Say which server is which member, the same for every client.

    :param wanted: numbers of the members that there are to be; None: what the wish says.

    The name says it. A user may have renamed one: it takes a number that is free, for
    nobody deletes a server over its name. Of two with one number the one counts that is
    not in error, then the older one.
    """
    wanted = cluster.wanted if wanted is None else wanted
    left = [member for member in cluster.members if not member.going]
    left.sort(key=lambda member: (member.failed, member.created, member.id))
    found: dict[int, Member] = {}
    surplus: list[Member] = []
    renamed: list[Member] = []
    for member in left:
        said = wishes.number_of(cluster.name, member.name)
        if said is None:
            renamed.append(member)
        elif said in found or said not in wanted:
            surplus.append(member)
        else:
            found[said] = member
    free = iter(sorted(set(wanted) - found.keys()))
    for member in renamed:
        place = next(free, None)
        if place is None:
            surplus.append(member)
        else:
            found[place] = member
    going = tuple(member for member in cluster.members if member.going)
    return Numbered(dict(sorted(found.items())), tuple(surplus), going)


def clusters(
    groups: Sequence[Mapping[str, Any]],
    servers: Iterable[Mapping[str, Any]],
    ports: Iterable[Mapping[str, Any]],
) -> list[Cluster]:
    """All clusters that these records are of, also those whose group is gone.

    :param groups: of ``GET /os-server-groups``.
    :param servers: of ``GET /servers/detail``.
    :param ports: of Neutron's ``GET /ports``.
    """
    known = {group.id: group for group in map(read_group, groups)}
    known = {id: group for id, group in known.items() if group.label or group.problem}
    group_of = {server: group.id for group in known.values() for server in group.members}
    members: dict[str, list[Member]] = {}
    strangers: dict[str, list[str]] = {}
    for server in servers:
        mine = of_group(server)
        if mine is not None:
            members.setdefault(mine, []).append(read_member(server))
        elif server["id"] in group_of:
            strangers.setdefault(group_of[server["id"]], []).append(str(server["name"]))
    made: dict[str, list[Port]] = {}
    for port in ports:
        description = str(port.get("description") or "")
        mine = _group_id(description.removeprefix(wishes.MARK))
        if description.startswith(wishes.MARK) and mine is not None:
            made.setdefault(mine, []).append(read_port(port))
    ids = {*known, *members, *made}
    found = [
        Cluster(
            id=id,
            group=known.get(id),
            members=tuple(members.get(id, ())),
            ports=tuple(made.get(id, ())),
            strangers=tuple(strangers.get(id, ())),
        )
        for id in ids
    ]
    return sorted(found, key=lambda cluster: (cluster.name, cluster.id))


def of_group(server: Mapping[str, Any]) -> str | None:
    """The server group of whose cluster this server is a member.

    Its tag says so, or its metadata: users take tags away, and Nova stores a server
    before its tags. Users write both: what is no id of a server group says nothing, since
    requests are made and commands are shown with it.
    """
    for each in server.get("tags") or ():
        mine = _group_id(each.removeprefix(wishes.MARK))
        if each.startswith(wishes.MARK) and mine is not None:
            return mine
    return _group_id((server.get("metadata") or {}).get(cluster_wish.GROUP_KEY))


def _group_id(said: object) -> str | None:
    return str(said) if is_uuid(said) else None


def read_group(group: Mapping[str, Any]) -> Group:
    """A server group of Nova's API."""
    label, problem = None, ""
    try:
        label = cluster_wish.from_group_name(str(group["name"]))
    except WireError as error:
        problem = str(error)
    return Group(
        id=str(group["id"]),
        name=str(group["name"]),
        policy=str(group.get("policy") or ""),
        rules=dict(group.get("rules") or {}),
        members=tuple(group.get("members") or ()),
        label=label,
        problem=problem,
    )


def read_member(server: Mapping[str, Any]) -> Member:
    """A server of Nova's API."""
    metadata = server.get("metadata") or {}
    wish, problem = None, ""
    try:
        wish = cluster_wish.from_metadata(metadata)
    except LaterError as error:
        problem = str(error)
    except WireError:
        pass  # A user has changed it: another member's says the same.
    flavor = server.get("flavor") or {}
    fault = (server.get("fault") or {}).get("message")
    return Member(
        id=str(server["id"]),
        name=str(server.get("name") or ""),
        status=str(server.get("status") or "UNKNOWN"),
        created=str(server.get("created") or ""),
        launched=bool(server.get("OS-SRV-USG:launched_at")),
        going=server.get("OS-EXT-STS:task_state") in _GOING or server.get("status") == "DELETED",
        host=str(server.get("hostId") or ""),
        fault=str(fault or ""),
        vcpus=int(flavor.get("vcpus") or 0),
        ram_mb=int(flavor.get("ram") or 0),
        addresses={
            network: tuple(str(each["addr"]) for each in found)
            for network, found in (server.get("addresses") or {}).items()
        },
        position=position.of(metadata),
        wish=wish,
        problem=problem,
    )


def read_port(port: Mapping[str, Any]) -> Port:
    """A port of Neutron's API."""
    return Port(str(port["id"]), str(port.get("name") or ""), str(port.get("device_id") or ""))
