# SPDX-License-Identifier: Apache-2.0
"""Commands for all members of a cluster: stop, start, shelve, unshelve, reboot, rebuild.

Each command is refused before the first member if one member cannot follow. As with ``create``, the
client stores nothing between two steps. Each plan starts from Nova's records, so the same command
goes on after a killed one. A running member does not show whether it was rebooted or rebuilt. So
``ClusterWish.turn`` records the turn before the first member has it, and each member's metadata
records afterwards that it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc_client.cluster import snapshots
from nova_hpc_client.cluster.life_cycle import commands, decide
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.run import (
    ClusterCloud,
    ClusterError,
    Pace,
    PatienceError,
    SilentError,
)
from nova_hpc_client.cluster.life_cycle.steps import (
    Act,
    AskServer,
    Done,
    MarkTurn,
    Move,
    RebuildServer,
    SetWish,
    Step,
    Stuck,
    Wait,
)
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember, number_members
from nova_hpc_client.cluster.members.server_state import CHANGEABLE, Standing
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.outside.text import printable_text, shell_command
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_common.wire.version import WireError


@attrs.frozen
class Verb:
    """A command that brings all members to one of a few statuses.

    :ivar goal: the statuses; ACTIVE means that the guest runs.
    :ivar actions: status -> the action of Nova's API that leads towards the goal.
    :ivar undo: the command for the way back.
    :ivar head_last: the head follows the members; otherwise it comes before them.
    """

    name: str
    goal: frozenset[str]
    actions: Mapping[str, str]
    undo: str
    head_last: bool = False


_SHELVED: Final = frozenset({"SHELVED", "SHELVED_OFFLOADED"})
STOP: Final = Verb("stop", frozenset({"SHUTOFF"}), {"ACTIVE": "os-stop"}, "start", True)
START: Final = Verb("start", frozenset({"ACTIVE"}), {"SHUTOFF": "os-start"}, "stop")
SHELVE: Final = Verb(
    "shelve",
    _SHELVED,
    dict.fromkeys(("ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED"), "shelve"),
    "unshelve",
    True,
)
UNSHELVE: Final = Verb(
    "unshelve",
    frozenset({"ACTIVE"}),
    {**dict.fromkeys(_SHELVED, "unshelve"), "SHUTOFF": "os-start"},
    "shelve",
)
REBOOT, REBUILD = "reboot", "rebuild"

#: The need of a member: a step, a wait, a reason against the command, or Done for nothing.
Need = Step | Wait | Stuck | Done
_Rule = Callable[[Cluster, ClusterMember], Need]
#: Chooses the steps that are sent now.
_Order = Callable[[Sequence[ClusterMember], list[Step]], list[Step]]


def change_members(cloud: ClusterCloud, cluster: Cluster, verb: Verb, pace: Pace) -> Cluster:
    """Bring all members and the head to the verb's goal.

    If a member finds no host while it is unshelved, the members that came back are shelved again.
    They are not after a timeout or a lost answer: the user repeats or undoes the command then.

    :raises ClusterError: a member cannot follow; the text contains the resulting state.
    """
    wish = commands.refuse_half(cluster)
    accepted: set[Step] = set()
    order = _order_unshelved if verb is UNSHELVE else _order_freely
    rule: _Rule = lambda current, member: lead_on(current, member, verb)  # noqa: E731
    plan = plan_members(rule, order, accepted, verb.head_last)
    try:
        return _run(cloud, wish, cluster.id, plan, pace, accepted)
    except ClusterError as error:
        if not accepted:
            raise ClusterError(f"{error}\nnothing has changed") from error
        come = {
            step.server
            for step in accepted
            if isinstance(step, AskServer) and step.action == "unshelve"
        }
        if not come or isinstance(error, (PatienceError, SilentError)):
            raise ClusterError(f"{error}\n{format_ways(cluster, verb.name, verb.undo)}") from error
        text = _shelve_again(cloud, wish, cluster, come, pace)
        raise ClusterError(f"{error}\n{text}") from error


def _shelve_again(
    cloud: ClusterCloud, wish: ClusterWish, cluster: Cluster, come: set[str], pace: Pace
) -> str:
    """Shelve members that had come back, and describe the result in a sentence.

    :param come: ids of the servers whose unshelving Nova has accepted.
    """
    accepted: set[Step] = set()

    def rule(current: Cluster, member: ClusterMember) -> Need:
        return lead_on(current, member, SHELVE) if member.id in come else Done()

    plan = plan_members(rule, _order_freely, accepted, SHELVE.head_last)
    try:
        left = _run(cloud, wish, cluster.id, plan, pace, accepted)
    except ClusterError as error:
        ways = format_ways(cluster, SHELVE.name, SHELVE.undo)
        return f"shelving the others again failed as well: {error}\n{ways}"
    refused = come - {step.server for step in accepted if isinstance(step, AskServer)}
    again = "those that had come back are shelved again"
    reasons = [cloud.read_no_host(server) for server in refused]
    reason = next((reason for reason in reasons if reason is not None), None)
    if reason is None:
        return again
    why = f" ({printable_text(reason)})" if reason else ""
    head = next((head for head in cluster.heads if head.id in refused), None)
    if head is not None:
        return f"{head.shown} found no host{why}; {again}"
    back = come - refused - {head.id for head in cluster.heads}
    fit = len(back) + sum(is_at_goal(member, UNSHELVE) for member in left.members)
    fits = f"{_describe_place(cluster)}: {fit} of {len(cluster.wanted)} members fit"
    return f"{fits}{why}; {again}"


def _describe_place(cluster: Cluster) -> str:
    """Words for a cluster that does not fit, with the domain if its owner can see it."""
    level = next((member.fabric for member in cluster.members if member.fabric), "")
    names = {member.position.domains.get(level, "") for member in cluster.members}
    domain = printable_text(names.pop()) if len(names) == 1 else ""
    into = f" into its {level} {domain}" if level and domain else ""
    return f"cluster {cluster.name} does not fit{into} any more"


def turn_members(
    cloud: ClusterCloud, cluster: Cluster, verb: str, pace: Pace, image: str = ""
) -> Cluster:
    """Reboot or rebuild each member once, also the members that a killed command had left.

    A reboot stops a member and starts it again; the head comes first. A rebuild does not change the
    head. It gives the first member its new disk before the others, so an image that does not start
    harms only that member.

    :param verb: REBOOT or REBUILD.
    :param image: id of the image for new disks; empty for the cluster's.
    :raises ClusterError: a member cannot follow; the text contains the command that goes on.
    """
    before = commands.refuse_half(cluster)
    wish = _begin_turn(cluster, before, verb, image)
    accepted: set[Step] = set()
    plan = _plan_turn(wish, accepted)
    try:
        _run(cloud, wish, cluster.id, plan, pace, accepted)
        image = wish.turn_image or wish.image
        after = attrs.evolve(wish, turn="", image=image, generation=wish.generation + 1)
        return set_wish(cloud, cluster, after, pace)
    except ClusterError as error:
        turned = any(isinstance(step, (AskServer, RebuildServer)) for step in accepted)
        if turned or wish is before or isinstance(error, (PatienceError, SilentError)):
            raise ClusterError(f"{error}\n{format_ways(cluster, verb)}") from error
        if accepted:
            _withdraw_turn(cloud, cluster, before, wish, pace, error)
        raise ClusterError(f"{error}\nnothing has changed") from error


def _withdraw_turn(
    cloud: ClusterCloud,
    cluster: Cluster,
    before: ClusterWish,
    wish: ClusterWish,
    pace: Pace,
    error: ClusterError,
) -> None:
    withdrawn = attrs.evolve(before, generation=wish.generation + 1)
    try:
        set_wish(cloud, cluster, withdrawn, pace)
    except ClusterError as second:
        ways = format_ways(cluster, wish.turn_verb)
        raise ClusterError(f"{error}\nundoing it failed as well: {second}\n{ways}") from error


def _begin_turn(cluster: Cluster, before: ClusterWish, verb: str, image: str) -> ClusterWish:
    """The ``ClusterWish`` with a turn: a new one, or the unfinished one.

    :raises ClusterError: another turn is unfinished, or the members cannot have this one.
    """
    if before.turn_verb == verb and image in ("", before.turn_image):
        return before
    if before.turn_verb not in ("", verb):
        # Members that the other turn has stopped would stay stopped.
        raise ClusterError(
            f"the {before.turn_verb} of cluster {cluster.name} is not finished; first "
            f"{format_turn_ways(cluster, before)}"
        )
    snapshot = snapshots.snapshot_of_image(before.image)
    if verb == REBUILD and snapshot and not image:
        raise ClusterError(
            f"each member of cluster {cluster.name} has its own image of snapshot {snapshot}: say "
            "--image for one image of all members; replace gives a member its own image again"
        )
    if verb == REBUILD and (before.boot_gib or not before.image):
        raise ClusterError(
            f"members of cluster {cluster.name} boot from volumes, which a rebuild leaves as they "
            "are: replace the members"
        )
    generation = before.generation + 1
    words = [verb, str(generation), *([image or before.image] if verb == REBUILD else [])]
    wish = attrs.evolve(before, turn="-".join(words), generation=generation)
    try:
        cluster_wish.from_metadata(cluster_wish.to_metadata(wish, cluster.id))
    except WireError as error:
        raise ClusterError(str(error)) from error
    return wish


def _plan_turn(wish: ClusterWish, accepted: set[Step]) -> Callable[[Cluster], Move]:
    turn = wish.turn
    if wish.turn_verb == REBOOT:
        rule: _Rule = lambda current, member: _reboot_on(current, member, turn)  # noqa: E731
        order: _Order = _order_freely
    else:
        rule = lambda current, member: _rebuild_on(current, member, turn)  # noqa: E731
        order = lambda members, steps: _order_rebuilt(members, steps, turn)  # noqa: E731
    follow = plan_members(rule, order, accepted)

    def plan(current: Cluster) -> Move:
        if current.wish is not None and current.wish.order > wish.order:
            return Stuck("another client has changed this cluster meanwhile")
        move = follow(current)
        if isinstance(move, Stuck):
            return move
        stale = find_stale(current, wish)
        # The turn is recorded before a member has it: the first copy of the record already
        # commits every client to it.
        return Act(stale) if stale else move

    return plan


def plan_members(
    rule: _Rule, order: _Order, accepted: set[Step], head_last: bool = False
) -> Callable[[Cluster], Move]:
    """A plan for members and head: no server gets a step while another one cannot follow.

    :param rule: returns the need of one server.
    :param order: chooses the steps that are sent now.
    :param accepted: steps that Nova has accepted; none is sent twice.
    :param head_last: the head gets its steps after the members; otherwise before them.
    """

    def plan(current: Cluster) -> Move:
        numbered = number_members(current)
        absent = current.wanted - numbered.by_number.keys() or (
            current.wants_head and numbered.head is None
        )
        if current.group is None or numbered.surplus or absent:
            return Stuck(f"cluster {current.name} is {current.state.value}: {current.reason}")
        members = tuple(numbered.by_number.values())
        head = (numbered.head,) if numbered.head else ()
        moves = [
            plan_some(current, servers, rule, order, accepted)
            for servers in ((members, head) if head_last else (head, members))
        ]
        stuck = next((move for move in moves if isinstance(move, Stuck)), None)
        return stuck or next((move for move in moves if not isinstance(move, Done)), Done())

    return plan


def plan_some(
    current: Cluster,
    servers: Sequence[ClusterMember],
    rule: _Rule,
    order: _Order,
    accepted: set[Step],
) -> Move:
    """The next steps for some servers of a cluster, a wait, or the first reason against them."""
    waits: list[Wait] = []
    steps: list[Step] = []
    for member in servers:
        need = rule(current, member)
        if isinstance(need, Stuck):
            return need
        if isinstance(need, Wait):
            waits.append(need)
        elif not isinstance(need, Done):
            server = decide.server_in_command(current, member)
            if member.locked:
                return Stuck(decide.explain_locks(current, [member]))
            if need in accepted:
                events = shell_command("openstack", "server", "event", "list", server)
                return Stuck(
                    f"{member.shown} is still {member.state_text}, although Nova has accepted "
                    f"the request: {events}"
                )
            steps.append(need)
    chosen = order(servers, steps)
    if chosen:
        return Act(tuple(chosen))
    return waits[0] if waits else Done()


def _order_freely(members: Sequence[ClusterMember], steps: list[Step]) -> list[Step]:
    return steps


def _order_unshelved(members: Sequence[ClusterMember], steps: list[Step]) -> list[Step]:
    """Unshelve members without a host one after the other, as ``create`` does.

    Nova's server-group policy ignores members without a host. Members that still have their host
    are unshelved at once. Members that were only stopped are started when all others are back.
    """
    unshelved = [
        step for step in steps if isinstance(step, AskServer) and step.action == "unshelve"
    ]
    if not unshelved:
        return steps if all(member.status not in _SHELVED for member in members) else []
    homeless = {member.id for member in members if not member.host}
    if any(member.id in homeless and member.task for member in members):
        unshelved = [step for step in unshelved if step.server not in homeless]
    first = next((step for step in unshelved if step.server in homeless), None)
    return [step for step in unshelved if step.server not in homeless or step is first]


def _order_rebuilt(members: Sequence[ClusterMember], steps: list[Step], turn: str) -> list[Step]:
    """Only the first member, until it has its new disk and has not failed."""
    begun = [member for member in members if member.turn == turn]
    if not begun:
        return steps[:1]
    return steps if any(not member.task and not member.failed for member in begun) else []


def lead_on(cluster: Cluster, member: ClusterMember, verb: Verb) -> Need:
    """The next need of a member on the way to the verb's goal."""
    if member.failed:
        return explain_failure(cluster, member)
    if is_at_goal(member, verb):
        return Done()
    if member.task:
        return wait_for(member)
    if member.status in verb.actions:
        return AskServer(member.id, member.name, verb.actions[member.status])
    return wait_or_refuse(cluster, member)


