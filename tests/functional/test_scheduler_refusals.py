# SPDX-License-Identifier: Apache-2.0
"""What users and operators read where there is no host for a server."""

from __future__ import annotations

import contextlib
import re

from nova_hpc.from_nova import pools
from tests.functional import base, fixtures
from tests.functional.fixtures import Shape, Switch

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}


class RefusalTest(base.HpcServersTest):
    """The filter leaves no host."""

    def test_the_wish_and_what_may_help(self) -> None:
        """No count but the flavor's own; Nova's line on its filters is in the log."""
        self.start_host("secret", fixtures.two_switches(gpus=1))
        server = self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertEqual(
            "No valid host was found. No host has 2 gpu under one switch; hpc:affinity numa or "
            "hpc:affinity_policy preferred or smaller groups (hpc:group) may help",
            self.fault(server),
        )
        (line,) = self.log_lines("Filtering removed all hosts")
        self.assertIn("HpcTopologyFilter: (start: 1, end: 0)", line)
        (line,) = self.log_lines("HpcTopologyFilter rejects secret, secret ")
        self.assertIn("2 gpu free, but at most 1 under one switch (needs 2)", line)

    def test_what_may_help_does(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=1))
        for change in ({"hpc:affinity": "numa"}, {"hpc:affinity_policy": "preferred"}):
            server = self.boot(self.make_flavor(PAIR | change))
            self.assertEqual(2, len(self.devices_of(server)))
            self._delete_server(server)

    def test_beside_free_cpus(self) -> None:
        self.flags(cpu_dedicated_set="0-7", group="compute")
        self.start_host("one", Shape((Switch(gpus=2),)))
        specs = PAIR | {"hw:cpu_policy": "dedicated", "hw:pci_numa_affinity_policy": "required"}
        self.boot(self.make_flavor(specs | {"pci_passthrough:alias": "gpu:1"}, vcpu=3))
        server = self.boot(
            self.make_flavor(specs | {"pci_passthrough:alias": "gpu:1"}, vcpu=2), state="ERROR"
        )
        self.assertIn(
            "No host has 1 gpu under one switch beside free CPUs and memory; hpc:affinity numa",
            self.fault(server),
        )

    def test_with_counts_where_the_operator_discloses_them(self) -> None:
        self.flags(disclose_capacity=True, group="hpc")
        self.start_host("secret", fixtures.two_switches(gpus=1))
        server = self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertEqual(
            "No valid host was found. 1 of 1 nodes: 2 gpu free, but at most 1 under one switch "
            "(needs 2)",
            self.fault(server),
        )


class FullRoleTest(base.HpcServersTest):
    """The hosts whose tags say what plays a role are full."""

    PCI_ALIAS = ('{"name": "a100", "resource_class": "CUSTOM_HPC_GPU"}',)
    SPECS = {"pci_passthrough:alias": "a100:2", "hpc:affinity": "switch", "hpc:group": "gpu:2"}

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(
            fixtures.fixtures.MonkeyPatch("nova_hpc.from_nova.pools.SAMPLES", pools.Samples())
        )
        shape = Shape((Switch(gpus=2),))
        self.start_host("tagged", shape)
        self.start_host("plain", shape, shape.device_spec(tags=False))

    def test_a_full_host_is_no_fault_of_the_flavor(self) -> None:
        flavor = self.make_flavor(self.SPECS)
        self.assertEqual("tagged", self.host_of(self.boot(flavor)))
        server = self.boot(flavor, state="ERROR")
        fault = self.fault(server)
        self.assertNotIn("Flavor:", fault)
        self.assertIn("the role of devices of which none is free", fault)


