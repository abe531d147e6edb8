#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The style of the pages: long sentences, vague words, figures without a record, missing links.

``python docs/style.py`` judges all pages against the bounds in ``style.toml`` and names each page
that has more. ``python docs/style.py admin/adopt`` prints every finding of a page, one a line.
``--lower`` writes the current counts into the file if they are lower.

docutils reads a page, with stand-ins for Sphinx's own directives and roles. No configuration is
read and no command loaded, so that it takes seconds. Code and generated text do not count. A
literal, and a link's target, is one word.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import figures
import page_links
from docutils import frontend, nodes, utils
from docutils.parsers import rst
from docutils.parsers.rst import directives, roles

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS / "source"
BOUNDS = DOCS / "style.toml"
#: The most words of a sentence.
LONGEST = 30
#: The generated tabs of the deployment tools.
TABS = "admin/layouts.inc"
#: Each rule, and the cure of a finding.
RULES = {
    "long": f"a sentence has at most {LONGEST} words",
    "where": 'a condition begins with "if"; "where" is for places',
    "actor": "name who does it, or say that none does",
    "glossary": "another word stands for it in the glossary",
    "title": "another page has this title",
    "deny": "the deny list of docs/style.toml has it: write it in plain English",
    "figure": "a measured figure names its record in its paragraph (docs/figures.py)",
    "link": "the start page leads to each page, to those of readers in a few clicks",
}

