# SPDX-License-Identifier: Apache-2.0
"""A map as a picture: boxes within boxes, a square for each host, a line for each link."""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Mapping
from typing import Final
from xml.sax.saxutils import escape, quoteattr

import attrs

from nova_hpc.fabric.model import TREE, FabricLevel, FabricMap, FabricPlace, FabricSwitch
from nova_hpc_tools.fabric.map_outline import outline_map
from nova_hpc_tools.fabric.writers.text import summarise_fabric

_HOST: Final = 14
_GAP: Final = 4
_COLUMNS: Final = 6
_CHIP: Final = 12
_LINE: Final = 16
_PAD: Final = 8
_LETTER: Final = 6.6
#: Gap between the switches of a domain and the boxes below it: room for the lines.
_ROOM: Final = 70
_WIDEST: Final = 1240
#: Part of the circle of colours from one NVLink domain to the next.
_GOLDEN: Final = 0.618
_FILLS: Final = {
    FabricLevel.LEAF: "#f4f6fb",
    FabricLevel.BLOCK: "#eaeef7",
    FabricLevel.SPINE: "#fbfbf7",
    FabricLevel.CORE: "#ffffff",
}


@attrs.define
class _DomainBox:
    """A domain, or hosts that are in none."""

    level: FabricLevel | None
    name: str
    hosts: list[FabricPlace] = attrs.Factory(list)
    below: list[_DomainBox] = attrs.Factory(list)
    switches: list[FabricSwitch] = attrs.Factory(list)
    width: float = 0
    height: float = 0


@attrs.frozen
class _Paint:
    """The appearance of hosts."""

    #: Host -> number of members on it.
    members: Mapping[str, int]
    #: NVLink domain -> colour of its hosts' edges.
    nvlink: Mapping[str, str]


def draw_fabric_svg(
    fabric: FabricMap, members: Mapping[str, int] | None = None, title: str = ""
) -> str:
    """The SVG text.

    :param members: host -> how many members of a cluster are on it; those hosts stand out.
    :param title: heading of the picture; "" for the map's name.
    """
    boxes = _outermost_boxes(fabric)
    for box in boxes:
        _measure_box(box)
    rows = _arrange_in_rows(boxes, _WIDEST)
    paint = _Paint(members or {}, _colours_of_domains(fabric))
    lines: list[str] = []
    chips: dict[str, tuple[float, float]] = {}
    y = 1.5 * _LINE
    width = 400.0
    for row in rows:
        x = float(_PAD)
        for box in row:
            lines += _draw_box(box, x, y, paint, chips)
            x += box.width + _PAD
        width = max(width, x)
        y += max(box.height for box in row) + _PAD
    cables = list(_draw_cables(fabric, chips))
    heading = title or f"fabric {fabric.name}: {', '.join(summarise_fabric(fabric))}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{y:.0f}" '
            f'viewBox="0 0 {width:.0f} {y:.0f}" font-family="sans-serif" font-size="11">',
            f"<title>{escape(heading)}</title>",
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{_PAD}" y="{_LINE}" font-size="13">{escape(heading)}</text>',
            *[line for line in lines if not line.startswith("<g")],
            *cables,
            *[line for line in lines if line.startswith("<g")],
            "</svg>",
            "",
        ]
    )


def _outermost_boxes(fabric: FabricMap) -> list[_DomainBox]:
    """The outermost boxes."""
    box_of_path: dict[tuple[tuple[FabricLevel, str], ...], _DomainBox] = {}
    switches: dict[tuple[FabricLevel, str], list[FabricSwitch]] = {}
    for switch in fabric.switches:
        if switch.domain is not None:
            switches.setdefault((switch.level, switch.domain), []).append(switch)
    top: list[_DomainBox] = []
    for place, path in zip(fabric.places, outline_map(fabric).values(), strict=True):
        for depth in range(1, len(path) + 1):
            if path[:depth] not in box_of_path:
                level, name = path[depth - 1]
                box = _DomainBox(level, name, switches=switches.get((level, name), []))
                box_of_path[path[:depth]] = box
                (box_of_path[path[: depth - 1]].below if depth > 1 else top).append(box)
        if path:
            box_of_path[path].hosts.append(place)
    strangers = [place for place in fabric.places if not place.path]
    top.sort(key=lambda box: (TREE.index(box.level) if box.level else 9, box.name))
    for box in box_of_path.values():
        box.below.sort(key=lambda child: child.name)
    if strangers:
        top.append(_DomainBox(None, "place unknown", strangers))
    return top


