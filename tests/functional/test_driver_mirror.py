# SPDX-License-Identifier: Apache-2.0
"""The guest's PCIe tree, through the actions of a server's life."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path
from unittest import mock

from lxml import etree
from nova import context as nova_context
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt import guest as libvirt_guest

from nova_hpc_common.level import Distance, distance_between
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.unit.virt import tree_reader

SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")
IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"

#: Two NUMA nodes, with two GPUs and an adapter below one switch on each.
SHAPE = fixtures.Shape(
    tuple(fixtures.Switch(gpus=2, pfs=1, vfs=4, numa=numa) for numa in (0, 1)), cores=3
)
CELLS = {
    "pci_passthrough:alias": "gpu:2,vf:2",
    "hw:numa_nodes": "2",
    "hw:cpu_policy": "dedicated",
    "hw:pci_numa_affinity_policy": "required",
    "hpc:affinity": "switch",
    "hpc:group": "gpu:1,vf:1",
}
MIRROR = {**CELLS, "hpc:guest_topology": "mirror"}
NUMA = {**CELLS, "hpc:guest_topology": "numa"}
PAIR = {
    "pci_passthrough:alias": "gpu:2",
    "hpc:affinity": "host",
    "hpc:guest_topology": "mirror",
}


class MirrorBase(DriverTest):
    """Servers whose flavors have ``hpc:guest_topology``."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(hw_machine_type=["x86_64=q35"], group="libvirt")

    def start(self, shape: fixtures.Shape = SHAPE) -> None:
        # Servers of SHAPE have dedicated CPUs.
        options = {"cpu_dedicated_set": "2-5,8-11"} if shape.cores == 3 else {}
        self.host("alpha", shape, **options)

    def server(self, specs: dict[str, str], **keywords: object) -> dict:
        vcpu = 2 if "hw:numa_nodes" in specs else 1
        return self.boot(self.make_flavor(specs, vcpu=vcpu), **keywords)

    def xml(self, server) -> str:
        return self.domains.given[server["id"]][-1]

    def abi(self, server) -> str | None:
        return self.instance(server).system_metadata.get("hpc_guest_abi")

    def set_abi(self, server, text: str | None) -> None:
        instance = self.instance(server)
        if text is None:
            instance.system_metadata.pop("hpc_guest_abi", None)
        else:
            instance.system_metadata["hpc_guest_abi"] = text
        instance.save()

    def distances(self, server) -> list[tuple[Distance, Distance]]:
        """Of each pair of devices: on the host, in the guest."""
        guest = tree_reader.read(self.xml(server)).places
        truth = self.shapes[self.host_of(server)].locations()
        self.assertEqual(
            sorted(guest), sorted(device.address for device in self.devices_of(server))
        )
        return [
            (distance_between(truth[one], truth[other]), distance_between(guest[one], guest[other]))
            for one, other in itertools.combinations(guest, 2)
        ]

    def assert_mirrored(self, server) -> None:
        for host, guest in self.distances(server):
            self.assertEqual(host, guest)
        if not SCHEMA.exists():
            self.skipTest(f"{SCHEMA} is not there: libvirt0 is not installed")
        schema = etree.RelaxNG(etree.parse(SCHEMA))
        self.assertTrue(schema.validate(etree.fromstring(self.xml(server))), schema.error_log)

    def told(self, server) -> dict:
        """The document that the guest reads."""
        root = etree.fromstring(self.xml(server))
        entries = root.findall("sysinfo[@type='fwcfg']/entry")
        (text,) = (e.text for e in entries if e.get("name") == "opt/org.nova-hpc/guest.json")
        return json.loads(base64.b64decode(text))


