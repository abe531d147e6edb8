# SPDX-License-Identifier: Apache-2.0
"""Faults and attacks from outside: what users write, hardware and libvirt that die."""

from __future__ import annotations

import base64
import json

from lxml import etree
from nova import exception
from nova.tests import fixtures as nova_fixtures
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.virt.libvirt.vif import LibvirtGenericVIFDriver
from os_brick import exception as brick_exception
from os_vif import exception as osv_exception

from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

PLUG = LibvirtGenericVIFDriver._plug_os_vif
FIRST, SECOND = "0000:40:00.0", "0000:40:01.0"
TWO = fixtures.Shape((fixtures.Switch(gpus=2),))
#: What ends an element, an attribute, a line, a word of a shell, and a folder.
HOSTILE = "../../x\"'><hostdev/><!--&lol;&#0;]]>;$(reboot)`id`%s"


class StringsTest(DriverTest):
    """Texts of users and operators on their way into XML, paths and files."""

    ALIAS = '../../a"\'><hostdev mode="x"/>&lol;$(id)'
    PCI_ALIAS = (json.dumps({"name": ALIAS, "resource_class": fixtures.GPU_CLASS}),)

    def test_they_stay_texts(self) -> None:
        self.flags(hw_machine_type=["x86_64=q35"], group="libvirt")
        self.host("alpha", TWO)
        root = self.sysfs["alpha"].root
        before = {each.name for each in root.parent.iterdir()}
        flavor = self.make_flavor(
            {
                "pci_passthrough:alias": f"{self.ALIAS}:2",
                "hpc:affinity": "switch",
                "hpc:guest_topology": "mirror",
                "evil": HOSTILE,
            },
            name=f"f{HOSTILE}"[:250],
        )
        body = self._build_server(flavor_id=flavor, networks="none")
        body |= {
            "name": f"s{HOSTILE}",
            "metadata": {"evil": HOSTILE, "long": "&<" * 127},
            "description": HOSTILE,
        }
        with self.at_microversion(self.api, "2.90"):
            created = self.api.post_server({"server": body})
        server = self._wait_for_state_change(created, "ACTIVE")
        domain = self.domain_of(server)
        space = {"nova": "http://openstack.org/xmlns/libvirt/nova/1.1"}
        self.assertEqual(f"s{HOSTILE}", domain.findtext(".//nova:name", namespaces=space))
        self.assertEqual([FIRST, SECOND], self.domain_devices(server))
        self.assertEqual(2, len(domain.findall(".//hostdev")))
        # The guest is told of devices, and reads no text of anybody.
        told = [
            base64.b64decode(each.text).decode("ascii")
            for each in domain.findall("sysinfo[@type='fwcfg']/entry")
        ]
        self.assertEqual(2, len(told))
        for text in (*told, *map(str, self.instance(server).system_metadata.values())):
            self.assertNotIn("reboot", text)
            self.assertNotIn("hostdev", text)
        etree.fromstring(told[0] if told[0].startswith("<") else told[1])
        # Paths are made of addresses only.
        self.assertEqual({FIRST, SECOND}, set(self.ledger("alpha").marked))
        self._delete_server(server)
        self.assertEqual(before, {each.name for each in root.parent.iterdir()})
        self.assert_all_free("alpha")

    def test_a_group_that_is_none(self) -> None:
        """Words of a flavor end in a fault that says what is wrong, and in nothing else."""
        self.host("alpha", TWO)
        alias = {"pci_passthrough:alias": f"{self.ALIAS}:1", "hpc:affinity": "switch"}
        for more in (
            {"hpc:group": HOSTILE},
            {"hpc:group": "gpu:" + "9" * 200},
            {"hpc:guest_topology": "../" * 80},
        ):
            server = self.boot(self.make_flavor({**alias, **more}), state="ERROR")
            fault = self.fault(server)
            self.assertNotIn("Traceback", fault)
            self.assert_no_secrets(fault)
            self._delete_server(server)
        self.assertEqual({}, self.ledger("alpha").marked)


