# SPDX-License-Identifier: Apache-2.0
"""Sentences about the chosen set, and about the nearest miss.

The texts for users name counts and levels only. The texts for operators may name
NUMA nodes and devices; the caller puts the host's name in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from nova_hpc.placement.model import DeviceMiss, Nvlink, Request, Unmet, WantedCell
from nova_hpc.placement.solver.cells import fits_on_node, lack_of_node, list_seatings
from nova_hpc.placement.solver.counts import ZERO, Cost, build_regions
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import ALONE, Key, Rank, Site, capacities_by_kind
from nova_hpc.placement.solver.spanning import (
    LinkedSets,
    SearchStage,
    iterate_unit_choices,
    split_wide_units,
)
from nova_hpc_common.level import AffinityPolicy, Distance, Level

PLACES: Final = {
    Level.SWITCH: "under one switch",
    Level.ROOT: "under one PCIe root",
    Level.NUMA: "on one NUMA node",
    Level.SOCKET: "on one socket",
    Level.HOST: "on one host",
}


def format_counts(names: Sequence[str], numbers: Sequence[int], joint: str = " and ") -> str:
    """Format counts with their names, such as ``4 gpu and 4 vf``."""
    return joint.join(f"{count} {name}" for name, count in zip(names, numbers, strict=True))


def format_groups(count: int) -> str:
    """Format a number of groups, such as ``1 group`` or ``4 groups``."""
    return f"{count} group" if count == 1 else f"{count} groups"


def explain_chosen_set(
    request: Request,
    demand: Demand,
    site: Site,
    links: LinkedSets,
    level: Level,
    far: Distance,
    misses: int,
) -> str:
    """Explain the level of a device set, for the log and for ``explain``.

    The text also names the requested level if the set misses it.

    :param misses: number of groups that are no whole NVLink set.
    """
    what = format_counts(demand.names, demand.per_group)
    prefix = "" if demand.groups == 1 else f"{format_groups(demand.groups)} of "
    text = f"{prefix}{what} {PLACES[level]} ({far.name})"
    if level > request.level:
        text += f"; not {PLACES[request.level]}: {_explain_level(demand, site, request)}"
    if request.nvlink is not Nvlink.NONE:
        if not misses:
            prefix = "a whole NVLink set" if demand.groups == 1 else "each a whole NVLink set"
            text += f"; {prefix}"
        elif not links.known:
            text += "; no NVLink sets are known here"
        else:
            text += f"; {format_groups(misses)} not a whole NVLink set"
    return text


def nearest_miss_of(request: Request, demand: Demand, site: Site, links: LinkedSets) -> DeviceMiss:
    """Explain for operator and user why a host does not fit *request*, by its nearest miss."""
    nearest = _find_nearest_miss(request, demand, site, links)
    if not site.ignored:
        return nearest
    return attrs.evolve(nearest, operator=f"{nearest.operator}; {_join_first_texts(site.ignored)}")


def _find_nearest_miss(
    request: Request, demand: Demand, site: Site, links: LinkedSets
) -> DeviceMiss:
    plain = SearchStage(Rank.HOST, Rank.HOST)
    caps = capacities_by_kind(site.items)
    have = [demand.serving(caps, i) for i in range(len(demand.names))]
    need = [demand.groups * count for count in demand.per_group]
    short = [i for i in range(len(need)) if have[i] < need[i]]
    if short:
        text = ", ".join(f"{have[i]} {demand.names[i]} free (needs {need[i]})" for i in short)
        extra = ""
        if site.useless:
            extra = (
                f"; {', '.join(site.useless[:4])} cannot be given, because other functions of "
                "the same IOMMU group were not requested"
            )
        lacks = tuple((demand.names[i], have[i], need[i]) for i in short)
        return DeviceMiss(operator=text + extra, user=text, unmet=Unmet.DEVICES, short=lacks)
    if demand.most(caps) < demand.groups:
        text = (
            f"{format_counts(demand.names, have)} free, but some devices serve several "
            f"of these and "
            f"are counted twice (needs {format_counts(demand.names, need)})"
        )
        return DeviceMiss(operator=text, user=text, unmet=Unmet.DEVICES)
    if count_most_groups(demand, site, plain) < demand.groups:
        text = (
            f"{format_counts(demand.names, have)} free, but not in whole IOMMU groups "
            f"(needs {format_counts(demand.names, need)})"
        )
        units = ", ".join(unit.name for unit in site.units[:4])
        operator = f"{text}; groups that are given whole: {units}"
        return DeviceMiss(operator=operator, user=text, unmet=Unmet.DEVICES)
    widest = Rank.of(request.level) if request.policy is AffinityPolicy.REQUIRED else Rank.HOST
    if request.on_cells:
        widest = min(widest, Rank.NUMA)
    unknown = _unknown_miss(request, demand, site, widest)
    if unknown is not None:
        return unknown
    if count_most_groups(demand, site, SearchStage(widest, Rank.HOST)) < demand.groups:
        text = _explain_level(demand, site, request, widest.level)
        return DeviceMiss(operator=text, user=text, unmet=Unmet.TOGETHER)
    if request.nvlink is Nvlink.REQUIRED:
        return _nvlink_miss(request, demand, links)
    if not request.cells:
        text = f"{format_counts(demand.names, have)} free, but in no combination that was found"
        return DeviceMiss(operator=text, user=text, unmet=Unmet.TOGETHER)
    return _cells_miss(request, demand, site, widest)


def _unknown_miss(request: Request, demand: Demand, site: Site, widest: Rank) -> DeviceMiss | None:
    """Return the miss if too few devices have a known NUMA node; None if that is not the cause."""
    if widest is Rank.HOST or (not request.cells and widest < Rank.NUMA):
        return None
    rank = max(widest, Rank.NUMA)
    known_caps = capacities_by_kind(item for item in site.items if item.region(rank) is not None)
    have = [demand.serving(known_caps, i) for i in range(len(demand.names))]
    need = [demand.groups * count for count in demand.per_group]
    if all(number >= least for number, least in zip(have, need, strict=True)):
        return None
    caps = capacities_by_kind(site.items)
    free = [demand.serving(caps, i) for i in range(len(demand.names))]
    text = (
        f"{format_counts(demand.names, free)} free, but only of "
        f"{format_counts(demand.names, have)} is it known "
        f"on which NUMA node they are (needs {format_counts(demand.names, need)})"
    )
    where = f"{text}; nova-hpc doctor on the node shows the cure"
    return DeviceMiss(operator=where, user=text, unmet=Unmet.KNOWN)


def _nvlink_miss(request: Request, demand: Demand, links: LinkedSets) -> DeviceMiss:
    """Return the miss if the devices exist, but not as whole NVLink sets in the right place."""
    if not links.known:
        text = "no NVLink sets are known or wholly free here"
        return DeviceMiss(operator=text, user=text, unmet=Unmet.NVLINK)
    if not links.names:
        text = "none of the requested devices is in an NVLink set"
        return DeviceMiss(operator=text, user=text, unmet=Unmet.NVLINK)
    size = sum(demand.per_group[i] for i in links.names)
    what = format_counts(
        [demand.names[i] for i in links.names], [demand.per_group[i] for i in links.names]
    )
    text = f"{len(links.sets)} whole NVLink sets of {what} free (needs {demand.groups} apart"
    if not links.sets:
        text = (
            f"no whole NVLink set of {size} free (needs {format_groups(demand.groups)} of {what})"
        )
        return DeviceMiss(operator=text, user=text, unmet=Unmet.NVLINK)
    text += f", {PLACES[request.level]}" if request.policy is AffinityPolicy.REQUIRED else ""
    text += ", next to CPUs and memory of the guest)" if request.cells else ")"
    return DeviceMiss(operator=text, user=text, unmet=Unmet.NVLINK)


def count_most_groups(demand: Demand, site: Site, stage: SearchStage) -> int:
    """Return the largest number of groups in domains of the stage's rank, without cells."""
    wide, never = split_wide_units(demand, site, stage)
    closed = never | {unit.name for unit in wide}
    best = 0
    for taken in iterate_unit_choices(demand, wide):
        for tree in build_regions(demand, site, stage, (), taken, closed).values():
            best = max(best, max(tree.table, default=0))
        if best >= demand.groups:
            break
    return best


