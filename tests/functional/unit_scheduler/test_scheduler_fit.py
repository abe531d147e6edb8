# SPDX-License-Identifier: Apache-2.0
"""What Nova's own functions are asked of a candidate, and when they need not be."""

from __future__ import annotations

import copy
from unittest import mock

from nova import objects
from nova.pci import stats
from nova.scheduler.filters.numa_topology_filter import NUMATopologyFilter
from oslo_config import cfg
from oslo_utils.fixture import uuidsentinel as uuids

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova.patches import scheduler
from nova_hpc.from_nova.patches.serving import serve_flavor
from scheduler_filters import nova_fit
from tests.functional import fixtures
from tests.functional.unit_scheduler.states import HostStates, guest_cell, pci_request, pool, spec

CONF = cfg.CONF


class NovaDropsDevicesTest(HostStates):
    """Nova gives fewer devices than are allocated; with the wraps it gives them all."""

    def setUp(self) -> None:
        super().setUp()
        hpc_conf.register_all_options(CONF)
        scheduler.install_scheduler_patches()

    def candidate(self, *providers: str) -> dict:
        return {
            "mappings": {
                f"{uuids.request}-{index}": [provider] for index, provider in enumerate(providers)
            }
        }

    def left(self) -> list[int]:
        """What is free of two adapters when one function of each was allocated."""
        host = self.host(pool(1, count=2), pool(2, numa=1, count=2))
        mapping = self.candidate(uuids.gpu1, uuids.gpu2)["mappings"]
        cells = [objects.InstanceNUMACell(id=1)]
        host.pci_stats.apply_requests([pci_request(2)], mapping, cells)
        return [each["count"] for each in host.pci_stats.pools]

    def test_stock_nova_drops_an_allocated_function(self) -> None:
        """Upstream: the adapter beside the guest has enough, so the other is not looked at."""
        self.assertEqual([2, 1], self.left())

    def test_a_flavor_without_our_keys_stays_with_stock_nova(self) -> None:
        plain = objects.Flavor(extra_specs={"pci_passthrough:alias": "gpu:2"})
        with serve_flavor(plain, None):
            self.assertEqual([2, 1], self.left())

    def test_all_are_given_to_ours(self) -> None:
        with serve_flavor(spec().flavor, None):
            self.assertEqual([1, 1], self.left())

    def test_it_fits(self) -> None:
        host = self.host(pool(1, count=2), pool(2, numa=1, count=2))
        asked = spec(2, numa_topology=guest_cell())
        before = asked.numa_topology.obj_to_primitive()
        self.assertIsNone(
            nova_fit.check_nova_fit(host, asked, self.candidate(uuids.gpu1, uuids.gpu2)).refusal
        )
        strict = spec(2, policy="required", numa_topology=guest_cell())
        fitted = nova_fit.check_nova_fit(host, strict, self.candidate(uuids.gpu1, uuids.gpu2))
        self.assertIn("too far from the NUMA nodes", fitted.refusal)
        together = nova_fit.check_nova_fit(host, asked, self.candidate(uuids.gpu2, uuids.gpu2))
        self.assertIsNone(together.refusal)
        self.assertEqual({0: 1}, together.cells)
        self.assertEqual(before, asked.numa_topology.obj_to_primitive())
        self.assertEqual([2, 2], [each["count"] for each in host.pci_stats.pools])

    def test_a_candidate_of_too_few_devices(self) -> None:
        """Nova gives what the candidate names, and says nothing of the rest."""
        host = self.host(pool(1, count=2), pool(2, numa=1, count=2))
        fitted = nova_fit.check_nova_fit(host, spec(2), self.candidate(uuids.gpu1))
        self.assertEqual("the candidate has 1 of 2 devices", fitted.refusal)

    def test_no_numa_topology_of_the_host(self) -> None:
        host = self.host(pool(1), nodes=0)
        fitted = nova_fit.check_nova_fit(
            host, spec(numa_topology=guest_cell()), self.candidate(uuids.gpu1)
        )
        self.assertIn("no NUMA topology", fitted.refusal)


