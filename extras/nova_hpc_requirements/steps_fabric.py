# SPDX-License-Identifier: Apache-2.0
"""Data of Nova and Neutron on fabric, topology, capacity and health of the whole cloud."""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from oslo_config import cfg

from nova_hpc.fabric.aggregates import read_aggregate_place
from nova_hpc.fabric.model import TREE, FabricPlace
from nova_hpc.fabric.partitions.backends.base import AuditState
from nova_hpc.fabric.partitions.keys import format_pkey
from nova_hpc_client.cluster.members.model import Cluster
from nova_hpc_common.wire.position import LEVELS
from nova_hpc_requirements.judging_cloud import KEYS, TABLES
from nova_hpc_requirements.step_context import StepContext
from nova_hpc_requirements.verdicts import EvidenceError
from nova_hpc_tools.fabric.sync import CloudAggregate
from nova_hpc_tools.site import service_settings
from nova_hpc_tools.snapshot import SnapshotError
from nova_hpc_tools.snapshot.cloud_readers import read_health
from nova_hpc_tools.snapshot.node_health import NodeHealth

Output = dict[str, Any]
_ISOLATES: Final = "AggregateMultiTenancyIsolation"
_NOT_NAMED: Final = "the map of the fabric names no NVLink domain; whether there is NVLink is open"
_TENANT: Final = "filter_tenant_id"
#: Levels at which a block of the topology is given, the narrowest first.
_BLOCKS: Final = tuple(reversed(LEVELS))
_SCHEDULER: Final = {
    "filter_scheduler": [cfg.ListOpt("enabled_filters", default=[])],
    "scheduler": [
        cfg.BoolOpt("limit_tenants_to_placement_aggregate", default=False),
        cfg.BoolOpt("placement_aggregate_required_for_tenants", default=False),
    ],
}


def backend_switch_fabric(context: StepContext) -> Output:
    """Report the switches above each compute host, from the map in Nova's aggregates."""
    hosts, aggregates = context.fabric.hosts(), context.fabric.aggregates()
    places, problems = read_places(hosts, aggregates)
    return describe_switches(places, problems, context.options.node)


def read_places(
    hosts: Iterable[str], aggregates: Iterable[CloudAggregate]
) -> tuple[list[FabricPlace], list[str]]:
    """Return the place of each host, and the problems in the aggregates."""
    metadata: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for aggregate in aggregates:
        for host in aggregate.hosts:
            metadata[host].append(aggregate.metadata)
    readings = [read_aggregate_place(host, metadata[host]) for host in hosts]
    problems = [problem for reading in readings for problem in reading.problems]
    return [reading.place for reading in readings], problems


def describe_switches(places: Sequence[FabricPlace], problems: Sequence[str], node: str) -> Output:
    """Describe the switches above one host in the suite's form, and the places of all hosts.

    :param node: the host; "" for any.
    """
    place = _choose_place(places, node)
    tiers = {level.word: place.domain(level) for level in TREE}
    fabric = {
        f"{tier}_switch_ids": [name] if (name := tiers[tier]) else []
        for tier in ("leaf", "spine", "core")
    }
    tests: Output = {"node_resolved": {"passed": True}}
    for key, names in fabric.items():
        error = f"the map of the fabric has none for {place.host}"
        tests[f"{key}_present"] = {"passed": True} if names else {"passed": False, "error": error}
    return {
        "success": True,
        "platform": "network",
        "node_id": place.host,
        "fabric": fabric,
        "tests": tests,
        "places": [
            {"host": each.host, **{level.word: each.domain(level) for level in TREE}}
            for each in places
        ],
        "problems": list(problems),
    }


def _choose_place(places: Sequence[FabricPlace], node: str) -> FabricPlace:
    if not places:
        raise EvidenceError("the cloud has no compute service")
    if not node:
        return places[0]
    place = next((place for place in places if place.host == node), None)
    if place is None:
        raise EvidenceError(
            f"no compute service is on {node!r}: see openstack compute service list"
        )
    return place


def nvlink_domain(context: StepContext) -> Output:
    """Report the NVLink domain of each compute host, from the map in Nova's aggregates."""
    hosts, aggregates = context.fabric.hosts(), context.fabric.aggregates()
    places, problems = read_places(hosts, aggregates)
    place = _choose_place(places, context.options.node)
    named = place.nvlink_domain is not None
    # The map contains NVLink domains; a host without one may still have NVLink.
    detected: Output = {"passed": True} if named else {"passed": False, "error": _NOT_NAMED}
    output: Output = {
        "success": True,
        "platform": "network",
        "node_id": place.host,
        "nvlink_supported": True if named else None,
        "tests": {
            "node_resolved": {"passed": True},
            "nvlink_support_detected": detected,
            "nvlink_domain_id_present": detected,
        },
        "places": [{"host": each.host, "nvlink_domain": each.nvlink_domain} for each in places],
        "problems": problems,
    }
    if named:
        output["nvlink_domain_id"] = place.nvlink_domain
    return output