def _explain_level(demand: Demand, site: Site, request: Request, level: Level | None = None) -> str:
    """Explain why a level cannot be reached, regardless of the guest's cells.

    :param level: the request's level if None.
    """
    level = request.level if level is None else level
    caps = capacities_by_kind(site.items)
    have = [demand.serving(caps, i) for i in range(len(demand.names))]
    place = PLACES[level]
    if demand.groups > 1:
        fit = count_most_groups(demand, site, SearchStage(Rank.of(level), Rank.HOST))
        if fit < demand.groups:
            verb = "fits" if fit == 1 else "fit"
            return (
                f"{format_counts(demand.names, have)} free, but only {format_groups(fit)} of "
                f"{format_counts(demand.names, demand.per_group)} {verb} {place} each "
                f"(needs {format_groups(demand.groups)})"
            )
    elif count_most_groups(demand, site, SearchStage(Rank.of(level), Rank.HOST)) < 1:
        best = _best_domain(demand, site, Rank.of(level))
        if any(number < need for number, need in zip(best, demand.per_group, strict=True)):
            return (
                f"{format_counts(demand.names, have)} free, but at most "
                f"{format_counts(demand.names, best, ' with ')} {place} "
                f"(needs {format_counts(demand.names, demand.per_group, ' with ')})"
                if len(best) > 1
                else f"{format_counts(demand.names, have)} free, but at most {best[0]} {place} "
                f"(needs {demand.per_group[0]})"
            )
        return (
            f"{format_counts(demand.names, have)} free, but {place} not in whole IOMMU groups "
            f"(needs {format_counts(demand.names, demand.per_group)})"
        )
    return "not next to CPUs and memory for every cell of the guest"


