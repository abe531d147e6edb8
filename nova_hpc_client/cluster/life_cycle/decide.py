# SPDX-License-Identifier: Apache-2.0
"""Plans the steps that bring a cluster from its present state to the wanted one.

The client stores nothing between two steps: each plan starts from the records of Nova and
Neutron. A killed client leaves a state like any other, and the next command (``create
--resume``, ``delete``) plans from there.

The order of steps keeps two promises. The server group, which names the cluster, is created
first and deleted last. Each server names its cluster from its first moment, by tag and metadata,
and each port by its description. So ``list`` shows everything that exists.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs

from nova_hpc_client.cluster import wish as wishes
from nova_hpc_client.cluster.life_cycle.steps import (
    Act,
    DeleteGroup,
    DeletePort,
    DeleteServer,
    Done,
    MakeHead,
    MakePort,
    MakeServers,
    Move,
    ReleasePort,
    SetHosts,
    SetWish,
    Step,
    Stuck,
    Wait,
)
from nova_hpc_client.cluster.member_list import list_members
from nova_hpc_client.cluster.members.model import (
    Cluster,
    ClusterMember,
    ClusterState,
    Numbered,
    number_members,
)
from nova_hpc_client.cluster.members.port import MemberPort
from nova_hpc_client.cluster.members.server_state import CHANGEABLE, Standing
from nova_hpc_common.outside.text import printable_text, shell_command
from nova_hpc_common.wire.cluster_wish import HEAL, ClusterWish
from nova_hpc_guest.host_list import PublicKeys, write_host_list


@attrs.frozen
class Terms:
    """Limits for the servers that existed before the command began.

    :ivar remake: ids of servers that failed before they ever ran; they are deleted and replaced.
    :ivar bear: ids of servers in error that do not stop the plan, but are an error in the end.
    :ivar leave: ids of servers in error that are left as they are.
    :ivar rest: no member needs to run in the end.
    :ivar new_keys: public keys of the members that are created.
    :ivar leaves: ids of servers that are not members any more, whatever their names.
    """

    remake: frozenset[str] = frozenset()
    bear: frozenset[str] = frozenset()
    leave: frozenset[str] = frozenset()
    rest: bool = False
    new_keys: PublicKeys | None = None
    leaves: frozenset[str] = frozenset()


def plan_fulfilment(wish: ClusterWish, cluster: Cluster, terms: Terms | None = None) -> Move:
    """The next steps until exactly the members and the head of *wish* exist and run.

    The phases, in this order: write the newest ``ClusterWish`` to the members, delete surplus
    servers, create missing ports, create missing servers, wait until all run, write host lists.

    :param cluster: the present cluster.
    :returns: the steps of one phase, a wait, or the reason why no step helps.
    """
    terms = terms or Terms()
    if cluster.group is None:
        return Stuck("its server group was deleted; what is left can only be deleted")
    if cluster.unadopted:
        names = ", ".join(map(printable_text, cluster.unadopted))
        return Stuck(f"{names} would be made twice: {format_finish_commands(cluster)}")
    current_wish = cluster.wish
    if current_wish is not None and current_wish.order > wish.order:
        return Stuck("another client has changed this cluster meanwhile")
    numbered = number_members(cluster, wish.members, terms.leaves)
    if numbered.unclear:
        return Stuck(explain_unclear(cluster, numbered, wish.members))
    stale = tuple(
        SetWish(member.id, member.name)
        for member in numbered.present
        if member.wish != wish and member.status in CHANGEABLE
    )
    gone = [*numbered.surplus]
    gone += [member for member in numbered.present if member.id in terms.remake]
    changed = {step.server for step in stale} | {member.id for member in gone}
    locked = explain_locks(cluster, [each for each in cluster.servers if each.id in changed])
    if locked:
        return Stuck(locked)
    if stale:
        # The members get the new record before anything is deleted or made: the first copy of it
        # already commits every client to the change.
        return Act(stale)
    if numbered.present and current_wish != wish:
        member = numbered.present[0]
        return Stuck(
            f"{member.shown} is {member.state_text}, and Nova changes no metadata then: "
            f"{format_finish_commands(cluster)}"
        )
    if gone:
        return Act(tuple(DeleteServer(member.id, member.name) for member in gone))
    failed = [
        member
        for member in numbered.present
        if member.failed and member.id not in terms.bear | terms.leave and not terms.rest
    ]
    if failed:
        return Stuck(explain_failure(failed))
    if numbered.going:
        return Wait(f"{len(numbered.going)} servers are being deleted")
    missing = [
        member_number
        for member_number in sorted(wish.members)
        if member_number not in numbered.by_number
    ]
    move = _plan_ports(wish, cluster, numbered, missing)
    if move is not None:
        return move
    if missing or (wish.head and numbered.head is None):
        return _plan_missing(wish, cluster, numbered, missing, terms)
    building = [member for member in numbered.by_number.values() if member.building]
    if building:
        return Wait(f"{len(building)} of {len(wish.members)} members are building")
    if numbered.head and numbered.head.building:
        return Wait(f"{numbered.head.shown} is building")
    needed = [member for member in numbered.present if member.id not in terms.leave]
    running = Done() if terms.rest else plan_running(cluster, needed)
    if not wish.hosts or not isinstance(running, Done):
        return running
    return _plan_hosts(wish, cluster, numbered.present)


def _plan_hosts(wish: ClusterWish, cluster: Cluster, members: Collection[ClusterMember]) -> Move:
    """Steps for the members whose host list is not the newest; Done if there are none."""
    hosts = list_members(wish, cluster)
    text = write_host_list(hosts)
    untold = [
        member
        for member in members
        if hosts.hosts and member.hosts != text and member.status in CHANGEABLE
    ]
    steps = tuple(SetHosts(member.id, member.name, text) for member in untold if not member.locked)
    if steps:
        return Act(steps)
    locked = explain_locks(cluster, untold)
    return Stuck(locked) if locked else Done()


def plan_running(cluster: Cluster, members: Collection[ClusterMember]) -> Move:
    """Whether members run: Done, a wait for Nova's work, or the command that helps.

    :param cluster: the cluster of these members.
    """
    failed = [member for member in members if member.failed]
    if failed:
        return Stuck(explain_failure(failed))
    changing = [member for member in members if member.standing is Standing.CHANGES]
    if changing:
        return Wait(f"{changing[0].shown} is {changing[0].state_text}")
    resting = [member for member in members if member.standing is not Standing.RUNS]
    if resting:
        more = f" (and {len(resting) - 1} more do not run)" if len(resting) > 1 else ""
        command = format_finish_commands(cluster)
        return Stuck(f"{resting[0].shown} is {resting[0].state_text}{more}: {command}")
    if cluster.wish is not None and cluster.wish.turn_verb not in ("", HEAL):
        return Stuck(f"{cluster.reason}: {format_finish_commands(cluster)}")
    return Done()


def plan_deletion(cluster: Cluster) -> Move:
    """The next steps until nothing is left of the cluster: servers, then ports, then the group.

    Three things stay: the server group of an adopted cluster, ports that the client did not make,
    and ports that a server outside the cluster uses. The ports lose only their marks.
    """
    living = [server for server in cluster.servers if not server.going]
    locked = explain_locks(cluster, living)
    if locked:
        return Stuck(locked)
    if living:
        return Act(tuple(DeleteServer(server.id, server.name) for server in living))
    if cluster.servers:
        return Wait(f"{len(cluster.servers)} servers are being deleted")
    lent = {port.id for port in cluster.lent}
    if cluster.ports:
        return Act(
            tuple(
                ReleasePort(port.id) if port.id in lent else DeletePort(port.id)
                for port in cluster.ports
            )
        )
    if cluster.kept:
        return Act(tuple(ReleasePort(port.id) for port in cluster.kept))
    if cluster.group is not None and not cluster.adopted:
        return Act((DeleteGroup(),))
    return Done()


def remakable_members_of(cluster: Cluster) -> frozenset[str]:
    """Ids of the servers that failed before they ever ran: their disks hold no user's data."""
    return frozenset(
        server.id for server in cluster.servers if server.failed and not server.launched
    )


