# SPDX-License-Identifier: Apache-2.0
"""The result for people, as text, and for programs that read JUnit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from .distribution import Distribution
from .probes import PROBE_OF
from .ratio import LEVEL, SLOW
from .result import AcceptanceResult

_BAR: Final = 20


def format_result(result: AcceptanceResult) -> Iterator[str]:
    """Yield the result as lines of text for people."""
    if result.refused is not None:
        yield f"refused ({result.refused.kind}): {result.refused.text}"
    if not result.promised:
        yield f"no promise of the cloud to check ({result.unpromised})"
    for finding in result.findings:
        mark = "WRONG" if finding.wrong else "note"
        about = "" if finding.device is None else f"device {finding.device}: "
        yield f"{mark} {finding.kind}: {about}{finding.text}"
    if result.rows:
        yield f"{'probe':<14}{'baseline':>11}{'here':>11} {'ratio':>6}  {'interval':<13} verdict"
    for row in result.rows:
        bar = "#" * max(0, min(_BAR, round(row.ratio * _BAR)))
        limit = " (at its limit)" if row.at_limit else ""
        yield (
            f"{row.probe:<14}{row.base:>11.4g}{row.test:>11.4g} {row.ratio:>6.3f}  "
            f"{row.low:.3f}-{row.high:<7.3f} {row.verdict:<9} |{bar:<{_BAR}}| "
            f"{row.unit}, against {row.against}, {row.pairs} pairs{limit}"
        )
    judged = {row.probe for row in result.rows}
    for value in result.measured:
        if value.probe not in judged:
            yield (
                f"{value.probe:<14}{'':>11}{value.median:>11.4g} {'':>6}  {'':<13} not judged "
                f"{value.unit}, {value.runs} runs"
            )
    for distribution in find_doubtful(result):
        yield from format_distribution(distribution)
    for probe, reason in result.missing.items():
        yield f"left out {probe}: {reason}"
    for probe, reason in result.failed.items():
        yield f"FAILED {probe}: {reason}"
    measured = [value.probe for value in result.measured if value.probe in PROBE_OF]
    for name in sorted({PROBE_OF[probe].tool for probe in measured}):
        version, tried = result.tools.get(name, ("?", True))
        if not tried:
            said = (
                "it does not say its version" if version == "?" else "not tried with this version"
            )
            yield f"note {name}{'' if version == '?' else f' {version}'}: {said}"
    for cause in result.diagnosis.causes:
        yield f"CAUSE {cause.cause} ({cause.status}): {cause.says}"
        yield f"  explains {', '.join(cause.explains)}; cure: {cause.cure}"
    if result.diagnosis.unexplained:
        yield f"NO CAUSE FOUND for {', '.join(result.diagnosis.unexplained)}"
    for note in result.notes:
        yield f"note {note}"
    for line in result.published:
        yield _format_published(line)
    yield f"verdict: {result.verdict}"


def find_doubtful(result: AcceptanceResult) -> list[Distribution]:
    """Return the distributions of probes that are not level.

    A probe that is compared with nothing counts only if the caller named it.
    """
    verdicts = {row.probe: row.verdict for row in result.rows}
    default = SLOW if result.partial else LEVEL
    return [each for each in result.distributions if verdicts.get(each.probe, default) != LEVEL]


def format_distribution(shown: Distribution, against: str = "baseline") -> Iterator[str]:
    """Yield a heading and a line a bin, of at most 100 columns.

    :param against: heading of the other side.
    """
    sides = [shown.here] if shown.base is None else [shown.base, shown.here]
    names = ("here",) if shown.base is None else (against, "here")
    heads = "".join(f"{name:>14} {'(logarithmic)':<22}" for name in names)
    yield f"{f'{shown.probe}, {shown.unit}':<16}{heads}".rstrip()
    for label, *counts in zip(shown.labels, *sides):  # noqa: B905
        bars = ((count, "#" * shown.find_length(count, _BAR)) for count in counts)
        yield f"{label:>14}  " + "".join(f"{count:>14} |{bar:<{_BAR}}|" for count, bar in bars)


def _format_published(line: object) -> str:
    data = line if isinstance(line, dict) else {}
    ratio = data.get("ratio")
    published = "-" if ratio is None else f"{ratio:.3f}"
    own = data.get("own")
    beside = "-" if own is None else f"{own:.3f}"
    return (
        f"published {published:>6} here {beside:>6}  {data.get('benchmark')}, "
        f"{data.get('hypervisor')} ({data.get('source')}, {data.get('place')}): {data.get('why')}"
    )


def format_junit(result: AcceptanceResult) -> str:
    """Format the result as JUnit's XML, with one test case for each probe and broken promise."""
    cases: list[str] = []
    failures = errors = skipped = 0
    for finding in result.findings:
        if finding.wrong:
            failures += 1
            cases.append(_format_case(f"promise {finding.kind}", "failure", finding.text))
    reasons = {
        name: f"{cause.cause} ({cause.status}): {cause.says}; cure: {cause.cure}"
        for cause in reversed(result.diagnosis.causes)
        for name in cause.explains
    }
    for row in result.rows:
        text = (
            f"{row.verdict}: ratio {row.ratio:.3f} ({row.low:.3f}-{row.high:.3f}), floor "
            f"{row.floor:g}; {reasons.get(row.probe, 'no cause found')}"
        )
        if row.verdict == LEVEL:
            cases.append(_format_case(row.probe, None, ""))
        else:
            kind = "failure" if row.verdict == SLOW else "error"
            failures += kind == "failure"
            errors += kind == "error"
            cases.append(_format_case(row.probe, kind, text))
    for probe, reason in result.failed.items():
        errors += 1
        cases.append(_format_case(probe, "error", reason))
    for probe, reason in result.missing.items():
        skipped += 1
        cases.append(_format_case(probe, "skipped", reason))
    if result.refused is not None:
        errors += 1
        cases.append(_format_case("accept", "error", result.refused.text))
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<testsuite name="nova-hpc-accept" tests="{len(cases)}" failures="{failures}" '
            f'errors="{errors}" skipped="{skipped}">',
            *cases,
            "</testsuite>",
        ]
    )


def _format_case(name: str, kind: str | None, text: str) -> str:
    says = PROBE_OF[name].says if name in PROBE_OF else name
    head = f"  <testcase classname={quoteattr(name)} name={quoteattr(says)}"
    if kind is None:
        return f"{head}/>"
    clean = "".join(char if char.isprintable() else " " for char in text)
    return f"{head}><{kind} message={quoteattr(clean)}>{escape(clean)}</{kind}></testcase>"
