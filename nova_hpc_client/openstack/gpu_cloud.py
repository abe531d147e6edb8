# SPDX-License-Identifier: Apache-2.0
"""Carries out the steps of GPU shares as requests to Nova and Neutron."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nova_hpc_client.gpu import model
from nova_hpc_client.gpu.cloud import ProjectView
from nova_hpc_client.gpu.model import GpuPort, GpuServer
from nova_hpc_client.openstack.cloud import SdkCloud
from nova_hpc_client.openstack.rest import ConflictError, GoneError, OutdatedError, RestClient


class SdkShareCloud:
    """Nova and Neutron with the rights of one user.

    :param rest: its requests.
    """

    def __init__(self, rest: RestClient) -> None:
        self.rest = rest
        #: Finds ids by names.
        self.names = SdkCloud(rest)

    @property
    def project(self) -> str:
        """Id of the user's project."""
        return self.rest.project

    # -- looking -----------------------------------------------------------

    def look(self) -> ProjectView:
        """Read all shares of the project, with their servers, ports and security groups.

        Groups are read before servers. So a group whose server is missing is left over, and cannot
        belong to a server that was created in between.
        """
        answer = self.rest.neutron("GET", "/security-groups", project_id=self.project)
        groups = tuple(map(model.read_gpu_group, answer["security_groups"]))
        ports = tuple(map(model.read_gpu_port, self.rest.ports()))
        servers = tuple(map(model.read_gpu_server, self.rest.servers()))
        shares = model.gather_shares(servers, ports, groups)
        by_id = {server.id: server for server in servers}
        return ProjectView(tuple(shares), by_id, ports, groups)

    def gpu_server(self, name: str) -> GpuServer:
        """Read the server with this name or id.

        :raises ClusterError: there is none, or more than one.
        """
        return model.read_gpu_server(self.names.server_record(name))

    def is_gone(self, server: str) -> bool:
        """Whether the server does not exist (any more)."""
        try:
            self.rest.nova("GET", f"/servers/{server}")
        except GoneError:
            return True
        return False

    def subnets(self) -> Mapping[str, str]:
        """Return id of each subnet -> its CIDR as Neutron writes it."""
        found = self.rest.neutron("GET", "/subnets", fields=("id", "cidr"))["subnets"]
        return {str(subnet["id"]): str(subnet["cidr"]) for subnet in found}

    def console(self, server: str) -> str:
        """Read the last lines of a server's console; "" if there is none."""
        return self.names.console(server)

    def named_group(self, name: str) -> str:
        """Return the id of the project's security group with this id or name."""
        return self.names.security_group(name)

    # -- steps -------------------------------------------------------------

    def make_server(self, body: Mapping[str, Any]) -> str:
        """Request a server, and return its id."""
        return str(self.rest.nova("POST", "/servers", body)["server"]["id"])

    def delete_server(self, server: str) -> None:
        """Request the deletion of a server."""
        self.names.delete_server(server)

    def make_security_group(self, name: str, description: str) -> str:
        """Make a security group, and return its id."""
        body = {"security_group": {"name": name, "description": description}}
        answer = self.rest.neutron("POST", "/security-groups", body)
        return str(answer["security_group"]["id"])

    def make_rule(self, body: Mapping[str, Any]) -> None:
        """Make a rule of a security group."""
        try:
            self.rest.neutron("POST", "/security-group-rules", {"security_group_rule": dict(body)})
        except ConflictError:
            return  # The rule exists already.

    def delete_security_group(self, group: str) -> None:
        """Delete a security group; do nothing if it is gone."""
        try:
            self.rest.neutron("DELETE", f"/security-groups/{group}")
        except GoneError:
            return

    def set_port_groups(self, port: GpuPort, groups: Sequence[str]) -> bool:
        """Give a port these security groups.

        Neutron compares the revision number, so groups that another client adds are not lost.

        :returns: False if the port has changed since it was read.
        :raises GoneError: one of the groups is gone; a missing port is ignored.
        """
        headers = {}
        if port.revision is not None:
            headers["If-Match"] = f"revision_number={port.revision}"
        body = {"port": {"security_groups": list(groups)}}
        try:
            self.rest.neutron("PUT", f"/ports/{port.id}", body, headers=headers)
        except OutdatedError:
            return False
        except GoneError:
            # Either the port or one of the groups is gone.
            if self._has_port(port.id):
                raise
        return True

    def _has_port(self, port: str) -> bool:
        try:
            self.rest.neutron("GET", f"/ports/{port}")
        except GoneError:
            return False
        return True

    def set_item(self, server: str, key: str, text: str) -> None:
        """Write one item of a server's metadata."""
        self.rest.nova("POST", f"/servers/{server}/metadata", {"metadata": {key: text}})

    def delete_item(self, server: str, key: str) -> None:
        """Delete one item of a server's metadata."""
        try:
            self.rest.nova("DELETE", f"/servers/{server}/metadata/{key}")
        except GoneError:
            return
