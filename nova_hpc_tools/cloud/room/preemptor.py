# SPDX-License-Identifier: Apache-2.0
"""Shelves the servers of a plan of :mod:`nova_hpc_tools.cloud.room.preemption`, after a notice.

A run keeps no state: the tag of a server is its notice
(:mod:`nova_hpc_common.wire.preemption_notice`), and stays while it is shelved. The next run goes on
with the notices and shelved servers that it finds. After the notice the cloud is read again, and
only servers leave that have had the notice, that are preemptible now, and without which the request
fits. Otherwise the notices are withdrawn, and nothing is shelved.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Container, Iterable, Iterator
from http import HTTPStatus
from typing import Final, Protocol

import attrs

from nova_hpc_common.wire.preemption_notice import format_notice_tag, read_notice_tags
from nova_hpc_tools.cloud.drain_api import DrainServer, ServerAction
from nova_hpc_tools.cloud.room.moves import RoomMiss
from nova_hpc_tools.cloud.room.preemption import PreemptionPlan, find_preemption, is_preemptible
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.cloud.server_moves import DrainStopError, MovePatience
from nova_hpc_tools.fabric.nova_aggregates import NovaApiError
from nova_hpc_tools.snapshot import Server, Snapshot

#: Statuses of servers that Nova shelves.
SHELVABLE: Final = ("ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED")
SHELVED: Final = "SHELVED"
OFFLOADED: Final = "SHELVED_OFFLOADED"
#: A notice of an earlier run holds so long after its time; then its owner reads another one.
NOTICE_HOLDS: Final = datetime.timedelta(hours=1)
_MINUTE: Final = datetime.timedelta(minutes=1)
#: Seconds between two looks at a server, and between two readings of the cloud.
_PAUSE: Final = 2.0
_LONG_PAUSE: Final = 10.0


def read_time() -> datetime.datetime:
    """Return the present time, in UTC."""
    return datetime.datetime.now(datetime.UTC)


class PreemptionCloud(Protocol):
    """Interface to the calls of Nova's API that shelve and unshelve servers."""

    def all_servers(self) -> Iterator[DrainServer]:
        """Return the servers of all projects."""

    def server(self, uuid: str) -> DrainServer | None:
        """Return the server with this UUID; None if it was deleted."""

    def add_tag(self, uuid: str, tag: str) -> None:
        """Add a tag to a server."""

    def remove_tag(self, uuid: str, tag: str) -> None:
        """Remove a tag from a server; it may be gone already, and the server, too."""

    def shelve(self, uuid: str) -> None:
        """Request that a server is shelved."""

    def offload(self, uuid: str) -> None:
        """Request that a shelved server leaves its host."""

    def unshelve(self, uuid: str) -> None:
        """Request that a shelved server is started again."""

    def last_action(self, uuid: str, name: str) -> ServerAction | None:
        """Return the last action of this name on a server."""

    def why(self, uuid: str, action: str = "migrate") -> str:
        """Return Nova's reason for the failure of the server's last *action*."""


@attrs.frozen
class ToldPlan:
    """A plan whose owners have had the notice.

    :ivar due: the time in the notices; None if nothing has to be shelved.
    """

    answer: PreemptionPlan | RoomMiss
    due: datetime.datetime | None = None

    @property
    def servers(self) -> tuple[Server, ...]:
        """The planned servers."""
        return () if isinstance(self.answer, RoomMiss) else self.answer.servers


