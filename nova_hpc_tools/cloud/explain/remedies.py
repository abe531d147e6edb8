# SPDX-License-Identifier: Apache-2.0
"""Remedies that make a server fit. Each remedy was verified, none is a guess.

Every candidate is a changed flavor or a changed node that goes through choose_device_sets() like
the original. The report names the first of each kind that fits, and servers whose move would be
enough. Equal nodes are judged only once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement import between_hosts
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.flavor import AFFINITY, GROUP, NUMA_POLICY
from nova_hpc.placement.grouping import FlavorError, GroupWords
from nova_hpc.placement.model import ChoiceAnswer, DevicePool, DeviceSet, FreeHost, Request
from nova_hpc.placement.profile import Profile
from nova_hpc_common.level import AffinityPolicy, Level
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.explain.model import Remedy
from nova_hpc_tools.snapshot import Flavor, FlavorWant, Server, Snapshot, SnapshotNode

#: The most servers that are named, and that are judged: a large cloud has many.
_NAMED: Final = 5
_TRIED: Final = 2000


class Chooser:
    """Chooses devices on nodes, and caches the answers for one report.

    Nodes of one kind with the same free devices have the same answer. They differ only in their
    names and the UUIDs of their providers, which are therefore replaced by addresses, as in the
    scheduler.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._known: dict[tuple[Request, FreeHost], ChoiceAnswer] = {}

    def rank(self, request: Request, devices: DeviceSet, node: SnapshotNode) -> tuple[int, ...]:
        """Return sort key of *node* with *devices*, as HpcPackingWeigher ranks; least is best."""
        coarse = between_hosts.damage_grain_of(self._profile)
        free = between_hosts.free_room_of(node.numa)
        return between_hosts.rank_device_set(devices.score, request.level, coarse, free=free)

    def choose(self, request: Request, flavor: Flavor, node: SnapshotNode) -> ChoiceAnswer:
        """Choose the best device sets of *node* for *request*, as the scheduler does; cached."""
        host = snapshot.engine_host(node, flavor.server.wants, request.roles, flavor.ports)
        ids = {pool.id: pool.name for pool in host.pools}
        # Without unique names the answer could not be mapped back to the providers.
        if len(set(ids.values())) < len(ids):
            return choose_device_sets(request, host, profile=self._profile)
        plain = attrs.evolve(
            host,
            name="",
            pools=tuple(_anonymise_pool(pool) for pool in host.pools),
            nvlink=tuple(
                frozenset(ids[provider] for provider in nvlink_set) for nvlink_set in host.nvlink
            ),
        )
        key = (request, plain)
        if key not in self._known:
            self._known[key] = choose_device_sets(request, plain, profile=self._profile)
        answer = self._known[key]
        back = {name: provider for provider, name in ids.items()}
        return attrs.evolve(
            answer,
            sets=tuple(
                attrs.evolve(
                    device_set,
                    picks=tuple(
                        attrs.evolve(pick, pool=back[pick.pool]) for pick in device_set.picks
                    ),
                )
                for device_set in answer.sets
            ),
        )


def _anonymise_pool(pool: DevicePool) -> DevicePool:
    return attrs.evolve(pool, id=pool.name)


def find_remedies(
    cloud: Snapshot,
    nodes: Sequence[SnapshotNode],
    flavor: Flavor,
    request: Request,
    chooser: Chooser,
) -> tuple[Remedy, ...]:
    """Find the remedies for a flavor that fits none of *nodes*, the smallest first."""
    usable = [node for node in nodes if node.out is None]
    remedies = []
    for kind, candidates in (
        ("affinity", _wider_levels(flavor, request)),
        ("group", _smaller_groups(flavor, request)),
        ("size", _fewer_devices(flavor, request)),
    ):
        for text, changed in candidates:
            remedy = _try_change(cloud, usable, kind, text, changed, chooser)
            if remedy is not None:
                remedies.append(remedy)
                break
    return (*remedies, *_without_servers(cloud, usable, flavor, request, chooser))


def _try_change(
    cloud: Snapshot,
    nodes: Sequence[SnapshotNode],
    kind: str,
    text: str,
    changed: Flavor,
    chooser: Chooser,
) -> Remedy | None:
    """Return the remedy with the best node for it if *changed* fits; None if it does not.

    :param kind: of the change: affinity, group or size.
    :param text: the words for it.
    """
    try:
        request = snapshot.request_of_flavor(changed, cloud.hosts)
    except FlavorError:
        return None
    best: tuple[tuple[int, ...], str, DeviceSet] | None = None
    for node in nodes:
        chosen = _best_devices_on(chooser, node, changed, request)
        if chosen is None:
            continue
        rank = chooser.rank(request, chosen, node)
        if best is None or (rank, node.name) < best[:2]:
            best = (rank, node.name, chosen)
    return None if best is None else Remedy(kind, text, best[1], best[2].level)


