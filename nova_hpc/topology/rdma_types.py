# SPDX-License-Identifier: Apache-2.0
"""RDMA devices that programs can use, without those that only reach the planes of a device.

A multi-plane adapter (ConnectX-8 on Quantum-X800) has a sub-device of type SMI beside its RDMA
device. It has a port for each plane, takes only management packets, and has no verbs (Linux 6.11,
``RDMA_DEVICE_TYPE_SMI``). Netlink shows the type and sysfs does not. In sysfs such a device has
NVIDIA's name for it, or several ports with the GID of the port that the planes form.

The guest's wheel has a copy, :mod:`nova_hpc_guest.rdma_devices`; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

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
