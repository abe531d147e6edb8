# SPDX-License-Identifier: Apache-2.0
"""Steps of a plan, and the answers that a plan gives."""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.frozen
class MakePort:
    """Make the port of a member at a place of its networks."""

    number: int
    place: int


@attrs.frozen
class MakeServers:
    """Ask Nova for members: for the next one, or for all of them at once.

    :ivar ports: place of the network and id of the port that was made for it.
    :ivar hosts: the host list as far as it is known; empty: it is not.
    """

    numbers: tuple[int, ...]
    ports: tuple[tuple[int, str], ...] = ()
    hosts: str = ""


@attrs.frozen
class MakeHead:
    """Ask Nova for the head.

    :ivar hosts: the host list as far as it is known; empty: it is not.
    """

    hosts: str = ""


@attrs.frozen
class SetWish:
    """Write the wish into a member's metadata."""

    server: str
    name: str


@attrs.frozen
class SetHosts:
    """Write the host list into a member's metadata."""

    server: str
    name: str
    hosts: str


@attrs.frozen
class DeleteServer:
    """Delete a member."""

    server: str
    name: str


@attrs.frozen
class DeletePort:
    """Delete a port."""

    port: str


@attrs.frozen
class DeleteGroup:
    """Delete the server group."""


@attrs.frozen
class AskServer:
    """Ask Nova for an action on a member that has no parameters.

    :ivar action: its name in Nova's API.
    """

    server: str
    name: str
    action: str


@attrs.frozen
class RebuildServer:
    """Give a member a new disk, and with the same request the mark of its turn."""

    server: str
    name: str


@attrs.frozen
class MarkTurn:
    """Write into a member's metadata that it has done its turn."""

    server: str
    name: str


@attrs.frozen
class OwnStep:
    """A step that brings its own request.

    :ivar words: what it does, for the progress.
    :ivar what: tells it apart from other steps.
    :ivar server: id of the member that it changes; empty: it changes none.
    """

    words: str
    what: str
    server: str = ""
    send: Callable[[], None] = attrs.field(kw_only=True, eq=False, repr=False)


@attrs.frozen
class MarkServer:
    """Make a server a member: write the wish and the mark."""

    server: str
    name: str


@attrs.frozen
class DropMarks:
    """Remove the wish and the mark of a member."""

    server: str
    name: str


@attrs.frozen
class KeepPort:
    """Mark a port that another tool made, so that the next server of its member has it again.

    :ivar number: of the member.
    :ivar place: of the port's network.
    """

    port: str
    number: int
    place: int


@attrs.frozen
class ReleasePort:
    """Remove the mark of a port."""

    port: str


Step = (
    MakePort
    | MakeServers
    | MakeHead
    | SetWish
    | SetHosts
    | DeleteServer
    | DeletePort
    | DeleteGroup
    | AskServer
    | RebuildServer
    | MarkTurn
    | OwnStep
    | MarkServer
    | DropMarks
    | KeepPort
    | ReleasePort
)


@attrs.frozen
class Act:
    """Do these steps, in any order or at the same time; then look again."""

    steps: tuple[Step, ...]


@attrs.frozen
class Wait:
    """Nova is at work; look again later."""

    what: str


@attrs.frozen
class Stuck:
    """No step helps; the reason is for the user."""

    reason: str


@attrs.frozen
class Done:
    """The cluster is what it is to be."""


Move = Act | Wait | Stuck | Done
