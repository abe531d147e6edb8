# SPDX-License-Identifier: Apache-2.0
"""The harness itself: without the filter Nova works on our hosts as it always did."""

from __future__ import annotations

from tests.functional import base, fixtures


class HarnessTest(base.HpcServersTest):
    WITH_FILTER = False

    def test_stock_server_with_devices(self) -> None:
        self.start_host(
            "one", fixtures.Shape((fixtures.Switch(gpus=1, pfs=1), fixtures.Switch(gpus=1, numa=1)))
        )
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:1,vf:2", "hw:numa_nodes": "1"})
        server = self.boot(flavor)
        self.assertEqual("one", self.host_of(server))
        devices = self.devices_of(server)
        kinds = sorted(device.dev_type for device in devices)
        self.assertEqual(["type-PCI", "type-VF", "type-VF"], kinds)
        self.assertEqual([device.address for device in devices], self.domain_devices(server))
        self.assertEqual([0], list(self.domain_nodes(server)))
        self.assert_given_once()

    def test_no_more_than_there_is(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=1))
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:3"})
        server = self.boot(flavor, state="ERROR")
        self.assertIn("No valid host was found", self.fault(server))
