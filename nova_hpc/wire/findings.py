# SPDX-License-Identifier: Apache-2.0
"""What ``nova-hpc doctor`` has found on one node, for ``--merge`` and other people's tools.

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
from nova_hpc.wire.version import shown


@attrs.frozen
class Said:
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
    findings: tuple[Said, ...] = ()
    #: Values of ``[pci]alias``.
    aliases: tuple[str, ...] = ()


def dumps(found: Findings) -> str:
    """The document as text; ends with a newline."""
    body = {
        **FINDINGS.head(),
        "node": found.node,
        "aliases": list(found.aliases),
        "findings": [attrs.asdict(each) for each in found.findings],
    }
    return f"{json.dumps(body, indent=1)}\n"


def loads(text: object) -> Findings:
    """Read the document.

    :raises nova_hpc.wire.version.WireError: it is broken, or only a later release reads it.
    """
    document = FINDINGS.load(text)
    entries = document.get("findings", [])
    aliases = document.get("aliases", [])
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise FINDINGS.broken(f"has findings {shown(entries)}, not a list of objects")
    if not isinstance(aliases, list) or not all(isinstance(each, str) for each in aliases):
        raise FINDINGS.broken(f"has aliases {shown(aliases)}, not a list of texts")
    node = document.get("node")
    if node is not None and (not isinstance(node, str) or not node.isprintable()):
        raise FINDINGS.broken(f"has node {shown(node)}, not a name")
    return Findings(node, tuple(map(_said, entries)), tuple(aliases))


def _said(entry: dict[str, Any]) -> Said:
    values = {}
    for each in attrs.fields(Said):
        value = entry.get(each.name)
        if not isinstance(value, str) or not value.isprintable():
            raise FINDINGS.broken(f"has a finding whose {each.name} is {shown(value)}")
        values[each.name] = value
    return Said(**values)
