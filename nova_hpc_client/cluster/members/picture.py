# SPDX-License-Identifier: Apache-2.0
"""A cluster as SVG: a box for each domain, and the members in their hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nova_hpc_client.cluster.members.model import Cluster
from nova_hpc_client.cluster.members.neighbours import ClusterDomain, build_domain_tree
from nova_hpc_common.output.canvas import (
    Block,
    add_element,
    format_svg,
    make_plain_root,
    place_block,
)

_SEAT_WIDE, _SEAT_HIGH, _GAP, _TITLE = 96, 22, 8, 18
#: Width in pixels at which a new row of domains begins.
_ROW: Final = 1100
_FILLS: Final = {
    "core": "#ffffff",
    "spine": "#ffffff",
    "block": "#f3f5f8",
    "leaf": "#e2ebf5",
    "nvlink_domain": "#cfe6d8",
    "sub_domain": "#dff0e4",
    "host": "#fdf6e3",
}


def draw_cluster_picture(cluster: Cluster) -> str:
    """Draw the cluster's members in their domains; return the text of the SVG file."""
    body = _arrange_rows([_draw_domain_box(domain) for domain in build_domain_tree(cluster)])
    width, height = body.width + 2 * _GAP, body.height + 2 * _GAP + _TITLE
    root = make_plain_root(width, height, f"Cluster {cluster.name}: who is beside whom")
    add_element(root, "text", cluster.name, x=_GAP, y=_TITLE - 4, font_weight="bold")
    place_block(root, body, _GAP, _TITLE + _GAP)
    return format_svg(root)


def _draw_domain_box(domain: ClusterDomain) -> Block:
    inside = _arrange_rows([_draw_domain_box(inner) for inner in domain.domains])
    width = max(inside.width, _SEAT_WIDE) + 2 * _GAP
    height = _TITLE + inside.height + len(domain.seats) * (_SEAT_HIGH + 2) + _GAP
    title = f"{domain.level.replace('_', ' ')} {_shorten_label(domain.name) or '?'}"
    group = add_element(None, "g")
    add_element(
        group, "rect", width=width, height=height, rx=4, fill=_FILLS[domain.level],
        stroke="#7f8c8d",
    )  # fmt: skip
    add_element(group, "text", title, x=_GAP, y=_TITLE - 5, fill="#555555")
    place_block(group, inside, _GAP, _TITLE)
    for at, seat in enumerate(domain.seats):
        top = _TITLE + inside.height + at * (_SEAT_HIGH + 2)
        colour = "#c0392b" if seat.member.failed else "#2c3e50"
        add_element(
            group, "rect", x=_GAP, y=top, width=_SEAT_WIDE, height=_SEAT_HIGH, rx=3,
            fill="#ffffff", stroke=colour,
        )  # fmt: skip
        label = _shorten_label(seat.member.shown)
        add_element(group, "text", label, x=_GAP + 6, y=top + 15, fill=colour)
    return Block(width, height, group)


def _arrange_rows(blocks: Sequence[Block]) -> Block:
    """Arrange blocks side by side, in rows of limited width."""
    group = add_element(None, "g")
    left = top = high = wide = 0
    for block in blocks:
        if left and left + block.width > _ROW:
            left, top, high = 0, top + high + _GAP, 0
        place_block(group, block, left, top)
        left += block.width + _GAP
        high, wide = max(high, block.height), max(wide, left - _GAP)
    return Block(wide, top + high, group)


def _shorten_label(text: str) -> str:
    return text if len(text) <= 15 else f"{text[:6]}…{text[-8:]}"
