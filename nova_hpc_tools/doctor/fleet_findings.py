# SPDX-License-Identifier: Apache-2.0
"""The findings on many nodes, merged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from nova_hpc_common.wire.version import WireError
from nova_hpc_tools.base import CommandError
from nova_hpc_tools.doctor import checks_cloud
from nova_hpc_tools.site.cures import CommandRun, CuredCommand, DoctorCure
from nova_hpc_tools.site.findings import CHECKS, DoctorFinding, Severity
from nova_hpc_tools.site.layout_cures import render_cure
from nova_hpc_tools.wire import findings as document
from nova_hpc_tools.wire.findings import WireFinding

_LARGEST: Final = 1 << 24


def convert_finding(finding: DoctorFinding, layout: str, node: str | None) -> WireFinding:
    """Convert a finding into the form for a JSON file.

    :param layout: the layout of the cure.
    :param node: the machine with the fault; None if unknown.
    """
    return WireFinding(
        check=finding.check,
        severity=finding.severity.word,
        seen=finding.seen,
        why=CHECKS[finding.check].why,
        cure=render_cure(finding.cure, layout, node),
        docs=finding.anchor,
    )


def merge_fleet_findings(
    folder: Path, layout: str
) -> tuple[list[tuple[str | None, WireFinding]], int]:
    """Merge the findings on all nodes and between them; return them with the highest severity.

    A node that cannot be read is a finding. Without findings, the severity is 0.

    :param folder: the directory with one ``.json`` file for each node.
    :param layout: the deployment tool in whose words the cures outside a node's own file are.
    :raises CommandError: *folder* does not exist, or has no ``.json`` file.
    """
    if not folder.is_dir():
        raise CommandError(f"--merge: there is no directory {folder}")
    rows: list[tuple[str | None, WireFinding]] = []
    aliases: dict[str, Iterable[str]] = {}
    more: list[DoctorFinding] = []
    for path in sorted(folder.glob("*.json")):
        try:
            node_findings = document.read_findings(path.read_bytes()[:_LARGEST].decode("utf-8"))
        except (OSError, UnicodeDecodeError, WireError) as error:
            cure = DoctorCure.of(
                "Run ", CommandRun(CuredCommand.DOCTOR, "-f json"), " there again."
            )
            more.append(DoctorFinding("not-read", f"{path.name}: {error}.", cure, path.stem))
            continue
        name = node_findings.node or path.stem
        aliases[name] = node_findings.aliases
        rows += [(name, finding) for finding in node_findings.findings]
    if not aliases and not more:
        raise CommandError(f"--merge: no .json file in {folder}")
    more += checks_cloud.check_fleet(aliases)
    rows += [(finding.node, convert_finding(finding, layout, finding.node)) for finding in more]
    ranks = {severity.word: severity.value for severity in Severity}
    # A severity of a later release counts as a warning at least.
    return rows, max((ranks.get(finding.severity, 1) for _, finding in rows), default=0)
