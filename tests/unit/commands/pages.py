# SPDX-License-Identifier: Apache-2.0
"""What the pages of the documentation tell people to type: command lines and configuration.

reStructuredText is read as far as it is needed: literal blocks, and inline literals.
"""

from __future__ import annotations

import ast
import datetime
import itertools
import re
import shlex
import textwrap
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import attrs
from oslo_config import cfg

from nova_hpc import conf
from tools.wheels import list_production_folders

TOP = Path(__file__).resolve().parents[3]
DOCS = TOP / "docs/source"
PAGES = (
    TOP / "README.rst",
    TOP / "lab/README.rst",
    # The docs' own build writes into "generated", and may do so while these tests run.
    *sorted(
        path
        for path in DOCS.rglob("*")
        if path.suffix in (".rst", ".inc") and "generated" not in path.parts
    ),
)
MODULES = tuple(
    path
    for folder in (*list_production_folders(), "lab/nova_hpc_lab")
    for path in sorted((TOP / folder).rglob("*.py"))
)
#: How a command of ours begins.
OURS = (("nova-hpc",), ("nova-hpc-guest",), ("openstack", "hpc"))
#: The time of planned work on the pages, and one that is still in the future.
EXAMPLE_TIME = "2026-12-04T08:00Z"
_SOON = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=7)
#: What stands for a value of the reader's, and one such value. A word in capitals that is not
#: here is a mistake of the page.
PLACEHOLDERS = {
    "TIME": f"{_SOON:%Y-%m-%dT%H:%MZ}",
    "GROUP": "7c7fd52e-7b62-4a84-b3a4-6e2c0e6ad001",
    "ADDRESS": "0000:41:00.0",
    "COLUMN": "Name",
    "COMMAND": "inventory",
    "DIR": "folder",
    "FLAVOR": "hpc.gpu4",
    "ENTRY": '{"vendor_id": "10de"}',
    "FILE": "file",
    "HOST": "node17",
    "N": "4",
    "NAME": "gpu",
    "NETWORK": "physnet4",
    "NETWORK:COUNT": "physnet4:2",
    "NODE": "node17",
    "TEXT": "why",
    "SERVER": "train-1",
    "UUID": "6f0c1b52-0000-4000-8000-000000000000",
}
#: Sections of configuration that is not of OpenStack's services -> whose it is.
OTHERS = {"Service": "systemd"} | {
    f"nova-base-plugin-nova-hpc{end}": "kolla-build" for end in ("", "-common", "-guest", "-tools")
}
_WORDS = "|".join(" ".join(each) for each in OURS)
_PROMPT = re.compile(rf"[$#] (?=(?:{_WORDS})(?: |$))", re.MULTILINE)
_OURS = re.compile(rf"(?<![\w/.:-])(?:{_WORDS})(?= |$)")
_SUBSTITUTED = re.compile(r"\$\(([^()]*)\)")
#: A line of a systemd unit that runs something.
_UNIT = re.compile(r"^Exec\w+=(?:\S*/)?")
_NAMED = re.compile(rf"(?:{_WORDS})(?: [a-z][a-z-]*)+(?: --[a-z-]+(?: [A-Z][A-Z:]*(?![a-z]))?)*")
_INLINE = re.compile(rf"``((?:{_WORDS})(?:\s[^`]*)?)``")
_ASSIGNED = re.compile(r"^\s*(\w+)=('[^']*'|\"[^\"]*\"|\S*)$", re.MULTILINE)
_DIRECTIVE = re.compile(r"\.\. (?:code-block|sourcecode|code|parsed-literal)::\s*(\S*)$")
_SECTION = re.compile(r"\[[\w-]+\]$")
#: What is left of a paragraph's text: indentation, and the marks of lists.
_OUTER = re.compile(r"\s*(?:(?:#\.|\d+\.|[*-])\s+)*")
_STOPS = frozenset((";", "|", "||", "&&", "&", "(", ")"))


@attrs.frozen
class Typed:
    """A command line of a page."""

    page: str
    line: int
    text: str
    words: tuple[str, ...]
    #: In a sentence: it names a command and options, and may leave out the rest.
    inline: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


@attrs.frozen
class Block:
    """A literal block, without its indentation."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The literal blocks of a page."""
    lines = page.read_text(encoding="utf-8").split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        text = line.strip()
        language = ""
        if found := _DIRECTIVE.fullmatch(text):
            language = found.group(1) or "text"
        elif not text.endswith("::") or text.startswith(".. "):
            continue
        outer = len(_OUTER.match(line)[0])
        start = at
        while at < len(lines) and (
            not lines[at].strip() or len(lines[at]) - len(lines[at].lstrip()) > outer
        ):
            at += 1
        inside = lines[start:at]
        while inside and (not inside[0].strip() or re.match(r"\s+:[\w-]+:", inside[0])):
            del inside[0]
            start += 1
        name = str(page.relative_to(TOP))
        yield Block(name, start + 1, language, textwrap.dedent("\n".join(inside)).strip("\n"))


def settings(page: Path) -> Iterator[Block]:
    """The blocks that are configuration: those that say so, or begin with a section."""
    for block in blocks(page):
        first = next((each for each in block.text.split("\n") if not each.startswith("#")), "")
        if block.language == "ini" or _SECTION.match(first):
            yield block


def of_services() -> list[tuple[str, str]]:
    """Where there is configuration of OpenStack's services, and its text: pages and samples."""
    found = [(str(block), block.text) for page in PAGES for block in settings(page)]
    found = [each for each in found if not any(f"[{name}]" in each[1] for name in OTHERS)]
    samples = sorted((TOP / "etc/examples").glob("*.conf"))
    return [*found, *((str(path.relative_to(TOP)), path.read_text()) for path in samples)]


