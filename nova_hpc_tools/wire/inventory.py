# SPDX-License-Identifier: Apache-2.0
"""A node as a JSON document with a version.

The schema is described in the contributor guide (inventory-schema). Within a
version, keys may be added; a key is never removed and never changes meaning.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from nova_hpc.topology import peer, peer_wish
from nova_hpc.topology.cpuset import format_list
from nova_hpc.topology.model import HugePages, Node, NumaNode, PciFunction
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc_tools.wire.documents import INVENTORY


@attrs.frozen
class ServersPart:
    """The role of a function, and whether servers can get it, for the inventory document."""

    #: "" for a function without one.
    role: str = ""
    #: ``offered``, ``can be offered``, ``not offered`` or ``no role``.
    offer: str = "no role"
    #: Why it is not offered; "" if there is no obstacle.
    reason: str = ""


def build_inventory(
    node: Node,
    wish: PeerWish = PeerWish.KEEP,
    servers: Mapping[str, ServersPart] | None = None,
) -> dict[str, Any]:
    """Return the inventory of a node as a JSON object.

    :param wish: the node's ``[hpc]peer_to_peer``.
    :param servers: address -> role and offer, for functions that have one; None if not judged.
    """
    peers = peer.switch_paths_of(node)
    lacks = peer_wish.plan_peer_changes(node, wish).lacks
    return {
        **INVENTORY.head(),
        "source": node.source,
        "hostname": node.hostname,
        "problems": list(node.problems),
        "unplaced_cpus": format_list(node.unplaced_cpus),
        "cpus_unread": node.cpus_unread,
        "hugepages": [_build_pool_entry(pool) for pool in node.hugepages],
        "numa_nodes": [_numa_node(numa) for numa in node.numa_nodes],
        "functions": [
            _build_function_entry(function, peers) | _build_servers_entry(function, servers)
            for function in node.functions
        ],
        "inactive_bridges": [_build_function_entry(function, peers) for function in node.inactive],
        "peer_wish": wish.value,
        "peer_pairs": [
            _build_pair_entry(pair, wish, lacks.get(pair, ()))
            for pair in peer.find_peer_pairs(node)
        ],
        "iommu_groups": [
            {"id": group.id, "members": list(group.members)} for group in node.iommu_groups
        ],
    }


def write_inventory(
    node: Node,
    wish: PeerWish = PeerWish.KEEP,
    servers: Mapping[str, ServersPart] | None = None,
) -> str:
    """Format the inventory of a node as JSON text: indented, ends with a newline."""
    return json.dumps(build_inventory(node, wish, servers), indent=2) + "\n"


def _build_servers_entry(
    function: PciFunction, servers: Mapping[str, ServersPart] | None
) -> dict[str, Any]:
    if servers is None:
        return {}
    part = servers.get(function.address, ServersPart())
    return {
        "role": part.role or None,
        "offer": part.offer,
        "offer_reason": part.reason or None,
    }


def _build_pool_entry(pool: HugePages) -> dict[str, Any]:
    return {"size_kib": pool.size_kib, "total": pool.total, "free": pool.free}


def _numa_node(numa: NumaNode) -> dict[str, Any]:
    return {
        "id": numa.id,
        "socket": numa.socket,
        "cpus": format_list(numa.cpus),
        "offline": format_list(numa.offline),
        "smt_siblings": [format_list(core) for core in numa.smt_siblings],
        "memory_kib": numa.memory_kib,
        "memory_of": numa.memory_of,
        "near": sorted(numa.near),
        "hugepages": [_build_pool_entry(pool) for pool in numa.hugepages],
    }


def _build_function_entry(
    function: PciFunction, peers: Mapping[str, peer.PeerPath]
) -> dict[str, Any]:
    document = attrs.asdict(function, value_serializer=_to_plain_value)
    del document["silent"]  # "unknown" contains it
    document["dev_type"] = function.dev_type
    path = peers.get(function.address, peer.PeerPath.UNKNOWN)
    document["peer_to_peer"] = None if path is peer.PeerPath.UNKNOWN else path.value
    if function.link is not None:
        document["link"]["degraded"] = function.link.degraded
    return document


def _build_pair_entry(
    pair: peer.PeerPair, wish: PeerWish, lacks: Iterable[peer_wish.Lack]
) -> dict[str, Any]:
    return {
        "gpu": pair.gpu,
        "adapter": pair.adapter,
        "members": list(pair.functions),
        "peer_to_peer": None if pair.path is peer.PeerPath.UNKNOWN else pair.path.value,
        "why": pair.why.value,
        "ats_enabled": pair.ats_enabled,
        "as_wished": peer_wish.is_pair_as_wished(pair, wish),
        "lacks": [{"address": lack.address, "text": lack.text} for lack in lacks],
    }


def _to_plain_value(_owner: object, _field: object, value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return list(value)
    return value
