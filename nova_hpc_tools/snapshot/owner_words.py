# SPDX-License-Identifier: Apache-2.0
"""The metadata with which owners give the end of a server, and agree to its move. Pure.

Owners write them without a right of operators: ``openstack server set --property
hpc:until=2026-12-04T08:00Z SERVER``. Nova lets no project set those of others' servers.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Final

from nova_hpc.placement import flavor as hpc_flavor

UNTIL: Final = "hpc:until"
#: The same word as the flavor's key.
MOVABLE: Final = hpc_flavor.MOVABLE

_EXAMPLE: Final = "2026-12-04T08:00Z"


class WrongTimeError(Exception):
    """A text is no time with a time zone. Its text is the reason with the cure."""


def parse_zoned_time(text: str) -> datetime.datetime:
    """Read a time in ISO 8601 with its time zone; returns it in UTC.

    :raises WrongTimeError: it has another form, no time zone, or does not exist.
    """
    try:
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(datetime.UTC)
    except (ValueError, OverflowError) as error:
        raise WrongTimeError(f"{text!r} is no time like {_EXAMPLE}") from error
    raise WrongTimeError(f"{text!r} has no time zone: add Z for UTC, or an offset like +01:00")


def may_move(owner: str | None, extra_specs: Mapping[str, str]) -> bool:
    """Whether the owner of a server has agreed to its moves.

    :param owner: the server's own metadata; it outranks the flavor.
    """
    word = extra_specs.get(MOVABLE) if owner is None else owner
    return word == hpc_flavor.YES
