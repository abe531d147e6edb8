# SPDX-License-Identifier: Apache-2.0
"""The QEMU that emulates the node: newer than the one in Debian 12 and its backports.

Up to 10.0, QEMU sometimes sends a processor's write to the wrong device while another thread moves
a device's window (seen with Debian's 10.0.2 and 10.0.13). A lost end of interrupt or doorbell
freezes the node, and a write to another device ends QEMU. This happened in ten of fifteen starts of
the shape ``mirror``, and with 11.1 in none of eleven. Debian has 11.1 only for its next release. So
the package is unpacked into the cache with its libraries, and started by its own loader; it is not
installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.node import cache, debian
from nova_hpc_lab.node.contract import Progress
from nova_hpc_lab.state import Paths

_SUITE: Final = "trixie"
_PACKAGES: Final = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios")
_NAME: Final = f"emulator-{cache.key_of('1', _SUITE, *_PACKAGES)}"
_LIBRARIES: Final = "usr/lib/x86_64-linux-gnu"

# rdtsc; shl rdx, 32; or rax, rdx; ret
_CODE: Final = bytes.fromhex("0f31 48c1e220 4809d0 c3")
_SAMPLE: Final = 0.1
_TRIES: Final = 1000
#: Longest time in ns for one reading of both clocks; a thousandth of the sample is too coarse.
_NARROW: Final = 20_000


class EmulatorError(LabError):
    """The QEMU for virtual nodes is missing; the text contains the cure."""


@attrs.frozen
class Emulator:
    """An unpacked QEMU with its own libraries."""

    root: Path

    def argv(self) -> tuple[str, ...]:
        """Return the beginning of QEMU's command line, up to its first own option."""
        libraries = self.root / _LIBRARIES
        data = (self.root / "usr/share" / name for name in ("qemu", "seabios"))
        return (
            str(libraries / "ld-linux-x86-64.so.2"),
            *("--library-path", str(libraries)),
            str(self.root / "usr/bin/qemu-system-x86_64"),
            *(word for folder in data for word in ("-L", str(folder))),
        )


def prepare(paths: Paths, tell: Progress) -> None:
    """Make sure that the emulator is in the cache.

    :param tell: called if it has to be fetched.
    :raises LabError: it cannot be fetched; the text names the mirror.
    """
    folder = paths.cache / "node"

    def unpack(target: Path) -> None:
        tell("QEMU for the node (only once)", None)
        backports = f"{_SUITE}-backports"
        options = ["--variant=extract", "--mode=root"]
        options += [f"--include={','.join(f'{name}/{backports}' for name in _PACKAGES)}"]
        # It is only unpacked, so its libraries have to come from the same suite.
        options += [f'--aptopt=APT::Default-Release "{backports}"']
        debian.mmdebstrap(
            options, _SUITE, (_SUITE, backports), str(target / "root"), folder / "build.log"
        )

    cache.entry(folder, _NAME, unpack)
    cache.remove_others(folder, "emulator-", _NAME)


def find(paths: Paths) -> Emulator:
    """Return the emulator that :func:`prepare` has unpacked.

    :raises EmulatorError: :func:`prepare` was not called yet.
    """
    folder = paths.cache / "node" / _NAME
    if not (folder / "manifest.json").exists():
        raise EmulatorError("there is no emulator of the node yet; run: nova-hpc lab up")
    return Emulator(folder / "root")


def frequency_khz() -> int | None:
    """Measure the frequency of the host's time-stamp counter in kHz; None if that is impossible.

    The emulated processor shows the host's counter. A kernel that measures its frequency with
    emulated timers on a busy host gets a value that is wrong by a factor. Its clock then runs too
    fast or too slow. So the kernel gets the frequency on its command line.
    """
    if platform.machine() != "x86_64":
        return None
    with contextlib.suppress(OSError, ValueError):
        return _measure()
    return None


def _measure() -> int | None:
    protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    with mmap.mmap(-1, mmap.PAGESIZE, prot=protection) as page:
        page.write(_CODE)
        start = ctypes.c_char.from_buffer(page)
        try:
            read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(start))
            first = _both(read)
            time.sleep(_SAMPLE)
            last = _both(read)
        finally:
            # The page cannot be closed while a pointer into it exists.
            del start
    if first is None or last is None:
        return None
    found = (last[1] - first[1]) * 1_000_000 // (last[0] - first[0])
    # A kernel cannot use a counter with any other frequency as a clock.
    return found if 100_000 < found < 10_000_000 else None


def _both(read: Callable[[], int]) -> tuple[int, int] | None:
    """Read time in ns and counter at the same moment; None on a machine too busy for that."""
    for _ in range(_TRIES):
        before, ticks, after = time.monotonic_ns(), read(), time.monotonic_ns()
        if after - before < _NARROW:
            return (before + after) // 2, ticks
    return None