def is_at_goal(member: ClusterMember, verb: Verb) -> bool:
    """Whether a member has reached the verb's goal."""
    if "ACTIVE" in verb.goal:
        return member.standing is Standing.RUNS
    return member.status in verb.goal and not member.task


def has_had_turn(cluster: Cluster, member: ClusterMember) -> bool:
    """Whether a member runs or is shut off, and has done its cluster's turn if there is one."""
    turn = cluster.wish.turn if cluster.wish else ""
    stands = member.standing is Standing.RUNS or (member.status == "SHUTOFF" and not member.task)
    return stands and turn in ("", member.turn)


def _reboot_on(cluster: Cluster, member: ClusterMember, turn: str) -> Need:
    """Stop a running member, mark its turn as done while it is stopped, then start it."""
    turned = member.turn == turn
    if member.failed:
        return explain_failure(cluster, member)
    if turned and member.standing is Standing.RUNS:
        return Done()
    if member.task:
        return wait_for(member)
    if member.status == "SHUTOFF":
        if turned:
            return AskServer(member.id, member.name, "os-start")
        return MarkTurn(member.id, member.name)
    if member.status == "ACTIVE" and not turned:
        return AskServer(member.id, member.name, "os-stop")
    return wait_or_refuse(cluster, member)


def _rebuild_on(cluster: Cluster, member: ClusterMember, turn: str) -> Need:
    """Rebuild a member that runs, is shut off or has failed after it ran once."""
    if member in cluster.heads:
        # The head's disk contains its users' data, and the head has an image of its own.
        return Done()
    turned = member.turn == turn
    if member.failed and (turned or not member.launched):
        return explain_failure(cluster, member)
    if member.task:
        return wait_for(member)
    if turned and (member.standing is Standing.RUNS or member.status == "SHUTOFF"):
        return Done()
    if not turned and (member.failed or member.status in ("ACTIVE", "SHUTOFF")):
        return RebuildServer(member.id, member.name)
    return wait_or_refuse(cluster, member)


