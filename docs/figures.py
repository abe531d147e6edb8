# SPDX-License-Identifier: Apache-2.0
"""Measured figures of a page, and the record that each of them has to name.

A figure is a number before a unit of time or rate, a ratio or a share ("0.5 s", "3 %", "five
times", "23 of 25"), or any number of a sentence that reports a measurement ("Measured: ..."). A
limit, a period or a default is none: the words before it show that ("every 15 seconds").
Literals and code are commands, options and their output, and headers of tables are names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from docutils import nodes

TOP = Path(__file__).resolve().parents[1]

_WORDS = "two|three|four|five|six|seven|eight|nine|ten|twelve|fifteen|twenty|fifty|hundred"
_NUMBER = rf"(?:\d[\d,]*(?:\.\d+)?|(?:{_WORDS})\b)"
_UNIT = (
    r"(?:%|(?:percent|[KMGT]i?B/s|times|[num]s|µs|s|min|h)\b"
    r"|(?:nano|micro|milli)?seconds?\b|minutes?\b|hours?\b|a second\b)"
)
#: Directly before a number: a limit, a period, a default, or the value behind an option.
_LIMIT = (
    r"(?:\b(?:above|after|at least|at most|below|default|every|for|last|only|than|to|until|up to"
    r"|waits?|within)\s+|[\ue000-\ue07f]\s+\(|=\s*)"
)
_FIGURE = re.compile(
    rf"(?<![\w.,])(?P<limit>{_LIMIT})?{_NUMBER}"
    rf"(?:[\s-]?{_UNIT}(?!\s+by default)|\s+of\s+(?:(?:the|its|all)\s+)?{_NUMBER})",
    re.IGNORECASE,
)
_REPORT = re.compile(r"\b(?:Measured|median|took)\b|(?<!not )\bmeasured:")
_DIGITS = re.compile(rf"(?<![\w.,-]){_NUMBER}", re.IGNORECASE)
#: A file or a command that has, or repeats, a measurement.
_FILE = re.compile(r"\b(?:benchmarks|tests|docs/source/_static)/[\w./-]*\w")
_COMMAND = re.compile(r"\bpython -m ((?:benchmarks|tests)[\w.]*)")


def count_figures(sentence: str, paragraph: nodes.paragraph) -> int:
    """The number of measured figures of a paragraph's sentence, whose literals are masked."""
    if isinstance(getattr(paragraph.parent, "parent", None), nodes.row) and isinstance(
        paragraph.parent.parent.parent, nodes.thead
    ):
        return 0
    found = list(_FIGURE.finditer(sentence))
    if _REPORT.search(sentence):
        return max(len(found), min(len(_DIGITS.findall(sentence)), 1))
    return sum(not match["limit"] for match in found)


def list_records(near: nodes.Node, labels: Mapping[str, str]) -> Iterator[str]:
    """The records that a part of a page names: pages of contributors, files, commands, papers.

    :param labels: the page of each label.
    """
    for node in near.findall(nodes.TextElement):
        text = node.astext()
        if node.get("role") in ("doc", "ref"):
            target = node["target"]
            page = labels.get(target, "") if node["role"] == "ref" else target.lstrip("/")
            if page.startswith("contributor/"):
                yield page
        elif isinstance(node, nodes.reference) and node.get("refuri", "").startswith("https:"):
            yield node["refuri"]
        elif isinstance(node, nodes.literal):
            yield from (file for file in _FILE.findall(text) if (TOP / file).exists())
            for module in _COMMAND.findall(text):
                path = TOP.joinpath(*module.split("."))
                if path.is_dir() or path.with_suffix(".py").is_file():
                    yield module


def list_places(paragraph: nodes.paragraph, page: str) -> Iterator[nodes.Node]:
    """The parts of a page that may name the record of a paragraph's figures.

    These are the paragraph itself, and for a cell the table and the paragraph before it. Pages of
    contributors are records, so a command anywhere in the section is enough.
    """
    yield paragraph
    above: nodes.Node | None = paragraph.parent
    while above is not None:
        if isinstance(above, nodes.table):
            yield above
            before = above.parent[: above.parent.index(above)]
            yield from [each for each in before if isinstance(each, nodes.paragraph)][-1:]
        if isinstance(above, nodes.section) and page.startswith("contributor/"):
            yield above
            break
        above = above.parent