class NodesTest(HostStates):
    """On which NUMA node Nova puts a guest with one device, and with which wraps."""

    OURS = {"hpc:affinity": "host", "hw:pci_numa_affinity_policy": "preferred"}

    def setUp(self) -> None:
        super().setUp()
        hpc_conf.register_all_options(CONF)
        scheduler.install_scheduler_patches()

    def node(self, specs: dict[str, str], physnet_on: int | None = None) -> int | None:
        """The device is on node 1; node 0 has more devices of which none is wanted."""
        others = pool(2, numa=0, count=4)
        others.product_id = fixtures.VF_PRODUCT
        host = self.host(pool(1, numa=1), others)
        request = pci_request()
        request.spec = [{"product_id": fixtures.GPU_PRODUCT}]
        if physnet_on is not None:
            cell = host.numa_topology.cells[physnet_on]
            cell.network_metadata = objects.NetworkMetadata(physnets={"net"}, tunneled=False)
        limits = objects.NUMATopologyLimits(
            cpu_allocation_ratio=1.0,
            ram_allocation_ratio=1.0,
            network_metadata=objects.NetworkMetadata(physnets={"net"}, tunneled=False),
        )
        guest = guest_cell()
        with serve_flavor(objects.Flavor(extra_specs=specs), None):
            fitted = nova_fit.hardware.numa_fit_instance_to_host(
                host.numa_topology,
                guest,
                provider_mapping={f"{uuids.request}-0": [uuids.gpu1]},
                limits=limits,
                pci_requests=[request],
                pci_stats=host.pci_stats,
            )
        return fitted.cells[0].id

    def test_stock_flavors_follow_the_most_devices(self) -> None:
        self.assertEqual(0, self.node({"hw:pci_numa_affinity_policy": "preferred"}))

    def test_ours_follow_their_own_device(self) -> None:
        self.assertEqual(1, self.node(self.OURS))

    def test_a_network_of_the_other_node_is_still_there(self) -> None:
        """Nova refuses a node where another has the network; the others stay to be asked."""
        self.assertEqual(0, self.node(self.OURS, physnet_on=0))
        self.assertEqual(1, self.node(self.OURS, physnet_on=1))

    def test_what_cannot_be_ordered_is_novas_choice(self) -> None:
        self.assertEqual(0, self.node({**self.OURS, "hpc:affinity": "no such word"}))

    def test_a_guest_that_did_not_fit_is_asked_about_as_it_was(self) -> None:
        """Nova writes the size of a page and the pinned CPUs into it, also of the wrong node."""
        host = self.host(pool(1, numa=1))
        # Pages of any size.
        asked = spec(numa_topology=guest_cell(-3))
        asked.flavor.extra_specs = self.OURS
        # Large pages are beside the device, but one CPU alone; elsewhere there are small pages.
        host.numa_topology.cells[1].pinned_cpus = set(range(8, 15))
        del host.numa_topology.cells[0].mempages[1]
        fitted = nova_fit.check_nova_fit(
            host, asked, {"mappings": {f"{uuids.request}-0": [uuids.gpu1]}}
        )
        self.assertEqual({0: 0}, fitted.cells)


class RememberedTest(HostStates):
    """An answer is kept by all that Nova goes by, and by nothing else."""

    def setUp(self) -> None:
        super().setUp()
        hpc_conf.register_all_options(CONF)

    def ask(self, host, asked) -> nova_fit.Fit:
        candidate = {"mappings": {f"{uuids.request}-0": [uuids.gpu1]}}
        return nova_fit.recall_nova_fit(
            nova_fit.FitQuestion.of(asked), host, candidate, "the same pools and device"
        )

    def test_a_host_that_has_filled_up_is_asked_again(self) -> None:
        asked = spec(numa_topology=guest_cell())
        host = self.host(pool(1))
        self.assertEqual({0: 0}, self.ask(host, asked).cells)
        self.assertIs(self.ask(host, asked), self.ask(self.host(pool(1)), asked))
        host.numa_topology.cells[0].pinned_cpus = set(range(8))
        host.numa_topology.cells[1].pinned_cpus = set(range(8, 16))
        self.assertIn("too few free CPUs", self.ask(host, asked).refusal)
        host = self.host(pool(1))
        for cell in host.numa_topology.cells:
            cell.mempages[1].used = 95
        self.assertIn("too few free CPUs or memory pages", self.ask(host, asked).refusal)

    def test_another_guest_is_asked_for_again(self) -> None:
        host = self.host(pool(1))
        for cell in host.numa_topology.cells:
            cell.mempages[1].used = 95
        self.assertIsNotNone(self.ask(host, spec(numa_topology=guest_cell())).refusal)
        self.assertIsNone(self.ask(host, spec(numa_topology=guest_cell(4))).refusal)

    def test_networks_of_a_server_are_its_own(self) -> None:
        asked = spec(numa_topology=guest_cell())
        self.assertIsNotNone(nova_fit.FitQuestion.of(asked).key)
        asked.network_metadata = objects.NetworkMetadata(physnets={"net"}, tunneled=False)
        self.assertIsNone(nova_fit.FitQuestion.of(asked).key)


