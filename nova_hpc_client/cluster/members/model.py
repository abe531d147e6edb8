# SPDX-License-Identifier: Apache-2.0
"""A cluster as its owner sees it: its parts in the records of Nova and Neutron, and its state."""

from __future__ import annotations

import collections
import enum
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from nova_hpc_client.cluster import snapshots
from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.members import (
    member_faults,
    member_items,
    member_reports,
    server_state,
)
from nova_hpc_client.cluster.members.group import ClusterGroup, read_group
from nova_hpc_client.cluster.members.marks import sort_by_cluster
from nova_hpc_client.cluster.members.port import MemberPort, read_port
from nova_hpc_client.cluster.members.server_state import Standing, StatusMeaning
from nova_hpc_common.outside.text import printable_text
from nova_hpc_common.wire import cluster_wish, member_verdict, position
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_common.wire.member_verdict import MemberVerdict
from nova_hpc_common.wire.position import Position
from nova_hpc_common.wire.server_faults import FaultWord
from nova_hpc_common.wire.version import LaterError, WireError
from nova_hpc_guest import host_list
from nova_hpc_guest.host_list import HEAD, PublicKeys, WrongHostListError


class ClusterState(enum.Enum):
    """The state of a cluster, in one word."""

    ACTIVE = "ACTIVE"
    #: Every member exists, and some are not ready yet.
    BUILDING = "BUILDING"
    #: A part is missing, or there are too many servers.
    INCOMPLETE = "INCOMPLETE"
    #: A member is in error.
    ERROR = "ERROR"
    #: Every member exists. Nova is at work on some that had run, or a command is not finished.
    CHANGING = "CHANGING"
    #: Every member is shut off.
    STOPPED = "STOPPED"
    #: Every member is shelved.
    SHELVED = "SHELVED"
    #: Every member exists, and some do not run.
    DEGRADED = "DEGRADED"
    #: The server group was deleted: only a deletion of the rest is possible.
    NO_GROUP = "NO_GROUP"
    #: Its records cannot be read.
    UNKNOWN = "UNKNOWN"


@attrs.frozen
class ClusterMember:
    """A server of the cluster.

    :ivar task: Nova's task state; empty if there is none.
    :ivar power: Nova's number of its power state; None if Nova does not show it.
    :ivar locked: Nova refuses to change it.
    :ivar launched: it has run at least once.
    :ivar going: it is being deleted.
    :ivar host: the project's own identifier of its host; empty while it has none.
    :ivar shared_mib: MiB of shared memory that its flavor requests; 0 if it requests none, or if
        Nova does not show the flavor's extra specs.
    :ivar fabric: the level of the fabric to which its flavor binds the cluster; empty if none.
    :ivar turn: the last turn that it has done; empty if none.
    :ivar keys: public keys that it was given; None if there are none, or if they are unreadable.
    :ivar hosts: text of its host list; empty if it has none, or if a part is missing.
    :ivar problem: the reason not to act on its ``ClusterWish``: a later release wrote it.
    :ivar verdict: the result of its measurement; None if there is none that can be read.
    :ivar faults: its present faults, the worst first.
    :ivar planned: the earliest time at which work on its host or its devices begins, in UTC as
        ``2026-12-04T08:00Z``; empty if none is announced.
    :ivar reports: the faults that its owner has reported, the worst first.
    :ivar ended: its guest has ended by itself, as its actions show; only ``show`` reads them.
    """

    id: str
    name: str
    status: str
    created: str = ""
    task: str = ""
    power: int | None = None
    locked: bool = False
    launched: bool = False
    going: bool = False
    host: str = ""
    fault: str = ""
    vcpus: int = 0
    ram_mb: int = 0
    shared_mib: int = 0
    addresses: Mapping[str, tuple[str, ...]] = attrs.Factory(dict)
    position: Position = attrs.Factory(Position)
    fabric: str = ""
    wish: ClusterWish | None = None
    turn: str = ""
    keys: PublicKeys | None = None
    hosts: str = ""
    problem: str = ""
    verdict: MemberVerdict | None = None
    faults: tuple[FaultWord, ...] = ()
    planned: str = ""
    reports: tuple[FaultWord, ...] = ()
    ended: bool = False

    @property
    def shown(self) -> str:
        """Its name in a printable form, because Nova accepts any text."""
        return printable_text(self.name)

    @property
    def meaning(self) -> StatusMeaning:
        """The meaning of its state for the cluster."""
        status = "DELETED" if self.going else self.status
        return server_state.judge_server(status, self.task, self.power)

    @property
    def standing(self) -> Standing:
        """The meaning of its state, in one word."""
        return self.meaning.standing

    @property
    def state_text(self) -> str:
        """Its state in a sentence: status, and task or power state if they matter."""
        status = printable_text(self.status)
        if self.task:
            return f"{status} ({printable_text(self.task)})"
        if self.status == "ACTIVE" and self.standing is not Standing.RUNS:
            return f"{status}, but its guest does not run (power state {self.power})"
        return f"{status}: its guest has ended" if self.ended and self.off else status

    @property
    def failed(self) -> bool:
        """Whether the member's server is in error in Nova."""
        return self.standing is Standing.FAILED

    @property
    def halted(self) -> bool:
        """Whether its hypervisor has paused its guest, as after a fatal error of a device."""
        return self.status == "ACTIVE" and self.standing is Standing.RESTS

    @property
    def off(self) -> bool:
        """Whether it is off, and Nova does nothing with it."""
        return self.status == "SHUTOFF" and self.standing is Standing.RESTS

    @property
    def rejected(self) -> bool:
        """Whether its measurement found it slow, or not as promised."""
        return self.verdict is not None and self.verdict.rejects

    @property
    def building(self) -> bool:
        """Whether Nova is making it, so that it has not been active yet."""
        return self.standing is Standing.ARRIVES

    @property
    def knows(self) -> Mapping[int, PublicKeys]:
        """Number of a member, or HEAD -> its keys, read from this server's host list."""
        try:
            listed = host_list.read_host_list(self.hosts)
        except WrongHostListError:
            return {}
        return {host.number: host.keys for host in listed.everyone}


