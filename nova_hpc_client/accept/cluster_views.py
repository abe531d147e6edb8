# SPDX-License-Identifier: Apache-2.0
"""The result of a cluster for people, for continuous integration, and as a picture.

Users choose the names of servers, and members write their texts. All of them are printed through
:func:`nova_hpc_common.outside.text.printable_text`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.etree.ElementTree import Element
from xml.sax.saxutils import quoteattr

from nova_hpc_client.accept.cluster_result import ClusterAcceptance, MemberAcceptance, WholeResult
from nova_hpc_common.output.canvas import add_element, add_tooltip, format_svg, make_plain_root
from nova_hpc_common.outside.text import printable_text
from nova_hpc_guest.accept.distribution import Distribution
from nova_hpc_guest.accept.evidence import REST
from nova_hpc_guest.accept.probes import PROBE_OF
from nova_hpc_guest.accept.ratio import LEVEL, SLOW
from nova_hpc_guest.accept.views import find_doubtful, format_distribution, format_junit

COLUMNS: Final = ("Member", "Verdict", "Slow", "Causes", "Reasons", "Delays")
#: The name of the rows of programs over all members.
ALL: Final = "all members"
#: Verdict -> element of JUnit's format.
_KINDS: Final = {"slow": "failure", "undecided": "failure", "not measurable": "error"}
_LEFT: Final = 150
_CELL: Final = 84
_STEP: Final = 24
#: Most letters of a text by other people.
_MOST: Final = 80
#: Verdict of a row, or of all members -> colour.
_COLOURS: Final = {
    "slow": "#f2b8b5", "level": "#c7e7cf", "undecided": "#f3e6a6",
    "accepted": "#c7e7cf", "not measurable": "#e0e0e0",
}  # fmt: skip
_BAR: Final = "#555555"
#: Height of the longest bar of a histogram.
_TALL: Final = 18


def list_member_rows(cluster: ClusterAcceptance) -> list[tuple[str, str, str, str, str, str]]:
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
            ", ".join(shown.summary for shown in member.result.distributions),
        )
        for member in cluster.members
    ]
    return [
        *rows,
        *((ALL, whole.verdict, whole.probe, "", whole.says, "") for whole in cluster.whole),
    ]


def format_cluster_text(cluster: ClusterAcceptance) -> str:
    """Format the results as text: a few lines for each member.

    Of probes at the level of the others only the number is printed.
    """
    return "".join(f"{printable_text(line)}\n" for line in _list_lines(cluster))


def _list_lines(cluster: ClusterAcceptance) -> Iterator[str]:
    for member in cluster.members:
        yield f"{member.name}: {member.result.verdict}"
        yield from _list_member_lines(member)
    yield from (f"{ALL}: {_describe_whole(whole)}" for whole in cluster.whole)
    for note in cluster.notes:
        yield f"note: {note}"
    rejected = ", ".join(member.name for member in cluster.rejected) or "; ".join(
        whole.says for whole in cluster.whole if whole.verdict == SLOW
    )
    yield (
        f"verdict of {cluster.name} ({cluster.tier}, {cluster.rounds} rounds): {cluster.verdict}"
        + (f": {rejected}" if rejected else "")
    )


def _describe_whole(whole: WholeResult) -> str:
    figure = f" {whole.figure:.4g} {whole.unit}" if whole.figure else ""
    return f"{whole.probe}{figure}: {whole.verdict}" + (f": {whole.says}" if whole.says else "")


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
    for shown in member.result.distributions:
        yield f"  {shown.summary} (half, 99 of 100, all)"
    for shown in find_doubtful(member.result):
        yield from (f"  {line}" for line in format_distribution(shown, REST))
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
    """Draw the results as an SVG table of members and probes, with the runs over all members.

    Each cell has the ratio to the other members. Below are histograms, a row for each member.
    """
    names = [row.probe for member in cluster.members for row in member.result.rows]
    order = dict.fromkeys((*PROBE_OF, *names))
    probes = [name for name in order if name in names]
    right = _LEFT + _CELL * len(probes)
    every = [shown for member in cluster.members for shown in member.result.distributions]
    kinds = {shown.probe: shown for shown in every}
    heading = f"{cluster.name[:_MOST]}, {cluster.tier}: {cluster.verdict}"
    rows = (
        len(cluster.members)
        + len(cluster.whole)
        + sum(2 + sum(shown.probe == kind for shown in every) for kind in kinds)
    )
    width = max(right, *(_LEFT + _CELL * len(shown.edges) for shown in every), 0) + 420
    root = make_plain_root(width, 70 + _STEP * rows, heading, 12)
    add_element(root, "text", heading, x=8, y=18, font_weight="bold")
    for place, name in enumerate(probes):
        add_element(root, "text", name, x=_LEFT + _CELL * place, y=42)
    top = 50
    for member in cluster.members:
        add_element(root, "text", member.name[:_MOST], x=8, y=top + 15)
        for row in member.result.rows:
            left = _LEFT + _CELL * probes.index(row.probe)
            _draw_cell(root, left, top, row.verdict)
            ratio = f"{row.ratio:.2f} {row.verdict}"
            add_element(root, "text", ratio, x=left + 4, y=top + 15)
        verdict = ": ".join(filter(None, (member.result.verdict, ", ".join(member.causes))))
        add_element(root, "text", verdict[:_MOST], x=right + 8, y=top + 15)
        top += _STEP
    for whole in cluster.whole:
        add_element(root, "text", ALL, x=8, y=top + 15)
        _draw_cell(root, _LEFT, top, whole.verdict)
        add_element(root, "text", whole.verdict, x=_LEFT + 4, y=top + 15)
        add_element(root, "text", _describe_whole(whole), x=_LEFT + _CELL + 4, y=top + 15)
        top += _STEP
    for shown in kinds.values():
        top = _draw_histograms(root, cluster, shown, top)
    return format_svg(root)


def _draw_cell(root: Element, left: int, top: int, verdict: str) -> None:
    size = {"x": left, "y": top, "width": _CELL - 4, "height": _STEP - 4}
    add_element(root, "rect", **size, fill=_COLOURS[verdict])


def _draw_histograms(
    root: Element, cluster: ClusterAcceptance, kind: Distribution, top: int
) -> int:
    """Draw the histograms of one probe, a row for each member; return the place below them."""
    text = f"{kind.probe}, {kind.unit}: how often (bars: logarithms)"
    add_element(root, "text", text, x=8, y=top + 34, font_weight="bold")
    top += 2 * _STEP
    for place, label in enumerate(kind.labels):
        add_element(root, "text", label, x=_LEFT + _CELL * place, y=top)
    top += 4
    for member in cluster.members:
        for shown in member.result.distributions:
            if shown.probe != kind.probe:
                continue
            add_element(root, "text", member.name[:_MOST], x=8, y=top + 15)
            for place, count in enumerate(shown.here):
                tall = shown.find_length(count, _TALL)
                bar = add_element(
                    root, "rect", x=_LEFT + _CELL * place, y=top + _TALL - tall,
                    width=_CELL // 2, height=tall, fill=_BAR,
                )  # fmt: skip
                add_tooltip(bar, [f"{count}"])
            left = _LEFT + _CELL * len(shown.edges)
            add_element(root, "text", shown.summary, x=left + 8, y=top + 15)
            top += _STEP
    return top
