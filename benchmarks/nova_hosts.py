# SPDX-License-Identifier: Apache-2.0
"""Real HostStates of Nova, real requests, and the answers that Placement would give for them."""

from __future__ import annotations

import itertools
import json
import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock
from urllib import parse

import attrs
from nova import context as nova_context
from nova import objects
from nova.objects import fields
from nova.pci import request as pci_request
from nova.pci import stats as pci_stats
from nova.scheduler import host_manager
from nova.virt import hardware
from oslo_config import cfg

from benchmarks.hosts import place
from nova_hpc.wire import stats
from nova_hpc.wire.tags import Tags

CONF = cfg.CONF

GPU_CLASS = "CUSTOM_HPC_GPU"
ALIAS = json.dumps({"name": "gpu", "resource_class": GPU_CLASS})
SWITCHES, GPUS = 4, 2  # of each host, and below each switch


@attrs.frozen
class Machine:
    """One host: Nova's state of it, and its free devices."""

    state: Any
    pools: Any  # PciDevicePoolList, as the compute node saved it
    #: Providers of the free GPUs.
    free: tuple[str, ...]


def machines(count: int, seed: int = 1) -> list[Machine]:
    """Hosts of two sockets, four switches and eight GPUs, some of them in use.

    The used devices are drawn for each host, and also the CPUs and pages of servers
    without GPUs. So hosts differ as in a real cloud.
    """
    rng = random.Random(seed)
    return [_machine(index, rng) for index in range(count)]


def _machine(index: int, rng: random.Random) -> Machine:
    name = f"node{index:05d}"
    used = set(rng.sample(range(SWITCHES * GPUS), rng.choice((0, 0, 1, 2, 3, 4))))
    pools, free = [], []
    for number in range(SWITCHES * GPUS):
        switch, slot = divmod(number, GPUS)
        where = place(switch, SWITCHES)
        provider = str(uuid.UUID(int=rng.getrandbits(128), version=4))
        address = f"0000:{0x40 + switch:02x}:{slot:02x}.0"
        tags = Tags(location=where, role="gpu", resource_class=GPU_CLASS).to_spec()
        tags |= {
            "address": address,
            "rp_uuid": provider,
            "resource_class": GPU_CLASS,
            "dev_type": fields.PciDeviceType.STANDARD,
            "managed": "no",
        }
        pool = objects.PciDevicePool(
            vendor_id="10de",
            product_id="20b2",
            numa_node=where.numa,
            count=int(number not in used),
            tags=tags,
        )
        pools.append(pool)
        if number not in used:
            free.append(provider)
    # Other servers use CPUs and pages, too, so that no two hosts are equal.
    numa = _numa([(rng.randrange(9), rng.randrange(256)) for _ in range(2)])
    saved = objects.PciDevicePoolList(objects=pools)
    compute = objects.ComputeNode(
        id=index + 1,
        uuid=str(uuid.UUID(int=rng.getrandbits(128), version=4)),
        host=name,
        hypervisor_hostname=name,
        free_disk_gb=1000,
        disk_available_least=1000,
        local_gb=1000,
        local_gb_used=0,
        memory_mb=2**20,
        memory_mb_used=0,
        free_ram_mb=2**20,
        vcpus=32,
        vcpus_used=0,
        updated_at=None,
        numa_topology=numa,
        pci_device_pools=saved,
        host_ip="127.0.0.1",
        hypervisor_type="QEMU",
        hypervisor_version=8002000,
        cpu_info="{}",
        supported_hv_specs=[],
        metrics=None,
        # The report of HpcLibvirtDriver for a node without faults.
        stats={stats.KEY: stats.StatsDocument().dumps()},
        cpu_allocation_ratio=1.0,
        ram_allocation_ratio=1.0,
        disk_allocation_ratio=1.0,
    )
    state = host_manager.HostState(name, name, str(uuid.UUID(int=1)))
    state.update(compute=compute, service={}, aggregates=[], inst_dict={})
    return Machine(state, saved, tuple(free))


def _numa(used: Sequence[tuple[int, int]]) -> str:
    """NUMA nodes with 16 dedicated CPUs and 512 GiB each.

    :param used: used CPUs and pages of 1 GiB of each node.
    """
    cells = [
        objects.NUMACell(
            id=node,
            socket=node,
            cpuset=set(),
            pcpuset=set(range(node * 16, node * 16 + 16)),
            memory=512 * 1024,
            cpu_usage=cpus,
            memory_usage=pages * 1024,
            pinned_cpus=set(range(node * 16, node * 16 + cpus)),
            siblings=[{cpu} for cpu in range(node * 16, node * 16 + 16)],
            mempages=[
                objects.NUMAPagesTopology(size_kb=4, total=0, used=0),
                objects.NUMAPagesTopology(size_kb=1048576, total=512, used=pages),
            ],
        )
        for node, (cpus, pages) in enumerate(used)
    ]
    return str(objects.NUMATopology(cells=cells)._to_json())


