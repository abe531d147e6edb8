# SPDX-License-Identifier: Apache-2.0
"""Translates Nova's host states into the words of the placement engine.

Only this module depends on how Nova keeps pools and NUMA cells. Hosts with the same free
resources share one :class:`HostPattern`, in which devices have names of their own instead of
the UUIDs of their providers. So a result for one of these hosts holds for all of them.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc.from_nova import bandwidth, cache, pools, providers, withheld
from nova_hpc.from_nova.bandwidth import Bandwidth
from nova_hpc.from_nova.cache import Cache
from nova_hpc.from_nova.placement_answer import AnsweredAmounts, PlacementAnswer
from nova_hpc.from_nova.pools import KnownPool, SeenPool
from nova_hpc.from_nova.providers import Amounts, DeviceKind
from nova_hpc.from_nova.server import ServerTask
from nova_hpc.placement import roles as hpc_roles
from nova_hpc.placement.model import DeviceMiss, DevicePool, FreeHost, HostNode
from nova_hpc.topology import nvlink
from nova_hpc.wire import stats as hpc_stats
from nova_hpc.wire import tags as hpc_tags
from nova_hpc.wire.stats import NodeWord, StatsDocument


@attrs.frozen(eq=False)
class HostPattern:
    """The model of a host's free devices, shared by all hosts with the same free resources."""

    #: Without a name; its pools' ids are keys of View.providers.
    host: FreeHost
    #: From the tags of its pools.
    roles: hpc_roles.Played
    #: NVLink sets that cannot be used, each with the reason.
    faults: tuple[str, ...]
    #: NUMA node of each pool in Nova.
    numa: Mapping[str, int | None]
    #: Pools that Nova would give for an alias of another role.
    strangers: tuple[str, ...] = ()
    #: Equal for patterns with the same devices.
    devices: Hashable = ()
    number: int = attrs.field(factory=cache.next_unique_number)


@attrs.frozen
class HostView:
    """One host as the filter sees it: its free resources, and the faults of its devices."""

    name: str
    pattern: HostPattern
    #: id of a pool in the pattern -> resource provider
    providers: Mapping[str, str]
    #: Equal for hosts whose pools Nova treats alike, the unusable ones included.
    pools: Hashable = ()
    #: Pools that matched but cannot be used, each with the reason; after them,
    #: the faults of the node as a whole.
    unusable: tuple[str, ...] = ()
    #: All unused devices, wanted or not, each with the reason: for the log.
    faults: tuple[tuple[str, str], ...] = ()
    #: PCI address -> why the node withholds it.
    withheld: Mapping[str, str] = attrs.field(factory=dict)
    #: Alias -> how many of *withheld* would serve it.
    counted: Mapping[str, int] = attrs.field(factory=dict)
    #: Why the node gets no server with an ``hpc:`` flavor, whatever its devices; None if it may.
    out: str | None = None
    #: Whether Nova cannot distinguish some of the host's pools.
    ambiguous: bool = False
    #: key of ports with bandwidth -> PCI address of an adapter -> its provider of bandwidth
    bandwidth: Mapping[str, Mapping[str, str]] = attrs.field(factory=dict)

    @property
    def miss(self) -> DeviceMiss | None:
        """The reason why the whole node is excluded; None if it is not."""
        if self.out is None:
            return None
        return DeviceMiss(operator=self.out, user="a node is not set up for hpc: flavors")

    @property
    def host(self) -> FreeHost:
        """The host model with this host's own name and the UUIDs of its providers."""
        real = self.providers
        plain = self.pattern.host
        return attrs.evolve(
            plain,
            name=self.name,
            pools=tuple(attrs.evolve(pool, id=real[pool.id]) for pool in plain.pools),
            nvlink=tuple(
                frozenset(real[pool_id] for pool_id in nvlink_set) for nvlink_set in plain.nvlink
            ),
        )


@attrs.frozen
class Available:
    """The free devices and bandwidth for a server on all hosts, by Placement."""

    #: None for a kind if unknown.
    devices: Mapping[DeviceKind, Amounts | None]
    #: The same for the bandwidth of ports.
    bandwidth: Mapping[Bandwidth, bandwidth.Offers | None]

    @classmethod
    def of(cls, task: ServerTask, answer: PlacementAnswer | None) -> Available:
        """Read the free amounts from Nova's answer of Placement; without one, query Placement."""
        free_devices: dict[DeviceKind, Amounts | None] = {}
        for kind, most in task.kinds.items():
            if answer is None:
                free_devices[kind] = providers.free_providers(kind, most)
            else:
                free_devices[kind] = AnsweredAmounts(answer, kind)
        offers = {
            kind.bandwidth: bandwidth.find_bandwidth_offers(
                kind.bandwidth, kind.ports.count, answer
            )
            for kind in task.ports
            if kind.bandwidth is not None
        }
        return cls(free_devices, offers)


