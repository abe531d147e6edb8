# SPDX-License-Identifier: Apache-2.0
"""One compute node for a snapshot: its free resources, and its servers' devices."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import nova.conf
from nova import objects
from nova.compute import vm_states
from nova.objects import fields
from nova.pci import stats as pci_stats
from nova.scheduler import host_manager
from oslo_utils import uuidutils

from nova_hpc.fabric.aggregates import SALT_KEY
from nova_hpc.from_nova import hosts, live_moves, providers, server
from nova_hpc.from_nova import pools as reader
from nova_hpc.from_nova.providers import DeviceKind, Free
from nova_hpc.from_nova.server import ServerTask
from nova_hpc.placement.flavor import has_hpc_keys
from nova_hpc.placement.model import DevicePool, HostNode
from nova_hpc.wire import decision as hpc_decision
from nova_hpc.wire import device_record as hpc_record
from nova_hpc.wire import stats as hpc_stats
from nova_hpc.wire import tags as hpc_tags
from nova_hpc_common.level import Location
from nova_hpc_tools.snapshot import (
    FunctionUse,
    Server,
    ServerCell,
    SnapshotDevice,
    SnapshotNode,
    direct_ports,
    make_printable_text,
    owner_words,
)

CONF = nova.conf.CONF

_TAKEN: Final = (fields.PciDeviceStatus.CLAIMED, fields.PciDeviceStatus.ALLOCATED)


def ask_free_devices(task: ServerTask) -> tuple[dict[DeviceKind, Free | None], list[str]]:
    """Query Placement for the free devices of every alias; each missing answer gives a text."""
    free = {kind: providers.free_providers(kind, providers.MOST) for kind in task.kinds}
    problems = [
        f"Placement did not report which {kind.resource_class} are free; using the hosts' own pools"
        for kind, amounts in free.items()
        if amounts is None
    ]
    return free, problems


def read_snapshot_host(
    context: Any,
    compute: objects.ComputeNode,
    state: host_manager.HostState,
    out: str | None,
    task: ServerTask,
    free: Mapping[DeviceKind, Free | None],
) -> tuple[SnapshotNode, list[Server]]:
    """Read one compute node for a snapshot.

    :param context: targeted at the node's cell.
    :param out: why the scheduler gives it no servers.
    """
    records = [
        record
        for record in objects.PciDeviceList.get_by_compute_node(context, compute.id)
        if record.status in _TAKEN and record.instance_uuid
    ]
    current_view = hosts.read_host(state, task, free)
    whole = hosts.read_host(_copy_with_all_free(state, records), task, {})
    pools = {hosts.provider_of_pool(pool): pool for pool in _restore_pools(state, records)}
    document = hpc_stats.read_stats_or_none(
        (getattr(state, "stats", None) or {}).get(hpc_stats.KEY)
    )
    node = SnapshotNode(
        host=state.host,
        node=state.nodename,
        zone=_zone_of_aggregates(state.aggregates),
        aggregates={
            make_printable_text(aggregate.name): _public_metadata_of(aggregate.metadata)
            for aggregate in state.aggregates
        },
        out=out or current_view.out,
        devices=_merge_devices(current_view.host.pools, whole.host.pools, records, pools),
        numa=_without_shared_cpus(current_view.host.nodes, state),
        nvlink=tuple(dict.fromkeys([*current_view.host.nvlink, *whole.host.nvlink])),
        unusable=tuple(make_printable_text(text) for text in current_view.unusable),
        withheld=current_view.withheld,
        withheld_of=current_view.counted,
        ailing={} if document is None else document.in_use,
    )
    node = attrs.evolve(
        node, devices=tuple(_make_provider_unique(device, node) for device in node.devices)
    )
    device_ids = {device.provider for device in node.devices}
    node = attrs.evolve(
        node, nvlink=tuple(nvlink_set for nvlink_set in node.nvlink if nvlink_set <= device_ids)
    )
    return node, _read_servers_with_devices(context, state, records)


def _without_shared_cpus(
    nodes: Sequence[HostNode], state: host_manager.HostState
) -> tuple[HostNode, ...]:
    """Return the NUMA nodes with the dedicated CPUs in Placement's inventories.

    Without ``[compute]cpu_dedicated_set`` Placement has no dedicated CPUs, but Nova's topology of
    the host counts its shared CPUs as dedicated, too (``_get_host_numa_topology`` of
    nova/virt/libvirt/driver.py, releases 32 to 34). They count only if Nova queries Placement a
    second time, for VCPU.
    """
    if not has_no_dedicated_cpus(state.numa_topology):
        return tuple(nodes)
    return tuple(attrs.evolve(node, dedicated_cpus=0) for node in nodes)


def has_no_dedicated_cpus(topology: objects.NUMATopology | None) -> bool:
    """Whether no server with dedicated CPUs can be scheduled to a host of this topology.

    A CPU is shared or dedicated; one that is both is one of a host without dedicated CPUs.
    """
    if topology is None or not CONF.workarounds.disable_fallback_pcpu_query:
        return False
    return any((cell.cpuset or set()) & (cell.pcpuset or set()) for cell in topology.cells)


def _make_provider_unique(device: SnapshotDevice, node: SnapshotNode) -> SnapshotDevice:
    """Add the node's name to the provider of a device that has none in Placement.

    Such a device is named by its address, which several nodes have.
    """
    if uuidutils.is_uuid_like(device.provider):
        return device
    return attrs.evolve(device, provider=f"{node.name}: {device.provider}")


def _copy_with_all_free(
    state: host_manager.HostState, records: Sequence[objects.PciDevice]
) -> host_manager.HostState:
    """Build the state of the same node with all its devices free, for the filter's reader.

    The node does not report pools whose devices are all in use. They are made again from Nova's
    records, which carry the tags of the device as long as this project's driver runs on the node.
    """
    empty = host_manager.HostState(state.host, state.nodename, state.cell_uuid)
    empty.numa_topology = state.numa_topology
    empty.pci_stats = pci_stats.PciDeviceStats(state.numa_topology)
    empty.pci_stats.pools = _restore_pools(state, records)
    empty.stats = {}
    return empty


def _restore_pools(
    state: host_manager.HostState, records: Iterable[objects.PciDevice]
) -> list[dict[str, Any]]:
    """Return the node's PCI pools with the devices in use among them."""
    reported = state.pci_stats.pools if state.pci_stats else []
    pools = {pool.get("rp_uuid") or id(pool): dict(pool) for pool in reported}
    for record in records:
        provider = record.extra_info.get("rp_uuid")
        if not provider:
            continue
        if provider not in pools:
            pools[provider] = {
                "vendor_id": record.vendor_id,
                "product_id": record.product_id,
                "numa_node": record.numa_node,
                "dev_type": record.dev_type,
                "address": record.parent_addr or record.address,
                "rp_uuid": provider,
                "count": 0,
                **hpc_record.read_device_record(record.extra_info.get(hpc_record.KEY)),
            }
        pools[provider]["count"] += 1
    return list(pools.values())


