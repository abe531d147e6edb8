# SPDX-License-Identifier: Apache-2.0
"""What a scheduler meets that it should not have to: never a crash."""

from __future__ import annotations

import json
from unittest import mock

from nova import context as nova_context
from nova import objects

from nova_hpc.from_nova import placement_answer, providers
from nova_hpc.topology.level import Level
from scheduler_filters import choice, hpc_topology_filter
from tests.functional import base, fixtures
from tests.functional.fixtures import Shape, Switch

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}


class TagsTest(base.HpcServersTest):
    """Tags that are missing, forged or of another release."""

    def start_with(self, name: str, **changes: str | None) -> None:
        """Two GPUs under one switch, their entries changed."""
        shape = Shape((Switch(gpus=2),))
        entries = shape.device_spec()
        for entry in entries:
            for key, value in changes.items():
                if value is None:
                    entry.pop(key, None)
                else:
                    entry[key] = value
        self.start_host(name, shape, entries)

    def assert_not_used(self, reason: str) -> None:
        server = self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertIn("No valid host was found", self.fault(server))
        lines = self.log_lines(f"device 0000:40:00.0 is not used: .*{reason}")
        self.assertTrue(lines, self.stdlog.logger.output[-3000:])
        # Stock flavors are served as ever.
        stock = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:2"}))
        self.assertEqual(2, len(self.devices_of(stock)))

    def test_newer_schema(self) -> None:
        self.start_with("one", hpc_tags="2")
        self.assert_not_used("hpc_tags is '2'")

    def test_no_schema(self) -> None:
        self.start_with("one", hpc_tags=None)
        self.assert_not_used("hpc_tags is None")

    def test_numa_node_that_nova_contradicts(self) -> None:
        self.start_with("one", hpc_numa="1")
        self.assert_not_used("hpc_numa is 1, but Nova says NUMA node 0")

    def test_nonsense_number(self) -> None:
        self.start_with("one", hpc_numa="many")
        self.assert_not_used("hpc_numa is 'many'")

    def test_resource_class_that_placement_contradicts(self) -> None:
        self.start_with("one", hpc_resource_class="CUSTOM_OTHER")
        self.assert_not_used("hpc_resource_class is CUSTOM_OTHER")

    def test_untagged_devices(self) -> None:
        """Nova itself knows NUMA nodes, nobody knows switches."""
        shape = Shape((Switch(gpus=2),))
        self.start_host("one", shape, shape.device_spec(tags=False))
        refused = self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertIn("switch", self.fault(refused))
        server = self.boot(self.make_flavor(PAIR | {"hpc:affinity": "numa"}))
        self.assertEqual(2, len(self.devices_of(server)))

    def test_bad_host_beside_a_good_one(self) -> None:
        self.start_with("bad", hpc_tags="2")
        self.start_host("good", Shape((Switch(gpus=2),)))
        self.assertEqual("good", self.host_of(self.boot(self.make_flavor(PAIR))))

    def test_each_is_said_once(self) -> None:
        self.start_with("another", hpc_tags="3")
        flavor = self.make_flavor(PAIR)
        for _ in range(2):
            self.boot(flavor, state="ERROR")
        lines = self.log_lines("WARNING .*device 0000:40:00.0 is not used: .*'3'")
        self.assertEqual(1, len(lines))


class SplitAdapterTest(base.HpcServersTest):
    """Functions of one adapter with different tags."""

    def test_adapter_is_not_used(self) -> None:
        shape = Shape((Switch(gpus=0, pfs=1, vfs=4),))
        entry = shape.device_spec()[0]
        halves = []
        for function in range(1, 5):
            half = dict(entry, address=f"0000:40:00.{function}")
            half["hpc_root"] = "pci0000:40" if function < 3 else "pci0000:99"
            half["hpc_role"] = "vf" if function < 3 else "ethvf"
            halves.append(half)
        self.start_host("one", shape, halves)
        flavor = self.make_flavor({"pci_passthrough:alias": "vf:1", "hpc:affinity": "switch"})
        self.boot(flavor, state="ERROR")
        self.assertTrue(
            self.log_lines(r"functions carry different tags \(roles ethvf and vf\)"),
            self.stdlog.logger.output,
        )


class NotInPlacementTest(base.HpcServersTest):
    """A node that does not report its devices in Placement."""

    def test_ordinary_host_is_passed_over(self) -> None:
        self.flags(report_in_placement=False, group="pci")
        self.start_host("bad", Shape((Switch(gpus=2),)))
        self.flags(report_in_placement=True, group="pci")
        self.start_host("good", Shape((Switch(gpus=2),)))
        flavor = self.make_flavor(PAIR)
        self.assertEqual("good", self.host_of(self.boot(flavor)))
        server = self.boot(flavor, state="ERROR")
        self.assertIn("No valid host was found", self.fault(server))


