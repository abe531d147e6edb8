# SPDX-License-Identifier: Apache-2.0
"""Processes of the host that have a GPU or disk open: its driver has to keep it until they end."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.tenancy.open_files import find_open_files
from nova_hpc.topology import block_devices, classes
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import PciFunction

_MINOR: Final = re.compile(r"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE | re.ASCII)
_DRM: Final = re.compile(r"(?:card|renderD)\d{1,4}", re.ASCII)
_MOST: Final = 4


@attrs.frozen
class DeviceUsers:
    """The processes that have one device open, or the reason why they are unknown."""

    #: ``process 1123 (nvidia-persiste) has /dev/nvidia0 open``.
    processes: tuple[str, ...] = ()
    #: Why there may be more; None if all were seen.
    unknown: str | None = None

    @property
    def text(self) -> str:
        """The processes as a sentence without its full stop; "" if none has the device open."""
        words = list(self.processes[:_MOST])
        if len(self.processes) > _MOST:
            words.append(f"and {len(self.processes) - _MOST} more")
        if self.unknown is not None:
            words.append(f"whether a process has it open is unknown ({self.unknown})")
        return ", ".join(words)


def find_device_users(
    root: Path | None, functions: Iterable[PciFunction]
) -> Mapping[str, DeviceUsers]:
    """Find the processes with devices open of NVIDIA's driver, a DRM driver or a driver of disks.

    :param root: the folder with ``proc`` and ``sys``; None if unknown, with an empty result.
    :returns: address -> users, of functions on such a driver.
    """
    if root is None:
        return {}
    tree = FileTree(root)
    blocks = None
    with contextlib.suppress(FileError):
        blocks = block_devices.read_block_devices(tree)
    nodes = {
        function.address: _device_nodes(tree, function, blocks)
        for function in functions
        if function.driver is not None and not function.on_vfio
    }
    wanted = {path for paths in nodes.values() for path in paths or ()}
    opened, closed = find_open_files(root, wanted) if wanted else ({}, 0)
    users = {}
    for address, paths in nodes.items():
        if paths is None:
            users[address] = DeviceUsers(unknown="its device files cannot be read")
            continue
        processes = [word for path in paths for word in opened.get(path, ())]
        unknown = None
        if paths and closed:
            unknown = f"{closed} of the host cannot be looked at; run the command as root"
        users[address] = DeviceUsers(tuple(processes), unknown)
    return users


def _device_nodes(
    tree: FileTree, function: PciFunction, blocks: Mapping[str, frozenset[str]] | None
) -> list[str] | None:
    """Return the files in /dev of a function; None if they cannot be read.

    :param blocks: block device -> its functions; None if unknown.
    """
    if blocks is None and classes.is_storage(function.class_code):
        return None
    try:
        paths = [
            f"/dev/dri/{name}"
            for name in tree.names(f"/sys/bus/pci/devices/{function.address}/drm")
            if _DRM.fullmatch(name)
        ]
        names = [name for name, places in (blocks or {}).items() if function.address in places]
        paths += block_devices.disk_files_of(tree, function.address, names)
        text = tree.text(f"/proc/driver/nvidia/gpus/{function.address}/information")
    except FileError:
        return None
    minor = _MINOR.search(text or "")
    return [f"/dev/nvidia{minor[1]}", *paths] if minor else paths