class LightTest(HostStates):
    """Nova's statistics whose copies cost little."""

    def test_a_copy_is_a_copy(self) -> None:
        host = self.host(pool(1, count=2))
        nova_fit.lighten_host_state(host)
        copied = copy.deepcopy(host.pci_stats)
        copied.pools[0]["count"] = 0
        self.assertEqual(2, host.pci_stats.pools[0]["count"])
        # What costs: the topology of the host, which nobody changes.
        self.assertIs(host.numa_topology, copied.numa_topology)

    def test_what_nova_takes_from_it_is_gone(self) -> None:
        host = self.host(pool(1, count=2))
        nova_fit.lighten_host_state(host)
        mapping = {f"{uuids.request}-0": [uuids.gpu1]}
        host.pci_stats.apply_requests([pci_request()], mapping)
        self.assertEqual([1], [each["count"] for each in host.pci_stats.pools])

    def test_statistics_of_somebody_else_stay(self) -> None:
        class Theirs(stats.PciDeviceStats):
            pass

        host = self.host(pool(1))
        host.pci_stats = Theirs(host.numa_topology)
        before = host.pci_stats
        nova_fit.lighten_host_state(host)
        self.assertIs(before, host.pci_stats)


class LightRequestTest(HostStates):
    """Nova's NUMA filter copies the request for each host; of ours only what it changes."""

    def setUp(self) -> None:
        super().setUp()
        hpc_conf.register_all_options(CONF)
        scheduler.install_scheduler_patches()

    def asked(self, **keywords: object) -> objects.RequestSpec:
        image = objects.ImageMeta.from_dict({})
        return spec(image=image, numa_topology=guest_cell(), **keywords)

    def test_the_request_is_not_changed(self) -> None:
        asked = self.asked()
        before, changed = asked.obj_to_primitive(), asked.obj_what_changed()
        numa = NUMATopologyFilter()
        for provider, fits in ((uuids.gpu1, True), (uuids.gpu2, True), (uuids.gpu1, False)):
            host = self.host(pool(1), pool(2, numa=1))
            self.offered(host, provider)
            if not fits:
                for cell in host.numa_topology.cells:
                    cell.pinned_cpus = set(cell.pcpuset)
            self.assertEqual(fits, numa.host_passes(host, asked))
            self.assertEqual(fits, "numa_topology" in host.limits)
        self.assertEqual(before, asked.obj_to_primitive())
        self.assertEqual(changed, asked.obj_what_changed())

    def test_a_clone_is_the_same(self) -> None:
        """But for the guest's topology, which is its own."""
        asked = self.asked()
        light = scheduler._LightRequestSpec.of(asked)
        clone = light.obj_clone()
        for name in asked.fields:
            self.assertEqual(name in asked, name in clone, name)
            if name in asked and name != "numa_topology":
                self.assertIs(getattr(asked, name), getattr(clone, name), name)
        self.assertEqual(
            asked.numa_topology.obj_to_primitive(), clone.numa_topology.obj_to_primitive()
        )
        clone.numa_topology.cells[0].id = 7
        clone.numa_topology.cells[0].pin_vcpus((0, 8), (1, 9))
        clone.instance_uuid = uuids.other
        self.assertEqual(0, asked.numa_topology.cells[0].id)
        self.assertFalse(asked.numa_topology.cells[0].cpu_pinning)
        self.assertEqual(uuids.instance, asked.instance_uuid)
        self.assertIs(type(asked), objects.RequestSpec)

    def test_flavors_of_others_are_copied_as_ever(self) -> None:
        asked = self.asked()
        asked.flavor.extra_specs = {}
        host = self.host(pool(1))
        self.offered(host, uuids.gpu1)
        with mock.patch.object(scheduler._LightRequestSpec, "of") as light:
            self.assertTrue(NUMATopologyFilter().host_passes(host, asked))
        light.assert_not_called()
