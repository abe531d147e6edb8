# SPDX-License-Identifier: Apache-2.0
"""What projects, the administrator and Nova do with networks and ports."""

import uuid

import attrs
import requests

from tests.fabric.bare_fabric import wait_until
from tests.fabric.matrix import guid_text

PHYSICAL = "ibrail0"


@attrs.frozen
class Tenants:
    """Everybody who talks to the Neutron of one plane."""

    plane: object

    def network(self, project, pkey, *, physical=PHYSICAL, **more):
        """The ID of a new network of a project."""
        body = {
            "name": f"{project}-{pkey}",
            "project_id": self.project_id(project),
            "provider:network_type": "vlan",
            "provider:physical_network": physical,
            "provider:segmentation_id": pkey,
            **more,
        }
        status, answer = self.plane.admin.call("POST", "/networks", {"network": body})
        assert status == 201, answer
        return answer["network"]["id"]

    def project_id(self, project):
        return self.plane.project_ids[project]

    def port(self, project, network, *, api=0, vnic="direct", **more):
        """The ID of a new port that its project makes."""
        body = {"network_id": network, "binding:vnic_type": vnic, **more}
        caller = self.plane.callers[project]
        status, answer = caller.call("POST", "/ports", {"port": body}, api=api)
        assert status == 201, answer
        return answer["port"]["id"]

    def bind(self, port, place, *, function=0, api=0, timeout=90.0):
        """What Nova does when it has chosen a device; the status of the answer, or the error.

        :param place: a port of the net; *function* None: the whole port.
        """
        slot = place.address if function is None else place.functions[function]
        body = {
            "binding:host_id": place.host,
            "binding:profile": {
                "pci_slot": slot,
                "pci_vendor_info": "15b3:101e",
                "physical_network": PHYSICAL,
            },
            "device_id": str(uuid.uuid4()),
            "device_owner": "compute:nova",
        }
        return self._put(port, body, api, timeout)

    def unbind(self, port, *, api=0, timeout=90.0):
        """What Nova does when a server is gone."""
        body = {
            "binding:host_id": "",
            "binding:profile": {},
            "device_id": "",
            "device_owner": "",
        }
        return self._put(port, body, api, timeout)

    def _put(self, port, body, api, timeout):
        try:
            return self.plane.admin.call(
                "PUT", f"/ports/{port}", {"port": body}, api=api, timeout=timeout
            )[0]
        except requests.RequestException as err:
            return type(err).__name__

    def delete(self, port, *, api=0, timeout=90.0):
        try:
            return self.plane.admin.call("DELETE", f"/ports/{port}", api=api, timeout=timeout)[0]
        except requests.RequestException as err:
            return type(err).__name__

    def show(self, port):
        status, answer = self.plane.admin.call("GET", f"/ports/{port}")
        return answer["port"] if status == 200 else None

    def status(self, port):
        return self.show(port)["status"]

    def wait_for(self, port, status="ACTIVE", seconds=60.0):
        wait_until(lambda: self.status(port) == status, f"{port} is {status}", seconds)

    def member(self, project, network, place, **options):
        """The ID of a new port that is bound to *place* and ACTIVE."""
        port = self.port(project, network)
        status = self.bind(port, place, **options)
        assert status == 200, status
        self.wait_for(port)
        return port


def guid_of(place):
    return guid_text(place.guid)