def _merge_devices(
    free_pools: Iterable[DevicePool],
    whole: Iterable[DevicePool],
    records: Iterable[objects.PciDevice],
    pools: Mapping[str, Mapping[str, Any]],
) -> tuple[SnapshotDevice, ...]:
    """Build the snapshot's devices of one host, free and used ones, in the order of providers.

    :param free_pools: pools with the devices that are free now.
    :param whole: the same pools as if all devices were free.
    :param records: Nova's records of devices in use. A device without a pool has only its address
        and NUMA node.
    """
    free = {pool.id: pool for pool in free_pools}
    full = {pool.id: pool for pool in whole}
    used: dict[str, list[FunctionUse]] = collections.defaultdict(list)
    bare: dict[str, objects.PciDevice] = {}
    for record in records:
        provider = record.extra_info.get("rp_uuid") or f"not in Placement: {record.address}"
        used[provider].append(FunctionUse(record.address, record.instance_uuid))
        if provider not in full and provider not in free:
            bare[provider] = record
    devices = []
    for provider in sorted({*free, *full}):
        pool = free.get(provider) or full[provider]
        role, resource_class, traits = _role_and_class_of_pool(pools.get(provider))
        devices.append(
            SnapshotDevice(
                provider=provider,
                address=pool.name,
                free=free[provider].free if provider in free else 0,
                location=pool.location,
                aliases=pool.serves,
                role=pool.role or role,
                unit=pool.unit,
                resource_class=resource_class,
                traits=traits,
                used=tuple(sorted(used[provider], key=lambda use: use.address)),
                ports=direct_ports.adapter_of(pools.get(provider, {})),
            )
        )
    for provider, record in bare.items():
        devices.append(
            SnapshotDevice(
                provider=provider,
                address=record.address,
                free=0,
                location=Location(numa=record.numa_node),
                used=tuple(sorted(used[provider], key=lambda use: use.address)),
            )
        )
    return tuple(sorted(devices, key=lambda device: (device.address, device.provider)))


