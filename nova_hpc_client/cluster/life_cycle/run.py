# SPDX-License-Identifier: Apache-2.0
"""Carries out the steps of a plan in a cloud.

The loop reads the cluster, plans and acts until nothing is left to do. If the answer to a request
was lost, the loop does not repeat it: the next reading shows whether it took effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Final, Protocol

import attrs

from nova_hpc_client.cluster.life_cycle import checks as life_cycle_checks
from nova_hpc_client.cluster.life_cycle import decide
from nova_hpc_client.cluster.life_cycle.decide import Terms
from nova_hpc_client.cluster.life_cycle.steps import (
    Act,
    AskServer,
    DeleteGroup,
    DeletePort,
    DeleteServer,
    Done,
    DropMarks,
    KeepPort,
    MakeHead,
    MakePort,
    MakeServers,
    MarkServer,
    MarkTurn,
    Move,
    OwnStep,
    RebuildServer,
    ReleasePort,
    SetHosts,
    SetWish,
    Step,
    Stuck,
    Wait,
)
from nova_hpc_client.cluster.members.foreign_group import GroupRecords
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_guest.host_list import WrongHostListError

#: Placeholder for plans whose steps write no ``ClusterWish``.
NO_WISH: Final = ClusterWish("unused", frozenset({1}), "")
#: Requests at the same time.
IN_FLIGHT: Final = 10
#: A command fails after more lost answers than this; a round of steps without one resets the count.
_LOST_ROUNDS: Final = 6
#: Action of Nova's API -> the words of the progress.
_ACTIONS: Final = {
    "os-start": "starting members",
    "os-stop": "stopping members",
    "shelve": "shelving members",
    "unshelve": "unshelving members",
}
#: Seconds between two readings: at first, and at most; then the factor between two pauses.
_SOON, _LATE, _SLOWER = 0.5, 5.0, 1.3


class ClusterCloudError(Exception):
    """The cloud refused a request; the text is the cloud's own reason."""


class LostError(ClusterCloudError):
    """No answer, or an internal error of the service: it is unknown if the request took effect."""


class BusyError(LostError):
    """The cloud refuses a request for now, because another request changes the server."""


class ClusterError(Exception):
    """A command failed; the text contains the reasons, one in each line."""


class PatienceError(ClusterError):
    """The time limit of a command is over, and Nova is still at work."""


class SilentError(ClusterError):
    """The cloud does not answer: it is unknown if the last requests took effect."""


class ClusterCloud(Protocol):
    """The client's requests for one cluster, whose server group has the id *group*."""

    def look(self, group: str) -> Cluster:
        """Read all records of the cluster."""

    def make_port(self, wish: ClusterWish, group: str, number: int, place: int) -> None:
        """Make a member's port in the network at index *place* of its networks."""

    def make_servers(
        self,
        wish: ClusterWish,
        group: str,
        several: Sequence[int],
        ports: Sequence[tuple[int, str]],
        secrets: Secrets,
        hosts: str = "",
    ) -> None:
        """Request servers; they need not be active yet."""

    def make_head(self, wish: ClusterWish, group: str, secrets: Secrets, hosts: str = "") -> None:
        """Request the head; it need not be active yet."""

    def set_wish(self, wish: ClusterWish, group: str, server: str) -> None:
        """Write the ``ClusterWish`` into a member's metadata; ignore a server that is gone."""

    def set_hosts(self, hosts: str, server: str) -> None:
        """Write a host list into a member's metadata; ignore a server that is gone."""

    def delete_server(self, server: str) -> None:
        """Request the deletion of a server; ignore one that is gone."""

    def delete_port(self, port: str) -> None:
        """Delete a port; ignore one that is gone."""

    def delete_group(self, group: str) -> None:
        """Delete the server group; ignore one that is gone."""

    def ask_server(self, server: str, action: str) -> None:
        """Request an action without parameters on a server.

        :param action: its name in Nova's API, for example ``os-start``.
        :raises BusyError: another request changes the server.
        """

    def rebuild_server(self, wish: ClusterWish, group: str, server: str) -> None:
        """Request a new disk; the same request writes ``ClusterWish`` and turn to the metadata."""

    def mark_turn(self, wish: ClusterWish, server: str) -> None:
        """Mark the turn of *wish* as done in a member's metadata."""

    def read_no_host(self, server: str) -> str | None:
        """The reason why the last unshelving of a server found no host, as its owner can see it.

        :returns: None if it failed for another reason, or if Nova shows no reason.
        """

    def read_group(self, group: str) -> GroupRecords:
        """Read a server group and its servers, also if another tool made them.

        :raises ClusterError: the group does not exist.
        """

    def mark_server(self, wish: ClusterWish, group: str, server: str) -> None:
        """Make a server a member: write the ``ClusterWish`` and the mark."""

    def drop_marks(self, server: str) -> None:
        """Remove ``ClusterWish`` and mark of a member; ignore a server that is gone."""

    def keep_port(self, group: str, port: str, number: int, place: int) -> None:
        """Mark a port that another tool made as a member's.

        :param number: number of the member.
        :param place: index of the port's network among the member's networks.
        """

    def release_port(self, port: str) -> None:
        """Remove the mark of a port; ignore one that is gone."""

    def console(self, server: str) -> str:
        """The last lines of a server's console."""


