# SPDX-License-Identifier: Apache-2.0
"""What a scheduler meets that it should not have to: never a crash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from unittest import mock

from nova import context as nova_context
from nova import objects

from nova_hpc.from_nova import placement_answer, providers
from nova_hpc.wire import stats as hpc_stats
from nova_hpc_common.level import Level
from nova_hpc_simulate import inputs
from nova_hpc_tools.cloud import capacity, explain
from nova_hpc_tools.readers import node_health, records, snapshot
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
        self.assert_not_used("hpc_numa is 1, but Nova's record has NUMA node 0")

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
    """``stats['hpc']``: what a node says is a reason in a log line; what it does not say counts."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host("one", Shape((Switch(gpus=1), Switch(gpus=1))))

    def set_stats(self, text: str | None, host: str = "one") -> None:
        node = objects.ComputeNode.get_by_nodename(nova_context.get_admin_context(), host)
        kept = {key: value for key, value in node.stats.items() if key != "hpc"}
        node.stats = kept if text is None else kept | {"hpc": text}
        node.save()

    def assert_refused_cleanly(self, fault: str = "switch") -> str:
        server = self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertIn(fault, self.fault(server))
        self.assertEqual([], self.log_lines(r"ERROR \[scheduler_filters"))
        lines = self.log_lines("HpcTopologyFilter rejects one, one")
        self.assertEqual(1, len(lines))
        return lines[0]

    def test_withheld_devices_are_named(self) -> None:
        reason = "IOMMU group 7 is not viable"
        self.set_stats(json.dumps({"v": 1, "withheld": {reason: ["0000:40:01.0"]}}))
        line = self.assert_refused_cleanly()
        self.assertIn("1 withheld by the node: 0000:40:01.0 (IOMMU group 7 is not viable)", line)

    def test_notes_of_the_node_are_named(self) -> None:
        self.set_stats(json.dumps({"v": 1, "notes": ["the quarantine file cannot be read"]}))
        self.assertIn("the quarantine file cannot be read", self.assert_refused_cleanly())

    def test_what_cannot_be_read_is_not_taken_for_health(self) -> None:
        """A flavor that the node could serve, with each document that nobody understands."""
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:2", "hpc:affinity": "numa"})
        for text, why in (
            (json.dumps({"v": 2, "withheld": "something new"}), "document has version 2"),
            ('{"v": 1, "withheld": {"because": ["0000:4', "document is not JSON"),
            ("[1, 2, 3]", "document is no JSON object"),
            ("", "document is not JSON"),
            (json.dumps({"v": 1, "notes": 7}), "document has notes that are no texts"),
        ):
            self.set_stats(text)
            server = self.boot(flavor, state="ERROR")
            self.assertIn("contact the cloud's operator", self.fault(server))
            line = self.log_lines("HpcTopologyFilter rejects one, one")[-1]
            self.assertIn("the node's withheld devices are unknown", line)
            self.assertIn(why, line)
        self.assertEqual([], self.log_lines(r"ERROR \[scheduler_filters"))
        # Nova alone places other flavors.
        self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:1"}))