@attrs.frozen(slots=False)
class Cluster:
    """All records of one cluster.

    :ivar ports: ports that the client made.
    :ivar strangers: names of servers in the group that do not belong to the cluster.
    :ivar heads: servers that were made as its head; a lost answer can leave more than one.
    :ivar adopted: another tool made the server group and the first members.
    :ivar kept: ports that another tool made, and that a replaced member gets again.
    :ivar namesakes: names that more than one server of the project has.
    """

    id: str
    group: ClusterGroup | None = None
    members: tuple[ClusterMember, ...] = ()
    heads: tuple[ClusterMember, ...] = ()
    ports: tuple[MemberPort, ...] = ()
    strangers: tuple[str, ...] = ()
    adopted: bool = False
    kept: tuple[MemberPort, ...] = ()
    namesakes: frozenset[str] = frozenset()

    @functools.cached_property
    def wish(self) -> ClusterWish | None:
        """The newest ``ClusterWish`` of a server, or else the server group's."""
        member_wishes = [
            server.wish
            for server in self.servers
            if server.wish is not None and server.wish.adopted == self.adopted
        ]
        if member_wishes:
            return max(member_wishes, key=lambda wish: wish.order)
        return self.group.label.wish if self.group and self.group.label else None

    @property
    def name(self) -> str:
        """The cluster's name; ``?`` if no record has it, or if it is not valid for a cluster."""
        if self.wish is not None:
            return self.wish.name
        if self.group is not None:
            if self.group.label is not None:
                return self.group.label.name
            group_word = self.group.name.removeprefix(cluster_wish.PREFIX).partition(" ")[0]
            return group_word if cluster_wish.NAME.fullmatch(group_word) else "?"
        return "?"

    @property
    def servers(self) -> tuple[ClusterMember, ...]:
        """All servers of the cluster: its members, and its head."""
        return (*self.members, *self.heads)

    @property
    def wants_head(self) -> bool:
        """Whether the cluster should have a head."""
        label = self.group.label if self.group else None
        return bool(self.wish.head) if self.wish else bool(label and label.head)

    @property
    def wanted(self) -> frozenset[int]:
        """Numbers of the members that the cluster should have."""
        if self.wish is not None:
            return self.wish.members
        return self.group.label.members if self.group and self.group.label else frozenset()

    @property
    def unadopted(self) -> Sequence[str]:
        """Names of strangers in an adopted group that have the names of missing members."""
        if not self.adopted or not self.strangers:
            return ()
        missing = self.wanted - number_members(self).by_number.keys()
        number_of = {
            name: wishes.member_number_of(self.name, name, True) for name in self.strangers
        }
        return [name for name, number in number_of.items() if number in missing]

    @property
    def lent(self) -> Sequence[MemberPort]:
        """Ports that the client made, and that a server outside the cluster uses."""
        ours = {"", *(server.id for server in self.servers)}
        return [port for port in self.ports if port.server not in ours]

    @property
    def unneeded(self) -> Sequence[MemberPort]:
        """Ports that the client made for members that the cluster should not have any more."""
        places = [(port, wishes.port_place_of(self.name, port.name)) for port in self.ports]
        return [port for port, at in places if at and at[0] not in self.wanted and not port.server]

    @property
    def untold(self) -> Sequence[ClusterMember]:
        """Members, and the head, without the newest host list."""
        numbered = number_members(self)
        known = {
            at: member.keys
            for at, member in (*numbered.by_number.items(), (HEAD, numbered.head))
            if member and member.keys and member.addresses
        }
        hosts = self.wish is not None and self.wish.hosts
        return [member for member in numbered.present if hosts and member.knows != known]

    @property
    def state(self) -> ClusterState:
        """The state of the cluster, in one word."""
        return self._judged[0]

    @property
    def reason(self) -> str:
        """The reason for that state; empty for ACTIVE."""
        return self._judged[1]

    @property
    def _judged(self) -> tuple[ClusterState, str]:
        """State and reason of the first check that applies.

        Missing and unreadable records are checked first, because the other checks need them.
        """
        if self.group is None:
            return ClusterState.NO_GROUP, "its server group was deleted"
        if self.group.problem:
            return ClusterState.UNKNOWN, self.group.problem
        later = next((server.problem for server in self.servers if server.problem), "")
        if later:
            return ClusterState.UNKNOWN, later
        if not self.wanted:
            return ClusterState.UNKNOWN, "no record says how many members there are to be"
        failed = [server for server in self.servers if server.failed]
        if failed:
            return (
                ClusterState.ERROR,
                f"{failed[0].shown}: {printable_text(failed[0].fault) or 'in error'}",
            )
        numbered = number_members(self)
        missing = self.wanted - numbered.by_number.keys()
        if numbered.unclear:
            names = ", ".join(member.shown for member in numbered.unclear)
            return (
                ClusterState.INCOMPLETE,
                f"{len(missing)} of these are members, and their names do not say which: {names}",
            )
        if self.unadopted:
            left = len(self.unadopted)
            return ClusterState.INCOMPLETE, f"{left} servers of its group are not adopted"
        if missing:
            return (
                ClusterState.INCOMPLETE,
                f"{len(missing)} of {len(self.wanted)} members are missing",
            )
        if self.wants_head and numbered.head is None:
            return ClusterState.INCOMPLETE, f"{wishes.head_name(self.name)} is missing"
        if numbered.surplus:
            return ClusterState.INCOMPLETE, f"{len(numbered.surplus)} servers too many"
        if self.unneeded:
            return ClusterState.INCOMPLETE, f"{len(self.unneeded)} ports too many"
        building = sum(member.building for member in self.members)
        if building:
            return ClusterState.BUILDING, f"{building} of {len(self.wanted)} members are building"
        if numbered.head and numbered.head.building:
            return ClusterState.BUILDING, f"{numbered.head.shown} is building"
        present = numbered.present
        changing = [member for member in present if member.standing is Standing.CHANGES]
        if changing:
            return ClusterState.CHANGING, f"{changing[0].shown} is {changing[0].state_text}"
        resting = [member for member in present if member.standing is not Standing.RUNS]
        if self.wish and self.wish.turn and all(member.status == "SHUTOFF" for member in resting):
            left = sum(member.turn != self.wish.turn for member in numbered.by_number.values())
            verb = self.wish.turn_verb
            # The progress of a snapshot is only in Glance, and a healer leaves a whole cluster.
            counted = verb not in (snapshots.SNAPSHOT, cluster_wish.HEAL)
            more = f", {left} members are left" if counted else ""
            return ClusterState.CHANGING, f"its {verb} is not finished{more}"
        left = 0 if resting else len(self.untold)
        if left:
            return ClusterState.CHANGING, f"{left} members do not have the newest host list"
        if not resting and numbered.going:
            return ClusterState.CHANGING, f"{len(numbered.going)} servers are being deleted"
        if not resting:
            return ClusterState.ACTIVE, ""
        together = server_state.RESTING_TOGETHER.get(frozenset(member.status for member in present))
        state = ClusterState(together) if together else ClusterState.DEGRADED
        first = next((member for member in resting if member.ended), resting[0])
        return state, f"{first.shown} is {first.state_text}"


