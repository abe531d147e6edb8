# SPDX-License-Identifier: Apache-2.0
"""The notice that a server will be shelved to make room for another, as a tag of the server.

The tag is ``hpc-preempt=2026-12-04T08:05Z``, with the time in UTC. ``capacity --preempt`` writes
it minutes before that time, and it stays while the server is shelved: Nova changes no tags of a
shelved server. It goes when the server is back. It contains neither names nor addresses.

The owner can write such a tag, too. So it gives no server a right, and takes none.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from typing import Final

from nova_hpc_common.wire.planned_work import format_planned_time, is_planned_time

#: The beginning of the tag.
TAG_PREFIX: Final = "hpc-preempt="
#: Name of the instance action; its message is the time.
NOTICE_ACTION: Final = "hpc_preemption_planned"
_TAG: Final = re.compile(rf"{TAG_PREFIX}(\d{{4}}-\d\d-\d\dT\d\d:\d\dZ)", re.ASCII)


def format_notice_tag(moment: datetime.datetime) -> str:
    """Write the tag for a time with a time zone, rounded down to the minute."""
    return f"{TAG_PREFIX}{format_planned_time(moment)}"


def read_notice_tags(tags: Iterable[object]) -> dict[str, datetime.datetime]:
    """Read a server's notices: tag -> time. Other tags and impossible times are left out."""
    matches = [_TAG.fullmatch(tag) for tag in tags if isinstance(tag, str)]
    return {
        match[0]: datetime.datetime.fromisoformat(match[1])
        for match in matches
        if match is not None and is_planned_time(match[1])
    }
