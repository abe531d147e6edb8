# SPDX-License-Identifier: Apache-2.0
"""Elements of SVG and HTML, and their looks: the parts of all pictures.

Every text counts as a text of others: only this module makes it printable and escapes it. The
colours are Okabe and Ito's, which people with any kind of colour blindness can distinguish
(https://jfly.uni-koeln.de/color/), and colour is never the only sign of anything. There are no
variables of CSS: viewers of SVG outside of browsers do not support them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
from lxml import etree

from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools.pictures.model import TileState

SVG: Final = "http://www.w3.org/2000/svg"
#: Written without a prefix (the types of lxml have no None).
_PREFIXES: Final[dict[Any, str]] = {None: SVG}
#: Width of a letter, as a part of the size of the font, in the widest of the usual fonts.
_LETTER: Final = 0.57
_BOLD: Final = 0.65
FONT: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", Arial, sans-serif'

#: Class of CSS of a state.
STATE_CLASSES: Final[Mapping[TileState, str]] = {
    TileState.FREE: "free",
    TileState.OFFERED: "free",
    TileState.POSSIBLE: "possible",
    TileState.USED: "used",
    TileState.AILING: "ails",
    TileState.WITHHELD: "held",
    TileState.REFUSED: "refused",
    TileState.UNKNOWN: "lost",
    TileState.HOST: "stay",
}
#: Property, and its values for light and dark, of each class.
_COLOURS: Final = (
    (".bg", "fill", "#ffffff", "#15191e"),
    (".ink", "fill", "#1c2733", "#e8ecf0"),
    (".dim", "fill", "#566472", "#a3afba"),
    (".on", "fill", "#ffffff", "#ffffff"),
    (".card", "fill", "#ffffff", "#1d232a"),
    (".card", "stroke", "#c3ccd5", "#3a4550"),
    (".numa", "fill", "#f3f6f9", "#1a2027"),
    (".numa", "stroke", "#b4bfca", "#46525e"),
    (".root", "fill", "#ffffff", "#20272f"),
    (".root", "stroke", "#c3ccd5", "#3f4a55"),
    (".switch", "fill", "#e9eff5", "#2a333d"),
    (".switch", "stroke", "#9fb0c0", "#566473"),
    (".tile", "fill", "#ffffff", "#15191e"),
    (".tile", "stroke", "#c3ccd5", "#46525e"),
    (".free", "fill", "#009e73", "#00a87a"),
    (".possible", "fill", "#7fcdb5", "#3b7f6c"),
    (".used", "fill", "#0072b2", "#2583c4"),
    (".ails", "fill", "#b8578f", "#cc79a7"),
    (".held", "fill", "#d55e00", "#e06c12"),
    (".refused", "fill", "#e69f00", "#c98a00"),
    (".lost", "fill", "#6b7680", "#7f8a94"),
    (".stay", "fill", "#cfd7df", "#4a5560"),
)
_SHAPES: Final = (
    f"text{{font-family:{FONT};font-size:11px}}",
    ".b{font-weight:600}",
    ".h{font-size:14px;font-weight:600}",
    ".s{font-size:10px}",
    ".m{text-anchor:middle}",
    ".e{text-anchor:end}",
    ".numa,.root,.switch,.tile,.card{stroke-width:1}",
)


def write_picture_style() -> str:
    """The rules of CSS of every picture, for light and dark."""
    light = "".join(f"{name}{{{key}:{value}}}" for name, key, value, _ in _COLOURS)
    dark = "".join(f"{name}{{{key}:{value}}}" for name, key, _, value in _COLOURS)
    return "".join(_SHAPES) + light + "@media (prefers-color-scheme:dark){" + dark + "}"


@attrs.frozen
class Block:
    """A part of a picture that has its size."""

    width: int
    height: int
    element: etree._Element = attrs.field(eq=False)


def add_element(
    parent: etree._Element | None, name: str, text: str = "", **attributes: object
) -> etree._Element:
    """Make an element of SVG, below *parent* if there is one.

    :param attributes: ``class_`` and ``stroke_width`` are written as SVG has them.
    """
    values = {
        key.rstrip("_").replace("_", "-"): printable_text(str(value))
        for key, value in attributes.items()
    }
    tag = etree.QName(SVG, name)
    element = etree.Element(tag, nsmap=_PREFIXES) if parent is None else _add(parent, tag)
    for key, value in values.items():
        element.set(key, value)
    if text:
        element.text = printable_text(text)
    return element


def _add(parent: etree._Element, tag: etree.QName) -> etree._Element:
    return etree.SubElement(parent, tag)


def add_tooltip(element: etree._Element, lines: Iterable[str]) -> None:
    """Add a tooltip with *lines* to *element*."""
    title = etree.Element(etree.QName(SVG, "title"))
    title.text = "\n".join(printable_text(line) for line in lines)
    element.insert(0, title)


def add_text(
    parent: etree._Element,
    text: str,
    x: float,
    y: float,
    classes: str = "ink",
    room: float = 0,
    size: int = 11,
) -> None:
    """Write one line; a text that is longer than *room* is cut, and the tooltip has all of it.

    :param room: in pixels; 0 for as much as the text takes.
    """
    shown = printable_text(text)
    if room:
        shown = shorten_to_room(shown, room, size, "b" in classes.split())
    element = add_element(parent, "text", shown, x=_round(x), y=_round(y), class_=classes)
    if room and shown != printable_text(text):
        add_tooltip(element, [text])
        element.text, element[0].tail = None, shown


def shorten_to_room(text: str, room: float, size: int = 11, bold: bool = False) -> str:
    """As much of *text* as fits, with its beginning and its end."""
    most = max(2, int(room / (size * (_BOLD if bold else _LETTER))))
    if len(text) <= most:
        return text
    tail = most // 3
    return f"{text[: most - tail - 1]}…{text[len(text) - tail :]}"


def estimate_text_width(text: str, size: int = 11, bold: bool = False) -> float:
    """How wide *text* may be, in pixels."""
    return len(text) * size * (_BOLD if bold else _LETTER)


def place_block(parent: etree._Element, block: Block, x: float, y: float) -> None:
    """Put a block at its place."""
    block.element.set("transform", f"translate({_round(x)},{_round(y)})")
    parent.append(block.element)


def arrange_blocks(blocks: Iterable[Block], width: int, gap: int) -> Block:
    """Blocks side by side in columns of equal width; each block goes to the shortest column."""
    every = list(blocks)
    group = add_element(None, "g")
    widest = max((block.width for block in every), default=0)
    columns = max(1, (width + gap) // (widest + gap)) if every else 1
    heights = [0] * min(columns, max(1, len(every)))
    for block in every:
        column = heights.index(min(heights))
        place_block(group, block, column * (widest + gap), heights[column])
        heights[column] += block.height + gap
    total = len(heights) * (widest + gap) - gap if every else 0
    return Block(max(total, 0), max(0, max(heights) - gap), group)


def make_svg_root(block: Block, label: str, margin: int = 0, style: bool = False) -> etree._Element:
    """A whole SVG with one block in it.

    :param style: it has its own colours, for it is a file of its own.
    """
    width, height = block.width + 2 * margin, block.height + 2 * margin
    root = add_element(
        None, "svg", width=width, height=height, viewBox=f"0 0 {width} {height}", role="img"
    )
    add_tooltip(root, [label])
    if style:
        add_element(root, "style", write_picture_style())
        add_element(root, "rect", width=width, height=height, class_="bg")
    place_block(root, block, margin, margin)
    return root


def _round(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
