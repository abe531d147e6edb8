# SPDX-License-Identifier: Apache-2.0
"""Sentences: what was chosen, and the nearest miss.

The texts for users name counts and levels only. Those for operators may name
NUMA nodes and devices; the caller puts the host's name in front.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from nova_hpc.placement.model import Cell, Miss, Nvlink, Policy, Request, Unmet
from nova_hpc.placement.solver.cells import fits, lacks, seatings
from nova_hpc.placement.solver.counts import ZERO, Cost, regions
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import ALONE, Key, Rank, Site, capacities
from nova_hpc.placement.solver.spanning import Links, Stage, choices, wide_units
from nova_hpc.topology.level import Distance, Level

PLACES: Final = {
    Level.SWITCH: "under one switch",
    Level.ROOT: "under one PCIe root",
    Level.NUMA: "on one NUMA node",
    Level.SOCKET: "on one socket",
    Level.HOST: "on one host",
}


def counts(names: Sequence[str], numbers: Sequence[int], joint: str = " and ") -> str:
    """E.g. ``4 gpu and 4 vf``."""
    return joint.join(f"{count} {name}" for name, count in zip(names, numbers, strict=True))


def groups(count: int) -> str:
    """E.g. ``1 group``, ``4 groups``."""
    return f"{count} group" if count == 1 else f"{count} groups"


def chosen(
    request: Request,
    demand: Demand,
    site: Site,
    links: Links,
    level: Level,
    far: Distance,
    misses: int,
) -> str:
    """Why a set is what it is."""
    what = counts(demand.names, demand.per_group)
    each = "" if demand.groups == 1 else f"{groups(demand.groups)} of "
    text = f"{each}{what} {PLACES[level]} ({far.name})"
    if level > request.level:
        text += f"; not {PLACES[request.level]}: {_level_text(demand, site, request)}"
    if request.nvlink is not Nvlink.NONE:
        if not misses:
            each = "a whole NVLink set" if demand.groups == 1 else "each a whole NVLink set"
            text += f"; {each}"
        elif not links.known:
            text += "; no NVLink sets are known here"
        else:
            text += f"; {groups(misses)} not a whole NVLink set"
    return text


def miss(request: Request, demand: Demand, site: Site, links: Links) -> Miss:
    """The nearest that the host comes to *request*, which it does not fit."""
    found = _miss(request, demand, site, links)
    if not site.ignored:
        return found
    return attrs.evolve(found, operator=f"{found.operator}; {_some(site.ignored)}")


def _miss(request: Request, demand: Demand, site: Site, links: Links) -> Miss:
    plain = Stage(Rank.HOST, Rank.HOST)
    caps = capacities(site.items)
    have = [demand.serving(caps, i) for i in range(len(demand.names))]
    need = [demand.groups * count for count in demand.per_group]
    short = [i for i in range(len(need)) if have[i] < need[i]]
    if short:
        text = ", ".join(f"{have[i]} {demand.names[i]} free (needs {need[i]})" for i in short)
        extra = ""
        if site.useless:
            extra = (
                f"; {', '.join(site.useless[:4])} can not be given, because other functions of "
                "the same IOMMU group were not asked for"
            )
        lacks = tuple((demand.names[i], have[i], need[i]) for i in short)
        return Miss(operator=text + extra, user=text, unmet=Unmet.DEVICES, short=lacks)
    if demand.most(caps) < demand.groups:
        text = (
            f"{counts(demand.names, have)} free, but some devices serve several of these and "
            f"are counted twice (needs {counts(demand.names, need)})"
        )
        return Miss(operator=text, user=text, unmet=Unmet.DEVICES)
    if most_groups(demand, site, plain) < demand.groups:
        text = (
            f"{counts(demand.names, have)} free, but not in whole IOMMU groups "
            f"(needs {counts(demand.names, need)})"
        )
        units = ", ".join(unit.name for unit in site.units[:4])
        operator = f"{text}; groups that are given whole: {units}"
        return Miss(operator=operator, user=text, unmet=Unmet.DEVICES)
    widest = Rank.of(request.level) if request.policy is Policy.REQUIRED else Rank.HOST
    if request.on_cells:
        widest = min(widest, Rank.NUMA)
    unknown = _unknown_miss(request, demand, site, widest)
    if unknown is not None:
        return unknown
    if most_groups(demand, site, Stage(widest, Rank.HOST)) < demand.groups:
        text = _level_text(demand, site, request, widest.level)
        return Miss(operator=text, user=text, unmet=Unmet.TOGETHER)
    if request.nvlink is Nvlink.REQUIRED:
        return _nvlink_miss(request, demand, links)
    if not request.cells:
        text = f"{counts(demand.names, have)} free, but in no combination that was found"
        return Miss(operator=text, user=text, unmet=Unmet.TOGETHER)
    return _cells_miss(request, demand, site, widest)


def _unknown_miss(request: Request, demand: Demand, site: Site, widest: Rank) -> Miss | None:
    """Too few of the devices say on which NUMA node they are; None: it is not that."""
    if widest is Rank.HOST or (not request.cells and widest < Rank.NUMA):
        return None
    rank = max(widest, Rank.NUMA)
    known = capacities(each for each in site.items if each.region(rank) is not None)
    have = [demand.serving(known, i) for i in range(len(demand.names))]
    need = [demand.groups * count for count in demand.per_group]
    if all(number >= least for number, least in zip(have, need, strict=True)):
        return None
    caps = capacities(site.items)
    free = [demand.serving(caps, i) for i in range(len(demand.names))]
    text = (
        f"{counts(demand.names, free)} free, but only of {counts(demand.names, have)} is it known "
        f"on which NUMA node they are (needs {counts(demand.names, need)})"
    )
    where = f"{text}; nova-hpc doctor on the node says what helps"
    return Miss(operator=where, user=text, unmet=Unmet.KNOWN)


def _nvlink_miss(request: Request, demand: Demand, links: Links) -> Miss:
    """The devices are there, but not as whole NVLink sets in the right place."""
    if not links.known:
        text = "no NVLink sets are known or wholly free here"
        return Miss(operator=text, user=text, unmet=Unmet.NVLINK)
    if not links.names:
        text = "none of the devices asked for is in an NVLink set"
        return Miss(operator=text, user=text, unmet=Unmet.NVLINK)
    size = sum(demand.per_group[i] for i in links.names)
    what = counts(
        [demand.names[i] for i in links.names], [demand.per_group[i] for i in links.names]
    )
    text = f"{len(links.sets)} whole NVLink sets of {what} free (needs {demand.groups} apart"
    if not links.sets:
        text = f"no whole NVLink set of {size} free (needs {groups(demand.groups)} of {what})"
        return Miss(operator=text, user=text, unmet=Unmet.NVLINK)
    text += f", {PLACES[request.level]}" if request.policy is Policy.REQUIRED else ""
    text += ", next to CPUs and memory of the guest)" if request.cells else ")"
    return Miss(operator=text, user=text, unmet=Unmet.NVLINK)


def most_groups(demand: Demand, site: Site, stage: Stage) -> int:
    """How many groups fit in domains of the stage's rank, without cells."""
    wide, never = wide_units(demand, site, stage)
    closed = never | {unit.name for unit in wide}
    best = 0
    for taken in choices(demand, wide):
        for tree in regions(demand, site, stage, (), taken, closed).values():
            best = max(best, max(tree.table, default=0))
        if best >= demand.groups:
            break
    return best