def _role_and_class_of_pool(
    pool: Mapping[str, Any] | None,
) -> tuple[str | None, str | None, frozenset[str]]:
    """Return role, resource class and traits of a pool; unreadable tags count as missing."""
    if pool is None:
        return None, None, frozenset()
    try:
        tags = hpc_tags.parse_tags(pool)
    except hpc_tags.TagError:
        tags = None
    return (tags.role if tags else None, *reader.class_and_traits_of(pool, tags))


def _public_metadata_of(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of an aggregate without the entries that only operators may read."""
    return {key: value for key, value in metadata.items() if key != SALT_KEY}


def _zone_of_aggregates(aggregates: Iterable[objects.Aggregate]) -> str:
    zones = (aggregate.metadata.get("availability_zone") for aggregate in aggregates)
    return next((str(zone) for zone in zones if zone), str(CONF.default_availability_zone))


def _read_servers_with_devices(
    context: Any, state: host_manager.HostState, records: Sequence[objects.PciDevice]
) -> list[Server]:
    """Read the servers that have devices of the node; only the UUID is known of a missing one."""
    owners = {record.instance_uuid for record in records}
    if not owners:
        return []
    instances = objects.InstanceList.get_by_filters(
        context,
        {"uuid": sorted(owners), "deleted": False},
        expected_attrs=["flavor", "metadata", "system_metadata", "numa_topology", "pci_requests"],
    )
    servers_by_uuid = {
        instance.uuid: _read_snapshot_server(instance, state) for instance in instances
    }
    for uuid in owners - servers_by_uuid.keys():
        # The record of the device outlives the server for a moment.
        servers_by_uuid[uuid] = Server(
            uuid=uuid, name=uuid, host=state.host, node=state.nodename, flavor="unknown"
        )
    return list(servers_by_uuid.values())


def _read_snapshot_server(instance: objects.Instance, state: host_manager.HostState) -> Server:
    flavor = instance.flavor
    # A server that is being moved has devices on both nodes; the snapshot shows it on the host in
    # Nova's record, or else on this one.
    return Server(
        uuid=instance.uuid,
        name=make_printable_text(instance.display_name or instance.uuid),
        host=instance.host or state.host,
        node=instance.node or state.nodename,
        flavor=make_printable_text(flavor.name),
        extra_specs=dict(flavor.extra_specs or {}),
        decision=instance.system_metadata.get(hpc_decision.KEY),
        cells=tuple(
            ServerCell(cell.host_node, cell.dedicated_cpus, cell.memory_kib, cell.page_kib)
            for cell in server.read_numa_cells(instance.numa_topology, claimed=True)
            if cell.host_node is not None
        ),
        project=instance.project_id,
        until=_owner_word_of(instance, owner_words.UNTIL),
        movable=_owner_word_of(instance, owner_words.MOVABLE),
        immobile=_why_immobile(instance),
        live=_moves_live(instance),
    )


def _moves_live(instance: objects.Instance) -> bool | None:
    """Whether a server can move while it runs; None for one without ``hpc:`` keys."""
    if not has_hpc_keys(instance.flavor.extra_specs or {}):
        return None
    refusal = live_moves.refusal_of(instance.flavor, instance.pci_requests)
    return instance.vm_state == vm_states.ACTIVE and refusal is None


def _owner_word_of(instance: objects.Instance, key: str) -> str | None:
    text = instance.metadata.get(key)
    return None if text is None else make_printable_text(text)


def _why_immobile(instance: objects.Instance) -> str | None:
    if instance.task_state:
        return f"Nova is at it ({make_printable_text(instance.task_state)}): wait for it"
    if instance.vm_state not in (vm_states.ACTIVE, vm_states.STOPPED):
        return f"it is {instance.vm_state}, and Nova moves servers that are active or stopped"
    return None
