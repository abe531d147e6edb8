# SPDX-License-Identifier: Apache-2.0
"""Kinds of direct ports, and ports that are not there any more or are somebody else's."""

from __future__ import annotations

from unittest import mock

import fixtures as plain_fixtures
from nova.objects import fields
from nova.virt.libvirt import host as libvirt_host

from nova_hpc_common.level import Distance
from tests.functional.fixtures import Shape
from tests.functional.ports_base import ONE, RAIL, PortsTest

KIND = "binding:vnic_type"


class KindsTest(PortsTest):
    """Ports that get a function in another way than a direct one."""

    def test_a_macvtap_port(self) -> None:
        """The host keeps the function; it is beside the GPU all the same."""
        self.rails("alpha", Shape((RAIL,) * 3), gpus=[1])
        port = self.port(**{KIND: "macvtap"})
        server = self.boot(self.make_flavor(ONE), networks=[{"port": port}])
        self.assertEqual([Distance.PIX], self.pairs_of(server))
        self.assertEqual(1, self.start_attempts())

    def test_a_remotely_managed_port(self) -> None:
        """Of three adapters one is a DPU, and its functions are for such ports alone."""
        plain = libvirt_host.Host._get_pcidev_info

        def describe(host, *arguments, **keywords):
            found = plain(host, *arguments, **keywords)
            if found["dev_type"] == fields.PciDeviceType.SRIOV_VF:
                vpd = {"card_serial_number": found["parent_addr"]}
                found.setdefault("capabilities", {})["vpd"] = vpd
            return found

        self.useFixture(
            plain_fixtures.MonkeyPatch("nova.virt.libvirt.host.Host._get_pcidev_info", describe)
        )
        shape = Shape((RAIL,) * 3)
        entries = []
        for entry in shape.device_spec():
            if entry["hpc_role"] == "vf":
                dpu = entry["address"].startswith("0000:42")
                entry |= {"physical_network": "physnet4", "remote_managed": str(dpu).lower()}
                del entry["resource_class"], entry["managed"]
            entries.append(entry)
        self.host("alpha", shape, device_spec=entries)
        flavor = self.make_flavor(ONE)
        managed = self.port(
            **{KIND: "remote-managed", "binding:vif_type": "ovs", "binding:vif_details": {}}
        )
        server = self.boot(flavor, networks=[{"port": managed}])
        self.assertEqual([Distance.PIX], self.pairs_of(server))
        self.assertEqual({"42"}, {each.address[5:7] for each in self.devices_of(server)})
        # The two others have GPUs for ordinary ports; the third has neither.
        for _ in range(2):
            server = self.boot(flavor, networks=self.ports("physnet4"))
            self.assertEqual([Distance.PIX], self.pairs_of(server))


class WrongPortsTest(PortsTest):
    """Nothing of a server stays behind whose port cannot be had."""

    def setUp(self) -> None:
        super().setUp()
        self.rails("alpha", Shape((RAIL,)))
        self.flavor = self.make_flavor(ONE)

    def assert_as_before(self, server: dict) -> None:
        """Nothing is taken, and the next server gets it once the node has cleaned it."""
        self.assertEqual([], self.devices_of(server))
        self.update("alpha")
        self.assert_all_free("alpha")
        next_one = self.boot(self.flavor, networks=self.ports("physnet4"))
        self.assertEqual([Distance.PIX], self.pairs_of(next_one))
        self.assert_given_once()

    def test_of_another_project(self) -> None:
        """Nova looks at the owner on the node alone, when the devices are claimed."""
        port = self.port(tenant_id="of-somebody-else", project_id="of-somebody-else")
        server = self.boot(self.flavor, state="ERROR", networks=[{"port": port}])
        self.assertIn("its network could not be set up", self.fault(server))
        self.assertFalse(self.neutron._ports[port].get("device_id"))
        self.assert_as_before(server)

    def test_deleted_while_scheduling(self) -> None:
        (wanted,) = self.ports("physnet4")
        plain = self.topology_filter().filter_all

        def delete(hosts, spec):
            self.neutron._ports.pop(wanted["port"], None)
            return plain(hosts, spec)

        with mock.patch.object(self.topology_filter(), "filter_all", delete):
            server = self.boot(self.flavor, state="ERROR", networks=[wanted])
        self.assertIn("its network could not be set up", self.fault(server))
        self.assert_as_before(server)
