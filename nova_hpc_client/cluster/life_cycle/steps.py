# SPDX-License-Identifier: Apache-2.0
"""Steps of a plan, and the possible results of planning."""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.frozen
class MakePort:
    """Make a member's port in one of its networks.

    :ivar number: number of the member.
    :ivar place: index of the network among the member's networks.
    """

    number: int
    place: int


@attrs.frozen
class MakeServers:
    """Request members from Nova: the next one, or all of them at once.

    :ivar ports: index of the network and id of the port that was made for it.
    :ivar hosts: text of the host list as far as it is available; empty if it is not.
    """

    numbers: tuple[int, ...]
    ports: tuple[tuple[int, str], ...] = ()
    hosts: str = ""


@attrs.frozen
class MakeHead:
    """Request the head from Nova.

    :ivar hosts: text of the host list as far as it is available; empty if it is not.
    """

    hosts: str = ""


@attrs.frozen
class SetWish:
    """Write the ``ClusterWish`` into a member's metadata."""

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
    """Request an action without parameters on a member.

    :ivar action: its name in Nova's API.
    """

    server: str
    name: str
    action: str


@attrs.frozen
class RebuildServer:
    """Give a member a new disk; the same request marks its turn as done."""

    server: str
    name: str


@attrs.frozen
class MarkTurn:
    """Mark the turn as done in a member's metadata."""

    server: str
    name: str


@attrs.frozen
class OwnStep:
    """A step that contains its own request.

    :ivar words: its description in the progress display.
    :ivar what: a key that distinguishes it from other steps.
    :ivar server: id of the member that it changes; empty if it changes none.
    :ivar send: sends the request.
    """

    words: str
    what: str
    server: str = ""
    send: Callable[[], None] = attrs.field(kw_only=True, eq=False, repr=False)


@attrs.frozen
class MarkServer:
    """Make a server a member: write the ``ClusterWish`` and the mark."""

    server: str
    name: str


@attrs.frozen
class DropMarks:
    """Remove the ``ClusterWish`` and the mark of a member."""

    server: str
    name: str


@attrs.frozen
class KeepPort:
    """Mark a port that another tool made, so that the member's next server gets it again.

    :ivar number: number of the member.
    :ivar place: index of the port's network among the member's networks.
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
    """Do these steps, in any order or at the same time; then read the cluster again."""

    steps: tuple[Step, ...]


@attrs.frozen
class Wait:
    """Nova is at work; read the cluster again later.

    :ivar what: the reason, for the progress display.
    """

    what: str


@attrs.frozen
class Stuck:
    """No step helps; the reason is for the user."""

    reason: str


@attrs.frozen
class Done:
    """The cluster has the wanted state."""


Move = Act | Wait | Stuck | Done
