# SPDX-License-Identifier: Apache-2.0
"""The check before a guest starts, inside Nova's own stack."""

from __future__ import annotations

from unittest import mock

from nova import context as nova_context
from nova import objects

from nova_hpc.from_nova import gate, nova_sources
from nova_hpc.from_nova.cache import Once
from nova_hpc.wire import decision
from nova_hpc.wire.decision import Decision
from nova_hpc_common.level import AffinityPolicy, Level
from tests.functional import base, fixtures
from tests.functional.driver_base import DriverTest

SWITCH = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}
PREFERRED = {**SWITCH, "hpc:affinity_policy": "preferred"}
STOCK = {"pci_passthrough:alias": "gpu:2"}


class AlignmentTest(DriverTest):
    """What the flavor asks for, and what was claimed."""

    def test_an_aligned_set_starts_and_the_decision_is_kept(self) -> None:
        self.host("alpha", fixtures.two_switches(gpus=2))
        server = self.boot(self.make_flavor(SWITCH))
        self.assertEqual(Level.SWITCH, self.level_of(server))
        text = self.instance(server).system_metadata["hpc_decision"]
        self.assertLessEqual(len(text.encode()), 255)
        self.assertEqual(
            Decision(Level.SWITCH, AffinityPolicy.REQUIRED, Level.SWITCH),
            decision.read_decision(text),
        )

    def test_a_function_of_nova_that_has_changed_is_told_and_serves(self) -> None:
        target = "nova.virt.libvirt.driver:LibvirtDriver.spawn"
        other = {target: dict.fromkeys(nova_sources.READ, "of a distribution")}
        with (
            mock.patch.object(gate, "_ONCE", Once()),
            mock.patch.dict(nova_sources.DIGESTS, other),
            mock.patch.object(gate, "_find_changed_functions", nova_sources.find_changed_functions),
        ):
            self.host("alpha", fixtures.two_switches(gpus=2))
        (line,) = self.log_lines(
            r"LibvirtDriver\.spawn in nova/virt/libvirt/driver\.py is not that"
        )
        self.assertIn("WARNING", line)
        self.boot(self.make_flavor(SWITCH))

    def test_a_forced_host_with_a_misaligned_set_is_refused(self) -> None:
        self.host("alpha", fixtures.two_switches(gpus=1))
        flavor = self.make_flavor(SWITCH)
        server = self.boot(flavor, state="ERROR", az="nova:alpha")
        fault = self.fault(server)
        self.assertIn("hpc:affinity=switch", fault)
        self.assertIn("--host", fault)
        self.assert_no_secrets(fault)
        # The host is well: the scheduler must not be told to avoid it.
        self.assertEqual(0, self.failed_builds("alpha"))
        self.assert_all_free("alpha")
        # Nothing was done to the devices: they were judged first.
        self.assertEqual({None}, {each.server for each in self.ledger("alpha").devices.values()})
        # The operator reads which devices it was.
        self.assertTrue(self.log_lines(r"0000:40:00\.0, 0000:41:00\.0.*do not satisfy"))

    def test_a_forced_host_that_happens_to_fit(self) -> None:
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=2),)))
        server = self.boot(self.make_flavor(SWITCH), az="nova:alpha")
        self.assertEqual(Level.SWITCH, self.level_of(server))

    def test_preferred_takes_what_there_is_and_says_so(self) -> None:
        self.host("alpha", fixtures.two_switches(gpus=1))
        server = self.boot(self.make_flavor(PREFERRED), az="nova:alpha")
        self.assertEqual(
            Decision(Level.SWITCH, AffinityPolicy.PREFERRED, Level.NUMA), self.decision(server)
        )

    def test_a_contradictory_flavor_is_refused_by_the_node_too(self) -> None:
        self.host("alpha", fixtures.two_switches(gpus=2))
        flavor = self.make_flavor({**SWITCH, "hpc:affinity": "swich"})
        server = self.boot(flavor, state="ERROR", az="nova:alpha")
        self.assertIn("swich", self.fault(server))
        self.assertEqual(0, self.failed_builds("alpha"))

    def test_stock_flavors_are_not_judged(self) -> None:
        self.host("alpha", fixtures.two_switches(gpus=1))
        server = self.boot(self.make_flavor(STOCK))
        self.assertNotIn("hpc_decision", self.instance(server).system_metadata)

    def test_the_place_is_read_and_not_believed(self) -> None:
        """Tags that say one switch do not make one of two."""
        shape = fixtures.two_switches(gpus=1)
        entries = shape.device_spec()
        for entry in entries:
            entry["hpc_switch"], entry["hpc_root"] = "0000:20:00.0", "pci0000:40"
        self.host("alpha", shape, device_spec=entries)
        server = self.boot(self.make_flavor(SWITCH), state="ERROR")
        refusal = self.fault(server)
        self.assertIn("hpc:affinity=switch", refusal)
        self.assertNotIn("--host", refusal)
        self.assert_no_secrets(refusal)
        self.assertEqual(0, self.failed_builds("alpha"))