@attrs.frozen
class _HostReading:
    """The pools and NUMA nodes of a host state, without Placement's data."""

    #: For each pool: its content, its provider, that or a name, its interface, free functions.
    pools: tuple[tuple[KnownPool, str | None, str, str | None, int], ...]
    #: Providers with several pools, which Nova cannot distinguish.
    split: frozenset[str]
    #: As :attr:`HostView.pools`.
    alike: tuple[tuple[int, int], ...]
    #: NUMA nodes, and a key of them.
    nodes: tuple[tuple[object, ...], tuple[HostNode, ...]]


_PATTERNS: Final[Cache[HostPattern]] = Cache()
_BOUND: Final[Cache[HostPattern]] = Cache()
_NODES: Final[Cache[HostNode]] = Cache()
_WORDS: Final[Cache[NodeWord]] = Cache()


def read_host(
    host_state: Any,
    task: ServerTask,
    free: Mapping[DeviceKind, Amounts | None],
    offers: Mapping[Bandwidth, bandwidth.Offers | None] | None = None,
) -> HostView:
    """Read a host state of Nova: every device with tags, and every device that the server wants.

    :param free: Placement's free devices; None for a kind if unknown.
    :param offers: the same for the bandwidth of ports.
    """
    unusable: list[str] = []
    faults: list[tuple[str, str]] = []
    entries: list[tuple[str, str, SeenPool]] = []
    reading = _recall_reading(host_state, task)
    bound = _AdapterBandwidth.of(task, offers or {}, getattr(host_state, "uuid", None))
    for known_pool, provider, of, interface, count in reading.pools:
        try:
            seen = pools.usable_part_of_pool(known_pool, provider, int(count), free)
            if seen is not None and provider in reading.split:
                raise hpc_tags.TagError(
                    "its adapter's functions carry different "
                    f"tags{_roles_of_provider(host_state.pci_stats.pools, provider)}, so Nova "
                    "cannot distinguish them"
                )
        except hpc_tags.TagError as error:
            if known_pool.matches or known_pool.ports:
                unusable.append(f"{known_pool.name}: {error}")
            faults.append((f"device {known_pool.name}", str(error)))
            continue
        if seen is not None:
            entries += [(known_pool.name, of, part) for part in bound.parts(interface, seen)]
    nodes = reading.nodes
    word = node_word_of_host(host_state)
    stats_document = word.document or StatsDocument()
    entries.sort(key=_sort_key_of_entry)
    key = (tuple([(part.known.number, part.free, part.serves) for _, _, part in entries]), nodes[0])
    pattern = _PATTERNS.get(
        key, lambda: _build_pattern([part for _, _, part in entries], nodes[1], key[0])
    )
    faults += [("an NVLink set", fault) for fault in pattern.faults]
    if word.out is not None:
        faults.append(("the node, for hpc: flavors,", word.out))
    return HostView(
        name=host_state.host,
        pattern=pattern,
        providers={
            pool.id: provider
            for pool, (_, provider, _) in zip(pattern.host.pools, entries, strict=True)
        },
        pools=reading.alike,
        unusable=(*unusable, *pattern.faults, *stats_document.notes),
        faults=tuple(faults),
        withheld=stats_document.withheld,
        counted=withheld.count_withheld_by_alias(stats_document, task),
        out=word.out,
        ambiguous=bool(reading.split),
        bandwidth=bound.providers,
    )


def _recall_reading(host_state: Any, task: ServerTask) -> _HostReading:
    """Return the reading of a host state, from an earlier request if its record is unchanged."""
    # The scheduler keeps this for a host whose record has not changed.
    kept = getattr(host_state, "hpc_kept", None)
    read = functools.partial(_read_state, host_state, task)
    return read() if kept is None else kept.recall(host_state, task.matching, read)


