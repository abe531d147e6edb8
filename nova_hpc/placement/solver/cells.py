# SPDX-License-Identifier: Apache-2.0
"""The mapping of guest cells to NUMA nodes with enough free CPUs and hugepages.

Exact, over the nodes in order. Alike cells are interchangeable, so a state counts
how many cells of each sort have a node and how many of them hold one group
more than the others. The best *limit* mappings are kept, not only one, so
that there is an alternative if Nova's own check rejects the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from nova_hpc.placement.model import HostNode, WantedCell
from nova_hpc.placement.solver import counts
from nova_hpc.placement.solver.domains import Key, Rank, node_region

#: Costs of a number of groups in one region.
Tables = Mapping[Key, Mapping[int, counts.Cost]]


@attrs.frozen(order=True)
class CellSeat:
    """One guest cell on one host NUMA node, with the number of its device groups."""

    node: int
    sort: int
    groups: int


@attrs.frozen
class Seating:
    """A placement of all guest cells on host NUMA nodes, and the device groups of each cell."""

    nodes: Mapping[int, int]
    groups: Mapping[int, int]
    #: region -> groups in it
    shares: Mapping[Key, int]
    cost: counts.Cost


def fits_on_node(cell: WantedCell, node: HostNode) -> bool:
    """Whether host node *node* has the free CPUs and pages for *cell*; unknown amounts are not
    checked.
    """
    if cell.host_node is not None:
        return cell.host_node == node.id  # Nova has already claimed it
    if cell.nodes is not None:
        return node.id in cell.nodes
    return not lack_of_node(cell, node)


def lack_of_node(cell: WantedCell, node: HostNode) -> str:
    """Describe the CPUs or pages that host node *node* lacks for *cell*; "" if it lacks none."""
    if node.dedicated_cpus is not None and node.dedicated_cpus < cell.dedicated_cpus:
        return f"{max(node.dedicated_cpus, 0)} free dedicated CPUs (needs {cell.dedicated_cpus})"
    if cell.page_kib and node.pages is not None:
        need = -(-cell.memory_kib // cell.page_kib)
        have = node.pages.get(cell.page_kib, 0)
        if have < need:
            return f"{max(have, 0)} free pages of {cell.page_kib} KiB (needs {need})"
    if cell.nodes is not None and node.id not in cell.nodes:
        return "too few free CPUs or memory pages, or another network, as Nova counts them"
    return ""


def list_seatings(
    cells: Sequence[WantedCell],
    nodes: Sequence[HostNode],
    rank: Rank,
    tables: Tables,
    total: int,
    limit: int,
    appeal: Callable[[HostNode], int] = lambda node: 0,
) -> list[Seating]:
    """List the cheapest *limit* placements of guest cells on host NUMA nodes, best first.

    :param rank: the rank of a region: which groups are local to a cell
    :param tables: for each region the cost of each possible number of groups
    :param total: groups of the server, spread evenly over the cells
    :param appeal: how well a cell sits on a node, if the tables leave that
        open; smaller is better
    """
    order = sorted(cells, key=lambda cell: cell.id)
    if not order:
        key = node_region(HostNode(id=0), Rank.HOST)
        cost = tables.get(key, {}).get(total)
        return [] if cost is None else [Seating({}, {}, {key: total}, cost)]
    base, extra = divmod(total, len(order))
    arranged = sorted(nodes, key=lambda node: node.id)
    # Cells that fit on the same nodes are interchangeable.
    alike: dict[frozenset[int], list[int]] = {}
    for cell in order:
        suited = frozenset(node.id for node in arranged if fits_on_node(cell, node))
        if not suited:
            return []
        alike.setdefault(suited, []).append(cell.id)
    sorts, members = list(alike), list(alike.values())

    places: dict[Key, list[HostNode]] = {key: [] for key in tables}
    for node in arranged:
        places.setdefault(node_region(node, rank), []).append(node)

    # state: (cells seated of each sort, cells that hold one more)
    # -> the best ways: (cost, seats)
    state = tuple[tuple[int, ...], int]
    way = tuple[counts.Cost, tuple[CellSeat, ...]]
    start: dict[state, list[way]] = {((0,) * len(sorts), 0): [(counts.ZERO, ())]}
    for key, inside in sorted(places.items()):
        table = tables.get(key, {0: counts.ZERO})
        ways: dict[tuple[tuple[int, ...], int, int], list[way]] = {
            (seated, more, 0): best_ways for (seated, more), best_ways in start.items()
        }
        for node in inside:
            after = {where: list(best_ways) for where, best_ways in ways.items()}
            for (seated, more, groups_here), best_ways in ways.items():
                for index, sort in enumerate(sorts):
                    if seated[index] == len(members[index]) or node.id not in sort:
                        continue
                    for surplus in (1, 0) if more < extra else (0,):
                        groups = base + surplus
                        if groups_here + groups > total:
                            continue
                        where = (
                            (*seated[:index], seated[index] + 1, *seated[index + 1 :]),
                            more + surplus,
                            groups_here + groups,
                        )
                        seat = CellSeat(node.id, index, groups)
                        price = (0, appeal(node), 0)
                        after.setdefault(where, []).extend(
                            (counts.add_costs(cost, price), (*seats, seat))
                            for cost, seats in best_ways
                        )
            ways = {where: sorted(best_ways)[:limit] for where, best_ways in after.items()}
        start = {}
        for (seated, more, groups_here), best_ways in ways.items():
            if groups_here in table:
                start.setdefault((seated, more), []).extend(
                    (counts.add_costs(cost, table[groups_here]), seats) for cost, seats in best_ways
                )
        start = {where: sorted(best_ways)[:limit] for where, best_ways in start.items()}
    full = (tuple(len(ids) for ids in members), extra)
    region_of = {node.id: key for key, inside in places.items() for node in inside}
    return [_build_seating(cost, seats, members, region_of) for cost, seats in start.get(full, [])]


def _build_seating(
    cost: counts.Cost,
    seats: Sequence[CellSeat],
    members: Sequence[Sequence[int]],
    region_of: Mapping[int, Key],
) -> Seating:
    nodes, groups, shares = dict[int, int](), dict[int, int](), dict[Key, int]()
    waiting = [list(ids) for ids in members]
    for seat in sorted(seats, key=lambda seat: seat.node):
        cell = waiting[seat.sort].pop(0)
        nodes[cell] = seat.node
        groups[cell] = seat.groups
        region = region_of[seat.node]
        shares[region] = shares.get(region, 0) + seat.groups
    return Seating(nodes, groups, shares, cost)
