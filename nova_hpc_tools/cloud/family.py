# SPDX-License-Identifier: Apache-2.0
"""Flavors for 1, 2, 4, ... GPUs of one kind of node, without a rest. Pure.

CPUs and memory are dealt so that the last GPU of the poorest NUMA node has its share. Each flavor
gets the tightest level at which the node still holds as many of its servers as without a level.
The scheduler's own functions decide that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.placement.flavor import AFFINITY, GROUP, NUMA_POLICY
from nova_hpc.placement.model import WantedCell
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.capacity import measure_flavor
from nova_hpc_tools.snapshot import Flavor, FlavorWant, Snapshot, SnapshotError, SnapshotNode

#: Level -> the value of hw:pci_numa_affinity_policy that goes with it (DESIGN: flavors).
_LEVELS: Final[Mapping[str, str]] = {
    "switch": "required",
    "root": "required",
    "numa": "required",
    "socket": "socket",
    "host": "preferred",
}
#: Devices of one group that has no other have no switch in common.
_ALONE: Final = ("numa", "socket", "host")


@attrs.frozen
class FamilyFlavor:
    """A flavor of a family (for 1, 2, 4 ... GPUs), and how many servers of it fit on a node."""

    flavor: Flavor
    #: How many servers of it an empty node holds.
    fit: int

    @property
    def level(self) -> str:
        """The value of ``hpc:affinity`` in the flavor."""
        return self.flavor.extra_specs[AFFINITY]


@attrs.frozen
class _Share:
    """The share of one GPU: dedicated CPUs, and hugepages of one size."""

    cpus: int
    pages: int
    page_kib: int


def release_all_servers(cloud: Snapshot, node: SnapshotNode) -> SnapshotNode:
    """Return *node* as it would be without its servers."""
    for server in cloud.servers:
        node = snapshot.release_from_node(node, server)
    return node


def build_flavor_family(
    cloud: Snapshot, node: SnapshotNode, name: str, gpu: str, beside: str | None
) -> list[FamilyFlavor]:
    """Build the flavors for 1, 2, 4, ... and all GPUs of *node*, the smallest first.

    :param node: one of *cloud*; its servers do not count.
    :param name: of the family: ``hpc`` makes ``hpc.gpu1``.
    :param gpu: alias of the GPUs.
    :param beside: alias with one device for each GPU; None for no such alias.
    :raises SnapshotError: the node cannot have them; the text names the missing part.
    """
    node = release_all_servers(cloud, node)
    gpu_counts = _by_numa(node, gpu)
    total = sum(gpu_counts.values())
    if not total:
        raise SnapshotError(f"{node.name} has no device that matches the alias {gpu}")
    if beside is not None and sum(_by_numa(node, beside).values()) < total:
        raise SnapshotError(
            f"{node.name} has fewer devices of the alias {beside} than of {gpu} ({total}); name "
            "another one, or none"
        )
    share = _share_of_gpu(node, gpu_counts)
    sizes = sorted({total, *(1 << power for power in range(total.bit_length()))})
    alone = attrs.evolve(cloud, hosts=(node,))
    family = []
    for count in (size for size in sizes if size <= total):
        cells = _fewest_cells_for(gpu_counts, count)
        if cells is None:
            continue  # no number of NUMA nodes has an equal part each
        family.append(
            _choose_tightest_flavor(
                alone, _flavors_by_level(name, count, cells, share, gpu, beside)
            )
        )
    return family


def _by_numa(node: SnapshotNode, alias: str) -> dict[int | None, int]:
    counts: dict[int | None, int] = {}
    for device in node.devices:
        if alias in device.aliases and device.free and device.ports is None:
            numa = device.location.numa
            counts[numa] = counts.get(numa, 0) + device.free
    return counts


def _share_of_gpu(node: SnapshotNode, gpus: Mapping[int | None, int]) -> _Share:
    """Compute the CPUs and hugepages for each GPU, as the poorest NUMA node with GPUs has them.

    :raises SnapshotError: the GPUs' NUMA nodes are unknown, or lack CPUs or hugepages.
    """
    numa_nodes = {numa.id: numa for numa in node.numa}
    homes = [(numa_nodes.get(numa), count) for numa, count in gpus.items() if numa is not None]
    if not homes or any(home is None for home, _ in homes) or None in gpus:
        raise SnapshotError(f"{node.name} does not report the NUMA nodes of its GPUs")
    cpus = min((home.dedicated_cpus or 0) // count for home, count in homes if home)
    if not cpus:
        raise SnapshotError(
            f"{node.name} has not one dedicated CPU for each GPU beside it: see "
            "[compute]cpu_dedicated_set"
        )
    sizes = set.intersection(*(set(home.pages or ()) for home, _ in homes if home))
    for size in sorted(sizes, reverse=True):
        pages = min((home.pages or {})[size] // count for home, count in homes if home)
        if pages and size > 4:
            # The threads of a core are not dealt to two servers.
            return _Share(cpus - cpus % 2 if cpus > 1 else cpus, pages, size)
    raise SnapshotError(
        f"{node.name} has no hugepages on every NUMA node with GPUs: nova-hpc prepare makes them"
    )


def _fewest_cells_for(gpus: Mapping[int | None, int], count: int) -> int | None:
    """Return the fewest NUMA nodes that have *count* GPUs in equal parts; None if no number has."""
    for cells in range(1, len(gpus) + 1):
        part = count // cells
        if count % cells == 0 and sum(available >= part for available in gpus.values()) >= cells:
            return cells
    return None


def _flavors_by_level(
    name: str, count: int, cells: int, share: _Share, gpu: str, beside: str | None
) -> Iterator[Flavor]:
    """Yield the same flavor at each level of ``hpc:affinity``, the tightest first."""
    names = [gpu, *([beside] if beside else [])]
    vcpus = share.cpus * count
    memory_kib = share.pages * share.page_kib * count
    for level, policy in _LEVELS.items():
        if beside is None and count == cells and level not in _ALONE:
            continue
        specs = {
            "hw:cpu_policy": "dedicated",
            "hw:mem_page_size": str(share.page_kib),
            NUMA_POLICY: policy,
            AFFINITY: level,
            "pci_passthrough:alias": ",".join(f"{alias}:{count}" for alias in names),
        }
        if cells > 1:
            specs["hw:numa_nodes"] = str(cells)
        if beside:
            specs[GROUP] = ",".join(f"{alias}:1" for alias in names)
        yield Flavor(
            name=f"{name}.{gpu}{count}",
            id="",
            vcpus=vcpus,
            memory_mb=memory_kib >> 10,
            extra_specs=specs,
            wants=tuple(FlavorWant(alias, count) for alias in names),
            cells=tuple(
                WantedCell(number, vcpus // cells, memory_kib // cells, share.page_kib)
                for number in range(cells)
            ),
            numa_policy=policy,
        )


def _choose_tightest_flavor(cloud: Snapshot, flavors: Iterator[Flavor]) -> FamilyFlavor:
    members = [FamilyFlavor(flavor, measure_flavor(cloud, flavor).total) for flavor in flavors]
    most = max(member.fit for member in members)
    return next(member for member in members if member.fit == most)
