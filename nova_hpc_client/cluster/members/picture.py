# SPDX-License-Identifier: Apache-2.0
"""A cluster as SVG: a box for each domain, and the members in their hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from xml.sax import saxutils

import attrs

from nova_hpc_client.cluster.members.model import Cluster
from nova_hpc_client.cluster.members.neighbours import ClusterDomain, build_domain_tree
from nova_hpc_common.outside.text import printable_text

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


@attrs.frozen
class _ClusterBox:
    width: int
    height: int
    parts: tuple[str, ...]


def draw_cluster_picture(cluster: Cluster) -> str:
    """The text of the SVG file."""
    body = _arrange_rows([_draw_domain_box(domain) for domain in build_domain_tree(cluster)])
    width, height = body.width + 2 * _GAP, body.height + 2 * _GAP + _TITLE
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f"<title>{saxutils.escape(f'Cluster {cluster.name}: who is beside whom')}</title>",
        f'<text x="{_GAP}" y="{_TITLE - 4}" font-weight="bold">'
        f"{saxutils.escape(cluster.name)}</text>",
        f'<g transform="translate({_GAP},{_TITLE + _GAP})">',
        *body.parts,
        "</g>",
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _draw_domain_box(domain: ClusterDomain) -> _ClusterBox:
    inside = _arrange_rows([_draw_domain_box(inner) for inner in domain.domains])
    parts = [f'<g transform="translate({_GAP},{_TITLE})">', *inside.parts, "</g>"]
    bottom = _TITLE + inside.height
    for at, seat in enumerate(domain.seats):
        top = bottom + at * (_SEAT_HIGH + 2)
        colour = "#c0392b" if seat.member.failed else "#2c3e50"
        parts += [
            f'<rect x="{_GAP}" y="{top}" width="{_SEAT_WIDE}" height="{_SEAT_HIGH}" rx="3" '
            f'fill="#ffffff" stroke="{colour}"/>',
            f'<text x="{_GAP + 6}" y="{top + 15}" fill="{colour}">'
            f"{saxutils.escape(_shorten_label(seat.member.shown))}</text>",
        ]
    bottom += len(domain.seats) * (_SEAT_HIGH + 2)
    width = max(inside.width, _SEAT_WIDE) + 2 * _GAP
    height = bottom + _GAP
    title = f"{domain.level.replace('_', ' ')} {_shorten_label(printable_text(domain.name) or '?')}"
    frame = [
        f'<rect width="{width}" height="{height}" rx="4" fill="{_FILLS[domain.level]}" '
        'stroke="#7f8c8d"/>',
        f'<text x="{_GAP}" y="{_TITLE - 5}" fill="#555555">{saxutils.escape(title)}</text>',
    ]
    return _ClusterBox(width, height, (*frame, *parts))


def _arrange_rows(boxes: Sequence[_ClusterBox]) -> _ClusterBox:
    """Arrange boxes side by side, in rows of limited width."""
    parts: list[str] = []
    left = top = high = wide = 0
    for box in boxes:
        if left and left + box.width > _ROW:
            left, top, high = 0, top + high + _GAP, 0
        parts += [f'<g transform="translate({left},{top})">', *box.parts, "</g>"]
        left += box.width + _GAP
        high, wide = max(high, box.height), max(wide, left - _GAP)
    return _ClusterBox(wide, top + high, tuple(parts))


def _shorten_label(text: str) -> str:
    return text if len(text) <= 15 else f"{text[:6]}…{text[-8:]}"