@attrs.frozen
class Pace:
    """Clock, time limit and progress display of a command.

    :ivar limit: seconds until a command stops waiting; 0 for no limit.
    :ivar said: called after each reading with the cluster and the present work.
    """

    limit: float = 0.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    said: Callable[[Cluster, str], None] = lambda cluster, text: None


def fulfil_wish(
    cloud: ClusterCloud,
    group: str,
    wish: ClusterWish,
    secrets: Secrets,
    pace: Pace,
    terms: Terms | None = None,
    until_active: bool = True,
) -> Cluster:
    """Bring a cluster to exactly the members of *wish*, all of them active.

    :param until_active: False to return once Nova has accepted every member.
    :raises ClusterError: with the reason; the cluster stays as it is then.
    """
    checks = life_cycle_checks.ConsoleChecks()
    terms = attrs.evolve(terms or Terms(), new_keys=secrets.keys.public)

    def plan(cluster: Cluster) -> Move:
        try:
            move = decide.plan_fulfilment(wish, cluster, terms)
        except WrongHostListError as error:
            return Stuck(str(error))
        if isinstance(move, Wait) and not until_active and _has_all_members(wish, cluster):
            return Done()
        if isinstance(move, Done) and wish.check and until_active:
            return checks.judge(cluster.members, cloud.console)
        return move

    return run_until_done(cloud, group, wish, secrets, pace, plan)


def end_cluster(cloud: ClusterCloud, group: str, pace: Pace) -> None:
    """Delete all parts of a cluster.

    The loop runs once more when nothing is left, because a request whose answer was lost may take
    effect late.

    :raises ClusterError: a part cannot be deleted; the text names it and the reason.
    """
    for _ in range(2):
        run_until_done(cloud, group, NO_WISH, Secrets(), pace, decide.plan_deletion)


def remove_members(
    cloud: ClusterCloud,
    group: str,
    members: Sequence[ClusterMember],
    pace: Pace,
    wish: ClusterWish | None = None,
) -> None:
    """Delete these members and wait until they are gone.

    :param wish: the ``ClusterWish`` for which they are deleted; none is deleted under a newer one.
    :raises ClusterError: one cannot be deleted, or another client has changed the cluster.
    """
    ids = {member.id for member in members}

    def plan(cluster: Cluster) -> Move:
        if wish and cluster.wish and cluster.wish.order > wish.order:
            return Stuck("another client has changed this cluster meanwhile")
        left = [server for server in cluster.servers if server.id in ids]
        living = [member for member in left if not member.going]
        if living:
            return Act(tuple(DeleteServer(member.id, member.name) for member in living))
        return Wait(f"{len(left)} servers are being deleted") if left else Done()

    run_until_done(cloud, group, NO_WISH, Secrets(), pace, plan)


def _has_all_members(wish: ClusterWish, cluster: Cluster) -> bool:
    servers = [server for server in cluster.servers if not server.going]
    return len(servers) == len(cluster.servers) == len(wish.members) + bool(wish.head)