@attrs.frozen
class Preemptor:
    """Makes room by shelving preemptible servers.

    :ivar read: reads the present cloud.
    :ivar patience: the limit for each server, and for devices that are cleaned.
    :ivar say: is called with a line about each step.
    """

    cloud: PreemptionCloud
    read: Callable[[], Snapshot]
    patience: MovePatience
    say: Callable[[str], None]

    def finish_begun_shelving(self) -> Iterator[str]:
        """Finish the shelving that an earlier run has begun; yields why some cannot be finished.

        :raises nova_hpc_tools.fabric.nova_aggregates.NovaApiError: the servers cannot be listed.
        """
        for server in self.cloud.all_servers():
            begun = server.status == SHELVED or server.task.startswith("shelving")
            if begun and is_preemptible(server.extra_specs) and read_notice_tags(server.tags):
                try:
                    self._await_offload(server.uuid, server.name)
                except (DrainStopError, NovaApiError) as error:
                    yield str(error)

    # -- the notice -----------------------------------------------------------------------

    def tell_owners(self, cloud: Snapshot, question: RoomQuestion, minutes: int) -> ToldPlan:
        """Plan, and give the owners of the planned servers a notice.

        A server whose owner cannot be told is left out of the plan.

        :raises nova_hpc_tools.fabric.nova_aggregates.NovaApiError: Nova does not answer.
        """
        allowed = {server.uuid for server in self.cloud.all_servers() if _is_shelvable(server)}
        while True:
            answer = find_preemption(cloud, question, allowed)
            if isinstance(answer, RoomMiss) or not answer.servers:
                return ToldPlan(answer)
            due, untold = self._tell_each(answer.servers, minutes)
            if not untold:
                return ToldPlan(answer, due)
            allowed -= untold
            self.withdraw(server.uuid for server in answer.servers)

    def _tell_each(
        self, servers: Iterable[Server], minutes: int
    ) -> tuple[datetime.datetime, set[str]]:
        """Give notices; returns their latest time, and the servers whose owner cannot be told."""
        moment = read_time()
        latest = moment + datetime.timedelta(minutes=minutes) + _MINUTE
        # Owners read whole minutes.
        wanted = latest.replace(second=0, microsecond=0)
        due, untold = moment, set()
        for server in servers:
            present = self.cloud.server(server.uuid)
            if present is None:
                continue
            notices = read_notice_tags(present.tags)
            # A time further ahead is a tag of the owner's.
            valid = [time for time in notices.values() if moment - NOTICE_HOLDS <= time <= latest]
            if valid and not is_back(self.cloud, server.uuid, max(valid)):
                due = max(due, *valid)
                continue
            try:
                for tag in notices:
                    self.cloud.remove_tag(server.uuid, tag)
                self.cloud.add_tag(server.uuid, format_notice_tag(wanted))
                due = max(due, wanted)
            except NovaApiError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    continue
                if error.status not in (HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT):
                    raise
                self.say(f"left out: {present.name} ({present.uuid}) gets no notice: {error}")
                untold.add(server.uuid)
        return due, untold

    def withdraw(self, uuids: Iterable[str]) -> None:
        """Withdraw the notices of servers that are not shelved; one that fails ends no other."""
        for uuid in uuids:
            try:
                server = self.cloud.server(uuid)
                if server is not None and _is_shelvable(server):
                    for tag in read_notice_tags(server.tags):
                        self.cloud.remove_tag(uuid, tag)
            except NovaApiError as error:
                self.say(f"a notice stays: {error}")

    def await_notice(self, told: ToldPlan) -> None:
        """Wait until the time of the notices."""
        while told.due is not None:
            wait = (told.due - read_time()).total_seconds()
            if wait <= 0:
                return
            self.patience.sleep(min(_LONG_PAUSE, wait))

    # -- shelving -------------------------------------------------------------------------

    def carry_out(self, question: RoomQuestion, told: Iterable[Server]) -> Iterator[Server]:
        """Shelve the fewest servers of those with a notice; yields each that is gone.

        :raises DrainStopError: the plan is outdated, or a server is not shelved. The notices of
            the others are withdrawn then.
        :raises nova_hpc_tools.fabric.nova_aggregates.NovaApiError: Nova does not answer, or
            refuses.
        """
        hosts = {server.uuid: server.host for server in told}
        left = list(hosts)
        try:
            present = [self.cloud.server(uuid) for uuid in hosts]
            shelvable = {
                server.uuid for server in present if server is not None and _is_shelvable(server)
            }
            cloud = self.read()
            plan = find_preemption(cloud, question, shelvable)
            if isinstance(plan, RoomMiss):
                raise DrainStopError(f"the plan is outdated: {plan.reason}")
            expected = {server.uuid for server in cloud.servers}
            for number, server in enumerate(plan.servers):
                if number:
                    cloud = self.read()
                    if _fits(cloud, question):
                        break
                    _refuse_newcomers(cloud, plan, expected)
                self._shelve(server, hosts[server.uuid])
                left.remove(server.uuid)
                expected.discard(server.uuid)
                yield server
        except (DrainStopError, NovaApiError):
            # After a kill they stay, and the next run goes on with them.
            self.withdraw(left)
            raise
        self.withdraw(left)

    def await_room(self, question: RoomQuestion) -> bool:
        """Wait until devices of shelved servers are clean; returns whether the request fits."""
        end = self.patience.clock() + self.patience.seconds
        while not _fits(self.read(), question):
            if self.patience.clock() > end:
                return False
            self.patience.sleep(_LONG_PAUSE)
        return True

    def _shelve(self, planned: Server, host: str) -> None:
        present = self.cloud.server(planned.uuid)
        if present is None:
            return
        if present.host != host:
            raise DrainStopError(
                f"{present.name} is on {present.host} now, and its notice was for {host}"
            )
        if not is_preemptible(present.extra_specs):
            raise DrainStopError(f"{present.name} has a flavor now that is not preemptible")
        if not _is_shelvable(present):
            task = f" ({present.task})" if present.task else ""
            raise DrainStopError(
                f"{present.name} is {present.status}{task} now: Nova does not shelve it"
            )
        try:
            if not read_notice_tags(present.tags):
                # Without it, the server would not come back by itself.
                self.cloud.add_tag(present.uuid, format_notice_tag(read_time()))
        except NovaApiError as error:
            if error.status != HTTPStatus.BAD_REQUEST:
                raise
            self.say(f"{present.name} has no notice any more, so its owner has to unshelve it")
        try:
            self.cloud.shelve(present.uuid)
        except NovaApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        self._await_offload(present.uuid, present.name)

    def _await_offload(self, uuid: str, name: str) -> None:
        """Wait until a server that is being shelved has left its host.

        :raises DrainStopError: Nova did not shelve it, or not in time.
        """
        end = self.patience.clock() + self.patience.seconds
        while True:
            server = self.cloud.server(uuid)
            if server is None or (server.status == OFFLOADED and not server.task):
                self.say(f"done: {name} is {'deleted' if server is None else 'shelved'}")
                return
            if server.status == SHELVED and not server.task:
                # Otherwise it keeps its devices for [compute]shelved_offload_time, or forever.
                self.cloud.offload(uuid)
            elif not server.task:
                reason = self.cloud.why(uuid, "shelve")
                raise DrainStopError(
                    f"{name} ({uuid}) is {server.status}: Nova did not shelve it"
                    + (f": {reason}" if reason else "")
                )
            if self.patience.clock() > end:
                raise DrainStopError(
                    f"{name} ({uuid}) is not shelved after {self.patience.seconds:g} seconds: it "
                    f"is {server.status} ({server.task or '-'})"
                )
            self.patience.sleep(_PAUSE)


def is_back(cloud: PreemptionCloud, uuid: str, notice: datetime.datetime) -> bool:
    """Whether a server was unshelved after the time of a notice.

    :raises nova_hpc_tools.fabric.nova_aggregates.NovaApiError: Nova does not answer, or refuses.
    """
    action = cloud.last_action(uuid, "unshelve")
    return action is not None and action.begin >= notice


def _is_shelvable(server: DrainServer) -> bool:
    return server.status in SHELVABLE and not server.task


def _fits(cloud: Snapshot, question: RoomQuestion) -> bool:
    return isinstance(find_preemption(cloud, question, ()), PreemptionPlan)


def _refuse_newcomers(cloud: Snapshot, plan: PreemptionPlan, expected: Container[str]) -> None:
    """Stop if another server has taken the new room.

    :raises DrainStopError: a server has come to a host of the plan since it was made.
    """
    for server in cloud.servers:
        if server.host in plan.gang.hosts and server.uuid not in expected:
            raise DrainStopError(f"{server.name} ({server.uuid}) came to {server.host} meanwhile")
