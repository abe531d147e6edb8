# SPDX-License-Identifier: Apache-2.0
"""Neutron's security groups beside Nova's fixture, which has one group and one address.

Real Neutron judges the same requests in ``tests/fabric/test_gpu_groups.py``.
"""

from __future__ import annotations

import copy
import uuid
from typing import Any

from tests.functional.cluster_client import cloud_front
from tests.functional.cluster_client.cloud_front import CloudFront

SUBNET = "192.168.1.0/24"


class FilterFront(CloudFront):
    """Also makes security groups and rules, and changes ports.

    :ivar expired: number of the request from which on tokens are refused; 0: none.
    """

    def __init__(self, nova: Any, neutron: Any, quota_ports: int = 500) -> None:
        super().__init__(nova, neutron, quota_ports)
        self.expired = 0
        self._next_address = 100
        for each in neutron._security_groups.values():
            each["security_group_rules"] = []
        made, changed = neutron.create_port, neutron.update_port

        def create_port(body: Any = None) -> Any:
            found = made(body)
            kept = neutron._ports[found["port"]["id"]]
            wanted = (body or {}).get("port", {})
            kept |= {key: wanted[key] for key in ("device_id", "project_id") if wanted.get(key)}
            self._next_address += 1
            kept["fixed_ips"] = [
                {**kept["fixed_ips"][0], "ip_address": f"192.168.1.{self._next_address}"}
            ]
            default = next(iter(neutron._security_groups))
            kept["security_groups"] = list(wanted.get("security_groups") or [default])
            kept["revision_number"] = 1
            return {"port": copy.deepcopy(kept)}

        def update_port(port_id: str, body: Any = None) -> Any:
            kept = neutron._ports[port_id]
            kept["revision_number"] = kept.get("revision_number", 1) + 1
            return changed(port_id, body)

        neutron.create_port, neutron.update_port = create_port, update_port

    def _app(self, environ: dict[str, Any], start: Any) -> Any:
        if self.expired and len(self.requests) >= self.expired:
            start("401 .", [("Content-Type", "application/json")])
            return [b'{"error": {"message": "The request you have made requires authentication."}}']
        return super()._app(environ, start)

    def _network(self, environ: dict[str, Any]) -> Any:
        path = environ["PATH_INFO"].removeprefix("/network/v2.0")
        method = environ["REQUEST_METHOD"]
        project = cloud_front._who(environ)[1]
        groups = self._neutron._security_groups
        if method == "GET" and path == "/subnets":
            found = [{"id": each["id"], "cidr": SUBNET} for each in self._subnets()]
            return 200, {"subnets": found}, {}
        if method == "POST" and path == "/security-groups":
            made = self._make_group(cloud_front._body(environ)["security_group"], project)
            return 201, {"security_group": made}, {}
        if method == "POST" and path == "/security-group-rules":
            return self._make_rule(cloud_front._body(environ)["security_group_rule"])
        if method == "DELETE" and path.startswith("/security-groups/"):
            return self._delete_group(path.removeprefix("/security-groups/"))
        if method == "PUT" and path.startswith("/ports/"):
            return self._change_port(path.removeprefix("/ports/"), environ)
        if method == "GET" and path == "/security-groups":
            mine = [each for each in groups.values() if each.get("project_id", project) == project]
            return 200, {"security_groups": mine}, {}
        return super()._network(environ)

    def _subnets(self) -> Any:
        return self._neutron._subnets.values()

    def _make_group(self, body: dict[str, Any], project: str) -> dict[str, Any]:
        out = {"direction": "egress", "protocol": None, "remote_group_id": None}
        made = {
            "id": str(uuid.uuid4()),
            "project_id": project,
            "tenant_id": project,
            "security_group_rules": [out],
            **body,
        }
        self._neutron._security_groups[made["id"]] = made
        return made

    def _make_rule(self, body: dict[str, Any]) -> Any:
        group = self._neutron._security_groups.get(body["security_group_id"])
        if group is None or body["remote_group_id"] not in self._neutron._security_groups:
            return 404, {"NeutronError": {"message": "no such group"}}, {}
        if body in group["security_group_rules"]:
            return 409, {"NeutronError": {"message": "Security group rule already exists."}}, {}
        group["security_group_rules"].append(body)
        return 201, {"security_group_rule": body}, {}

    def _delete_group(self, group: str) -> Any:
        groups = self._neutron._security_groups
        if group not in groups:
            return 404, {"NeutronError": {"message": f"Security group {group} not found"}}, {}
        if any(group in port["security_groups"] for port in self._ports()):
            return 409, {"NeutronError": {"message": f"Security Group {group} in use."}}, {}
        del groups[group]
        for each in groups.values():
            rules = each.get("security_group_rules", [])
            each["security_group_rules"] = [
                rule for rule in rules if rule.get("remote_group_id") != group
            ]
        return 204, None, {}

    def _change_port(self, port: str, environ: dict[str, Any]) -> Any:
        kept = self._neutron._ports.get(port)
        if kept is None:
            return 404, {"NeutronError": {"message": f"Port {port} could not be found."}}, {}
        wanted = environ.get("HTTP_IF_MATCH")
        if wanted not in (None, f"revision_number={kept.get('revision_number')}"):
            return 412, {"NeutronError": {"message": "The port has been changed."}}, {}
        kept |= cloud_front._body(environ)["port"]
        kept["revision_number"] = kept.get("revision_number", 1) + 1
        return 200, {"port": kept}, {}
