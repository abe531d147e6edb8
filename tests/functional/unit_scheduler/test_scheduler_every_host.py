# SPDX-License-Identifier: Apache-2.0
"""A server that some placement could serve is served, and at the tightest level.

From the node's records to the node's claim, with Nova's own classes: the pools that a node
reports, the three filters, the limits, the claim, and the devices that it takes.
"""

from __future__ import annotations

import collections
import random
import time
from types import SimpleNamespace
from unittest import mock

import pytest
from nova import context, objects, test
from nova.compute import claims
from nova.compute import utils as compute_utils
from nova.pci import request as pci_request
from nova.pci import stats
from nova.scheduler import host_manager
from nova.scheduler.filters import numa_topology_filter, pci_passthrough_filter
from nova.virt import hardware
from oslo_config import cfg
from oslo_serialization import jsonutils
from oslo_utils import uuidutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import contract, profile, providers
from nova_hpc.from_nova.patches.serving import serve_flavor
from nova_hpc.from_nova.server import no_image
from nova_hpc_common.level import Level
from scheduler_filters import hpc_topology_filter
from tests.functional import fixtures
from tests.functional.unit_scheduler import small_hosts
from tests.functional.unit_scheduler.small_hosts import World

CONF = cfg.CONF

#: So many of all are tried in the standard set.
SAMPLE = 400