class MirrorTest(MirrorBase):
    def assert_flat(self, server) -> None:
        self.assertNotIn("pcie-expander-bus", self.xml(server))

    # -- what the guest gets --------------------------------------------------

    def test_mirror(self) -> None:
        self.start()
        server = self.server(MIRROR)
        self.assert_mirrored(server)
        self.assertEqual(
            {Distance.PIX, Distance.SYS}, {guest for _, guest in self.distances(server)}
        )
        self.assertEqual('{"v":2,"mode":"mirror","clique":0}', self.abi(server))
        # The cell of the guest is that on the devices' node.
        nodes = self.domain_nodes(server)
        places = tree_reader.read(self.xml(server)).places
        truth = SHAPE.locations()
        for address, place in places.items():
            self.assertEqual(truth[address].numa, nodes[place.numa])

    def test_numa(self) -> None:
        self.start()
        server = self.server(NUMA)
        self.assertEqual(
            {(Distance.PIX, Distance.PHB), (Distance.SYS, Distance.SYS)},
            set(self.distances(server)),
        )
        self.assertEqual('{"v":2,"mode":"numa","clique":0}', self.abi(server))

    def test_the_guest_is_told(self) -> None:
        """Documents in fw_cfg: what was promised, in the guest's words only."""
        self.start()
        server = self.server(MIRROR)
        told = self.told(server)
        self.assertEqual("mirror", told["topology"])
        self.assertEqual(["gpu", "gpu", "vf", "vf"], sorted(d["role"] for d in told["devices"]))
        self.assertEqual([0, 0, 1, 1], sorted(d["cell"] for d in told["devices"]))
        text = json.dumps(told)
        for device in self.devices_of(server):
            self.assertNotIn(device.address, text)
        self.assertNotIn("alpha", text)
        # A hard reboot tells the same; a server of stock Nova is told nothing.
        self._reboot_server(server, hard=True)
        self.assertEqual(told, self.told(server))
        self.set_abi(server, None)
        self._reboot_server(server, hard=True)
        self.assertNotIn("fwcfg", self.xml(server))

    def test_flat_is_the_default(self) -> None:
        self.start()
        self.assert_flat(self.server(CELLS))
        self.assert_flat(self.server({**CELLS, "hpc:guest_topology": "flat"}))

    def test_a_guest_without_cells(self) -> None:
        self.start(fixtures.Shape((fixtures.Switch(gpus=2),)))
        server = self.server(PAIR)
        self.assert_mirrored(server)
        self.assertNotIn("<node>", self.xml(server))

    def libvirt_is(self, version: int) -> None:
        """Of hosts that are started from now on; the fake one is of Nova's minimum, 8.0.0."""
        self.useFixture(
            fixtures.fixtures.MockPatch("nova.tests.fixtures.libvirt.FAKE_LIBVIRT_VERSION", version)
        )

    def test_a_libvirt_that_cannot_show_cliques_is_named(self) -> None:
        self.flags(gpudirect_clique=True, group="hpc")
        self.start(fixtures.Shape((fixtures.Switch(gpus=2),)))
        server = self.server(PAIR, state="ERROR")
        self.assertIn("needs libvirt 8.2.0 or newer on the node", self.fault(server))
        self.assertEqual(0, self.failed_builds("alpha"))
        # Without cliques nothing is needed.
        self._delete_server(server)
        self.flags(gpudirect_clique=False, group="hpc")
        self.update("alpha")
        self.assert_mirrored(self.server(PAIR))

    def test_cliques(self) -> None:
        self.libvirt_is(8002000)
        self.flags(gpudirect_clique=True, group="hpc")
        self.start(fixtures.Shape((fixtures.Switch(gpus=2),)))
        server = self.server(PAIR)
        self.assertEqual(2, self.xml(server).count('name="x-nv-gpudirect-clique"'))
        # A server keeps what it was started with.
        self.flags(gpudirect_clique=False, group="hpc")
        before = self.hardware(server)
        self._reboot_server(server, hard=True)
        self.assertEqual(before, self.hardware(server))
        # And what cannot be given back is not taken.
        self.with_definitions()
        self.flags(suspend_with_devices=True, group="hpc")
        self.refused_action(server, {"suspend": None})
        self._wait_for_action_fail_completion(server, "suspend", "compute_suspend_instance")
        self.assertEqual("ACTIVE", self.api.get_server(server["id"])["status"])
        self.assertIn("GPUDirect cliques", self.fault_messages(server)[0])

    # -- refusals ---------------------------------------------------------------

    def test_a_device_off_the_cells(self) -> None:
        self.start(fixtures.two_switches(gpus=1, numa=(0, 1), cores=3))
        specs = {
            **PAIR,
            "hw:cpu_policy": "dedicated",
            "hw:pci_numa_affinity_policy": "preferred",
        }
        server = self.server(specs, state="ERROR")
        refusal = self.fault(server)
        self.assertIn("1 of the server's 2 PCI devices", refusal)
        self.assertIn("use a flavor with numa or flat", refusal)
        self.assert_no_secrets(refusal)
        self.assertEqual(0, self.failed_builds("alpha"))
        self.assert_all_free("alpha")
        self._delete_server(server)
        # The others take it.
        for word in ("numa", "flat"):
            server = self.server({**specs, "hpc:guest_topology": word})
            self.assertEqual(2, len(self.domain_devices(server)))
            self._delete_server(server)

    def test_another_machine_type(self) -> None:
        self.flags(hw_machine_type=["x86_64=pc"], group="libvirt")
        self.start()
        server = self.server(MIRROR, state="ERROR")
        self.assertIn("hw_machine_type=q35", self.fault(server))
        self.assertEqual(0, self.failed_builds("alpha"))

    def test_the_record_of_a_newer_release(self) -> None:
        self.start()
        server = self.server(MIRROR)
        given = len(self.domains.given[server["id"]])
        self.set_abi(server, '{"v":99,"mode":"mirror","clique":0}')
        self.refused_action(server, {"reboot": {"type": "HARD"}})
        self.assertIn("of version 99", self.fault_messages(server)[0])
        self.assertEqual(given, len(self.domains.given[server["id"]]))
        self.set_abi(server, "broken")
        self.refused_action(server, {"reboot": {"type": "HARD"}})
        self.assertIn("is damaged", self.fault_messages(server)[0])

    # -- the guest's hardware stays ------------------------------------------------

    def hardware(self, server) -> list[str]:
        """The guest's PCIe hardware; Nova lists devices in any order."""
        domain = self.domain_of(server)
        parts = domain.findall("devices/hostdev")
        parts += domain.findall("devices/controller[@type='pci']")
        parts += [each for each in domain if str(each.tag).startswith("{http://libvirt.org")]
        parts += domain.findall("cpu")
        # Copies: each has the namespaces of the whole domain otherwise.
        copies = [etree.fromstring(etree.tostring(each, with_tail=False)) for each in parts]
        return sorted(self.canonical(each) for each in copies)

    def test_every_start_gives_the_same_hardware(self) -> None:
        self.start()
        server = self.server(MIRROR)
        before, given = self.hardware(server), len(self.domains.given[server["id"]])
        self._reboot_server(server, hard=True)
        self.assertEqual(before, self.hardware(server))
        self._stop_server(server)
        self._start_server(server)
        self.assertEqual(before, self.hardware(server))
        self._rebuild_server(server, IMAGE)
        self.assertEqual(before, self.hardware(server))
        self.assertEqual(given + 3, len(self.domains.given[server["id"]]))
        # As when the host boots.
        context = nova_context.get_admin_context()
        instance = objects.Instance.get_by_uuid(context, server["id"])
        given = len(self.domains.given[server["id"]])
        driver = self.computes["alpha"].driver
        domain = driver._host._get_domain(instance)
        domain.destroy()
        keywords = {"share_info": objects.ShareMappingList()}
        driver.resume_state_on_host_boot(
            context, instance, instance.get_network_info(), block_device_info=None, **keywords
        )
        self.assertLess(given, len(self.domains.given[server["id"]]))
        self.assertEqual(before, self.hardware(server))

    def test_a_server_without_a_record_stays_flat(self) -> None:
        """It was started before this release, or by stock Nova."""
        self.start()
        server = self.server(MIRROR)
        self.set_abi(server, None)
        self._reboot_server(server, hard=True)
        self.assert_flat(server)
        self.assertIsNone(self.abi(server))

    def test_a_resize_changes_the_word_and_a_revert_brings_it_back(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        self.start(fixtures.Shape((fixtures.Switch(gpus=4),)))
        server = self.server({**PAIR, "hpc:guest_topology": "flat"})
        self.assertEqual('{"v":2,"mode":"flat","clique":0}', self.abi(server))
        mirrored = self.make_flavor(PAIR)
        path = "nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off"
        with mock.patch(path, return_value="{}"):
            self._resize_server(server, mirrored)
        # The server holds the former devices as well until the resize is confirmed.
        places = tree_reader.read(self.xml(server)).places.values()
        self.assertEqual(2, len(places))
        self.assertEqual(Distance.PIX, distance_between(*places))
        self.assertEqual('{"v":2,"mode":"mirror","clique":0}', self.abi(server))
        self._revert_resize(server)
        self.assert_flat(server)
        self.assertEqual('{"v":2,"mode":"flat","clique":0}', self.abi(server))

    # -- room for the devices' memory ------------------------------------------

    def with_large_gpus(self, bits: int, gpus: int = 2) -> None:
        """A host of GPUs of 128 GiB, and of processors with so many address bits."""

        def prepare(tree) -> None:
            for device in tree.devices.iterdir():
                if (device / "class").read_text().startswith("0x0302"):
                    # A prefetchable memory BAR of 64 bits: include/linux/ioport.h.
                    tree._write(device / "resource", f"0x0 {(128 << 30) - 1:#x} 0x14220c")
            tree._write(
                tree.root / "proc/cpuinfo",
                f"address sizes\t: {bits} bits physical, 48 bits virtual",
            )

        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=gpus),)), before=prepare)

    def test_a_flat_guest_has_room_for_its_devices(self) -> None:
        self.with_large_gpus(bits=46)
        server = self.server({**PAIR, "hpc:guest_topology": "flat"})
        (hole,) = self.domain_of(server).iterfind("devices/controller/pcihole64")
        self.assertEqual(512 << 20, int(hole.text))
        # One that was started before has the hardware that it had.
        self.set_abi(server, '{"v":1,"mode":"flat","clique":0}')
        self._reboot_server(server, hard=True)
        self.assertIsNone(self.domain_of(server).find("devices/controller/pcihole64"))
        self.assertEqual('{"v":1,"mode":"flat","clique":0}', self.abi(server))

    def test_devices_that_the_processors_cannot_reach_are_refused(self) -> None:
        self.with_large_gpus(bits=39)
        for mode in ("flat", "mirror"):
            server = self.server({**PAIR, "hpc:guest_topology": mode}, state="ERROR")
            self.assertIn(
                "takes 512 GiB of address space, which needs processors with 40 bits of "
                "physical addresses, and these have 39",
                self.fault(server),
            )
            self.assertEqual(0, self.failed_builds("alpha"))
            self._delete_server(server)
            self.update("alpha")

    def test_a_libvirt_that_knows_no_address_bits_is_named(self) -> None:
        """The fake one is of Nova's minimum, 8.0.0."""
        self.with_large_gpus(bits=46, gpus=8)
        specs = {**PAIR, "pci_passthrough:alias": "gpu:8", "hpc:guest_topology": "flat"}
        server = self.server(specs, state="ERROR")
        self.assertIn("needs libvirt 8.7.0 or newer on the node", self.fault(server))
        self.assertEqual(0, self.failed_builds("alpha"))

    def with_definitions(self) -> None:
        """Let the fake libvirt keep the definition of a domain, as the real one does."""
        plain = fakelibvirt.Domain.XMLDesc
        kept = {uuid: texts[-1] for uuid, texts in self.domains.given.items()}

        def describe(domain, flags):
            if flags & fakelibvirt.VIR_DOMAIN_XML_INACTIVE:
                return kept[domain.UUIDString()]
            return plain(domain, flags)

        self.useFixture(
            fixtures.fixtures.MonkeyPatch("nova.tests.fixtures.libvirt.Domain.XMLDesc", describe)
        )
        self.useFixture(
            fixtures.fixtures.MonkeyPatch(
                "nova.virt.libvirt.guest.libvirt.VIR_DOMAIN_XML_INACTIVE",
                fakelibvirt.VIR_DOMAIN_XML_INACTIVE,
            )
        )

    def attached(self) -> list[str]:
        """What is attached from now on."""
        found: list[str] = []
        plain = libvirt_guest.Guest.attach_device

        def attach(guest, conf, *args, **kwargs):
            found.append(conf.to_xml())
            return plain(guest, conf, *args, **kwargs)

        self.useFixture(
            fixtures.fixtures.MonkeyPatch("nova.virt.libvirt.guest.Guest.attach_device", attach)
        )
        return found

    def test_suspended_devices_come_back_to_their_places(self) -> None:
        self.start()
        server = self.server(MIRROR)
        before = tree_reader.read(self.xml(server)).addresses
        self.with_definitions()
        attached = self.attached()
        self.flags(suspend_with_devices=True, group="hpc")
        self._suspend_server(server)
        self._resume_server(server)
        self.assertEqual(4, len(attached))
        back = {}
        for text in attached:
            domain = etree.fromstring(f"<domain><devices>{text}</devices></domain>")
            source = domain.find("devices/hostdev/source/address")
            parts = [int(source.get(key), 16) for key in ("domain", "bus", "slot", "function")]
            back["{:04x}:{:02x}:{:02x}.{:x}".format(*parts)] = tree_reader.where(
                domain.find("devices/hostdev")
            )
            self.assertEqual("off", domain.find("devices/hostdev/rom").get("bar"))
        self.assertEqual(before, back)

    def test_flat_guests_get_their_devices_back_as_nova_does(self) -> None:
        self.start()
        server = self.server(CELLS)
        self.with_definitions()
        attached = self.attached()
        self.flags(suspend_with_devices=True, group="hpc")
        self._suspend_server(server)
        self._resume_server(server)
        self.assertEqual(4, len(attached))
        self.assertFalse([text for text in attached if "type='pci' domain" in text])
        self.assertFalse([text for text in attached if "<alias" in text])
