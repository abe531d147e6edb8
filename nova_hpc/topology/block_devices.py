# SPDX-License-Identifier: Apache-2.0
"""Block devices of the host, and the PCI functions that their data are on."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, FileTree

_BLOCK: Final = "/sys/class/block"
_DEV: Final = "/dev/"
_ADDRESS: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
#: sysfs lists an NVMe disk with several controllers below its subsystem, not below a controller.
_SUBSYSTEM: Final = re.compile(r".*/nvme-subsys\d+(?=/)", re.ASCII)
_NAMESPACE: Final = re.compile(r"nvme(\d+n\d+)", re.ASCII)


def functions_of_block_device(tree: FileTree, name: str) -> frozenset[str]:
    """Find the PCI functions below a disk, a partition, or a device made of them (LVM, RAID).

    :param name: as in ``/sys/class/block``; "" has none.
    :returns: their PCI addresses.
    :raises FileError: sysfs cannot be read.
    """
    places, names, seen = [], [name] if name else [], set()
    while names:
        seen.add(part := names.pop())
        place = tree.resolve(f"{_BLOCK}/{part}") or ""
        places.append(place)
        if (subsystem := _SUBSYSTEM.match(place)) is not None:
            folder = subsystem[0]
            places += [tree.resolve(f"{folder}/{entry}") or "" for entry in tree.names(folder)]
        # The slaves of a partition are in the folder of its disk.
        for folder in (place, place.rpartition("/")[0]):
            names += [slave for slave in tree.names(f"{folder}/slaves") if slave not in seen]
    return frozenset(
        part for place in places for part in place.split("/") if _ADDRESS.fullmatch(part)
    )


def functions_of_path(tree: FileTree, path: str) -> frozenset[str]:
    """Find the PCI functions of the block device at *path*, links followed. Never raises.

    :returns: their PCI addresses; empty if *path* is no block device or is unreadable.
    """
    try:
        place = tree.resolve(path) or ""
        name = place.removeprefix(_DEV) if place.startswith(_DEV) else ""
        return functions_of_block_device(tree, name)
    except FileError:
        return frozenset()


def read_block_devices(tree: FileTree) -> dict[str, frozenset[str]]:
    """Return name of each block device of the host -> addresses of its PCI functions.

    :raises FileError: sysfs cannot be read.
    """
    return {name: functions_of_block_device(tree, name) for name in tree.names(_BLOCK)}


def disk_files_of(tree: FileTree, address: str, names: Iterable[str]) -> list[str]:
    """List the paths in ``/dev`` of the disks of a PCI function.

    :param names: its block devices.
    :raises FileError: sysfs cannot be read.
    """
    names = tuple(names)
    generic = [f"ng{part[1]}" for name in names if (part := _NAMESPACE.fullmatch(name))]
    return [
        f"{_DEV}{name}" for name in (*names, *generic, *tree.names(f"{DEVICES}/{address}/nvme"))
    ]