class HealthTest(DriverTest):
    """Devices that fall ill after the last report of the node."""

    def setUp(self) -> None:
        super().setUp()
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=2),)))

    def assert_node_at_fault(self, specs: dict[str, str], text: str) -> None:
        server = self.boot(self.make_flavor(specs), state="ERROR")
        refusal = self.fault(server)
        self.assertIn(text, refusal)
        self.assert_no_secrets(refusal)
        self.assertEqual(1, self.failed_builds("alpha"))

    def test_a_device_that_vanishes_between_report_and_start(self) -> None:
        self.sysfs["alpha"].vanish("0000:40:00.0")
        self.assert_node_at_fault(SWITCH, "1 has disappeared or cannot be read")

    def test_stock_flavors_are_guarded_too(self) -> None:
        self.sysfs["alpha"].vanish("0000:40:00.0")
        server = self.boot(self.make_flavor(STOCK), state="ERROR")
        # Without hpc: keys the fault is Nova's own.
        self.assertIn("Exhausted all hosts", self.fault(server))
        self.assertEqual(1, self.failed_builds("alpha"))
        self.assertTrue(self.log_lines("1 has disappeared or cannot be read"))

    def test_a_device_on_the_wrong_driver(self) -> None:
        self.sysfs["alpha"].bind("0000:40:01.0", "nvidia")
        self.assert_node_at_fault(SWITCH, "1 is in use by the host")

    def test_a_group_that_is_not_viable(self) -> None:
        self.sysfs["alpha"].add_function("0000:40:00.7", group=41, driver="snd_hda_intel")
        self.assert_node_at_fault(SWITCH, "IOMMU group that is not viable")
        self.assertTrue(self.log_lines(r"IOMMU group 41 .* 0000:40:00\.7 \(snd_hda_intel\)"))

    def test_a_device_in_quarantine(self) -> None:
        self.quarantine("alpha", "0000:40:00.0", "lost its NVLink")
        self.assert_node_at_fault(SWITCH, "1 is out of service")

    def test_another_host_is_tried(self) -> None:
        """Nova reschedules after the fault of a node, and the server starts."""
        self.host("beta", fixtures.Shape((fixtures.Switch(gpus=2),)))
        # Alpha is ill. Whichever host is asked first, both servers start.
        self.sysfs["alpha"].vanish("0000:40:00.0")
        self.sysfs["alpha"].vanish("0000:40:01.0")
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"})
        for _ in range(2):
            self.assertEqual("beta", self.host_of(self.boot(flavor)))


