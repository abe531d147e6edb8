# SPDX-License-Identifier: Apache-2.0
"""What would make a server fit. Nothing is guessed: each remedy was tried.

Every candidate is a changed flavor or a changed node that goes through
choose() like the original. The first that fits of each kind is named, and the
servers whose leaving would suffice. Nodes that are alike are asked about once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement import between_hosts
from nova_hpc.placement.choose import choose
from nova_hpc.placement.flavor import AFFINITY, GROUP, NUMA_POLICY
from nova_hpc.placement.grouping import FlavorError, Words
from nova_hpc.placement.model import Answer, DeviceSet, Host, Policy, Pool, Request
from nova_hpc.placement.profile import Profile
from nova_hpc.topology.level import Level
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.explain.model import Remedy
from nova_hpc_tools.snapshot import Flavor, FlavorWant, Node, Server, Snapshot

#: Servers that are named at most, and tried at most: a large cloud has many.
_NAMED: Final = 5
_TRIED: Final = 2000


class Chooser:
    """Remembers answers for the time of one report.

    Nodes of one kind with the same free devices have the same answer; what
    tells them apart are their names and the UUIDs of their providers, which
    are therefore replaced by addresses, as the scheduler does.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._known: dict[tuple[Request, Host], Answer] = {}

    def rank(self, request: Request, devices: DeviceSet, node: Node) -> tuple[int, ...]:
        """The place of *node*, which gives *devices*, as HpcPackingWeigher ranks it."""
        coarse = between_hosts.grain(self._profile)
        free = between_hosts.room(node.numa)
        return between_hosts.rank(devices.score, request.level, coarse, free=free)

    def choose(self, request: Request, flavor: Flavor, node: Node) -> Answer:
        """The best devices of *node* for *request*, by their providers."""
        host = snapshot.engine_host(node, flavor.server.wants, request.roles, flavor.ports)
        ids = {pool.id: pool.name for pool in host.pools}
        if len(set(ids.values())) < len(ids):
            return choose(request, host, profile=self._profile)
        plain = attrs.evolve(
            host,
            name="",
            pools=tuple(_named(pool) for pool in host.pools),
            nvlink=tuple(frozenset(ids[each] for each in one) for one in host.nvlink),
        )
        key = (request, plain)
        if key not in self._known:
            self._known[key] = choose(request, plain, profile=self._profile)
        answer = self._known[key]
        back = {name: provider for provider, name in ids.items()}
        return attrs.evolve(
            answer,
            sets=tuple(
                attrs.evolve(
                    one,
                    picks=tuple(attrs.evolve(pick, pool=back[pick.pool]) for pick in one.picks),
                )
                for one in answer.sets
            ),
        )


def _named(pool: Pool) -> Pool:
    return attrs.evolve(pool, id=pool.name)


def find(
    cloud: Snapshot,
    nodes: Sequence[Node],
    flavor: Flavor,
    request: Request,
    chooser: Chooser,
) -> tuple[Remedy, ...]:
    """The remedies for a flavor that fits none of *nodes*, the smallest first."""
    usable = [node for node in nodes if node.out is None]
    found = []
    for kind, candidates in (
        ("affinity", _wider(flavor, request)),
        ("group", _smaller_groups(flavor, request)),
        ("size", _fewer_devices(flavor, request)),
    ):
        for text, changed in candidates:
            remedy = _try(cloud, usable, kind, text, changed, chooser)
            if remedy is not None:
                found.append(remedy)
                break
    return (*found, *_without_servers(cloud, usable, flavor, request, chooser))


def _try(
    cloud: Snapshot,
    nodes: Sequence[Node],
    kind: str,
    text: str,
    changed: Flavor,
    chooser: Chooser,
) -> Remedy | None:
    """The remedy if *changed* fits; the best node for it."""
    try:
        request = snapshot.request(changed, cloud.hosts)
    except FlavorError:
        return None
    best: tuple[tuple[int, ...], str, DeviceSet] | None = None
    for node in nodes:
        chosen = _best(chooser, node, changed, request)
        if chosen is None:
            continue
        rank = chooser.rank(request, chosen, node)
        if best is None or (rank, node.name) < best[:2]:
            best = (rank, node.name, chosen)
    return None if best is None else Remedy(kind, text, best[1], best[2].level)


