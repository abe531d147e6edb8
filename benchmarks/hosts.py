# SPDX-License-Identifier: Apache-2.0
"""The measured hosts, as objects of the engine, without Nova."""

from __future__ import annotations

from pathlib import Path

import attrs

from nova_hpc.placement.model import DevicePool, FreeHost, HostNode
from nova_hpc_common.level import Location
from nova_hpc_tools.site import lstopo

#: Base class and sub-class of 3D controllers, which the GPUs are.
_GPU_CLASS = "0302"


def place(index: int, switches: int, nodes: int = 2) -> Location:
    """The place of switch number *index* of a host, with a PCIe root for each switch."""
    node = index * nodes // switches
    return Location(
        numa=node,
        socket=node,
        root=f"pci0000:{0x40 + index:02x}",
        switches=(f"0000:{0x20 + index:02x}:00.0",),
    )


def eight_gpus(adapters: int = 0, functions: int = 0) -> FreeHost:
    """Two sockets, four switches with two GPUs each.

    :param adapters: number of physical functions, spread over the switches.
    :param functions: number of virtual functions of each.
    """
    pools = []
    for index in range(4):
        where = place(index, 4)
        for slot in range(2):
            name = f"0000:{0x40 + index:02x}:{slot:02x}.0"
            pools.append(DevicePool(name, name, where, 1, frozenset({"gpu"}), role="gpu"))
        for slot in range(index, adapters, 4):
            name = f"0000:{0x40 + index:02x}:{16 + slot // 4:02x}.0"
            pools.append(DevicePool(name, name, where, functions, frozenset({"vf"}), role="vf"))
    return FreeHost("host", tuple(pools), _nodes())


def from_lstopo(path: Path) -> FreeHost:
    """All GPUs of a machine, from the XML of hwloc's lstopo."""
    found = lstopo.read_lstopo_file(path)
    pools = tuple(
        DevicePool(each.address, each.address, each.location, 1, frozenset({"gpu"}), role="gpu")
        for each in found.functions
        if (each.class_code or "").startswith(_GPU_CLASS)
    )
    return FreeHost(path.stem, pools, _nodes())


def renamed(host: FreeHost, number: int) -> FreeHost:
    """The same host with other providers, as each host of a cloud has its own."""
    names = {pool.id: f"{number}-{pool.id}" for pool in host.pools}
    return attrs.evolve(
        host,
        name=f"{host.name}{number}",
        pools=tuple(attrs.evolve(pool, id=names[pool.id]) for pool in host.pools),
        nvlink=tuple(frozenset(names[each] for each in found) for found in host.nvlink),
    )


def _nodes() -> tuple[HostNode, ...]:
    return tuple(HostNode(node, node, 64, {1048576: 512}) for node in range(2))
