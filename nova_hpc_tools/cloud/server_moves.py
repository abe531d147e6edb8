# SPDX-License-Identifier: Apache-2.0
"""One server after the other leaves a host; the first that cannot ends it.

Nothing is remembered: a run that was cut short is finished by the next one, which looks
what is on the host and what waits for its confirmation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import attrs

from nova_hpc_tools.cloud.drain import Move
from nova_hpc_tools.cloud.drain_api import Seen

#: Statuses of servers that Nova can move cold.
MOVABLE: Final = ("ACTIVE", "SHUTOFF")
_MOVED: Final = "VERIFY_RESIZE"
_PAUSE: Final = 2.0


class StopError(Exception):
    """A server did not leave; the text says why and what it is now."""


class Mover(Protocol):
    """What moves servers."""

    def server(self, uuid: str) -> Seen | None:
        """One server; None: it was deleted."""

    def migrate(self, uuid: str, target: str | None) -> None:
        """Ask for a cold migration."""

    def confirm(self, uuid: str) -> None:
        """End a cold migration."""

    def why(self, uuid: str) -> str:
        """What Nova says of the server's last cold migration."""


@attrs.frozen
class Patience:
    """How long one server may take."""

    seconds: float
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


def leave(cloud: Mover, host: str, move: Move, patience: Patience) -> str:
    """Move one server off *host* and confirm it; where it is then, "" where it is gone.

    :raises StopError: it did not leave.
    :raises nova_hpc_tools.fabric.nova_aggregates.CloudError: Nova does not answer, or refuses.
    """
    server = cloud.server(move.server)
    if server is None:
        return ""
    if server.host == host and server.status != _MOVED and not server.task:
        if server.status not in MOVABLE:
            raise StopError(f"{_named(move)} is {server.status} now and cannot be moved")
        cloud.migrate(move.server, move.target)
    return finish(cloud, host, move, patience)


def finish(cloud: Mover, host: str, move: Move, patience: Patience) -> str:
    """Wait for a move that is under way, and confirm it; as :func:`leave`."""
    end = patience.clock() + patience.seconds
    confirmed = False
    while True:
        server = cloud.server(move.server)
        if server is None:
            return ""
        if server.status == "ERROR":
            raise StopError(f"{_named(move)} is in ERROR on {server.host}{_because(cloud, move)}")
        if not server.task:
            if server.status == _MOVED:
                if not confirmed:
                    cloud.confirm(move.server)
                    confirmed = True
            elif server.host != host:
                return server.host
            else:
                raise StopError(
                    f"{_named(move)} is {server.status} on {host} as before: Nova did not move "
                    f"it{_because(cloud, move)}"
                )
        if patience.clock() > end:
            raise StopError(
                f"{_named(move)} has not left after {patience.seconds:g} seconds: it is "
                f"{server.status} {f'({server.task}) ' if server.task else ''}on {server.host}"
            )
        patience.sleep(_PAUSE)


def _named(move: Move) -> str:
    return f"{move.name} ({move.server})"


def _because(cloud: Mover, move: Move) -> str:
    why = cloud.why(move.server)
    return f": {why}" if why else ""


def unmovable(servers: Iterable[Seen]) -> tuple[str, ...]:
    """Why servers cannot be moved as they are now."""
    found = []
    for each in servers:
        if each.task:
            found.append(f"{each.name} ({each.uuid}): Nova is at it ({each.task}): wait for it")
        elif each.status not in MOVABLE:
            found.append(
                f"{each.name} ({each.uuid}): it is {each.status}; Nova moves servers that are "
                f"{' or '.join(MOVABLE)}"
            )
    return tuple(found)
