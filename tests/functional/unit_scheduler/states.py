# SPDX-License-Identifier: Apache-2.0
"""Hosts and requests of Nova's own classes, for tests without services."""

from __future__ import annotations

from collections.abc import Iterable

from nova import objects, test
from nova.objects import base as nova_base
from nova.pci import stats
from nova.scheduler import host_manager
from oslo_utils.fixture import uuidsentinel as uuids

from tests.functional import fixtures


def pool(index: int, numa: int = 0, count: int = 1, **tags: str) -> objects.PciDevicePool:
    tags = {
        "dev_type": "type-PCI",
        "address": f"0000:{0x40 + index:02x}:00.0",
        "rp_uuid": getattr(uuids, f"gpu{index}"),
        "hpc_tags": "1",
        "hpc_role": "gpu",
        "hpc_root": f"pci0000:{0x40 + index:02x}",
        "hpc_resource_class": fixtures.GPU_CLASS,
    } | tags
    return objects.PciDevicePool(
        vendor_id=fixtures.GPU_VENDOR,
        product_id=fixtures.GPU_PRODUCT,
        numa_node=numa,
        count=count,
        tags=tags,
    )


def topology(nodes: int = 2) -> objects.NUMATopology:
    return objects.NUMATopology(
        cells=[
            objects.NUMACell(
                id=node,
                socket=node,
                cpuset=set(),
                pcpuset=set(range(node * 8, node * 8 + 8)),
                pinned_cpus={node * 8},
                memory=8192,
                cpu_usage=0,
                memory_usage=0,
                siblings=[{node * 8 + cpu} for cpu in range(8)],
                mempages=[
                    objects.NUMAPagesTopology(size_kb=4, total=1024, used=0, reserved=0),
                    objects.NUMAPagesTopology(size_kb=2048, total=100, used=30, reserved=5),
                ],
                network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
            )
            for node in range(nodes)
        ]
    )


def pci_request(count: int = 1, policy: str = "preferred") -> objects.InstancePCIRequest:
    return objects.InstancePCIRequest(
        count=count,
        spec=[{"resource_class": fixtures.GPU_CLASS}],
        alias_name="gpu",
        numa_policy=policy,
        request_id=uuids.request,
    )


def spec(count: int = 1, policy: str = "preferred", **fields: object) -> objects.RequestSpec:
    groups = [
        objects.RequestGroup(
            requester_id=f"{uuids.request}-{index}",
            resources={fixtures.GPU_CLASS: 1},
            required_traits=set(),
            use_same_provider=True,
        )
        for index in range(count)
    ]
    return objects.RequestSpec(
        flavor=objects.Flavor(flavorid="f", extra_specs={"hpc:affinity": "numa"}),
        instance_uuid=uuids.instance,
        pci_requests=objects.InstancePCIRequests(requests=[pci_request(count, policy)]),
        requested_resources=groups,
        **({"numa_topology": None, "instance_group": None} | fields),
    )


def plain(value: object) -> object:
    """A value of a host state in a form that can be compared."""
    if isinstance(value, nova_base.NovaObject):
        return value.obj_to_primitive()
    if isinstance(value, stats.PciDeviceStats):
        return value.pools, plain(value.numa_topology), vars(value).keys()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value


def content(host_states: Iterable[host_manager.HostState]) -> dict[object, object]:
    """All attributes of host states, by host and node."""
    found = {
        (state.host, state.nodename): {
            name: plain(each) for name, each in vars(state).items() if name != "hpc_kept"
        }
        for state in host_states
    }
    return dict(sorted(found.items()))


class HostStates(test.NoDBTestCase):
    """Makes host states as the scheduler has them."""

    def host(self, *pools: objects.PciDevicePool, nodes: int = 2) -> host_manager.HostState:
        host = host_manager.HostState("host", "node", uuids.cell)
        host.numa_topology = topology(nodes) if nodes else None
        host.pci_stats = stats.PciDeviceStats(
            host.numa_topology, objects.PciDevicePoolList(objects=list(pools))
        )
        host.ram_allocation_ratio = host.cpu_allocation_ratio = 1.0
        host.stats = fixtures.healthy_stats()
        return host

    def offered(self, host: host_manager.HostState, *providers: str) -> dict:
        """Give *host* a candidate of Placement with devices of these providers."""
        candidate = {
            "allocations": {
                "node": {"resources": {"PCPU": 2}},
                **{
                    each: {"resources": {fixtures.GPU_CLASS: providers.count(each)}}
                    for each in providers
                },
            },
            "mappings": {
                f"{uuids.request}-{index}": [each] for index, each in enumerate(providers)
            },
        }
        host.allocation_candidates = [candidate]
        return candidate


def guest_cell(pagesize: int | None = 2048) -> objects.InstanceNUMATopology:
    """A guest of one cell with two dedicated CPUs."""
    return objects.InstanceNUMATopology(
        cells=[
            objects.InstanceNUMACell(
                id=0,
                cpuset=set(),
                pcpuset={0, 1},
                cpu_policy="dedicated",
                memory=2,
                pagesize=pagesize,
                cpu_pinning_raw=None,
            )
        ]
    )
