# SPDX-License-Identifier: Apache-2.0
"""Cleans the memory that a PCI function shows in its BARs, and checks that it is memory.

Only *prefetchable* BARs are written: reading them has no side effects, and writes may
be merged, as with memory. Other BARs are registers. Network adapters and storage controllers
have registers in prefetchable BARs, too, so they are refused.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nova_hpc.tenancy.hygiene.clean_errors import UnableError, UncleanError

_MEMORY = 0x200  # IORESOURCE_MEM
_PREFETCH = 0x2000  # IORESOURCE_PREFETCH
_BARS = 6
_MIB = 1 << 20
#: Bytes that are mapped at once.
_WINDOW = 256 * _MIB
#: A BAR up to this size is read back completely; of a larger one, one MiB of each _STRIDE.
_WHOLE = 1024 * _MIB
_STRIDE = 64
#: Base classes whose prefetchable BARs are registers: storage, network.
_REGISTERS = ("0x01", "0x02")


def prefetchable_bars_of(text: str) -> dict[int, int]:
    """Return number -> bytes of the prefetchable BARs, from a ``resource`` file of sysfs.

    :raises UnableError: a BAR has no address.
    """
    sizes = {}
    for number, line in enumerate(text.splitlines()[:_BARS]):
        words = line.split()
        if len(words) != 3:
            raise UnableError("its resource file cannot be read")
        first, last, flags = (int(word, 16) for word in words)
        if not flags & _MEMORY or not flags & _PREFETCH:
            continue
        if not first:
            raise UnableError(f"BAR {number} has no address in the service VM")
        sizes[number] = last - first + 1
    return sizes


def memory_pattern_of(number: int, size: int) -> bytes:
    """Return the bytes for the MiB of that number; each MiB gets different ones."""
    word = (0x9E3779B97F4A7C15 * (number + 1)) & (2**64 - 1)
    return (word.to_bytes(8, "little") * (size // 8 + 1))[:size]


def clean(device: Path, pins: Mapping[str, Any]) -> dict[str, Any]:
    """Write a pattern to all memory of a device, read it back, and leave zeros.

    :param device: its folder in sysfs.
    :param pins: unused: no pin is about memory.
    :returns: the cleaned amount, in bytes, and the BARs.
    :raises UncleanError: the device does not keep the pattern.
    :raises UnableError: its memory cannot be reached, or it has none.
    """
    kind = (device / "class").read_text().strip()
    if kind.startswith(_REGISTERS):
        raise UnableError(f"a device of class {kind} has registers in its BARs, not memory")
    bar_sizes = prefetchable_bars_of((device / "resource").read_text())
    if not bar_sizes:
        raise UnableError("it has no prefetchable BAR: it shows no memory")
    (device / "enable").write_text("1")
    try:
        for number, size in bar_sizes.items():
            path = device / f"resource{number}_wc"
            if not path.exists():
                path = device / f"resource{number}"
            _clean_bar(path, number, size)
    finally:
        (device / "enable").write_text("0")
    return {"bytes": sum(bar_sizes.values()), "bars": sorted(bar_sizes)}


def _clean_bar(path: Path, number: int, size: int) -> None:
    """Write one BAR in windows and read it back, first with a pattern and then with zeros.

    :raises UnableError: the BAR cannot be opened or mapped.
    :raises UncleanError: it does not keep the written bytes.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_SYNC)
    except OSError as error:
        raise UnableError(f"BAR {number} cannot be opened: {error.strerror}") from error
    try:
        for start in range(0, size, _WINDOW):
            length = min(_WINDOW, size - start)
            try:
                window = mmap.mmap(handle, length, offset=start)
            except (OSError, ValueError) as error:
                raise UnableError(f"BAR {number} cannot be mapped: {error}") from error
            with window:
                _write_and_read_back(window, start, number, size, blank=False)
                _write_and_read_back(window, start, number, size, blank=True)
    finally:
        os.close(handle)


def _write_and_read_back(
    window: mmap.mmap, start: int, number: int, size: int, blank: bool
) -> None:
    """Write all of a window, then read it back."""
    places = range(0, len(window), _MIB)
    for place in places:
        length = min(_MIB, len(window) - place)
        window[place : place + length] = _expected_bytes_of(start + place, length, blank)
    for place in places:
        if size > _WHOLE and (start + place) // _MIB % _STRIDE:
            continue
        length = min(_MIB, len(window) - place)
        if window[place : place + length] != _expected_bytes_of(start + place, length, blank):
            what = "zeros are" if blank else "a pattern is"
            raise UncleanError(
                f"BAR {number}, MiB {(start + place) // _MIB}: {what} not read as written"
            )


def _expected_bytes_of(offset: int, length: int, blank: bool) -> bytes:
    return bytes(length) if blank else memory_pattern_of(offset // _MIB, length)
