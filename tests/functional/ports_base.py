# SPDX-License-Identifier: Apache-2.0
"""The base of the tests with Neutron's direct ports: hosts with rails, and ports for them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from oslo_utils import uuidutils

from nova_hpc_common.level import Distance, Location, distance_between
from nova_hpc_guest import document, terms
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.fixtures import Shape, Switch

#: A rail a switch: a GPU and an adapter.
RAIL = Switch(gpus=1, pfs=1, vfs=4)
#: Eight of them, on two NUMA nodes.
EIGHT = Shape(tuple(Switch(gpus=1, pfs=1, vfs=4, numa=n // 4) for n in range(8)))

ONE = {"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"}
PAIRS = {
    "pci_passthrough:alias": "gpu:8",
    "hpc:affinity": "switch",
    "hpc:group": "gpu:1,port:1",
}


class PortsTest(DriverTest):
    """Servers with direct ports on hosts whose adapters are for ports alone."""

    def setUp(self) -> None:
        super().setUp()
        # How many there are is what these tests look at.
        self.flags(disclose_capacity=True, group="hpc")

    def rails(
        self,
        name: str,
        shape: Shape,
        networks: Mapping[int, str] | Sequence[str] | str = "physnet4",
        gpus: Sequence[int] | None = None,
        **options: object,
    ) -> str:
        """Start a host.

        :param networks: switch -> physical network of its adapters, or one of all;
            the adapters of other switches are not offered.
        :param gpus: switches whose GPUs are offered; None: all.
        :param options: more keys of the adapters' entries in ``device_spec``.
        """
        if isinstance(networks, str):
            networks = [networks] * len(shape.switches)
        if not isinstance(networks, Mapping):
            networks = dict(enumerate(networks))
        entries = []
        for entry in shape.device_spec():
            switch = int(entry["address"][5:7], 16) - 0x40
            if entry["hpc_role"] == "gpu":
                if gpus is None or switch in gpus:
                    entries.append(entry)
            elif switch in networks:
                entry = {**entry, "physical_network": networks[switch], **options}
                del entry["resource_class"], entry["managed"]
                entries.append(entry)
        return self.host(name, shape, device_spec=entries)

    def port(self, network: str | None = "physnet4", **more: object) -> str:
        """A new direct port of a network on this physical network."""
        template = self.neutron.network_4
        found = copy.deepcopy(template)
        if network != template["provider:physical_network"]:
            found["id"] = str(uuidutils.generate_uuid())
            found["provider:physical_network"] = network
            if network is None:
                found["provider:network_type"] = "vxlan"
            self.neutron._networks[found["id"]] = found
        port = copy.deepcopy({**self.neutron.default_port, **self.neutron.network_4_port_1})
        number = len(self.neutron._ports)
        port |= {
            "id": str(uuidutils.generate_uuid()),
            "network_id": found["id"],
            "mac_address": f"fa:16:3e:00:{number >> 8:02x}:{number & 255:02x}",
            **more,
        }
        self.neutron._ports[port["id"]] = port
        return port["id"]

    def ports(self, *networks: str) -> list[dict[str, str]]:
        """New direct ports, as a server asks for them."""
        return [{"port": self.port(network)} for network in networks]

    def ports_of(self, server: Mapping[str, object]) -> list[dict]:
        """Neutron's ports of a server."""
        return [
            port for port in self.neutron._ports.values() if port.get("device_id") == server["id"]
        ]

    def told(self, server: Mapping[str, object]) -> document.GuestDocument:
        """What the guest reads of its devices."""
        entries = self.domain_of(server).findall("sysinfo[@type='fwcfg']/entry")
        (text,) = [each.text for each in entries if each.get("name") == terms.DOCUMENT]
        return document.parse_guest_document(document.decode_entry(text.encode()))

    def start_attempts(self) -> int:
        """How often nova-compute has begun to build a server."""
        return len(self.log_lines("Claim successful on node|Failed to claim: "))

    def pairs_of(self, server: Mapping[str, object]) -> list[Distance]:
        """How far each port's function is from the GPU of its own, best dealt."""
        truth = self.shapes[self.host_of(server)].locations()
        gpus: list[Location] = []
        adapters: list[Location] = []
        for device in self.devices_of(server):
            of_gpu = device.product_id == fixtures.GPU_PRODUCT
            (gpus if of_gpu else adapters).append(truth[device.address])
        found = []
        for place in adapters:
            near = min(gpus, key=lambda gpu: distance_between(place, gpu))
            gpus.remove(near)
            found.append(distance_between(place, near))
        return found
