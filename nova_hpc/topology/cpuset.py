# SPDX-License-Identifier: Apache-2.0
"""Sets of CPUs in the notations of the kernel and of hwloc.

No number is trusted: a mask or list beyond :data:`MOST` is an error and allocates no
memory.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Final

#: The kernel's own limit is 8192 (CONFIG_NR_CPUS on x86).
MOST: Final = 1 << 14

_RANGE: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?", re.ASCII)
_WORD: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{1,8})", re.ASCII)
#: Start of hwloc's text for a bitmap without an end.
_ENDLESS: Final = "0xf...f"


@functools.lru_cache(maxsize=256)
def parse_list(text: str) -> frozenset[int]:
    """Read a list of CPUs as in the kernel's ``cpulist``: ``0-3,8``. Empty text is the empty set.

    :raises ValueError: any other form, or a number of :data:`MOST` or more.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{text[:40]!r} is not a list of CPUs like 0-3,8")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first or last >= MOST:
            raise ValueError(f"{part!r} is no possible range of CPUs")
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


@functools.lru_cache(maxsize=256)
def parse_mask(text: str) -> frozenset[int]:
    """Read a mask of the kernel: 32-bit words, highest first: ``000f,ffffffff``.

    :raises ValueError: any other form, or a mask of more than :data:`MOST` bits.
    """
    return _parse_hex_words(text.strip().split(","), text)


def parse_bitmap(text: str) -> frozenset[int] | None:
    """Read a bitmap of hwloc: ``0x000000ff,,0x0``; None if it has no end.

    :raises ValueError: any other form, or a bitmap of more than :data:`MOST` bits.
    """
    words = text.strip().split(",")
    if words[0] == _ENDLESS:
        return None
    return _parse_hex_words([word or "0" for word in words], text)


def _parse_hex_words(words: list[str], text: str) -> frozenset[int]:
    if len(words) * 32 > MOST:
        raise ValueError(f"a mask of {len(words)} words is longer than any machine has CPUs")
    value = 0
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None:
            raise ValueError(f"{text[:40]!r} is not a mask of CPUs")
        value = value << 32 | int(match[1], 16)
    return frozenset(bit for bit in range(value.bit_length()) if value >> bit & 1)


def format_list(cpus: Iterable[int]) -> str:
    """Format a set of CPUs as the kernel, Nova and libvirt read it: ``0-3,8``; "" if it is
    empty.
    """
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
