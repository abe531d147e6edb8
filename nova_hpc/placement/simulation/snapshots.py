"""A snapshot of a cloud as nodes and requests to simulate."""

from __future__ import annotations

from collections import Counter
from typing import Final

from nova_hpc.placement import snapshot as cloud
from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.model import Policy
from nova_hpc.placement.simulation.nodes import Machine
from nova_hpc.placement.simulation.workload import Shape, Task
from nova_hpc.topology.level import Level

#: What a node that does not tell its CPUs or pages is taken to have: enough.
PLENTY: Final = 1_000_000_000


def machines(snapshot: cloud.Snapshot, role: str) -> list[Machine]:
    """The nodes that the scheduler gives servers to, with what is used as busy.

    CPUs are the free dedicated ones, memory is the free hugepages; both are
    not limited where a node does not report them.
    """
    found = []
    for node in snapshot.hosts:
        if node.out is not None:
            continue
        devices = [
            (device, number < device.free)
            for device in sorted(node.devices, key=lambda device: device.address)
            if device.role == role
            for number in range(device.free + len(device.used))
        ]
        cpus = [numa.dedicated_cpus for numa in node.numa]
        pages = [numa.pages for numa in node.numa]
        found.append(
            Machine(
                name=node.name,
                kind=f"{len(devices)} x {role}",
                cpu_milli=PLENTY
                if not cpus or None in cpus
                else 1000 * sum(count or 0 for count in cpus),
                memory_mib=PLENTY
                if not pages or None in pages
                else sum(size * count for each in pages for size, count in (each or {}).items())
                // 1024,
                gpus=len(devices),
                layout=tuple(device.location for device, _ in devices),
                busy=tuple(number for number, (_, free) in enumerate(devices) if not free),
            )
        )
    return found


def tasks(snapshot: cloud.Snapshot, role: str) -> list[Task]:
    """One request for each server that runs; without servers, one for each flavor.

    A flavor that asks for no device of *role*, or that the scheduler would
    refuse, is left out.
    """
    shapes = {}
    for flavor in snapshot.flavors:
        shape = _shape(snapshot, flavor, role)
        if shape is not None:
            shapes[flavor.name] = shape
    running = Counter(server.flavor for server in snapshot.servers if server.flavor in shapes)
    counts = running or Counter(dict.fromkeys(shapes, 1))
    return [
        Task(f"{name}-{number + 1}", shapes[name])
        for name in sorted(counts)
        for number in range(counts[name])
    ]


def _shape(snapshot: cloud.Snapshot, flavor: cloud.Flavor, role: str) -> Shape | None:
    if flavor.problem is not None or not flavor.wants:
        return None
    try:
        request = cloud.request(flavor, snapshot.hosts)
    except FlavorError:
        return None
    roles = cloud.roles(snapshot.hosts, request.wants)
    keys = {key for key, played in roles.items() if played == role}
    sizes = [
        sum(count for key, count in group.counts.items() if key in keys) for group in request.groups
    ]
    if not sizes or not sizes[0]:
        return None
    pinned = any(cell.dedicated_cpus for cell in request.cells)
    required = request.policy is Policy.REQUIRED
    return Shape(
        cpu_milli=1000 * flavor.vcpus if pinned else 0,
        memory_mib=sum(cell.memory_kib for cell in request.cells if cell.page_kib) // 1024,
        gpus=sum(sizes),
        level=request.level if required else Level.HOST,
        group=sizes[0],
    )
