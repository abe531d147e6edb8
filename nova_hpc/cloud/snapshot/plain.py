"""A snapshot as plain objects: the document that is written as JSON.

Every change of its keys is a new version: who reads it refuses what is unknown.
"""

from __future__ import annotations

from typing import Any, Final

from nova_hpc.cloud.snapshot import Device, Flavor, Node, Server, Snapshot
from nova_hpc.placement.profile import Shape

SCHEMA: Final = "nova-hpc/snapshot"
VERSION: Final = 1


def build(snapshot: Snapshot) -> dict[str, Any]:
    """The document as plain objects."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "taken": snapshot.taken,
        "nova": snapshot.nova,
        "problems": list(snapshot.problems),
        "aliases": [
            {
                "name": alias.name,
                "resource_class": alias.resource_class,
                "traits": sorted(alias.traits),
                "problem": alias.problem,
            }
            for alias in snapshot.aliases
        ],
        "flavors": [_flavor(flavor) for flavor in snapshot.flavors],
        "profile": [_shape(shape) for shape in snapshot.profile.shapes],
        "hosts": [_node(node) for node in snapshot.hosts],
        "servers": [_server(server) for server in snapshot.servers],
    }


def _flavor(flavor: Flavor) -> dict[str, Any]:
    return {
        "name": flavor.name,
        "id": flavor.id,
        "image": flavor.image,
        "vcpus": flavor.vcpus,
        "memory_mb": flavor.memory_mb,
        "extra_specs": dict(flavor.extra_specs),
        "wants": [{"alias": want.alias, "count": want.count} for want in flavor.wants],
        "cells": [
            {
                "id": cell.id,
                "dedicated_cpus": cell.dedicated_cpus,
                "memory_kib": cell.memory_kib,
                "page_kib": cell.page_kib,
            }
            for cell in flavor.cells
        ],
        "numa_policy": flavor.numa_policy,
        "problem": flavor.problem,
    }


def _shape(shape: Shape) -> dict[str, Any]:
    return {
        "counts": dict(shape.counts),
        "groups": shape.groups,
        "level": shape.level.word,
        "weight": shape.weight,
        "cpus": shape.cpus,
        "memory_kib": shape.memory_kib,
        "page_kib": shape.page_kib,
    }


def _node(node: Node) -> dict[str, Any]:
    return {
        "host": node.host,
        "node": node.node,
        "zone": node.zone,
        "aggregates": {name: dict(found) for name, found in sorted(node.aggregates.items())},
        "out": node.out,
        "numa": [
            {
                "id": each.id,
                "socket": each.socket,
                "dedicated_cpus": each.dedicated_cpus,
                "pages": None
                if each.pages is None
                else {str(size): free for size, free in sorted(each.pages.items())},
            }
            for each in node.numa
        ],
        "devices": [_device(device) for device in node.devices],
        "nvlink": sorted(sorted(each) for each in node.nvlink),
        "unusable": list(node.unusable),
        "withheld": dict(node.withheld),
        "ailing": dict(node.ailing),
    }


def _device(device: Device) -> dict[str, Any]:
    place = device.location
    return {
        "provider": device.provider,
        "address": device.address,
        "free": device.free,
        "numa": place.numa,
        "socket": place.socket,
        "root": place.root,
        "switches": list(place.switches),
        "aliases": sorted(device.aliases),
        "role": device.role,
        "unit": device.unit,
        "resource_class": device.resource_class,
        "traits": sorted(device.traits),
        "used": [{"address": use.address, "server": use.server} for use in device.used],
    }


def _server(server: Server) -> dict[str, Any]:
    return {
        "uuid": server.uuid,
        "name": server.name,
        "host": server.host,
        "node": server.node,
        "flavor": server.flavor,
        "extra_specs": dict(server.extra_specs),
        "decision": server.decision,
        "cells": [
            {
                "numa": cell.numa,
                "dedicated_cpus": cell.dedicated_cpus,
                "memory_kib": cell.memory_kib,
                "page_kib": cell.page_kib,
            }
            for cell in server.cells
        ],
    }
