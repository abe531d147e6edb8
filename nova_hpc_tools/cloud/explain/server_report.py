# SPDX-License-Identifier: Apache-2.0
"""The decision for an existing server: its record, and its devices."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import attrs

from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.flavor import has_hpc_keys
from nova_hpc.topology import peer, peer_wish
from nova_hpc.topology.model import address_key
from nova_hpc.wire.decision import Decision
from nova_hpc_common.level import AffinityPolicy, Distance, Location, common_level, distance_between
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.explain.model import AssignedDevices, NodeChoice, ServerReport
from nova_hpc_tools.snapshot import Server, Snapshot, SnapshotDevice, SnapshotError, SnapshotNode


class NoServerError(SnapshotError):
    """No server with devices has this name or UUID."""


def explain_server(cloud: Snapshot, name: str) -> ServerReport:
    """Explain the placement of the server with this UUID or name.

    :raises NoServerError: no server with devices has that name.
    :raises SnapshotError: several servers have it.
    """
    matches = [server for server in cloud.servers if name in (server.uuid, server.name)]
    if not matches:
        raise NoServerError(
            f"no host has a server {name!r} with PCI devices; a server that was never scheduled "
            "has no devices and no decision: use --flavor"
        )
    if len(matches) > 1:
        which = ", ".join(server.uuid for server in matches[:5])
        raise SnapshotError(f"{len(matches)} servers are called {name!r}; give one's UUID: {which}")
    server = matches[0]
    node = next(
        (node for node in cloud.hosts if (node.host, node.node) == (server.host, server.node)), None
    )
    if node is None:
        raise SnapshotError(
            f"server {server.name} is on {server.host}, which is not among the hosts"
        )
    given = tuple(
        AssignedDevices(device, addresses)
        for device in node.devices
        if (addresses := _addresses_held_by(device, server))
    )
    places = [item.device.location for item in given for _ in item.addresses]
    places_known = bool(places) and all(place.root is not None for place in places)
    choice = _arrange_own_devices(cloud, server, node, given) if places_known else None
    level, far = None, None
    if places_known:
        level, far = common_level(places), _longest_distance(places)
    if choice is not None:
        level, far = choice.devices.level, choice.devices.distance
    return ServerReport(
        server=server,
        node=node,
        given=given,
        decision=server.decided,
        choice=choice,
        level=level,
        distance=far,
        notes=(
            *_notes_on_decision(server, node, places_known, bool(places)),
            *_peer_notes_of(server.decided, given),
        ),
        names={server.uuid: server.name for server in cloud.servers},
    )


def _arrange_own_devices(
    cloud: Snapshot, server: Server, node: SnapshotNode, given: tuple[AssignedDevices, ...]
) -> NodeChoice | None:
    """Arrange the server's own devices in the groups of its flavor; None if it has changed."""
    flavor = next(
        (
            flavor
            for flavor in cloud.flavors
            if flavor.name == server.flavor and flavor.extra_specs == server.extra_specs
        ),
        None,
    )
    if flavor is None or not has_hpc_keys(flavor.extra_specs):
        return None
    only = attrs.evolve(
        node,
        devices=tuple(attrs.evolve(held.device, free=len(held.addresses)) for held in given),
        numa=(),
    )
    try:
        request = snapshot.request_of_flavor(flavor, cloud.hosts)
        request = attrs.evolve(request, policy=AffinityPolicy.PREFERRED, cells=(), on_cells=False)
        answer = choose_device_sets(request, snapshot.engine_host(only, flavor.server.wants))
    except ValueError:
        return None
    return NodeChoice(answer.sets[0]) if answer.sets else None


def _addresses_held_by(device: SnapshotDevice, server: Server) -> tuple[str, ...]:
    return tuple(use.address for use in device.used if use.server == server.uuid)


def _longest_distance(places: list[Location]) -> Distance:
    return max(
        (distance_between(*pair) for pair in itertools.combinations(places, 2)),
        default=Distance.PIX,
    )


def _peer_notes_of(decision: Decision | None, given: Iterable[AssignedDevices]) -> Iterator[str]:
    if decision is None:
        return
    for gpu, adapter, reason, as_wished in list_peer_paths(decision, given):
        wished = f", not as wished ({decision.wish.value})" if as_wished is False else ""
        yield f"peer-to-peer of {gpu} with {adapter} when it was placed: {reason}{wished}"


def list_peer_paths(
    decision: Decision, given: Iterable[AssignedDevices]
) -> Iterator[tuple[str, str, str, bool | None]]:
    """Yield each GPU and adapter below one switch, and the reason for their path at the start.

    The last value: whether it was the operator's required path; None if none was required.

    The result is empty if the server's devices differ from the counted ones.
    """
    addresses = sorted((address for item in given for address in item.addresses), key=address_key)
    for gpu, adapter, cause in decision.peers:
        if max(gpu, adapter) < len(addresses):
            wished = peer_wish.is_path_as_wished(
                peer.peer_path_by_reason(cause), cause, decision.wish
            )
            yield addresses[gpu], addresses[adapter], cause.value, wished


def _notes_on_decision(
    server: Server, node: SnapshotNode, places_known: bool, devices: bool
) -> list[str]:
    notes = []
    decision = server.decided
    if server.decision is None:
        notes.append(
            "no decision is stored: it was not started by this project's driver with an hpc: "
            "flavor, or has not started yet"
        )
    elif decision is None:
        notes.append(f"the stored decision is not one that this release reads: {server.decision}")
    elif decision.reached > decision.asked and decision.policy is AffinityPolicy.PREFERRED:
        notes.append(
            f"{decision.asked.word} was preferred, but could not be had when it was placed"
        )
    if decision is not None and decision.redirected is not None:
        some, total = decision.redirected
        notes.append(
            f"peer-to-peer of {some} of the {total} pairs of a GPU and an adapter below one switch "
            "goes through the root complex (ACS redirect), as it was found when it was placed"
        )
    if devices and not places_known:
        notes.append(
            "the places of some of its devices are unknown: Nova's records contain only the places "
            "of devices that were free at some time since nova-hpc's driver runs on the node"
        )
    for device in node.devices:
        for use in device.used:
            reason = node.ailing.get(use.address)
            if use.server == server.uuid and reason is not None:
                notes.append(f"{use.address} stays with the server, but: {reason}")
    return notes
