# SPDX-License-Identifier: Apache-2.0
"""Sets of small numbers as text: ``1-3,7``, as in host lists and CPU lists."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from nova_hpc_common.wire.version import WireError, show_json_value

#: The highest number in a set: a text of few bytes must not fill a memory.
MOST: Final = 100_000

_PART: Final = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", re.ASCII)


def format_number_ranges(numbers: Collection[int]) -> str:
    """Return the shortest text for a set of numbers, such as ``1-3,7``; "" for the empty set."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def parse_number_ranges(text: object, lowest: int = 1) -> frozenset[int]:
    """Parse a text such as ``1-3,7`` into numbers, each from *lowest* to :data:`MOST`.

    :raises WireError: *text* is not such a list.
    """
    if not isinstance(text, str) or not text:
        raise WireError(f"{show_json_value(text)} is no list of numbers such as 1-3,7")
    numbers: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise WireError(f"{show_json_value(text)} is no list of numbers such as 1-3,7")
        low = int(match[1])
        high = int(match[2] or low)
        if not lowest <= low <= high <= MOST:
            within = f"within {lowest} to {MOST}, low to high"
            raise WireError(f"{show_json_value(part)} is no range {within}")
        numbers.update(range(low, high + 1))
    return frozenset(numbers)