def topology_placement(context: StepContext) -> Output:
    """Report the level that a server's flavor requires, and the level that its node recorded."""
    server = context.cloud.server(context.server_id)
    devices = server.devices
    asked = None if devices is None or devices.asked is None else devices.asked.word
    reached = None if devices is None or devices.reached is None else devices.reached.word
    passed = asked is not None and reached is not None
    operation = (
        {"passed": passed} if passed else {"passed": False, "error": "the node has not reported"}
    )
    return {
        "success": True,
        "platform": "bm",
        "instance_id": server.id,
        "placement_supported": passed,
        "availability_zone": str(context.read_server().get("OS-EXT-AZ:availability_zone") or ""),
        "placement_group": "",
        "placement_strategy": asked or "",
        "level_asked": asked,
        "level_reached": reached,
        "domains": dict(server.position.domains),
        "operations": {"place_by_topology": operation},
    }


def query_ib_tenant_isolation(context: StepContext) -> Output:
    """Report the partitions of Neutron's networks, and their projects."""
    names = context.options.physical_networks
    if not names:
        raise EvidenceError(
            "name the physical networks that are InfiniBand, as in "
            "[hpc_partitions]physical_networks of Neutron's servers: --physical-network NAME"
        )
    rest = context.rest
    networks = rest.neutron("GET", "/networks")["networks"]
    policies = rest.neutron("GET", "/rbac-policies", object_type="network")["rbac_policies"]
    shared = {
        str(policy.get("object_id"))
        for policy in policies
        if policy.get("action") == "access_as_shared"
    }
    return describe_partitions(networks, names, shared)


def describe_partitions(
    networks: Iterable[Mapping[str, Any]], physical: Collection[str], shared: Collection[str] = ()
) -> Output:
    """Describe the networks that are InfiniBand partitions, in the suite's form.

    :param physical: names of the physical networks that are InfiniBand.
    :param shared: ids of networks that other projects may use.
    """
    rows = []
    hidden = True
    for network in networks:
        if "provider:physical_network" not in network:
            continue
        hidden = False
        key = network.get("provider:segmentation_id")
        if network.get("provider:physical_network") not in physical or not isinstance(key, int):
            continue
        rows.append(
            {
                "name": str(network.get("name") or network.get("id")),
                "partition_key": format_pkey(key),
                "tenant_id": str(network.get("project_id") or network.get("tenant_id") or ""),
                "status": str(network.get("status") or ""),
                "shared": bool(network.get("shared")) or str(network.get("id")) in shared,
            }
        )
    if hidden:
        raise EvidenceError("Neutron shows P_Keys of networks to the admin role alone")
    return {
        "success": True,
        "platform": "bm",
        "partitions_checked": len(rows),
        "partitions": rows,
    }


def describe_keys(rows: Sequence[Mapping[str, Any]]) -> Output:
    """Describe seven keys of a fabric in the suite's form, by ``nova-hpc fabric check -f json``."""
    states = {str(row.get("Name")): row for row in rows}
    keys: Output = {
        key: {
            "configured": _configured_of(states.get(name, {}).get("State")),
            "source": "nova-hpc fabric check",
            "detail": str(states.get(name, {}).get("Found") or ""),
        }
        for name, key in KEYS.items()
    }
    tables = states.get(TABLES, {})
    keys["p_key"] = {
        "configured": _configured_of(tables.get("State")),
        "source": "nova-hpc fabric check",
        "detail": str(tables.get("Found") or ""),
    }
    return {
        "success": True,
        "platform": "bm",
        "partitions_with_pkey": 1 if tables.get("State") == AuditState.MET else 0,
        "keys": keys,
    }


def _configured_of(state: object) -> bool | None:
    """Return whether a key is configured, by its audit state; None if unknown.

    A key counts as not configured if it is not met or not available.
    """
    states = {
        AuditState.MET.value: True,
        AuditState.NOT_MET.value: False,
        AuditState.NOT_AVAILABLE.value: False,
    }
    return states.get(str(state))


def capacity_reservation_grouping(context: StepContext) -> Output:
    """Report host aggregates for single projects, and whether the scheduler enforces them."""
    enforced = None
    if context.options.config:
        enforced = read_isolation(context.options.config)
    return describe_reservations(context.fabric.aggregates(), enforced)


def read_isolation(config: Sequence[str]) -> bool:
    """Whether the scheduler keeps projects out of the aggregates of others.

    :raises EvidenceError: its configuration cannot be read.
    """
    try:
        files = service_settings.config_files_of(config, prog="nova-scheduler")
        options = service_settings.load_options(files, _SCHEDULER)
        filters = options.filter_scheduler.enabled_filters
        limits = options.scheduler
        required = (
            limits.limit_tenants_to_placement_aggregate
            and limits.placement_aggregate_required_for_tenants
        )
    except (service_settings.ConfigError, cfg.Error, ValueError) as error:
        raise EvidenceError(" ".join(str(error).split())) from error
    return _ISOLATES in filters or bool(required)


