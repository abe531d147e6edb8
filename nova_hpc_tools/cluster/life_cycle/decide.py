# SPDX-License-Identifier: Apache-2.0
"""Steps that bring a cluster from what it is to what it is to be, step by step.

Nothing is remembered between two steps: each plan is made from what Nova and Neutron
say. A client that was killed leaves a state like any other, and whoever comes next
(``create --resume``, ``delete``) plans from there.

The order of steps keeps two promises. The server group, which names the cluster, comes
first and goes last; and a server says from its first moment, by tag and metadata, whose
it is, a port by its description. So nothing exists that ``list`` does not show.
"""

from __future__ import annotations

from collections.abc import Collection

import attrs

from nova_hpc.guest.host_list import PublicKeys, write_host_list
from nova_hpc.outside.text import printable_text, shell_command
from nova_hpc.wire.cluster_wish import ClusterWish
from nova_hpc_tools.cluster import wish as wishes
from nova_hpc_tools.cluster.life_cycle.steps import (
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
from nova_hpc_tools.cluster.member_list import list_members
from nova_hpc_tools.cluster.members.model import (
    Cluster,
    ClusterMember,
    ClusterState,
    Numbered,
    number_members,
)
from nova_hpc_tools.cluster.members.port import MemberPort
from nova_hpc_tools.cluster.members.server_state import CHANGEABLE, Standing


@attrs.frozen
class Terms:
    """Limits of what is done to servers that were there before the command began.

    :ivar remake: ids of servers that failed before they ever ran, and are made anew.
    :ivar bear: ids of servers in error that do not stop the others.
    :ivar rest: no member needs to run in the end.
    :ivar new_keys: public keys of the members that are made.
    :ivar leaves: ids of servers that are no members any more, whatever they are called.
    """

    remake: frozenset[str] = frozenset()
    bear: frozenset[str] = frozenset()
    rest: bool = False
    new_keys: PublicKeys | None = None
    leaves: frozenset[str] = frozenset()


def plan_fulfilment(wish: ClusterWish, cluster: Cluster, terms: Terms | None = None) -> Move:
    """The next steps until exactly the members of *wish* and its head are there and run.

    :param cluster: what there is now; its server group exists.
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
        # Before anything is deleted or made: from the first of them on it is decided.
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
        if member.failed and member.id not in terms.bear and not terms.rest
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
    running = Done() if terms.rest else plan_running(cluster, numbered.present)
    if not wish.hosts or not isinstance(running, Done):
        return running
    return _plan_hosts(wish, cluster, numbered.present)


def _plan_hosts(wish: ClusterWish, cluster: Cluster, members: Collection[ClusterMember]) -> Move:
    """Steps for the members whose host list is not the newest; Done: there is none."""
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

    :param cluster: that they are of.
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
    if cluster.wish is not None and cluster.wish.turn:
        return Stuck(f"{cluster.reason}: {format_finish_commands(cluster)}")
    return Done()


def plan_deletion(cluster: Cluster) -> Move:
    """The next steps on the way to nothing that is left of the cluster.

    The server group of an adopted one stays, and so do ports that the client did not make, or that
    a server has which is not the cluster's.
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
    """Servers that failed before they ever ran: nobody has anything on them."""
    return frozenset(
        server.id for server in cluster.servers if server.failed and not server.launched
    )


def change_wish_members(wish: ClusterWish, members: Collection[int]) -> ClusterWish:
    """The wish for other members, which counts from now on."""
    return attrs.evolve(wish, members=frozenset(members), generation=wish.generation + 1)


def grow_member_numbers(wish: ClusterWish, size: int) -> frozenset[int]:
    """Numbers for *size* members: those there are, and the lowest that are free."""
    numbers = set(wish.members)
    candidate = 1
    while len(numbers) < size:
        numbers.add(candidate)
        candidate += 1
    return frozenset(numbers)


def format_finish_commands(cluster: Cluster) -> str:
    """The commands that finish or undo what somebody left; empty where nothing is to do."""
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
    """Servers whose names do not say which of them are members, and the command that helps."""
    names = ", ".join(member.shown for member in numbered.unclear)
    free = len(set(wanted) - numbered.by_number.keys())
    return (
        f"{free} of these are members, and their names do not say which: {names}; "
        f"{_format_name_command(cluster, numbered, wanted)} says it, and the others are too many"
    )


def _format_name_command(cluster: Cluster, numbered: Numbered, wanted: Collection[int]) -> str:
    """The command with which a user says which server a member is."""
    name = f"{cluster.name}-{min(set(wanted) - numbered.by_number.keys())}"
    return shell_command("openstack", "server", "set", "--name", name, "SERVER")


def _format_adopt_commands(cluster: Cluster, named: str) -> str:
    """The commands for a cluster whose group was adopted and does not match its wish."""
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
    """The command that makes resting members run, their own verbs first; and one that undoes."""
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
    """The command that makes a resting member run: the cluster's if there is one."""
    if member.meaning.whole:
        named = cluster.name if cluster.name != "?" else cluster.id
        return shell_command("openstack", "hpc", "cluster", member.meaning.whole, named)
    server = server_in_command(cluster, member)
    return shell_command("openstack", "server", *member.meaning.verb.split(), server)


def format_unlock_command(cluster: Cluster, member: ClusterMember) -> str:
    """The command after which Nova changes a member again."""
    return shell_command("openstack", "server", "unlock", server_in_command(cluster, member))


def explain_locks(cluster: Cluster, members: Collection[ClusterMember]) -> str:
    """The first of them that Nova refuses to change, and how many there are; empty: none."""
    locked = [member for member in members if member.locked]
    if not locked:
        return ""
    more = f" (and {len(locked) - 1} more)" if len(locked) > 1 else ""
    return f"{locked[0].shown} is locked{more}: {format_unlock_command(cluster, locked[0])}"


def server_in_command(cluster: Cluster, member: ClusterMember) -> str:
    """A server's name in a command.

    Its id where its name is not the one it was made with, or another server has it, too.
    """
    number = wishes.member_number_of(cluster.name, member.name, cluster.adopted)
    kept = number is not None or member.name == wishes.head_name(cluster.name)
    return member.name if kept and member.name not in cluster.namesakes else member.id


def _member_in_command(cluster: Cluster, member: ClusterMember) -> str:
    """A member's name in a command of the cluster: its number where its name says another."""
    if member in cluster.heads:
        return wishes.head_name(cluster.name)
    by_number = number_members(cluster).by_number
    number = next((number for number, candidate in by_number.items() if candidate is member), None)
    if number is None:
        return member.id
    named = wishes.member_number_of(cluster.name, member.name, cluster.adopted)
    return member.name if named == number else str(number)


def explain_failure(failed: Collection[ClusterMember]) -> str:
    """The fault of the first of them, and how many there are."""
    first = min(failed, key=lambda member: member.name)
    more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
    fault = printable_text(first.fault) or "Nova says no more than ERROR"
    return f"{first.shown} failed{more}: {fault}"


def _plan_ports(
    wish: ClusterWish, cluster: Cluster, numbered: Numbered, missing: Collection[int]
) -> Move | None:
    """Steps for ports: of members that are missing, and those too many; None: all is well."""
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
    """Ports for members that are missing, and ports that are nobody's.

    A node takes a port for its server while it builds it: until then the port looks free.
    One that a user has detached stays the user's, and one that another server has is in use.
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
    """Requests for the next members and for the head, which need not wait for each other."""
    hosts = list_members(wish, cluster, terms.new_keys) if wish.hosts else None
    text = write_host_list(hosts) if hosts and hosts.hosts else ""
    steps: list[Step] = []
    homeless = [
        member.shown
        for member in numbered.by_number.values()
        if member.building and not member.host
    ]
    # Nova's policy of a server group knows of no member that has no host yet: two that are asked
    # for at the same moment would share a host, or be torn apart.
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
    whole = not cluster.members and missing == list(range(1, len(wish.members) + 1))
    if whole and len(missing) > 1 and not wishes.is_single(wish):
        return MakeServers(tuple(missing))
    places = [place for place, _ in wishes.nics_with_ports(wish)]
    wanted = {(member_number, place) for member_number in missing for place in places}
    free, _ = _find_free_ports(wish, cluster, numbered, wanted)
    first = missing[0]
    ports = tuple((at[1], free[at].id) for at in sorted(free) if at[0] == first)
    return MakeServers((first,), ports, text)
