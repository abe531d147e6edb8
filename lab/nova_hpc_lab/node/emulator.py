# SPDX-License-Identifier: Apache-2.0
"""The QEMU that emulates the node: newer than Debian 12 and its backports have.

Up to 10.0, QEMU now and then leads a processor's write to a device astray while
another thread moves a device's window (seen with Debian's 10.0.2 and 10.0.13). A
lost end of interrupt or doorbell freezes the node, and a write that lands in
another device ends QEMU: ten of fifteen starts of the node of the shape
``mirror``. With 11.1 none of eleven did. Debian has it for its next release only, so it is
unpacked into the cache with the libraries that it needs, and started by its own
loader; nothing of it is installed.
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
#: ns between which both are read; a thousandth of the sample would be too coarse.
_NARROW: Final = 20_000


class EmulatorError(LabError):
    """There is no emulator; the text says what to do."""


@attrs.frozen
class Emulator:
    """An unpacked QEMU."""

    root: Path

    def argv(self) -> tuple[str, ...]:
        """The beginning of its command line, up to its first own option."""
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

    :param tell: called when it has to be fetched.
    :raises LabError: it cannot be had; the text names the mirror.
    """
    folder = paths.cache / "node"

    def unpack(target: Path) -> None:
        tell("QEMU for the node (only once)", None)
        backports = f"{_SUITE}-backports"
        options = ["--variant=extract", "--mode=root"]
        options += [f"--include={','.join(f'{name}/{backports}' for name in _PACKAGES)}"]
        # Unpacked only, so what it depends on comes from there, too.
        options += [f'--aptopt=APT::Default-Release "{backports}"']
        debian.mmdebstrap(
            options, _SUITE, (_SUITE, backports), str(target / "root"), folder / "build.log"
        )

    cache.entry(folder, _NAME, unpack)
    cache.remove_others(folder, "emulator-", _NAME)


def find(paths: Paths) -> Emulator:
    """The emulator that :func:`prepare` unpacked.

    :raises EmulatorError: it was not called yet.
    """
    folder = paths.cache / "node" / _NAME
    if not (folder / "manifest.json").exists():
        raise EmulatorError("there is no emulator of the node yet; run: nova-hpc lab up")
    return Emulator(folder / "root")


def frequency_khz() -> int | None:
    """Frequency of the host's time-stamp counter in kHz, measured; None where it cannot be.

    The emulated processor shows the host's counter. A kernel that measures its
    frequency against emulated timers is wrong by a factor when the host is busy,
    and its clock then runs too fast or too slow; so it is told.
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
            # The page cannot be given back while a pointer into it exists.
            del start
    if first is None or last is None:
        return None
    found = (last[1] - first[1]) * 1_000_000 // (last[0] - first[0])
    # Anything else is no counter that a clock could be made of.
    return found if 100_000 < found < 10_000_000 else None


def _both(read: Callable[[], int]) -> tuple[int, int] | None:
    """Time in ns and counter at the same moment; None on a machine too busy for that."""
    for _ in range(_TRIES):
        before, ticks, after = time.monotonic_ns(), read(), time.monotonic_ns()
        if after - before < _NARROW:
            return (before + after) // 2, ticks
    return None
