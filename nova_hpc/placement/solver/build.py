"""From counts to devices: the groups of one leaf domain.

The tables have decided how many groups a domain holds; here its devices are
put together so that as many groups as possible are tighter than the domain
itself, and so that what is left stays whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from nova_hpc.placement.solver import estimate as damage
from nova_hpc.placement.solver.demand import Demand, label
from nova_hpc.placement.solver.domains import ALONE, Item, Key, Rank, capacities


@attrs.frozen
class Part:
    """Devices of one pool that serve one name in one group."""

    index: int  # of the name in the demand
    item: Item


#: The devices of one group.
Built = tuple[Part, ...]


class _Stock:
    """Devices that may still be taken, by name and pool."""

    def __init__(self, free: dict[tuple[int, Item], int]) -> None:
        self.free = {pair: count for pair, count in free.items() if count > 0}
        self.taken: dict[Item, int] = {}

    def of(self, index: int, items: Sequence[Item]) -> int:
        return sum(self.free.get((index, item), 0) for item in items)

    def take(self, index: int, item: Item, count: int) -> None:
        self.free[index, item] -= count
        self.taken[item] = self.taken.get(item, 0) + count


def build(
    demand: Demand,
    counted: Sequence[int],
    items: Sequence[Item],
    units: Sequence[str],
    groups: int,
    rank: Rank,
) -> list[Built]:
    """Choose the devices of *groups* groups in one domain of *rank*.

    :param items: the devices of the domain
    :param units: names of the units that are used up completely; no other is touched
    """
    whole = set(units)
    usable = [item for item in items if item.unit is None or item.unit in whole]
    if whole or any(item.kind & (item.kind - 1) for item in usable):
        stock = _Stock(_labelled(demand, usable, groups))
    else:
        stock = _Stock({(item.kind.bit_length() - 1, item): item.free for item in usable})
    usable.sort(key=lambda item: item.order)
    domains = _domains(usable, rank)
    return [_group(demand, counted, stock, domains) for _ in range(groups)]


def _domains(items: Sequence[Item], rank: Rank) -> list[list[list[Item]]]:
    """The domains of each rank up to *rank*, tightest rank first."""
    result = []
    for step in list(Rank)[:rank]:
        parts: dict[Key, list[Item]] = {}
        for item in items:
            parts.setdefault(item.keys[step], []).append(item)
        result.append(list(parts.values()))
    result.append([list(items)])
    return result


def _labelled(demand: Demand, usable: Sequence[Item], groups: int) -> dict[tuple[int, Item], int]:
    """Exactly the devices to use, each with its name.

    For domains with units that have to be used up, or with devices that serve
    several names: which device serves what is then a flow, not a free choice.
    """
    forced = [item for item in usable if item.unit is not None]
    others = [item for item in usable if item.unit is None]
    flow = label(demand, capacities(others), capacities(forced), groups)
    # Devices near those that are used anyway come first.
    others.sort(key=lambda item: (min((item.rank_to(f) for f in forced), default=0), item.order))
    labelled: dict[tuple[int, Item], int] = {}
    for item in (*forced, *others):
        left = item.free
        for index in range(len(demand.names)):
            count = min(left, flow.get((item.kind, index), 0))
            if count:
                flow[item.kind, index] -= count
                labelled[index, item] = count
                left -= count
    return labelled


def _group(
    demand: Demand,
    counted: Sequence[int],
    stock: _Stock,
    domains: Sequence[Sequence[Sequence[Item]]],
) -> Built:
    """Take the devices of one group from the tightest domain that has them."""
    for rank, domain in enumerate(domains):
        best: tuple[tuple[int, int, int], Sequence[Item]] | None = None
        for items in domain:
            have = [stock.of(i, items) for i in range(len(demand.names))]
            if any(have[i] < need for i, need in enumerate(demand.per_group)):
                continue
            if demand.size > 1 and items[0].keys[rank][0] == ALONE:
                continue  # several functions of one pool, of unknown place
            lost = sum(damage.loss(have[i], demand.per_group[i]) for i in counted)
            left = sum(have[i] - demand.per_group[i] for i in counted)
            crowd = min(stock.taken.get(item, 0) for item in items)
            if best is None or (lost, left, crowd) < best[0]:
                best = ((lost, left, crowd), items)
        if best is not None:
            return _take(demand, counted, stock, best[1])
    raise AssertionError("the tables promised devices that are not there")


def _take(demand: Demand, counted: Sequence[int], stock: _Stock, items: Sequence[Item]) -> Built:
    """Choose the devices of one group among *items*, which suffice."""
    built: list[Part] = []
    # Devices given one by one are the scarcer ones, so they choose the place.
    order = sorted(
        range(len(demand.names)), key=lambda i: (i not in counted, -demand.per_group[i], i)
    )
    for position, index in enumerate(order):
        need = demand.per_group[index]
        if not position:
            for item, count in _compact(index, need, stock, items, Rank.HOST):
                stock.take(index, item, count)
                built.extend([Part(index, item)] * count)
            continue
        # How far each is from the devices of the other names, together.
        away = {
            item: sum(item.rank_to(part.item) for part in built)
            for item in items
            if stock.free.get((index, item), 0)
        }
        for _ in range(need):
            item = min(
                (item for item in away if stock.free[index, item]),
                key=lambda item: (
                    away[item],
                    stock.taken.get(item, 0),
                    -item.free,
                    item.order,
                ),
            )
            stock.take(index, item, 1)
            built.append(Part(index, item))
    return tuple(built)


def _compact(
    index: int, need: int, stock: _Stock, items: Sequence[Item], rank: Rank
) -> list[tuple[Item, int]]:
    """Take *need* devices from as few and as small domains as possible."""
    if rank is Rank.PIX:
        counts: dict[Item, int] = {}
        for _ in range(need):
            item = min(
                (one for one in items if stock.free.get((index, one), 0) > counts.get(one, 0)),
                key=lambda one: (
                    stock.taken.get(one, 0) + counts.get(one, 0),
                    -one.free,
                    one.order,
                ),
            )
            counts[item] = counts.get(item, 0) + 1
        return list(counts.items())
    below = Rank(rank - 1)
    parts: dict[Key, list[Item]] = {}
    for item in items:
        parts.setdefault(item.keys[below], []).append(item)
    sizes = {key: stock.of(index, part) for key, part in parts.items()}
    taken: list[tuple[Item, int]] = []
    while need:
        enough = [key for key, size in sizes.items() if size >= need]
        # The smallest that suffices; without one, all of the largest.
        key = (
            min(enough, key=lambda key: sizes[key])
            if enough
            else max(sizes, key=lambda key: sizes[key])
        )
        count = min(need, sizes.pop(key))
        taken.extend(_compact(index, count, stock, parts[key], below))
        need -= count
    return taken
