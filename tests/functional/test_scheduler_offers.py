# SPDX-License-Identifier: Apache-2.0
"""What the filter offers passes Nova's own filters, whatever the cloud looks like."""

from __future__ import annotations

import os
import random
import uuid

import nova.conf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nova import exception, objects
from nova.pci import stats
from nova.scheduler import host_manager
from nova.scheduler.filters import numa_topology_filter, pci_passthrough_filter
from oslo_config import fixture as config_fixture

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import contract, hosts, pools, providers, server
from nova_hpc_tools.site.settings import RESULTS_OF_HOST
from scheduler_filters import choice, hpc_topology_filter, nova_fit
from tests.functional import fixtures

CONF = nova.conf.CONF
GPU, VF = "CUSTOM_HPC_GPU", "CUSTOM_HPC_VF"
CELL = str(uuid.uuid4())


@pytest.fixture(autouse=True)
def scheduler(monkeypatch):
    """A scheduler's configuration, and no Placement: the pools have to do."""
    objects.register_all()
    hpc_conf.register_all_options(CONF)
    options = config_fixture.Config(CONF)
    options.setUp()
    options.config(
        pci_in_placement=True,
        enabled_filters=[contract.FILTER, *contract.AFTER],
        group="filter_scheduler",
    )
    monkeypatch.setattr(providers, "free_providers", lambda kind, most: None)
    yield options
    options.cleanUp()


def a_host(rng: random.Random, number: int) -> host_manager.HostState:
    """A host with two NUMA nodes of which anything may be in use."""
    cells = []
    for node in range(2):
        cpus = set(range(node * 8, node * 8 + 8))
        cells.append(
            objects.NUMACell(
                id=node,
                socket=node,
                cpuset=set(),
                pcpuset=cpus,
                pinned_cpus=set(rng.sample(sorted(cpus), rng.choice([0, 0, 3, 7]))),
                memory=8192,
                cpu_usage=0,
                memory_usage=0,
                siblings=[{cpu, cpu + 1} for cpu in sorted(cpus)[::2]],
                mempages=[
                    objects.NUMAPagesTopology(size_kb=4, total=1024, used=0, reserved=0),
                    objects.NUMAPagesTopology(
                        size_kb=2048, total=4096, used=rng.choice([0, 0, 3500]), reserved=0
                    ),
                ],
                network_metadata=objects.NetworkMetadata(physnets=set(), tunneled=False),
            )
        )
    pools = []
    for index in range(8):
        node, switch = index // 4, index // 2
        tags = {
            "hpc_tags": "1",
            "hpc_root": f"pci0000:{0x40 + node:02x}",
            "hpc_switch": f"0000:{0x20 + switch:02x}:00.0",
        }
        for role, name, count in (("gpu", GPU, 1), ("vf", VF, rng.randint(1, 4))):
            if rng.random() < 0.3:
                continue
            own = {} if rng.random() < 0.1 else tags | {"hpc_role": role}
            if own or role == "gpu":
                own = own | {"hpc_resource_class": name, "hpc_tags": "1"}
            pools.append(
                objects.PciDevicePool(
                    vendor_id="10de" if role == "gpu" else "15b3",
                    product_id="20b2" if role == "gpu" else "101e",
                    numa_node=None if rng.random() < 0.05 else node,
                    count=count,
                    tags=own
                    | {
                        "dev_type": "type-PCI" if role == "gpu" else "type-VF",
                        "address": f"0000:{(0x40 if role == 'gpu' else 0x80) + index:02x}:00.0",
                        "rp_uuid": str(uuid.UUID(int=rng.getrandbits(128))),
                    },
                )
            )
    rng.shuffle(pools)
    host = host_manager.HostState(f"host{number}", f"host{number}", CELL)
    host.numa_topology = objects.NUMATopology(cells=cells)
    host.pci_stats = stats.PciDeviceStats(
        host.numa_topology, objects.PciDevicePoolList(objects=pools)
    )
    host.ram_allocation_ratio = host.cpu_allocation_ratio = 1.0
    host.stats = fixtures.healthy_stats()
    return host


