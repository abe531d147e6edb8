# SPDX-License-Identifier: Apache-2.0
"""Processes of the host that have a GPU open: a driver gives up no device before they end."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import PciFunction

_MINOR: Final = re.compile(r"^Device Minor:\s*(\d{1,4})\s*$", re.MULTILINE | re.ASCII)
_DRM: Final = re.compile(r"(?:card|renderD)\d{1,4}", re.ASCII)
_MOST: Final = 4


@attrs.frozen
class DeviceUsers:
    """The users of one device."""

    #: ``process 1123 (nvidia-persiste) has /dev/nvidia0 open``.
    processes: tuple[str, ...] = ()
    #: Why there may be more; None: all were seen.
    unknown: str | None = None

    @property
    def text(self) -> str:
        """For people, a sentence without its full stop; "" if no process has it open."""
        words = list(self.processes[:_MOST])
        if len(self.processes) > _MOST:
            words.append(f"and {len(self.processes) - _MOST} more")
        if self.unknown is not None:
            words.append(f"whether a process has it open is unknown ({self.unknown})")
        return ", ".join(words)


def find_device_users(
    root: Path | None, functions: Iterable[PciFunction]
) -> Mapping[str, DeviceUsers]:
    """Address -> users, of functions that NVIDIA's driver or a DRM driver has.

    :param root: where ``proc`` and ``sys`` are; None: unknown, and nothing is said.
    """
    if root is None:
        return {}
    tree = FileTree(root)
    nodes = {
        function.address: _device_nodes(tree, function)
        for function in functions
        if function.driver is not None and not function.on_vfio
    }
    wanted = {path for paths in nodes.values() for path in paths or ()}
    opened, closed = _open_files(root, wanted) if wanted else ({}, 0)
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


def _device_nodes(tree: FileTree, function: PciFunction) -> list[str] | None:
    """The files in /dev of a function; None: they cannot be read."""
    try:
        paths = [
            f"/dev/dri/{name}"
            for name in tree.names(f"/sys/bus/pci/devices/{function.address}/drm")
            if _DRM.fullmatch(name)
        ]
        text = tree.text(f"/proc/driver/nvidia/gpus/{function.address}/information")
    except FileError:
        return None
    minor = _MINOR.search(text or "")
    return [f"/dev/nvidia{minor[1]}", *paths] if minor else paths


def _open_files(root: Path, wanted: set[str]) -> tuple[dict[str, list[str]], int]:
    """File -> the processes that have it open, and how many could not be looked at."""
    opened: dict[str, list[str]] = {}
    closed = 0
    for folder in sorted(root.glob("proc/[0-9]*"), key=lambda path: (len(path.name), path.name)):
        try:
            targets = {os.readlink(link) for link in (folder / "fd").iterdir()}  # noqa: PTH115
        except FileNotFoundError:
            continue  # it has ended
        except OSError:
            closed += 1
            continue
        for path in sorted(targets & wanted):
            opened.setdefault(path, []).append(
                f"process {folder.name} ({_name_of(folder)}) has {path} open"
            )
    return opened, closed


def _name_of(folder: Path) -> str:
    try:
        return (folder / "comm").read_text("utf-8", "replace").strip() or "?"
    except OSError:
        return "?"
