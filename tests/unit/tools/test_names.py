# SPDX-License-Identifier: Apache-2.0
"""One name, one thing: what HACKING.rst says of names, counted over all production packages."""

from __future__ import annotations

import ast
import collections
from pathlib import Path

import pytest

from tools.wheels import list_production_folders

TOP = Path(__file__).resolve().parents[3]
PACKAGES = list_production_folders()
#: Module functions with a name of one word: entry points and what others call by name.
MOST_ONE_WORD = 0.02
#: Functions and methods that share their name with another; methods of one protocol have to.
MOST_SHARED = 0.30
#: Names that say nothing of what they hold, and their part of all bound names.
EMPTY = frozenset(("each", "found", "one", "known", "now", "why", "mine", "other", "said"))
EMPTY |= {"here", "then", "was"}
MOST_EMPTY = 0.005

Function = ast.FunctionDef | ast.AsyncFunctionDef


Modules = list[tuple[str, ast.Module]]


@pytest.fixture(scope="module")
def modules() -> Modules:
    """Path and syntax of each module: two seconds."""
    return [
        (str(path.relative_to(TOP)), ast.parse(path.read_text(encoding="utf-8")))
        for package in PACKAGES
        for path in sorted((TOP / package).rglob("*.py"))
        # A file of the build, the same in each wheel (test_packaging.py).
        if path.name != "hatch_build.py"
    ]


def test_a_function_says_verb_and_object(modules: Modules) -> None:
    names = [
        (path, node.name)
        for path, tree in modules
        for node in tree.body
        if isinstance(node, Function)
    ]
    one_word = [each for each in names if "_" not in each[1].strip("_")]
    assert len(names) > 2000
    assert len(one_word) <= MOST_ONE_WORD * len(names), one_word


def test_functions_do_not_share_their_names(modules: Modules) -> None:
    names = collections.Counter(
        node.name.strip("_")
        for _, tree in modules
        for node in ast.walk(tree)
        if isinstance(node, Function) and not node.name.startswith("__")
    )
    shared = sum(count for count in names.values() if count > 1)
    assert shared <= MOST_SHARED * names.total(), names.most_common(20)


def test_a_class_has_a_name_of_its_own(modules: Modules) -> None:
    places = collections.defaultdict(list)
    for path, tree in modules:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name.strip("_")].append(path)
    assert len(places) > 700
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_local_says_what_it_holds(modules: Modules) -> None:
    bound, empty = 0, []
    for path, tree in modules:
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.arg):
                name = node.arg
            else:
                continue
            bound += 1
            if name in EMPTY:
                empty.append(f"{path}:{node.lineno}: {name}")
    assert bound > 20_000
    assert len(empty) <= MOST_EMPTY * bound, empty