@attrs.frozen
class Numbered:
    """Servers by their numbers as members.

    :ivar surplus: servers that are not members: too many, or not wanted any more.
    :ivar going: servers that are being deleted.
    :ivar head: None if there is none, or if the cluster should have none.
    :ivar unclear: servers that have run; some are members, but no name shows which.
    """

    by_number: Mapping[int, ClusterMember]
    surplus: tuple[ClusterMember, ...]
    going: tuple[ClusterMember, ...]
    head: ClusterMember | None = None
    unclear: tuple[ClusterMember, ...] = ()

    @property
    def present(self) -> tuple[ClusterMember, ...]:
        """The numbered members of the cluster, and the head if there is one."""
        return (*self.by_number.values(), *([self.head] if self.head else []))


def number_members(
    cluster: Cluster, wanted: Collection[int] | None = None, leaves: Collection[str] = ()
) -> Numbered:
    """Assign numbers to the servers, with the same result for every client.

    A server gets the number in its name. Of two servers with one number, the one that is not in
    error gets it, then the older one; the same rule chooses between two heads. A server whose user
    has renamed it gets a free number, since a new name must not delete a server. So does a server
    that has run and whose number is not wanted or is taken. If there are free numbers, but not for
    all of these that have run, none gets one: they are *unclear*.

    :param wanted: numbers of the members that the cluster should have; None for its own record's.
    :param leaves: ids of servers that are not members any more, whatever their names.
    """
    wanted = cluster.wanted if wanted is None else wanted
    left, heads = (
        sorted(
            (server for server in servers if not server.going),
            key=lambda server: (server.failed, server.created, server.id),
        )
        for servers in (cluster.members, cluster.heads)
    )
    head = heads.pop(0) if heads and cluster.wants_head else None
    by_number: dict[int, ClusterMember] = {}
    surplus = [member for member in left if member.id in leaves]
    renamed: list[ClusterMember] = []
    misnumbered: list[ClusterMember] = []
    for member in left:
        own_number = wishes.member_number_of(cluster.name, member.name, cluster.adopted)
        if member.id in leaves:
            continue
        if own_number is None:
            renamed.append(member)
        elif own_number in wanted and own_number not in by_number:
            by_number[own_number] = member
        else:
            # The disk of a server that never ran holds no user's data.
            (misnumbered if member.launched else surplus).append(member)
    free = sorted(set(wanted) - by_number.keys())
    candidates = sorted((*renamed, *misnumbered), key=lambda member: not member.launched)
    unclear = [member for member in candidates if member.launched]
    if not free or len(unclear) <= len(free):
        unclear = []
        by_number.update(zip(free, candidates, strict=False))
        surplus += candidates[len(free) :]
    going = tuple(server for server in cluster.servers if server.going)
    return Numbered(
        dict(sorted(by_number.items())), (*surplus, *heads), going, head, tuple(unclear)
    )


