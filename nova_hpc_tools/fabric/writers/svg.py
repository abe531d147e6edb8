# SPDX-License-Identifier: Apache-2.0
"""A map as a picture: boxes within boxes, a square for each host, a line for each link."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping
from typing import Final
from xml.etree.ElementTree import Element

import attrs

from nova_hpc.fabric.model import TREE, FabricLevel, FabricMap, FabricPlace, FabricSwitch
from nova_hpc_common.output.canvas import (
    add_element,
    add_tooltip,
    estimate_text_width,
    format_svg,
    make_plain_root,
    shorten_to_room,
)
from nova_hpc_tools.fabric.map_outline import outline_map
from nova_hpc_tools.fabric.writers.text import summarise_fabric

_HOST: Final = 14
_GAP: Final = 4
_COLUMNS: Final = 6
_CHIP: Final = 12
_LINE: Final = 16
_PAD: Final = 8
#: Widest name of a domain in pixels; a longer one is cut, and its tooltip has all of it.
_LABEL: Final = 260
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
#: A link with all of its cables, with some of them, and with none.
_WHOLE: Final = {"stroke": "#8fa3c7", "stroke_width": 0.5, "stroke_opacity": 0.6}
_THIN: Final = {"stroke": "#d62728", "stroke_width": 1.4}
_DEAD: Final = {**_THIN, "stroke_dasharray": "4 3"}


@attrs.define
class _DomainBox:
    """The box of a domain in the picture, or of hosts without a domain."""

    level: FabricLevel | None
    name: str
    hosts: list[FabricPlace] = attrs.Factory(list)
    below: list[_DomainBox] = attrs.Factory(list)
    switches: list[FabricSwitch] = attrs.Factory(list)
    width: float = 0
    height: float = 0


@attrs.frozen
class _FabricDrawing:
    """The layers of the picture of a fabric, and the appearance of hosts."""

    #: Host -> number of members on it.
    members: Mapping[str, int]
    #: NVLink domain -> colour of its hosts' edges.
    nvlink: Mapping[str, str]
    #: Below the cables.
    boxes: Element = attrs.Factory(lambda: add_element(None, "g"))
    #: Above the cables: names, switches and hosts.
    signs: Element = attrs.Factory(lambda: add_element(None, "g"))
    #: Switch -> its centre.
    chips: dict[str, tuple[int, int]] = attrs.Factory(dict)


def draw_fabric_svg(fabric: FabricMap, members: Mapping[str, int] | None = None) -> str:
    """Draw *fabric* as an SVG picture.

    :param members: host -> how many members of a cluster are on it; those hosts stand out.
    """
    boxes = _outermost_boxes(fabric)
    for box in boxes:
        _measure_box(box)
    drawing = _FabricDrawing(members or {}, _colours_of_domains(fabric))
    heading = f"{fabric.name}: {', '.join(summarise_fabric(fabric))}"
    y = 1.5 * _LINE
    width = 2 * _PAD + estimate_text_width(heading, 13)
    for row in _arrange_in_rows(boxes, _WIDEST):
        x = float(_PAD)
        for box in row:
            _draw_box(box, x, y, drawing)
            x += box.width + _PAD
        width = max(width, x)
        y += max(box.height for box in row) + _PAD
    root = make_plain_root(round(width), round(y), heading)
    add_element(root, "text", heading, x=_PAD, y=_LINE, font_size=13)
    root.append(drawing.boxes)
    _draw_cables(root, fabric, drawing.chips)
    root.append(drawing.signs)
    return format_svg(root)


def _outermost_boxes(fabric: FabricMap) -> list[_DomainBox]:
    """Build the boxes of the picture, nested like the domains; return the outermost ones."""
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
    label = min(_LABEL, estimate_text_width(box.name))
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


def _draw_box(box: _DomainBox, x: float, y: float, drawing: _FabricDrawing) -> None:
    fill = _FILLS[box.level] if box.level else "#fff4f0"
    word = f"{box.level.word} " if box.level else ""
    frame = _draw_rect(drawing.boxes, x, y, box.width, box.height, rx=4, fill=fill)
    frame.set("stroke", "#9aa4b8")
    chips_high = _CHIP + _GAP if box.switches else 0
    # Cables reach a leaf from above and leave others below, so they cross no name.
    name_top, chips_top = (y, y + _LINE) if box.below else (y + chips_high, y + _GAP)
    name = shorten_to_room(box.name, _LABEL)
    label = add_element(
        drawing.signs, "text", name, x=round(x + _PAD), y=round(name_top + _LINE - 3)
    )
    add_tooltip(label, [word + box.name])
    start = x + (box.width - len(box.switches) * (_CHIP + _GAP)) / 2
    for number, switch in enumerate(sorted(box.switches, key=lambda switch: switch.name)):
        left = start + number * (_CHIP + _GAP)
        drawing.chips[switch.name] = round(left + _CHIP / 2), round(chips_top + _CHIP / 2)
        chip = _draw_rect(drawing.signs, left, chips_top, _CHIP, _CHIP, rx=2, fill="#4a5a7a")
        add_tooltip(chip, [f"switch {switch.name}"])
    top = y + _LINE + chips_high
    if box.below:
        top += _room_for_links(box)
        for row in _arrange_in_rows(box.below, _WIDEST - 2 * _PAD):
            left = x + _PAD
            for child in row:
                _draw_box(child, left, top, drawing)
                left += child.width + _PAD
            top += max(child.height for child in row) + _PAD
    columns = max(1, min(_COLUMNS, len(box.hosts)))
    for number, place in enumerate(box.hosts):
        left = x + _PAD + number % columns * (_HOST + _GAP)
        _draw_host(place, left, top + _GAP + number // columns * (_HOST + _GAP), drawing)


def _draw_host(place: FabricPlace, x: float, y: float, drawing: _FabricDrawing) -> None:
    count = drawing.members.get(place.host, 0)
    title = place.host + (f", NVLink domain {place.nvlink_domain}" if place.nvlink_domain else "")
    title += f", {count} members" if count else ""
    group = add_element(drawing.signs, "g")
    add_tooltip(group, [title])
    square = _draw_rect(group, x, y, _HOST, _HOST, rx=2, fill="#c0392b" if count else "#ffffff")
    square.set("stroke", drawing.nvlink.get(place.nvlink_domain or "", "#7b869c"))
    square.set("stroke-width", "2" if place.nvlink_domain else "1")
    if count:
        add_element(
            group, "text", str(count), x=round(x + _HOST / 2), y=round(y + _HOST - 4),
            font_size=11, fill="#ffffff", text_anchor="middle",
        )  # fmt: skip


def _draw_rect(
    parent: Element, x: float, y: float, width: float, height: float, **attributes: object
) -> Element:
    return add_element(
        parent, "rect", x=round(x), y=round(y), width=round(width), height=round(height),
        **attributes,
    )  # fmt: skip


def _draw_cables(root: Element, fabric: FabricMap, chips: Mapping[str, tuple[int, int]]) -> None:
    for link in sorted(fabric.links, key=lambda link: link.dead > 0):
        if link.lower not in chips or link.upper not in chips:
            continue
        (x1, y1), (x2, y2) = chips[link.lower], chips[link.upper]
        style = _WHOLE if not link.dead else _THIN if link.count else _DEAD
        line = add_element(root, "line", x1=x1, y1=y1, x2=x2, y2=y2, **style)
        add_tooltip(line, [f"{link.lower} to {link.upper}: {link.count} up, {link.dead} missing"])


def _colours_of_domains(fabric: FabricMap) -> dict[str, str]:
    """Return NVLink domain -> its colour; neighbours in the order of the names are far apart."""
    colours = {}
    for number, name in enumerate(fabric.domains(FabricLevel.NVLINK_DOMAIN)):
        parts = colorsys.hls_to_rgb(number * _GOLDEN % 1, 0.42, 0.7)
        red, green, blue = (round(255 * part) for part in parts)
        colours[name] = f"#{red:02x}{green:02x}{blue:02x}"
    return colours