def _best(chooser: Chooser, node: Node, flavor: Flavor, request: Request) -> DeviceSet | None:
    answer = chooser.choose(request, flavor, node)
    return answer.sets[0] if answer.sets else None


def _wider(flavor: Flavor, request: Request) -> Iterator[tuple[str, Flavor]]:
    """One step wider after the other; Nova's own policy has to allow it."""
    if request.policy is Policy.PREFERRED:
        return
    for level in Level:
        if level <= request.level:
            continue
        specs = {**flavor.extra_specs, AFFINITY: level.word}
        text = f"with {AFFINITY}={level.word}"
        yield text, attrs.evolve(flavor, extra_specs=specs)
        for policy in ("socket", "preferred"):
            if policy == flavor.numa_policy:
                continue
            yield (
                f"{text} and {NUMA_POLICY}={policy}",
                attrs.evolve(
                    flavor, extra_specs={**specs, NUMA_POLICY: policy}, numa_policy=policy
                ),
            )


def _smaller_groups(flavor: Flavor, request: Request) -> Iterator[tuple[str, Flavor]]:
    """The same devices in groups of a half, a third and so on."""
    each = _group(request)
    words = Words.of(
        flavor.extra_specs.get(GROUP), request.wants, request.roles, flavor.server.port_roles
    )
    ports = [f"{name}:{count}" for name, count in words.ports.items()]
    whole = math.gcd(*each.values())
    for parts in range(2, whole + 1):
        if whole % parts == 0:
            counts = [f"{name}:{count // parts}" for name, count in each.items()]
            value = ",".join([*counts, *ports])
            yield (
                f"in smaller groups, with {GROUP}={value}",
                attrs.evolve(flavor, extra_specs={**flavor.extra_specs, GROUP: value}),
            )


def _fewer_devices(flavor: Flavor, request: Request) -> Iterator[tuple[str, Flavor]]:
    """Fewer devices in the same proportion, the most first."""
    whole = math.gcd(*(want.count for want in flavor.wants))
    each = _group(request)
    for parts in range(whole - 1, 0, -1):
        wants = tuple(FlavorWant(want.alias, want.count * parts // whole) for want in flavor.wants)
        what = " and ".join(f"{want.count} {want.alias}" for want in wants)
        specs = dict(flavor.extra_specs)
        totals: dict[str, int] = {}
        for want in wants:
            totals[want.alias] = totals.get(want.alias, 0) + want.count
        if any(totals[name] % count for name, count in each.items()):
            # The groups of the flavor do not go into it.
            specs.pop(GROUP, None)
        yield (
            f"with only {what}",
            attrs.evolve(flavor, wants=wants, extra_specs=specs),
        )


def _group(request: Request) -> dict[str, int]:
    """Alias -> its devices in one group."""
    names = {want.key: want.name for want in request.wants}
    found: dict[str, int] = {}
    for key, count in request.groups[0].counts.items():
        found[names[key]] = found.get(names[key], 0) + count
    return found


def _without_servers(
    cloud: Snapshot,
    nodes: Sequence[Node],
    flavor: Flavor,
    request: Request,
    chooser: Chooser,
) -> Iterator[Remedy]:
    """Servers, each of which makes enough room by leaving; else whole nodes."""
    servers = {server.uuid: server for server in cloud.servers}
    tried = named = 0
    for node in nodes:
        for uuid in _on(node):
            if uuid not in servers:
                continue
            tried += 1
            if tried > _TRIED or named == _NAMED:
                return
            server = servers[uuid]
            chosen = _best(chooser, snapshot.release(node, server), flavor, request)
            if chosen is not None:
                named += 1
                text = f"after server {server.name} ({server.uuid}) leaves {node.name}"
                yield Remedy("server", text, node.name, chosen.level)
    if named:
        return
    for node in nodes:
        empty = _emptied(node, servers)
        chosen = None if empty is node else _best(chooser, empty, flavor, request)
        if chosen is not None:
            text = f"after all {len(_on(node))} servers with devices leave {node.name}"
            yield Remedy("server", text, node.name, chosen.level)
            return


def _on(node: Node) -> list[str]:
    """The servers that have devices of *node*."""
    return list(dict.fromkeys(use.server for device in node.devices for use in device.used))


def _emptied(node: Node, servers: Mapping[str, Server]) -> Node:
    for uuid in _on(node):
        if uuid in servers:
            node = snapshot.release(node, servers[uuid])
    return node
