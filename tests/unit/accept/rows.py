# SPDX-License-Identifier: Apache-2.0
"""Rows of probes with a ratio that is given."""

from __future__ import annotations

from nova_hpc_guest.accept.evidence import REST, AcceptanceRow
from tests.unit.guest import accept_cases


def acceptance_row(name: str, ratio: float) -> AcceptanceRow:
    """A row of a member against the rest."""
    return accept_cases.row(name, ratio, REST)