class OtherDriverTest(base.HpcServersTest):
    """A node whose devices have tags, and that runs Nova's own driver."""

    ONE = {"pci_passthrough:alias": "gpu:1", "hpc:affinity": "host"}
    ONE["hw:pci_numa_affinity_policy"] = "preferred"
    NUMA = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "numa"}

    def start_silent(self, name: str = "node7", gpus: int = 2) -> None:
        self.silent.add(name)
        self.start_host(name, Shape((Switch(gpus=gpus),)))

    def assert_refused(self, specs: Mapping[str, str], **keywords: object) -> str:
        server = self.boot(self.make_flavor(specs), state="ERROR", **keywords)
        fault = self.fault(server)
        self.assertIn("No host with such devices can be used at this moment", fault)
        self.assertNotIn("node7", fault)
        return self.log_lines("node7, node7.*Nova's own libvirt driver, not HpcLibvirtDriver")[-1]

    def test_it_gets_no_server_with_hpc_keys(self) -> None:
        self.start_silent()
        for specs in (PAIR, self.NUMA, self.ONE, PAIR | {"hpc:affinity_policy": "preferred"}):
            line = self.assert_refused(specs)
            self.assertIn("compute_driver = hpc.HpcLibvirtDriver", line)
        stock = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:2"}))
        self.assertEqual("node7", self.host_of(stock))

    def test_nor_if_it_is_forced_or_named(self) -> None:
        self.start_silent()
        self.start_host("good", Shape((Switch(gpus=2),)))
        line = self.assert_refused(PAIR, az="nova:node7", networks="none")
        self.assertIn("is forced", line)
        self.assert_refused(PAIR, host="node7", networks="none")
        server = self.boot(self.make_flavor(PAIR), az="nova:good")
        self.assertEqual("good", self.host_of(server))
        stock = self.make_flavor({"pci_passthrough:alias": "gpu:1"})
        self.assertEqual("node7", self.host_of(self.boot(stock, az="nova:node7")))

    def test_others_serve_and_the_reason_is_theirs(self) -> None:
        self.start_silent()
        self.start_host("good", Shape((Switch(gpus=2), Switch(gpus=1), Switch(gpus=1))))
        self.assertEqual("good", self.host_of(self.boot(self.make_flavor(PAIR))))
        # node7 has two under one switch that are free, and cannot be used.
        server = self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertIn("No host that can be used has 2 gpu under one switch", self.fault(server))

    def test_the_driver_is_set_back_and_forth(self) -> None:
        self.start_host("node7", Shape((Switch(gpus=2),)))
        context = nova_context.get_admin_context()
        self.silent.add("node7")
        self.computes["node7"].manager.update_available_resource(context)
        self.assert_refused(PAIR)
        self.silent.discard("node7")
        self.computes["node7"].manager.update_available_resource(context)
        self.assertEqual("node7", self.host_of(self.boot(self.make_flavor(PAIR))))

    def test_what_operators_read_is_the_same(self) -> None:
        self.start_silent()
        self.make_flavor(PAIR, name="pair")
        cloud = snapshot.take_cloud_snapshot()
        (node,) = cloud.hosts
        self.assertEqual(hpc_stats.OTHER_DRIVER, node.out)
        (verdict,) = explain.explain_flavor(cloud, explain.FlavorQuestion("pair")).verdicts
        self.assertEqual((None, hpc_stats.OTHER_DRIVER), (verdict.choice, verdict.reason))
        (room,) = capacity.measure_capacity(cloud, "pair").rooms
        self.assertEqual((0, hpc_stats.OTHER_DRIVER), (room.fit, room.reason))
        self.assertEqual([], inputs.machines_of(cloud, "gpu"))
        (health,) = node_health.collect_node_health()
        self.assertEqual((hpc_stats.OTHER_DRIVER,), health.notes)
        (host,) = records.collect_records().hosts
        self.assertEqual((True, False), (host.stock, host.ours))


class UnexpectedTest(base.HpcServersTest):
    """A bug of ours costs one host, not the scheduler."""

    def test_one_host_fails(self) -> None:
        self.start_host("bad", Shape((Switch(gpus=2),)))
        self.start_host("good", Shape((Switch(gpus=6),)))
        plain = choice.choose_device_sets

        def broken(request, host, *arguments, **keywords):
            if len(host.pools) == 2:
                raise ZeroDivisionError("a bug")
            return plain(request, host, *arguments, **keywords)

        flavor = self.make_flavor(PAIR)
        with mock.patch.object(choice, "choose_device_sets", broken):
            servers = [self.boot(flavor) for _ in range(2)]
        self.assertEqual(["good", "good"], [self.host_of(each) for each in servers])
        output = self.stdlog.logger.output
        self.assertEqual(1, output.count("ZeroDivisionError: a bug\n"), "one traceback")
        # Not again and again, as long as others serve.
        self.assertEqual(1, len(self.log_lines("rejects bad, bad .*ZeroDivisionError")))

    def test_request_fails(self) -> None:
        self.start_host("one", Shape((Switch(gpus=2),)))
        with mock.patch.object(
            hpc_topology_filter.server, "read_server_task", side_effect=ZeroDivisionError
        ):
            server = self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertIn("could not read the request", self.fault(server))
        self.boot(self.make_flavor(PAIR))

    def test_placement_cannot_be_asked(self) -> None:
        """Then the pools and the tags have to do, where Nova's own answer was not kept, too."""
        self.start_host("one", Shape((Switch(gpus=2, pfs=1), Switch(gpus=2, pfs=1))))
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:2,vf:2", "hpc:affinity": "switch"})
        with (
            mock.patch.object(placement_answer, "answer_of", return_value=None),
            mock.patch.object(providers, "report") as report,
        ):
            report.report_client_singleton.return_value.get.side_effect = OSError("gone")
            first = self.boot(flavor)
        second = self.boot(flavor)
        for server in (first, second):
            self.assertIs(Level.SWITCH, self.level_of(server))
            self.assertEqual(4, len(self.devices_of(server)))
        self.assertTrue(self.log_lines("Placement did not report"))
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
