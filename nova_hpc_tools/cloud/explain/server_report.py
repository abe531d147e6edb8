# SPDX-License-Identifier: Apache-2.0
"""What was decided for a server that is there: its record, and its devices."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import attrs

from nova_hpc.placement.choose import choose
from nova_hpc.placement.flavor import has_hpc_keys
from nova_hpc.placement.model import Policy
from nova_hpc.topology import peer, peer_wish
from nova_hpc.topology.level import Distance, Location, common_level, distance
from nova_hpc.topology.model import address_key
from nova_hpc.wire.decision import Decision
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.explain.model import Choice, Given, Past
from nova_hpc_tools.snapshot import Device, Node, Server, Snapshot, SnapshotError


class NoServerError(SnapshotError):
    """No server with devices has this name."""


def explain_server(cloud: Snapshot, name: str) -> Past:
    """Explain the placement of the server with this UUID or name.

    :raises NoServerError: there is no such server with devices.
    :raises SnapshotError: there are several.
    """
    found = [each for each in cloud.servers if name in (each.uuid, each.name)]
    if not found:
        raise NoServerError(
            f"no host has a server {name!r} with PCI devices; one that never got a host has no "
            "devices and no decision: ask about its flavor with --flavor"
        )
    if len(found) > 1:
        which = ", ".join(each.uuid for each in found[:5])
        raise SnapshotError(f"{len(found)} servers are called {name!r}; give one's UUID: {which}")
    server = found[0]
    node = next(
        (each for each in cloud.hosts if (each.host, each.node) == (server.host, server.node)),
        None,
    )
    if node is None:
        raise SnapshotError(
            f"server {server.name} is on {server.host}, which is not among the hosts"
        )
    given = tuple(
        Given(device, addresses)
        for device in node.devices
        if (addresses := _addresses(device, server))
    )
    places = [item.device.location for item in given for _ in item.addresses]
    known = bool(places) and all(place.root is not None for place in places)
    choice = _arranged(cloud, server, node, given) if known else None
    level, far = None, None
    if known:
        level, far = common_level(places), _longest(places)
    if choice is not None:
        level, far = choice.devices.level, choice.devices.distance
    return Past(
        server=server,
        node=node,
        given=given,
        decision=server.decided,
        choice=choice,
        level=level,
        distance=far,
        notes=(*_notes(server, node, known, bool(places)), *_said(server.decided, given)),
        names={each.uuid: each.name for each in cloud.servers},
    )


def _arranged(
    cloud: Snapshot, server: Server, node: Node, given: tuple[Given, ...]
) -> Choice | None:
    """The server's own devices in the groups of its flavor, if that is still there."""
    flavor = next(
        (
            each
            for each in cloud.flavors
            if each.name == server.flavor and each.extra_specs == server.extra_specs
        ),
        None,
    )
    if flavor is None or not has_hpc_keys(flavor.extra_specs):
        return None
    only = attrs.evolve(
        node,
        devices=tuple(attrs.evolve(each.device, free=len(each.addresses)) for each in given),
        numa=(),
    )
    try:
        request = snapshot.request(flavor, cloud.hosts)
        request = attrs.evolve(request, policy=Policy.PREFERRED, cells=(), on_cells=False)
        answer = choose(request, snapshot.engine_host(only, flavor.server.wants))
    except ValueError:
        return None
    return Choice(answer.sets[0]) if answer.sets else None


def _addresses(device: Device, server: Server) -> tuple[str, ...]:
    return tuple(use.address for use in device.used if use.server == server.uuid)


def _longest(places: list[Location]) -> Distance:
    return max(
        (distance(*pair) for pair in itertools.combinations(places, 2)), default=Distance.PIX
    )


def _said(decision: Decision | None, given: Iterable[Given]) -> Iterator[str]:
    if decision is None:
        return
    for gpu, adapter, why, as_wished in peers(decision, given):
        wished = f", not as wished ({decision.wish.value})" if as_wished is False else ""
        yield f"peer-to-peer of {gpu} with {adapter} when it was placed: {why}{wished}"


def peers(
    decision: Decision, given: Iterable[Given]
) -> Iterator[tuple[str, str, str, bool | None]]:
    """Each GPU and adapter below one switch, and what decided about their path at the start.

    The last: whether it was as the operator wished; None: nothing was wished.

    Nothing where the server has other devices now than those that were counted.
    """
    addresses = sorted((each for item in given for each in item.addresses), key=address_key)
    for gpu, adapter, why in decision.peers:
        if max(gpu, adapter) < len(addresses):
            wished = peer_wish.as_wished(peer.path_of(why), why, decision.wish)
            yield addresses[gpu], addresses[adapter], why.value, wished


def _notes(server: Server, node: Node, known: bool, devices: bool) -> list[str]:
    notes = []
    decision = server.decided
    if server.decision is None:
        notes.append(
            "no decision is stored: it was not started by this project's driver with an hpc: "
            "flavor, or has not started yet"
        )
    elif decision is None:
        notes.append(f"the stored decision is not one that this release reads: {server.decision}")
    elif decision.reached > decision.asked and decision.policy is Policy.PREFERRED:
        notes.append(
            f"{decision.asked.word} was preferred, but could not be had when it was placed"
        )
    if decision is not None and decision.redirected is not None:
        some, total = decision.redirected
        notes.append(
            f"peer-to-peer of {some} of the {total} pairs of a GPU and an adapter below one switch "
            "goes through the root complex (ACS redirect), as it was found when it was placed"
        )
    if devices and not known:
        notes.append(
            "where some of its devices sit is not known: Nova's records say it of devices that "
            "were free once since this project's driver runs on the node"
        )
    for device in node.devices:
        for use in device.used:
            why = node.ailing.get(use.address)
            if use.server == server.uuid and why is not None:
                notes.append(f"{use.address} stays with the server, but: {why}")
    return notes