def request(gpus: int, ours: bool, cell: bool) -> objects.RequestSpec:
    """The request for a server with *gpus* GPUs.

    :param cell: whether it also has dedicated CPUs and huge pages on one guest cell
        next to the GPUs.
    """
    CONF.set_override("alias", [ALIAS], group="pci")
    specs = {"pci_passthrough:alias": f"gpu:{gpus}"}
    if cell:
        specs |= {
            "hw:cpu_policy": "dedicated",
            "hw:numa_nodes": "1",
            "hw:mem_page_size": "1048576",
            "hw:pci_numa_affinity_policy": "required",
        }
    if ours:
        specs["hpc:affinity"] = "switch" if gpus <= GPUS else "numa"
    flavor = objects.Flavor(
        id=1, flavorid="hpc", name="hpc", vcpus=8, memory_mb=16384, root_gb=1, ephemeral_gb=0,
        swap=0, rxtx_factor=1.0, vcpu_weight=0, is_public=True, disabled=False,
        description=None, extra_specs=specs,
    )  # fmt: skip
    image = objects.ImageMeta(properties=objects.ImageMetaProps())
    policy = hardware.get_pci_numa_policy_constraint(flavor, image)
    spec: objects.RequestSpec = objects.RequestSpec.from_components(
        nova_context.get_admin_context(),
        str(uuid.UUID(int=gpus)),
        image,
        flavor,
        hardware.numa_get_constraints(flavor, image),
        pci_request.get_pci_requests_from_flavor(flavor, affinity_policy=policy),
        {}, None, None, project_id="benchmark", user_id="benchmark",
    )  # fmt: skip
    return spec


def candidates(machine: Machine, spec: objects.RequestSpec, most: int) -> list[dict[str, Any]]:
    """Placement's allocation candidates on one host, at most *most*."""
    groups = [group.requester_id for group in spec.requested_resources]
    found = []
    for chosen in itertools.islice(itertools.permutations(machine.free, len(groups)), most):
        allocations: dict[str, Any] = {
            provider: {"resources": {GPU_CLASS: 1}} for provider in chosen
        }
        allocations[machine.state.uuid] = {
            "resources": {"PCPU": 8, "MEMORY_MB": 16384, "DISK_GB": 1}
        }
        mappings = {group: [one] for group, one in zip(groups, chosen, strict=True)}
        mappings[""] = [machine.state.uuid]
        found.append({"allocations": allocations, "mappings": mappings})
    return found


def prepare(all_machines: Sequence[Machine], answers: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Host states as before Nova's filters run, without results of an earlier pass."""
    hosts = []
    for machine in all_machines:
        state = machine.state
        state.pci_stats = pci_stats.PciDeviceStats(state.numa_topology, stats=machine.pools)
        state.limits = {}
        # The filters replace the list and never change its entries.
        state.allocation_candidates = list(answers[state.uuid])
        for name in [name for name in vars(state) if name.startswith("hpc_")]:
            delattr(state, name)
        if state.allocation_candidates:
            hosts.append(state)
    return hosts


class FreeDevices:
    """A stand-in for Placement that returns the free devices to the filter."""

    def __init__(self, all_machines: Sequence[Machine]) -> None:
        providers = [
            {
                "uuid": provider,
                "name": f"{machine.state.host}_0000:40:00.0",
                "generation": 7,
                "root_provider_uuid": machine.state.uuid,
                "parent_provider_uuid": machine.state.uuid,
                "links": [
                    {"rel": rel, "href": f"/resource_providers/{provider}/{rel}"}
                    for rel in ("self", "inventories", "usages", "aggregates", "traits")
                ],
            }
            for machine in all_machines
            for provider in machine.free
        ]
        self._one = json.dumps({"resource_providers": providers})
        self._more = json.dumps({"resource_providers": []})

    def get(self, url: str, version: str | None = None, **keywords: object) -> Any:
        """The answer of the report client's ``get``; its JSON is parsed at each call."""
        (asked,) = parse.parse_qs(parse.urlsplit(url).query)["resources"]
        text = self._one if asked == f"{GPU_CLASS}:1" else self._more
        return mock.Mock(status_code=200, json=lambda: json.loads(text))
