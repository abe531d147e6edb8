# SPDX-License-Identifier: Apache-2.0
"""Modules that docstrings and comments name are there."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from tools.wheels import read_entry_points, read_package_roots

PACKAGES = read_package_roots()
_DOTTED = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
#: Groups of entry points have names like modules.
GROUPS = frozenset(read_entry_points())
_FILE = re.compile(rf"\b(?:{'|'.join(PACKAGES)})/[\w/]+\.py\b")


def names_a_module(name: str) -> bool:
    """Whether it is a module, or leads into one: the rest is an attribute."""
    if name in GROUPS:
        return True
    parts = name.split(".")
    for number in range(len(parts), 0, -1):
        place = PACKAGES[parts[0]].joinpath(*parts[:number])
        if place.with_suffix(".py").is_file():
            return is_defined(place.with_suffix(".py"), parts[number:])
        if place.is_dir():
            # A folder: what follows would have to be in it.
            return number == len(parts) or is_defined(place / "__init__.py", parts[number:])
    return False


def is_defined(file: Path, attributes: list[str]) -> bool:
    if not attributes:
        return True
    if not file.is_file():
        return False
    text = file.read_text(encoding="utf-8")
    return re.search(rf"^\s*(?:class |def |async def )?{attributes[0]}\b", text, re.M) is not None


def texts_for_people(source: str) -> list[str]:
    """Docstrings and comments."""
    found = [
        docstring
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (docstring := ast.get_docstring(node, clean=False))
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return found + [token.string for token in tokens if token.type == tokenize.COMMENT]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_module_in_a_docstring_is_there(package):
    wrong = []
    for path in sorted((PACKAGES[package] / package).rglob("*.py")):
        for text in texts_for_people(path.read_text(encoding="utf-8")):
            wrong += [
                f"{path}: {name}" for name in _DOTTED.findall(text) if not names_a_module(name)
            ]
            wrong += [
                f"{path}: {name}"
                for name in _FILE.findall(text)
                if not (PACKAGES[name.partition("/")[0]] / name).exists()
            ]
    assert wrong == []
