# SPDX-License-Identifier: Apache-2.0
"""What ``nova-hpc doctor`` reads of a host besides its inventory: who else sets it up, and how."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from nova_hpc.cli import include_files
from nova_hpc.offer import host_files
from nova_hpc.offer.doctor_host import HostFacts
from nova_hpc.topology.files import FileError, Tree

#: The kernel found no address space (IORESOURCE_UNSET, include/linux/ioport.h).
_UNSET: Final = 0x20000000
_RESOURCE: Final = re.compile(r"0x[0-9a-f]+ 0x[0-9a-f]+ (0x[0-9a-f]+)")
_BARS: Final = 6
#: Where hosts are told at boot to write files of sysfs.
_BOOT: Final = (
    "etc/udev/rules.d/*.rules",
    "etc/systemd/system/*.service",
    "etc/tmpfiles.d/*.conf",
    "etc/rc.local",
    "etc/sysfs.conf",
    "etc/sysfs.d/*.conf",
)
_NUMVFS: Final = "sriov_numvfs"


def read(root: Path | None, addresses: Iterable[str]) -> HostFacts:
    """Read it; what cannot be read is not there.

    :param root: where the host's files are; None: nobody knows.
    :param addresses: the functions that are offered, and the adapters that they are of.
    """
    if root is None:
        return HostFacts()
    tree, known = Tree(root), tuple(addresses)
    prepared = [path for path in host_files.ALL if host_files.is_owned(_text(root / path))]
    return HostFacts(
        unassigned={
            address: bars for address in known if (bars := tuple(_unassigned(tree, address)))
        },
        overrides=dict(_overrides(root, known)),
        numvfs=tuple(_writers(root, prepared)) if _ours(root, prepared) else (),
        not_booted=tuple(_missing(root)) if host_files.GRUB in prepared else (),
    )


def _text(path: Path) -> str:
    try:
        return include_files.read(path) or ""
    except include_files.IncludeError:
        return ""


def _unassigned(tree: Tree, address: str) -> Iterator[int]:
    try:
        lines = (tree.text(f"/sys/bus/pci/devices/{address}/resource") or "").splitlines()
    except FileError:
        return
    for index, line in enumerate(lines[:_BARS]):
        match = _RESOURCE.fullmatch(line.strip())
        if match is not None and int(match[1], 16) & _UNSET:
            yield index


def _overrides(root: Path, addresses: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What driverctl binds at boot: a file for each device, ``pci-`` and its address."""
    for address in addresses:
        driver = _text(root / f"etc/driverctl.d/pci-{address}").strip()
        if driver:
            yield address, driver


def _ours(root: Path, prepared: Iterable[str]) -> bool:
    return any(_NUMVFS in _text(root / path) for path in prepared)


def _writers(root: Path, prepared: Iterable[str]) -> Iterator[str]:
    mine = {root / path for path in prepared}
    for pattern in _BOOT:
        for path in sorted(root.glob(pattern)):
            if path not in mine and _NUMVFS in _text(path):
                yield f"/{path.relative_to(root)}"


def _missing(root: Path) -> Iterator[str]:
    """Words of the prepared command line without which the kernel was started."""
    now = _text(root / "proc/cmdline").split()
    match = re.search(r'"\$GRUB_CMDLINE_LINUX ([^"]*)"', _text(root / host_files.GRUB))
    if now and match is not None:
        yield from (word for word in match[1].split() if word not in now)
