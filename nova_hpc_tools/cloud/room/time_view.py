# SPDX-License-Identifier: Apache-2.0
"""The answer of ``when`` as a picture over time. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Final

from nova_hpc.cluster.plan.tree import natural_sort_key
from nova_hpc_tools.cloud.room import answers
from nova_hpc_tools.cloud.room.earliest import RoomTime
from nova_hpc_tools.cloud.room.end_times import EndTimes, KnownEnd
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.pictures.draw_times import HostTimes, ServerBar, TimePicture
from nova_hpc_tools.snapshot import Snapshot

_SIGNS: Final = (
    "A bar is a server with devices, until its end; a grey one has no known end. Nova ends no "
    "server at that time."
)


def view_time(
    cloud: Snapshot,
    question: RoomQuestion,
    room_time: RoomTime | None,
    times: EndTimes,
    taken: datetime.datetime,
) -> TimePicture:
    """Build the picture of the hosts of an answer; without a time it says so and has no hosts."""
    title = f"When {question.text} fits"
    name = question.flavor.name
    if room_time is None:
        no_time = (answers.format_no_time(question, times),)
        return TimePicture(title, no_time, name, taken, taken, problems=times.problems)
    ends = {end.server.uuid: end for end in times.ends}
    names = {server.uuid: server.name for server in cloud.servers}
    users: dict[str, dict[str, None]] = {host: {} for host in room_time.gang.hosts}
    for node in cloud.hosts:
        if node.host in users:
            users[node.host] |= dict.fromkeys(
                use.server for device in node.devices for use in device.used
            )
    hosts = tuple(
        HostTimes(
            host,
            room_time.gang.hosts[host],
            tuple(
                sorted(
                    (_make_bar(uuid, names, ends) for uuid in users[host]),
                    key=lambda bar: (bar.end is None, bar.end or taken, bar.name),
                )
            ),
        )
        for host in sorted(users, key=natural_sort_key)
    )
    facts = (answers.format_time(question, room_time, taken), _SIGNS)
    return TimePicture(title, facts, name, taken, room_time.time or taken, hosts, times.problems)


def _make_bar(uuid: str, names: Mapping[str, str], ends: Mapping[str, KnownEnd]) -> ServerBar:
    name = names.get(uuid, uuid)
    if uuid not in ends:
        return ServerBar(name, uuid)
    return ServerBar(name, uuid, ends[uuid].time, ends[uuid].source)
