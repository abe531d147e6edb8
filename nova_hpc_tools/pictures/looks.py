# SPDX-License-Identifier: Apache-2.0
"""The font and colours of pictures of nodes and clouds, for light and dark.

The colours are Okabe and Ito's, which people with any kind of colour blindness can distinguish
(https://jfly.uni-koeln.de/color/), and colour is never the only sign of anything. There are no
variables of CSS: viewers of SVG outside of browsers do not support them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nova_hpc_tools.pictures.model import TileState

FONT: Final = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", Arial, sans-serif'

#: Class of CSS of a state.
STATE_CLASSES: Final[Mapping[TileState, str]] = {
    TileState.FREE: "free",
    TileState.OFFERED: "free",
    TileState.POSSIBLE: "possible",
    TileState.USED: "used",
    TileState.FAULTY: "faulty",
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
    (".faulty", "fill", "#b8578f", "#cc79a7"),
    (".held", "fill", "#d55e00", "#e06c12"),
    (".refused", "fill", "#e69f00", "#c98a00"),
    (".lost", "fill", "#6b7680", "#7f8a94"),
    (".stay", "fill", "#cfd7df", "#4a5560"),
)
_SHAPES: Final = (
    f"text{{font-family:{FONT};font-size:11px}}",
    ".b{font-weight:600}",
    ".h{font-size:14px;font-weight:600}",
    ".m{text-anchor:middle}",
    ".e{text-anchor:end}",
    ".numa,.root,.switch,.tile,.card{stroke-width:1}",
)


def write_picture_style() -> str:
    """Return the CSS rules of all pictures, for light and dark."""
    light = "".join(f"{name}{{{key}:{value}}}" for name, key, value, _ in _COLOURS)
    dark = "".join(f"{name}{{{key}:{value}}}" for name, key, _, value in _COLOURS)
    return "".join(_SHAPES) + light + "@media (prefers-color-scheme:dark){" + dark + "}"
