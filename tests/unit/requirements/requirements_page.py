# SPDX-License-Identifier: Apache-2.0
"""The table of requirements, as the documentation shows it.

``python -m tests.unit.requirements.requirements_page`` writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nova_hpc_requirements.catalog import REQUIREMENTS

TABLE: Final = Path(__file__).parents[3] / "docs/source/admin/requirements-table.inc"


def write_table() -> str:
    """Each requirement, what counts, and what the suite takes."""
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 12 24 34 18 12", ""]
    lines += ["   * - Id", "     - Requirement", "     - Met when"]
    lines += ["     - The suite's check", "     - Rights"]
    for item in REQUIREMENTS:
        suite = f"weaker: {item.weaker}" if item.weaker else "the same" if item.checked else "none"
        if not item.steps:
            suite = "its own scripts"
        lines += [
            f"   * - {item.id}",
            f"     - {item.says}",
            f"     - {item.asks}",
            f"     - {suite}",
            f"     - {item.rights.value}",
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(write_table(), encoding="utf-8")