def a_request(rng: random.Random) -> objects.RequestSpec:
    """Any flavor that makes sense, as the API hands it to the scheduler."""
    counts = {"gpu": rng.choice([1, 2, 2, 4]), "vf": rng.choice([0, 0, 1, 2])}
    cells = rng.choice([0, 1, 1, 2])
    affinity = rng.choice(["switch", "root", "numa", "host"])
    policy = "preferred" if affinity == "host" else rng.choice(["preferred", "required"])
    listed, groups = [], []
    for name, resource_class in (("gpu", GPU), ("vf", VF)):
        if not counts[name]:
            continue
        if cells == 2 and counts[name] % 2:
            counts[name] += 1
        key = str(uuid.UUID(int=rng.getrandbits(128)))
        listed.append(
            objects.InstancePCIRequest(
                count=counts[name],
                spec=[{"resource_class": resource_class}],
                alias_name=name,
                numa_policy=policy,
                request_id=key,
            )
        )
        groups += [
            objects.RequestGroup(
                requester_id=f"{key}-{index}",
                resources={resource_class: 1},
                required_traits=set(),
                use_same_provider=True,
            )
            for index in range(counts[name])
        ]
    topology = None
    if cells:
        width = rng.choice([2, 4])
        topology = objects.InstanceNUMATopology(
            cells=[
                objects.InstanceNUMACell(
                    id=cell,
                    cpuset=set(),
                    pcpuset=set(range(cell * width, cell * width + width)),
                    cpu_policy="dedicated",
                    cpu_thread_policy=rng.choice([None, "isolate", "require"]),
                    memory=2048,
                    pagesize=rng.choice([2048, None]),
                    cpu_pinning_raw=None,
                )
                for cell in range(cells)
            ]
        )
    specs = {
        "hpc:affinity": affinity,
        "hpc:affinity_policy": rng.choice(["required", "preferred"])
        if policy == "preferred"
        else "required",
        "hw:pci_numa_affinity_policy": policy,
        "hw:cpu_policy": "dedicated",
    }
    return objects.RequestSpec(
        flavor=objects.Flavor(flavorid="any", extra_specs=specs),
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        instance_uuid=str(uuid.UUID(int=rng.getrandbits(128))),
        pci_requests=objects.InstancePCIRequests(requests=listed),
        requested_resources=groups,
        numa_topology=topology,
    )


def placement_offers(hosts, spec):
    """One candidate a host: any free devices, in no order of topology."""
    for host in hosts:
        mappings, allocations = {}, {"node": {"resources": {"PCPU": 2}}}
        for group in spec.requested_resources:
            (resource_class,) = group.resources
            for pool in host.pci_stats.pools:
                used = allocations.get(pool["rp_uuid"], {"resources": {resource_class: 0}})
                if (
                    pool.get("hpc_resource_class") == resource_class
                    and used["resources"][resource_class] < pool["count"]
                ):
                    used["resources"][resource_class] += 1
                    allocations[pool["rp_uuid"]] = used
                    mappings[group.requester_id] = [pool["rp_uuid"]]
                    break
        complete = len(mappings) == len(spec.requested_resources)
        host.allocation_candidates = (
            [{"allocations": allocations, "mappings": mappings}] if complete else []
        )


