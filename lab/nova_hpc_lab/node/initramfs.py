# SPDX-License-Identifier: Apache-2.0
"""Small initial RAM file systems, made without tools and without root.

The node and the tenant's guest boot from archives of a few megabytes, with a static busybox, one
script and a few kernel modules. In software emulation, unpacking Debian's own archive of over 30 MB
takes longer than the rest of the boot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from nova_hpc.tenancy.stage import archive
from nova_hpc.tenancy.stage.archive import CpioArchive, add_tree, base_archive, plain_module
from nova_hpc_lab.errors import LabError

__all__ = ["CpioArchive", "add_modules", "add_tree", "base_archive", "module_files", "plain_module"]


def module_files(modules: Path, names: Iterable[str]) -> list[Path]:
    """Return the files of kernel modules and of their dependencies, in loading order.

    See :func:`nova_hpc.tenancy.stage.archive.module_files`.

    :raises LabError: a module does not exist.
    """
    try:
        return archive.module_files(modules, names)
    except archive.ArchiveError as error:
        raise LabError(str(error)) from error


def add_modules(target: CpioArchive, modules: Path, names: Sequence[str]) -> None:
    """Put modules below ``modules/`` of the archive, and the order into ``modules/order``.

    :raises LabError: a module does not exist.
    """
    try:
        archive.add_modules(target, modules, names)
    except archive.ArchiveError as error:
        raise LabError(str(error)) from error
