# SPDX-License-Identifier: Apache-2.0
"""The owners to whom planned work on a device of their server is announced now. Pure.

An owner learns the earliest time of all devices of the server. A time that has passed is not
announced any more, if a server gets the device afterwards. An announced time stays until the
operator takes it back or the server leaves the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs


@attrs.frozen
class PlannedChange:
    """A change of the announcement to the owner of a server."""

    server: str
    #: UTC, as ``2026-12-04T08:00Z``.
    time: str
    #: Whether work is planned at that time, or not any more.
    present: bool


def find_planned_times(
    planned: Mapping[str, str],
    users: Mapping[str, str],
    physical_function_of: Callable[[str], str | None],
) -> dict[str, frozenset[str]]:
    """Return server -> times at which work on its devices begins.

    :param planned: address -> time; work on a physical function concerns its virtual functions.
    :param users: address -> server.
    """
    times: dict[str, frozenset[str]] = {}
    for address, server in users.items() if planned else ():
        for place in (address, physical_function_of(address)):
            if place is not None and place in planned:
                times[server] = times.get(server, frozenset()) | {planned[place]}
    return times


def decide_planned_changes(
    times: Mapping[str, frozenset[str]], announced: Mapping[str, str], present: str
) -> list[PlannedChange]:
    """Return the changes, ordered by server; a new time comes before the end of the old one.

    :param times: server -> times at which work on its devices begins.
    :param announced: server -> time that is announced to its owner.
    :param present: the present time.
    """
    changes = []
    for server in sorted(times.keys() | announced.keys()):
        before = announced.get(server)
        candidates = (time for time in times.get(server, ()) if time > present or time == before)
        after = min(candidates, default=None)
        if after is not None and after != before:
            changes.append(PlannedChange(server, after, present=True))
        if before is not None and after != before:
            changes.append(PlannedChange(server, before, present=False))
    return changes
