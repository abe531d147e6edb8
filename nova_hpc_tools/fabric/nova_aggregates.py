# SPDX-License-Identifier: Apache-2.0
"""Access to Nova's aggregates, hosts and server groups through its public API."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools.fabric import sync
from nova_hpc_tools.fabric.problems import FabricMapError
from nova_hpc_tools.fabric.sync import CloudAggregate, SyncStep

_PAGE: Final = 500
#: Microversion; aggregates, services and servers have all needed fields in the first one.
_FIRST: Final = "2.1"
#: Before 2.15 Nova refuses to list server groups as soon as one has a soft policy.
_GROUPS: Final = "2.15"


class NovaApiError(FabricMapError):
    """Nova does not answer, or refuses a request. The text is one line."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        #: HTTP status of the answer; None if there was no answer.
        self.status = status


def add_cloud_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the cloud to *parser*."""
    group = parser.add_argument_group("which cloud")
    group.add_argument(
        "--os-cloud",
        metavar="NAME",
        help="name in clouds.yaml (default: OS_CLOUD, or OS_AUTH_URL and the like in the "
        "environment). Its user needs the admin role, as for openstack aggregate",
    )
    group.add_argument(
        "--no-clusters",
        action="store_true",
        help="do not search for server groups that a change concerns. The search lists all servers",
    )


def connect_fabric_cloud(args: argparse.Namespace) -> FabricCloud:
    """Connect to the cloud that the options name.

    :raises NovaApiError: there is no such cloud, or openstacksdk is not installed.
    """
    return FabricCloud(connect_compute_proxy(args))


def connect_compute_proxy(args: argparse.Namespace) -> Any:
    """Connect to Nova with openstacksdk, for the cloud that the options name.

    :raises NovaApiError: there is no such cloud, or openstacksdk is not installed.
    """
    try:
        import openstack
    except ImportError as error:
        raise NovaApiError("openstacksdk is not installed: pip install openstacksdk") from error
    try:
        return openstack.connect(cloud=args.os_cloud).compute
    except Exception as error:  # configuration and catalog have errors of several libraries
        raise NovaApiError(
            f"the cloud cannot be reached: {_one_line(error)}; name one of clouds.yaml with "
            "--os-cloud, or set OS_CLOUD or OS_AUTH_URL"
        ) from error


class FabricCloud:
    """The aggregates and servers that ``nova-hpc fabric`` reads and writes.

    :param compute: the compute proxy of openstacksdk.
    """

    def __init__(self, compute: Any) -> None:
        self._compute = compute
        self._ids: dict[str, str] = {}

    def aggregates(self) -> list[CloudAggregate]:
        """Read all host aggregates from Nova's API.

        :raises NovaApiError: Nova does not answer, or refuses.
        """
        api_aggregates = self._get("/os-aggregates")["aggregates"]
        return [
            CloudAggregate(
                id=str(aggregate["id"]),
                name=aggregate["name"],
                metadata=dict(aggregate.get("metadata") or {}),
                hosts=tuple(sorted(aggregate.get("hosts") or ())),
            )
            for aggregate in api_aggregates
        ]

    def hosts(self) -> list[str]:
        """Read the hosts of all compute services, also of services that are down; sorted.

        :raises NovaApiError: Nova does not answer, or refuses.
        """
        services = self._get("/os-services", binary="nova-compute")["services"]
        return sorted({service["host"] for service in services})

    def clusters(self) -> dict[str, list[str]]:
        """Return server group with at least two placed servers -> the host of each server.

        :raises NovaApiError: Nova does not answer, or refuses.
        """
        host_of: dict[str, str] = {}
        for server in self._pages("/servers/detail", "servers", all_tenants="1"):
            host = server.get("OS-EXT-SRV-ATTR:host")
            if host:
                host_of[server["id"]] = host
        hosts_by_group: dict[str, list[str]] = {}
        for group in self._groups():
            hosts = [host_of[member] for member in group["members"] if member in host_of]
            if len(hosts) > 1:
                name = printable_text(group["name"])
                hosts_by_group[f"{name} ({group['id']})" if name in hosts_by_group else name] = (
                    hosts
                )
        return hosts_by_group

    def apply(self, step: SyncStep) -> None:
        """Carry out one step of a synchronisation.

        :raises NovaApiError: Nova refuses it, or does not confirm it.
        """
        if step.kind == sync.CREATE:
            made = self._call("post", "/os-aggregates", {"aggregate": {"name": step.aggregate}})
            self._ids[step.aggregate] = str(made["aggregate"]["id"])
            return
        target = f"/os-aggregates/{step.id or self._ids.get(step.aggregate)}"
        if step.kind == sync.DELETE:
            self._call("delete", target)
        elif step.kind == sync.RENAME:
            self._call("put", target, {"aggregate": {"name": step.value}})
        elif step.kind == sync.METADATA:
            body = {"set_metadata": {"metadata": dict(step.metadata)}}
            self._call("post", f"{target}/action", body)
        else:
            action = "add_host" if step.kind == sync.ADD else "remove_host"
            self._call("post", f"{target}/action", {action: {"host": step.value}})

    def _groups(self, microversion: str = _GROUPS) -> Iterator[Mapping[str, Any]]:
        # The list of server groups has an offset instead of a marker.
        offset = 0
        while True:
            page = self._get(
                "/os-server-groups",
                microversion,
                all_projects="True",
                limit=str(_PAGE),
                offset=str(offset),
            )["server_groups"]
            yield from page
            if len(page) < _PAGE:
                return
            offset += len(page)

    def _pages(
        self, path: str, key: str, microversion: str = _FIRST, **query: str
    ) -> Iterator[Mapping[str, Any]]:
        marker: dict[str, str] = {}
        while True:
            page = self._get(path, microversion, limit=str(_PAGE), **query, **marker)[key]
            yield from page
            # Nova's own limit may be lower than the requested one, so a short page is not the end.
            if not page:
                return
            marker = {"marker": page[-1]["id"]}

    def _get(self, path: str, microversion: str = _FIRST, **query: str) -> Any:
        return self._call("get", path, params=query, microversion=microversion)

    def _call(
        self,
        method: str,
        path: str,
        body: object = None,
        params: Mapping[str, str] | None = None,
        microversion: str = _FIRST,
    ) -> Any:
        options: dict[str, Any] = {"params": params or {}}
        if body is not None:
            options["json"] = body
        try:
            answer = getattr(self._compute, method)(path, microversion=microversion, **options)
        except Exception as error:  # keystoneauth, openstacksdk and requests have their own
            status = getattr(error, "http_status", None)
            raise NovaApiError(f"{method.upper()} {path}: {_one_line(error)}", status) from error
        if answer.status_code >= 400:
            text = f"{method.upper()} {path}: {_format_nova_fault(answer)}"
            raise NovaApiError(text, answer.status_code)
        try:
            return answer.json() if answer.content else {}
        except ValueError as error:
            raise NovaApiError(f"{method.upper()} {path}: the answer is not JSON") from error


def _format_nova_fault(answer: Any) -> str:
    """Format the HTTP status and Nova's fault message of an answer."""
    try:
        message = next(iter(json.loads(answer.content).values()))["message"]
    except (ValueError, AttributeError, KeyError, StopIteration, TypeError):
        message = answer.reason or "no reason is given"
    return f"{answer.status_code}: {printable_text(' '.join(str(message).split()))}"


def _one_line(error: Exception) -> str:
    return printable_text(" ".join(str(error).split())) or type(error).__name__
