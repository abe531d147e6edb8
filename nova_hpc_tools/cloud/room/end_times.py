# SPDX-License-Identifier: Apache-2.0
"""The known end times of servers: their owners' metadata, and leases. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import attrs

from nova_hpc_common.wire.planned_work import format_planned_time
from nova_hpc_tools.snapshot import Server, Snapshot, SnapshotError, owner_words
from nova_hpc_tools.snapshot.owner_words import WrongTimeError, parse_zoned_time

#: An older snapshot gets a warning.
_OLD = datetime.timedelta(hours=1)
_AGAIN = "take the snapshot again: nova-hpc simulate snapshot FILE"


@attrs.frozen
class KnownEnd:
    """The time at which a server ends, and the source of the time."""

    server: Server
    time: datetime.datetime
    #: ``hpc:until``, or a lease with its name.
    source: str


@attrs.frozen
class EndTimes:
    """The servers of a cloud that end at a known time, the first ones first."""

    ends: tuple[KnownEnd, ...] = ()
    #: Times that cannot be used, for operators.
    problems: tuple[str, ...] = ()


def read_time_of_snapshot(cloud: Snapshot) -> datetime.datetime:
    """Return the time of a snapshot in UTC.

    :raises SnapshotError: it has none; the text names the cure.
    """
    try:
        return parse_zoned_time(cloud.taken)
    except WrongTimeError as error:
        raise SnapshotError(f"taken: {error}; {_AGAIN}") from error


def find_clock_problem(taken: datetime.datetime, present: datetime.datetime) -> str:
    """Return a warning about a snapshot that is old or from the future; "" if there is none."""
    age = present - taken
    if age > _OLD:
        hours = int(age / datetime.timedelta(hours=1))
        return f"the snapshot is {hours} hours old, so servers may have moved or ended; {_AGAIN}"
    if age < -_OLD:
        return f"the snapshot is from the future: compare the clocks of both machines, and {_AGAIN}"
    return ""


def read_end_times(cloud: Snapshot) -> EndTimes:
    """Read the end times that a snapshot has; bad ones and those in the past are unknown.

    :raises SnapshotError: the snapshot itself has no time.
    """
    taken = read_time_of_snapshot(cloud)
    problems: list[str] = []
    first: dict[str, KnownEnd] = {}
    for server, text, source in _list_texts(cloud):
        name = f"server {server.name} ({server.uuid}): {source}"
        try:
            time = parse_zoned_time(text)
        except WrongTimeError as error:
            problems.append(f"{name} is unknown: {error}")
            continue
        if time <= taken:
            problems.append(
                f"{name} is overdue: the server should have ended at {format_planned_time(time)}; "
                "its end is unknown until its owner sets another time"
            )
        elif server.uuid not in first or time < first[server.uuid].time:
            first[server.uuid] = KnownEnd(server, time, source)
    ends = sorted(first.values(), key=lambda end: (end.time, end.server.uuid))
    return EndTimes(tuple(ends), tuple(problems))


def _list_texts(cloud: Snapshot) -> Iterator[tuple[Server, str, str]]:
    servers = {server.uuid: server for server in cloud.servers}
    for server in cloud.servers:
        if server.until is not None:
            yield server, server.until, owner_words.UNTIL
    for lease in cloud.leases:
        for uuid in lease.servers:
            if uuid in servers:
                yield servers[uuid], lease.until, f"lease {lease.name}"
