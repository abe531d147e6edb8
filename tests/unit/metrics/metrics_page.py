# SPDX-License-Identifier: Apache-2.0
"""The tables of metrics and alerts, as the documentation shows them.

``python -m tests.unit.metrics.metrics_page`` writes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from nova_hpc_tools.metrics import catalogue
from nova_hpc_tools.metrics.catalogue import MetricScope

TOP: Final = Path(__file__).parents[3]
FOLDER: Final = TOP / "docs/source/admin"
RULES: Final = TOP / "etc/prometheus/nova-hpc.rules.yml"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]], widths: str) -> str:
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in (head, *rows):
        for number, cell in enumerate(row):
            mark = "   * -" if not number else "     -"
            lines.append(f"{mark} {cell}".rstrip())
    return "\n".join(lines) + "\n"


def metrics(scope: MetricScope) -> str:
    """The metrics of one command."""
    rows = []
    for kind in catalogue.ALL:
        if kind.scope is not scope:
            continue
        options = kind.option.replace("--", "``--").replace(" or ", "`` or ")
        needs = f" ({options}``)" if options else ""
        labels = ", ".join(f"``{label}``" for label in kind.labels)
        rows.append((f"``{kind.name}``", labels, f"{kind.text}{needs}."))
    return _table(("Metric", "Labels", "Value"), rows, "35 20 45")


def rules() -> list[dict[str, Any]]:
    """Every alert."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> str:
    """The alerts, with the command that says more."""
    rows = [
        (
            f"``{rule['alert']}``",
            rule["labels"]["severity"],
            f"``{rule['expr']}``",
            rule.get("for", "at once"),
        )
        for rule in rules()
    ]
    return _table(("Alert", "Severity", "Fires if", "For"), rows, "22 10 58 10")


def pages() -> dict[Path, str]:
    """File -> its text."""
    made = {FOLDER / f"metrics-{scope.value}.inc": metrics(scope) for scope in MetricScope}
    return {**made, FOLDER / "metrics-alerts.inc": alerts()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
