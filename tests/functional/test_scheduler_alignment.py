# SPDX-License-Identifier: Apache-2.0
"""Servers get devices that sit together, and exactly those that were chosen."""

from __future__ import annotations

import pytest
from nova import context as nova_context
from nova import objects
from oslo_serialization import jsonutils

from nova_hpc_common.level import Level
from tests.functional import base, fixtures
from tests.functional.fixtures import Shape, Switch

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}


@pytest.mark.slow
class TwentyServersTest(base.HpcServersTest):
    """The same twenty servers, with the filter and without."""

    SERVERS = 20
    # Stock Nova checks each candidate; two a host are as good as twenty here.
    CANDIDATES = 10

    def test_none_is_scattered(self) -> None:
        for index in range(5):
            self.start_host(f"host{index}", fixtures.two_switches(gpus=4))
        flavor = self.make_flavor(PAIR)
        servers = [self.boot(flavor) for _ in range(self.SERVERS)]
        self.assert_given_once()
        with_filter = self.scattered(servers)
        self.assertEqual([2] * self.SERVERS, [len(self.devices_of(each)) for each in servers])
        for server in servers:
            self._delete_server(server)

        self.restart_scheduler(with_filter=False)
        stock = self.make_flavor({"pci_passthrough:alias": "gpu:2"})
        servers = [self.boot(stock) for _ in range(self.SERVERS)]
        without = self.scattered(servers)
        print(
            f"\nRESULT: {self.SERVERS} servers of two GPUs on hosts with two switches: "
            f"{with_filter} scattered with HpcTopologyFilter, {without} without"
        )
        self.assertEqual(0, with_filter)
        # Stock Nova takes what Placement lists first, in no order of topology.
        self.assertGreater(without, 0)


class AlignmentTest(base.HpcServersTest):
    """What is chosen on one host."""

    def test_packs_the_tightest_switch(self) -> None:
        """A single GPU does not break a pair that a later server needs."""
        self.start_host("one", Shape((Switch(gpus=1), Switch(gpus=2))))
        single = self.boot(
            self.make_flavor({"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"})
        )
        self.assertEqual("pci0000:40", self.locations_of(single)[0].root)
        pair = self.boot(self.make_flavor(PAIR))
        self.assertIs(Level.SWITCH, self.level_of(pair))
        self.assert_given_once()

    def test_gpu_and_functions_of_the_adapter_beside_it(self) -> None:
        self.start_host("one", Shape((Switch(gpus=2, pfs=1), Switch(gpus=2, pfs=1, numa=1))))
        flavor = self.make_flavor(
            {
                "pci_passthrough:alias": "gpu:1,vf:2",
                "hpc:affinity": "switch",
                "hpc:group": "gpu:1,vf:2",
            }
        )
        servers = [self.boot(flavor) for _ in range(4)]
        self.assertEqual(0, self.scattered(servers))
        for server in servers:
            kinds = sorted(each.dev_type for each in self.devices_of(server))
            self.assertEqual(["type-PCI", "type-VF", "type-VF"], kinds)
            self.assertEqual(
                [each.address for each in self.devices_of(server)], self.domain_devices(server)
            )
        self.assert_given_once()

    def test_placement_and_the_node_agree(self) -> None:
        self.start_host("one", Shape((Switch(gpus=1, pfs=1), Switch(gpus=1, pfs=1))))
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:1,vf:2", "hpc:affinity": "switch"})
        server = self.boot(flavor)
        devices = self.devices_of(server)
        physical = {device.parent_addr or device.address for device in devices}
        allocations = self._get_allocations_by_server_uuid(server["id"])
        names = {}
        for uuid, allocation in allocations.items():
            provider = self._get_resource_provider_by_uuid(uuid)
            names[provider["name"]] = allocation["resources"]
        self.assertEqual({"one"} | {f"one_{address}" for address in physical}, set(names))
        amounts = sorted(
            amount for name, given in names.items() if name != "one" for amount in given.values()
        )
        self.assertEqual([1, 2], amounts)

    def test_pools_that_lag_behind(self) -> None:
        """Devices of a server that is being built are not chosen again.

        They are claimed in Placement, but the compute node has not yet saved
        its pools.
        """
        self.start_host("one", fixtures.two_switches(gpus=2))
        context = nova_context.get_admin_context()
        before = objects.ComputeNode.get_by_nodename(context, "one").pci_device_pools
        flavor = self.make_flavor(PAIR)
        first = self.boot(flavor)
        node = objects.ComputeNode.get_by_nodename(context, "one")
        self.assertNotEqual(before.obj_to_primitive(), node.pci_device_pools.obj_to_primitive())
        node.pci_device_pools = before
        node.save()
        second = self.boot(flavor)
        self.assertEqual(0, self.scattered([first, second]))
        self.assert_given_once()

    def test_reserved_device(self) -> None:
        """A device that an operator reserved in Placement is left alone."""
        self.start_host("one", Shape((Switch(gpus=1), Switch(gpus=2))))
        self._reserve_placement_resource("one_0000:40:00.0", fixtures.GPU_CLASS, 1)
        server = self.boot(
            self.make_flavor({"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"})
        )
        self.assertEqual("pci0000:41", self.locations_of(server)[0].root)