class UnitTest(DriverTest):
    """An IOMMU group with several assignable functions."""

    def test_half_a_unit_is_refused(self) -> None:
        shape = fixtures.Shape((fixtures.Switch(gpus=2),))
        entries = shape.device_spec()
        for entry in entries:
            entry["hpc_group"] = "0000:40:00.0"
        self.host("alpha", shape, device_spec=entries, before=self._join)
        whole = self.make_flavor(SWITCH)
        half = self.make_flavor({"pci_passthrough:alias": "gpu:1"})
        server = self.boot(half, state="ERROR", az="nova:alpha")
        self.assertIn("together with 1 more of its IOMMU group", self.fault(server))
        self.assertEqual(0, self.failed_builds("alpha"))
        self._delete_server(server)
        server = self.boot(whole)
        self.assertEqual(2, len(self.devices_of(server)))

    def _join(self, sysfs) -> None:
        sysfs.regroup("0000:40:01.0", 41)


class DomainTest(DriverTest):
    """Which lines of the domain come from whom."""

    def test_who_writes_what(self) -> None:
        shape = fixtures.Shape(
            (fixtures.Switch(gpus=1, pfs=1),), cores=2, pages=((4, 1 << 20), (2048, 4096))
        )
        self.host("alpha", shape, cpu_dedicated_set="2-3,6-7")
        specs = {
            "pci_passthrough:alias": "gpu:1,vf:1",
            "hw:cpu_policy": "dedicated",
            "hw:mem_page_size": "2MB",
            "hw:pci_numa_affinity_policy": "required",
        }
        stock = self.boot(self.make_flavor(specs))
        theirs = self.domain_of(stock)
        self._delete_server(stock)
        ours = self.domain_of(self.boot(self.make_flavor({**specs, "hpc:affinity": "switch"})))
        # Nova: devices, vCPUs on their node's dedicated CPUs, pages of that node.
        for domain in (theirs, ours):
            self.assertEqual(2, len(domain.findall("devices/hostdev")))
            self.assertEqual("no", domain.find("devices/hostdev").get("managed"))
            self.assertIn(domain.find("cputune/vcpupin").get("cpuset"), ("2", "3"))
            self.assertEqual("0", domain.find("numatune/memory").get("nodeset"))
            self.assertEqual("2048", domain.find("memoryBacking/hugepages/page").get("size"))
        # Nova pins the emulator to the very CPUs of the vCPUs; this project
        # moves it to the CPUs of the same node that no guest is pinned to.
        pinned = {pin.get("cpuset") for pin in theirs.findall("cputune/vcpupin")}
        self.assertEqual(pinned, {theirs.find("cputune/emulatorpin").get("cpuset")})
        self.assertEqual("0-1", ours.find("cputune/emulatorpin").get("cpuset"))
        # And nothing else is ours.
        for domain in (theirs, ours):
            for name in ("uuid", "name", "sysinfo", "metadata", "seclabel"):
                for element in domain.findall(name):
                    domain.remove(element)
            for thread in ("emulatorpin", "iothreadpin", "vcpupin"):
                for element in domain.findall(f"cputune/{thread}"):
                    element.set("cpuset", "")
            for element in domain.iterfind("devices/hostdev/source/address"):
                for key in list(element.attrib):
                    element.set(key, "")
            for element in domain.iter("source", "log", "target"):
                for key in list(element.attrib):
                    element.set(key, "")
        self.assertEqual(self.canonical(theirs), self.canonical(ours))

    def test_the_flavor_may_say_where_the_emulator_goes(self) -> None:
        shape = fixtures.Shape((fixtures.Switch(gpus=1),), cores=2)
        self.host("alpha", shape, cpu_dedicated_set="2-3,6-7", cpu_shared_set="0,4")
        specs = {
            "pci_passthrough:alias": "gpu:1",
            "hw:cpu_policy": "dedicated",
            "hw:pci_numa_affinity_policy": "required",
            "hpc:affinity": "switch",
        }
        server = self.boot(self.make_flavor({**specs, "hw:emulator_threads_policy": "share"}))
        emulator = self.domain_of(server).find("cputune/emulatorpin").get("cpuset")
        self.assertEqual("0,4", emulator)
        self._delete_server(server)
        server = self.boot(self.make_flavor(specs))
        # The shared CPU of the guest's own node.
        emulator = self.domain_of(server).find("cputune/emulatorpin").get("cpuset")
        self.assertEqual("0", emulator)


