"""Reads Nova's host states into the words of the placement engine.

The only place that knows how Nova keeps pools and NUMA cells.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
from nova import objects
from nova.compute import pci_placement_translator as translator
from oslo_log import log as logging
from oslo_utils import strutils

from nova_hpc.placement.model import Host, HostNode, Pool
from nova_hpc.topology import tags as hpc_tags
from nova_hpc.topology.level import Location
from nova_hpc.tracker import stats as hpc_stats
from scheduler_filters.once import Once
from scheduler_filters.providers import Free, Kind
from scheduler_filters.request import Task

LOG = logging.getLogger(__name__)

_ONCE: Final = Once()


@attrs.frozen
class View:
    """What one host has, and what is wrong with its devices."""

    host: Host
    #: want -> role, from the tags of the pools that can serve it
    roles: Mapping[str, str]
    #: Pools that matched but cannot be used, each with the reason.
    unusable: tuple[str, ...] = ()
    #: PCI address -> why the node withholds it.
    withheld: Mapping[str, str] = attrs.field(factory=dict)


def read_host(host_state: Any, task: Task, free: Mapping[Kind, Free | None]) -> View:
    """Read one host state.

    :param free: what Placement says is free; None for a kind if unknown.
    """
    unusable: list[str] = []
    serves: dict[int, set[str]] = collections.defaultdict(set)
    pools: list[dict[str, Any]] = []
    if host_state.pci_stats:
        pools = host_state.pci_stats.pools
        for device in task.devices:
            for pool in _matching(host_state.pci_stats, device.request):
                serves[id(pool)].add(device.want.key)
    matched = [pool for pool in pools if id(pool) in serves]
    shared = collections.Counter(pool.get("rp_uuid") for pool in matched)
    sockets = _sockets(host_state)
    kinds = {device.want.key: device.kind for device in task.devices}
    found: list[Pool] = []
    roles: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for pool in matched:
        name = str(pool.get("address", "?"))
        try:
            tags = hpc_tags.parse(pool)
            location = _location(pool, tags, sockets)
            provider = pool.get("rp_uuid")
            if not provider:
                raise hpc_tags.TagError(
                    "it is not in Placement; set [pci]report_in_placement = True on the node"
                )
            if shared[provider] > 1:
                raise hpc_tags.TagError(
                    "its adapter's functions carry different tags, so Nova cannot tell them apart"
                )
            keys = _served(pool, tags, serves[id(pool)], kinds, free)
        except hpc_tags.TagError as error:
            unusable.append(f"{name}: {error}")
            first = _ONCE.first((host_state.host, name, str(error)))
            level = logging.WARNING if first else logging.DEBUG
            LOG.log(level, "%s: device %s is not used: %s", host_state.host, name, error)
            continue
        amounts = {key: _free(pool, provider, kinds[key], free) for key in keys}
        keys = {key for key in keys if amounts[key] > 0}
        if not keys:
            continue
        if tags is not None and tags.role:
            for key in keys:
                roles[key][tags.role] += 1
        found.append(
            Pool(
                id=provider,
                name=name,
                location=location,
                free=min(amounts[key] for key in keys),
                serves=frozenset(keys),
                unit=tags.group if tags is not None else None,
            )
        )
    return View(
        host=Host(
            name=host_state.host,
            pools=tuple(sorted(found, key=lambda pool: (pool.name, pool.id))),
            nodes=_nodes(host_state),
        ),
        roles={key: _most_common(counter) for key, counter in roles.items()},
        unusable=tuple(unusable),
        withheld=_withheld(host_state),
    )


def _matching(stats: Any, request: objects.InstancePCIRequest) -> Iterable[dict[str, Any]]:
    """Pools that Nova itself would take for *request*, were there enough."""
    probe = request.obj_clone()
    # Nova answers None where there are fewer devices than requested.
    probe.count = 0
    return stats._filter_pools(stats.pools, probe, None, []) or ()


def _location(
    pool: Mapping[str, Any], tags: hpc_tags.Tags | None, sockets: Mapping[int, int | None]
) -> Location:
    """Where a pool sits: the tags, and Nova's own NUMA node.

    :raises hpc_tags.TagError: the two contradict each other.
    """
    node = pool.get("numa_node")
    location = Location() if tags is None else tags.location
    if node is None:
        return location
    if location.numa is not None and location.numa != node:
        raise hpc_tags.TagError(
            f"tag {hpc_tags.NUMA} is {location.numa}, but Nova says NUMA node {node}"
        )
    socket = sockets.get(node)
    if socket is None:
        socket = location.socket
    return attrs.evolve(location, numa=node, socket=socket)


def _served(
    pool: Mapping[str, Any],
    tags: hpc_tags.Tags | None,
    keys: Iterable[str],
    kinds: Mapping[str, Kind],
    free: Mapping[Kind, Free | None],
) -> set[str]:
    """Which of the wants a pool can serve, resource class and traits included.

    :raises hpc_tags.TagError: Placement contradicts the tag.
    """
    claimed = tags.resource_class if tags is not None else None
    own_class = translator.get_resource_class(claimed, pool["vendor_id"], pool["product_id"])
    own_traits = translator.get_traits(",".join(tags.traits) if tags is not None else "")
    if strutils.bool_from_string(pool.get("live_migratable", "false")):
        own_traits = own_traits | {"HW_PCI_LIVE_MIGRATABLE"}
    served = set()
    for key in keys:
        kind = kinds[key]
        known = free.get(kind)
        if known is None:
            # Nova gives these two to every device, so they are not in the tags.
            missing = kind.traits - own_traits - {"COMPUTE_MANAGED_PCI_DEVICE", "OWNER_NOVA"}
            if own_class == kind.resource_class and not missing:
                served.add(key)
        elif pool["rp_uuid"] in known.amounts:
            if claimed is not None and own_class != kind.resource_class:
                raise hpc_tags.TagError(
                    f"tag {hpc_tags.RESOURCE_CLASS} is {claimed}, but Placement "
                    f"says {kind.resource_class}"
                )
            served.add(key)
    return served


def _free(
    pool: Mapping[str, Any], provider: str, kind: Kind, free: Mapping[Kind, Free | None]
) -> int:
    counted = int(pool.get("count", 0))
    known = free.get(kind)
    return counted if known is None else known.of(provider, counted)


def _sockets(host_state: Any) -> dict[int, int | None]:
    if not host_state.numa_topology:
        return {}
    return {cell.id: getattr(cell, "socket", None) for cell in host_state.numa_topology.cells}


def _nodes(host_state: Any) -> tuple[HostNode, ...]:
    """Free dedicated CPUs and pages of every NUMA node of the host."""
    if not host_state.numa_topology:
        return ()
    return tuple(
        HostNode(
            id=cell.id,
            socket=getattr(cell, "socket", None),
            dedicated_cpus=cell.avail_pcpus,
            pages={page.size_kb: max(0, page.free) for page in cell.mempages},
        )
        for cell in host_state.numa_topology.cells
    )


def _withheld(host_state: Any) -> dict[str, str]:
    """What the node says it withholds; {} where it says nothing readable."""
    # ``stats`` is unset until the compute node has reported for the first time.
    values = getattr(host_state, "stats", None) or {}
    document = hpc_stats.loads(values.get(hpc_stats.KEY))
    return {} if document is None else dict(document.withheld)


def _most_common(counter: collections.Counter[str]) -> str:
    # Ties go to the first in the alphabet, so that the answer is the same
    # in every process.
    return min(counter.items(), key=lambda item: (-item[1], item[0]))[0]


def merge_roles(views: Iterable[View]) -> dict[str, str]:
    """want -> role over all hosts; where they differ the majority decides."""
    counters: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for view in views:
        for key, role in view.roles.items():
            counters[key][role] += 1
    return {key: _most_common(counter) for key, counter in counters.items()}
