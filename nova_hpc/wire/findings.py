# SPDX-License-Identifier: Apache-2.0
"""The findings of ``nova-hpc doctor`` on one node, for ``--merge`` and other people's tools.

::

    {"schema": "nova-hpc/findings", "version": 1, "node": "gpu7", "aliases": ["{...}"],
     "findings": [{"check": "driver", "severity": "error", "seen": "...", "why": "...",
                   "cure": "...", "docs": "admin/doctor.html#driver"}]}
"""

from __future__ import annotations

import json
from typing import Any

import attrs

from nova_hpc.wire.documents import FINDINGS
from nova_hpc.wire.version import show_json_value


@attrs.frozen
class WireFinding:
    """One finding, with all that people are told; of a later release perhaps an unknown one."""

    check: str
    severity: str
    seen: str
    why: str
    cure: str
    docs: str


@attrs.frozen
class Findings:
    """Those of one node."""

    node: str | None
    findings: tuple[WireFinding, ...] = ()
    #: Values of ``[pci]alias``.
    aliases: tuple[str, ...] = ()


def write_findings(document: Findings) -> str:
    """The document as text; ends with a newline."""
    body = {
        **FINDINGS.head(),
        "node": document.node,
        "aliases": list(document.aliases),
        "findings": [attrs.asdict(finding) for finding in document.findings],
    }
    return f"{json.dumps(body, indent=1)}\n"


def read_findings(text: object) -> Findings:
    """Read the document.

    :raises nova_hpc.wire.version.WireError: it is broken, or only a later release reads it.
    """
    document = FINDINGS.load(text)
    entries = document.get("findings", [])
    aliases = document.get("aliases", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FINDINGS.broken(f"has findings {show_json_value(entries)}, not a list of objects")
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise FINDINGS.broken(f"has aliases {show_json_value(aliases)}, not a list of texts")
    node = document.get("node")
    if node is not None and (not isinstance(node, str) or not node.isprintable()):
        raise FINDINGS.broken(f"has node {show_json_value(node)}, not a name")
    return Findings(node, tuple(map(_read_finding, entries)), tuple(aliases))


def _read_finding(entry: dict[str, Any]) -> WireFinding:
    values = {}
    for field in attrs.fields(WireFinding):
        value = entry.get(field.name)
        if not isinstance(value, str) or not value.isprintable():
            raise FINDINGS.broken(f"has a finding whose {field.name} is {show_json_value(value)}")
        values[field.name] = value
    return WireFinding(**values)
