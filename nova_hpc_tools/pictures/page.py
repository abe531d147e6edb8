# SPDX-License-Identifier: Apache-2.0
"""A picture as one page of HTML, or as one SVG: neither needs a network, a script or a font.

In the page the blocks of a picture flow, so it can be read on a telephone, too. In the SVG they
stand in as many columns as a page has room for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring

import attrs

from nova_hpc_common.output.canvas import (
    Block,
    add_element,
    add_text,
    arrange_blocks,
    estimate_text_width,
    format_svg,
    make_svg_root,
    place_block,
)
from nova_hpc_common.outside.name_lists import cut_after
from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools.pictures import draw_cloud, draw_node
from nova_hpc_tools.pictures.draw_times import TimePicture, draw_times
from nova_hpc_tools.pictures.fragmentation import (
    FitTable,
    tabulate_cloud_sets,
    tabulate_node_sets,
)
from nova_hpc_tools.pictures.looks import FONT, STATE_CLASSES, write_picture_style
from nova_hpc_tools.pictures.model import (
    CloudPicture,
    DeviceTile,
    LeafBox,
    NodePicture,
    PlaceBox,
    TileState,
)

#: Most hosts of a cloud; beyond that number each leaf is drawn only with counts.
MOST_HOSTS: Final = 1500
_MOST_ROWS: Final = 3000
_MOST_PROBLEMS: Final = 100
_GAP: Final = 12
#: Two boxes and the gap between them.
_WIDTH: Final = 2 * draw_cloud.LEAF_WIDTH + _GAP
_STYLE: Final = (
    "*{box-sizing:border-box}"
    f"body{{margin:0;padding:16px;font:14px/1.45 {FONT};background:#fff;color:#1c2733}}"
    "main{max-width:960px;margin:0 auto}"
    "h1{font-size:22px;margin:0 0 4px;overflow-wrap:anywhere}"
    "h2{font-size:16px;margin:22px 0 8px}"
    "h3{font-size:14px;margin:14px 0 6px;overflow-wrap:anywhere}"
    "p{margin:2px 0;color:#566472}"
    "ul.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;padding:0;margin:12px 0}"
    "ul.legend svg{vertical-align:-2px;margin-right:6px}"
    ".blocks{margin-top:12px;display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start}"
    ".blocks>div{max-width:100%;content-visibility:auto}"
    ".blocks svg{display:block;max-width:100%;height:auto}"
    ".wide{overflow-x:auto}"
    ".tables{display:flex;flex-wrap:wrap;gap:0 40px}"
    ".tables section{max-width:100%}"
    "table{border-collapse:collapse;font-size:13px}"
    "th,td{padding:3px 10px;text-align:right;border-bottom:1px solid #d7dde3;white-space:nowrap}"
    "th:first-child,td:first-child,table.names td,table.names th{text-align:left}"
    "th{font-weight:600}"
    "summary{cursor:pointer;font-weight:600;margin:16px 0 6px}"
    "@media (prefers-color-scheme:dark){body{background:#15191e;color:#e8ecf0}p{color:#a3afba}"
    "th,td{border-color:#3a4550}}"
)
_SIGNS: Final = (
    "A square is a device, a letter a server of its host (point at the host), ! withheld, "
    "? unknown; squares that touch are below one switch."
)
#: The browser may load nothing, even if a name in the picture contains a URL.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


@attrs.frozen
class _Sheet:
    """The parts of a picture or page, in their order."""

    title: str
    facts: tuple[str, ...]
    states: tuple[TileState, ...]
    tables: tuple[FitTable, ...]
    note: str
    #: Heading, and the blocks below it.
    parts: tuple[tuple[str, tuple[Block, ...]], ...]
    #: Meaning of the signs in the picture.
    signs: str = ""
    #: Summary, head, rows.
    lists: tuple[tuple[str, tuple[str, ...], Sequence[Sequence[str]]], ...] = ()
    problems: tuple[str, ...] = ()


def draw_node_page(picture: NodePicture) -> str:
    """Draw the HTML page of one node."""
    return _write_page(_sheet_of_node(picture))


def draw_node_svg(picture: NodePicture) -> str:
    """Draw the SVG picture of one node."""
    return _write_svg(_sheet_of_node(picture))


def draw_cloud_page(picture: CloudPicture) -> str:
    """Draw the HTML page of a cloud, or of some leaves."""
    return _write_page(_sheet_of_cloud(picture))


def draw_cloud_svg(picture: CloudPicture) -> str:
    """Draw the SVG picture of a cloud, or of some leaves."""
    return _write_svg(_sheet_of_cloud(picture))


def draw_times_page(picture: TimePicture) -> str:
    """Draw the HTML page of a request over time."""
    return _write_page(_sheet_of_times(picture))


def draw_times_svg(picture: TimePicture) -> str:
    """Draw the SVG picture of a request over time."""
    return _write_svg(_sheet_of_times(picture))


def _sheet_of_times(picture: TimePicture) -> _Sheet:
    return _Sheet(
        title=picture.title,
        facts=picture.facts,
        states=(),
        tables=(),
        note="",
        parts=(("", (draw_times(picture, _WIDTH),)),) if picture.hosts else (),
        problems=picture.problems,
    )


def _sheet_of_node(picture: NodePicture) -> _Sheet:
    states = {tile.state for box in picture.boxes for tile in _iterate_tiles(box)}
    inventory = not states & {TileState.FREE, TileState.USED, TileState.FAULTY}
    servers = picture.servers
    return _Sheet(
        title=picture.name,
        facts=picture.facts,
        states=tuple(state for state in TileState if state in states),
        tables=tabulate_node_sets(picture.largest, empty=inventory),
        note="CPUs and pages do not count here.",
        parts=(("", tuple(draw_node.draw_place_box(box) for box in picture.boxes)),),
        lists=((_count_noun(len(servers), "server"), ("server", "flavor", "devices"), servers),)
        if servers
        else (),
        problems=picture.problems,
    )


def _iterate_tiles(box: PlaceBox) -> Iterable[DeviceTile]:
    yield from box.tiles
    for below in box.boxes:
        yield from _iterate_tiles(below)


def _sheet_of_cloud(picture: CloudPicture) -> _Sheet:
    hosts = picture.hosts
    summary = len(hosts) > MOST_HOSTS
    draw = draw_cloud.draw_leaf_summary if summary else draw_cloud.draw_leaf_box
    leaves: dict[str, list[LeafBox]] = {}
    for leaf in picture.leaves:
        above = " · ".join(f"{level} {name}" for level, name in leaf.path[:-1])
        leaves.setdefault(above, []).append(leaf)
    parts = {above: [draw(leaf) for leaf in below] for above, below in leaves.items()}
    if len(picture.leaves) == 1 and not summary:
        # A box beside which there is no other would leave half of the width empty.
        (above, (only,)) = leaves.popitem()
        words = (above, only.title, draw_cloud.format_leaf_counts(only))
        parts = {" · ".join(filter(None, words)): [*map(draw_cloud.draw_host_tile, only.hosts)]}
    tiles = [tile for host in hosts for row in host.rows for tile in row.tiles]
    states = {tile.state for tile in tiles}
    states |= {TileState.FREE} if any(tile.free for tile in tiles) else set()
    states |= {TileState.USED} if any(tile.servers for tile in tiles) else set()
    lists: list[tuple[str, tuple[str, ...], Sequence[Sequence[str]]]] = []
    if picture.groups:
        rows = [
            (note.group, f"{note.level} {note.domain}", f"{note.members} of {note.announced}")
            for note in picture.groups
        ]
        lists.append((_count_noun(len(rows), "server group"), ("group", "domain", "members"), rows))
    if picture.servers and len(picture.servers) <= _MOST_ROWS:
        lists.append(
            (
                f"{_count_noun(len(picture.servers), 'server')} with devices",
                ("server", "host", "flavor", "devices"),
                picture.servers,
            )
        )
    note = "One server on one host; CPUs and pages do not count here."
    if summary:
        note += f" More than {MOST_HOSTS} hosts: each leaf is drawn in counts."
    return _Sheet(
        title=picture.title,
        facts=picture.facts,
        states=tuple(state for state in TileState if state in states),
        tables=tuple(tabulate_cloud_sets(hosts)),
        note=note,
        parts=tuple((heading, tuple(blocks)) for heading, blocks in parts.items()),
        signs="" if summary else _SIGNS,
        lists=tuple(lists),
        problems=picture.problems,
    )


# --- HTML --------------------------------------------------------------------------------


def _write_page(sheet: _Sheet) -> str:
    html = Element("html", lang="en")
    head = SubElement(html, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": _POLICY})
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    SubElement(head, "meta", {"name": "color-scheme", "content": "light dark"})
    _write(head, "title", f"{sheet.title} - nova-hpc")
    _write(head, "style", _STYLE + write_picture_style())
    main = SubElement(SubElement(html, "body"), "main")
    _write(main, "h1", sheet.title)
    for fact in sheet.facts:
        _write(main, "p", fact)
    _write_legend(main, sheet.states)
    if sheet.signs:
        _write(main, "p", sheet.signs)
    tables = SubElement(main, "div", {"class": "tables"})
    for table in sheet.tables:
        section = SubElement(tables, "section")
        _write(section, "h2", table.title)
        _write_table(section, table.head, table.rows)
    if sheet.tables:
        _write(main, "p", sheet.note)
    for heading, blocks in sheet.parts:
        _write(main, "h3", heading) if heading else None
        flow = SubElement(main, "div", {"class": "blocks"})
        for block in blocks:
            # A browser only lays out the visible blocks, however many there are.
            size = f"contain-intrinsic-size:{block.width}px {block.height}px"
            frame = SubElement(flow, "div", style=size)
            drawing = make_svg_root(block.width, block.height)
            drawing.append(block.element)
            frame.append(drawing)
    for summary, head_row, rows in sheet.lists:
        details = SubElement(main, "details")
        _write(details, "summary", summary)
        _write_table(details, head_row, rows, "names")
    if sheet.problems:
        details = SubElement(main, "details", open="open")
        _write(details, "summary", _count_noun(len(sheet.problems), "problem"))
        items = SubElement(details, "ul")
        for problem in cut_after(sheet.problems, _MOST_PROBLEMS, lambda rest: f"and {rest} more"):
            _write(items, "li", problem)
    return f"<!DOCTYPE html>\n{tostring(html, method='html', encoding='unicode')}\n"


def _write(parent: Element, name: str, text: str) -> Element:
    element = SubElement(parent, name)
    element.text = printable_text(text)
    return element


def _write_legend(parent: Element, states: Iterable[TileState]) -> None:
    items = SubElement(parent, "ul", {"class": "legend"})
    for state in states:
        item = SubElement(items, "li")
        swatch = make_svg_root(14, 14)
        add_element(swatch, "rect", width=14, height=14, rx=3, class_=STATE_CLASSES[state])
        item.append(swatch)
        swatch.tail = state.value


def _write_table(
    parent: Element, head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "sets"
) -> None:
    table = SubElement(SubElement(parent, "div", {"class": "wide"}), "table", {"class": kind})
    line = SubElement(SubElement(table, "thead"), "tr")
    for word in head:
        _write(line, "th", word)
    body = SubElement(table, "tbody")
    for row in rows:
        line = SubElement(body, "tr")
        for cell in row:
            _write(line, "td", cell)


# --- SVG ---------------------------------------------------------------------------------


def _write_svg(sheet: _Sheet) -> str:
    group = add_element(None, "g")
    add_text(group, sheet.title, 0, 14, "ink h", _WIDTH, 14)
    top = 34
    for fact in sheet.facts:
        add_text(group, fact, 0, top, "dim", _WIDTH)
        top += 16
    if sheet.states:
        legend = _draw_svg_legend(sheet.states)
        place_block(group, legend, 0, top)
        top += legend.height + _GAP
    if sheet.signs:
        add_text(group, sheet.signs, 0, top + 6, "dim", _WIDTH)
        top += 16 + _GAP
    for block in map(_draw_svg_table, sheet.tables):
        place_block(group, block, 0, top)
        top += block.height + _GAP
    if sheet.tables:
        add_text(group, sheet.note, 0, top, "dim")
        top += _GAP
    for heading, blocks in sheet.parts:
        if heading:
            add_text(group, heading, 0, top + 14, "ink b", _WIDTH)
            top += 22
        flow = arrange_blocks(blocks, _WIDTH, _GAP)
        place_block(group, flow, 0, top)
        top += flow.height + _GAP
    shown = list(cut_after(sheet.problems, 10, lambda rest: f"and {rest} more"))
    for problem in shown:
        add_text(group, f"problem: {problem}", 0, top + 12, "dim", _WIDTH)
        top += 16
    width, height = _WIDTH + 2 * _GAP, top + 2 * _GAP
    root = make_svg_root(width, height, sheet.title)
    add_element(root, "style", write_picture_style())
    add_element(root, "rect", width=width, height=height, class_="bg")
    place_block(root, Block(_WIDTH, top, group), _GAP, _GAP)
    return format_svg(root)


def _draw_svg_legend(states: Iterable[TileState]) -> Block:
    group = add_element(None, "g")
    left = 0.0
    for state in states:
        add_element(
            group, "rect", x=left, y=0, width=14, height=14, rx=3, class_=STATE_CLASSES[state]
        )
        add_text(group, state.value, left + 20, 11)
        left += 20 + estimate_text_width(state.value) + 18
    return Block(_WIDTH, 14, group)


def _draw_svg_table(table: FitTable) -> Block:
    group = add_element(None, "g")
    add_text(group, table.title, 0, 12, "ink b", _WIDTH)
    lines = (table.head, *table.rows)
    wide = [
        max(estimate_text_width(cell, bold=True) for cell in column) + 18
        for column in zip(*lines, strict=True)
    ]
    for number, line in enumerate(lines):
        right = 0.0
        for column, cell in enumerate(line):
            right += wide[column]
            style = "dim" if number == 0 else "ink"
            x = 0.0 if column == 0 else right
            add_text(group, cell, x, 30 + 16 * number, f"{style} e" if column else style)
    return Block(_WIDTH, 20 + 16 * len(lines), group)


def _count_noun(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
