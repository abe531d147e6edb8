# SPDX-License-Identifier: Apache-2.0
"""Draws the recording of a real run in a terminal as one SVG.

    script -qc "nova-hpc lab demo" docs/recordings/lab-demo.ansi
    python docs/terminal_picture.py

The second command draws each recording again. The colours are those of the command's output. The
picture needs no network, as it uses a font of the reader's system.
"""

import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
COLUMNS = 118
#: Recording -> picture, title, and the starts of the first line that is drawn and of the first
#: after it that is not. The demonstration's commands come before the former, its refusals after.
RECORDINGS = {
    "lab-demo.ansi": (
        *("source/_static/lab-demo.svg", "nova-hpc lab demo: five accounts of one server"),
        *("Server hpc-demo on node", "Refused: a pair"),
    ),
}
#: Lines by ``script`` itself, and control sequences other than colours.
_OWN = re.compile(r"^Script (?:started|done) on .*$", re.MULTILINE)
_MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\][^\x07]*\x07|\x1b[()][A-Z0-9]")
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def read_lines(recording: str) -> str:
    """The final lines of a recording; if a line was overwritten, only its last text."""
    text = _MOVES.sub("", _OWN.sub("", recording)).replace("\r\n", "\n")
    return "\n".join(line.rpartition("\r")[2] for line in text.split("\n")).strip("\n")


def draw_terminal(recording: str, title: str, begin: str, end: str) -> str:
    """The SVG of a recording, from a line that begins with *begin* up to one with *end*."""
    text = Text.from_ansi(read_lines(recording))
    first = max(0, text.plain.find(f"\n{begin}") + 1)
    last = text.plain.find(f"\n{end}", first)
    text = text[first:last] if last >= 0 else text[first:]
    text.rstrip()
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(text, overflow="fold", highlight=False)
    drawn = console.export_svg(title=title, unique_id="terminal")
    drawn = _FONT.sub("", drawn).replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas")
    return re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE)


def draw_all() -> dict[Path, str]:
    """Path of each picture -> its SVG text."""
    return {
        HERE / picture: draw_terminal(
            (HERE / "recordings" / name).read_text(encoding="utf-8"), title, begin, end
        )
        for name, (picture, title, begin, end) in RECORDINGS.items()
    }


if __name__ == "__main__":
    for path, drawn in draw_all().items():
        path.write_text(drawn, encoding="utf-8")