def _best_domain(demand: Demand, site: Site, rank: Rank) -> list[int]:
    """Count the devices of each name in the domain that is nearest to one whole group."""
    parts: dict[Key, dict[int, int]] = {}
    for item in site.items:
        caps = parts.setdefault(item.keys[rank], {})
        alone = item.keys[rank][0] == ALONE
        caps[item.kind] = caps.get(item.kind, 0) + (1 if alone else item.free)
    amounts = [
        [demand.serving(caps, i) for i in range(len(demand.names))] for caps in parts.values()
    ]
    return max(
        amounts,
        key=lambda have: (
            sum(min(h, n) for h, n in zip(have, demand.per_group, strict=True)),
            have,
        ),
        default=[0] * len(demand.names),
    )


def _cells_miss(request: Request, demand: Demand, site: Site, widest: Rank) -> DeviceMiss:
    """Return the miss if the devices fit and the guest's NUMA cells do not."""
    cells, nodes = sorted(request.cells, key=lambda cell: cell.id), site.nodes
    need = f"{len(cells)} guest NUMA cell" + ("s" if len(cells) != 1 else "")
    if len(cells) > len(nodes):
        text = f"{need}, but the host has {len(nodes)} NUMA nodes"
        return DeviceMiss(text, f"{need}, but too few NUMA nodes", Unmet.BESIDE)
    anywhere: dict[Key, dict[int, Cost]] = {("host",): {demand.groups: ZERO}}
    if not list_seatings(cells, nodes, Rank.HOST, anywhere, demand.groups, 1):
        where = _list_lacking_nodes(cells, site)
        return DeviceMiss(
            operator=f"no free NUMA node for every guest cell: {_join_first_texts(where)}"
            if where
            else "the guest's cells do not fit on distinct NUMA nodes",
            user=_describe_need_of_cells(cells),
            unmet=Unmet.BESIDE,
        )
    stage = SearchStage(widest, Rank.NUMA if widest <= Rank.NUMA else widest)
    parts = []
    for node in nodes:
        fit = (
            count_most_groups_on_node(demand, site, stage, str(node.id))
            if widest <= Rank.NUMA
            else 0
        )
        short = next(
            (lack_of_node(cell, node) for cell in cells if not fits_on_node(cell, node)), ""
        )
        parts.append(
            f"NUMA node {node.id} has devices for {format_groups(fit)}"
            + (f" but {short}" if short else "")
        )
    most = -(-demand.groups // len(cells))
    wish = (
        f"needs {format_groups(demand.groups)} of {format_counts(demand.names, demand.per_group)}"
    )
    if len(cells) > 1:
        wish += f", spread evenly over {need}, at most {most} each"
    user = (
        f"the devices fit {PLACES[widest.level]}, but not next to free CPUs and memory for "
        f"{need} ({wish})"
    )
    return DeviceMiss(
        operator=f"{_join_first_texts(parts)} ({wish})", user=user, unmet=Unmet.BESIDE
    )


def count_most_groups_on_node(demand: Demand, site: Site, stage: SearchStage, node: str) -> int:
    """Return the largest number of groups that fit on one NUMA node.

    :param node: its number, as text.
    """
    wide, never = split_wide_units(demand, site, stage)
    closed = never | {unit.name for unit in wide}
    best = 0
    for taken in iterate_unit_choices(demand, wide):
        trees = build_regions(demand, site, stage, (), taken, closed)
        tree = trees.get(("numa", node))
        if tree is not None:
            best = max(best, max(tree.table, default=0))
    return best


def _list_lacking_nodes(cells: Sequence[WantedCell], site: Site) -> list[str]:
    texts = []
    for node in site.nodes:
        short = next(
            (lack_of_node(cell, node) for cell in cells if not fits_on_node(cell, node)), ""
        )
        if short:
            texts.append(f"NUMA node {node.id} has {short}")
    return texts


def _join_first_texts(texts: Sequence[str], limit: int = 4) -> str:
    """Join the first *limit* texts in one line; the end counts the others."""
    rest = len(texts) - limit
    return "; ".join(texts[:limit]) + (f"; and {rest} more" if rest > 0 else "")


def _describe_need_of_cells(cells: Sequence[WantedCell]) -> str:
    texts = []
    for cell in cells:
        text = f"{cell.dedicated_cpus} dedicated CPUs"
        if cell.page_kib:
            text += f" and {-(-cell.memory_kib // cell.page_kib)} pages of {cell.page_kib} KiB"
        texts.append(text)
    return f"too few NUMA nodes with {', and with '.join(sorted(set(texts)))} free"
