# SPDX-License-Identifier: Apache-2.0
"""The table of all patches, for the contributor's page.

``PYTHONPATH=. python docs/gated_patches.py`` writes it; a test compares the page with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nova_hpc.from_nova import nova_sources
from nova_hpc.from_nova import patches as both
from nova_hpc.from_nova.gate import Patch
from nova_hpc.from_nova.patches import scheduler
from virt_driver_patches import patches
from virt_driver_patches.patches import overrides

PAGE: Final = Path(__file__).parent / "source/contributor/gated-patches.rst"
_BEGIN: Final = ".. begin of the tables\n"
_END: Final = ".. end of the tables\n"


def replace(text: str) -> str:
    """The page with the current tables.

    :raises ValueError: *text* lacks one of the two marks.
    """
    head, begin, rest = text.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: the marks of the tables are missing")
    return f"{head}{begin}\n{tables()}\n{end}{tail}"


def tables() -> str:
    """The tables of the wrapped functions, and of the overridden ones."""
    parts = []
    for title, found in (
        ("Wrapped in nova-compute", [each for each in patches.ALL if not each.overridden]),
        (
            "Overridden, or called",
            [*(each for each in patches.ALL if each.overridden), *overrides.DRIVER],
        ),
        (
            "Wrapped in nova-scheduler",
            [each for each in (*both.BOTH, *scheduler.ALL) if not each.overridden],
        ),
        ("Overridden in nova-scheduler and nova-api", list(overrides.SCHEDULER)),
    ):
        parts.append("\n".join([title, "-" * len(title), "", *_table(found)]))
    return "\n\n".join(parts) + "\n"


def _table(found: list[Patch]) -> Iterator[str]:
    heads = ("Nova", "Lines", "Why", "Bug", "Can go when")
    yield from (".. list-table::", "   :header-rows: 1", "   :widths: 28 16 30 8 18", "")
    for cells in (heads, *map(_cells, found)):
        for number, cell in enumerate(cells):
            yield f"   {'*' if number == 0 else ' '} - {cell}"


def _cells(patch: Patch) -> tuple[str, ...]:
    lines = ", ".join(
        f"{nova_sources.READ[release]}: {first}-{last}"
        for release, (first, last) in sorted(patch.lines.items())
    )
    return (
        f"``{patch.file}`` ``{patch.owner}.{patch.name}``",
        lines,
        patch.why,
        patch.bug or "none known",
        patch.until,
    )


if __name__ == "__main__":
    PAGE.write_text(replace(PAGE.read_text()))
