# SPDX-License-Identifier: Apache-2.0
"""Planned work on a server's host or on one of its devices, as tags that give its owner the time.

The tag is ``hpc-planned=2026-12-04T08:00Z@1f2e3d4c``: the time in UTC, and after the ``@`` the
place of the work. The place ``device`` is a device of the server; nova-compute writes and removes
these tags. Other places are a host, as the first digits of the ``hostId`` that Nova's API shows to
the server's owner; ``nova-hpc drain --at`` writes these. A server that has left the host has
another ``hostId``, so each reader leaves out a tag of its former host.

Each writer removes its own tags only. nova-compute files an instance action for each of its
changes, too. Tag and action contain neither names nor addresses.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from typing import Final

import attrs

#: The beginning of the tags.
TAG_PREFIX: Final = "hpc-planned="
#: Names of the instance actions; their message is the time.
PLANNED_ACTION: Final = "hpc_work_planned"
CANCELLED_ACTION: Final = "hpc_work_cancelled"
#: The place of work on a device.
DEVICE: Final = "device"
#: Digits of Nova's ``hostId`` in a tag; a tag has 60 characters at most.
_DIGITS: Final = 8
_FORM: Final = "%Y-%m-%dT%H:%MZ"
_TAG: Final = re.compile(
    rf"{TAG_PREFIX}(\d{{4}}-\d\d-\d\dT\d\d:\d\dZ)@({DEVICE}|[0-9a-f]{{{_DIGITS}}})", re.ASCII
)


@attrs.frozen(order=True)
class PlannedWork:
    """Announced work: when it begins, and where. The earliest is the least."""

    #: UTC, as ``2026-12-04T08:00Z``; the order of these texts is the order of times.
    time: str
    #: DEVICE, or the first digits of the host's ``hostId``.
    place: str = DEVICE

    @classmethod
    def on_host(cls, time: str, host_id: str) -> PlannedWork:
        """Work on a whole host.

        :param host_id: Nova's ``hostId`` of a server there; it differs between projects.
        """
        return cls(time, host_id[:_DIGITS])

    @property
    def tag(self) -> str:
        """The server's tag."""
        return f"{TAG_PREFIX}{self.time}@{self.place}"

    @property
    def message(self) -> str:
        """The message of its instance actions."""
        return self.time

    def action(self, present: bool) -> str:
        """The name of the instance action for an announcement, or for its end."""
        return PLANNED_ACTION if present else CANCELLED_ACTION

    @property
    def of_device(self) -> bool:
        """Whether nova-compute has announced it."""
        return self.place == DEVICE

    def concerns(self, host_id: str) -> bool:
        """Whether a server on the host with this ``hostId`` is concerned."""
        return self.of_device or host_id[:_DIGITS] == self.place


def format_planned_time(moment: datetime.datetime) -> str:
    """Write a time as in tags: UTC, rounded down to the minute.

    :param moment: a time with a time zone.
    """
    # Not strftime: it writes a year before 1000 with fewer digits.
    text = moment.astimezone(datetime.UTC).replace(tzinfo=None).isoformat(timespec="minutes")
    return f"{text}Z"


def is_planned_time(text: object) -> bool:
    """Whether a value is a time as in tags."""
    if not isinstance(text, str):
        return False
    try:
        moment = datetime.datetime.strptime(text, _FORM).replace(tzinfo=datetime.UTC)
    except ValueError:
        return False
    return format_planned_time(moment) == text


def read_planned_tags(tags: Iterable[object]) -> tuple[PlannedWork, ...]:
    """Read the announced work from a server's tags, the earliest first.

    Other tags, malformed ones and impossible times are left out.
    """
    matches = [_TAG.fullmatch(tag) for tag in tags if isinstance(tag, str)]
    return tuple(
        sorted(
            PlannedWork(match[1], match[2])
            for match in matches
            if match is not None and is_planned_time(match[1])
        )
    )


def earliest_planned_time(tags: Iterable[object], host_id: str) -> str:
    """Return the earliest announced time that concerns a server; "" if there is none.

    :param tags: its tags.
    :param host_id: its ``hostId``, as Nova's API shows it.
    """
    works = (work for work in read_planned_tags(tags) if work.concerns(host_id))
    return next((work.time for work in works), "")
