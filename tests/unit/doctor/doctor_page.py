# SPDX-License-Identifier: Apache-2.0
"""The table of faults and the list of checks, as the documentation shows them.

``python -m tests.unit.doctor.doctor_page`` writes both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nova_hpc_tools.doctor.check_cures import CURES
from nova_hpc_tools.site.findings import CHECKS
from nova_hpc_tools.site.layout_cures import render_cure
from tests.unit.doctor.doctor_faults import CLOUD, FAULTS

PAGE: Final = Path(__file__).parents[3] / "docs/source/admin/doctor-faults.inc"


def table() -> str:
    """The faults as the documentation shows them."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    lines += ["   * - Fault", "     - Finding", "     - Severity", "     - Cured by"]
    for each in (*FAULTS, *CLOUD):
        lines += [
            f"   * - {each.text}",
            f"     - :ref:`{each.check} <doctor-{each.check}>`",
            f"     - {CHECKS[each.check].severity.word}",
            f"     - {each.cured_by}",
        ]
    return "\n".join(lines) + "\n"


def checks() -> str:
    """Every check with its anchor."""
    lines: list[str] = []
    for name, check in CHECKS.items():
        title = name
        lines += [f".. _doctor-{name}:", "", title, "-" * len(title), ""]
        lines += [
            f"*{check.severity.word}*: {check.why}",
            "",
            f"Cure: {render_cure(CURES[name])}",
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(table(), encoding="utf-8")
    PAGE.with_name("doctor-checks.inc").write_text(checks(), encoding="utf-8")
