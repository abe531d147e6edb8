# SPDX-License-Identifier: Apache-2.0
"""Unshelves preempted servers, in the order in which they were shelved.

A server waits if it has the tag of its notice, is shelved, and has a preemptible flavor. Nova's
record of its last shelving gives its place in the order. A server that its own project has shelved
comes last: an owner who writes such a tag delays no other server. The first that has no room ends
the run, so that small servers do not take the room of a large one forever. A server is passed over
if no host could take it, also without all others, or if Nova refuses to start it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from nova_hpc.placement.flavor import has_hpc_keys
from nova_hpc_common.wire.planned_work import format_planned_time
from nova_hpc_common.wire.preemption_notice import read_notice_tags
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.drain import read_server_needs
from nova_hpc_tools.cloud.drain_api import DrainServer
from nova_hpc_tools.cloud.explain import judge_node
from nova_hpc_tools.cloud.explain.remedies import Chooser
from nova_hpc_tools.cloud.room import preemptor
from nova_hpc_tools.cloud.room.preemption import is_preemptible
from nova_hpc_tools.cloud.room.preemptor import OFFLOADED, SHELVABLE, SHELVED, PreemptionCloud
from nova_hpc_tools.cloud.server_moves import MovePatience
from nova_hpc_tools.fabric.nova_aggregates import NovaApiError
from nova_hpc_tools.snapshot import Snapshot, SnapshotError

_PAUSE: Final = 2.0


@attrs.frozen
class WaitingServer:
    """A server that was shelved for others.

    :ivar since: when it was shelved, or its notice without such a record.
    :ivar own: whether its own project shelved it.
    """

    server: DrainServer
    since: datetime.datetime
    own: bool


@attrs.frozen
class ReturnVerdict:
    """Whether a server fits now.

    :ivar fits: None if only Nova can say.
    :ivar never: whether it would not fit without all other servers either.
    """

    fits: bool | None
    never: bool = False


@attrs.frozen
class Unshelver:
    """Unshelves the servers that were shelved for others.

    :ivar hold: servers stay shelved so long after the last one was, for the request that the room
        was made for.
    """

    cloud: PreemptionCloud
    read: Callable[[], Snapshot]
    patience: MovePatience
    hold: datetime.timedelta
    say: Callable[[str], None]

    def list_waiting(self) -> list[WaitingServer]:
        """List the preempted servers in their order.

        :raises nova_hpc_tools.fabric.nova_aggregates.NovaApiError: Nova does not answer.
        """
        waiting = []
        for server in self.cloud.all_servers():
            notices = read_notice_tags(server.tags)
            if not notices or not is_preemptible(server.extra_specs):
                continue
            if server.status in (SHELVED, OFFLOADED):
                action = self.cloud.last_action(server.uuid, "shelve")
                since = max(notices.values()) if action is None else action.begin
                own = action is None or action.project == server.project
                waiting.append(WaitingServer(server, since, own))
        return sorted(waiting, key=lambda place: (place.own, place.since, place.server.uuid))

    def find_hold(self, waiting: list[WaitingServer]) -> datetime.datetime | None:
        """Return the time until which all servers stay shelved; None if it is over."""
        last = max((each.since for each in waiting if not each.own), default=None)
        if last is None or last + self.hold <= preemptor.read_time():
            return None
        return last + self.hold

    def judge(self, cloud: Snapshot, waiting: WaitingServer) -> ReturnVerdict:
        """Judge whether a server fits now, as planners do."""
        server = waiting.server
        if server.status == SHELVED or server.task:
            return ReturnVerdict(True)  # It has its place still, or gets it.
        if not has_hpc_keys(server.extra_specs):
            return ReturnVerdict(None)
        try:
            flavor, request = read_server_needs(cloud, server.flavor, server.extra_specs, ())
        except SnapshotError:
            return ReturnVerdict(None)
        chooser = Chooser(cloud.profile)
        if any(judge_node(node, flavor, request, chooser).choice for node in cloud.hosts):
            return ReturnVerdict(True)
        empty = (snapshot.release_from_node(node, *cloud.servers) for node in cloud.hosts)
        could = any(judge_node(node, flavor, request, chooser).choice for node in empty)
        return ReturnVerdict(False, never=not could)

    def unshelve_in_order(self) -> Iterator[WaitingServer]:
        """Unshelve servers while there is room; yields each that is back or deleted.

        :raises nova_hpc_tools.fabric.nova_aggregates.NovaApiError: Nova does not answer.
        """
        self._remove_old_notices()
        waiting = self.list_waiting()
        until = self.find_hold(waiting)
        if until is not None:
            self.say(f"servers stay shelved until {format_planned_time(until)}")
            return
        for place in waiting:
            name = f"{place.server.name} ({place.server.uuid})"
            verdict = self.judge(self.read(), place)
            if verdict.never:
                self.say(f"passed over: no host can take {name}, also without all other servers")
                continue
            if verdict.fits is False:
                self.say(f"{name} is the next, and has no room")
                return
            try:
                problem = self._unshelve(place.server)
            except NovaApiError as error:
                problem = str(error)
            if problem:
                self.say(f"passed over: {name}: {problem}")
            else:
                yield place

    def _unshelve(self, server: DrainServer) -> str:
        """Unshelve a server and remove its tag; returns why it is not back, or ""."""
        present = self.cloud.server(server.uuid)
        if present is not None and present.status in (SHELVED, OFFLOADED) and not present.task:
            self.cloud.unshelve(server.uuid)
        end = self.patience.clock() + self.patience.seconds
        while True:
            present = self.cloud.server(server.uuid)
            if present is None:
                self.say(f"done: {server.name} is deleted")
                return ""
            if not present.task:
                if present.status in SHELVABLE:
                    self._remove_notices(present)
                    self.say(f"done: {present.name} is {present.status} on {present.host}")
                    return ""
                reason = self.cloud.why(server.uuid, "unshelve")
                return f"it is {present.status}" + (f": {reason}" if reason else "")
            if self.patience.clock() > end:
                return f"it is not back after {self.patience.seconds:g} seconds ({present.task})"
            self.patience.sleep(_PAUSE)

    def _remove_old_notices(self) -> None:
        """Remove the tags of servers that are back, and notices that no run has carried out."""
        over = preemptor.read_time() - preemptor.NOTICE_HOLDS
        for server in self.cloud.all_servers():
            notices = read_notice_tags(server.tags)
            if (
                not notices
                or server.task
                or server.status not in SHELVABLE
                or not is_preemptible(server.extra_specs)
            ):
                continue
            latest = max(notices.values())
            try:
                if latest < over or preemptor.is_back(self.cloud, server.uuid, latest):
                    self._remove_notices(server)
            except NovaApiError as error:
                self.say(f"a notice stays: {error}")

    def _remove_notices(self, server: DrainServer) -> None:
        for tag in read_notice_tags(server.tags):
            self.cloud.remove_tag(server.uuid, tag)
