# SPDX-License-Identifier: Apache-2.0
"""The host as a tree of domains, in which equal subtrees have one class.

Two subtrees are of one class if they differ only in names; the search
computes one table for each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement.model import HostNode
from nova_hpc.placement.solver.domains import ALONE, Item, Key, Rank, node_region
from nova_hpc.placement.solver.problem import SearchProblem

#: The decision of an outer choice about a device.
FORCED: Final = 1  # must be taken, as part of a unit
HIT: Final = 2  # is taken, as part of an NVLink set
CLOSED: Final = 3  # must not be taken

#: First words of keys of real domains at each rank.
_REAL: Final = ("pix", "switch", "root", "numa", "socket", "host")

#: Signature of alike devices: kind, free devices, label, how many, all or none, caps,
#: aliases that each can serve.
Many = tuple[int, int, int, int, bool, int, int]
#: The same of one device: kind, free devices, label, caps, aliases.
_Sort = tuple[int, int, int, int, int]


@attrs.frozen(eq=False)
class Alike:
    """Interchangeable devices below one PCIe switch, or one IOMMU unit.

    Two with equal signatures are the same for the search.
    """

    many: tuple[Many, ...]  # one, or the contents of a unit
    unit: bool
    #: the devices, by name; not part of the signature
    items: tuple[tuple[Item, ...], ...]
    #: An exclusive alternative: the adapter itself, or its functions.
    instead: Alike | None = None

    @property
    def signature(self) -> tuple[object, ...]:
        """All properties that the search uses: equal signatures give equal results."""
        return (self.unit, self.many, None if self.instead is None else self.instead.signature)


@attrs.frozen(eq=False)
class DomainClass:
    """The properties that equal subtrees of a host's device tree share.

    A domain is a PCIe switch, root complex, NUMA node, socket or the host. The search computes one
    table for each class.
    """

    number: int
    rank: Rank
    real: bool
    #: True if several devices in it are not known to be near each other.
    alone: bool
    #: Whether it is on a known NUMA node.
    on_node: bool
    parts: tuple[tuple[object, ...], ...]  # signatures of a leaf's parts
    children: tuple[int, ...]
    #: free devices of each label
    free: tuple[int, ...]
    #: of them, devices in NVLink sets that are taken
    held: tuple[int, ...]
    #: devices that may be taken, for each name
    avail: tuple[int, ...]
    #: devices that can serve a countable name, and how many of them are held
    tidy: tuple[int, int]
    #: NVLink sets that lie in it
    sets: int
    #: at NUMA rank with guest cells: sorts of cells with room, CPUs and pages
    suits: tuple[bool, ...]
    node: HostNode | None


@attrs.define(eq=False)
class DomainNode:
    """One domain (switch, root, NUMA node, socket or host) in the device tree of a host."""

    cls: DomainClass
    up: tuple[Key, ...]  # its keys, by rank
    first: tuple[str, str]
    most: int
    children: tuple[DomainNode, ...] = ()
    parts: tuple[Alike, ...] = ()
    #: numbers of the NVLink sets that lie in this domain and in no smaller one
    sets: tuple[int, ...] = ()
    node: HostNode | None = None


class Forest:
    """Builds the device trees of one host for different decisions; equal subtrees share a class."""

    def __init__(self, problem: SearchProblem) -> None:
        self.problem = problem
        self.classes: list[DomainClass] = []
        self._known: dict[tuple[object, ...], DomainClass] = {}
        self._items = sorted(
            (*problem.site.items, *problem.site.rest), key=lambda item: (-item.free, item.order)
        )
        self._mask = sum(1 << i for i in problem.countable)
        self._limits = problem.profile.limited
        leaves: dict[Key, list[Item]] = {}
        for item in self._items:
            leaves.setdefault(item.keys[0], []).append(item)
        self._leaves = list(leaves.values())

    def grow(
        self,
        marks: Mapping[str, int],
        sets: Sequence[Sequence[Item]] = (),
        local: frozenset[str] = frozenset(),
        banned: frozenset[int] = frozenset(),
    ) -> DomainNode:
        """Build the host's tree of domains (switches, roots, NUMA nodes, sockets) and their
        devices.

        :param marks: item id -> the decision about it
        :param sets: the NVLink sets that are taken
        :param local: names of units inside one leaf, which are chosen there
        :param banned: NUMA nodes without a guest cell
        """
        # The tree grows from the leaves: at each rank the nodes of one domain get a parent.
        homes: dict[tuple[int, Key], list[int]] = {}
        for number, members in enumerate(sets):
            rank, key = smallest_domain_of(members)
            homes.setdefault((rank, key), []).append(number)
        nodes = [self._leaf(items, marks, homes, local) for items in self._leaves]
        hosts: dict[Key, HostNode] = {
            ("numa", str(node.id)): node for node in self.problem.site.nodes
        }
        for rank in list(Rank)[1:]:
            parents: dict[Key, list[DomainNode]] = {}
            ups: dict[Key, tuple[Key, ...]] = {}
            for node in nodes:
                key = node.up[rank]
                parents.setdefault(key, []).append(node)
                ups.setdefault(key, node.up)
            # A NUMA node without devices may take a guest cell, too.
            if rank is Rank.NUMA and self.problem.sorts:
                for key, host in hosts.items():
                    if key not in parents:
                        parents[key] = []
                        ups[key] = (key,) * 4 + (node_region(host, Rank.SOCKET), ("host",))
            nodes = [
                self._inner(
                    rank,
                    key,
                    below,
                    ups[key],
                    tuple(homes.get((rank, key), ())),
                    hosts.get(key) if rank is Rank.NUMA else None,
                    banned,
                )
                for key, below in parents.items()
            ]
        if not nodes:
            return self._inner(Rank.HOST, ("host",), [], (("host",),) * 6, (), None, banned)
        return nodes[0]

    def _leaf(
        self,
        items: Sequence[Item],
        marks: Mapping[str, int],
        homes: Mapping[tuple[int, Key], list[int]],
        local: frozenset[str],
    ) -> DomainNode:
        """Build the node of a PIX domain, whose parts are sorts of equal devices.

        Devices of NVLink sets that are taken count only for the damage. An adapter that is free as
        a whole and as functions is one part with an alternative. An IOMMU unit that lies in the
        leaf is one part, which is used up or not used.
        """
        problem = self.problem
        labels = len(problem.profile.labels)
        free, held, avail = [0] * labels, [0] * labels, [0] * len(problem.demand.names)
        tidy = tidy_held = 0
        units: dict[str, dict[_Sort, list[Item]]] = {}
        alike: dict[tuple[_Sort, bool], list[Item]] = {}
        rivals = _list_free_rivals(items, marks)
        either: dict[str, dict[bool, dict[_Sort, list[Item]]]] = {}
        for item in items:
            label, mark = problem.label[item.id], marks.get(item.id, 0)
            if label >= 0:
                free[label] += item.free
            if item.kind & self._mask:
                tidy += item.free
            if mark == HIT:
                if label >= 0:
                    held[label] += 1
                tidy_held += 1 if item.kind & self._mask else 0
                continue
            if mark == CLOSED or not item.kind:
                continue
            for i in range(len(avail)):
                if item.kind >> i & 1:
                    avail[i] += item.free
            sort = (item.kind, item.free, label, problem.capped.get(item.id, 0), item.aliases)
            if item.rival in rivals:
                sides = either.setdefault(str(item.rival), {True: {}, False: {}})
                sides[item.whole].setdefault(sort, []).append(item)
            elif mark != FORCED and item.unit is not None and item.unit in local:
                units.setdefault(item.unit, {}).setdefault(sort, []).append(item)
            else:
                alike.setdefault((sort, mark == FORCED), []).append(item)
        parts = [
            Alike((_count_alike_items(sort, same, forced),), False, (tuple(same),))
            for (sort, forced), same in alike.items()
        ]
        for sides in either.values():
            parts.append(attrs.evolve(_build_side(sides[False]), instead=_build_side(sides[True])))
        for inside in units.values():
            ordered = sorted(inside.items())
            parts.append(
                Alike(
                    tuple(_count_alike_items(sort, same, True) for sort, same in ordered),
                    True,
                    tuple(tuple(same) for _, same in ordered),
                )
            )
        # The sort is stable: among equal parts the first by name stays the first.
        parts.sort(
            key=lambda part: (
                part.unit,
                [(-many[1], *many) for many in part.many],
                str(part.instead and part.instead.many),
            )
        )
        key = items[0].keys[0]
        set_numbers = tuple(homes.get((0, key), ()))
        signatures = tuple([part.signature for part in parts])
        real, on_node = key[0] == "pix", items[0].keys[Rank.NUMA][0] == "numa"
        signature = (
            real, key[0] == ALONE, on_node, signatures, *free, *held, tidy, tidy_held,
            len(set_numbers),
        )  # fmt: skip
        cls = self._known.get(signature)
        if cls is None:
            cls = self._new(
                signature,
                rank=Rank.PIX,
                real=real,
                alone=key[0] == ALONE,
                on_node=on_node,
                parts=signatures,
                children=(),
                free=tuple(free),
                held=tuple(held),
                avail=tuple(avail),
                tidy=(tidy, tidy_held),
                sets=len(set_numbers),
                suits=(),
                node=None,
            )
        name = min(item.order for item in items)
        return DomainNode(cls, items[0].keys, name, items[0].free, (), tuple(parts), set_numbers)

    def _inner(
        self,
        rank: Rank,
        key: Key,
        below: list[DomainNode],
        up: tuple[Key, ...],
        sets: tuple[int, ...],
        host: HostNode | None,
        banned: frozenset[int],
    ) -> DomainNode:
        """Build the node of a larger domain from the nodes of its children.

        The classes of its children decide its own class, whatever their order. At NUMA rank the
        guest cells that fit also decide and, if they limit any shape of the profile, the free CPUs
        and pages.
        """
        problem = self.problem
        if len(below) > 1:
            below.sort(key=lambda node: (node.cls.number, -node.most, node.first))
        suits: tuple[bool, ...] = ()
        if host is not None and problem.sorts and host.id not in banned:
            suits = problem.suits(host)
        shown = None
        if host is not None and self._limits:
            pages = dict(sorted((host.pages or {}).items()))
            shown = HostNode(-1, None, host.dedicated_cpus, None if host.pages is None else pages)
        real, on_node = key[0] == _REAL[rank], up[Rank.NUMA][0] == "numa"
        numbers = tuple([node.cls.number for node in below])
        resources = None if shown is None else (shown.dedicated_cpus, str(shown.pages))
        signature = (rank, real, key[0] == ALONE, on_node, numbers, len(sets), suits, resources)
        cls = self._known.get(signature)
        if cls is None:
            classes = [node.cls for node in below]
            cls = self._new(
                signature,
                rank=rank,
                real=real,
                alone=key[0] == ALONE,
                on_node=on_node,
                parts=(),
                children=numbers,
                free=_sum_vectors(
                    [child_class.free for child_class in classes], len(problem.profile.labels)
                ),
                held=_sum_vectors(
                    [child_class.held for child_class in classes], len(problem.profile.labels)
                ),
                avail=_sum_vectors(
                    [child_class.avail for child_class in classes], len(problem.demand.names)
                ),
                tidy=(
                    sum(child_class.tidy[0] for child_class in classes),
                    sum(child_class.tidy[1] for child_class in classes),
                ),
                sets=len(sets) + sum(child_class.sets for child_class in classes),
                suits=suits,
                node=shown,
            )
        if len(below) == 1:
            return DomainNode(cls, up, below[0].first, below[0].most, tuple(below), (), sets, host)
        first = min((node.first for node in below), default=("", ""))
        most = max((node.most for node in below), default=0)
        return DomainNode(cls, up, first, most, tuple(below), (), sets, host)

    def _new(
        self,
        signature: tuple[object, ...],
        *,
        rank: Rank,
        real: bool,
        alone: bool,
        on_node: bool,
        parts: tuple[tuple[object, ...], ...],
        children: tuple[int, ...],
        free: tuple[int, ...],
        held: tuple[int, ...],
        avail: tuple[int, ...],
        tidy: tuple[int, int],
        sets: int,
        suits: tuple[bool, ...],
        node: HostNode | None,
    ) -> DomainClass:
        cls = DomainClass(
            len(self.classes), rank, real, alone, on_node, parts, children, free, held, avail,
            tidy, sets, suits, node,
        )  # fmt: skip
        self._known[signature] = cls
        self.classes.append(cls)
        return cls


def _list_free_rivals(items: Sequence[Item], marks: Mapping[str, int]) -> frozenset[str]:
    """Find adapters of a leaf that are free as a whole and also as functions."""
    sides: dict[str, set[bool]] = {}
    for item in items:
        if item.rival is not None and item.kind and item.unit is None and not marks.get(item.id):
            sides.setdefault(item.rival, set()).add(item.whole)
    taken_rivals = {item.rival for item in items if item.unit is not None or marks.get(item.id)}
    return (
        frozenset(rival for rival, side_flags in sides.items() if len(side_flags) > 1)
        - taken_rivals
    )


def _count_alike_items(sort: _Sort, same: Sequence[Item], forced: bool) -> Many:
    kind, free, label, caps, aliases = sort
    return kind, free, label, len(same), forced, caps, aliases


def _build_side(devices_by_sort: Mapping[_Sort, list[Item]]) -> Alike:
    ordered = sorted(devices_by_sort.items())
    return Alike(
        tuple(_count_alike_items(sort, same, False) for sort, same in ordered),
        False,
        tuple(tuple(same) for _, same in ordered),
    )


def smallest_domain_of(members: Sequence[Item]) -> tuple[int, Key]:
    """Return (rank, key) of the smallest domain, switch to host, that contains all *members*."""
    for rank in Rank:
        key = members[0].keys[rank]
        if all(item.keys[rank] == key for item in members) and (
            key[0] != ALONE or len(members) == 1
        ):
            return int(rank), key
    return int(Rank.HOST), ("host",)


def _sum_vectors(vectors: Sequence[tuple[int, ...]], length: int) -> tuple[int, ...]:
    if len(vectors) == 1:
        return vectors[0]
    if not vectors:
        return (0,) * length
    return tuple(map(sum, zip(*vectors, strict=True)))