class IdAliasTest(base.HpcServersTest):
    """Aliases by vendor and product, devices without resource classes."""

    PCI_ALIAS = [jsonutils.dumps(each) for each in fixtures.ID_ALIASES]

    def test_default_resource_class(self) -> None:
        shape = Shape((Switch(gpus=2, pfs=1), Switch(gpus=2, pfs=1)))
        self.start_host("one", shape, shape.device_spec(classes=False))
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:2,vf:1", "hpc:affinity": "switch"})
        servers = [self.boot(flavor) for _ in range(2)]
        self.assertEqual(0, self.scattered(servers))
        self.assert_given_once()


class FragmentedTest(base.HpcServersTest):
    """Free GPUs only across switches."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host("secret", fixtures.two_switches(gpus=1))

    def test_required_is_refused_with_the_nearest_miss(self) -> None:
        server = self.boot(self.make_flavor(PAIR), state="ERROR")
        fault = self.fault(server)
        self.assertIn("No valid host was found", fault)
        self.assertIn("switch", fault)
        self.assertNotIn("secret", fault)
        self.assertNotIn("0000:", fault)
        lines = self.log_lines("HpcTopologyFilter rejects secret, secret")
        self.assertEqual(1, len(lines))
        self.assertIn("2 gpu free", lines[0])
        self.assertIn("switch", lines[0])

    def test_preferred_is_placed(self) -> None:
        server = self.boot(self.make_flavor(PAIR | {"hpc:affinity_policy": "preferred"}))
        self.assertIs(Level.NUMA, self.level_of(server))
        self.assertEqual(2, len(self.devices_of(server)))

    def test_wider_level_is_placed(self) -> None:
        server = self.boot(self.make_flavor(PAIR | {"hpc:affinity": "numa"}))
        self.assertEqual(2, len(self.devices_of(server)))


class CellsTest(base.HpcServersTest):
    """Guests with NUMA cells of their own."""

    SPECS = {
        "hw:cpu_policy": "dedicated",
        "hw:pci_numa_affinity_policy": "required",
        "hpc:affinity": "switch",
    }

    def setUp(self) -> None:
        self.flags(cpu_dedicated_set="0-15", group="compute")
        super().setUp()

    def assert_on_cells(self, server: dict, each: dict[str, int]) -> None:
        """Every cell has exactly *each* devices beside it, in the domain."""
        truth = self.shapes[self.host_of(server)]
        kinds = {function.address: function.kind for function in truth.functions()}
        locations = truth.locations()
        domain = self.domain_devices(server)
        for node in self.domain_nodes(server).values():
            here = [kinds[address] for address in domain if locations[address].numa == node]
            counts = {kind: here.count(kind) for kind in set(here)}
            self.assertEqual(each, counts, f"NUMA node {node} of {domain}")

    def test_two_cells_four_groups(self) -> None:
        """Two groups beside each cell, not four beside any."""
        shape = Shape(
            tuple(Switch(gpus=4, pfs=1, vfs=4, numa=node) for node in (0, 0, 1, 1)),
            cores=3,
        )
        self.start_host("one", shape)
        flavor = self.make_flavor(
            self.SPECS
            | {
                "hw:numa_nodes": "2",
                "pci_passthrough:alias": "gpu:4,vf:4",
                "hpc:group": "gpu:1,vf:1",
            },
            vcpu=4,
        )
        server = self.boot(flavor)
        self.assertEqual(8, len(self.devices_of(server)))
        self.assertEqual({0: 0, 1: 1}, self.domain_nodes(server))
        self.assert_on_cells(server, {"gpu": 2, "vf": 2})
        # Every GPU has its adapter under the same switch.
        truth = self.shapes["one"]
        kinds = {function.address: function.kind for function in truth.functions()}
        roots: dict[str, list[str]] = {}
        for device in self.devices_of(server):
            root = truth.locations()[device.address].root
            roots.setdefault(root, []).append(kinds[device.address])
        for kinds_here in roots.values():
            self.assertEqual(kinds_here.count("gpu"), kinds_here.count("vf"))

    def test_one_group_a_cell_by_default(self) -> None:
        shape = Shape(tuple(Switch(gpus=2, numa=node) for node in (0, 0, 1, 1)), cores=3)
        self.start_host("one", shape)
        flavor = self.make_flavor(
            self.SPECS | {"hw:numa_nodes": "2", "pci_passthrough:alias": "gpu:4"}, vcpu=4
        )
        server = self.boot(flavor)
        self.assert_on_cells(server, {"gpu": 2})

    def test_cell_beside_the_devices(self) -> None:
        """The guest's only cell goes where the devices are."""
        shape = Shape((Switch(gpus=1, pfs=1, numa=0), Switch(gpus=2, pfs=1, numa=1)))
        self.start_host("one", shape)
        flavor = self.make_flavor(
            self.SPECS | {"hw:numa_nodes": "1", "pci_passthrough:alias": "gpu:2"}, vcpu=2
        )
        server = self.boot(flavor)
        self.assertEqual({0: 1}, self.domain_nodes(server))
        self.assert_on_cells(server, {"gpu": 2})

    def test_devices_without_cpus_beside_them(self) -> None:
        """The tightest devices are useless beside a NUMA node without CPUs."""
        self.start_host("one", Shape((Switch(gpus=1, numa=0), Switch(gpus=2, numa=1))))
        # Nova puts servers without devices where there are fewest devices.
        filler = self.boot(
            self.make_flavor({"hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"}, vcpu=4)
        )
        self.assertEqual({0: 0}, self.domain_nodes(filler))
        server = self.boot(
            self.make_flavor(
                self.SPECS | {"hw:numa_nodes": "1", "pci_passthrough:alias": "gpu:1"}, vcpu=2
            )
        )
        self.assertEqual([1], [place.numa for place in self.locations_of(server)])
        self.assertEqual({0: 1}, self.domain_nodes(server))

    def test_huge_pages_beside_the_devices(self) -> None:
        shape = Shape((Switch(gpus=1, numa=1),), pages=((4, 1048576), (2048, 256)))
        self.start_host("one", shape)
        specs = self.SPECS | {
            "hw:numa_nodes": "1",
            "hw:mem_page_size": "2048",
            "pci_passthrough:alias": "gpu:1",
        }
        too_large = self.boot(self.make_flavor(specs, vcpu=2, memory_mb=1024), state="ERROR")
        self.assertIn("page", self.fault(too_large))
        server = self.boot(self.make_flavor(specs, vcpu=2, memory_mb=512))
        self.assertEqual({0: 1}, self.domain_nodes(server))
        page = self.domain_of(server).find("memoryBacking/hugepages/page")
        self.assertEqual("2048", page.get("size"))
        pins = self.domain_of(server).findall("cputune/vcpupin")
        self.assertEqual(
            {"4", "5", "6", "7"} & {pin.get("cpuset") for pin in pins},
            {pin.get("cpuset") for pin in pins},
        )

    def test_no_cpus_beside_free_devices(self) -> None:
        shape = Shape((Switch(gpus=2, numa=0), Switch(gpus=0, numa=1)), cores=2, threads=2)
        self.start_host("secret", shape)
        flavor = self.make_flavor(
            self.SPECS | {"hw:numa_nodes": "1", "pci_passthrough:alias": "gpu:1"}, vcpu=4
        )
        self.boot(flavor)
        small = self.make_flavor(
            self.SPECS | {"hw:numa_nodes": "1", "pci_passthrough:alias": "gpu:1"}, vcpu=2
        )
        server = self.boot(small, state="ERROR")
        self.assertNotIn("secret", self.fault(server))
        self.assertIn("CPU", self.fault(server))
