# SPDX-License-Identifier: Apache-2.0
"""The result of a cluster for people, for continuous integration, and as a picture.

Users choose the names of servers, and members write their texts. All of them are printed through
:func:`nova_hpc_common.outside.text.printable_text`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from nova_hpc_client.accept.cluster_result import ClusterAcceptance, MemberAcceptance
from nova_hpc_common.outside.text import printable_text
from nova_hpc_guest.accept.probes import PROBE_OF
from nova_hpc_guest.accept.ratio import LEVEL
from nova_hpc_guest.accept.views import format_junit

COLUMNS: Final = ("Member", "Verdict", "Slow", "Causes", "Reasons")
_LEFT: Final = 150
_CELL: Final = 84
_STEP: Final = 24
_COLOURS: Final = {"slow": "#f2b8b5", "level": "#c7e7cf", "undecided": "#f3e6a6"}


def list_member_rows(cluster: ClusterAcceptance) -> list[tuple[str, str, str, str, str]]:
    """One row for each member, in the order of :data:`COLUMNS`."""
    return [
        (
            member.name,
            member.result.verdict,
            ", ".join(
                f"{row.probe} {row.ratio:.2f}"
                for row in member.result.rows
                if row.probe in member.slow
            ),
            ", ".join(member.causes),
            "; ".join(member.reasons),
        )
        for member in cluster.members
    ]


def format_cluster_text(cluster: ClusterAcceptance) -> str:
    """A few lines for each member, with only the number of the probes that are level."""
    return "".join(f"{printable_text(line)}\n" for line in _list_lines(cluster))


def _list_lines(cluster: ClusterAcceptance) -> Iterator[str]:
    for member in cluster.members:
        yield f"{member.name}: {member.result.verdict}"
        yield from _list_member_lines(member)
    for note in cluster.notes:
        yield f"note: {note}"
    rejected = ", ".join(member.name for member in cluster.rejected)
    yield (
        f"verdict of {cluster.name} ({cluster.tier}, {cluster.rounds} rounds): {cluster.verdict}"
        + (f": {rejected}" if rejected else "")
    )


def _list_member_lines(member: MemberAcceptance) -> Iterator[str]:
    level = sum(row.verdict == LEVEL for row in member.result.rows)
    if level:
        yield f"  {level} probes level with the rest"
    for row in member.result.rows:
        if row.verdict != LEVEL:
            yield (
                f"  {row.probe:<13} {row.ratio:.3f} ({row.low:.3f}-{row.high:.3f}) of the rest, "
                f"floor {row.floor:g}: {row.verdict}"
            )
    for reason in member.reasons:
        yield f"  {reason}"
    for probe, reason in member.result.missing.items():
        yield f"  left out {probe}: {reason}"


def format_cluster_junit(cluster: ClusterAcceptance) -> str:
    """JUnit XML with one suite for each member."""
    parts = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for member in cluster.members:
        _, _, suite = format_junit(member.result).partition("\n")
        name = quoteattr(f"nova-hpc-accept {printable_text(member.name)}")
        parts.append(suite.replace('name="nova-hpc-accept"', f"name={name}", 1))
    return "\n".join([*parts, "</testsuites>", ""])


def draw_cluster(cluster: ClusterAcceptance) -> str:
    """An SVG table of members and probes, with the ratio to the other members in each cell."""
    probes = [
        name
        for name in PROBE_OF
        if any(row.probe == name for member in cluster.members for row in member.result.rows)
    ]
    width = _LEFT + _CELL * len(probes) + 420
    height = 70 + _STEP * len(cluster.members)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="18" font-weight="bold">{_take_text(cluster.name)}, '
        f"{_take_text(cluster.tier)}: {_take_text(cluster.verdict)}</text>",
    ]
    for place, name in enumerate(probes):
        parts.append(f'<text x="{_LEFT + _CELL * place}" y="42">{_take_text(name)}</text>')
    for number, member in enumerate(cluster.members):
        line = 50 + _STEP * number
        parts.append(f'<text x="8" y="{line + 15}">{_take_text(member.name)}</text>')
        rows = {row.probe: row for row in member.result.rows}
        for place, name in enumerate(probes):
            if name in rows:
                row = rows[name]
                left = _LEFT + _CELL * place
                parts.append(
                    f'<rect x="{left}" y="{line}" width="{_CELL - 4}" height="{_STEP - 4}" '
                    f'fill="{_COLOURS[row.verdict]}"/><text x="{left + 4}" y="{line + 15}">'
                    f"{row.ratio:.2f} {_take_text(row.verdict)}</text>"
                )
        causes = ", ".join(member.causes)
        said = f"{member.result.verdict}{f': {causes}' if causes else ''}"
        left = _LEFT + _CELL * len(probes) + 8
        parts.append(f'<text x="{left}" y="{line + 15}">{_take_text(said)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _take_text(text: str) -> str:
    return escape(printable_text(text)[:80])
