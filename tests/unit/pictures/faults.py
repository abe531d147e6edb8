# SPDX-License-Identifier: Apache-2.0
"""Faults of a picture that a reader would see: small texts, colours of one scheme, bad contrast.

The part of CSS that the pictures use is read here, as no library of the tests reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import attrs
from lxml import etree

LEAST_SIZE = 11
#: Ratio of luminances, as for large letters in WCAG 2.2; letters in squares are small and bold.
LEAST_CONTRAST = 3.0
_SVG = "{http://www.w3.org/2000/svg}"
_DARK = re.compile(r"@media\s*\(prefers-color-scheme:\s*dark\)\s*\{((?:[^{}]*\{[^{}]*\})*)\s*\}")
_OTHER = re.compile(r"@[^{]+\{(?:[^{}]*\{[^{}]*\})*\s*\}")
_RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
_PART = re.compile(r"(\*|^[a-zA-Z]+|\.[\w-]+|:root|\[[\w-]+\*?=\"[^\"]*\"\])")
_COLOUR = re.compile(r"#[0-9a-f]{6}")
_NUMBER = re.compile(r"-?\d*\.?\d+(?:e-?\d+)?")
_SHAPES = ("rect", "path", "line", "circle", "ellipse", "polygon", "polyline", "text", "use")
_NONE = ("none", "transparent")


@attrs.frozen
class _Rule:
    parts: tuple[str, ...]
    values: Mapping[str, str]
    dark: bool
    rank: tuple[int, int, int]


@attrs.frozen
class _Value:
    text: str
    #: Whether dark pages have a value of their own.
    both: bool


class Sheet:
    """A picture with the rules of its style."""

    def __init__(self, text: str) -> None:
        self.root = etree.fromstring(text.encode())
        style = "".join(each.text or "" for each in self.root.iter(f"{_SVG}style"))
        style = re.sub(r"/\*.*?\*/", "", style, flags=re.DOTALL)
        self.dark = "".join(_DARK.findall(style))
        self._rules = sorted(
            (*_read_rules(_OTHER.sub("", style), False), *_read_rules(self.dark, True)),
            key=lambda rule: rule.rank,
        )

    def value_of(self, element: etree._Element, name: str, dark: bool) -> _Value | None:
        """The value of a property, from the element or from those around it."""
        at: etree._Element | None = element
        while at is not None:
            found = self._own_value_of(at, name, dark)
            if found is not None and found.text != "inherit":
                return found
            at = at.getparent()
        return None

    def _own_value_of(self, element: etree._Element, name: str, dark: bool) -> _Value | None:
        inline = _read_values(element.get("style", ""))
        if name in inline:
            return _Value(inline[name], both=inline[name] in _NONE)
        rule = next(
            (
                rule
                for rule in reversed(self._rules)
                if name in rule.values and rule.dark <= dark and _matches(element, rule.parts)
            ),
            None,
        )
        if rule is None:
            text = element.get(name)
            return None if text is None else _Value(text, both=text in _NONE)
        text = rule.values[name]
        variable = re.fullmatch(r"var\((--[\w-]+),\s*([^)]+)\)", text)
        if variable is None:
            return _Value(text, both=rule.dark or text in _NONE)
        dark_root = self._own_value_of(self.root, variable[1], dark) if dark else None
        return _Value(dark_root.text if dark_root else variable[2], both=dark_root is not None)


def list_faults(text: str) -> list[str]:
    """The faults of a picture that readers would see, one line each."""
    sheet = Sheet(text)
    faults: list[str] = []
    # A picture of a terminal is dark on each page, and takes no colour from it.
    dark_alone = _luminance(_ground_of(sheet)) < 0.05
    if not sheet.dark and not dark_alone:
        faults.append("no style for dark pages")
    scale = _scale_of(sheet.root)
    for dark in (False, True):
        painted: list[tuple[tuple[float, float, float, float], str]] = []
        for element, x, y in _iterate_shapes(sheet.root):
            kind = etree.QName(element).localname
            words = f"{kind} {''.join(element.itertext()).strip()[:30]!r}"
            for name in ("fill", "stroke"):
                value = sheet.value_of(element, name, dark)
                if value is None and name == "fill" and kind not in ("line", "use"):
                    faults.append(f"{words}: black, as it has no colour")
                elif value is not None and dark and not value.both and not dark_alone:
                    faults.append(f"{words}: {name} {value.text} has no form for dark pages")
            fill = sheet.value_of(element, "fill", dark)
            colour = fill.text if fill else "#000000"
            if kind != "text":
                if _COLOUR.fullmatch(colour):
                    painted += [(box, colour) for box in _boxes_of(element, x, y)]
                continue
            if " " in element.get("x", ""):
                faults.append(f"{words}: places of letters, which not every viewer knows")
                continue
            if not _COLOUR.fullmatch(colour):
                faults.append(f"{words}: {colour} is no #rrggbb")
                continue
            size = _size_of(sheet, element) * scale
            if size < LEAST_SIZE:
                faults.append(f"{words}: {size:.3g} px")
            at = (x + _number(element, "x"), y + _number(element, "y") - size / scale / 3)
            below = next(
                (under for box, under in reversed(painted) if _holds(box, at)), None
            ) or _page_of(sheet, dark)
            if _contrast(colour, below) < LEAST_CONTRAST:
                faults.append(f"{words}: {colour} on {below}")
    return list(dict.fromkeys(faults))


def _read_rules(style: str, dark: bool) -> Iterator[_Rule]:
    for number, (selectors, body) in enumerate(_RULE.findall(style)):
        for selector in selectors.split(","):
            parts = tuple(selector.replace(">", " > ").split())
            tests = [test for part in parts for test in _PART.findall(part)]
            types = sum(test[0].isalpha() for test in tests)
            named = sum(test[0] in ".:[" for test in tests)
            yield _Rule(parts, _read_values(body), dark, (named, types, number + dark * 10_000))


def _read_values(body: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in body.split(";") if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _matches(element: etree._Element, parts: tuple[str, ...]) -> bool:
    *above, last = parts
    if not _is_one_of(element, last):
        return False
    if not above:
        return True
    if above[-1] == ">":
        parent = element.getparent()
        return parent is not None and _matches(parent, tuple(above[:-1]))
    return any(_matches(outer, tuple(above)) for outer in element.iterancestors())


def _is_one_of(element: etree._Element, part: str) -> bool:
    for test in _PART.findall(part):
        if test[0] == ".":
            good = test[1:] in element.get("class", "").split()
        elif test[0] == "[":
            name, _, wanted = test[1:-1].partition("=")
            wanted = wanted.strip('"')
            text = element.get(name.rstrip("*"), "")
            good = wanted in text if name.endswith("*") else wanted == text
        elif test == ":root":
            good = element.getparent() is None
        else:
            good = test in ("*", etree.QName(element).localname)
        if not good:
            return False
    return True


def _iterate_shapes(
    parent: etree._Element, x: float = 0, y: float = 0
) -> Iterator[tuple[etree._Element, float, float]]:
    """Yield what is painted, in its order, and the origin of its coordinates."""
    for element in parent:
        if not isinstance(element.tag, str):
            continue
        kind = etree.QName(element).localname
        if kind in ("defs", "marker", "clipPath", "style", "title", "desc", "metadata"):
            continue
        moved = re.match(r"translate\(([-\d.]+)[ ,]+([-\d.]+)\)", element.get("transform", ""))
        left, top = (x + float(moved[1]), y + float(moved[2])) if moved else (x, y)
        if kind in _SHAPES:
            yield element, left, top
        else:
            yield from _iterate_shapes(element, left, top)


def _boxes_of(
    element: etree._Element, x: float, y: float
) -> Iterator[tuple[float, float, float, float]]:
    """Yield the rectangles that a shape covers: left, top, right, bottom."""
    kind = etree.QName(element).localname
    if kind == "rect":
        left, top = x + _number(element, "x"), y + _number(element, "y")
        yield left, top, left + _number(element, "width"), top + _number(element, "height")
    elif kind == "path":
        for part in re.findall(r"M[^M]+", element.get("d", "")):
            places = list(_walk_path(part))
            across, down = [place[0] for place in places], [place[1] for place in places]
            yield x + min(across), y + min(down), x + max(across), y + max(down)


def _walk_path(part: str) -> Iterator[tuple[float, float]]:
    x = y = 0.0
    for letter, rest in re.findall(r"([A-Za-z])([^A-Za-z]*)", part.replace("e-", "E-")):
        numbers = [float(number) for number in _NUMBER.findall(rest)]
        if letter in "hv":
            x, y = (x + numbers[0], y) if letter == "h" else (x, y + numbers[0])
            yield x, y
        elif letter in "HV":
            x, y = (numbers[0], y) if letter == "H" else (x, numbers[0])
            yield x, y
        else:
            for x, y in zip(numbers[::2], numbers[1::2], strict=True):
                yield x, y


def _holds(box: tuple[float, float, float, float], at: tuple[float, float]) -> bool:
    return box[0] <= at[0] <= box[2] and box[1] <= at[1] <= box[3]


def _number(element: etree._Element, name: str) -> float:
    text = element.get(name, "0")
    return 10_000.0 if text.endswith("%") else float(text)


def _scale_of(root: etree._Element) -> float:
    """Pixels of a unit of the picture at its natural size."""
    width = re.fullmatch(r"([\d.]+)(pt|px)?", root.get("width", ""))
    if width is None or not root.get("viewBox"):
        return 1.0
    pixels = float(width[1]) * (4 / 3 if width[2] == "pt" else 1)
    return pixels / float(root.get("viewBox").split()[2])


def _size_of(sheet: Sheet, element: etree._Element) -> float:
    size = sheet.value_of(element, "font-size", False)
    font = _read_values(element.get("style", "")).get("font", "")
    found = re.search(r"([\d.]+)px", font) or re.match(r"([\d.]+)", size.text if size else "16")
    assert found is not None
    return float(found[1])


def _page_of(sheet: Sheet, dark: bool) -> str:
    """The colour of the page, or that of the picture's own ground for it."""
    own = sheet.value_of(sheet.root, "background", dark)
    return own.text if own else "#131416" if dark else "#ffffff"


def _ground_of(sheet: Sheet) -> str:
    """The colour of the first shape on a light page: the others lie on it."""
    first = next(element for element, _, _ in _iterate_shapes(sheet.root))
    value = sheet.value_of(first, "fill", False)
    return value.text if value and _COLOUR.fullmatch(value.text) else "#ffffff"


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)