def _measure_box(box: _DomainBox) -> None:
    for child in box.below:
        _measure_box(child)
    rows = _arrange_in_rows(box.below, _WIDEST - 2 * _PAD)
    inner = max((sum(child.width + _PAD for child in row) for row in rows), default=0.0) - _PAD
    columns = max(1, min(_COLUMNS, len(box.hosts)))
    label = _LETTER * len(box.name) if len(box.name) <= 40 else 40 * _LETTER
    chips = len(box.switches) * (_CHIP + _GAP)
    box.width = 2 * _PAD + max(inner, columns * (_HOST + _GAP), label, chips)
    box.height = _LINE + _PAD + (_CHIP + _GAP if box.switches else 0)
    if box.below:
        box.height += _room_for_links(box) + sum(
            max(child.height for child in row) + _PAD for row in rows
        )
    if box.hosts:
        box.height += -(-len(box.hosts) // columns) * (_HOST + _GAP) + _PAD


def _room_for_links(box: _DomainBox) -> int:
    return _ROOM if box.switches and any(child.switches for child in box.below) else 0


def _arrange_in_rows(boxes: list[_DomainBox], widest: float) -> list[list[_DomainBox]]:
    rows: list[list[_DomainBox]] = []
    x = 0.0
    for box in boxes:
        if not rows or x + box.width > widest:
            rows.append([])
            x = 0
        rows[-1].append(box)
        x += box.width + _PAD
    return rows


def _draw_box(
    box: _DomainBox, x: float, y: float, paint: _Paint, chips: dict[str, tuple[float, float]]
) -> Iterator[str]:
    fill = _FILLS[box.level] if box.level else "#fff4f0"
    word = f"{box.level.word} " if box.level else ""
    yield (
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="4" '
        f'fill="{fill}" stroke="#9aa4b8"/>'
    )
    name = box.name if len(box.name) <= 40 else box.name[:37] + "..."
    yield (
        f'<g><title>{escape(word + box.name)}</title><text x="{x + _PAD:.0f}" '
        f'y="{y + _LINE - 3:.0f}" fill="#333">{escape(name)}</text></g>'
    )
    top = y + _LINE
    if box.switches:
        start = x + (box.width - len(box.switches) * (_CHIP + _GAP)) / 2
        for number, switch in enumerate(sorted(box.switches, key=lambda switch: switch.name)):
            left = start + number * (_CHIP + _GAP)
            chips[switch.name] = (left + _CHIP / 2, top + _CHIP / 2)
            yield (
                f"<g><title>switch {escape(switch.name)}</title>"
                f'<rect x="{left:.0f}" y="{top:.0f}" width="{_CHIP}" height="{_CHIP}" rx="2" '
                'fill="#4a5a7a"/></g>'
            )
        top += _CHIP + _GAP
    if box.below:
        top += _room_for_links(box)
        for row in _arrange_in_rows(box.below, _WIDEST - 2 * _PAD):
            left = x + _PAD
            for child in row:
                yield from _draw_box(child, left, top, paint, chips)
                left += child.width + _PAD
            top += max(child.height for child in row) + _PAD
    columns = max(1, min(_COLUMNS, len(box.hosts)))
    for number, place in enumerate(box.hosts):
        left = x + _PAD + number % columns * (_HOST + _GAP)
        yield _draw_host(place, left, top + _GAP + number // columns * (_HOST + _GAP), paint)


def _draw_host(place: FabricPlace, x: float, y: float, paint: _Paint) -> str:
    count = paint.members.get(place.host, 0)
    title = place.host + (f", NVLink domain {place.nvlink_domain}" if place.nvlink_domain else "")
    title += f", {count} members" if count else ""
    edge = paint.nvlink.get(place.nvlink_domain or "", "#7b869c")
    number = (
        f'<text x="{x + _HOST / 2:.0f}" y="{y + _HOST - 4:.0f}" font-size="9" fill="white" '
        f'text-anchor="middle">{count}</text>'
        if count
        else ""
    )
    return (
        f"<g><title>{escape(title)}</title>"
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{_HOST}" height="{_HOST}" rx="2" '
        f"fill={quoteattr('#c0392b' if count else '#ffffff')} stroke={quoteattr(edge)} "
        f'stroke-width="{2 if place.nvlink_domain else 1}"/>{number}</g>'
    )


def _draw_cables(fabric: FabricMap, chips: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    for link in sorted(fabric.links, key=lambda link: link.dead > 0):
        if link.lower not in chips or link.upper not in chips:
            continue
        (x1, y1), (x2, y2) = chips[link.lower], chips[link.upper]
        title = f"{link.lower} to {link.upper}: {link.count} up, {link.dead} missing"
        style = (
            'stroke="#d62728" stroke-width="1.4"'
            + (' stroke-dasharray="4 3"' if not link.count else "")
            if link.dead
            else 'stroke="#8fa3c7" stroke-width="0.5" stroke-opacity="0.6"'
        )
        yield (
            f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" {style}>'
            f"<title>{escape(title)}</title></line>"
        )


def _colours_of_domains(fabric: FabricMap) -> dict[str, str]:
    """NVLink domain -> its colour; neighbours in the order of the names are far apart."""
    colours = {}
    for number, name in enumerate(fabric.domains(FabricLevel.NVLINK_DOMAIN)):
        parts = colorsys.hls_to_rgb(number * _GOLDEN % 1, 0.42, 0.7)
        red, green, blue = (round(255 * part) for part in parts)
        colours[name] = f"#{red:02x}{green:02x}{blue:02x}"
    return colours