class StatsTest(base.HpcServersTest):
    """``stats['hpc']`` is only ever a reason in a log line."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host("one", Shape((Switch(gpus=1), Switch(gpus=1))))

    def set_stats(self, text: str) -> None:
        node = objects.ComputeNode.get_by_nodename(nova_context.get_admin_context(), "one")
        node.stats = dict(node.stats, hpc=text)
        node.save()

    def assert_refused_cleanly(self) -> str:
        server = self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertIn("switch", self.fault(server))
        self.assertEqual([], self.log_lines(r"ERROR \[scheduler_filters"))
        lines = self.log_lines("HpcTopologyFilter rejects one, one")
        self.assertEqual(1, len(lines))
        return lines[0]

    def test_withheld_devices_are_named(self) -> None:
        reason = "IOMMU group 7 is not viable"
        self.set_stats(json.dumps({"v": 1, "withheld": {reason: ["0000:40:01.0"]}}))
        line = self.assert_refused_cleanly()
        self.assertIn("1 withheld by the node: 0000:40:01.0 (IOMMU group 7 is not viable)", line)

    def test_newer_document(self) -> None:
        self.set_stats(json.dumps({"v": 2, "withheld": "something new"}))
        line = self.assert_refused_cleanly()
        self.assertNotIn("withheld", line)
        self.assertIn("holds back is unknown: the statistics document has version 2", line)

    def test_document_cut_in_half(self) -> None:
        self.set_stats('{"v": 1, "withheld": {"because": ["0000:4')
        line = self.assert_refused_cleanly()
        self.assertNotIn("withheld", line)
        self.assertIn("holds back is unknown: the statistics document is not JSON", line)

    def test_notes_of_the_node_are_named(self) -> None:
        self.set_stats(json.dumps({"v": 1, "notes": ["the quarantine file cannot be read"]}))
        self.assertIn("the quarantine file cannot be read", self.assert_refused_cleanly())

    def test_other_json(self) -> None:
        self.set_stats("[1, 2, 3]")
        self.assert_refused_cleanly()


class UnexpectedTest(base.HpcServersTest):
    """A bug of ours costs one host, not the scheduler."""

    def test_one_host_fails(self) -> None:
        self.start_host("bad", Shape((Switch(gpus=2),)))
        self.start_host("good", Shape((Switch(gpus=6),)))
        plain = choice.choose

        def broken(request, host, *arguments, **keywords):
            if len(host.pools) == 2:
                raise ZeroDivisionError("a bug")
            return plain(request, host, *arguments, **keywords)

        flavor = self.make_flavor(PAIR)
        with mock.patch.object(choice, "choose", broken):
            servers = [self.boot(flavor) for _ in range(2)]
        self.assertEqual(["good", "good"], [self.host_of(each) for each in servers])
        output = self.stdlog.logger.output
        self.assertEqual(1, output.count("ZeroDivisionError: a bug\n"), "one traceback")
        # Not again and again, as long as others serve.
        self.assertEqual(1, len(self.log_lines("rejects bad, bad .*ZeroDivisionError")))

    def test_request_fails(self) -> None:
        self.start_host("one", Shape((Switch(gpus=2),)))
        with mock.patch.object(
            hpc_topology_filter.server, "read_task", side_effect=ZeroDivisionError
        ):
            server = self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertIn("could not read the request", self.fault(server))
        self.boot(self.make_flavor(PAIR))

    def test_placement_cannot_be_asked(self) -> None:
        """Then the pools and the tags have to do, where Nova's own answer was not kept, too."""
        self.start_host("one", Shape((Switch(gpus=2, pfs=1), Switch(gpus=2, pfs=1))))
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:2,vf:2", "hpc:affinity": "switch"})
        with (
            mock.patch.object(placement_answer, "of", return_value=None),
            mock.patch.object(providers, "report") as report,
        ):
            report.report_client_singleton.return_value.get.side_effect = OSError("gone")
            first = self.boot(flavor)
        second = self.boot(flavor)
        for server in (first, second):
            self.assertIs(Level.SWITCH, self.level_of(server))
            self.assertEqual(4, len(self.devices_of(server)))
        self.assertTrue(self.log_lines("Placement could not be asked"))
        self.assert_given_once()


class NeutronPortTest(base.HpcServersTest):
    """Direct ports beside an ``hpc:`` flavor, on a node with Nova's own driver."""

    PCI_ALIAS = base.HpcServersTest.PCI_ALIAS

    def test_request_of_a_port_is_no_device_of_the_flavor(self) -> None:
        from nova.tests.functional.libvirt import base as libvirt_base

        self.neutron = self.useFixture(libvirt_base.LibvirtNeutronFixture(self))
        shape = Shape((Switch(gpus=2, pfs=1), Switch(gpus=2, pfs=1)))
        entries = shape.device_spec()
        for entry in entries:
            if entry["product_id"] == fixtures.VF_PRODUCT:
                del entry["resource_class"]
                entry["physical_network"] = "physnet4"
        self.start_host("one", shape, entries)
        port = self.neutron.create_port({"port": self.neutron.network_4_port_1})
        flavor = self.make_flavor(PAIR)
        server = self.boot(flavor, networks=[{"port": port["port"]["id"]}])
        kinds = sorted(device.dev_type for device in self.devices_of(server))
        self.assertEqual(["type-PCI", "type-PCI", "type-VF"], kinds)
        gpus = [each for each in self.devices_of(server) if each.dev_type == "type-PCI"]
        self.assertEqual(gpus[0].address[:7], gpus[1].address[:7])
