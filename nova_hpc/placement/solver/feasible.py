# SPDX-License-Identifier: Apache-2.0
"""Whether groups fit at all, by counts alone; checked before anything is enumerated.

NVLink sets are chosen outside of the tree search, with one tree of the host for each
choice. If the groups do not fit even as if every device were linked with every other,
no choice helps, and none has to be searched.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from nova_hpc.placement.model import Request
from nova_hpc.placement.solver.cells import list_seatings
from nova_hpc.placement.solver.counts import build_regions
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import IommuUnit, Rank, Site
from nova_hpc.placement.solver.spanning import (
    MAX_CHOICES,
    SearchStage,
    iterate_unit_choices,
    split_wide_units,
)
from nova_hpc_common.level import AffinityPolicy


def list_stages(request: Request) -> list[SearchStage]:
    """List the ways to place the device groups that *request* allows, tightest first.

    A way (stage) is a widest rank for a group, and one for a group with its cell. A guest cell
    counts as a member of its groups: they are on one switch, root or NUMA node only if that is on
    the cell's own node.
    """
    if request.cells:
        ladder = [SearchStage(rank, Rank.NUMA) for rank in list(Rank)[: Rank.NUMA + 1]]
        if not request.on_cells:
            ladder += [SearchStage(Rank.SOCKET, Rank.SOCKET), SearchStage(Rank.HOST, Rank.HOST)]
    else:
        ladder = [SearchStage(rank, Rank.HOST) for rank in Rank]
    if request.policy is AffinityPolicy.REQUIRED:
        ladder = [stage for stage in ladder if stage.rank <= Rank.of(request.level)]
    return ladder


def tightest_rank_of(request: Request, demand: Demand, site: Site) -> Rank | None:
    """Find the tightest domain rank in which all groups and their cells fit, regardless of NVLink.

    :returns: None if they do not fit at all. Never a wider rank than the true one: if there
        are more choices of wide units than are counted, the stage counts as possible.
    """
    for stage in list_stages(request):
        if _fits_in_stage(request, demand, site, stage):
            return stage.rank
    return None


def _fits_in_stage(request: Request, demand: Demand, site: Site, stage: SearchStage) -> bool:
    wide, never = split_wide_units(demand, site, stage)
    closed = never | {unit.name for unit in wide}
    looked_at = 0
    for chosen in iterate_unit_choices(demand, wide):
        trees = build_regions(demand, site, stage, (), chosen, closed)
        tables = {key: tree.table for key, tree in trees.items()}
        if list_seatings(request.cells, site.nodes, stage.region, tables, demand.groups, 1):
            return True
        looked_at += 1
    return looked_at >= MAX_CHOICES


def narrow_to_sets(site: Site, names: Sequence[int], held: Collection[str]) -> Site:
    """Restrict *site* so that only the chosen NVLink sets serve the aliases of NVLink devices.

    A device outside of the sets still serves its other names.

    :param names: indices of the names that NVLink devices serve.
    :param held: ids of the devices that serve them.
    :returns: a changed copy of *site*.
    """
    mask = sum(1 << i for i in names)
    narrowed = {
        item.id: item if item.id in held else attrs.evolve(item, kind=item.kind & ~mask)
        for item in site.items
    }
    units = tuple(
        IommuUnit(unit.name, tuple(narrowed[item.id] for item in unit.items))
        for unit in site.units
        if all(narrowed[item.id].kind for item in unit.items)
    )
    whole = {unit.name for unit in units}
    items = tuple(
        item
        for item in narrowed.values()
        if item.kind and (item.unit is None or item.unit in whole)
    )
    return attrs.evolve(site, items=items, units=units)