def offered(seed: int) -> dict[str, object]:
    """host -> its candidate and what was chosen, for a cloud made of *seed*."""
    rng = random.Random(seed)
    hosts = [a_host(rng, number) for number in range(4)]
    spec = a_request(rng)
    placement_offers(hosts, spec)
    before = spec.obj_to_primitive()
    pools = [[dict(pool) for pool in host.pci_stats.pools] for host in hosts]
    try:
        passed = hpc_topology_filter.HpcTopologyFilter().filter_all(hosts, spec)
    except exception.NoValidHost:
        passed = []
    assert spec.obj_to_primitive() == before
    assert [host.pci_stats.pools for host in hosts] == pools
    for host in passed:
        (candidate,) = host.allocation_candidates
        assert set(candidate["mappings"]) == {
            group.requester_id for group in spec.requested_resources
        }
        assert numa_topology_filter.NUMATopologyFilter().host_passes(host, spec)
        assert pci_passthrough_filter.PciPassthroughFilter().host_passes(host, spec)
        assert host.allocation_candidates == [candidate]
        assert nova_fit.check_nova_fit(host, spec, candidate).refusal is None
    return {host.host: (host.allocation_candidates, host.hpc_choice) for host in passed}


@settings(
    deadline=None,
    max_examples=int(os.environ.get("NOVA_HPC_EXAMPLES", "25")),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 2**32))
def test_everything_offered_passes_novas_filters(seed):
    """And it is the same from the caches as without them."""
    first = offered(seed)
    assert offered(seed) == first
    CONF.set_override("cache_size", 0, group="hpc")
    try:
        assert offered(seed) == first
    finally:
        CONF.clear_override("cache_size", group="hpc")


def test_what_hosts_that_are_not_alike_take_of_each_store():
    """``nova-hpc configure`` sets ``[hpc]cache_size`` by the declared hosts."""
    stores = [
        hosts._PATTERNS,
        hosts._BOUND,
        hosts._NODES,
        pools.KNOWN,
        nova_fit._FITS,
        nova_fit._ROOMS,
    ]
    stores += [choice._REDUCED, choice._ANSWERS, choice._TURNED, choice._JUDGED, choice._PLACES]
    number, most = 40, 0
    for seed in range(12):
        for store in stores:
            store.clear()
        rng = random.Random(seed)
        listed, spec = [a_host(rng, each) for each in range(number)], a_request(rng)
        placement_offers(listed, spec)
        hpc_topology_filter.HpcTopologyFilter().filter_all(listed, spec)
        most = max(most, *map(len, stores))
    # The stores are full for the largest of them, and not much too large.
    assert number < most <= RESULTS_OF_HOST * number


def test_the_clouds_above_are_not_all_full():
    """Or the test before this one would prove nothing."""
    found = [offered(seed) for seed in range(12)]
    assert sum(map(len, found)) >= 8
    assert any(not each for each in found)
    levels = {choice.devices.level for each in found for _, choice in each.values()}
    assert len(levels) > 1


def test_candidates_that_cannot_be_refused_are_not_checked(monkeypatch):
    """Nova copies its statistics for every check; without guest cells none is needed."""
    monkeypatch.setattr(
        nova_fit, "check_nova_fit", lambda *arguments: pytest.fail("it was checked")
    )
    seen = 0
    for seed in range(40):
        rng = random.Random(seed)
        spec = a_request(rng)
        if spec.numa_topology is None:
            hosts = [a_host(rng, 0)]
            placement_offers(hosts, spec)
            try:
                seen += len(hpc_topology_filter.HpcTopologyFilter().filter_all(hosts, spec))
            except exception.NoValidHost:
                continue
    assert seen > 0


def test_devices_of_ports_are_checked():
    """They may compete with the chosen ones, and Placement does not name them."""
    spec = a_request(random.Random(1))
    spec.numa_topology = None
    assert nova_fit.FitQuestion.of(spec).is_certain(ambiguous=False)
    assert not nova_fit.FitQuestion.of(spec).is_certain(ambiguous=True)
    port = objects.InstancePCIRequest(
        count=1,
        spec=[{"physical_network": "net"}],
        request_id=str(uuid.uuid4()),
        requester_id=str(uuid.uuid4()),
    )
    assert port.source == objects.InstancePCIRequest.NEUTRON_PORT
    spec.pci_requests.requests.append(port)
    assert not nova_fit.FitQuestion.of(spec).is_certain(ambiguous=False)
    assert len(server.read_server_task(spec).devices) == len(spec.pci_requests.requests) - 1
