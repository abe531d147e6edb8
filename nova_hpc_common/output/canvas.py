# SPDX-License-Identifier: Apache-2.0
"""Elements of SVG: the parts of all pictures.

Every text counts as a text of others: only this module makes it printable and escapes it. Elements
have no namespace; the root declares it, so they also are elements of a page in HTML.
"""

from __future__ import annotations

import colorsys
import re
from collections.abc import Iterable
from typing import Final
from xml.etree.ElementTree import Element, SubElement, fromstring, register_namespace, tostring

import attrs

from nova_hpc_common.outside.text import printable_text

_NAMESPACE: Final = "http://www.w3.org/2000/svg"
#: Width of a letter, as a part of the size of the font, in the widest of the usual fonts.
_LETTER: Final = 0.57
_BOLD: Final = 0.65
_COLOUR: Final = re.compile(r"#[0-9a-f]{6}")
_STYLED: Final = re.compile(rf"(fill|stroke): ({_COLOUR.pattern});?\s*")
#: Colour of texts, if an element has no other.
INK: Final = "#1c2733"
#: Lightness of white and of black in a dark picture.
_GROUND: Final = 0.09
_LIGHTEST: Final = 0.95


@attrs.frozen
class Block:
    """A part of a picture with a known size, for arranging."""

    width: int
    height: int
    element: Element = attrs.field(eq=False)


def make_svg_root(width: float, height: float, title: str = "", **attributes: object) -> Element:
    """Make the root element of an SVG picture of this size, in pixels.

    :param title: its tooltip, which screen readers read in place of its texts; "" for none.
    """
    size = f"0 0 {width} {height}"
    root = add_element(
        None, "svg", xmlns=_NAMESPACE, width=width, height=height, viewBox=size, **attributes
    )
    if title:
        root.set("role", "img")
        add_tooltip(root, [title])
    return root


def make_plain_root(width: float, height: float, title: str, font_size: int = 11) -> Element:
    """Make the root element of an SVG picture with a white background and dark text.

    :func:`format_svg` gives it its dark form.
    """
    root = make_svg_root(
        width, height, title, font_family="sans-serif", font_size=font_size, fill=INK
    )
    add_element(root, "rect", width=width, height=height, fill="#ffffff")
    return root


def read_figure(text: str) -> Element:
    """Read an SVG picture by matplotlib, with its colours as attributes, for :func:`format_svg`."""
    register_namespace("", _NAMESPACE)
    register_namespace("xlink", "http://www.w3.org/1999/xlink")
    root = fromstring(text)  # nosec B314: written by matplotlib in this process
    root.set("fill", INK)
    for element in root.iter():
        style = element.get("style")
        if style is not None:
            colours = _STYLED.findall(style)
            element.attrib.update(
                (name, INK if colour == "#000000" else colour) for name, colour in colours
            )
            element.set("style", _STYLED.sub("", style))
    return root


def format_svg(root: Element) -> str:
    """Format the text of an SVG file with this picture; colours in attributes get dark forms."""
    rules = "".join(
        f'[{name}="{colour}"]{{{name}:{reverse_lightness(colour)}}}'
        for name in ("fill", "stroke")
        for colour in sorted({element.get(name, "") for element in root.iter()})
        if _COLOUR.fullmatch(colour)
    )
    if rules:
        # The first child may be the title, which has to stay the first.
        style = Element(f"{root.tag.removesuffix('svg')}style")
        style.text = f"@media (prefers-color-scheme:dark){{{rules}}}"
        root.insert(1, style)
    return tostring(root, encoding="unicode") + "\n"


def reverse_lightness(colour: str) -> str:
    """Return the form of a colour, like ``#1c2733``, for a dark picture: as colourful, same hue."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    hue, light, _ = colorsys.rgb_to_hls(*parts)
    light = _LIGHTEST - light * (_LIGHTEST - _GROUND)
    saturation = min(1, (max(parts) - min(parts)) / (1 - abs(2 * light - 1)))
    dark = colorsys.hls_to_rgb(hue, light, saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in dark)


def add_element(
    parent: Element | None, name: str, text: str = "", /, **attributes: object
) -> Element:
    """Create an SVG element, below *parent* if there is one.

    :param attributes: ``class_`` and ``stroke_width`` are written as SVG has them.
    """
    values = {
        key.rstrip("_").replace("_", "-"): printable_text(str(value))
        for key, value in attributes.items()
    }
    element = Element(name, values) if parent is None else SubElement(parent, name, values)
    element.text = printable_text(text) or None
    return element


def add_tooltip(element: Element, lines: Iterable[str]) -> None:
    """Add a tooltip with *lines* to *element*, before its text."""
    title = Element("title")
    title.text = "\n".join(printable_text(line) for line in lines)
    title.tail, element.text = element.text, None
    element.insert(0, title)


def add_text(
    parent: Element,
    text: str,
    x: float,
    y: float,
    classes: str = "ink",
    room: float = 0,
    size: int = 11,
) -> None:
    """Add one line of text. A text that is longer than *room* is cut, and the tooltip has all of
    it.

    :param room: in pixels; 0 for as much as the text takes.
    """
    whole = printable_text(text)
    shown = shorten_to_room(whole, room, size, "b" in classes.split()) if room else whole
    element = add_element(parent, "text", shown, x=_round(x), y=_round(y), class_=classes)
    if shown != whole:
        add_tooltip(element, [text])


def shorten_to_room(text: str, room: float, size: int = 11, bold: bool = False) -> str:
    """Return *text*, cut in the middle if it is wider than *room* pixels."""
    most = max(2, int(room / (size * (_BOLD if bold else _LETTER))))
    if len(text) <= most:
        return text
    tail = most // 3
    return f"{text[: most - tail - 1]}…{text[len(text) - tail :]}"


def estimate_text_width(text: str, size: int = 11, bold: bool = False) -> float:
    """Estimate how wide *text* may be, in pixels."""
    return len(text) * size * (_BOLD if bold else _LETTER)


def place_block(parent: Element, block: Block, x: float, y: float) -> None:
    """Add *block* to *parent* at the position (*x*, *y*)."""
    block.element.set("transform", f"translate({_round(x)},{_round(y)})")
    parent.append(block.element)


def arrange_blocks(blocks: Iterable[Block], width: int, gap: int) -> Block:
    """Arrange blocks in columns of equal width; each block goes to the shortest column."""
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


def _round(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