def gather_clusters(
    groups: Sequence[Mapping[str, Any]],
    servers: Iterable[Mapping[str, Any]],
    ports: Iterable[Mapping[str, Any]],
) -> list[Cluster]:
    """Gather all clusters in these records, including those whose group is gone.

    :param groups: records of ``GET /os-server-groups``.
    :param servers: records of ``GET /servers/detail``.
    :param ports: records of Neutron's ``GET /ports``.
    """
    servers = list(servers)
    all_groups = {group.id: group for group in map(read_group, groups)}
    named = {id for id, group in all_groups.items() if group.label or group.problem}
    marked = sort_by_cluster(servers, ports, named)
    cluster_groups = {
        id: group for id, group in all_groups.items() if id in named or id in marked.adopted
    }
    group_of = {server: group.id for group in cluster_groups.values() for server in group.members}
    strangers: dict[str, list[str]] = {}
    for server in servers:
        if server["id"] in group_of and server["id"] not in marked.members:
            strangers.setdefault(group_of[server["id"]], []).append(str(server["name"]))
    members: dict[str, list[ClusterMember]] = {}
    heads: dict[str, list[ClusterMember]] = {}
    for group_id, records in marked.servers.items():
        own_ports = (*marked.made.get(group_id, ()), *marked.kept.get(group_id, ()))
        for server in records:
            member = read_member(server, own_ports)
            # The head is never in the group. A member of the group with a head's name or metadata
            # is a renamed member.
            head = group_of.get(member.id) != group_id and member_items.is_head(
                server.get("metadata") or {}, member.name, member.wish
            )
            (heads if head else members).setdefault(group_id, []).append(member)
    counts = collections.Counter(str(server.get("name") or "") for server in servers)
    namesakes = frozenset(name for name, count in counts.items() if count > 1)
    ids = {*cluster_groups, *marked.servers, *marked.made, *marked.kept}
    gathered = [
        Cluster(
            id=id,
            group=cluster_groups.get(id),
            members=tuple(members.get(id, ())),
            heads=tuple(heads.get(id, ())),
            ports=tuple(map(read_port, marked.made.get(id, ()))),
            strangers=tuple(strangers.get(id, ())),
            adopted=id in marked.adopted,
            kept=tuple(map(read_port, marked.kept.get(id, ()))),
            namesakes=namesakes,
        )
        for id in ids
    ]
    return sorted(gathered, key=lambda cluster: (cluster.name, cluster.id))


