# SPDX-License-Identifier: Apache-2.0
"""Small fabrics, and questions about them, that Hypothesis draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from nova_hpc.cluster.plan import Gang, GangOrder, GangPolicy, plan_gang
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace, Rail
from nova_hpc_tools.fabric.plan_document import build_plan_document

Case = tuple[FabricMap, dict[str, int], Gang]

#: So many ways to deal members are looked at by the reference.
MOST_WAYS = 1500


def planned(fabric: FabricMap, capacity: Mapping[str, int], gang: Gang) -> dict[str, Any]:
    """The planner's answer, as ``nova-hpc explain -f json`` contains it."""
    return build_plan_document(gang, plan_gang(fabric, capacity, gang))


@st.composite
def fabrics(draw: st.DrawFn, most: int = 10) -> FabricMap:
    """A map of up to so many hosts; now and then nobody knows where something is."""
    rarely = st.sampled_from([False] * 9 + [True])
    spines = draw(st.integers(1, 2))
    blocks = [draw(st.integers(0, spines - 1)) for _ in range(draw(st.integers(1, 3)))]
    leaves = [draw(st.integers(0, len(blocks) - 1)) for _ in range(draw(st.integers(1, 5)))]
    has_spines, has_blocks = draw(st.booleans()), draw(st.booleans())
    has_sets, has_parts = draw(st.booleans()), draw(st.booleans())
    places = []
    for number in range(draw(st.integers(1, most))):
        leaf = draw(st.integers(0, len(leaves) - 1))
        block = leaves[leaf]
        nvlink = f"nv{draw(st.integers(0, 3))}" if has_sets and not draw(rarely) else None
        places.append(
            FabricPlace(
                host=f"host{number}",
                nvlink_domain=nvlink,
                sub_domain=f"{nvlink}.{number % 2}" if nvlink and has_parts else None,
                leaf=None if draw(rarely) else f"leaf{leaf}",
                # A block that nobody knows nobody knows for any host of it.
                block=f"block{block}" if has_blocks and block < 2 else None,
                spine=f"spine{blocks[block]}" if has_spines else None,
                rails=tuple(Rail(f"mlx5_{rail}") for rail in range(draw(st.integers(1, 2)))),
            )
        )
    return FabricMap(places=tuple(places))


@st.composite
def cases(draw: st.DrawFn, most: int = 10) -> Case:
    """A fabric, what is free, and a gang that may fit."""
    fabric = draw(fabrics(most))
    capacity, ways = {}, 1
    for host in [*fabric.hosts(), *(["stranger"] if draw(st.booleans()) else [])]:
        free = draw(st.sampled_from([0, 1, 1, 1, 2, 2, 3, 4]))
        if ways * (free + 1) > MOST_WAYS:
            free = 0
        ways *= free + 1
        capacity[host] = free
    total = sum(capacity.values())
    level = draw(st.sampled_from(list(FabricLevel)))
    inside = draw(st.sampled_from([*fabric.domains(FabricLevel.SPINE), *[None] * 4]))
    return (
        fabric,
        capacity,
        Gang(
            members=draw(st.integers(1, max(1, min(total, math.ceil(total * 0.8) + 1)))),
            level=level,
            policy=draw(st.sampled_from(GangPolicy)),
            max_per_host=draw(st.sampled_from([None, None, 1, 2])),
            order=draw(st.sampled_from(GangOrder)),
            rails=draw(st.sampled_from([0, 0, 0, 2])),
            within=None if inside is None else (FabricLevel.SPINE, inside),
        ),
    )