def _level_text(demand: Demand, site: Site, request: Request, level: Level | None = None) -> str:
    """Why a level can not be reached, without a look at the cells."""
    level = request.level if level is None else level
    caps = capacities(site.items)
    have = [demand.serving(caps, i) for i in range(len(demand.names))]
    place = PLACES[level]
    if demand.groups > 1:
        fit = most_groups(demand, site, Stage(Rank.of(level), Rank.HOST))
        if fit < demand.groups:
            verb = "fits" if fit == 1 else "fit"
            return (
                f"{counts(demand.names, have)} free, but only {groups(fit)} of "
                f"{counts(demand.names, demand.per_group)} {verb} {place} each "
                f"(needs {groups(demand.groups)})"
            )
    elif most_groups(demand, site, Stage(Rank.of(level), Rank.HOST)) < 1:
        best = _best_domain(demand, site, Rank.of(level))
        if any(number < need for number, need in zip(best, demand.per_group, strict=True)):
            return (
                f"{counts(demand.names, have)} free, but at most "
                f"{counts(demand.names, best, ' with ')} {place} "
                f"(needs {counts(demand.names, demand.per_group, ' with ')})"
                if len(best) > 1
                else f"{counts(demand.names, have)} free, but at most {best[0]} {place} "
                f"(needs {demand.per_group[0]})"
            )
        return (
            f"{counts(demand.names, have)} free, but {place} not in whole IOMMU groups "
            f"(needs {counts(demand.names, demand.per_group)})"
        )
    return "not next to CPUs and memory for every cell of the guest"