def describe_reservations(aggregates: Iterable[CloudAggregate], enforced: bool | None) -> Output:
    """Describe the host aggregates for single projects, in the suite's form.

    The suite expects one reservation: the first aggregate with hosts and a single project. The key
    ``groups`` contains all of them.

    :param enforced: whether Nova's filter keeps other projects off; None if unknown.
    """
    groups = []
    for aggregate in aggregates:
        projects = sorted(
            {
                project.strip()
                for key, value in aggregate.metadata.items()
                if key.startswith(_TENANT)
                for project in value.split(",")
                if project.strip()
            }
        )
        if projects:
            groups.append(
                {"name": aggregate.name, "projects": projects, "hosts": list(aggregate.hosts)}
            )
    first: Mapping[str, Any] = next(
        (group for group in groups if len(group["projects"]) == 1 and group["hosts"]), {}
    )
    account = first["projects"][0] if first else ""
    return {
        "success": True,
        "platform": "security",
        "reservation_id": first.get("name", ""),
        "account_id": account,
        "resources": [
            {"resource_id": host, "account_id": account, "pinned": True}
            for host in first.get("hosts", ())
        ],
        "pinned": bool(first),
        "isolation_enforced": enforced,
        "groups": groups,
    }


def topology_block_atomic_allocation(context: StepContext) -> Output:
    """Report a cluster, and the narrowest fabric domain that contains all its members."""
    if not context.options.cluster:
        raise EvidenceError("no cluster is named: --cluster CLUSTER")
    cluster = context.cloud.find(context.options.cluster)
    return describe_block(cluster, context.rest.project)


def describe_block(cluster: Cluster, project: str) -> Output:
    """Describe a cluster in the suite's form of a block.

    It counts as allocated as a unit if all wanted members run in one domain.
    """
    running = [member for member in cluster.members if member.status == "ACTIVE"]
    level, domain = _find_shared_domain(cluster)
    wanted = len(cluster.wanted)
    whole = len(running) == wanted > 0
    return {
        "success": True,
        "platform": "security",
        "topology_block": {
            "block_id": domain,
            "level": level,
            "reservation_id": cluster.id,
            "tenant_id": project,
            "wanted": wanted,
            "running": len(running),
            "allocated_as_unit": whole and bool(domain),
            "partial_allocation": not whole,
            "homogeneous": bool(domain),
            "isolation_enforced": bool(domain),
            "requested": {"compute": wanted, "network": 0, "storage": 0},
            "allocated": {"compute": len(running), "network": 0, "storage": 0},
            "resources": [
                {
                    "resource_id": member.id,
                    "resource_type": "compute",
                    "tenant_id": project,
                    "topology_block_id": domain,
                    "performance_domain": domain,
                    "isolation_boundary": project,
                }
                for member in running
            ],
        },
    }


def _find_shared_domain(cluster: Cluster) -> tuple[str, str]:
    """Return the narrowest level with one domain of all members, and the domain; "" without one."""
    for level in _BLOCKS:
        names = {member.position.domains.get(level, "") for member in cluster.members}
        if len(names) == 1 and (name := names.pop()):
            return level, name
    return "", ""


def query_host_health(context: StepContext) -> Output:
    """Report each compute host's findings on its devices, and their age."""
    services = context.rest.nova("GET", "/os-services", binary="nova-compute")["services"]
    try:
        health = read_health(context.options.config)
    except SnapshotError as error:
        raise EvidenceError(
            f"{error} (Nova's API does not show the nodes' reports about their devices)"
        ) from error
    return describe_health(services, health, datetime.datetime.now(datetime.UTC))


def describe_health(
    services: Iterable[Mapping[str, Any]],
    health: Iterable[NodeHealth],
    now: datetime.datetime,
) -> Output:
    """Describe the health of the hosts in the suite's form."""
    by_host = {report.host: report for report in health}
    hosts = []
    for service in services:
        host = str(service["host"])
        report = by_host.get(host)
        alerts = [] if report is None else _list_alerts(report)
        hosts.append(
            {
                "host_id": host,
                "status": str(service.get("state") or ""),
                "health_present": report is not None,
                "healthy": report is not None and not alerts,
                "observed_age_seconds": _age_of(service.get("updated_at"), now),
                "probe_ids": ["withheld", "in_use", "notes"] if report is not None else [],
                "alerts": alerts,
            }
        )
    return {"success": True, "platform": "bm", "hosts_checked": len(hosts), "hosts": hosts}


def _list_alerts(report: NodeHealth) -> list[Output]:
    found = [("withheld", *item) for item in report.withheld.items()]
    found += [("in_use", *item) for item in report.in_use.items()]
    found += [("note", "", note) for note in report.remarks]
    return [
        {"id": kind, "target": address, "message": text, "classifications": [kind]}
        for kind, address, text in found
    ]


def _age_of(text: object, now: datetime.datetime) -> int | None:
    """Return the seconds since a time of Nova's; None if the text is not a time."""
    try:
        moment = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(0, int((now - moment).total_seconds()))
