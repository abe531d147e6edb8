# SPDX-License-Identifier: Apache-2.0
"""Keystone, Nova and Placement as far as Blazar asks them, at the boundary of HTTP.

The answers have the forms of Keystone 3, Nova 2.1 and Placement 1.29. Blazar's own clients
(keystoneclient, novaclient, keystoneauth) ask; nothing in Blazar is replaced.
"""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import requests_mock

BASE = "http://cloud"
PROJECT = "5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e"


def _endpoint(kind: str, path: str) -> dict[str, Any]:
    return {
        "type": kind,
        "name": kind,
        "id": kind,
        "endpoints": [
            {"interface": interface, "url": f"{BASE}/{path}", "region": "R", "region_id": "R"}
            | {"id": interface}
            for interface in ("internal", "public", "admin")
        ],
    }


CATALOG = [
    _endpoint("compute", "compute"),
    _endpoint("identity", "identity/v3"),
    _endpoint("placement", "placement"),
]


class RefusedError(Exception):
    """An HTTP status that is no success."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class HttpCloud:
    """The state of a cloud, and its answers."""

    def __init__(self) -> None:
        self.flavors: dict[str, dict[str, Any]] = {}
        self.access: dict[str, set[str]] = {}
        self.aggregates: dict[int, dict[str, Any]] = {}
        #: Provider -> its record, with ``inventories`` and ``traits``.
        self.providers: dict[str, dict[str, Any]] = {}
        self.classes: set[str] = set()
        #: UUID of a server -> its flavor.
        self.servers: dict[str, str] = {}
        self.hypervisors: dict[str, dict[str, Any]] = {}
        #: Called before each answer with its method and path; raises RefusedError to refuse.
        self.before: Callable[[str, str], None] = lambda method, path: None
        self.asked: list[str] = []
        self._numbers = itertools.count(1)

    # -- what tests make ---------------------------------------------------------------------

    def add_flavor(self, name: str, vcpus: int, ram: int, **extra_specs: str) -> str:
        self.flavors[name] = {
            **{"id": name, "name": name, "vcpus": vcpus, "ram": ram, "disk": 0, "swap": ""},
            **{"OS-FLV-EXT-DATA:ephemeral": 0, "os-flavor-access:is_public": True, "links": []},
            "extra_specs": extra_specs,
        }
        return name

    def add_aggregate(self, name: str, hosts: list[str], metadata: dict[str, str]) -> int:
        number = next(self._numbers)
        self.aggregates[number] = {
            **{"id": number, "name": name, "availability_zone": None},
            **{"hosts": hosts, "metadata": metadata},
        }
        return number

    def add_provider(
        self,
        name: str,
        inventories: dict[str, int],
        parent: str | None = None,
        traits: frozenset[str] = frozenset(),
    ) -> str:
        number = str(uuid.uuid4())
        self.providers[number] = {
            **{"uuid": number, "name": name, "generation": 0, "parent_provider_uuid": parent},
            "root_provider_uuid": number if parent is None else self._root_of(parent),
            "inventories": {key: inventory(total) for key, total in inventories.items()},
            "traits": traits,
        }
        return number

    def _root_of(self, parent: str) -> str:
        root: str = self.providers[parent]["root_provider_uuid"]
        return root

    # -- answers -----------------------------------------------------------------------------

    def mount(self, mocker: requests_mock.Mocker) -> None:
        """Answer all requests of this process."""
        mocker.add_matcher(self._answer)

    def _answer(self, request: Any) -> Any:
        split = urlsplit(request.url)
        path = unquote(split.path)
        query = {key: values[0] for key, values in parse_qs(split.query).items()}
        body = json.loads(request.body) if request.body else None
        self.asked.append(f"{request.method} {path}")
        headers = {"X-Subject-Token": "token"} if path.endswith("/auth/tokens") else {}
        try:
            self.before(request.method, path)
            for method, pattern, answer in _ROUTES:
                match = re.fullmatch(pattern, path)
                if match and method == request.method:
                    document = answer(self, *match.groups(), query=query, body=body)
                    break
            else:
                raise AssertionError(f"no answer to {request.method} {request.url}")
        except RefusedError as error:
            return requests_mock.create_response(
                request,
                status_code=error.status,
                json={"fault": {"message": "refused", "code": 0}, "errors": [{"code": "refused"}]},
            )
        return requests_mock.create_response(
            request,
            status_code=201 if "token" in headers.values() else 200,
            json={} if document is None else document,
            headers=headers,
        )

    def identity(self, **_: Any) -> Any:
        link = {"rel": "self", "href": f"{BASE}/identity/v3"}
        return {"version": {"id": "v3.14", "status": "stable", "links": [link]}}

    def token(self, **_: Any) -> Any:
        domain = {"id": "default", "name": "Default"}
        return {
            "token": {
                **{"methods": ["password"], "catalog": CATALOG, "roles": []},
                "expires_at": "2099-01-01T00:00:00.000000Z",
                "issued_at": "2020-01-01T00:00:00.000000Z",
                "project": {"id": PROJECT, "name": "atlas", "domain": domain},
                "user": {"id": "blazar", "name": "blazar", "domain": domain},
            }
        }

    def flavor(self, name: str, **_: Any) -> Any:
        return {"flavor": {**_find(self.flavors, name), "extra_specs": None}}

    def make_flavor(self, body: Any, **_: Any) -> Any:
        wanted = body["flavor"]
        if wanted["id"] in self.flavors:
            raise RefusedError(409)
        self.add_flavor(wanted["id"], wanted["vcpus"], wanted["ram"])
        self.flavors[wanted["id"]]["name"] = wanted["name"]
        return self.flavor(wanted["id"])

    def delete_flavor(self, name: str, **_: Any) -> None:
        _find(self.flavors, name)
        del self.flavors[name]

    def extra_specs(self, name: str, body: Any, **_: Any) -> Any:
        specs = _find(self.flavors, name)["extra_specs"]
        specs.update((body or {}).get("extra_specs", {}))
        return {"extra_specs": specs}

    def change_access(self, name: str, body: Any, **_: Any) -> Any:
        _find(self.flavors, name)
        tenants = self.access.setdefault(name, set())
        if "addTenantAccess" in body:
            tenants.add(body["addTenantAccess"]["tenant"])
        elif body["removeTenantAccess"]["tenant"] in tenants:
            tenants.remove(body["removeTenantAccess"]["tenant"])
        else:
            raise RefusedError(404)
        return {"flavor_access": []}

    def list_aggregates(self, **_: Any) -> Any:
        return {"aggregates": list(self.aggregates.values())}

    def aggregate(self, number: str, **_: Any) -> Any:
        return {"aggregate": _find(self.aggregates, int(number))}

    def make_aggregate(self, body: Any, **_: Any) -> Any:
        return self.aggregate(str(self.add_aggregate(body["aggregate"]["name"], [], {})))

    def delete_aggregate(self, number: str, **_: Any) -> None:
        del self.aggregates[int(number)]

    def change_aggregate(self, number: str, body: Any, **_: Any) -> Any:
        record = _find(self.aggregates, int(number))
        if "set_metadata" in body:
            record["metadata"].update(body["set_metadata"]["metadata"])
        elif "add_host" in body:
            if body["add_host"]["host"] in record["hosts"]:
                raise RefusedError(409)
            record["hosts"].append(body["add_host"]["host"])
        else:
            record["hosts"].remove(body["remove_host"]["host"])
        return {"aggregate": record}

    def list_servers(self, query: Any, **_: Any) -> Any:
        return {
            "servers": [
                {"id": server, "name": server, "links": []}
                for server, flavor in self.servers.items()
                if query.get("flavor") in (None, flavor) and "marker" not in query
            ]
        }

    def delete_server(self, server: str, **_: Any) -> None:
        _find(self.servers, server)
        del self.servers[server]

    def list_providers(self, query: Any, **_: Any) -> Any:
        providers = list(self.providers.values())
        if "name" in query:
            providers = [each for each in providers if each["name"] == query["name"]]
        for trait in filter(None, query.get("required", "").split(",")):
            name = trait.removeprefix("!")
            providers = [
                each for each in providers if (name in each["traits"]) is not trait.startswith("!")
            ]
        hidden = {"inventories", "traits"}
        return {
            "resource_providers": [
                {key: value for key, value in each.items() if key not in hidden}
                for each in providers
            ]
        }

    def make_provider(self, body: Any, **_: Any) -> Any:
        number = self.add_provider(body["name"], {}, body["parent_provider_uuid"])
        return self._provider_document(number)

    def _provider_document(self, number: str) -> Any:
        return {
            key: value
            for key, value in self.providers[number].items()
            if key not in {"inventories", "traits"}
        }

    def inventories(self, number: str, body: Any, **_: Any) -> Any:
        record = _find(self.providers, number)
        if body is not None:
            if body["resource_provider_generation"] != record["generation"]:
                raise RefusedError(409)
            record["inventories"] = body["inventories"]
            record["generation"] += 1
        return {
            "resource_provider_generation": record["generation"],
            "inventories": record["inventories"],
        }

    def delete_inventory(self, number: str, name: str, **_: Any) -> None:
        record = _find(self.providers, number)
        _find(record["inventories"], name)
        del record["inventories"][name]
        record["generation"] += 1

    def make_class(self, body: Any, **_: Any) -> None:
        self.classes.add(body["name"])

    def delete_class(self, name: str, **_: Any) -> None:
        if name not in self.classes:
            raise RefusedError(404)
        self.classes.remove(name)

    def list_hypervisors(self, **_: Any) -> Any:
        return {"hypervisors": list(self.hypervisors.values())}


def inventory(total: int, reserved: int = 0) -> dict[str, Any]:
    """Make an inventory of Placement."""
    return {
        **{"total": total, "reserved": reserved, "min_unit": 1, "max_unit": max(1, total)},
        **{"step_size": 1, "allocation_ratio": 1.0},
    }


def _find(records: Any, key: Any) -> Any:
    if key not in records:
        raise RefusedError(404)
    return records[key]


_ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/identity/?(?:v3/?)?", HttpCloud.identity),
    ("POST", "/identity/v3/auth/tokens", HttpCloud.token),
    ("GET", "/identity/v3/auth/tokens", HttpCloud.token),
    ("GET", "/compute/flavors/([^/]+)", HttpCloud.flavor),
    ("POST", "/compute/flavors", HttpCloud.make_flavor),
    ("DELETE", "/compute/flavors/([^/]+)", HttpCloud.delete_flavor),
    ("GET", "/compute/flavors/([^/]+)/os-extra_specs", HttpCloud.extra_specs),
    ("POST", "/compute/flavors/([^/]+)/os-extra_specs", HttpCloud.extra_specs),
    ("POST", "/compute/flavors/([^/]+)/action", HttpCloud.change_access),
    ("GET", "/compute/os-aggregates", HttpCloud.list_aggregates),
    ("GET", "/compute/os-aggregates/([0-9]+)", HttpCloud.aggregate),
    ("POST", "/compute/os-aggregates", HttpCloud.make_aggregate),
    ("DELETE", "/compute/os-aggregates/([0-9]+)", HttpCloud.delete_aggregate),
    ("POST", "/compute/os-aggregates/([0-9]+)/action", HttpCloud.change_aggregate),
    ("GET", "/compute/servers(?:/detail)?", HttpCloud.list_servers),
    ("DELETE", "/compute/servers/([^/]+)", HttpCloud.delete_server),
    ("GET", "/compute/os-hypervisors/detail", HttpCloud.list_hypervisors),
    ("GET", "/placement/resource_providers", HttpCloud.list_providers),
    ("POST", "/placement/resource_providers", HttpCloud.make_provider),
    ("GET", "/placement/resource_providers/([^/]+)/inventories", HttpCloud.inventories),
    ("PUT", "/placement/resource_providers/([^/]+)/inventories", HttpCloud.inventories),
    (
        "DELETE",
        "/placement/resource_providers/([^/]+)/inventories/([^/]+)",
        HttpCloud.delete_inventory,
    ),
    ("POST", "/placement/resource_classes", HttpCloud.make_class),
    ("DELETE", "/placement/resource_classes/([^/]+)", HttpCloud.delete_class),
]
