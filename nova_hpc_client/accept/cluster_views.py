# SPDX-License-Identifier: Apache-2.0
"""The result of a cluster for people, for continuous integration, and as a picture.

Users choose the names of servers, and members write their texts. All of them are printed through
:func:`nova_hpc_common.outside.text.printable_text`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import quoteattr

from nova_hpc_client.accept.cluster_result import ClusterAcceptance, MemberAcceptance
from nova_hpc_common.output.canvas import add_element, format_svg, make_plain_root
from nova_hpc_common.outside.text import printable_text
from nova_hpc_guest.accept.probes import PROBE_OF
from nova_hpc_guest.accept.ratio import LEVEL, SLOW
from nova_hpc_guest.accept.views import format_junit

COLUMNS: Final = ("Member", "Verdict", "Slow", "Causes", "Reasons")
#: The name of the rows of programs over all members.
ALL: Final = "all members"
#: Verdict -> element of JUnit's format.
_KINDS: Final = {"slow": "failure", "undecided": "failure", "not measurable": "error"}
_LEFT: Final = 150
_CELL: Final = 84
_STEP: Final = 24
#: Most letters of a text by other people.
_MOST: Final = 80
_COLOURS: Final = {"slow": "#f2b8b5", "level": "#c7e7cf", "undecided": "#f3e6a6"}


def list_member_rows(cluster: ClusterAcceptance) -> list[tuple[str, str, str, str, str]]:
    """Return a table row for each member, and for each result of all of them."""
    rows = [
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
    return [*rows, *((ALL, whole.verdict, whole.probe, "", whole.says) for whole in cluster.whole)]


def format_cluster_text(cluster: ClusterAcceptance) -> str:
    """Format the results as text: a few lines for each member.

    Of probes at the level of the others only the number is printed.
    """
    return "".join(f"{printable_text(line)}\n" for line in _list_lines(cluster))


def _list_lines(cluster: ClusterAcceptance) -> Iterator[str]:
    for member in cluster.members:
        yield f"{member.name}: {member.result.verdict}"
        yield from _list_member_lines(member)
    for whole in cluster.whole:
        figure = f" {whole.figure:.4g} {whole.unit}" if whole.figure else ""
        says = f": {whole.says}" if whole.says else ""
        yield f"{ALL}: {whole.probe}{figure}: {whole.verdict}{says}"
    for note in cluster.notes:
        yield f"note: {note}"
    rejected = ", ".join(member.name for member in cluster.rejected) or "; ".join(
        whole.says for whole in cluster.whole if whole.verdict == SLOW
    )
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
    """Format the results as JUnit XML with one suite for each member."""
    parts = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for member in cluster.members:
        _, _, suite = format_junit(member.result).partition("\n")
        name = quoteattr(f"nova-hpc-accept {printable_text(member.name)}")
        parts.append(suite.replace('name="nova-hpc-accept"', f"name={name}", 1))
    if cluster.whole:
        parts.append(f"<testsuite name={quoteattr(f'nova-hpc-accept {ALL}')}>")
        for whole in cluster.whole:
            text = quoteattr(printable_text(f"{whole.verdict}: {whole.says}"))
            kind = _KINDS.get(whole.verdict)
            parts.append(
                f'<testcase classname={quoteattr(printable_text(whole.probe))} name="all">'
                + (f"<{kind} message={text}/>" if kind else "")
                + "</testcase>"
            )
        parts.append("</testsuite>")
    return "\n".join([*parts, "</testsuites>", ""])


def draw_cluster(cluster: ClusterAcceptance) -> str:
    """Draw the results as an SVG table of members and probes.

    Each cell has the ratio to the other members.
    """
    names = [row.probe for member in cluster.members for row in member.result.rows]
    order = dict.fromkeys((*PROBE_OF, *names))
    probes = [name for name in order if name in names]
    right = _LEFT + _CELL * len(probes)
    heading = f"{cluster.name[:_MOST]}, {cluster.tier}: {cluster.verdict}"
    root = make_plain_root(right + 420, 70 + _STEP * len(cluster.members), heading, 12)
    add_element(root, "text", heading, x=8, y=18, font_weight="bold")
    for place, name in enumerate(probes):
        add_element(root, "text", name, x=_LEFT + _CELL * place, y=42)
    for number, member in enumerate(cluster.members):
        top = 50 + _STEP * number
        add_element(root, "text", member.name[:_MOST], x=8, y=top + 15)
        for row in member.result.rows:
            left = _LEFT + _CELL * probes.index(row.probe)
            add_element(
                root, "rect", x=left, y=top, width=_CELL - 4, height=_STEP - 4,
                fill=_COLOURS[row.verdict],
            )  # fmt: skip
            ratio = f"{row.ratio:.2f} {row.verdict}"
            add_element(root, "text", ratio, x=left + 4, y=top + 15)
        verdict = ": ".join(filter(None, (member.result.verdict, ", ".join(member.causes))))
        add_element(root, "text", verdict[:_MOST], x=right + 8, y=top + 15)
    return format_svg(root)
