# SPDX-License-Identifier: Apache-2.0
"""Draws the leaves of a cloud with their hosts, or only with counts if there are many hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from xml.etree.ElementTree import Element

from nova_hpc_common.level import Level
from nova_hpc_common.output.canvas import (
    Block,
    add_element,
    add_text,
    add_tooltip,
    place_block,
)
from nova_hpc_tools.pictures.looks import STATE_CLASSES
from nova_hpc_tools.pictures.model import (
    DeviceTile,
    HostTile,
    LeafBox,
    RoleRow,
    TileState,
)

#: Of a leaf: two fit beside each other on a page, and one on a telephone.
LEAF_WIDTH: Final = 456
_PAD: Final = 8
_GAP: Final = 6
_TITLE: Final = 22
_COLUMNS: Final = 2
HOST_WIDTH: Final = (LEAF_WIDTH - 2 * _PAD - (_COLUMNS - 1) * _GAP) // _COLUMNS
_CELL: Final = 13
#: Between the devices of two switches, and of two NUMA nodes.
_BETWEEN: Final = (1, 4, 9)
_LABEL: Final = 34
_LINE: Final = 15
#: Devices of a role on one host beyond which the row is a bar with counts.
_MOST_CELLS: Final = 16
#: Rows of roles that a host shows; the others are in its tooltip.
_MOST_ROWS: Final = 4


def draw_leaf_box(leaf: LeafBox) -> Block:
    """Draw a leaf of the fabric with its hosts as an SVG group; return it with its size."""
    group = add_element(None, "g", class_="leaf")
    frame = add_element(group, "rect", width=LEAF_WIDTH, rx=5, class_="numa")
    _write_leaf_title(group, leaf)
    top = _TITLE
    for start in range(0, len(leaf.hosts), _COLUMNS):
        blocks = [draw_host_tile(host) for host in leaf.hosts[start : start + _COLUMNS]]
        for column, block in enumerate(blocks):
            place_block(group, block, _PAD + column * (HOST_WIDTH + _GAP), top)
        top += max(block.height for block in blocks) + _GAP
    frame.set("height", str(top + 2))
    return Block(LEAF_WIDTH, top + 2, group)


def _write_leaf_title(group: Element, leaf: LeafBox) -> None:
    words = format_leaf_counts(leaf)
    room = LEAF_WIDTH - 2 * _PAD
    add_text(group, leaf.title, _PAD, 15, "ink b", room * 0.55)
    above = [f"{level} {name}" for level, name in leaf.path]
    element = add_element(group, "text", words, x=LEAF_WIDTH - _PAD, y=15, class_="dim e")
    lines = [", ".join(above) or "the map does not have these hosts"]
    lines += [f"group {note.group}: {note.members} of {note.announced}" for note in leaf.groups]
    add_tooltip(element, lines)


def format_leaf_counts(leaf: LeafBox) -> str:
    """Format the numbers of hosts, groups and members: ``12 hosts · 1 group, 8 members``."""
    words = _count_noun(len(leaf.hosts), "host")
    if leaf.groups:
        members = sum(note.members for note in leaf.groups)
        words += f" · {_count_noun(len(leaf.groups), 'group')}, {_count_noun(members, 'member')}"
    return words


def draw_host_tile(host: HostTile, width: int = HOST_WIDTH) -> Block:
    """Draw one host: its name, a row for each role, and the sets that still fit."""
    group = add_element(None, "g", class_="host")
    add_tooltip(group, list_host_lines(host))
    frame = add_element(group, "rect", width=width, rx=4, class_="card")
    rows = host.rows[:_MOST_ROWS]
    free = "" if not rows else f"{rows[0].free}/{rows[0].total}"
    state = "out" if host.out else free
    add_text(group, state, width - 6, 14, "ink e" if host.out else "dim e")
    add_text(group, host.name, 6, 14, "ink b", width - 60)
    top = 20
    for row in rows:
        _draw_role_row(group, row, host.letters, top, width)
        top += _LINE
    fits = format_largest_sets(host.largest, rows[0].role) if rows else "no device"
    if fits:
        add_text(group, fits, 6, top + 11, "dim", width - 12)
        top += 14
    height = top + 4
    frame.set("height", str(height))
    return Block(width, height, group)


def format_largest_sets(largest: Mapping[str, Mapping[Level, int]], role: str) -> str:
    """Format the largest sets of one role, tightest first: ``fits: switch 2, numa 4, host 8``.

    "" if unknown.
    """
    levels = largest.get(role)
    if not levels:
        return ""
    shown: list[str] = []
    previous = -1
    for level, number in levels.items():
        if number != previous:  # a wider level that adds nothing is left out
            shown.append(f"{level.word} {number}")
        previous = number
    return "fits: " + ", ".join(shown) if any(levels.values()) else "nothing fits"


def _draw_role_row(
    group: Element, row: RoleRow, letters: Mapping[str, str], top: int, width: int
) -> None:
    add_text(group, row.role, 6, top + 11, "dim", _LABEL)
    if len(row.tiles) > _MOST_CELLS:
        draw_state_bar(group, count_tile_states(row.tiles), 6 + _LABEL + 4, top + 1, width - 100)
        add_text(group, f"{row.free}/{row.total}", width - 6, top + 10, "dim e")
        return
    by_name = {name: letter for letter, name in letters.items()}
    room = width - 12 - _LABEL - 4
    x = float(6 + _LABEL + 4)
    gaps = _BETWEEN
    needed = (
        len(row.tiles) * (_CELL + gaps[0])
        + gaps[2] * len(row.places)
        + gaps[1] * sum(len(numa) for numa in row.places)
    )
    cell = _CELL if needed <= room else max(7, _CELL - int((needed - room) / len(row.tiles)) - 1)
    paths: dict[str, list[str]] = {}
    marks: list[tuple[float, str]] = []
    for numa in row.places:
        for switch in numa:
            for tile in switch:
                _add_cell(paths, tile, x, top + 1, cell)
                mark = _mark_of_tile(tile, by_name)
                if mark:
                    marks.append((x + cell / 2, mark))
                x += cell + gaps[0]
            x += gaps[1] - gaps[0]
        x += gaps[2] - gaps[1]
    for state, parts in sorted(paths.items()):
        add_element(group, "path", d="".join(parts), class_=state)
    for at, mark in marks:
        # One text for each: some viewers draw all letters of a text in its first place.
        add_text(group, mark, at, top + 5 + cell / 2, "on m")


def _add_cell(paths: dict[str, list[str]], tile: DeviceTile, x: float, y: int, size: int) -> None:
    """Add a square for a device to the paths; of several functions the free part is drawn as free.

    :param paths: class of the style -> parts of its path; they grow.
    """
    state = STATE_CLASSES[tile.state]
    part = 0
    if tile.total > 1 and 0 < tile.free < tile.total:
        part = min(size - 1, max(1, round(size * tile.free / tile.total)))
        paths.setdefault(STATE_CLASSES[TileState.FREE], []).append(
            f"M{x:g} {y + size - part}h{size}v{part}h-{size}z"
        )
        state = STATE_CLASSES[TileState.USED] if tile.servers else state
    paths.setdefault(state, []).append(f"M{x:g} {y}h{size}v{size - part}h-{size}z")


def _mark_of_tile(tile: DeviceTile, letters: Mapping[str, str]) -> str:
    if tile.state in (TileState.WITHHELD, TileState.REFUSED):
        return "!"
    if tile.state is TileState.UNKNOWN:
        return "?"
    if tile.total > 1 or not tile.servers:
        return ""
    return letters.get(tile.servers[0], "*")


def count_tile_states(tiles: Sequence[DeviceTile]) -> Counter[TileState]:
    """Return state -> number of functions in it, without zero counts."""
    counts: Counter[TileState] = Counter()
    for tile in tiles:
        counts[TileState.FREE] += tile.free
        rest = tile.total - tile.free
        state = tile.state if tile.state is not TileState.FREE else TileState.USED
        counts[state] += rest
    return +counts


def draw_state_bar(
    parent: Element, counts: Mapping[TileState, int], x: int, y: int, width: int
) -> None:
    """Draw a bar of the states, as long as their share; the words are in its tooltip."""
    total = sum(counts.values())
    group = add_element(parent, "g", class_="bar")
    add_tooltip(group, [f"{counts[s]} {s.value}" for s in TileState if counts.get(s)])
    left = float(x)
    for state in TileState:
        if counts.get(state) and total:
            part = width * counts[state] / total
            add_element(
                group, "rect", x=f"{left:.1f}", y=y, width=f"{part:.1f}", height=11,
                class_=STATE_CLASSES[state],
            )  # fmt: skip
            left += part


def list_host_lines(host: HostTile) -> Iterator[str]:
    """Yield everything about a host, line by line, for its tooltip."""
    yield host.name
    if host.out:
        yield f"out of service: {host.out}"
    for row in host.rows:
        counts = count_tile_states(row.tiles)
        words = ", ".join(f"{counts[s]} {s.value}" for s in TileState if counts.get(s))
        yield f"{row.role}: {words}"
        fits = format_largest_sets(host.largest, row.role)
        if fits:
            yield f"  {fits}"
    for letter, name in host.letters.items():
        yield f"{letter} = {name}"
    reasons = Counter(detail for row in host.rows for tile in row.tiles for detail in tile.details)
    for reason, count in reasons.items():
        yield f"{count} x {reason}" if count > 1 else reason
    yield from host.notes


def draw_leaf_summary(leaf: LeafBox) -> Block:
    """Draw a leaf of the fabric as counts: a bar for each role."""
    group = add_element(None, "g", class_="leaf")
    frame = add_element(group, "rect", width=LEAF_WIDTH, rx=5, class_="card")
    _write_leaf_title(group, leaf)
    roles = sorted({row.role for host in leaf.hosts for row in host.rows})
    top = _TITLE
    for role in roles:
        rows = [row for host in leaf.hosts for row in host.rows if row.role == role]
        counts = count_tile_states([tile for row in rows for tile in row.tiles])
        add_text(group, role, _PAD, top + 10, "dim", 56)
        draw_state_bar(group, counts, _PAD + 62, top, 250)
        free, total = sum(row.free for row in rows), sum(row.total for row in rows)
        add_text(group, f"{free} of {total} free", LEAF_WIDTH - _PAD, top + 10, "ink e")
        top += 17
    out = sum(bool(host.out) for host in leaf.hosts)
    if out:
        add_text(group, f"{_count_noun(out, 'host')} out of service", _PAD, top + 10, "dim")
        top += 17
    frame.set("height", str(top + 4))
    return Block(LEAF_WIDTH, top + 4, group)


def _count_noun(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
