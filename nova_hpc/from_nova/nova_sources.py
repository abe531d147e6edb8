# SPDX-License-Identifier: Apache-2.0
"""Whether functions of Nova are those that this release of the project was written against.

Names of parameters say little of what a function does with them. So of each function that is
wrapped, overridden or relied on the body was read on the last release of each Nova, and its
digest is kept (:mod:`nova_hpc.from_nova.nova_digests`, which ``tools/nova_digests.py`` writes).
Comments, white space, docstrings and the version of Python make no difference: what is
digested is the syntax tree. Nova is read as text and never imported.

A difference is told and refused by nobody: distributions patch Nova.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.from_nova.nova_digests import DIGESTS

#: The releases that were read.
READ: Final[Mapping[int, str]] = {32: "32.2.1", 33: "33.0.2", 34: "34.0.0"}

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Fields of the tree that say how something is written.
_STYLE: Final = frozenset({"kind", "type_comment"})


@attrs.frozen
class Change:
    """One function that is not as it was read."""

    #: ``nova.virt.hardware:numa_fit_instance_to_host``, or with a class.
    target: str
    #: The release of Nova that it was compared with.
    read: str
    #: What is the case, after "It ".
    why: str

    @property
    def file(self) -> str:
        """Nova's file, from the top of its source."""
        return file_of(self.target)

    @property
    def name(self) -> str:
        """The function, with its class."""
        return self.target.partition(":")[2]

    def __str__(self) -> str:
        """A sentence without its full stop."""
        return f"{self.name} in {self.file} {self.why}"


def file_of(target: str) -> str:
    """The file of a function, from the top of Nova's source."""
    return target.partition(":")[0].replace(".", "/") + ".py"


def changed(folder: Path, release: int, targets: Iterable[str]) -> tuple[Change, ...]:
    """What of *targets* is not as it was read.

    :param folder: the package ``nova``.
    :param release: its major version, one of :data:`READ`.
    """
    found = []
    trees: dict[str, ast.Module | str] = {}
    for target in dict.fromkeys(targets):
        file = file_of(target)
        if file not in trees:
            trees[file] = _parse(folder.parent / file)
        tree = trees[file]
        known = DIGESTS.get(target, {}).get(release)
        why = None
        if isinstance(tree, str):
            why = f"cannot be compared with Nova {READ[release]}: {tree}"
        elif (now := digest(tree, target)) is None:
            why = f"is not there, as it is in Nova {READ[release]}"
        elif now != known:
            why = f"is not that of Nova {READ[release]}"
        if why is not None:
            found.append(Change(target, READ[release], why))
    return tuple(found)


def _parse(path: Path) -> ast.Module | str:
    """The tree of a file, or why there is none."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"{path} is no Python that this interpreter reads ({error})"


def digest(tree: ast.Module, target: str) -> str | None:
    """SHA-256 of a function's body, decorators and parameters; None: it is not there."""
    owner, _, name = target.partition(":")[2].rpartition(".")
    body: Iterable[ast.stmt] = tree.body
    if owner:
        classes = [each for each in _flat(body) if isinstance(each, ast.ClassDef)]
        body = next((each.body for each in reversed(classes) if each.name == owner), [])
    mine = [each for each in _flat(body) if isinstance(each, _FUNCTIONS) and each.name == name]
    if not mine:
        return None
    # Of several that stand under one condition or another, any may count.
    return hashlib.sha256("\n".join(map(_shown, mine)).encode()).hexdigest()


def _flat(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """Statements, and those below a condition."""
    for each in body:
        yield each
        for part in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(each, ast.If | ast.Try | ast.ExceptHandler | ast.With):
                yield from _flat(getattr(each, part, ()))


def _shown(node: object) -> str:
    """A tree as text, the same on every version of Python.

    Versions differ in what they list of what is not there.
    """
    if isinstance(node, list):
        return f"[{','.join(map(_shown, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = []
    for name in node._fields:
        value = getattr(node, name, None)
        if name == "body" and isinstance(node, ast.ClassDef | ast.FunctionDef):
            value = _without_docstring(value)
        if name not in _STYLE and value is not None and value != []:
            parts.append(f"{name}={_shown(value)}")
    return f"{type(node).__name__}({','.join(parts)})"


def _without_docstring(body: object) -> object:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body