def read_member(
    server: Mapping[str, Any], ports: Iterable[Mapping[str, Any]] = ()
) -> ClusterMember:
    """Read a server record of Nova's API; unreadable metadata counts as missing.

    :param ports: the cluster's ports, records of Neutron's API.
    """
    metadata = server.get("metadata") or {}
    wish, problem = None, ""
    try:
        wish = cluster_wish.from_metadata(metadata)
    except LaterError as error:
        problem = str(error)
    except WireError:
        pass  # A user has changed it; the other members have the same record.
    flavor = server.get("flavor") or {}
    fault = (server.get("fault") or {}).get("message")
    task = str(server.get("OS-EXT-STS:task_state") or "")
    power = server.get("OS-EXT-STS:power_state")
    meaning = server_state.judge_server(str(server.get("status")), task)
    return ClusterMember(
        id=str(server["id"]),
        name=str(server.get("name") or ""),
        status=str(server.get("status") or "UNKNOWN"),
        created=str(server.get("created") or ""),
        launched=bool(server.get("OS-SRV-USG:launched_at")),
        task=task,
        locked=server.get("locked") is True,
        power=power if isinstance(power, int) else None,
        going=meaning.standing is Standing.LEAVES,
        host=str(server.get("hostId") or ""),
        fault=str(fault or ""),
        vcpus=int(flavor.get("vcpus") or 0),
        ram_mb=int(flavor.get("ram") or 0),
        shared_mib=member_items.shared_mib_of(flavor),
        addresses={
            network: tuple(str(address["addr"]) for address in addresses)
            for network, addresses in (server.get("addresses") or {}).items()
        },
        position=position.position_of_metadata(metadata),
        fabric=member_items.bound_level_of(flavor),
        wish=wish,
        turn=str(metadata.get(cluster_wish.TURN_KEY) or ""),
        keys=member_items.read_member_keys(metadata),
        hosts=member_items.read_member_hosts(metadata),
        problem=problem,
        verdict=member_verdict.verdict_of_metadata(metadata),
        faults=member_faults.read_faults(server, ports),
        planned=member_faults.read_planned_time(server),
        reports=member_reports.read_reports(server),
    )