def _read_state(host_state: Any, task: ServerTask) -> _HostReading:
    """Read the pools and NUMA nodes of a host state.

    One provider may have several pools, for example with different roles in their tags. Nova
    cannot distinguish such pools, so the provider is noted.
    """
    stats = host_state.pci_stats
    listed: Sequence[Mapping[str, Any]] = stats.pools if stats else ()
    sockets = _sockets_by_node(host_state)
    shared = collections.Counter(pool.get("rp_uuid") for pool in listed)
    known_pools = [pools.recall_pool(stats, pool, task, sockets) for pool in listed]
    return _HostReading(
        pools=tuple(
            (
                known_pool,
                pool.get("rp_uuid"),
                provider_of_pool(pool),
                pool.get(bandwidth.INTERFACE),
                pool["count"],
            )
            for known_pool, pool in zip(known_pools, listed, strict=True)
        ),
        split=frozenset(
            provider for provider, count in shared.items() if count > 1 and provider is not None
        ),
        alike=tuple(
            (known_pool.number, pool["count"])
            for known_pool, pool in zip(known_pools, listed, strict=True)
        ),
        nodes=_free_numa_nodes_of(host_state),
    )


def provider_of_pool(pool: Mapping[str, Any]) -> str:
    """Return the provider UUID of a PCI pool; a made-up name if none (functions for ports)."""
    return str(pool.get("rp_uuid") or f"{pool.get('address', '?')} without a provider")


@attrs.frozen
class _AdapterBandwidth:
    """The free bandwidth of one host's adapters, by port, and the providers chosen for it."""

    #: Key of ports -> Placement's data about all hosts.
    offers: Mapping[str, bandwidth.Offers]
    root: str | None
    #: As :attr:`HostView.bandwidth`; grows while the pools are read.
    providers: dict[str, dict[str, str]] = attrs.field(factory=dict)

    @classmethod
    def of(
        cls, task: ServerTask, offers: Mapping[Bandwidth, bandwidth.Offers | None], root: str | None
    ) -> _AdapterBandwidth:
        offers_by_key = {}
        for kind in task.ports:
            offer = offers.get(kind.bandwidth) if kind.bandwidth is not None else None
            if offer is not None:
                offers_by_key[kind.ports.key] = offer
        return cls(offers_by_key, root)

    def parts(self, interface: str | None, seen: SeenPool) -> list[SeenPool]:
        """Divide a PCI pool by the numbers of ports that its adapter's bandwidth suffices for.

        :returns: the parts; only the pool if no port needs bandwidth.
        """
        own_keys = seen.serves & self.offers.keys()
        if not own_keys:
            return [seen]
        amounts = dict.fromkeys(own_keys, 0)
        for key in own_keys:
            offer = self.offers[key]
            adapter_offer = offer.of(self.root, interface)
            if adapter_offer is not None:
                provider, count = adapter_offer
                amounts[key] = count if count < offer.asked else seen.free
                self.providers.setdefault(key, {})[seen.known.name] = provider
        return [
            attrs.evolve(seen, free=count, serves=serves)
            for count, serves in bandwidth.split_adapter_functions(seen.free, seen.serves, amounts)
        ]


def _roles_of_provider(listed: Sequence[Mapping[str, Any]], provider: str | None) -> str:
    """Return a text with the roles of one provider's pools; "" if there are not several."""
    own_pools = [pool for pool in listed if pool.get("rp_uuid") == provider]
    roles = sorted({str(pool[hpc_tags.ROLE]) for pool in own_pools if pool.get(hpc_tags.ROLE)})
    return f" (roles {' and '.join(roles)})" if len(roles) > 1 else ""


def _sort_key_of_entry(entry: tuple[str, str, SeenPool]) -> tuple[str, str]:
    return entry[0], entry[1]


def pattern_on_host(pattern: HostPattern, host: FreeHost) -> HostPattern:
    """Return a pattern with the devices of *pattern*, and the CPUs and pages of *host*; cached."""
    if host is pattern.host:
        return pattern
    nodes = tuple(
        [
            (
                node.id,
                node.socket,
                node.dedicated_cpus,
                None if node.pages is None else tuple(sorted(node.pages.items())),
            )
            for node in host.nodes
        ]
    )
    return _PATTERNS.get(
        (pattern.devices, nodes),
        lambda: attrs.evolve(pattern, host=host, number=cache.next_unique_number()),
    )


def bind_view_roles(view: HostView, roles: Mapping[str, str]) -> HostView:
    """Return the host view with each device restricted to aliases of its own role.

    :param roles: Want.key -> role, from :func:`nova_hpc.placement.roles.bind_alias_roles`.
    """
    played = view.pattern.roles.by_want
    if all(played_roles <= {roles.get(want)} for want, played_roles in played.items()):
        return view
    key = (view.pattern.number, tuple(sorted(roles.items())))
    pattern = _BOUND.get(key, lambda: _bind_pattern_roles(view.pattern, roles, key))
    return attrs.evolve(view, pattern=pattern, unusable=(*view.unusable, *pattern.strangers))