def commands(page: Path) -> Iterator[Typed]:
    """Each command of ours on a page."""
    found = tuple(blocks(page))
    variables: dict[str, str] = {}
    for block in found:
        for name, value in _ASSIGNED.findall(block.text):
            variables[name] = _expanded(value.strip("'\""), variables)
    for block in found:
        yield from _in_block(block, variables)
    text = page.read_text(encoding="utf-8")
    for match in _INLINE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        said = " ".join(match.group(1).split())
        for each in _alternatives(said):
            for words in _calls(each, variables):
                yield Typed(str(page.relative_to(TOP)), line, said, words, inline=True)


def named(module: Path) -> Iterator[Typed]:
    """The commands, with the options behind them, that texts of a module name."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for said in _NAMED.findall(" ".join(node.value.split())):
                words = tuple(said.split())
                yield Typed(str(module.relative_to(TOP)), node.lineno, said, words, inline=True)


def _in_block(block: Block, variables: dict[str, str]) -> Iterator[Typed]:
    """The commands of a block: after prompts alone, where there are any."""
    prompts = bool(_PROMPT.search(block.text))
    number, whole = 0, ""
    for at, line in enumerate(block.text.split("\n")):
        if not whole:
            number = block.line + at
            if (prompts and not _PROMPT.match(line)) or not _OURS.search(_UNIT.sub("", line)):
                continue
            line = _UNIT.sub("", _PROMPT.sub("", line))
        whole += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        if _is_open(whole):
            whole += "\n"
            continue
        text, whole = whole, ""
        for words in _calls(text, variables):
            yield Typed(block.page, number, " ".join(text.split()), words, inline=False)
    if whole:
        raise ValueError(f"{block.page}:{number}: a quotation has no end: {whole}")


def _is_open(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


def _calls(text: str, variables: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """The calls of ours in one line of shell, as its words come out."""
    for inside in _SUBSTITUTED.findall(text):
        if _OURS.search(inside):
            yield from _calls(inside, variables)
    text = _SUBSTITUTED.sub("SUBSTITUTED", text)
    lexer = shlex.shlex(_expanded(text, variables), posix=True, punctuation_chars=";|&<>()")
    lexer.whitespace_split = True
    words = list(lexer)
    for is_stop, each in itertools.groupby(words, _STOPS.__contains__):
        call = list(each)
        while call and (call[0] in ("do", "then", "else", "if", "sudo") or "=" in call[0]):
            del call[0]
        if not is_stop and any(tuple(call[: len(ours)]) == ours for ours in OURS):
            yield tuple(_placed(_without_redirections(call)))


def _expanded(text: str, variables: dict[str, str]) -> str:
    """A shell's variables with what the page has given them; of a loop nobody knows it."""
    named = re.sub(r"\$\{(\w+)[^}]*\}", r"$\1", text)
    quoted = re.sub(r'"\$(\w+)"', lambda m: shlex.quote(variables.get(m[1], "value")), named)
    return re.sub(r"\$(\w+)", lambda match: variables.get(match[1], "value"), quoted)


def _without_redirections(words: list[str]) -> list[str]:
    kept: list[str] = []
    left = iter(words)
    for each in left:
        if each in (">", ">>", "<"):
            next(left)
            if kept and kept[-1] == "2":
                del kept[-1]
        else:
            kept.append(each)
    return kept


def _alternatives(text: str) -> Iterator[str]:
    """``hosts|topology -f a|b`` is four commands."""
    text = text.replace(" | ", " \0 ")
    for words in itertools.product(*(each.split("|") for each in text.split(" "))):
        yield " ".join(words).replace("\0", "|")


def _placed(words: list[str]) -> Iterator[str]:
    """The words with values for placeholders; ``...`` is "and so on"."""
    for word in words:
        if word == "...":
            continue
        if re.fullmatch(r"[A-Z][A-Z:_]*", word) and word != "SUBSTITUTED":
            if word not in PLACEHOLDERS:
                raise ValueError(f"{word} is no placeholder that readers know: {words}")
            yield PLACEHOLDERS[word]
        else:
            yield word.replace(EXAMPLE_TIME, PLACEHOLDERS["TIME"])


def wrong_settings(
    text: str, folder: Path, known: Mapping[str, Collection[cfg.Opt]], whole: Collection[str]
) -> list[str]:
    """What oslo.config would not take of a configuration, or take otherwise than it is meant.

    :param known: group -> options of others.
    :param whole: the groups of which every option is known.
    """
    file = folder / "block.conf"
    file.write_text(text + "\n")
    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(str(file), sections).parse()
    options = cfg.ConfigOpts()
    conf.register_all_options(options)
    groups: dict[str, dict[str, cfg.Opt]] = {}
    for group, opts in (*conf.list_opts(), *known.items()):
        names = groups.setdefault(group, {})
        for opt in opts:
            names |= {opt.dest: opt, opt.name: opt}
            # No others of known groups: some have to be set, which no part of a file can do.
            if group in known and {opt.dest, opt.name} & {*sections.get(group, ())}:
                options.register_opt(opt, group=None if group == "DEFAULT" else group)
    options([], default_config_files=[str(file)], default_config_dirs=[])
    wrong = []
    for section, keys in sections.items():
        for key, values in keys.items():
            what = f"[{section}]{key}"
            option = groups.get(section, {}).get(key)
            if option is None and section in whole:
                wrong.append(f"{what} is no option")
            if len(values) > 1 and not isinstance(option, cfg.MultiOpt):
                wrong.append(f"{what} is given {len(values)} times, and the last alone counts")
            try:
                if option is not None:
                    place = options if section == "DEFAULT" else options[section]
                    place[option.dest]
            except ValueError as error:
                wrong.append(f"{what}: {error}")
    return wrong