class NoCandidateTest(base.HpcServersTest):
    """Placement has no candidate, so that no filter runs."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host("near", Shape((Switch(gpus=3),)))
        self.start_host("far", Shape((Switch(gpus=1),)))

    def refused(self, specs: dict[str, str], **keywords: object) -> str:
        return self.fault(self.boot(self.make_flavor(specs, **keywords), state="ERROR"))

    def test_too_few_devices(self) -> None:
        flavor = self.make_flavor(PAIR | {"pci_passthrough:alias": "gpu:4"})
        for _ in range(2):
            self.assertEqual(
                "No valid host was found. No host has 4 gpu free; fewer devices may help",
                self.fault(self.boot(flavor, state="ERROR")),
            )
        (line,) = self.log_lines("Placement has no candidate")
        self.assertIn(f"flavor {flavor} ", line)
        self.assertIn(
            "requested are 4 gpu (CUSTOM_HPC_GPU), 1 DISK_GB, 256 MEMORY_MB, 1 VCPU; ", line
        )
        self.assertIn("free are 4 gpu on 2 hosts; ", line)
        self.assertIn("the nearest is near with 3 of 4 gpu", line)

    def test_too_few_cpus(self) -> None:
        self.refused(PAIR, vcpu=999)
        (line,) = self.log_lines("Placement has no candidate")
        self.assertIn("the nearest is near, which has the devices, but not 999 VCPU", line)

    def test_a_trait_that_no_host_has(self) -> None:
        fault = self.refused(PAIR | {"trait:CUSTOM_NOWHERE": "required"})
        self.assertIn("No host has trait CUSTOM_NOWHERE, which the flavor requires", fault)
        (line,) = self.log_lines("Placement has no candidate")
        self.assertIn("near, which has the devices, but not trait CUSTOM_NOWHERE", line)

    def test_a_wrong_flavor_is_told_first(self) -> None:
        fault = self.refused(PAIR | {"pci_passthrough:alias": "gpu:9", "hpc:affinity": "swtich"})
        self.assertIn("Flavor: hpc:affinity is 'swtich'", fault)

    def test_stock_flavors_read_what_nova_says(self) -> None:
        fault = self.refused({"pci_passthrough:alias": "gpu:4"})
        self.assertEqual("No valid host was found. ", fault)
        self.assertEqual([], self.log_lines("Placement has no candidate"))


class LimitTest(base.HpcServersTest):
    """Placement's answer is cut off."""

    CANDIDATES = 2

    def test_hidden_hosts_are_counted(self) -> None:
        for name in ("one", "two", "three"):
            self.start_host(name, Shape((Switch(gpus=2),)))
        flavor = self.make_flavor(PAIR)
        for _ in range(2):
            self.boot(flavor)
        (line,) = self.log_lines("WARNING .*was cut off at 2 candidates")
        self.assertIn("1 of the 3 hosts", line)
        self.assertIn("max_placement_results", line)
        self.assertIn("at least 3", line)

    def test_an_answer_that_hides_none(self) -> None:
        for name in ("one", "two"):
            self.start_host(name, Shape((Switch(gpus=2),)))
        self.boot(self.make_flavor(PAIR))
        self.assertEqual([], self.log_lines("was cut off"))


class QuietLogTest(base.HpcServersTest):
    """Causes are named, not hosts; and not again and again."""

    PCI_ALIAS = tuple(map(base.jsonutils.dumps, fixtures.ID_ALIASES))

    def test_functions_for_ports_are_no_mistake(self) -> None:
        """Nova never tells Placement of them, whatever the node is told."""
        shape = Shape((Switch(gpus=1, pfs=2),))
        entries = shape.device_spec(classes=False)
        for entry in entries:
            if entry["product_id"] == fixtures.VF_PRODUCT and entry["address"].startswith(
                "0000:40:01"
            ):
                entry["physical_network"] = "physnet1"
        for name in ("one", "two"):
            self.start_host(name, shape, entries)
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:1,vf:1", "hpc:affinity": "switch"})
        for _ in range(2):
            self.boot(flavor)
        self.assertEqual([], self.log_lines("report_in_placement"))

    def test_a_cause_is_named_once_for_all_hosts(self) -> None:
        shape = Shape((Switch(gpus=3),))
        entries = shape.device_spec(classes=False)
        for entry in entries[:2]:
            entry["hpc_tags"] = "77"
        for name in ("one", "two", "three"):
            self.start_host(name, shape, entries)
        flavor = self.make_flavor(PAIR | {"pci_passthrough:alias": "gpu:1"})
        for _ in range(2):
            self.boot(flavor)
        lines = self.log_lines("WARNING .* is not used: ")
        self.assertEqual(1, len(lines), lines)
        self.assertTrue(re.search("'77'.*; so are 5 more, on 3 hosts", lines[0]), lines[0])


class MovingTest(base.HpcServersTest):
    """A server that is there, and goes nowhere else."""

    def start(self, gpus: int = 2, hosts: tuple[str, ...] = ("one", "two")) -> None:
        for name in hosts:
            self.start_host(name, Shape((Switch(gpus=gpus),)))

    def migrated(self, server: dict) -> str:
        """Move a server live to wherever there is room; what the scheduler said in the end."""
        action = {"os-migrateLive": {"host": None, "block_migration": "auto"}}
        with contextlib.suppress(base.client.OpenStackApiException):
            self.admin_api.post_server_action(server["id"], action)
        return "\n".join(self.log_lines("WARNING .*No valid host was found"))

    def test_live_with_devices_that_are_not_declared(self) -> None:
        """The other host has a free pair, and Nova would find out there that it cannot move."""
        self.start()
        said = self.migrated(self.boot(self.make_flavor(PAIR)))
        self.assertNotIn("No host", said)
        self.assertIn("devices cannot be live-migrated", said)
        self.assertIn("Use a cold migration", said)

    def test_a_resize_whose_only_host_is_its_own(self) -> None:
        self.flags(allow_resize_to_same_host=False)
        self.start(gpus=4, hosts=("one",))
        server = self.boot(self.make_flavor(PAIR | {"pci_passthrough:alias": "gpu:1"}))
        bigger = self.make_flavor(PAIR)
        with contextlib.suppress(base.client.OpenStackApiException):
            self.api.post_server_action(server["id"], {"resize": {"flavorRef": bigger}})
        said = "\n".join(self.log_lines("WARNING .*No valid host was found"))
        self.assertNotIn("not enough hosts", said)
        self.assertIn("No host but its own or one already tried has 2 gpu free", said)