class StartTest(DriverTest):
    """Something dies between the check before a start and the guest."""

    FLAVOR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}

    def dying(self, text: str, before=lambda: None) -> list[str]:
        """Let the next start of a domain fail; the domains that were asked for."""
        asked: list[str] = []
        plain = fakelibvirt.Domain.createWithFlags

        def create(domain, flags):
            asked.append(domain.UUIDString())
            if len(asked) > 1:
                return plain(domain, flags)
            before()
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError,
                text,
                error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR,
                error_domain=fakelibvirt.VIR_FROM_QEMU,
            )

        self.useFixture(
            fixtures.fixtures.MonkeyPatch(
                "nova.tests.fixtures.libvirt.Domain.createWithFlags", create
            )
        )
        return asked

    def domains_left(self) -> list[str]:
        connection = self.computes["alpha"].driver._host.get_connection()
        return [each.name() for each in connection._vms.values()]

    def test_libvirt_dies_between_define_and_start(self) -> None:
        self.host("alpha", TWO)
        asked = self.dying("Cannot recv data: Connection reset by peer")
        server = self.boot(self.make_flavor(self.FLAVOR), state="ERROR")
        self.assertEqual([server["id"]], asked)
        self.assertEqual([], self.domains_left())
        self._delete_server(server)
        self.update("alpha")
        self.assert_all_free("alpha")
        self.assertEqual({FIRST: 1, SECOND: 1}, self.in_placement("alpha"))
        self.assertEqual({}, self.ledger("alpha").marked)
        self.assertEqual({}, self.ledger("alpha").quarantined)
        # They were marked, so they were cleaned.
        for address in (FIRST, SECOND):
            reset = self.sysfs["alpha"].devices / address / "reset"
            self.assertIn("1", reset.read_text())
        again = self.boot(self.make_flavor(self.FLAVOR))
        self.assertEqual([FIRST, SECOND], self.domain_devices(again))

    def test_a_device_disappears_while_its_guest_starts(self) -> None:
        self.host("alpha", TWO)
        self.dying(
            "internal error: Device 0000:40:00.0 not found",
            before=lambda: self.sysfs["alpha"].vanish(FIRST),
        )
        server = self.boot(self.make_flavor(self.FLAVOR), state="ERROR")
        # Not libvirt's words, which name the host's device.
        self.assertIn("could not be started on the host", self.fault(server))
        self._delete_server(server)
        for _ in range(2):
            self.update("alpha")
        # The one that is left is clean and offered; the other is not.
        self.assertEqual({SECOND: "available"}, self.tracked("alpha"))
        self.assertEqual({SECOND: 1}, self.given_by_placement("alpha"))
        held = self.ledger("alpha")
        self.assertEqual({}, held.quarantined)
        self.assertEqual([FIRST], list(held.suspect))
        # Whatever comes back in its place is cleaned before anybody gets it.
        self.assertIn(FIRST, held.marked)
        one = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:1"}))
        self.assertEqual([SECOND], self.domain_devices(one))


