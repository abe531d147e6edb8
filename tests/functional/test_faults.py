"""Faults and attacks from outside: what users write, hardware and libvirt that die."""

from __future__ import annotations

import base64
import json

from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

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
        self.assertEqual({SECOND: 1}, self.in_placement("alpha"))
        held = self.ledger("alpha")
        self.assertEqual({FIRST: "it has disappeared"}, held.quarantined)
        one = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:1"}))
        self.assertEqual([SECOND], self.domain_devices(one))
