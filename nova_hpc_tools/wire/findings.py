# SPDX-License-Identifier: Apache-2.0
"""The findings of ``nova-hpc doctor`` on one node, for ``--merge`` and other tools.

::

    {"schema": "nova-hpc/findings", "version": 1, "node": "gpu7", "aliases": ["{...}"],
     "findings": [{"check": "driver", "severity": "error", "seen": "...", "why": "...",
                   "cure": "...", "docs": "admin/doctor.html#driver"}]}
"""

from __future__ import annotations

import json
from typing import Final

import attrs

from nova_hpc.wire import strict
from nova_hpc_tools.wire.documents import FINDINGS


@attrs.frozen
class WireFinding:
    """A finding of ``doctor`` with all its texts. Its check may be one of a later release."""

    check: str
    severity: str
    seen: str
    why: str
    cure: str
    docs: str


@attrs.frozen
class Findings:
    """The findings of ``doctor`` on one node."""

    node: str | None = None
    findings: tuple[WireFinding, ...] = ()
    #: Values of ``[pci]alias``.
    aliases: tuple[str, ...] = ()


_CONVERTER: Final = strict.make_strict_converter(
    {
        **dict.fromkeys(("node", *attrs.fields_dict(WireFinding)), strict.PRINTABLE),
        "aliases": strict.ANY_TEXT,
    },
    defaults=True,
    growing=True,
)


def write_findings(document: Findings) -> str:
    """Format the findings of a node as JSON text, which ends with a newline."""
    body = {
        **FINDINGS.head(),
        "node": document.node,
        "aliases": list(document.aliases),
        "findings": [attrs.asdict(finding) for finding in document.findings],
    }
    return f"{json.dumps(body, indent=1)}\n"


def read_findings(text: object) -> Findings:
    """Parse the findings of a node.

    :raises nova_hpc_common.wire.version.WireError: it is broken, or only a later release reads it.
    """
    return strict.read_document(FINDINGS, text, _CONVERTER, Findings, {"findings": "finding"})
