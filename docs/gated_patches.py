# SPDX-License-Identifier: Apache-2.0
"""The tables of all patches, which the contributor's page includes.

``PYTHONPATH=. python docs/gated_patches.py`` writes them; a test compares the file with them.
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

FILE: Final = Path(__file__).parent / "source/contributor/gated-patches.inc"


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
    FILE.write_text(tables(), encoding="utf-8")
