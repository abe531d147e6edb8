# SPDX-License-Identifier: Apache-2.0
"""Text for people is never data for the program: no code looks into a reason.

Two rules, on the syntax of everything that services load and people type. A *reason* is an
expression whose last name says so (``reason``, ``why``, ``problem``, ``note``, ...), or the
text of an exception. A *sentence* is a text of several words, written here or under a name.

* Nothing compares a reason with anything, nor cuts or searches it.
* Nothing compares any text with a sentence, nor searches one for it.

Where somebody else's program says something in words alone (``lscpu``, libvirt) the place
is named below, with what it reads.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.wheels import list_production_folders

TOP = Path(__file__).resolve().parents[3]
PACKAGES = list_production_folders()

#: One text for people. Plural names are collections, whose keys may be anything.
REASON = re.compile(
    r"(?:^|_)(?:reason|why|problem|note|message|sentence|alarm|unknown|differs|fault|excuse|hint)$"
)
SENTENCE = re.compile(r"\S \S")
#: Methods of a text that look into it, and functions of :mod:`re`.
LOOKS = frozenset(
    (
        *("startswith", "endswith", "find", "rfind", "index", "rindex", "count"),
        *("partition", "rpartition", "removeprefix", "removesuffix", "split", "rsplit"),
    )
)
MATCHES = frozenset(("match", "search", "fullmatch", "findall", "finditer", "sub", "split"))

#: (File, source of the expression) -> whose words they are.
FOREIGN = {
    ("nova_hpc_tools/adopt/prepare.py", "key.strip() == 'CPU implementer'"): "/proc/cpuinfo",
    ("nova_hpc_tools/inventory/node_archive.py", "line.startswith('model name')"): "/proc/cpuinfo",
    ("extras/nova_hpc_simulate/results.py", "key.strip() == 'model name'"): "/proc/cpuinfo",
    ("nova_hpc_tools/inventory/nccl_node.py", "'CPU implementer' in first"): "/proc/cpuinfo",
    ("nova_hpc_guest/accept/facts.py", "'QEMU TCG' in self.model"): "/proc/cpuinfo",
    (
        "nova_hpc_guest/accept/rdma_ports.py",
        "root.text(f'{place}/gid_attrs/types/{name}') == 'RoCE v2'",
    ): "the kernel's (gid_attrs)",
    ("nova_hpc/fabric/partitions/other_managers.py", "text.rpartition(_START)"): "opensm's log",
}
#: What only looks like a text for people: (file, source of the expression) -> what it is.
OTHERWISE = {
    ("nova_hpc_client/accept/cluster_run.py", "result.verdict == UNMEASURED"): "a verdict's word",
    ("nova_hpc_client/accept/whole_run.py", "result.verdict == UNMEASURED"): "the same",
    ("nova_hpc_guest/disks.py", "_MARK in piece"): "bytes of a disk",
    ("nova_hpc_guest/cluster_files.py", "line.rstrip().endswith(_MARK)"): "our lines in a file",
    (
        "nova_hpc_tools/fabric/nova_aggregates.py",
        "step.kind == sync.ADD",
    ): "the kinds of a plan's steps",
    ("nova_hpc_tools/fabric/nova_aggregates.py", "step.kind == sync.METADATA"): "the same",
    ("nova_hpc_tools/fabric/sync_command.py", "step.kind == sync.METADATA"): "the same",
    (
        "nova_hpc_tools/site/include_files.py",
        "text.partition('\\n')[0] == MARKER",
    ): "our files' heads",
    (
        "nova_hpc/fabric/partitions/file_audit.py",
        "(text or '').startswith(RESERVED_COMMENT)",
    ): "our files' heads",
    ("nova_hpc/fabric/partitions/partition_file.py", "head[0] != _TITLE"): "the same",
    ("nova_hpc_guest/document.py", "reason in PEER_REASONS"): "words of the guest document",
    ("nova_hpc_guest/accept/cause_facts.py", "peers.why in reasons"): "the same",
    ("nova_hpc_tools/adopt/host_files.py", "MARKER in text.splitlines()[:2]"): "our files' heads",
    (
        "nova_hpc_tools/site/layouts.py",
        "line.startswith(_REPEATED)",
    ): "a line that configure writes",
    ("nova_hpc_tools/site/layouts.py", "line.removeprefix(_REPEATED)"): "the same",
    ("nova_hpc_tools/inventory/kinds.py", "of == 'NUMA node'"): "the order of a table's rows",
    ("nova_hpc/topology/peer.py", "reason in states"): "members of an enumeration",
    (
        "virt_driver_patches/driver/kept_devices.py",
        "ledger.device(address).differs != texts.get(address, '')",
    ): "whether there is anything to write",
}


class Look(NamedTuple):
    """A place that looks into a text."""

    path: str
    line: int
    source: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.source}"


def looks(tree: ast.Module, path: str, sentences: frozenset[str] = frozenset()) -> Iterator[Look]:
    """Every place of a module that looks into a text for people.

    :param sentences: names of constants, of all modules, whose values are sentences.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found = _compared(node, sentences)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found = _called(node, node.func, sentences)
        elif isinstance(node, ast.Match):
            found = _is_reason(node.subject)
        else:
            continue
        if found:
            yield Look(path, node.lineno, ast.unparse(node).partition("\n")[0])


