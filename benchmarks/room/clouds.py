# SPDX-License-Identifier: Apache-2.0
"""Large clouds by a seed: full hosts with eight GPUs and eight functions, whose servers end."""

from __future__ import annotations

import collections
import datetime
import random
from typing import Final

import attrs

from nova_hpc.fabric.model import FabricMap, FabricPlace
from nova_hpc.placement.model import WantedCell
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.explain import judge_node
from nova_hpc_tools.cloud.explain.remedies import Chooser
from nova_hpc_tools.fabric.map_aggregates import aggregates_of
from nova_hpc_tools.snapshot import Flavor, Server, Snapshot, SnapshotLease, SnapshotNode
from tests.unit.snapshot import clouds

#: GPUs of a flavor -> how close they have to be.
_FLAVORS: Final = {1: "switch", 2: "switch", 4: "numa", 8: "host"}
_HOSTS_OF_LEAF: Final = 32
_START: Final = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_MINUTES: Final = 60 * 24 * 60
_CPUS_OF_GPU: Final = 8
_PAGE_KIB: Final = 2048


def _make_flavor(gpus: int) -> Flavor:
    halves = 2 if gpus == 8 else 1
    cell = WantedCell(0, _CPUS_OF_GPU * gpus // halves, _PAGE_KIB * 64 * gpus // halves, _PAGE_KIB)
    flavor = clouds.flavor(
        f"hpc.gpu{gpus}",
        {"gpu": gpus, "vf": gpus},
        cells=[attrs.evolve(cell, id=number) for number in range(halves)],
        numa_policy="preferred",
        affinity=_FLAVORS[gpus],
    )
    specs = {**flavor.extra_specs, "hw:pci_numa_affinity_policy": "preferred"}
    return attrs.evolve(flavor, extra_specs=specs)


def make_cloud(hosts: int, seed: int = 1) -> tuple[Snapshot, FabricMap]:
    """Make a cloud in which servers have come and gone; most of the others have a known end."""
    chance = random.Random(seed)
    names = [f"gpu{number:04d}" for number in range(hosts)]
    fabric = FabricMap(
        places=tuple(
            FabricPlace(host, leaf=f"leaf{number // _HOSTS_OF_LEAF}", spine="spine0")
            for number, host in enumerate(names)
        )
    )
    aggregates: dict[str, dict[str, dict[str, str]]] = collections.defaultdict(dict)
    for each in aggregates_of(fabric):
        for host in each.hosts:
            aggregates[host][each.name] = dict(each.metadata)
    flavors = [_make_flavor(gpus) for gpus in _FLAVORS]
    cloud = clouds.cloud(clouds.node("any", [2] * 4), flavors=flavors)
    chooser = Chooser(cloud.profile)
    nodes, servers = [], []
    for host in names:
        node = clouds.node(host, [2] * 4, cpus=4 * _CPUS_OF_GPU)
        node = attrs.evolve(
            node,
            devices=(*node.devices, *(clouds.vfs(host, switch, 2) for switch in range(4))),
            aggregates=aggregates[host],
        )
        here: dict[str, Server] = {}
        for number in range(16):
            if any(server.flavor == flavors[-1].name for server in here.values()):
                break
            if here and chance.random() < 0.35:
                node = snapshot.release_from_node(node, here.pop(chance.choice(list(here))))
            whole = number == 0 and chance.random() < 0.2
            flavor = flavors[-1] if whole else chance.choice(flavors[:-1])
            request = snapshot.request_of_flavor(flavor, [node])
            choice = judge_node(node, flavor, request, chooser).choice
            if choice is None:
                continue
            uuid = f"{host}-{number}"
            node = snapshot.take_from_node(node, choice.devices, request.cells, uuid)
            here[uuid] = Server(
                uuid=uuid,
                name=f"job-{uuid}",
                host=host,
                node=host,
                flavor=flavor.name,
                extra_specs=flavor.extra_specs,
                cells=snapshot.cells_on_node(choice.devices, request.cells),
                until=_draw_end(chance) if chance.random() < 0.9 else None,
            )
        nodes.append(_number_functions(node))
        servers += here.values()
    leases = tuple(
        SnapshotLease(f"lease{number}", _draw_end(chance), tuple(s.uuid for s in some))
        for number, some in enumerate(servers[at : at + 8] for at in range(0, len(servers), 800))
    )
    return attrs.evolve(
        cloud,
        hosts=tuple(nodes),
        servers=tuple(servers),
        leases=leases,
        taken=_START.isoformat(),
        problems=(),
    ), fabric


def _number_functions(node: SnapshotNode) -> SnapshotNode:
    """Give each function in use an address of its own, as a snapshot needs."""
    return attrs.evolve(
        node,
        devices=tuple(
            attrs.evolve(
                device,
                used=tuple(
                    attrs.evolve(use, address=f"{device.address[:-1]}{number}")
                    for number, use in enumerate(device.used, 1)
                ),
            )
            if device.role == "nic"
            else device
            for device in node.devices
        ),
    )


def _draw_end(chance: random.Random) -> str:
    return (_START + datetime.timedelta(minutes=chance.randrange(1, _MINUTES))).isoformat()