class EveryHostTest(test.NoDBTestCase):
    """Small hosts, each with one server."""

    def setUp(self) -> None:
        super().setUp()
        hpc_conf.register_all_options(CONF)
        self.flags(
            pci_in_placement=True,
            enabled_filters=[contract.FILTER, *contract.AFTER],
            group="filter_scheduler",
        )
        # No other set than the one that is best for what Nova has room for.
        self.flags(candidates_per_host=1, group="hpc")
        self.flags(alias=[jsonutils.dumps(each) for each in fixtures.ID_ALIASES], group="pci")
        for patch in (
            mock.patch.object(providers, "free_providers", return_value=None),
            mock.patch.object(hpc_topology_filter, "CLOUD_PROFILES", profile.CloudProfiles()),
            mock.patch("nova.pci.utils.is_physical_function", return_value=True),
            mock.patch("nova.pci.utils.get_function_by_ifname", return_value=(None, False)),
        ):
            patch.start()
            self.addCleanup(patch.stop)
        self.filters = (
            hpc_topology_filter.HpcTopologyFilter(),
            numa_topology_filter.NUMATopologyFilter(),
            pci_passthrough_filter.PciPassthroughFilter(),
        )

    def test_a_sample(self) -> None:
        every = list(small_hosts.worlds())
        self._try(random.Random(20261123).sample(every, SAMPLE))

    @pytest.mark.slow
    def test_all(self) -> None:
        self._try(small_hosts.worlds())

    def _try(self, worlds) -> None:
        found: collections.Counter[str] = collections.Counter()
        begin = time.monotonic()
        for world in worlds:
            spec = self._spec(world)
            possible = small_hosts.tightest(world, spec.numa_topology)
            reached = self._serve(world, spec)
            self.assertEqual(possible, reached, world)
            found["refused" if reached is None else reached.word] += 1
        # Each answer is there, so none of them is the only one that could be.
        self.assertEqual({"refused", *(level.word for level in Level)} - {"root"}, set(found))
        print(f"\nRESULT: {dict(found)} in {time.monotonic() - begin:.0f} s")

    def _spec(self, world: World) -> objects.RequestSpec:
        flavor = objects.Flavor(
            flavorid="small",
            vcpus=2 * world.cells,
            memory_mb=256 * world.cells,
            root_gb=1,
            ephemeral_gb=0,
            swap=0,
            extra_specs=world.extra_specs,
        )
        image = no_image()
        policy = hardware.get_pci_numa_policy_constraint(flavor, image)
        spec = objects.RequestSpec(
            flavor=flavor,
            image=image,
            instance_uuid=uuidutils.generate_uuid(),
            num_instances=1,
            numa_topology=hardware.numa_get_constraints(flavor, image),
            pci_requests=pci_request.get_pci_requests_from_flavor(flavor, affinity_policy=policy),
            requested_resources=[],
        )
        spec.generate_request_groups_from_pci_requests()
        return spec

    def _serve(self, world: World, spec: objects.RequestSpec) -> Level | None:
        """The level that the server reaches on the node; None: it is refused."""
        node = self._node(world)
        host = self._host(world, node, spec)
        hosts = list(self.filters[0].filter_all([host], spec))
        if not hosts:
            return None
        self.assertEqual([host], hosts)
        for other in self.filters[1:]:
            self.assertTrue(other.host_passes(host, spec), (type(other), world))
        (candidate,) = host.allocation_candidates
        compute_utils.update_pci_request_with_placement_allocations(
            None, None, spec.pci_requests.requests, candidate["mappings"]
        )
        instance = objects.Instance(
            uuid=spec.instance_uuid,
            flavor=spec.flavor,
            numa_topology=hardware.numa_get_constraints(spec.flavor, spec.image),
        )
        with serve_flavor(spec.flavor, spec.image):
            claim = claims.Claim(
                context.get_admin_context(),
                instance,
                "node",
                SimpleNamespace(pci_tracker=SimpleNamespace(stats=node)),
                objects.ComputeNode(numa_topology=world.topology()._to_json()),
                spec.pci_requests,
                limits={"numa_topology": host.limits["numa_topology"]},
            )
            cells = claim.claimed_numa_topology.cells
            taken = node.consume_requests(spec.pci_requests.requests, cells)
        self._check_allocated(candidate, taken, world)
        truth = world.shape.locations()
        given: dict[str, list] = {name: [] for name in world.devices}
        for device in taken:
            given["vf" if device.parent_addr else "gpu"].append(truth[device.address])
        self.assertEqual(dict(world.devices), {name: len(some) for name, some in given.items()})
        return small_hosts.level_of(world, [cell.id for cell in cells], given)

    def _check_allocated(self, candidate: dict, taken: list, world: World) -> None:
        """The node takes what Placement has allocated."""
        providers_of = collections.Counter(device.extra_info["rp_uuid"] for device in taken)
        allocated = {
            each: sum(found["resources"].values())
            for each, found in candidate["allocations"].items()
            if each != uuids.node
        }
        self.assertEqual(allocated, dict(providers_of), world)

    def _node(self, world: World) -> stats.PciDeviceStats:
        """What a node has: each function in the pool that its tags make."""
        self.flags(
            device_spec=[jsonutils.dumps(e) for e in world.shape.device_spec(classes=False)],
            group="pci",
        )
        node = stats.PciDeviceStats(world.topology())
        for each in world.shape.functions():
            if each.kind == "pf":
                continue
            parent = each.address[:-1] + "0" if each.kind == "vf" else None
            product = fixtures.VF_PRODUCT if parent else fixtures.GPU_PRODUCT
            device = objects.PciDevice.create(
                None,
                {
                    "compute_node_id": 1,
                    "address": each.address,
                    "parent_addr": parent,
                    "vendor_id": fixtures.NIC_VENDOR if parent else fixtures.GPU_VENDOR,
                    "product_id": product,
                    "numa_node": each.location.numa,
                    "dev_type": "type-VF" if parent else "type-PCI",
                    "label": "label",
                    "dev_id": each.address,
                },
            )
            device.extra_info = {"rp_uuid": getattr(uuids, parent or each.address)}
            node.add_device(device)
        node.populate_pools_metadata_from_assigned_devices()
        return node

    def _host(
        self, world: World, node: stats.PciDeviceStats, spec: objects.RequestSpec
    ) -> host_manager.HostState:
        """The same as the scheduler reads it, with a candidate of Placement's."""
        host = host_manager.HostState("host", "node", uuids.cell)
        host.numa_topology = world.topology()
        host.pci_stats = stats.PciDeviceStats(host.numa_topology, node.to_device_pools_obj())
        host.ram_allocation_ratio = host.cpu_allocation_ratio = 1.0
        host.stats = fixtures.healthy_stats()
        allocations: dict = {uuids.node: {"resources": {"PCPU": 2}}}
        mappings = {}
        first = {pool["product_id"]: pool["rp_uuid"] for pool in host.pci_stats.pools}
        for group in spec.requested_resources:
            ((name, amount),) = group.resources.items()
            product = name.rpartition("_")[2].lower()
            provider = first.get(product)
            if provider is None:
                host.allocation_candidates = []
                return host
            resources = allocations.setdefault(provider, {"resources": {}})["resources"]
            resources[name] = resources.get(name, 0) + amount
            mappings[group.requester_id] = [provider]
        host.allocation_candidates = [{"allocations": allocations, "mappings": mappings}]
        return host
