# SPDX-License-Identifier: Apache-2.0
"""Publishes the times from which clusters of a flavor fit, to the flavor's users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from nova_hpc_common.wire.planned_work import format_planned_time
from nova_hpc_common.wire.room_note import NOW, UNKNOWN, RoomNote, replace_room_note
from nova_hpc_tools.cloud.room import earliest, end_times
from nova_hpc_tools.cloud.room.end_times import KnownEnd
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.fabric.nova_aggregates import FabricCloud
from nova_hpc_tools.snapshot import Snapshot

#: The first one in which flavors have a description, which can be changed.
_MICROVERSION: Final = "2.55"


def build_room_note(cloud: Snapshot, question: RoomQuestion, ends: Sequence[KnownEnd]) -> RoomNote:
    """Find the times for 1, 2, 4, ... members, and for as many as the question has.

    :param ends: in their order.
    """
    sizes = {1 << power for power in range(question.members.bit_length())} | {question.members}
    times = {}
    for size in sizes:
        room = earliest.find_earliest_time(cloud, attrs.evolve(question, members=size), ends)
        if room is None:
            times[size] = UNKNOWN
        else:
            times[size] = NOW if room.time is None else format_planned_time(room.time)
    return RoomNote(format_planned_time(end_times.read_time_of_snapshot(cloud)), times)


class FlavorDescriber(FabricCloud):
    """Writes descriptions of flavors."""

    def describe_room(self, flavor: str, note: RoomNote) -> None:
        """Write the note into a flavor's description, instead of an earlier one.

        :param flavor: its ID.
        :raises nova_hpc_tools.fabric.nova_aggregates.NovaApiError: Nova does not answer, or
            refuses.
        """
        path = f"/flavors/{flavor}"
        present = self._get(path, _MICROVERSION)["flavor"].get("description")
        body = {"flavor": {"description": replace_room_note(present, note)}}
        self._call("put", path, body, microversion=_MICROVERSION)
