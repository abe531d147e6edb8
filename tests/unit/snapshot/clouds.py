# SPDX-License-Identifier: Apache-2.0
"""Small clouds as snapshots, for the tests of explain and of snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nova_hpc.placement.model import HostNode, WantedCell
from nova_hpc.placement.profile import FlavorShape, Profile
from nova_hpc_common.level import Level, Location
from nova_hpc_tools.snapshot import (
    Flavor,
    FlavorWant,
    FunctionUse,
    Server,
    ServerCell,
    Snapshot,
    SnapshotAlias,
    SnapshotDevice,
    SnapshotNode,
)


def gpu(host: str, number: int, switch: int = 0, server: str | None = None) -> SnapshotDevice:
    """One GPU; two switches a NUMA node."""
    numa = switch // 2
    address = f"0000:{0x40 + switch:02x}:{number:02x}.0"
    return SnapshotDevice(
        provider=f"{host}-{switch}-{number}",
        address=address,
        free=0 if server else 1,
        location=Location(
            numa=numa, socket=numa, root=f"pci0000:{switch:02x}", switches=(f"switch{switch}",)
        ),
        aliases=frozenset({"gpu"}),
        role="gpu",
        resource_class="CUSTOM_GPU",
        traits=frozenset({"CUSTOM_NVLINK"}),
        used=(FunctionUse(address, server),) if server else (),
    )


def vfs(host: str, switch: int, free: int = 4) -> SnapshotDevice:
    """Virtual functions of one adapter."""
    numa = switch // 2
    return SnapshotDevice(
        provider=f"{host}-{switch}-vf",
        address=f"0000:{0x40 + switch:02x}:1f.0",
        free=free,
        location=Location(
            numa=numa, socket=numa, root=f"pci0000:{switch:02x}", switches=(f"switch{switch}",)
        ),
        aliases=frozenset({"vf"}),
        role="nic",
        resource_class="CUSTOM_VF",
    )


def node(
    host: str, gpus: Sequence[int | Sequence[str | None]], cpus: int = 16, **more: object
) -> SnapshotNode:
    """A host; *gpus* says, for each switch, how many are free or who has each."""
    devices = []
    for switch, found in enumerate(gpus):
        owners = [None] * found if isinstance(found, int) else found
        devices += [gpu(host, number, switch, owner) for number, owner in enumerate(owners)]
    fields: dict[str, object] = {
        "zone": "nova",
        "devices": tuple(devices),
        "numa": tuple(
            HostNode(id=numa, socket=numa, dedicated_cpus=cpus, pages={2048: 1024})
            for numa in range(2)
        ),
    } | more
    return SnapshotNode(host=host, node=host, **fields)


def flavor(
    name: str = "pair",
    wants: Mapping[str, int] | None = None,
    cells: Sequence[WantedCell] = (),
    numa_policy: str | None = None,
    **specs: str,
) -> Flavor:
    """A flavor; keywords are ``hpc:`` keys."""
    wants = {"gpu": 2} if wants is None else wants
    return Flavor(
        name=name,
        id=f"id-{name}",
        extra_specs={
            f"hpc:{key}": value for key, value in ({"affinity": "switch"} | specs).items()
        },
        wants=tuple(FlavorWant(alias, count) for alias, count in wants.items()),
        cells=tuple(cells),
        numa_policy=numa_policy,
        vcpus=4,
        memory_mb=1024,
    )


def server(uuid: str, host: str, **more: object) -> Server:
    """A server of the flavor pair."""
    fields: dict[str, object] = {
        "name": f"name-{uuid}",
        "flavor": "pair",
        "extra_specs": flavor().extra_specs,
        "cells": (ServerCell(numa=0, dedicated_cpus=4, memory_kib=4096, page_kib=2048),),
    } | more
    return Server(uuid=uuid, host=host, node=host, **fields)


def cloud(
    *hosts: SnapshotNode, flavors: Sequence[Flavor] = (), servers: Sequence[Server] = ()
) -> Snapshot:
    """A snapshot of all of them."""
    return Snapshot(
        taken="2026-01-01T00:00:00+00:00",
        nova="34.0.0",
        hosts=hosts,
        flavors=tuple(flavors) or (flavor(),),
        aliases=(
            SnapshotAlias("gpu", "CUSTOM_GPU", frozenset({"CUSTOM_NVLINK"})),
            SnapshotAlias("broken", problem="it has no ids"),
        ),
        servers=tuple(servers),
        profile=Profile((FlavorShape({"gpu": 2}, level=Level.SWITCH, weight=3, page_kib=2048),)),
        problems=("Placement could not be asked",),
    )
