# SPDX-License-Identifier: Apache-2.0
"""The table of faults, the list of checks and the tabs of layouts, as the documentation has them.

``python -m tests.unit.doctor.doctor_page`` writes all three.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nova_hpc_tools.doctor.check_cures import CURES
from nova_hpc_tools.site.cures import (
    RESTART_COMPUTE,
    CuredCommand,
    CuredService,
    DoctorCure,
    ServiceRestart,
    place_option,
)
from nova_hpc_tools.site.findings import CHECKS
from nova_hpc_tools.site.layout_cures import COMMANDS, render_cure
from nova_hpc_tools.site.layout_names import KOLLA, OSA
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


def layouts() -> str:
    """Tabs with the files and commands of each tool, for pages that name the plain ones."""
    lines = [".. tab-set::", "   :sync-group: layout", ""]
    lines += _tab(
        *("Packages", "plain"),
        "Files and commands are those of this page. Restart a service after its file has changed.",
    )
    for title, layout in (("Kolla-Ansible", KOLLA), ("OpenStack-Ansible", OSA)):
        commands = COMMANDS[layout]
        beside, _, python = commands[CuredCommand.DOCTOR_BESIDE_NOVA].partition(" with ")
        controllers = ServiceRestart((CuredService.API, CuredService.SCHEDULER))
        lines += _tab(
            *(title, layout),
            f"Settings of nova-compute: {_file_of(layout, CuredService.COMPUTE)}; then "
            f"``{_command_of(layout, RESTART_COMPUTE)}``.",
            "Settings of the other services of Nova: "
            f"{_file_of(layout, CuredService.API, CuredService.SCHEDULER)}; then "
            f"``{_command_of(layout, controllers)}``.",
            f"On the node: ``{commands[CuredCommand.DOCTOR]}`` and "
            f"``{commands[CuredCommand.PREPARE]}``; beside Nova: "
            f"``{beside}``{f', with {python}' if python else ''}.",
            f"On a controller: ``{commands[CuredCommand.DOCTOR_OF_CLOUD]}``, and Nova's own "
            f"``{commands[CuredCommand.NOVA_MANAGE]}``.",
        )
    lines += _tab(
        *("devstack", "devstack"),
        "``local.conf`` has the settings (:doc:`/install/devstack`), and stack.sh writes the files "
        "below ``/etc/nova`` again.",
        "Services are ``devstack@n-cpu``, ``devstack@n-sch`` and ``devstack@n-api``.",
    )
    return "\n".join(lines).rstrip() + "\n"


def _tab(title: str, name: str, *texts: str) -> list[str]:
    items = [f"      * {text}" for text in texts] if len(texts) > 1 else [f"      {texts[0]}"]
    return [f"   .. tab-item:: {title}", f"      :sync: {name}", "", *items, ""]


def _file_of(layout: str, *services: CuredService) -> str:
    cure = DoctorCure.of(place_option("hpc", "option", None, *services))
    text = render_cure(cure, layout, "HOST").partition(" in ")[2]
    return f"``{text}``" if " " not in text else f"``{text.replace(' below ', '`` below ``')}``"


def _command_of(layout: str, restart: ServiceRestart) -> str:
    text = render_cure(DoctorCure.of(restart), layout, "HOST")
    return text.removeprefix("Run ")


if __name__ == "__main__":
    PAGE.write_text(table(), encoding="utf-8")
    PAGE.with_name("doctor-checks.inc").write_text(checks(), encoding="utf-8")
    PAGE.with_name("layouts.inc").write_text(layouts(), encoding="utf-8")