def _bind_pattern_roles(
    pattern: HostPattern, roles: Mapping[str, str], key: Hashable
) -> HostPattern:
    host, strangers = hpc_roles.restrict_to_roles(pattern.host, roles)
    return attrs.evolve(
        pattern, host=host, strangers=strangers, devices=key, number=cache.next_unique_number()
    )


@attrs.frozen
class HostDevice:
    """The free devices of one provider, and the NVLink set that they belong to."""

    pool: DevicePool
    nvlink: str | None = None
    #: It is one of several functions, so that its links cannot be identified.
    shared: bool = False


def build_engine_host(
    name: str, devices: Sequence[HostDevice], nodes: tuple[HostNode, ...]
) -> tuple[FreeHost, tuple[str, ...]]:
    """Build the host model for the placement engine, and the reasons for unusable NVLink sets.

    The scheduler makes it from a host's report, a node from a server's claim. An incomplete set
    does not count.
    """
    table = nvlink.rebuild_nvlink_sets(
        {device.pool.id: device.nvlink for device in devices if device.nvlink},
        shared=[device.pool.id for device in devices if device.shared],
    )
    pools = tuple(device.pool for device in devices)
    return FreeHost(name=name, pools=pools, nodes=nodes, nvlink=table.sets), table.faults


def _build_pattern(
    seen_pools: Sequence[SeenPool], nodes: tuple[HostNode, ...], devices: Hashable = ()
) -> HostPattern:
    """Build the pattern of a host, with the pools' addresses as their names.

    Pools with the same address get a number behind it. An adapter that is free as a whole is the
    rival of its own functions.
    """
    names = collections.Counter(seen.known.name for seen in seen_pools)
    ids = [
        seen.known.name if names[seen.known.name] == 1 else f"{seen.known.name} ({index})"
        for index, seen in enumerate(seen_pools)
    ]
    # Nova gives either an adapter itself, or its virtual functions.
    whole = {seen.known.name for seen in seen_pools if seen.known.whole}
    host, faults = build_engine_host(
        "",
        [
            HostDevice(
                pool=attrs.evolve(
                    seen.pool(identifier),
                    rival=seen.known.name if seen.known.name in whole else None,
                    whole=seen.known.whole,
                ),
                nvlink=None if seen.known.tags is None else seen.known.tags.nvlink,
                shared=seen.known.several,
            )
            for identifier, seen in zip(ids, seen_pools, strict=True)
        ],
        nodes,
    )
    return HostPattern(
        host=host,
        roles=hpc_roles.roles_played_on_host((pool.serves, pool.role) for pool in host.pools),
        faults=faults,
        numa={
            identifier: seen.known.node for identifier, seen in zip(ids, seen_pools, strict=True)
        },
        devices=devices,
    )


def _sockets_by_node(host_state: Any) -> dict[int, int | None]:
    if not host_state.numa_topology:
        return {}
    return {cell.id: getattr(cell, "socket", None) for cell in host_state.numa_topology.cells}


def _free_numa_nodes_of(host_state: Any) -> tuple[tuple[object, ...], tuple[HostNode, ...]]:
    """Return the host's NUMA nodes with their free dedicated CPUs and free pages.

    :returns: a key that is equal if all these numbers are, and the nodes; both empty if the host
        reports no NUMA nodes.
    """
    if not host_state.numa_topology:
        return (), ()
    keys = tuple(
        (
            cell.id,
            getattr(cell, "socket", None),
            cell.avail_pcpus,
            tuple([(page.size_kb, max(0, page.free)) for page in cell.mempages]),
        )
        for cell in host_state.numa_topology.cells
    )
    return keys, tuple(_NODES.get(key, functools.partial(_build_host_node, *key)) for key in keys)


def _build_host_node(
    number: int, socket: int | None, cpus: int, pages: tuple[tuple[int, int], ...]
) -> HostNode:
    return HostNode(id=number, socket=socket, dedicated_cpus=cpus, pages=dict(pages))


def node_word_of_host(host_state: Any) -> NodeWord:
    """Return the node's report about its devices, and whether it may have ``hpc:`` servers."""
    # ``stats`` is unset until the compute node has reported for the first time.
    text = (getattr(host_state, "stats", None) or {}).get(hpc_stats.KEY)
    if not isinstance(text, str):
        stats = host_state.pci_stats
        return hpc_stats.judge_node_stats(
            text, any(map(hpc_tags.has_tags, stats.pools if stats else ()))
        )
    # Most nodes report the same text, and repeat it for the next request.
    return _WORDS.get(text, lambda: hpc_stats.judge_node_stats(text, tagged=True))