def _best_domain(demand: Demand, site: Site, rank: Rank) -> list[int]:
    """What the domain that comes nearest to one whole group has of each name."""
    parts: dict[Key, dict[int, int]] = {}
    for item in site.items:
        caps = parts.setdefault(item.keys[rank], {})
        alone = item.keys[rank][0] == ALONE
        caps[item.kind] = caps.get(item.kind, 0) + (1 if alone else item.free)
    found = [[demand.serving(caps, i) for i in range(len(demand.names))] for caps in parts.values()]
    return max(
        found,
        key=lambda have: (
            sum(min(h, n) for h, n in zip(have, demand.per_group, strict=True)),
            have,
        ),
        default=[0] * len(demand.names),
    )


def _cells_miss(request: Request, demand: Demand, site: Site, widest: Rank) -> Miss:
    """The devices fit, the guest's cells do not."""
    cells, nodes = sorted(request.cells, key=lambda cell: cell.id), site.nodes
    need = f"{len(cells)} guest NUMA cell" + ("s" if len(cells) != 1 else "")
    if len(cells) > len(nodes):
        text = f"{need}, but the host has {len(nodes)} NUMA nodes"
        return Miss(text, f"{need}, but too few NUMA nodes", Unmet.BESIDE)
    anywhere: dict[Key, dict[int, Cost]] = {("host",): {demand.groups: ZERO}}
    if not seatings(cells, nodes, Rank.HOST, anywhere, demand.groups, 1):
        where = _lacking(cells, site)
        return Miss(
            operator=f"no free NUMA node for every guest cell: {_some(where)}"
            if where
            else "the guest's cells do not fit on distinct NUMA nodes",
            user=_need_of_cells(cells),
            unmet=Unmet.BESIDE,
        )
    stage = Stage(widest, Rank.NUMA if widest <= Rank.NUMA else widest)
    parts = []
    for node in nodes:
        fit = most_groups_on(demand, site, stage, str(node.id)) if widest <= Rank.NUMA else 0
        short = next((lacks(cell, node) for cell in cells if not fits(cell, node)), "")
        parts.append(
            f"NUMA node {node.id} has devices for {groups(fit)}"
            + (f" but {short}" if short else "")
        )
    most = -(-demand.groups // len(cells))
    wish = f"needs {groups(demand.groups)} of {counts(demand.names, demand.per_group)}"
    if len(cells) > 1:
        wish += f", spread evenly over {need}, at most {most} each"
    user = (
        f"the devices fit {PLACES[widest.level]}, but not next to free CPUs and memory for "
        f"{need} ({wish})"
    )
    return Miss(operator=f"{_some(parts)} ({wish})", user=user, unmet=Unmet.BESIDE)


def most_groups_on(demand: Demand, site: Site, stage: Stage, node: str) -> int:
    """How many groups fit on one NUMA node."""
    wide, never = wide_units(demand, site, stage)
    closed = never | {unit.name for unit in wide}
    best = 0
    for taken in choices(demand, wide):
        trees = regions(demand, site, stage, (), taken, closed)
        tree = trees.get(("numa", node))
        if tree is not None:
            best = max(best, max(tree.table, default=0))
    return best


def _lacking(cells: Sequence[Cell], site: Site) -> list[str]:
    texts = []
    for node in site.nodes:
        short = next((lacks(cell, node) for cell in cells if not fits(cell, node)), "")
        if short:
            texts.append(f"NUMA node {node.id} has {short}")
    return texts


def _some(texts: Sequence[str], limit: int = 4) -> str:
    """The texts in one line; of many only the first."""
    rest = len(texts) - limit
    return "; ".join(texts[:limit]) + (f"; and {rest} more" if rest > 0 else "")


def _need_of_cells(cells: Sequence[Cell]) -> str:
    texts = []
    for cell in cells:
        text = f"{cell.dedicated_cpus} dedicated CPUs"
        if cell.page_kib:
            text += f" and {-(-cell.memory_kib // cell.page_kib)} pages of {cell.page_kib} KiB"
        texts.append(text)
    return f"too few NUMA nodes with {', and with '.join(sorted(set(texts)))} free"