def change_wish_members(wish: ClusterWish, members: Collection[int]) -> ClusterWish:
    """The ``ClusterWish`` with other members and the next generation."""
    return attrs.evolve(wish, members=frozenset(members), generation=wish.generation + 1)


def grow_member_numbers(wish: ClusterWish, size: int) -> frozenset[int]:
    """Numbers for *size* members: the present ones, and the lowest free ones."""
    numbers = set(wish.members)
    candidate = 1
    while len(numbers) < size:
        numbers.add(candidate)
        candidate += 1
    return frozenset(numbers)


def format_finish_commands(cluster: Cluster) -> str:
    """The commands that finish or undo an interrupted change; empty if there is nothing to do."""
    named = cluster.name if cluster.name != "?" else cluster.id
    undo = shell_command("openstack", "hpc", "cluster", "delete", named)
    resume = shell_command("openstack", "hpc", "cluster", "create", "--resume", named)
    if cluster.state is ClusterState.ACTIVE:
        return ""
    numbered = number_members(cluster)
    if cluster.state is ClusterState.INCOMPLETE and numbered.unclear:
        return _format_name_command(cluster, numbered, cluster.wanted)
    if cluster.state is ClusterState.CHANGING:
        turn = cluster.wish.turn_verb if cluster.wish else ""
        locked = [member for member in cluster.untold if member.locked]
        if locked and not turn:
            return format_unlock_command(cluster, locked[0])
        return shell_command("openstack", "hpc", "cluster", turn, named) if turn else resume
    unclear = cluster.state in (ClusterState.NO_GROUP, ClusterState.UNKNOWN)
    if cluster.adopted and (unclear or cluster.state is ClusterState.INCOMPLETE):
        return _format_adopt_commands(cluster, named)
    if unclear:
        return undo
    ran = [server for server in cluster.servers if server.failed and server.launched]
    if ran:
        return format_replace_command(cluster, ran[0])
    if cluster.state in (ClusterState.DEGRADED, ClusterState.STOPPED, ClusterState.SHELVED):
        return _format_run_commands(cluster, named)
    return f"{resume}, or {undo}"


