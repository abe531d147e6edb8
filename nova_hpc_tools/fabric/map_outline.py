# SPDX-License-Identifier: Apache-2.0
"""The outline of a fabric map for drawings, other programs and people."""

from __future__ import annotations

from collections.abc import Mapping

from nova_hpc.fabric.model import FabricLevel, FabricMap


def outline_map(fabric: FabricMap) -> Mapping[str, tuple[tuple[FabricLevel, str], ...]]:
    """Return host -> the known domains of the tree above it, widest first, in the hosts' order.

    A core that was named after the only domain below it adds nothing and is left out.
    """
    below: dict[str, set[tuple[FabricLevel, str] | None]] = {}
    for place in fabric.places:
        if place.core is not None:
            path = place.path
            below.setdefault(place.core, set()).add(path[1] if len(path) > 1 else None)
    only = {core: parts.copy().pop() for core, parts in below.items() if len(parts) == 1}
    again = {core for core, part in only.items() if part is not None and part[1] == core}
    return {
        place.host: place.path[1:] if place.core in again else place.path for place in fabric.places
    }


def find_crossed_leaves(fabric: FabricMap) -> tuple[str, ...]:
    """Return a sentence for each NVLink domain with hosts in more than one leaf. It is allowed."""
    sentences = []
    for name, hosts in fabric.domains(FabricLevel.NVLINK_DOMAIN).items():
        leaves = sorted({place.leaf for place in map(fabric.place, hosts) if place and place.leaf})
        if len(leaves) > 1:
            sentences.append(f"NVLink domain {name!r} crosses leaves: {', '.join(leaves)}")
    return tuple(sentences)