def run_until_done(
    cloud: ClusterCloud,
    group: str,
    wish: ClusterWish,
    secrets: Secrets,
    pace: Pace,
    plan: Callable[[Cluster], Move],
    accepted: set[Step] | None = None,
) -> Cluster:
    """Read, plan and act until a plan returns Done.

    After a lost answer, the next round reads the cluster again. The pauses between two readings
    grow while Nova is at work, and are short again after each request.

    :param accepted: receives each step that the cloud has accepted.
    :returns: the cluster as the last plan read it.
    :raises PatienceError: the time limit of *pace* is over.
    :raises ClusterError: a plan is stuck, the cloud refuses a request, or it does not answer.
    """
    begun = pace.clock()
    lost, interval = 0, _SOON
    accepted = set() if accepted is None else accepted
    while True:
        try:
            cluster = cloud.look(group)
            move = plan(cluster)
        except LostError as error:
            move, failure = Wait(str(error)), error
            lost += 1
            if lost > _LOST_ROUNDS:
                raise SilentError(f"the cloud does not answer: {failure}") from error
            pace.sleep(interval)
            continue
        except ClusterCloudError as error:
            raise ClusterError(str(error)) from error
        if isinstance(move, Done):
            pace.said(cluster, "")
            return cluster
        if isinstance(move, Stuck):
            raise ClusterError(move.reason)
        if isinstance(move, Act):
            pace.said(cluster, _describe_steps(move.steps))
            missed = _send_steps(cloud, group, wish, secrets, move.steps, accepted)
            lost = lost + 1 if missed else 0
            if missed and lost > _LOST_ROUNDS:
                busy = isinstance(missed, BusyError)
                raise SilentError(str(missed) if busy else f"the cloud does not answer: {missed}")
            interval = _SOON
            if missed or any(isinstance(step, DeleteServer) for step in move.steps):
                pace.sleep(interval)
            continue
        pace.said(cluster, move.what)
        if pace.limit and pace.clock() - begun > pace.limit:
            raise PatienceError(f"after {pace.limit:g} seconds still {move.what}")
        pace.sleep(interval)
        interval = min(_LATE, interval * _SLOWER)


def _describe_steps(steps: Sequence[Step]) -> str:
    words = {
        MakePort: "making ports",
        MakeServers: "creating members",
        MakeHead: "creating the head",
        SetWish: "writing down what the cluster is to be",
        SetHosts: "telling members of each other",
        DeleteServer: "deleting members",
        DeletePort: "deleting ports",
        DeleteGroup: "deleting the server group",
        RebuildServer: "rebuilding members",
        MarkTurn: "writing down which members are done",
        MarkServer: "marking members",
        DropMarks: "removing marks of members",
        KeepPort: "marking ports",
        ReleasePort: "removing marks of ports",
    }
    first = steps[0]
    if isinstance(first, AskServer):
        return _ACTIONS[first.action]
    if isinstance(first, OwnStep):
        return first.words
    return words[type(first)]


def _send_steps(
    cloud: ClusterCloud,
    group: str,
    wish: ClusterWish,
    secrets: Secrets,
    steps: Sequence[Step],
    accepted: set[Step],
) -> LostError | None:
    """Do the steps, several at a time.

    A refusal cancels the steps that have not begun.

    :returns: the error of a lost answer, if there is one.
    :raises ClusterError: the cloud refused a step.
    """
    lost: LostError | None = None
    pool = futures.ThreadPoolExecutor(min(IN_FLIGHT, len(steps)))
    try:
        running = {
            pool.submit(_send_step, cloud, group, wish, secrets, step): step for step in steps
        }
        for future in futures.as_completed(running):
            try:
                future.result()
            except LostError as error:
                lost = lost or error
            except ClusterCloudError as error:
                raise ClusterError(str(error)) from error
    finally:
        # Wait for pending requests before the next plan.
        pool.shutdown(wait=True, cancel_futures=True)
        accepted |= {step for future, step in running.items() if _was_accepted(future)}
    return lost


def _was_accepted(future: futures.Future[None]) -> bool:
    return not future.cancelled() and future.exception() is None


def _send_step(
    cloud: ClusterCloud, group: str, wish: ClusterWish, secrets: Secrets, step: Step
) -> None:
    if isinstance(step, MakePort):
        cloud.make_port(wish, group, step.number, step.place)
    elif isinstance(step, MakeServers):
        cloud.make_servers(wish, group, step.numbers, step.ports, secrets, step.hosts)
    elif isinstance(step, MakeHead):
        cloud.make_head(wish, group, secrets, step.hosts)
    elif isinstance(step, SetWish):
        cloud.set_wish(wish, group, step.server)
    elif isinstance(step, SetHosts):
        cloud.set_hosts(step.hosts, step.server)
    elif isinstance(step, DeleteServer):
        cloud.delete_server(step.server)
    elif isinstance(step, DeletePort):
        cloud.delete_port(step.port)
    elif isinstance(step, AskServer):
        cloud.ask_server(step.server, step.action)
    elif isinstance(step, RebuildServer):
        cloud.rebuild_server(wish, group, step.server)
    elif isinstance(step, MarkTurn):
        cloud.mark_turn(wish, step.server)
    elif isinstance(step, OwnStep):
        step.send()
    elif isinstance(step, MarkServer):
        cloud.mark_server(wish, group, step.server)
    elif isinstance(step, DropMarks):
        cloud.drop_marks(step.server)
    elif isinstance(step, KeepPort):
        cloud.keep_port(group, step.port, step.number, step.place)
    elif isinstance(step, ReleasePort):
        cloud.release_port(step.port)
    else:
        cloud.delete_group(group)