class ToldTest(DriverTest):
    """What failed is said in the words of the server's user, with the request's id."""

    FLAVOR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}
    #: Libvirt's words for what QEMU said, as they were seen.
    WORDS = {
        "a PCI device could not be given to it": (
            "internal error: qemu unexpectedly closed the monitor: 2026-11-22T18:00:00Z "
            "qemu-system-x86_64: -device vfio-pci,host=0000:40:00.0,id=ua-hpc-0: vfio "
            "0000:40:00.0: group 41 is not viable",
            "Unable to reset PCI device 0000:40:00.0: no FLR, PM reset or bus reset available",
        ),
        "its memory could not be reserved": (
            "internal error: qemu unexpectedly closed the monitor: qemu-system-x86_64: unable to "
            "map backing store for guest RAM: Cannot allocate memory",
            "cannot set up guest memory 'ram-node0': Cannot allocate memory",
        ),
        "its network could not be set up": ("Unable to open /dev/net/tun: No such file",),
        "a volume could not be attached": ("Failed to open file '/dev/dm-7': No such device",),
    }

    def setUp(self) -> None:
        super().setUp()
        self.cinder = self.useFixture(nova_fixtures.CinderFixture(self))
        self.host("alpha", TWO)
        self.flavor = self.make_flavor(self.FLAVOR)

    def failing(self, name: str, error: Exception) -> None:
        """Let a function of Nova's, or below it, fail once."""
        module, _, attribute = name.rpartition(".")
        patch = fixtures.fixtures.MockPatch(name, side_effect=error)
        self.useFixture(patch)
        self.addCleanup(lambda: self.assertTrue(patch.mock.called, f"{module}: {attribute}"))

    def port(self, vif_type: str) -> list[dict[str, str]]:
        """A new ordinary port, as a request for networks."""
        body = {**self.neutron.network_1_port_2, "binding:vif_type": vif_type}
        return [{"port": self.neutron.create_port({"port": body})["port"]["id"]}]

    def request_id(self, server) -> str:
        """That of the last action, as the operator finds it in every log."""
        return self.api.get_instance_actions(server["id"])[0]["request_id"]

    def assert_told(self, server, words: str, fault: str | None = None) -> None:
        fault = self.fault(server) if fault is None else fault
        self.assertIn(words, fault)
        self.assertIn(self.request_id(server), fault)
        self.assert_no_secrets(fault)
        for secret in ("/dev", "10.9.8.7", "br-int", "fa:16", "qemu", "libvirt", "plugin"):
            self.assertNotIn(secret, fault)
        self.assertLessEqual(len(fault), 255)

    def refused(self, words: str, **keywords: object) -> None:
        server = self.boot(self.flavor, state="ERROR", **keywords)
        self.assert_told(server, words)
        self._delete_server(server)
        self.update("alpha")
        self.assert_all_free("alpha")

    def test_a_port_that_cannot_be_plugged(self) -> None:
        # As on a node without the module tun.
        missing = FileNotFoundError(2, "No such file or directory", "/dev/net/tun")
        self.failing("nova.privsep.linux_net.create_tap_dev", missing)
        self.refused("its network could not be set up", networks=self.port("tap"))

    def test_a_plugin_of_os_vif_that_fails(self) -> None:
        error = osv_exception.PlugException(vif="fa:16:3e:00:00:01 on br-int", err="no ovsdb")
        # Nova's fixture has a stub in place of it.
        self.useFixture(
            fixtures.fixtures.MonkeyPatch(
                "nova.virt.libvirt.vif.LibvirtGenericVIFDriver._plug_os_vif", PLUG
            )
        )
        self.failing("os_vif.plug", error)
        self.refused("its network could not be set up", networks=self.port("ovs"))

    def test_a_network_that_neutron_does_not_give(self) -> None:
        error = exception.PortBindingFailed(port_id="x")
        self.failing("nova.network.neutron.API.allocate_for_instance", error)
        self.refused("its network could not be set up", networks=self.port("ovs"))

    def test_a_volume_that_cannot_be_connected(self) -> None:
        error = brick_exception.VolumeDeviceNotFound(device="/dev/disk/by-path/ip-10.9.8.7:3260")
        self.failing(
            "nova.virt.libvirt.volume.volume.LibvirtFakeVolumeDriver.connect_volume", error
        )
        volume = {
            "boot_index": 0,
            "uuid": self.cinder.IMAGE_BACKED_VOL,
            "source_type": "volume",
            "destination_type": "volume",
        }
        body = self._build_server(flavor_id=self.flavor, networks="none", image_uuid="")
        body["block_device_mapping_v2"] = [volume]
        created = self.api.post_server({"server": body})
        server = self._wait_for_state_change(created, "ERROR")
        self.assert_told(server, "a volume could not be attached")

    def dying(self, text: str) -> None:
        """Let the start of every domain fail."""

        def create(domain, flags):
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError,
                text,
                error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR,
                error_domain=fakelibvirt.VIR_FROM_QEMU,
            )

        self.useFixture(
            fixtures.fixtures.MonkeyPatch(
                "nova.tests.fixtures.libvirt.Domain.createWithFlags", create
            )
        )

    def test_what_libvirt_says(self) -> None:
        for told, texts in self.WORDS.items():
            for text in texts:
                self.dying(text)
                self.refused(told)

    def test_a_server_that_is_started_again(self) -> None:
        """It stays stopped, and can be started when the cause is gone."""
        server = self.boot(self.flavor)
        self._stop_server(server)
        plain = fakelibvirt.Domain.createWithFlags
        self.dying(self.WORDS["its memory could not be reserved"][0])
        self.refused_action(server, {"os-start": None})
        self._wait_for_action_fail_completion(server, "start", "compute_start_instance")
        self.assertEqual("SHUTOFF", self.api.get_server(server["id"])["status"])
        told = self.fault_messages(server)[0]
        self.assert_told(server, "its memory could not be reserved", told)
        self.useFixture(
            fixtures.fixtures.MonkeyPatch(
                "nova.tests.fixtures.libvirt.Domain.createWithFlags", plain
            )
        )
        self._start_server(server)

    def test_flavors_of_others_keep_novas_words(self) -> None:
        self.dying("anything")
        server = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:2"}), state="ERROR")
        self.assertIn("Exhausted all hosts", self.fault(server))
