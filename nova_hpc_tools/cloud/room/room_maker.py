# SPDX-License-Identifier: Apache-2.0
"""Moves servers as a plan of :mod:`nova_hpc_tools.cloud.room.moves` says, one after the other.

A run keeps no state. A server has a tag while it moves, and the next run first finishes the moves
of servers with it. Before each move the cloud is read again: only a server whose owner agrees now,
and that is where the plan has it, moves to a host that takes it now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final, Protocol

import attrs

from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools.cloud import server_moves
from nova_hpc_tools.cloud.drain import Move, read_server_needs
from nova_hpc_tools.cloud.drain_api import DrainMigration, DrainServer
from nova_hpc_tools.cloud.explain import judge_node
from nova_hpc_tools.cloud.explain.remedies import Chooser
from nova_hpc_tools.cloud.room.moves import RoomMove
from nova_hpc_tools.cloud.server_moves import DrainStopError, MovePatience, ServerMover
from nova_hpc_tools.fabric.nova_aggregates import NovaApiError
from nova_hpc_tools.snapshot import Snapshot, SnapshotError, owner_words

#: The tag of a server while ``capacity --make-room --yes`` moves it.
TAG: Final = "hpc-making-room"
#: Seconds between two readings of the cloud: devices of a server that has left are cleaned first.
_PAUSE: Final = 10.0


class RoomCloud(ServerMover, Protocol):
    """Interface to the calls of Nova's API that make room."""

    def all_servers(self) -> Iterator[DrainServer]:
        """Return the servers of all projects."""

    def cold_move_of(self, uuid: str) -> DrainMigration | None:
        """Return the cold migration of a server that is not over; None without one."""

    def migrate_live(self, uuid: str, target: str) -> None:
        """Request a live migration to *target*."""

    def add_tag(self, uuid: str, tag: str) -> None:
        """Add a tag to a server."""

    def remove_tag(self, uuid: str, tag: str) -> None:
        """Remove a tag from a server; it may be gone already, and the server, too."""


@attrs.frozen
class RoomMaker:
    """Carries out the moves that make room.

    :ivar read: reads the present cloud.
    :ivar patience: the limit of one move, and of each wait for devices that are cleaned.
    :ivar say: is called with a line about each finished move.
    """

    cloud: RoomCloud
    read: Callable[[], Snapshot]
    patience: MovePatience
    say: Callable[[str], None]

    def finish_begun_moves(self) -> Iterator[str]:
        """Finish the moves that an earlier run has begun; yields why some cannot be finished.

        :raises nova_hpc_tools.fabric.nova_aggregates.NovaApiError: the servers cannot be listed.
        """
        for server in [each for each in self.cloud.all_servers() if TAG in each.tags]:
            try:
                begun = self.cloud.cold_move_of(server.uuid)
                if begun is not None:
                    self._finish(Move(server.uuid, server.name, begun.target), begun.source)
                if begun is not None or not server_moves.find_unmovable_servers([server]):
                    self.cloud.remove_tag(server.uuid, TAG)
            except (DrainStopError, NovaApiError) as error:
                yield str(error)

    def _finish(self, move: Move, source: str) -> None:
        self._report(move, server_moves.await_server_move(self.cloud, source, move, self.patience))

    def move(self, planned: RoomMove) -> None:
        """Move one server, and confirm it.

        :raises DrainStopError: it did not move, or must not.
        :raises nova_hpc_tools.fabric.nova_aggregates.NovaApiError: Nova does not answer, or
            refuses.
        """
        server = planned.server
        move = Move(server.uuid, server.name, planned.target, planned.level, planned.domain)
        new_host = ""
        try:
            if self._await_target(planned):
                self.cloud.add_tag(server.uuid, TAG)
                if planned.way == "live":
                    self._move_live(planned, move)
                new_host = server_moves.move_server_off(
                    self.cloud, server.host, move, self.patience
                )
                # After a failure the tag stays: the next run looks whether a move is left.
                self.cloud.remove_tag(server.uuid, TAG)
        except NovaApiError as error:
            # Its owner may delete the server at any time, and that makes room as well.
            if error.status != HTTPStatus.NOT_FOUND or self.cloud.server(server.uuid) is not None:
                raise
        self._report(move, new_host)

    def _move_live(self, planned: RoomMove, move: Move) -> None:
        """Move a server that runs on.

        If that fails, it is on its source as before, and can move cold: Nova refuses a live move
        for reasons of its own, such as a CPU of another model.

        :raises DrainStopError: it is not ready for a cold move in time.
        """
        try:
            self.cloud.migrate_live(move.server, planned.target)
            server_moves.await_server_move(
                self.cloud, planned.server.host, move, self.patience, "live-migration"
            )
        except (DrainStopError, NovaApiError) as error:
            self.say(f"{move.name} does not move live: {printable_text(str(error))}")
            # The target's next update frees the devices that it had claimed.
            self._await_target(planned)

    def await_cloud(self, suffices: Callable[[Snapshot], bool]) -> bool:
        """Wait until the cloud suffices, while devices of moved servers are cleaned.

        :returns: whether it suffices within the limit.
        """
        end = self.patience.clock() + self.patience.seconds
        while not suffices(self.read()):
            if self.patience.clock() > end:
                return False
            self.patience.sleep(_PAUSE)
        return True

    def _await_target(self, planned: RoomMove) -> bool:
        """Wait until the target takes the server; returns False if the server was deleted.

        :raises DrainStopError: the plan is outdated, or the target does not take it in time.
        """
        end = self.patience.clock() + self.patience.seconds
        while True:
            present = self.cloud.server(planned.server.uuid)
            if present is None:
                return False
            self._check_plan(planned, present)
            reason = self._explain_target(planned)
            if not reason:
                return True
            if self.patience.clock() > end:
                raise DrainStopError(f"{planned.target} does not take it: {reason}")
            self.patience.sleep(_PAUSE)

    @staticmethod
    def _check_plan(planned: RoomMove, present: DrainServer) -> None:
        """Refuse a move that its owner does not agree to any more, or from another host.

        :raises DrainStopError: the move must not be made.
        """
        if not owner_words.may_move(present.metadata.get(owner_words.MOVABLE), present.extra_specs):
            raise DrainStopError("its owner does not agree to a move any more")
        if present.host != planned.server.host:
            raise DrainStopError(f"it is on {present.host} now, and the plan has it elsewhere")
        for reason in server_moves.find_unmovable_servers([present]).values():
            raise DrainStopError(reason)

    def _explain_target(self, planned: RoomMove) -> str:
        """Return why the target does not take the server now; "" if it does."""
        cloud, server = self.read(), planned.server
        devices = [
            device
            for node in cloud.hosts
            for device in node.devices
            for use in device.used
            if use.server == server.uuid
        ]
        try:
            flavor, request = read_server_needs(cloud, server.flavor, server.extra_specs, devices)
        except SnapshotError as error:
            return str(error)
        chooser = Chooser(cloud.profile)
        reasons = []
        for node in cloud.hosts:
            if node.host == planned.target:
                verdict = judge_node(node, flavor, request, chooser)
                if verdict.choice is not None:
                    return ""
                reasons.append(verdict.reason)
        return "; ".join(reasons) or "Nova does not list this host"

    def _report(self, move: Move, new_host: str) -> None:
        self.say(f"done: {move.name} is {f'on {new_host}' if new_host else 'deleted'}")
