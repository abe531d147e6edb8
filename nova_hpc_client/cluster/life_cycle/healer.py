# SPDX-License-Identifier: Apache-2.0
"""Looks at a cluster and replaces its faulty members, as :mod:`.healing` decides."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc_client.cluster.life_cycle import commands, healing, verbs
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.healing import (
    DrainFirst,
    Finish,
    HealMemory,
    HealMove,
    HealTerms,
    Healthy,
    HoldBack,
    Release,
    Replace,
    StartAgain,
    Undrain,
)
from nova_hpc_client.cluster.life_cycle.run import (
    ClusterCloud,
    ClusterCloudError,
    ClusterError,
    LostError,
    Pace,
    SilentError,
)
from nova_hpc_client.cluster.life_cycle.steps import Act, Done, Move
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember, number_members
from nova_hpc_client.cluster.members.server_state import Standing
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.outside.text import printable_text
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_common.wire.version import WireError
from nova_hpc_guest.host_list import HEAD

#: Most seconds after a claim was written until it is read again. A claim that another healer has
#: written at the same moment is there then.
_SETTLE: Final = 2.0


#: Looks without an answer in a row that a healer bears.
_LOST_LOOKS: Final = 6


class _NoClusterError(ClusterError):
    """The cluster was deleted."""


class _OvertakenError(ClusterError):
    """Another client has changed the cluster since it was read."""


class HealEndedError(Exception):
    """The user ends the healer between two steps."""


@attrs.frozen
class HealTools:
    """The parts of a healer that are not the cluster's own records.

    :ivar drain: drains one member; returns whether it is free.
    :ivar check: raises :class:`ClusterError` if Nova would refuse new servers with these numbers,
        HEAD for the head. The second argument has the numbers whose servers exist still.
    :ivar undrain: makes one member take jobs again, whether it is drained or not; returns whether
        that has worked.
    :ivar count_endings: how often the guest of a server that is off has ended by itself or has not
        started within an hour; 0 if its owner has stopped it. Raises :class:`ClusterCloudError`.
    :ivar settle: finishes a cluster with these new members; raises :class:`ClusterError` if one of
        them is not accepted.
    :ivar tell: writes an event.
    :ivar date: the time in seconds since 1970.
    """

    drain: Callable[[ClusterMember], bool]
    undrain: Callable[[ClusterMember], bool]
    check: Callable[[Cluster, Collection[int], Collection[int]], None]
    count_endings: Callable[[str], int]
    settle: Callable[[Cluster, Collection[int]], None]
    tell: Callable[[str], None]
    date: Callable[[], float] = time.time


@attrs.define
class Healer:
    """A healer of one cluster.

    :ivar group: id of the cluster's server group.
    :ivar pace: its clock, and the time limit of each replacement; its ``sleep`` may raise
        :class:`HealEndedError`.
    :ivar well: no member was faulty at the last look, and all new ones were accepted.
    """

    cloud: ClusterCloud
    group: str
    terms: HealTerms
    tools: HealTools
    secrets: Secrets
    pace: Pace
    well: bool = False
    _memory: HealMemory = attrs.Factory(HealMemory)
    _told: str = ""

    def heal(self, watch: bool) -> bool:
        """Heal until nothing more can be done.

        :param watch: go on until the cluster is deleted, or :class:`HealEndedError` is raised.
        :returns: whether no member is faulty any more.
        :raises ClusterError: without *watch*: the cluster is gone, or the cloud does not answer.
        """
        begun = self.pace.clock()
        while True:
            over = self.pace.limit and self.pace.clock() - begun > self.pace.limit
            try:
                goes_on = self._look(watch or not over)
            except (ClusterError, ClusterCloudError) as error:
                if not watch:
                    raise ClusterError(str(error)) from error
                if isinstance(error, _NoClusterError):
                    self._tell(str(error))
                    self.well = True
                    return self.well
                lost = isinstance(error, (LostError, SilentError))
                self._tell(f"the cloud does not answer: {error}" if lost else str(error))
                goes_on = False
            if goes_on:
                continue
            if not watch:
                return self.well
            self._pause()

    def _look(self, waits: bool) -> bool:
        """Read the cluster and take one action; returns whether there may be another one.

        :param waits: wait for changes that time brings.
        """
        cluster = self._read()
        moment = self.pace.clock()
        self._memory = self._memory.remember(cluster, moment)
        endings = read_endings(cluster, self._memory.endings, self._count_endings)
        self._memory = attrs.evolve(self._memory, endings=endings)
        move = healing.plan_healing(cluster, self._memory, self.terms, moment, self.tools.date())
        unsettled = self._memory.unfit | self._memory.stuck
        self.well = isinstance(move, Healthy) and not unsettled
        if isinstance(move, Healthy):
            self._tell(f"no member of {cluster.name} has to be replaced")
            return False
        if isinstance(move, HoldBack):
            self._tell(f"{move.reason}{_name_faulty(cluster, self.terms)}")
            if move.passes and waits:
                self._pause()
            return move.passes and waits
        if isinstance(move, DrainFirst):
            self._drain(cluster, move.numbers)
            return True
        if isinstance(move, StartAgain):
            self._start_again(cluster, move.numbers)
            return True
        if isinstance(move, Undrain):
            self._undrain(cluster, move.numbers)
            return True
        try:
            if isinstance(move, Release):
                made = self._write(cluster, move.wish)
                if made.wish != move.wish:
                    self._tell(f"Nova changes no member of {cluster.name} now")
                    self._pause()
                    return waits
                return True
            return self._make(cluster, move)
        except _OvertakenError as error:
            self._tell(str(error))
            self._pause()
            return waits

    def _count_endings(self, server: str) -> int:
        """How often a guest has ended; 0 if Nova does not show that to the user."""
        try:
            return self.tools.count_endings(server)
        except LostError:
            raise
        except ClusterCloudError as error:
            self._tell(f"the actions of server {server} are not read: {error}")
            return 0

    def _read(self) -> Cluster:
        lost = 0
        while True:
            try:
                cluster = self.cloud.look(self.group)
                break
            except LostError:
                lost += 1
                if lost > _LOST_LOOKS:
                    raise
                self.pace.sleep(min(_SETTLE, self.terms.interval))
        if cluster.group is None and not cluster.servers:
            raise _NoClusterError(f"there is no cluster {self.group} any more")
        return healing.keep_faults(cluster, self.terms)

    def _pause(self) -> None:
        self.pace.sleep(self.terms.interval)
        nothing: frozenset[str] = frozenset()
        self._memory = attrs.evolve(
            self._memory, free=nothing, busy=nothing, refused=nothing, stuck=nothing
        )
        self._memory = attrs.evolve(self._memory, started=nothing, endings={})

    def _tell(self, text: str) -> None:
        """Write an event, unless it is the last one again."""
        if text != self._told:
            self.tools.tell(printable_text("; ".join(text.splitlines())))
        self._told = text

    def _drain(self, cluster: Cluster, numbers: Sequence[int]) -> None:
        for member in find_servers(cluster, numbers):
            words = ", ".join(_words_of(member))
            if self.tools.drain(member):
                self._tell(f"{member.shown} ({words}) is drained")
                self._memory = attrs.evolve(self._memory, free=self._memory.free | {member.id})
            else:
                self._tell(f"{member.shown} ({words}) is busy")
                self._memory = attrs.evolve(self._memory, busy=self._memory.busy | {member.id})

    def _start_again(self, cluster: Cluster, numbers: Sequence[int]) -> None:
        """Start members whose guests have ended; one that Nova refuses waits for a pause."""
        for member in find_servers(cluster, numbers):
            self._tell(f"{member.shown} is started again: its guest had ended")
            try:
                self.cloud.ask_server(member.id, "os-start")
            except ClusterCloudError as error:
                self._tell(f"{member.shown} is not started: {error}")
                self._memory = attrs.evolve(self._memory, stuck=self._memory.stuck | {member.id})
            else:
                started = self._memory.started | {member.id}
                self._memory = attrs.evolve(self._memory, started=started)

    def _undrain(self, cluster: Cluster, numbers: Sequence[int]) -> None:
        """Make members take jobs again, until another healer may have seen a fault meanwhile."""
        begun = self.pace.clock()
        for member in find_servers(cluster, numbers):
            if self.tools.undrain(member):
                self._memory = attrs.evolve(
                    self._memory, serving=self._memory.serving | {member.id}
                )
            else:
                self._memory = attrs.evolve(self._memory, stuck=self._memory.stuck | {member.id})
            if self.pace.clock() - begun > self.terms.interval / 2:
                return

    def _make(self, cluster: Cluster, move: Replace | Finish) -> bool:
        """Replace members, or finish a half cluster; returns whether the healer goes on."""
        numbers = move.numbers if isinstance(move, Replace) else _find_missing(cluster)
        old = find_servers(cluster, numbers)
        ids = frozenset(member.id for member in old)
        try:
            _check_length(cluster, move.wish)
            self.tools.check(cluster, numbers, numbers if old else ())
            claimed = self._claim(cluster, move.wish)
            still = find_servers(healing.keep_faults(claimed, self.terms), numbers)
            if ids != {member.id for member in still} or not all(map(healing.is_faulty, still)):
                return True
            made = self._make_claimed(claimed, move)
        except _OvertakenError:
            raise
        except ClusterError as error:
            self._tell(str(error))
            # The next look of a whole cluster ends the debt.
            self._memory = attrs.evolve(self._memory, refused=self._memory.refused | ids, owes=True)
            left = self._read()
            if ids and ids <= {server.id for server in left.servers}:
                # The old servers were not touched, so the others may be healed.
                return True
            # Another client may have stopped this one after it had deleted a server.
            return isinstance(move, Replace) and bool(_find_missing(left))
        with contextlib.suppress(_OvertakenError):
            self._write(made, attrs.evolve(move.wish, turn="", generation=move.wish.generation + 1))
        new = ", ".join(member.shown for member in find_servers(made, numbers))
        self._tell(f"{new} is another server now" if old else f"{made.name} is whole again")
        try:
            self.tools.settle(made, numbers)
        except ClusterError as error:
            self._tell(str(error))
            new_ids = {member.id for member in find_servers(made, numbers)}
            self._memory = attrs.evolve(self._memory, unfit=self._memory.unfit | new_ids)
        return True

    def _make_claimed(self, cluster: Cluster, move: Replace | Finish) -> Cluster:
        cloud, secrets, pace = self.cloud, self.secrets, self.pace
        # Members that failed meanwhile, or whose turn is later, do not keep the claim for ever, and
        # members at rest stay so.
        settled = (Standing.FAILED, Standing.RESTS)
        leave = {server.id for server in cluster.servers if server.standing in settled}
        if isinstance(move, Finish):
            self._tell(f"a healer has left {cluster.name}: its work is finished")
            return commands.resume_cluster(cloud, cluster, None, secrets, pace, leave)
        for member in find_servers(cluster, move.numbers):
            self._tell(f"{member.shown} ({', '.join(_words_of(member))}) is replaced")
        numbers = [number for number in move.numbers if number != HEAD]
        head = HEAD in move.numbers
        return commands.replace_members(cloud, cluster, numbers, secrets, pace, head, leave)

    def _claim(self, cluster: Cluster, wish: ClusterWish) -> Cluster:
        """Write a claim, wait until another healer's would be there, and look again."""
        self._write(cluster, wish)
        self.pace.sleep(min(_SETTLE, self.terms.interval))
        return self._write(cluster, wish)

    def _write(self, cluster: Cluster, wish: ClusterWish) -> Cluster:
        """Write a ``ClusterWish`` into the metadata of all servers that Nova can change.

        :raises _OvertakenError: another client has changed the cluster.
        :raises ClusterError: a server is locked.
        """

        def plan(current: Cluster) -> Move:
            if current.wish is None or current.wish.order > wish.order:
                raise _OvertakenError("another client has changed this cluster meanwhile")
            stale = verbs.find_stale(current, wish)
            return Act(stale) if stale else Done()

        return life_cycle_run.run_until_done(
            self.cloud, cluster.id, wish, self.secrets, self.pace, plan
        )


