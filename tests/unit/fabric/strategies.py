# SPDX-License-Identifier: Apache-2.0
"""Random fabrics."""

from __future__ import annotations

from hypothesis import strategies as st

from nova_hpc.fabric.model import FabricMap, FabricPlace, Rail

#: Domains that nest: leaf number -> block, spine, core by division.
_NEST = 2


@st.composite
def fabrics(draw: st.DrawFn, most: int = 12) -> FabricMap:
    """Maps whose domains nest, with unknown parts, NVLink domains and rails."""
    places = []
    known = {level: draw(st.booleans()) for level in ("block", "spine", "core")}
    for number in range(draw(st.integers(0, most))):
        leaf = draw(st.integers(0, 5))
        places.append(
            FabricPlace(
                f"n{number:02d}",
                nvlink_domain=draw(st.sampled_from([None, "nv0", "nv1", "nv,2"])),
                leaf=f"leaf {leaf}" if draw(st.integers(0, 9)) else None,
                block=f"block{leaf // _NEST}" if known["block"] else None,
                spine=f"spine{leaf // _NEST**2}" if known["spine"] else None,
                core="core" if known["core"] else None,
                rails=tuple(Rail(f"mlx5_{rail}") for rail in range(draw(st.integers(0, 2)))),
            )
        )
    return FabricMap(places, name=draw(st.sampled_from(["fabric", "hall b"])))