#: "where" as a condition, by its neighbours: at the beginning of a sentence or of a
#: part of it, behind "only" and similar words, or before "there is". Elsewhere it may be a place.
_WHERE = re.compile(
    r"(?:^|[,;:(]\s+|\b(?:also|and|but|even|except|only|or)\s+)where\b(?! to\b)"
    r"|\bwhere(?=\s+(?:there\s+(?:are|is)|no|none|nothing|that|this)\b)",
    re.IGNORECASE,
)
_ACTOR = re.compile(r"\b(?:nobody|somebody|anybody|by (?:itself|themselves))\b", re.I)
#: Words of the glossary's column "not" without any other meaning.
_GLOSSARY = re.compile(
    r"\b(?:ailing|bundles?|cleansings?|keepers?|put away|yardsticks?)\b", re.IGNORECASE
)
#: Words and beginnings of sentences of a dialect that readers have to decode.
_DENIED = re.compile(
    "|".join(tomllib.loads(BOUNDS.read_text(encoding="utf-8"))["deny"]["patterns"]), re.IGNORECASE
)
_WORD = re.compile("[^\\W_]|[\ue000-\ue07f]")
#: The end of a sentence: not behind an abbreviation, nor before a small letter except "nova-".
_END = re.compile(r'(?<!e\.g\.)(?<!i\.e\.)(?<!cf\.)(?<!vs\.)(?<=[.!?])["\')]*\s+(?=[^a-z\s]|nova-)')
#: Nodes whose text does not belong to the page itself.
_SKIPPED = (
    nodes.comment,
    nodes.literal_block,
    nodes.doctest_block,
    nodes.raw,
    nodes.math_block,
    nodes.substitution_definition,
    nodes.system_message,
)
#: Characters of literals are moved here, so that a literal is one word and matches no rule.
_MASK = 0xE000
_MASKED = {code: _MASK + code for code in range(0x80)}
_UNMASKED = {mask: chr(code) for code, mask in _MASKED.items()}
_MASKED_END = chr(_MASK + ord("\n"))
#: Directives of Sphinx and its extensions that contain text of the page.
_AROUND_TEXT = (
    *("deprecated", "dropdown", "glossary", "grid", "grid-item", "grid-item-card", "hlist", "only"),
    *("seealso", "tab-item", "tab-set", "versionadded", "versionchanged"),
)
#: Directives without text of the page itself.
_WITHOUT_TEXT = (
    *(
        "autoprogram-cliff",
        "button-ref",
        "code-block",
        "include",
        "literalinclude",
        "parsed-literal",
    ),
    *("raw", "show-options", "toctree"),
)
_ROLES = (
    *(
        "abbr",
        "command",
        "doc",
        "download",
        "envvar",
        "file",
        "guilabel",
        "kbd",
        "numref",
        "octicon",
    ),
    *("option", "program", "ref", "samp", "term"),
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A place on a page.

    :ivar rule: one of ``RULES``.
    :ivar text: the sentence.
    """

    page: str
    file: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.text}"


class _AnyOptions(dict[str, Any]):
    """Options of any name; their values do not count as text of the page."""

    def __missing__(self, name: str) -> Any:
        return directives.unchanged


class _AroundText(rst.Directive):
    """A stand-in for a directive that contains text of the page."""

    has_content = True
    optional_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[Any] = _AnyOptions({"class": directives.unchanged})

    def run(self) -> list[nodes.Node]:
        inside = nodes.container("", directive=self.name)
        self.state.nested_parse(self.content, self.content_offset, inside)
        return [inside]


class _WithoutText(_AroundText):
    """A stand-in for a directive with code, a list of pages, or content that Sphinx generates."""

    def run(self) -> list[nodes.Node]:
        if self.name == "toctree" and "hidden" not in self.options:
            return [nodes.comment("", "", toctree=list(self.content))]
        if self.name == "include":
            return [nodes.comment("", "", included=" ".join(self.arguments))]
        return []


def _read_role(
    name: str,
    rawtext: str,
    text: str,
    lineno: int,
    inliner: Any,
    options: Any = None,
    content: Any = (),
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """Any role of Sphinx: a link with its own words counts as these words, else as one word."""
    said = re.fullmatch(r"(?s)(.+?)\s*<([^<>]+)>", text)
    of_role = {"role": name, "target": said[2] if said else text}
    return [
        nodes.inline("", said[1], **of_role) if said else nodes.literal("", text, **of_role)
    ], []


def _register() -> None:
    """Register stand-ins for Sphinx's directives and roles in docutils."""
    for name in _AROUND_TEXT:
        directives.register_directive(name, _AroundText)
    for name in _WITHOUT_TEXT:
        directives.register_directive(name, _WithoutText)
    for name in _ROLES:
        roles.register_local_role(name, _read_role)


def read_page(text: str, file: str) -> nodes.document:
    """The doctree of a page.

    :raises ValueError: docutils cannot read it, or it has a directive or role that has no stand-in.
    """
    _register()
    settings = frontend.get_default_settings(rst.Parser)
    settings.report_level = 5
    document = utils.new_document(file, settings)
    wrong: list[str] = []
    document.reporter.attach_observer(
        lambda message: wrong.append(message.astext()) if message["level"] >= 3 else None
    )
    rst.Parser().parse(text, document)
    if wrong:
        raise ValueError(f"{wrong[0]} (a new directive or role is added to docs/style.py)")
    return document


def _text_of(paragraph: nodes.paragraph) -> str:
    """A paragraph's text with each literal as one word, and with the line ends of the file."""
    parts = []
    for text in paragraph.findall(nodes.Text):
        above = text.parent
        parts.append(text.translate(_MASKED) if isinstance(above, nodes.literal) else str(text))
    return "".join(parts)


def list_sentences(document: nodes.document) -> Iterator[tuple[int, str, nodes.paragraph]]:
    """The line and the text of each sentence of a page, and its paragraph."""
    for paragraph in document.findall(nodes.paragraph):
        above = paragraph.parent
        while above is not None and not isinstance(above, _SKIPPED):
            above = above.parent
        if above is not None:
            continue
        text = _text_of(paragraph)
        # An entry of a table may have no line, but its row has one.
        line = paragraph.line or getattr(paragraph.parent, "line", None) or 1
        start = 0
        for end in [*(match.end() for match in _END.finditer(text)), len(text)]:
            said = text[start:end]
            if said.strip():
                before = text[:start] + said[: len(said) - len(said.lstrip())]
                at = line + before.count("\n") + before.count(_MASKED_END)
                yield at, said.strip(), paragraph
            start = end


def count_words(sentence: str) -> int:
    """The number of words of a sentence; a dash or another sign does not count."""
    return sum(bool(_WORD.search(each)) for each in sentence.split())


def judge_sentence(sentence: str) -> Iterator[str]:
    """The rules that a sentence breaks, once for each finding."""
    if count_words(sentence) > LONGEST:
        yield "long"
    yield from ("where" for _ in _WHERE.finditer(sentence))
    yield from ("actor" for _ in _ACTOR.finditer(sentence))
    yield from ("glossary" for _ in _GLOSSARY.finditer(sentence))
    yield from ("deny" for _ in _DENIED.finditer(sentence))


def read_pages(source: Path) -> dict[str, nodes.document]:
    """The doctree of each page below *source*.

    :raises ValueError: a page cannot be read.
    """
    return {
        path.relative_to(source).with_suffix("").as_posix(): read_page(
            path.read_text(encoding="utf-8"), str(path.relative_to(source.parents[1]))
        )
        for path in sorted(source.rglob("*.rst"))
    }


def judge_links(
    documents: Mapping[str, nodes.document], rules: Mapping[str, Any]
) -> tuple[list[Finding], int]:
    """The links that are missing, and the number of pages to which the start page leads.

    :param rules: the most ``clicks``, the folders of ``readers`` to which they apply, and the
        pages to which a page has to lead ``directly``.
    """
    labels = page_links.list_labels(documents)
    links = {
        page: frozenset(page_links.list_links(page, document, labels))
        for page, document in documents.items()
    }
    clicks = page_links.count_clicks(links)
    missing = [(page, "the start page does not lead here") for page in links if page not in clicks]
    missing += [
        (page, f"{count} clicks from the start page, and at most {rules['clicks']}")
        for page, count in clicks.items()
        if count > rules["clicks"] and page.partition("/")[0] in rules["readers"]
    ]
    missing += [
        (page, f"no link to {target}")
        for page, targets in rules["directly"].items()
        for target in targets
        if target not in links.get(page, ())
    ]
    found = [Finding(page, f"docs/source/{page}.rst", 1, "link", text) for page, text in missing]
    return found, len(clicks)


def judge_pages(
    documents: Mapping[str, nodes.document],
) -> tuple[list[Finding], Mapping[str, int]]:
    """The findings of pages, and the numbers of pages, sentences, words, figures and tabs."""
    findings = []
    size: Counter[str] = Counter()
    titles: dict[str, str] = {}
    labels = page_links.list_labels(documents)
    for page, document in documents.items():
        file = document["source"]
        title = next((each.astext() for each in document.findall(nodes.title)), "")
        if title in titles:
            findings.append(Finding(page, file, 1, "title", f"{title} ({titles[title]})"))
        titles.setdefault(title, page)
        size["pages"] += 1
        size["pages with tabs"] += any(
            each.get("directive") == "tab-set" or each.get("included", "").endswith(TABS)
            for each in document.findall(nodes.Element)
        )
        for line, sentence, paragraph in list_sentences(document):
            size["sentences"] += 1
            size["words"] += count_words(sentence)
            text = " ".join(sentence.translate(_UNMASKED).split())
            findings += [Finding(page, file, line, rule, text) for rule in judge_sentence(sentence)]
            count = figures.count_figures(sentence, paragraph)
            size["figures"] += count
            near = figures.list_places(paragraph, page)
            if count and not any(any(figures.list_records(each, labels)) for each in near):
                findings += [Finding(page, file, line, "figure", text)] * count
    return findings, size


def count_findings(findings: Iterable[Finding]) -> dict[str, dict[str, int]]:
    """The number of findings, by page and rule."""
    counts: dict[str, dict[str, int]] = {}
    for each in findings:
        of_page = counts.setdefault(each.page, {})
        of_page[each.rule] = of_page.get(each.rule, 0) + 1
    return counts


def list_excesses(
    counts: Mapping[str, Mapping[str, int]], bounds: Mapping[str, Any]
) -> list[tuple[str, str, int, int]]:
    """Each count above its bound: page, rule, count and bound; the page is "" for the whole site.

    A page without bounds is a new one.
    """
    excesses = []
    for page, of_page in sorted(counts.items()):
        allowed = bounds["pages"].get(page, bounds["new"])
        for rule, count in sorted(of_page.items()):
            if count > allowed.get(rule, 0):
                excesses.append((page, rule, count, allowed.get(rule, 0)))
    for rule, bound in bounds["site"].items():
        count = sum(of_page.get(rule, 0) for of_page in counts.values())
        if count > bound:
            excesses.append(("", rule, count, bound))
    return excesses


def lower_bounds(
    counts: Mapping[str, Mapping[str, int]], bounds: Mapping[str, Any]
) -> dict[str, Any]:
    """The bounds, lowered to the current counts; a page without findings needs no bounds."""
    pages = {}
    for page, of_page in sorted(counts.items()):
        allowed = bounds["pages"].get(page, bounds["new"])
        kept = {rule: min(of_page.get(rule, 0), allowed.get(rule, 0)) for rule in RULES}
        kept = {rule: count for rule, count in kept.items() if count}
        if kept:
            pages[page] = kept
    site = {
        rule: min(bound, sum(of_page.get(rule, 0) for of_page in counts.values()))
        for rule, bound in bounds["site"].items()
    }
    return {**bounds, "site": site, "new": dict(bounds["new"]), "pages": pages}


def write_bounds(bounds: Mapping[str, Any]) -> str:
    """The text of ``style.toml``."""
    lines = [
        "# How many findings of docs/style.py a page may have, and the site. They only fall:",
        "# python docs/style.py --lower",
        "",
        "# The most words of all pages: generated tables do not count. A person changes it.",
        "[size]",
        f"words = {bounds['size']['words']}",
        "",
        "# Regular expressions, applied to each sentence.",
        "[deny]",
        "patterns = [",
        *(f"  {json.dumps(pattern)}," for pattern in bounds["deny"]["patterns"]),
        "]",
    ]
    links = bounds["links"]
    lines += [
        "",
        "# Readers' pages are at most this many clicks from the start page.",
        "[links]",
        f"clicks = {links['clicks']}",
        f"readers = {json.dumps(links['readers'])}",
        "",
        "# Links that a page has to have.",
        "[links.directly]",
    ]
    for page, targets in links["directly"].items():
        lines += [f"{json.dumps(page)} = [", *(f"  {json.dumps(each)}," for each in targets), "]"]
    for section in ("site", "new"):
        lines += ["", f"[{section}]", *(f"{rule} = {n}" for rule, n in bounds[section].items())]
    lines += ["", "[pages]"]
    for page, of_page in sorted(bounds["pages"].items()):
        inside = ", ".join(f"{rule} = {count}" for rule, count in of_page.items())
        lines.append(f'"{page}" = {{ {inside} }}')
    return "\n".join([*lines, ""])


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the pages; return 0 if all are within their bounds, 1 if not, 2 if that failed."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "pages", nargs="*", help="pages, as admin/adopt, whose findings are printed"
    )
    parser.add_argument("--lower", action="store_true", help="lower the bounds to what there is")
    asked = parser.parse_args(arguments)
    try:
        bounds = tomllib.loads(BOUNDS.read_text(encoding="utf-8"))
        documents = read_pages(SOURCE)
    except (OSError, ValueError) as error:
        print(f"style: {error}", file=sys.stderr)
        return 2
    findings, size = judge_pages(documents)
    missing, reached = judge_links(documents, bounds["links"])
    findings += missing
    for page in asked.pages:
        name = page.removeprefix("docs/source/").removesuffix(".rst")
        if not (SOURCE / f"{name}.rst").is_file():
            print(f"style: there is no page {name}", file=sys.stderr)
            return 2
        print("\n".join(str(each) for each in findings if each.page == name) or f"{name}: nothing")
    if asked.pages:
        return 0
    counts = count_findings(findings)
    if asked.lower:
        BOUNDS.write_text(write_bounds(lower_bounds(counts, bounds)), encoding="utf-8")
        bounds = tomllib.loads(BOUNDS.read_text(encoding="utf-8"))
    totals = Counter(each.rule for each in findings)
    sizes = {**size, "pages in reach": reached}
    for name, number in (*sizes.items(), *((rule, totals[rule]) for rule in RULES)):
        print(f"{name:16}{number:8,}")
    excesses = list_excesses(counts, bounds)
    for page, rule, count, bound in excesses:
        print(f"{page or 'the site'}: {rule}: {count}, and at most {bound}: {RULES[rule]}")
        for each in findings:
            if (each.page, each.rule) == (page, rule):
                print(f"  {each}")
    most = bounds["size"]["words"]
    if size["words"] > most:
        print(f"the site: {size['words']} words, and at most {most}: shorten or remove a page")
    return 1 if excesses or size["words"] > most else 0


if __name__ == "__main__":
    sys.exit(main())