def _check_length(cluster: Cluster, wish: ClusterWish) -> None:
    """Check that a claim fits into the metadata of a server.

    :raises ClusterError: it is too long.
    """
    try:
        cluster_wish.to_metadata(wish, cluster.id)
    except WireError as error:
        raise ClusterError(f"{cluster.name} cannot be healed: {error}") from error


def read_endings(
    cluster: Cluster, counted: Mapping[str, int], count: Callable[[str], int]
) -> dict[str, int]:
    """The endings of guests, for :attr:`HealMemory.endings`; only unknown ones are read.

    :param counted: the endings that are read already.
    :param count: as :attr:`HealTools.count_endings`.
    """
    return {
        server.id: counted[server.id] if server.id in counted else count(server.id)
        for server in cluster.servers
        if server.off
    }


def describe_move(cluster: Cluster, move: HealMove, terms: HealTerms) -> Iterator[str]:
    """The faulty members in one line each, and the next action of a healer."""
    named = terms.named or {*cluster.wanted, HEAD}
    for member in find_servers(cluster, healing.faulty_numbers(cluster, named)):
        meanings = [word.meaning for word in member.faults]
        if member.failed:
            meanings.insert(0, printable_text(member.fault) or "it is in error")
        yield f"{member.shown}: {'; '.join(meanings)}"
    if isinstance(move, StartAgain):
        names = ", ".join(member.shown for member in find_servers(cluster, move.numbers))
        yield f"next: {names} is started again: its guest had ended"
    elif isinstance(move, (DrainFirst, Replace)):
        names = ", ".join(member.shown for member in find_servers(cluster, move.numbers))
        yield f"next: {names} is {'drained' if isinstance(move, DrainFirst) else 'replaced'}"
    elif isinstance(move, (Finish, Release)):
        yield f"next: the work of another healer on {cluster.name} is finished"
    else:
        yield move.reason if isinstance(move, HoldBack) else "no member has to be replaced"


def _words_of(member: ClusterMember) -> Sequence[str]:
    return [*(["failed"] if member.failed else []), *(word.value for word in member.faults)]


def _name_faulty(cluster: Cluster, terms: HealTerms) -> str:
    faulty = find_servers(cluster, healing.faulty_numbers(cluster, terms.named))
    names = ", ".join(f"{member.shown} ({', '.join(_words_of(member))})" for member in faulty)
    return f"; faulty: {names}" if names else ""


def find_servers(cluster: Cluster, numbers: Collection[int]) -> Sequence[ClusterMember]:
    """The servers with these numbers, HEAD for the head; missing ones are left out."""
    numbered = number_members(cluster)
    servers = {**numbered.by_number, HEAD: numbered.head}
    return [server for number in numbers if (server := servers.get(number)) is not None]


def _find_missing(cluster: Cluster) -> Sequence[int]:
    numbered = number_members(cluster)
    head = [HEAD] if cluster.wants_head and numbered.head is None else []
    return [*sorted(cluster.wanted - numbered.by_number.keys()), *head]