def explain_unclear(cluster: Cluster, numbered: Numbered, wanted: Collection[int]) -> str:
    """A sentence for servers whose names do not identify the members, and the command that helps.

    :param wanted: numbers of the members that the cluster should have.
    """
    names = ", ".join(member.shown for member in numbered.unclear)
    free = len(set(wanted) - numbered.by_number.keys())
    return (
        f"{free} of these are members, and their names do not say which: {names}; "
        f"{_format_name_command(cluster, numbered, wanted)} says it, and the others are too many"
    )


def _format_name_command(cluster: Cluster, numbered: Numbered, wanted: Collection[int]) -> str:
    """The command with which a user gives a server the name of a missing member."""
    name = f"{cluster.name}-{min(set(wanted) - numbered.by_number.keys())}"
    return shell_command("openstack", "server", "set", "--name", name, "SERVER")


def _format_adopt_commands(cluster: Cluster, named: str) -> str:
    """The commands for a cluster whose group was adopted and does not match its ``ClusterWish``."""
    if cluster.group is not None and not cluster.members:
        return shell_command("openstack", "hpc", "cluster", "delete", named)
    undo = shell_command("openstack", "hpc", "cluster", "adopt", "--undo", named)
    if cluster.group is None:
        return undo
    adopt = shell_command("openstack", "hpc", "cluster", "adopt", cluster.id)
    if cluster.unadopted or cluster.state is ClusterState.UNKNOWN:
        return f"{adopt}, or {undo}"
    return (
        f"{shell_command('openstack', 'hpc', 'cluster', 'create', '--resume', named)}, or {adopt}"
    )


def _format_run_commands(cluster: Cluster, named: str) -> str:
    """The command that makes resting members run, and the one that undoes it if there is one.

    Members that no cluster command can start come first.
    """
    present = number_members(cluster).present
    resting = [member for member in present if member.standing is not Standing.RUNS]
    member = min(resting, key=lambda member: (bool(member.meaning.whole), member.status))
    command = format_run_command(cluster, member)
    undo = {"start": "stop", "unshelve": "shelve"}.get(member.meaning.whole)
    if undo is None or cluster.state is not ClusterState.DEGRADED:
        return command
    return f"{command}, or {shell_command('openstack', 'hpc', 'cluster', undo, named)}"


def format_replace_command(cluster: Cluster, member: ClusterMember) -> str:
    """The command that makes a new server for a member."""
    named = cluster.name if cluster.name != "?" else cluster.id
    words = ("replace", named, _member_in_command(cluster, member))
    return shell_command("openstack", "hpc", "cluster", *words)


def format_run_command(cluster: Cluster, member: ClusterMember) -> str:
    """The command that makes a resting member run: for the whole cluster if there is one."""
    if member.meaning.whole:
        named = cluster.name if cluster.name != "?" else cluster.id
        return shell_command("openstack", "hpc", "cluster", member.meaning.whole, named)
    server = server_in_command(cluster, member)
    return shell_command("openstack", "server", *member.meaning.verb.split(), server)


def format_unlock_command(cluster: Cluster, member: ClusterMember) -> str:
    """The command that unlocks a member, so that Nova accepts changes to it again."""
    return shell_command("openstack", "server", "unlock", server_in_command(cluster, member))


def explain_locks(cluster: Cluster, members: Collection[ClusterMember]) -> str:
    """The first of the locked members, and their number; empty if none is locked."""
    locked = [member for member in members if member.locked]
    if not locked:
        return ""
    more = f" (and {len(locked) - 1} more)" if len(locked) > 1 else ""
    return f"{locked[0].shown} is locked{more}: {format_unlock_command(cluster, locked[0])}"


def server_in_command(cluster: Cluster, member: ClusterMember) -> str:
    """A server's name in a command.

    The id is used instead if a user has renamed the server, or if another server has the name.
    """
    number = wishes.member_number_of(cluster.name, member.name, cluster.adopted)
    kept = number is not None or member.name == wishes.head_name(cluster.name)
    return member.name if kept and member.name not in cluster.namesakes else member.id