class PortsTest(DriverTest):
    """Neutron's direct ports beside an ``hpc:`` flavor."""

    ADAPTERS = (
        fixtures.Switch(gpus=1, pfs=1, vfs=4),
        fixtures.Switch(gpus=1, pfs=1, vfs=4),
    )
    GPU = {"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"}

    def start(self, vfs_of: int) -> None:
        """A host whose port VFs are those of one adapter only, GPUs of the first."""
        shape = fixtures.Shape(self.ADAPTERS)
        entries = []
        for entry in shape.device_spec():
            bus = entry["address"][5:7]
            if entry["hpc_role"] == "gpu" and bus == "40":
                entries.append(entry)
            elif entry["hpc_role"] == "vf" and bus == f"{0x40 + vfs_of:02x}":
                entries.append({**entry, "physical_network": "physnet4"})
        self.host("alpha", shape, device_spec=entries)

    def test_a_port_beside_the_gpu(self) -> None:
        self.start(vfs_of=0)
        server = self.boot(self.make_flavor(self.GPU), networks=[{"port": self.direct_port()}])
        self.assertEqual(
            Decision(Level.SWITCH, AffinityPolicy.REQUIRED, Level.SWITCH), self.decision(server)
        )
        self.assertEqual(Level.SWITCH, self.level_of(server))
        self.assertEqual(2, len(self.devices_of(server)))

    def test_a_port_elsewhere_is_refused(self) -> None:
        self.start(vfs_of=1)
        server = self.boot(
            self.make_flavor(self.GPU), state="ERROR", networks=[{"port": self.direct_port()}]
        )
        refusal = self.fault(server)
        self.assertIn("port", refusal)
        self.assert_no_secrets(refusal)
        self.assertEqual(0, self.failed_builds("alpha"))

    def test_a_port_elsewhere_is_recorded_where_the_flavor_allows_it(self) -> None:
        self.start(vfs_of=1)
        flavor = self.make_flavor({**self.GPU, "hpc:affinity_policy": "preferred"})
        server = self.boot(flavor, networks=[{"port": self.direct_port()}])
        self.assertEqual(
            Decision(Level.SWITCH, AffinityPolicy.PREFERRED, Level.NUMA), self.decision(server)
        )

    def attach(self, server) -> None:
        body = {"interfaceAttachment": {"port_id": self.direct_port()}}
        self.api.attach_interface(server["id"], body)

    def test_a_port_that_is_attached_later(self) -> None:
        self.start(vfs_of=0)
        server = self.boot(self.make_flavor(self.GPU))
        self.attach(server)
        self.assertEqual(Level.SWITCH, self.level_of(server))
        self.assertEqual(2, len(self.devices_of(server)))

    def test_a_port_that_is_attached_elsewhere_is_refused(self) -> None:
        self.start(vfs_of=1)
        server = self.boot(self.make_flavor(self.GPU))
        self.assertRaises(base.client.OpenStackApiException, self.attach, server)
        self.assertEqual(1, len(self.devices_of(server)))
        self.assertTrue(self.log_lines("No adapter beside the server's devices .*1 port"))


class InertTest(DriverTest):
    """Without tags the driver is Nova's."""

    def test_no_tags(self) -> None:
        shape = fixtures.Shape((fixtures.Switch(gpus=2),))
        self.host("alpha", shape, device_spec=shape.device_spec(tags=False))
        self.sysfs["alpha"].vanish("0000:40:00.0")
        self.update("alpha")
        server = self.boot(self.make_flavor(STOCK))
        self.assertEqual(2, len(self.devices_of(server)))
        node = objects.ComputeNode.get_by_host_and_nodename(
            nova_context.get_admin_context(), "alpha", "alpha"
        )
        self.assertNotIn("hpc", node.stats)
        self.assertEqual(1, len(self.log_lines("nova-hpc has no effect here")))
