# SPDX-License-Identifier: Apache-2.0
"""Draws the places and devices of one node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree.ElementTree import Element

from nova_hpc_common.output.canvas import (
    Block,
    add_element,
    add_text,
    add_tooltip,
    estimate_text_width,
    place_block,
)
from nova_hpc_tools.pictures.looks import STATE_CLASSES
from nova_hpc_tools.pictures.model import DeviceTile, PlaceBox, TileState

#: Of a NUMA node: two fit beside each other on a page, and one on a telephone.
BOX_WIDTH: Final = 456
_PAD: Final = 8
_GAP: Final = 6
_TITLE: Final = 20
_BAND: Final = 6
_TILE: Final = 52
_LEAST_TILE: Final = 170
#: States of a node whose servers are unknown.
_OF_INVENTORY: Final = (TileState.OFFERED, TileState.POSSIBLE, TileState.REFUSED)
#: States whose first detail is the reason.
_WITH_REASON: Final = (TileState.WITHHELD, TileState.REFUSED)


def draw_place_box(box: PlaceBox, width: int = BOX_WIDTH) -> Block:
    """Draw a box with its tiles and inner boxes, in this width."""
    group = add_element(None, "g")
    frame = add_element(group, "rect", width=width, rx=5, class_=box.kind)
    title = "ink b" if box.kind == "numa" else "dim"
    add_text(group, box.title, _PAD, 14, title, width - 2 * _PAD)
    inner = width - 2 * _PAD
    top = _TITLE
    if box.tiles:
        tiles = _draw_tile_grid(box.tiles, inner)
        place_block(group, tiles, _PAD, top)
        top += tiles.height + _GAP
    for below in box.boxes:
        block = draw_place_box(below, inner)
        place_block(group, block, _PAD, top)
        top += block.height + _GAP
    if not box.tiles and not box.boxes:
        add_text(group, "no device", _PAD, top + 11, "dim")
        top += 16 + _GAP
    height = top + _PAD - _GAP
    frame.set("height", str(height))
    return Block(width, height, group)


def _draw_tile_grid(tiles: Sequence[DeviceTile], width: int) -> Block:
    group = add_element(None, "g")
    columns = max(1, (width + _GAP) // (_LEAST_TILE + _GAP))
    tile_width = (width - (columns - 1) * _GAP) // columns
    for number, tile in enumerate(tiles):
        x = number % columns * (tile_width + _GAP)
        y = number // columns * (_TILE + _GAP)
        _draw_tile(group, tile, x, y, tile_width)
    rows = -(-len(tiles) // columns)
    return Block(width, rows * (_TILE + _GAP) - _GAP, group)


def _draw_tile(parent: Element, tile: DeviceTile, x: int, y: int, width: int) -> None:
    group = add_element(parent, "g", class_="device", transform=f"translate({x},{y})")
    add_tooltip(group, list_tile_lines(tile))
    add_element(group, "rect", width=width, height=_TILE, rx=4, class_="tile")
    _draw_state_band(group, tile)
    left = _BAND + 7
    room = width - left - 6
    amount = _format_amount(tile)
    if amount:
        add_text(group, amount, width - 6, 15, "ink b e")
    name = tile.role or tile.product
    name_room = room - (estimate_text_width(amount, bold=True) + 6 if amount else 0)
    add_text(group, name, left, 15, "ink b", name_room)
    second = shorten_address(tile.address)
    if tile.role and tile.product:
        second = f"{second}  {tile.product}"
    add_text(group, second, left, 30, "dim", room)
    add_text(group, format_tile_state(tile), left, 45, "ink", room)


def _draw_state_band(group: Element, tile: DeviceTile) -> None:
    """Draw state of a device as a colour band; each of several functions has its own colour."""
    height = _TILE - 2
    part = 0
    if tile.state is TileState.FREE and tile.free < tile.total:
        part = round(height * (tile.total - tile.free) / tile.total)
        used = STATE_CLASSES[TileState.USED]
        add_element(group, "rect", x=1, y=1, width=_BAND, height=part, rx=2, class_=used)
    state = STATE_CLASSES[tile.state]
    add_element(
        group, "rect", x=1, y=1 + part, width=_BAND, height=height - part, rx=2, class_=state
    )


def shorten_address(address: str) -> str:
    """Return a PCI address without the domain ``0000:``."""
    return address.removeprefix("0000:")


def _format_amount(tile: DeviceTile) -> str:
    if tile.total > tile.count:
        return _format_share(tile)
    return f"{tile.count} x" if tile.count > 1 else ""


def _format_share(tile: DeviceTile) -> str:
    word = "" if tile.state in _OF_INVENTORY else " free"
    return f"{tile.free} of {tile.total}{word}"


def format_tile_state(tile: DeviceTile) -> str:
    """Format the state of a device, or the servers that have it."""
    if tile.servers:
        fault = " (faulty)" if tile.state is TileState.FAULTY else ""
        return f"{', '.join(tile.servers)}{fault}"
    if tile.state in _WITH_REASON and tile.details:
        return f"{tile.state.value}: {tile.details[0]}"
    return tile.state.value


def list_tile_lines(tile: DeviceTile) -> Iterator[str]:
    """Yield everything about a device, line by line, for its tooltip."""
    yield " ".join(filter(None, [tile.role, tile.address]))
    if tile.product:
        yield tile.product
    yield tile.state.value + (f": {', '.join(tile.servers)}" if tile.servers else "")
    if tile.total > 1:
        yield _format_share(tile)
    yield from tile.details
