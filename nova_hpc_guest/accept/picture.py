# SPDX-License-Identifier: Apache-2.0
"""The result as a picture: one line a probe with its interval, its ratio and its floor.

Colours are never the only sign: the verdict stands beside each line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape

from .distribution import Distribution
from .result import AcceptanceResult

_LOW, _HIGH = 0.25, 2.0
_LEFT: Final = 130
_WIDTH: Final = 420
_STEP: Final = 24
_MARKS: Final = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
#: Height of a histogram, and width of its bins.
_HISTOGRAM: Final = 150
_BIN: Final = 68
#: Colour of light pictures -> that of dark ones.
_DARK: Final = {
    "#ffffff": "#171717", "#1c2733": "#d6dfe8", "#555555": "#a3a3a3", "#cccccc": "#4a4a4a",
    "#888888": "#8d8d8d", "#b00020": "#ff7b8f", "#1b6e3c": "#55c583", "#7a6a00": "#d2bd3c",
}  # fmt: skip
_COLOURS: Final = {"slow": "#b00020", "level": "#1b6e3c", "undecided": "#7a6a00"}


def draw_result(result: AcceptanceResult) -> str:
    """Draw the result as the text of an SVG picture."""
    bottom = 34 + _STEP * len(result.rows)
    texts = [f"{cause.cause} ({cause.status}): {cause.says}" for cause in result.diagnosis.causes]
    if result.diagnosis.unexplained:
        texts.append(f"no cause found: {', '.join(result.diagnosis.unexplained)}")
    if result.refused is not None:
        texts.append(f"refused: {result.refused.text}")
    texts += [f"promise broken: {one.text}" for one in result.findings if one.wrong]
    height = bottom + 30 + _STEP * len(texts) + _HISTOGRAM * len(result.distributions)
    rules = "".join(
        f'[{key}="{light}"]{{{key}:{dark}}}'
        for light, dark in _DARK.items()
        for key in ("fill", "stroke")
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="780" height="{height}" '
        'font-family="sans-serif" font-size="12" fill="#1c2733">',
        f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="8" y="18" font-weight="bold">nova-hpc-guest accept, {escape(result.tier)}: '
        f"{escape(result.verdict)}</text>",
    ]
    for mark in _MARKS:
        place = _place_ratio(mark)
        colour = "#1c2733" if mark == 1 else "#cccccc"
        parts.append(
            f'<line x1="{place:.0f}" y1="30" x2="{place:.0f}" y2="{bottom}" stroke="{colour}"/>'
            f'<text x="{place:.0f}" y="{bottom + 12}" text-anchor="middle" fill="#555555">'
            f"{mark:g}</text>"
        )
    for number, row in enumerate(result.rows):
        line = 44 + _STEP * number
        colour = _COLOURS[row.verdict]
        floor, low, high = map(_place_ratio, (row.floor, row.low, row.high))
        parts.append(
            f'<text x="8" y="{line + 4}">{escape(row.probe)}</text>'
            f'<line x1="{floor:.0f}" y1="{line - 8}" x2="{floor:.0f}" y2="{line + 8}" '
            'stroke="#888888" stroke-dasharray="2 2"/>'
            f'<line x1="{low:.0f}" y1="{line}" x2="{high:.0f}" y2="{line}" stroke="{colour}" '
            'stroke-width="3"/>'
            f'<circle cx="{_place_ratio(row.ratio):.0f}" cy="{line}" r="5" fill="{colour}"/>'
            f'<text x="{_LEFT + _WIDTH + 12}" y="{line + 4}">{row.ratio:.2f} '
            f"({row.low:.2f}-{row.high:.2f}) {escape(row.verdict)}</text>"
        )
    for number, text in enumerate(texts):
        clean = "".join(char if char.isprintable() else " " for char in text)[:120]
        parts.append(f'<text x="8" y="{bottom + 34 + _STEP * number}">{escape(clean)}</text>')
    for number, distribution in enumerate(reversed(result.distributions), 1):
        parts += _draw_distribution(distribution, height - _HISTOGRAM * number)
    return "\n".join([*parts, "</svg>"])


def _draw_distribution(shown: Distribution, top: int) -> Iterator[str]:
    """Yield two bars a bin: the baseline's is empty, the one of here is full."""
    floor = top + _HISTOGRAM - 30
    yield (
        f'<text x="8" y="{top + 12}">{escape(shown.probe)}, {escape(shown.unit)}: how often '
        "(bars: logarithms; empty: baseline, full: here)</text>"
    )
    for place, label in enumerate(shown.labels):
        left = 8 + _BIN * place
        yield f'<text x="{left}" y="{floor + 14}" fill="#555555">{escape(label)}</text>'
        for shift, counts, fill in ((0, shown.base, "none"), (22, shown.here, "#555555")):
            if counts is not None:
                tall = shown.find_length(counts[place], _HISTOGRAM - 60)
                yield (
                    f'<rect x="{left + shift}" y="{floor - tall}" width="20" height="{tall}" '
                    f'fill="{fill}" stroke="#555555"><title>{counts[place]}</title></rect>'
                )


def _place_ratio(ratio: float) -> float:
    clipped = min(max(ratio, _LOW), _HIGH)
    return _LEFT + _WIDTH * math.log(clipped / _LOW) / math.log(_HIGH / _LOW)