def _member_in_command(cluster: Cluster, member: ClusterMember) -> str:
    """A member's name in a command of the cluster; its number if its name has another one."""
    if member in cluster.heads:
        return wishes.head_name(cluster.name)
    by_number = number_members(cluster).by_number
    number = next((number for number, candidate in by_number.items() if candidate is member), None)
    if number is None:
        return member.id
    named = wishes.member_number_of(cluster.name, member.name, cluster.adopted)
    return member.name if named == number else str(number)


def explain_failure(failed: Collection[ClusterMember]) -> str:
    """The fault of the first failed member by name, and the number of the others."""
    first = min(failed, key=lambda member: member.name)
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    fault = printable_text(first.fault) or "Nova says no more than ERROR"
    return f"{first.shown} failed{more}: {fault}"


def _plan_ports(
    wish: ClusterWish, cluster: Cluster, numbered: Numbered, missing: Collection[int]
) -> Move | None:
    """Steps that create missing members' ports and delete surplus ones; None if none is needed."""
    wanted = {
        (member_number, place)
        for member_number in missing
        for place, _ in wishes.nics_with_ports(wish)
    }
    free, surplus = _find_free_ports(wish, cluster, numbered, wanted)
    steps: list[Step] = [DeletePort(port.id) for port in surplus]
    steps += [MakePort(*at) for at in sorted(wanted - free.keys())]
    steps += [
        ReleasePort(port.id)
        for port in cluster.kept
        if port.place and port.place[0] not in wish.members and not port.server
    ]
    return Act(tuple(steps)) if steps else None


def _find_free_ports(
    wish: ClusterWish, cluster: Cluster, numbered: Numbered, wanted: Collection[tuple[int, int]]
) -> tuple[dict[tuple[int, int], MemberPort], list[MemberPort]]:
    """Ports for missing members, and surplus ports.

    A node binds a port to its server only while it builds the server: until then the port looks
    free. A port that a user has detached is kept for the user. A port of another server is in use.

    :param wanted: member numbers and network indexes of the ports that missing members need.
    :returns: number and index -> port that is free for it; the ports to delete.
    """
    lent = {port.id for port in cluster.lent}
    building = {
        member_number for member_number, member in numbered.by_number.items() if member.building
    }
    taken = {
        wishes.port_place_of(wish.name, port.name)
        for port in cluster.ports
        if port.server and port.id not in lent
    }
    free = {
        port.place: port
        for port in sorted(cluster.kept, key=lambda port: port.id)
        if port.place
        and not port.server
        and port.place[0] not in numbered.by_number
        and port.place[1] < len(wish.nics)
    }
    surplus = []
    for port in sorted(cluster.ports, key=lambda port: port.id):
        at = wishes.port_place_of(wish.name, port.name)
        if port.server or (building and (at is None or at[0] in building)):
            continue
        if at is None:
            surplus.append(port)
        elif at in wanted and at not in free:
            free[at] = port
        elif at in taken or at[0] not in numbered.by_number:
            surplus.append(port)
    return free, surplus


def _plan_missing(
    wish: ClusterWish, cluster: Cluster, numbered: Numbered, missing: list[int], terms: Terms
) -> Move:
    """Requests for the next members and for the head, in parallel."""
    hosts = list_members(wish, cluster, terms.new_keys) if wish.hosts else None
    text = write_host_list(hosts) if hosts and hosts.hosts else ""
    steps: list[Step] = []
    homeless = [
        member.shown
        for member in numbered.by_number.values()
        if member.building and not member.host
    ]
    # Nova's server-group policy ignores members without a host. Two members that are requested at
    # the same moment could break it: share a host under anti-affinity, or part under affinity.
    if missing and not homeless:
        steps.append(_plan_servers(wish, cluster, numbered, missing, text))
    if wish.head and numbered.head is None:
        steps.append(MakeHead(text))
    return (
        Act(tuple(steps)) if steps else Wait(f"{', '.join(sorted(homeless))} on the way to a host")
    )


def _plan_servers(
    wish: ClusterWish, cluster: Cluster, numbered: Numbered, missing: list[int], text: str
) -> MakeServers:
    """The request for all members at once if none exists and Nova allows it, or for the next one.

    Nova numbers the servers of one request from 1 on, so it is only used for the members 1 to N.
    """
    whole = not cluster.members and missing == list(range(1, len(wish.members) + 1))
    if whole and len(missing) > 1 and not wishes.is_single(wish):
        return MakeServers(tuple(missing))
    places = [place for place, _ in wishes.nics_with_ports(wish)]
    wanted = {(member_number, place) for member_number in missing for place in places}
    free, _ = _find_free_ports(wish, cluster, numbered, wanted)
    first = missing[0]
    ports = tuple((at[1], free[at].id) for at in sorted(free) if at[0] == first)
    return MakeServers((first,), ports, text)