def _best_devices_on(
    chooser: Chooser, node: SnapshotNode, flavor: Flavor, request: Request
) -> DeviceSet | None:
    answer = chooser.choose(request, flavor, node)
    return answer.sets[0] if answer.sets else None


def _wider_levels(flavor: Flavor, request: Request) -> Iterator[tuple[str, Flavor]]:
    """Yield the flavor with each wider level, one after the other; Nova's policy has to allow it.

    Each is a pair: the words for people, and the changed flavor.
    """
    if request.policy is AffinityPolicy.PREFERRED:
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
    """Yield the flavor with the same devices in groups of a half, a third and so on."""
    per_group = _group_counts_of(request)
    words = GroupWords.of(
        flavor.extra_specs.get(GROUP), request.wants, request.roles, flavor.server.port_roles
    )
    ports = [f"{name}:{count}" for name, count in words.ports.items()]
    whole = math.gcd(*per_group.values())
    for parts in range(2, whole + 1):
        if whole % parts == 0:
            counts = [f"{name}:{count // parts}" for name, count in per_group.items()]
            value = ",".join([*counts, *ports])
            yield (
                f"in smaller groups, with {GROUP}={value}",
                attrs.evolve(flavor, extra_specs={**flavor.extra_specs, GROUP: value}),
            )


def _fewer_devices(flavor: Flavor, request: Request) -> Iterator[tuple[str, Flavor]]:
    """Yield the flavor with fewer devices in the same proportion, the most first."""
    whole = math.gcd(*(want.count for want in flavor.wants))
    per_group = _group_counts_of(request)
    for parts in range(whole - 1, 0, -1):
        wants = tuple(FlavorWant(want.alias, want.count * parts // whole) for want in flavor.wants)
        what = " and ".join(f"{want.count} {want.alias}" for want in wants)
        specs = dict(flavor.extra_specs)
        totals: dict[str, int] = {}
        for want in wants:
            totals[want.alias] = totals.get(want.alias, 0) + want.count
        if any(totals[name] % count for name, count in per_group.items()):
            # The groups of the flavor do not go into it.
            specs.pop(GROUP, None)
        yield (f"with only {what}", attrs.evolve(flavor, wants=wants, extra_specs=specs))


def _group_counts_of(request: Request) -> dict[str, int]:
    """Return alias -> number of its devices in one group."""
    names = {want.key: want.name for want in request.wants}
    counts: dict[str, int] = {}
    for key, count in request.groups[0].counts.items():
        counts[names[key]] = counts.get(names[key], 0) + count
    return counts


def _without_servers(
    cloud: Snapshot,
    nodes: Sequence[SnapshotNode],
    flavor: Flavor,
    request: Request,
    chooser: Chooser,
) -> Iterator[Remedy]:
    """Yield servers that each make enough room by leaving; otherwise whole nodes."""
    servers = {server.uuid: server for server in cloud.servers}
    tried = named = 0
    for node in nodes:
        for uuid in _servers_on_node(node):
            if uuid not in servers:
                continue
            tried += 1
            if tried > _TRIED or named == _NAMED:
                return
            server = servers[uuid]
            chosen = _best_devices_on(
                chooser, snapshot.release_from_node(node, server), flavor, request
            )
            if chosen is not None:
                named += 1
                text = f"after server {server.name} ({server.uuid}) leaves {node.name}"
                yield Remedy("server", text, node.name, chosen.level)
    if named:
        return
    for node in nodes:
        empty = _release_listed_servers(node, servers)
        chosen = None if empty is node else _best_devices_on(chooser, empty, flavor, request)
        if chosen is not None:
            text = f"after all {len(_servers_on_node(node))} servers with devices leave {node.name}"
            yield Remedy("server", text, node.name, chosen.level)
            return


def _servers_on_node(node: SnapshotNode) -> list[str]:
    """Return UUIDs of the servers that have devices of *node*."""
    return list(dict.fromkeys(use.server for device in node.devices for use in device.used))


def _release_listed_servers(node: SnapshotNode, servers: Mapping[str, Server]) -> SnapshotNode:
    for uuid in _servers_on_node(node):
        if uuid in servers:
            node = snapshot.release_from_node(node, servers[uuid])
    return node
