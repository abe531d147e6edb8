# SPDX-License-Identifier: Apache-2.0
"""A plan as a picture: the leaves with their hosts, and where the members go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

from nova_hpc.cluster.plan.model import GangPlan
from nova_hpc.cluster.plan.tree import leaf_of, natural_sort_key
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace
from nova_hpc_tools.fabric.map_outline import outline_map

_CELL: Final = 9
_GAP: Final = 2
_PAD: Final = 10
_LINE: Final = 16
#: Hosts beside each other in one leaf.
_ACROSS: Final = 6
#: Leaves beside each other.
_LEAVES: Final = 4
#: Places of one host that are drawn one by one; more are one bar.
_MOST: Final = 8
_MEMBER, _FREE, _BUSY, _FRAME = "#1f6f8b", "#d7e8ee", "#ffffff", "#8a979c"
_STYLE: Final = (
    "text{font-family:sans-serif;font-size:11px;fill:#222}.t{font-size:13px;font-weight:bold}"
)


def draw_plan_picture(fabric: FabricMap, capacity: Mapping[str, int], plan: GangPlan) -> str:
    """The picture, as the text of an SVG file.

    Each host is a row of as many places as the host with most room has: dark for a
    member, light for a place that stays free, empty for what is not free. Leaves with
    members have a dark frame.
    """
    hosts = sorted({*fabric.hosts(), *capacity}, key=natural_sort_key)
    leaves: dict[tuple[bool, str], list[str]] = {}
    for host in hosts:
        leaves.setdefault(leaf_of(fabric.place(host) or FabricPlace(host=host)), []).append(host)
    # Hosts without a leaf are drawn together.
    lost = [host for (has_leaf, _), members in leaves.items() if not has_leaf for host in members]
    outline = outline_map(fabric)
    boxes = [
        (_domains_above_leaf(outline[members[0]]), name, members)
        for (has_leaf, name), members in leaves.items()
        if has_leaf
    ]
    boxes.sort(
        key=lambda box: ([natural_sort_key(name) for name in box[0]], natural_sort_key(box[1]))
    )
    if lost:
        boxes.append(((), "no known leaf", lost))
    places = max([1, *(min(_MOST, fit) for fit in capacity.values())])
    across = _ACROSS * (places * _CELL + _GAP + 4)
    width, top = across + 2 * _PAD, 2 * _LINE + _PAD
    body: list[str] = []
    for start in range(0, len(boxes), _LEAVES):
        row = boxes[start : start + _LEAVES]
        high = max(-(-len(members) // _ACROSS) for _, _, members in row)
        height = high * (_CELL + 5) + _LINE + _PAD + 6
        for number, (above, name, members) in enumerate(row):
            x = _PAD + number * (width + _PAD)
            body += _draw_leaf_box(
                (x, top, width, height), above, name, members, capacity, plan, places
            )
        top += height + _PAD
    total = _PAD + min(len(boxes), _LEAVES) * (width + _PAD)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{top + _LINE + 6}" '
            f'viewBox="0 0 {total} {top + _LINE + 6}">',
            f"<style>{_STYLE}</style>",
            f'<rect width="{total}" height="{top + _LINE + 6}" fill="#fff"/>',
            f'<text class="t" x="{_PAD}" y="{_PAD + _LINE}">{escape(plan.why)}</text>',
            *body,
            *_draw_legend(top + 4),
            "</svg>",
            "",
        ]
    )


def _domains_above_leaf(path: Iterable[tuple[FabricLevel, str]]) -> tuple[str, ...]:
    """The domains of a host's path above its leaf, the widest first."""
    return tuple(name for level, name in path if level is not FabricLevel.LEAF)


def _draw_leaf_box(
    box: tuple[int, int, int, int],
    above: Sequence[str],
    name: str,
    members: Sequence[str],
    capacity: Mapping[str, int],
    plan: GangPlan,
    places: int,
) -> Iterator[str]:
    x, y, width, height = box
    used = sum(plan.hosts.get(host, 0) for host in members)
    frame = f'stroke="{_MEMBER}" stroke-width="2.5"' if used else f'stroke="{_FRAME}"'
    yield f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="none" {frame}/>'
    free = sum(capacity.get(host, 0) for host in members)
    where = f"{'/'.join(above)}: " if above else ""
    title = escape(f"{where}{name}: {used} of {free} free places")
    text = escape(f"{name}  {used}/{free}")
    yield f'<text x="{x + _PAD}" y="{y + _LINE}"><title>{title}</title>{text}</text>'
    for number, host in enumerate(members):
        left = x + _PAD + number % _ACROSS * (places * _CELL + _GAP + 4)
        top = y + _LINE + 8 + number // _ACROSS * (_CELL + 5)
        fit, given = capacity.get(host, 0), plan.hosts.get(host, 0)
        label = escape(f"{host}: {given} members, {fit} places free before")
        yield f"<g><title>{label}</title>"
        for place in range(places):
            # More places than cells: the cells are shares of them.
            share = -(-(place + 1) * max(fit, places) // places) if fit > places else place + 1
            color = _MEMBER if share <= given else _FREE if share <= fit else _BUSY
            yield (
                f'<rect x="{left + place * _CELL}" y="{top}" width="{_CELL - 1}" '
                f'height="{_CELL}" fill="{color}" stroke="{_FRAME}" stroke-width="0.5"/>'
            )
        yield "</g>"


def _draw_legend(top: int) -> Iterator[str]:
    x = _PAD
    for color, text in ((_MEMBER, "a member"), (_FREE, "free"), (_BUSY, "in use")):
        yield (
            f'<rect x="{x}" y="{top}" width="{_CELL}" height="{_CELL}" fill="{color}" '
            f'stroke="{_FRAME}" stroke-width="0.5"/>'
        )
        yield f'<text x="{x + _CELL + 4}" y="{top + _CELL}">{text}</text>'
        x += 90