def wait_for(member: ClusterMember) -> Wait:
    """Make the step that waits while a member is in a state that Nova will change."""
    return Wait(f"{member.shown} is {member.state_text}")


def wait_or_refuse(cluster: Cluster, member: ClusterMember) -> Need:
    """A wait if a member changes; otherwise a refusal with the command that makes it run."""
    if member.standing is Standing.CHANGES:
        return wait_for(member)
    command = decide.format_run_command(cluster, member)
    return Stuck(f"{member.shown} is {member.state_text}: {command}")


def explain_failure(cluster: Cluster, member: ClusterMember) -> Stuck:
    """A refusal with the fault of a member, and the command that replaces it."""
    command = decide.format_replace_command(cluster, member)
    return Stuck(f"{decide.explain_failure([member])}: {command}")


def _run(
    cloud: ClusterCloud,
    wish: ClusterWish,
    group: str,
    plan: Callable[[Cluster], Move],
    pace: Pace,
    accepted: set[Step],
) -> Cluster:
    return life_cycle_run.run_until_done(cloud, group, wish, Secrets(), pace, plan, accepted)


def set_wish(cloud: ClusterCloud, cluster: Cluster, wish: ClusterWish, pace: Pace) -> Cluster:
    """Write a ``ClusterWish`` into the metadata of all members and the head."""

    def plan(current: Cluster) -> Move:
        stale = find_stale(current, wish)
        return Act(stale) if stale else Done()

    return _run(cloud, wish, cluster.id, plan, pace, set())


