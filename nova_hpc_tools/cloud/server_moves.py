# SPDX-License-Identifier: Apache-2.0
"""Servers leave a host one after the other; the first that cannot leave ends the run.

The run keeps no state: the next one finishes a run that was cut short. It looks which servers are
on the host and which wait for their confirmation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import attrs

from nova_hpc_common.outside.text import shell_command
from nova_hpc_tools.cloud.drain import Move
from nova_hpc_tools.cloud.drain_api import DrainServer

#: Statuses of servers that Nova can move cold.
MOVABLE: Final = ("ACTIVE", "SHUTOFF")
#: Statuses of servers that Nova can evacuate from a dead host.
EVACUABLE: Final = (*MOVABLE, "ERROR")
_MOVED: Final = "VERIFY_RESIZE"
_PAUSE: Final = 2.0


class DrainStopError(Exception):
    """A server did not leave the drained host. The text gives the reason and its present state."""


class ServerMover(Protocol):
    """Interface to the calls of Nova's API that move servers."""

    def server(self, uuid: str) -> DrainServer | None:
        """Return the server with this UUID; None if it was deleted."""

    def migrate(self, uuid: str, target: str | None) -> None:
        """Request a cold migration to *target*; None lets Nova choose."""

    def confirm(self, uuid: str) -> None:
        """Confirm a cold migration, so that resources on the old host are freed."""

    def evacuate(self, uuid: str, target: str | None) -> None:
        """Request the evacuation of a server from a dead host; do not wait for it.

        :param target: the new host; None if Nova chooses.
        """

    def why(self, uuid: str, action: str = "migrate") -> str:
        """Return Nova's reason for the failure of the server's last *action*."""


@attrs.frozen
class MovePatience:
    """The time limit for the move of one server, with the clock."""

    seconds: float
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


def move_server_off(cloud: ServerMover, host: str, move: Move, patience: MovePatience) -> str:
    """Move one server off *host* and confirm it; returns its new host, "" if it was deleted.

    :raises DrainStopError: it did not leave.
    :raises nova_hpc_tools.fabric.nova_aggregates.NovaApiError: Nova does not answer, or refuses.
    """
    server = cloud.server(move.server)
    if server is None:
        return ""
    if server.host == host and server.status != _MOVED and not server.task:
        if server.status not in MOVABLE:
            raise DrainStopError(
                f"{_format_moved_server(move)} is {server.status} now and cannot be moved"
            )
        cloud.migrate(move.server, move.target)
    return await_server_move(cloud, host, move, patience)


def await_server_move(
    cloud: ServerMover, host: str, move: Move, patience: MovePatience, action: str = "migrate"
) -> str:
    """Wait for a running move, and confirm it.

    :param action: Nova's name of the action, whose failure has the reason.

    The result and the errors are the same as for :func:`move_server_off`.
    """
    end = patience.clock() + patience.seconds
    confirmed = False
    while True:
        server = cloud.server(move.server)
        if server is None:
            return ""
        if server.status == "ERROR":
            raise DrainStopError(
                f"{_format_moved_server(move)} is in ERROR on "
                f"{server.host}{_format_move_reason(cloud, move, action)}"
            )
        if not server.task:
            if server.status == _MOVED:
                if not confirmed:
                    cloud.confirm(move.server)
                    confirmed = True
            elif server.host != host:
                return server.host
            else:
                raise DrainStopError(
                    f"{_format_moved_server(move)} is {server.status} on {host} as "
                    f"before: Nova did not move "
                    f"it{_format_move_reason(cloud, move, action)}"
                )
        if patience.clock() > end:
            raise DrainStopError(
                f"{_format_moved_server(move)} has not left after {patience.seconds:g} "
                f"seconds: it is "
                f"{server.status} {f'({server.task}) ' if server.task else ''}on {server.host}"
            )
        patience.sleep(_PAUSE)


def evacuate_server(cloud: ServerMover, host: str, move: Move, patience: MovePatience) -> str:
    """Rebuild one server of a dead *host* elsewhere; as :func:`move_server_off`."""
    server = cloud.server(move.server)
    if server is None:
        return ""
    if server.host == host and not server.task:
        cloud.evacuate(move.server, move.target)
    return await_evacuation(cloud, host, move, patience)


def await_evacuation(cloud: ServerMover, host: str, move: Move, patience: MovePatience) -> str:
    """Wait for an evacuation that is in progress; return the new host, "" if it was deleted.

    :raises DrainStopError: Nova did not evacuate it, or not in time.
    """
    end = patience.clock() + patience.seconds
    while True:
        server = cloud.server(move.server)
        if server is None:
            return ""
        if not server.task:
            if server.host != host and server.status != "ERROR":
                return server.host
            raise DrainStopError(
                f"{_format_moved_server(move)} is {server.status} on {server.host}: Nova did not "
                f"evacuate it{_format_move_reason(cloud, move, 'evacuate')}"
            )
        if patience.clock() > end:
            raise DrainStopError(
                f"{_format_moved_server(move)} is not evacuated after {patience.seconds:g} "
                f"seconds: it is {server.status} ({server.task}) on {server.host}"
            )
        patience.sleep(_PAUSE)


def _format_moved_server(move: Move) -> str:
    return f"{move.name} ({move.server})"


def _format_move_reason(cloud: ServerMover, move: Move, action: str = "migrate") -> str:
    reason = cloud.why(move.server, action)
    return f": {reason}" if reason else ""


def find_unmovable_servers(servers: Iterable[DrainServer], dead: bool = False) -> dict[str, str]:
    """Find the servers that cannot be moved as they are now: UUID -> reason.

    :param dead: whether their host is dead, so that a task on it does not end.
    """
    refusals = {}
    for server in servers:
        if server.task and dead:
            cure = shell_command("openstack", "server", "set", "--state", "error", server.uuid)
            reason = f"its task ({server.task}) does not end on a dead host: {cure}"
        elif server.task:
            reason = f"Nova is at it ({server.task}): wait for it"
        elif server.status not in (EVACUABLE if dead else MOVABLE):
            able = f"evacuates servers that are {', '.join(EVACUABLE[:-1])} or {EVACUABLE[-1]}"
            if not dead:
                able = f"moves servers that are {' or '.join(MOVABLE)}"
            reason = f"it is {server.status}; Nova {able}"
        else:
            continue
        refusals[server.uuid] = f"{server.name} ({server.uuid}): {reason}"
    return refusals