def _compared(node: ast.Compare, sentences: frozenset[str]) -> bool:
    left = node.left
    for operation, right in zip(node.ops, node.comparators, strict=True):
        if isinstance(operation, (ast.Is, ast.IsNot)):
            pass  # None, or a member of an enumeration
        elif isinstance(operation, (ast.In, ast.NotIn)):
            # A reason as a member of a collection, or something within a reason.
            if _is_reason(left) or _is_reason(right) or _is_sentence(left, sentences):
                return True
            if isinstance(right, (ast.Tuple, ast.Set, ast.List)) and any(
                _is_sentence(each, sentences) for each in right.elts
            ):
                return True
        elif not (_is_empty(left) or _is_empty(right)) and any(
            _is_reason(each) or _is_sentence(each, sentences) for each in (left, right)
        ):
            return True
        left = right
    return False


def _called(node: ast.Call, method: ast.Attribute, sentences: frozenset[str]) -> bool:
    if isinstance(method.value, ast.Name) and method.value.id == "re":
        return method.attr in MATCHES and any(map(_is_reason, node.args))
    if method.attr in MATCHES and any(map(_is_reason, node.args)):
        return True
    if method.attr not in LOOKS or (method.attr == "split" and not node.args):
        return False  # the words of a text, to put them on one line
    return _is_reason(method.value) or any(_is_sentence(each, sentences) for each in node.args)


def _is_reason(node: ast.expr) -> bool:
    if isinstance(node, ast.Subscript):  # of a collection of reasons, or a part of one
        return _is_reason(node.value) or (
            isinstance(node.value, (ast.Name, ast.Attribute)) and _plural(_name(node.value))
        )
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "str":
            return bool(node.args) and _is_error(node.args[0])
        if isinstance(node.func, ast.Attribute) and node.func.attr in (
            *("lower", "upper", "strip", "lstrip", "rstrip", "casefold"),
        ):
            return _is_reason(node.func.value)
        return _named(node.func)
    return _named(node)


def _named(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and bool(REASON.search(_name(node)))


def _plural(name: str) -> bool:
    return name.endswith("s") and bool(REASON.search(name.removesuffix("s")))


def _name(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _is_error(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute)) and bool(
        re.search(r"(?:^|_)(?:error|err|exc|exception|e|problem)$", _name(node))
    )


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("", None)


def _is_sentence(node: ast.expr, sentences: frozenset[str]) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and bool(SENTENCE.search(node.value))
    return isinstance(node, (ast.Name, ast.Attribute)) and _name(node) in sentences


def constants(tree: ast.Module) -> Iterator[str]:
    """Names of a module's constants whose values are sentences."""
    for node in tree.body:
        value = getattr(node, "value", None)
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if isinstance(value, ast.Constant) and _is_sentence(value, frozenset()):
            yield from (each.id for each in targets if isinstance(each, ast.Name))


@pytest.fixture(scope="module")
def found() -> list[Look]:
    trees = {
        str(path.relative_to(TOP)): ast.parse(path.read_text())
        for package in PACKAGES
        for path in sorted((TOP / package).rglob("*.py"))
    }
    assert len(trees) > 300
    names = frozenset(name for tree in trees.values() for name in constants(tree))
    return [each for path, tree in trees.items() for each in looks(tree, path, names)]


def test_no_code_looks_into_a_reason(found):
    known = {**FOREIGN, **OTHERWISE}
    assert [str(each) for each in found if (each.path, each.source) not in known] == []


def test_what_is_excused_is_there(found):
    assert {*FOREIGN, *OTHERWISE} <= {(each.path, each.source) for each in found}


@pytest.mark.parametrize(
    "code",
    [
        "x = SILENT in finding.reason",
        "x = 'words' in why",
        "x = not why.startswith(never.UNSURE)",
        "x = why.partition(';')[0]",
        "x = ': 404: ' in str(error)",
        "x = str(error).startswith('a')",
        "x = why == reserve.BY_OPERATOR",
        "x = found.reason in KNOWN",
        "x = reasons[address] == 'a'",
        "x = ledger.problems[0].endswith('lost')",
        "x = re.search('lost', problem)",
        "x = LOST.search(error.reason)",
        "x = finding.reason.lower().find('lost')",
        "x = text == 'it is lost'",
        "x = 'it is lost' in text",
        "x = text in ('it is lost', 'a')",
        "x = text.startswith('it is')",
        "x = text == LOST_TEXT",
        "match finding.reason:\n    case 'a':\n        pass",
    ],
)
def test_a_look_is_seen(code):
    assert list(looks(ast.parse(code), "x.py", frozenset({"LOST_TEXT"})))


@pytest.mark.parametrize(
    "code",
    [
        "x = finding.sign is Sign.SILENT",
        "x = address in reasons",
        "x = reason is None",
        "x = why != ''",
        "x = word == 'silent'",
        "x = text.startswith('/dev/')",
        "x = reason.rstrip('.')",
        "x = ' '.join(str(error).split())",
    ],
)
def test_what_goes_by_data_is_not(code):
    assert not list(looks(ast.parse(code), "x.py", frozenset({"LOST_TEXT"})))
