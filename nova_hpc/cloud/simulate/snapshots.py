"""A snapshot of a cloud as nodes and requests to simulate."""

from __future__ import annotations

from collections import Counter
from typing import Final

from nova_hpc.cloud import snapshot as cloud
from nova_hpc.cloud.simulate.nodes import Machine
from nova_hpc.cloud.simulate.workload import Shape, Task
from nova_hpc.placement.flavor import has_hpc_keys
from nova_hpc.placement.grouping import FlavorError
from nova_hpc.placement.model import Policy
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
    roles = cloud.roles(snapshot.hosts, flavor.engine_wants())
    keys = {key for key, played in roles.items() if played == role}
    gpus = sum(want.count for want in flavor.engine_wants() if want.key in keys)
    if not gpus:
        return None
    level, group = Level.HOST, gpus
    if has_hpc_keys(flavor.extra_specs):
        try:
            request = cloud.request(flavor, snapshot.hosts)
        except FlavorError:
            return None
        if request.policy is Policy.REQUIRED:
            level = request.level
        group = gpus // len(request.groups)
    return Shape(
        cpu_milli=1000 * sum(cell.dedicated_cpus for cell in flavor.cells),
        memory_mib=sum(cell.memory_kib for cell in flavor.cells if cell.page_kib) // 1024,
        gpus=gpus,
        level=level,
        group=group,
    )
