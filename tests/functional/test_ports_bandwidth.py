# SPDX-License-Identifier: Apache-2.0
"""Direct ports with guaranteed bandwidth: on the adapter that has it, beside the devices."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import fixtures as plain_fixtures
import pytest
from nova.objects import fields
from nova.virt.libvirt import host as libvirt_host
from oslo_utils import uuidutils

from nova_hpc_common.level import Distance
from tests.functional import base
from tests.functional.fixtures import Shape
from tests.functional.ports_base import ONE, RAIL, PortsTest

EGRESS, INGRESS = "NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC"
NETWORK, DIRECT = "CUSTOM_PHYSNET_PHYSNET4", "CUSTOM_VNIC_TYPE_DIRECT"


class BandwidthTest(PortsTest):
    """Hosts whose agents have told Placement of their adapters' bandwidth."""

    def setUp(self) -> None:
        super().setUp()
        plain = libvirt_host.Host._get_pcidev_info

        def describe(host, *arguments, **keywords):
            """Nova's fake libvirt has no network devices, which name the interface."""
            found = plain(host, *arguments, **keywords)
            if found["dev_type"] == fields.PciDeviceType.SRIOV_VF:
                found["parent_ifname"] = interface(found["parent_addr"])
            return found

        self.useFixture(
            plain_fixtures.MonkeyPatch("nova.virt.libvirt.host.Host._get_pcidev_info", describe)
        )
        for trait in (NETWORK, DIRECT):
            self.placement.put(f"/traits/{trait}", body=None, version="1.6")
        #: host, switch -> provider
        self.agents: dict[tuple[str, int], str] = {}

    def agent(self, host: str, megabits: Mapping[int, int]) -> None:
        """What Neutron's agent reports: switch -> bandwidth of its adapter."""
        above = self._get_provider_uuid_by_host(host)
        agent = self._provider(f"{host}:NIC Switch agent", above)
        for switch, amount in megabits.items():
            name = f"{host}:NIC Switch agent:{interface(f'0000:{0x40 + switch:02x}:01.0')}"
            made = self._provider(name, agent)
            inventory = {"total": amount * 1000}
            self.placement.put(
                f"/resource_providers/{made}/inventories",
                {
                    "resource_provider_generation": 0,
                    "inventories": {EGRESS: inventory, INGRESS: inventory},
                },
            )
            self.placement.put(
                f"/resource_providers/{made}/traits",
                {"resource_provider_generation": 1, "traits": [NETWORK, DIRECT]},
                version="1.6",
            )
            self.agents[host, switch] = made

    def _provider(self, name: str, above: str) -> str:
        made = uuidutils.generate_uuid()
        body = {"name": name, "uuid": made, "parent_provider_uuid": above}
        self.placement.post("/resource_providers", body, version="1.20")
        return made

    def fast(self, megabits: int) -> dict[str, str]:
        """A port with so much bandwidth, as a server asks for it."""
        request = {
            "resources": {EGRESS: megabits * 1000, INGRESS: megabits * 1000},
            "required": [NETWORK, DIRECT],
        }
        return {"port": self.port(resource_request=copy.deepcopy(request))}

    def used(self, host: str) -> dict[int, int]:
        """Switch -> megabits that are allocated of its adapter."""
        found = {}
        for (name, switch), provider in self.agents.items():
            if name == host:
                usages = self.placement.get(f"/resource_providers/{provider}/usages").body
                found[switch] = usages["usages"][EGRESS] // 1000
        return found

    def switches_of(self, server: Mapping[str, object]) -> set[int]:
        return {int(each.address[5:7], 16) - 0x40 for each in self.devices_of(server)}

    def test_the_devices_go_where_the_bandwidth_is(self) -> None:
        """Two adapters have free functions, and too little bandwidth."""
        self.rails("alpha", Shape((RAIL, RAIL, RAIL)))
        self.agent("alpha", {0: 100, 1: 100, 2: 1000})
        server = self.boot(self.make_flavor(ONE), networks=[self.fast(500)])
        self.assertEqual([Distance.PIX], self.pairs_of(server))
        self.assertEqual({2}, self.switches_of(server))
        self.assertEqual({0: 0, 1: 0, 2: 500}, self.used("alpha"))
        self.assertEqual(1, self.start_attempts())

    def test_the_bandwidth_goes_where_the_devices_are(self) -> None:
        """Placement's own candidates begin with any adapter that has the bandwidth."""
        for free in (0, 1):
            name = f"host{free}"
            self.rails(name, Shape((RAIL, RAIL)), gpus=[free])
            self.agent(name, dict.fromkeys(range(2), 1000))
            server = self.boot(self.make_flavor(ONE), networks=[self.fast(500)], host=name)
            self.assertEqual([Distance.PIX], self.pairs_of(server))
            self.assertEqual({each: 500 * (each == free) for each in range(2)}, self.used(name))
        self.assertEqual(2, self.start_attempts())

    def test_one_adapter_has_enough_for_one_of_two(self) -> None:
        """Two pairs are on two switches, though one adapter has functions for both."""
        self.rails("alpha", Shape((RAIL, RAIL)))
        self.agent("alpha", {0: 700, 1: 700})
        flavor = self.make_flavor(
            {**ONE, "pci_passthrough:alias": "gpu:2", "hpc:group": "gpu:1,port:1"}
        )
        server = self.boot(flavor, networks=[self.fast(500), self.fast(500)])
        self.assertEqual([Distance.PIX] * 2, self.pairs_of(server))
        self.assertEqual({0: 500, 1: 500}, self.used("alpha"))

    @pytest.mark.slow
    def test_beside_a_port_without_bandwidth(self) -> None:
        """The plain one takes a function of the adapter that has none to promise."""
        self.rails("alpha", Shape((RAIL, RAIL)))
        self.agent("alpha", {1: 500})
        flavor = self.make_flavor(
            {**ONE, "pci_passthrough:alias": "gpu:2", "hpc:group": "gpu:1,port:1"}
        )
        server = self.boot(flavor, networks=[*self.ports("physnet4"), self.fast(500)])
        self.assertEqual([Distance.PIX] * 2, self.pairs_of(server))
        self.assertEqual({1: 500}, self.used("alpha"))

    def test_no_bandwidth_beside_a_gpu(self) -> None:
        """Refused by the scheduler, and nothing stays allocated."""
        self.rails("alpha", Shape((RAIL, RAIL)), gpus=[0])
        self.agent("alpha", {0: 100, 1: 1000})
        server = self.boot(self.make_flavor(ONE), state="ERROR", networks=[self.fast(500)])
        self.assertEqual(0, self.start_attempts())
        self.assertEqual({0: 0, 1: 0}, self.used("alpha"))
        self.assertIn("port", self.fault(server))
        self.assert_no_secrets(self.fault(server))

    def test_attached_where_the_gpu_is_not(self) -> None:
        """Nova takes the bandwidth of any adapter then; nothing of it stays behind."""
        self.rails("alpha", Shape((RAIL, RAIL)), gpus=[0])
        self.agent("alpha", {0: 100, 1: 1000})
        server = self.boot(self.make_flavor(ONE))
        wanted = self.fast(500)["port"]
        with self.assertRaises(base.client.OpenStackApiException) as caught:
            self.api.attach_interface(server["id"], {"interfaceAttachment": {"port_id": wanted}})
        self.assertIn("No adapter close enough", str(caught.exception))
        self.assertEqual({0: 0, 1: 0}, self.used("alpha"))
        self.assertEqual(1, len(self.devices_of(server)))
        self.assertFalse(self.neutron._ports[wanted].get("device_id"))

    @pytest.mark.slow
    def test_deleted_again(self) -> None:
        self.rails("alpha", Shape((RAIL,)))
        self.agent("alpha", {0: 500})
        flavor = self.make_flavor(ONE)
        server = self.boot(flavor, networks=[self.fast(500)])
        self.assertEqual({0: 500}, self.used("alpha"))
        self._delete_server(server)
        self.assertEqual({0: 0}, self.used("alpha"))
        self.boot(flavor, networks=[self.fast(500)])


def interface(address: str) -> str:
    """The network interface of an adapter."""
    return f"ens{int(address[5:7], 16)}"
