# SPDX-License-Identifier: Apache-2.0
"""Drivers that offer a function by VFIO: the kernel reports it, the driver's name does not.

A function has ``vfio-dev/`` below it while its driver offers it by VFIO (Linux 6.1 and
later). There are three kinds of such drivers. The first is ``vfio-pci``. The second is a
variant of it, made for some ids and bound like it (a Grace GPU shows the guest no memory
without ``nvgrace_gpu_vfio_pci``). The third is the vendor's own driver, which also serves
the host and offers parts of a card (a vGPU).

An older kernel has no such folder. Its VFIO drivers are those whose module ``modules.alias``
lists for ``vfio_pci:``, the bus of variants (Linux 5.16 and later). If that file is missing,
as in most captures, the variants of the kernel's own tree count.
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

#: The driver for devices without a variant.
GENERIC: Final = "vfio-pci"
#: Variants in ``drivers/vfio/pci`` of Linux 6.12.
_IN_TREE: Final = frozenset(
    f"{name}_vfio_pci" for name in ("hisi_acc", "mlx5", "nvgrace_gpu", "pds", "qat", "virtio", "xe")
)
_RELEASE: Final = "/proc/sys/kernel/osrelease"
_CLASS: Final = "/sys/class/vfio-dev"
_LINE: Final = re.compile(rb"^alias vfio_pci:[^\n]*\n", re.MULTILINE)
_WORDS: Final = re.compile(r"alias (vfio_pci:\S{1,200}) ([A-Za-z0-9_-]{1,64})", re.ASCII)
_LARGEST: Final = 1 << 24


class Vfio(enum.Enum):
    """How the driver of a PCI function relates to VFIO."""

    #: The driver serves the host, or there is no driver.
    NO = "no"
    #: The driver serves only guests.
    GUEST = "guest"
    #: The driver also serves the host: it drives the physical function, too.
    VENDOR = "vendor"


@attrs.frozen
class Kernel:
    """A kernel's VFIO drivers: whether it reports them in sysfs, and patterns of its variants."""

    #: Functions on VFIO have ``vfio-dev/``.
    says: bool
    #: Pattern of an alias and its module, as in ``modules.alias``; None if it cannot be read.
    aliases: tuple[tuple[str, str], ...] | None

    def knows(self, driver: str) -> bool:
        """Whether *driver* offers VFIO although its function has no ``vfio-dev/``."""
        if driver == GENERIC:
            return True
        if self.says:
            return False
        if self.aliases is not None:
            return _kernel_module_of(driver) in {module for _, module in self.aliases}
        return is_known_vfio_driver(driver)

    def variant(self, alias: str) -> str | None:
        """Return the VFIO variant driver for a function; None if only vfio-pci matches.

        Of several it is the one with the fewest wildcards, as in libvirt.

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
    """Whether *driver* is vfio-pci or a variant in Linux's own tree, without other evidence."""
    return driver is not None and (driver == GENERIC or _kernel_module_of(driver) in _IN_TREE)


def alias_of(
    vendor: str | None,
    product: str | None,
    subsystem: tuple[str | None, str | None],
    class_code: str | None,
) -> str:
    """Format a function's ids as the text that the kernel compares with the aliases of variants."""
    code = (class_code or "").ljust(6, "0").upper()
    numbers = (vendor, product, *subsystem)
    ids = [f"{number or '':0>8}".upper() for number in numbers]
    return "vfio_pci:v{}d{}sv{}sd{}bc{}sc{}i{}".format(*ids, code[:2], code[2:4], code[4:])


_kernels: Final[weakref.WeakKeyDictionary[FileTree, Kernel]] = weakref.WeakKeyDictionary()


def read_vfio_kernel(tree: FileTree) -> Kernel:
    """Read the VFIO facts of a machine's kernel, once for each reading of it. Never raises."""
    if tree not in _kernels:
        _kernels[tree] = Kernel(tree.exists(_CLASS), _read_modules_alias(tree))
    return _kernels[tree]


def vfio_of_driver(tree: FileTree, driver: str | None, names: object, parent: str | None) -> Vfio:
    """Decide whether a function's driver is no VFIO driver, one for guests, or its vendor's own.

    :param names: the entries of its ``vfio-dev/``, if any.
    :param parent: for a virtual function: the driver of its physical function.
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
    """The cached ``modules.alias`` lines of the last kernel; replaced as one object, so
    thread-safe.
    """

    last: tuple[tuple[int, ...], bytes] | None = None


def _read_vfio_lines(handle: int, limit: int) -> bytes:
    """Read the lines about VFIO of an open ``modules.alias``, cached, because the file has MiBs."""
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
