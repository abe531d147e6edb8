# SPDX-License-Identifier: Apache-2.0
"""Drivers that give a function by VFIO: the kernel's word, never the driver's name.

A function has ``vfio-dev/`` below it while its driver offers it by VFIO (Linux 6.1 and
later). Such a driver is ``vfio-pci``; a variant of it, made for some ids and bound like it
(``nvgrace_gpu_vfio_pci``, without which a Grace GPU shows the guest no memory); or the
vendor's own, which serves the host as well and gives parts of a card away (a vGPU).

An older kernel does not say so. There a driver speaks VFIO whose module ``modules.alias``
lists for ``vfio_pci:``, the bus of variants (Linux 5.16 and later); where that file cannot
be seen, as in most captures, one of the variants of the kernel's own tree.
"""

from __future__ import annotations

import enum
import fnmatch
import os
import re
import weakref
from typing import Final

import attrs

from nova_hpc.topology.files import FileError, FileTree

#: The driver for whatever has no variant.
GENERIC: Final = "vfio-pci"
#: ``drivers/vfio/pci`` of Linux 6.12.
_IN_TREE: Final = frozenset(
    f"{name}_vfio_pci" for name in ("hisi_acc", "mlx5", "nvgrace_gpu", "pds", "qat", "virtio", "xe")
)
_RELEASE: Final = "/proc/sys/kernel/osrelease"
_CLASS: Final = "/sys/class/vfio-dev"
_LINE: Final = re.compile(rb"^alias vfio_pci:[^\n]*\n", re.MULTILINE)
_WORDS: Final = re.compile(r"alias (vfio_pci:\S{1,200}) ([A-Za-z0-9_-]{1,64})", re.ASCII)
_LARGEST: Final = 1 << 24


class Vfio(enum.Enum):
    """The part that a function's driver plays for VFIO."""

    #: It serves the host, or there is no driver.
    NO = "no"
    #: It is there for guests alone.
    GUEST = "guest"
    #: It serves the host as well: it drives the physical function, too.
    VENDOR = "vendor"


@attrs.frozen
class Kernel:
    """A kernel's word about its VFIO drivers."""

    #: Functions on VFIO have ``vfio-dev/``.
    says: bool
    #: Pattern of an alias and its module, as ``modules.alias`` has them; None: not to be seen.
    aliases: tuple[tuple[str, str], ...] | None

    def knows(self, driver: str) -> bool:
        """Whether *driver*, whose function has no ``vfio-dev/``, speaks VFIO."""
        if driver == GENERIC:
            return True
        if self.says:
            return False
        if self.aliases is not None:
            return _kernel_module_of(driver) in {module for _, module in self.aliases}
        return is_known_vfio_driver(driver)

    def variant(self, alias: str) -> str | None:
        """The variant for a function; None: it has none.

        Of several the one with the fewest wildcards, as libvirt takes it.

        :param alias: see :func:`alias_of`.
        """
        fits = [
            (pattern.count("*"), module)
            for pattern, module in self.aliases or ()
            if fnmatch.fnmatchcase(alias, pattern)
        ]
        module = min(fits)[1] if fits else _kernel_module_of(GENERIC)
        return None if module == _kernel_module_of(GENERIC) else module


def is_known_vfio_driver(driver: str | None) -> bool:
    """Whether *driver* is vfio-pci or a variant of Linux's own tree, where nothing else tells."""
    return driver is not None and (driver == GENERIC or _kernel_module_of(driver) in _IN_TREE)


def alias_of(
    vendor: str | None,
    product: str | None,
    subsystem: tuple[str | None, str | None],
    class_code: str | None,
) -> str:
    """A function's ids as the text that the kernel compares with the aliases of variants."""
    code = (class_code or "").ljust(6, "0").upper()
    numbers = (vendor, product, *subsystem)
    ids = [f"{number or '':0>8}".upper() for number in numbers]
    return "vfio_pci:v{}d{}sv{}sd{}bc{}sc{}i{}".format(*ids, code[:2], code[2:4], code[4:])


_kernels: Final[weakref.WeakKeyDictionary[FileTree, Kernel]] = weakref.WeakKeyDictionary()


def read_vfio_kernel(tree: FileTree) -> Kernel:
    """Read the word of a machine's kernel, once for each reading of it. Never raises."""
    if tree not in _kernels:
        _kernels[tree] = Kernel(tree.exists(_CLASS), _read_modules_alias(tree))
    return _kernels[tree]


def vfio_of_driver(tree: FileTree, driver: str | None, names: object, parent: str | None) -> Vfio:
    """The part that a function's driver plays for VFIO.

    :param names: what its ``vfio-dev/`` holds, if anything.
    :param parent: of a virtual function: the driver of its physical function.
    """
    if driver is None or not (names or read_vfio_kernel(tree).knows(driver)):
        return Vfio.NO
    return Vfio.VENDOR if driver == parent and driver != GENERIC else Vfio.GUEST


def _read_modules_alias(tree: FileTree) -> tuple[tuple[str, str], ...] | None:
    if not tree.exists(_RELEASE):
        return None
    try:
        release = tree.text(_RELEASE)
        if not release or not re.fullmatch(r"[\w.+~-]{1,128}", release, re.ASCII):
            return None
        data = tree.read(f"/lib/modules/{release}/modules.alias", _LARGEST, _read_vfio_lines)
    except FileError:
        return None
    if data is None:
        return None
    return tuple(match.groups() for match in _WORDS.finditer(data.decode("ascii", "replace")))  # type: ignore[misc]


class _LastAliases:
    """The last file and what was taken of it; replaced as one, so safe between threads."""

    last: tuple[tuple[int, ...], bytes] | None = None


def _read_vfio_lines(handle: int, limit: int) -> bytes:
    """The lines about VFIO of an open ``modules.alias``, of which each reading would read MBs."""
    status = os.fstat(handle)
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if _LastAliases.last is None or _LastAliases.last[0] != key:
        data = b""
        while len(data) < limit and (piece := os.read(handle, min(1 << 20, limit - len(data)))):
            data += piece
        _LastAliases.last = (key, b"".join(_LINE.findall(data)))
    return _LastAliases.last[1]


def _kernel_module_of(driver: str) -> str:
    return driver.replace("-", "_")
