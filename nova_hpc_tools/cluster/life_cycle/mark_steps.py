# SPDX-License-Identifier: Apache-2.0
"""Steps that write or remove marks alone: they create and delete nothing."""

from __future__ import annotations

import attrs


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


MarkStep = MarkServer | DropMarks | KeepPort | ReleasePort
