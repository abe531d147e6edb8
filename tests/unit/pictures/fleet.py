# SPDX-License-Identifier: Apache-2.0
"""Snapshots of clouds of any size, with servers, withheld devices and a fabric, by a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping

import attrs

from nova_hpc.placement.model import HostNode
from nova_hpc.placement.profile import FlavorShape, Profile
from nova_hpc_common.level import Level, Location
from nova_hpc_tools.snapshot import FunctionUse, Server, Snapshot, SnapshotDevice, SnapshotNode
from tests.unit.snapshot import clouds

_HOSTS_OF_LEAF = 16
_LEAVES_OF_SPINE = 4


def device(host: str, switch: int, slot: int, role: str, count: int = 1) -> SnapshotDevice:
    """A GPU, or the functions of an adapter; two of four switches are at each NUMA node."""
    numa = switch // 2
    root = f"pci0000:{0x10 + 0x20 * switch:02x}"
    return SnapshotDevice(
        provider=f"{host}-{switch}-{slot}",
        address=f"0000:{0x12 + 0x20 * switch + slot:02x}:00.0",
        free=count,
        location=Location(numa, numa, root, (f"0000:{0x11 + 0x20 * switch:02x}:00.0",)),
        aliases=frozenset({role}),
        role=role,
        resource_class=f"CUSTOM_{role.upper()}",
    )


def place_of(number: int, level: str = "leaf") -> Mapping[str, Mapping[str, str]]:
    """The aggregate of a host's leaf."""
    leaf = number // _HOSTS_OF_LEAF
    return {
        f"fabric leaf{leaf}": {
            "hpc_fabric:version": "1",
            "hpc_fabric:map": "main",
            "hpc_fabric:kind": level,
            "hpc_fabric:leaf": f"leaf{leaf}",
            "hpc_fabric:spine": f"spine{leaf // _LEAVES_OF_SPINE}",
        }
    }


def fleet(hosts: int, seed: int = 1, placed: bool = True) -> Snapshot:
    """A cloud of HGX-like hosts: eight GPUs and eight adapters with two functions each."""
    rng = random.Random(seed)
    nodes, servers = [], []
    for number in range(hosts):
        name = f"gpu{number:03d}"
        devices = [
            device(name, switch, slot, "gpu") for switch in range(4) for slot in range(2)
        ] + [device(name, switch, slot, "vf", 2) for switch in range(4) for slot in (2, 3)]
        withheld, ailing = {}, {}
        for size in rng.choice(((), (8,), (4, 2), (2, 1), (1, 1, 1), (4,), (2, 2))):
            uuid = f"{number:08d}-{len(servers):04d}"
            server = f"job-{len(servers)}"
            servers.append(Server(uuid, server, name, name, f"hpc.gpu{size}"))
            for role in ("gpu", "vf"):
                free = [at for at, item in enumerate(devices) if item.role == role and item.free]
                if rng.random() < 0.3:
                    rng.shuffle(free)
                for at in free[:size]:
                    item = devices[at]
                    devices[at] = _take(item, uuid)
        for at, item in enumerate(devices):
            if item.role == "gpu" and rng.random() < 0.02:
                if item.free:
                    devices[at] = _withhold(item)
                    withheld[item.address] = "suspect: link narrower than before"
                else:
                    ailing[item.address] = "it answers with ones only"
        nodes.append(
            SnapshotNode(
                host=name,
                node=name,
                zone="nova",
                aggregates=place_of(number) if placed else {},
                out="its nova-compute is down" if rng.random() < 0.02 else None,
                numa=tuple(HostNode(numa, numa, 40, {1048576: 400}) for numa in range(2)),
                devices=tuple(devices),
                withheld=withheld,
                ailing=ailing,
            )
        )
    return Snapshot(
        taken="2026-03-01T12:00:00+00:00",
        nova="34.0.0",
        hosts=tuple(nodes),
        servers=tuple(servers),
        profile=Profile((FlavorShape({"gpu": 2}, level=Level.SWITCH, weight=1),)),
    )


#: Host -> the servers on it: name, GPUs, and end.
_ENDING: Mapping[str, tuple[tuple[str, int, str | None], ...]] = {
    "n1": (("solo", 2, "2026-12-02T18:00Z"),),
    "n2": (("rank-1", 8, "2026-12-03T20:00Z"),),
    "n3": (("notebook", 1, None),),
    "n4": (("train", 4, "2026-12-20T00:00Z"), ("test", 2, None)),
    "n5": (),
    "n6": (("rank-2", 8, "2026-12-09T12:00Z"),),
    "n7": (("eval", 4, "2026-12-01T20:00Z"), ("rank-3", 4, "2026-12-04T08:00Z")),
}


def ending_cloud() -> Snapshot:
    """A leaf of seven hosts with eight GPUs each; most of its servers have a known end."""
    flavor = clouds.flavor("hpc.gpu8", {"gpu": 8}, numa_policy="preferred", affinity="host")
    nodes, servers = [], []
    for number, (host, found) in enumerate(_ENDING.items()):
        owners: list[str | None] = []
        for name, gpus, until in found:
            uuid = f"{number}{len(owners)}f0d"
            owners += [uuid] * gpus
            servers.append(Server(uuid, name, host, host, f"hpc.gpu{gpus}", until=until))
        owners += [None] * (8 - len(owners))
        switches = [owners[at : at + 2] for at in range(0, 8, 2)]
        nodes.append(clouds.node(host, switches, aggregates=place_of(number)))
    return attrs.evolve(
        clouds.cloud(*nodes, flavors=[flavor], servers=servers),
        taken="2026-12-01T06:00:00+00:00",
        problems=(),
    )


def _take(item: SnapshotDevice, server: str) -> SnapshotDevice:
    number = len(item.used) + (item.role == "vf")
    use = FunctionUse(f"{item.address[:-1]}{number}", server)
    return _change(item, item.free - 1, (*item.used, use))


def _withhold(item: SnapshotDevice) -> SnapshotDevice:
    return _change(item, 0, item.used)


def _change(item: SnapshotDevice, free: int, used: tuple[FunctionUse, ...]) -> SnapshotDevice:
    return SnapshotDevice(
        provider=item.provider,
        address=item.address,
        free=free,
        location=item.location,
        aliases=item.aliases,
        role=item.role,
        resource_class=item.resource_class,
        used=used,
    )