def find_stale(cluster: Cluster, wish: ClusterWish, head: bool = True) -> tuple[SetWish, ...]:
    """The steps that write a ``ClusterWish`` to the members whose metadata Nova can change now.

    :param head: include the head.
    :raises ClusterError: one of them is locked.
    """
    numbered = number_members(cluster)
    stale = [
        member
        for member in (numbered.present if head else numbered.by_number.values())
        if member.wish != wish and member.status in CHANGEABLE
    ]
    locked = decide.explain_locks(cluster, stale)
    if locked:
        raise ClusterError(locked)
    return tuple(SetWish(member.id, member.name) for member in stale)


def format_turn_ways(cluster: Cluster, wish: ClusterWish) -> str:
    """The command that finishes the turn of *wish*, and the one that undoes it if there is one."""
    named = cluster.name if cluster.name != "?" else cluster.id
    finish = shell_command("openstack", "hpc", "cluster", wish.turn_verb, named)
    turn = snapshots.read_turn(wish)
    undo = shell_command("openstack", "hpc", "snapshot", "delete", turn.id) if turn else ""
    return f"{finish}, or {undo}" if undo else finish


def format_ways(cluster: Cluster, verb: str, undo: str = "") -> str:
    """The command that finishes a verb, and the one that undoes it if there is one."""
    named = cluster.name if cluster.name != "?" else cluster.id
    text = f"{shell_command('openstack', 'hpc', 'cluster', verb, named)} goes on"
    if undo:
        text += f", {shell_command('openstack', 'hpc', 'cluster', undo, named)} undoes it"
    return text
