# SPDX-License-Identifier: Apache-2.0
"""The time of planned work, as operators type it."""

from __future__ import annotations

import argparse
import datetime
from typing import Final

from nova_hpc_common.wire.planned_work import format_planned_time

_EXAMPLE: Final = "2026-12-04T08:00Z"
#: A later time is a mistake in the year.
_LONGEST: Final = datetime.timedelta(days=366)


def parse_planned_time(text: str) -> str:
    """Read a future time with its time zone; returns it as owners read it, in UTC.

    :raises argparse.ArgumentTypeError: it is no such time. The error contains the cure.
    """
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no time like {_EXAMPLE}") from error
    if moment.tzinfo is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} has no time zone: add Z for UTC, or an offset like +01:00"
        )
    wait = moment - datetime.datetime.now(datetime.UTC)
    if wait <= datetime.timedelta(0):
        raise argparse.ArgumentTypeError(f"{text!r} is in the past")
    if wait > _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is more than a year ahead")
    return format_planned_time(moment)
