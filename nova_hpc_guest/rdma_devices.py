# SPDX-License-Identifier: Apache-2.0
"""RDMA devices that programs can use, without those that only reach the planes of a device.

A multi-plane adapter (ConnectX-8 on Quantum-X800) has a sub-device of type SMI beside its RDMA
device. It has a port for each plane, takes only management packets, and has no verbs (Linux 6.11,
``RDMA_DEVICE_TYPE_SMI``). Netlink shows the type and sysfs does not. In sysfs such a device has
NVIDIA's name for it, or several ports with the GID of the port that the planes form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from .files import Root

FOLDER: Final = "/sys/class/infiniband"
_SMI: Final = re.compile(r"smi\d{1,4}", re.ASCII)


def find_smi_devices(devices: Mapping[str, Sequence[str | None]]) -> frozenset[str]:
    """Find the devices of type SMI among the RDMA devices of one PCI function.

    :param devices: name of a device -> the first GID of each of its ports; None if unknown.
    :returns: their names.
    """
    return frozenset(
        name
        for name, gids in devices.items()
        if _SMI.fullmatch(name) or _is_planes_of_another(name, gids, devices)
    )


def _is_planes_of_another(
    name: str, gids: Sequence[str | None], devices: Mapping[str, Sequence[str | None]]
) -> bool:
    # Ports of any other device have GUIDs of their own.
    if len(gids) < 2 or len(set(gids)) != 1 or gids[0] is None:
        return False
    return any(
        list(gids[:1]) == list(others) for sibling, others in devices.items() if sibling != name
    )


def list_rdma_devices(root: Root) -> list[str]:
    """List the names of this machine's RDMA devices, sorted, except devices of type SMI."""
    functions: dict[str, dict[str, list[str | None]]] = {}
    names = root.names(FOLDER)
    for name in names:
        function = root.link(f"{FOLDER}/{name}") or name
        gids = [root.text(f"{FOLDER}/{name}/ports/{port}/gids/0") for port in _ports(root, name)]
        functions.setdefault(function.rpartition("/")[0] or name, {})[name] = gids
    smi = {name for devices in functions.values() for name in find_smi_devices(devices)}
    return [name for name in names if name not in smi]


def _ports(root: Root, name: str) -> list[str]:
    return [port for port in root.names(f"{FOLDER}/{name}/ports") if port.isdigit()]
