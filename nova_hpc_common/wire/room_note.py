# SPDX-License-Identifier: Apache-2.0
"""The times from which clusters of a flavor fit, as a note in the flavor's description.

The note is ``[room 2026-12-01T11:00Z: 1 now, 4 2026-12-04T08:00Z, 8 unknown]``: the time of the
answer, and for each number of members the time from which so many fit. ``nova-hpc when --publish``
writes it, and keeps the rest of the description. All users of the flavor can read it. Nova's
services do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc_common.wire.planned_work import is_planned_time

NOW: Final = "now"
UNKNOWN: Final = "unknown"
_TIME: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\dZ"
_ITEM: Final = rf"[1-9]\d{{0,6}} (?:{NOW}|{UNKNOWN}|{_TIME})"
_NOTE: Final = re.compile(rf"\[room ({_TIME}): ({_ITEM}(?:, {_ITEM})*)\]", re.ASCII)
#: Also a note of a later release, or a damaged one: its writer replaces it.
_ANY_NOTE: Final = re.compile(r" ?\[room [^\[\]]*\]")


@attrs.frozen
class RoomNote:
    """The times from which clusters of one flavor fit.

    :ivar taken: the time of the answer, as ``2026-12-01T11:00Z``.
    :ivar times: number of members -> NOW, UNKNOWN or a time like *taken*.
    """

    taken: str
    times: Mapping[int, str]

    @property
    def text(self) -> str:
        """The note in a description."""
        times = ", ".join(f"{members} {time}" for members, time in sorted(self.times.items()))
        return f"[room {self.taken}: {times}]"

    def find_time(self, members: int) -> str:
        """Return the time from which a cluster fits: NOW, UNKNOWN or a time.

        A number between two of the note has the time of the larger one, which may be later than
        its own.
        """
        enough = [number for number in sorted(self.times) if number >= members]
        return self.times[enough[0]] if enough else UNKNOWN


def read_room_note(description: str | None) -> RoomNote | None:
    """Read the note of a flavor's description; None without one, or if it is damaged."""
    notes = _NOTE.findall(description or "")
    if len(notes) != 1:
        return None
    ((taken, items),) = notes
    pairs = [item.split(" ") for item in items.split(", ")]
    times = {int(members): time for members, time in pairs}
    moments = [taken, *(time for time in times.values() if time not in (NOW, UNKNOWN))]
    if len(times) < len(pairs) or not all(map(is_planned_time, moments)):
        return None
    return RoomNote(taken, times)


def replace_room_note(description: str | None, note: RoomNote) -> str:
    """Return the description with *note* at its end instead of any earlier one."""
    kept = _ANY_NOTE.sub("", description or "").strip()
    return f"{kept} {note.text}".lstrip()
