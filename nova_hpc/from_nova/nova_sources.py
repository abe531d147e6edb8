# SPDX-License-Identifier: Apache-2.0
"""Whether functions of Nova are those that this release of the project was written against.

Parameter names do not show how a function uses them. So the body of each function that is
wrapped, overridden or relied on was read in the last release of each Nova, and its
digest is kept (``nova_digests.json``, written by ``tools/nova_digests.py``).
Comments, white space, docstrings and the version of Python make no difference: the digest
covers the syntax tree. Nova is read as text and never imported.

A difference is logged and never refused: distributions patch Nova.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import attrs

#: The releases whose sources were read.
READ: Final[Mapping[int, str]] = {32: "32.2.1", 33: "33.0.2", 34: "34.0.0"}
#: The file with the digests.
TABLE: Final = Path(__file__).with_name("nova_digests.json")
#: Function -> release -> result of :func:`digest_function`.
DIGESTS: Final[Mapping[str, Mapping[int, str]]] = {
    target: {int(release): digest for release, digest in row.items()}
    for target, row in json.loads(TABLE.read_text(encoding="ascii")).items()
}

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Fields of the tree that only describe notation.
_STYLE: Final = frozenset({"kind", "type_comment"})


@attrs.frozen
class NovaChange:
    """A function of Nova that differs from the source that nova-hpc was written for."""

    #: ``nova.virt.hardware:numa_fit_instance_to_host``, or with a class.
    target: str
    #: The release of Nova that it was compared with.
    read: str
    #: The difference, after "It ".
    why: str

    @property
    def file(self) -> str:
        """The path of Nova's file, from the top of its source."""
        return file_of(self.target)

    @property
    def name(self) -> str:
        """The name of the function, with its class."""
        return self.target.partition(":")[2]

    def __str__(self) -> str:
        """A sentence without its full stop."""
        return f"{self.name} in {self.file} {self.why}"


def file_of(target: str) -> str:
    """Return the path of a function's file, from the top of Nova's source.

    :param target: ``module:function`` or ``module:Class.function``.
    """
    return target.partition(":")[0].replace(".", "/") + ".py"


def find_changed_functions(
    folder: Path, release: int, targets: Iterable[str]
) -> tuple[NovaChange, ...]:
    """Find the functions of Nova that differ from the sources that nova-hpc was written for.

    :param folder: the package ``nova``.
    :param release: its major version, a key of :data:`READ`.
    :param targets: functions, as ``module:Class.function``.
    """
    changes = []
    trees: dict[str, ast.Module | str] = {}
    for target in dict.fromkeys(targets):
        file = file_of(target)
        if file not in trees:
            trees[file] = _parse_source(folder.parent / file)
        tree = trees[file]
        expected = DIGESTS.get(target, {}).get(release)
        reason = None
        if isinstance(tree, str):
            reason = f"cannot be compared with Nova {READ[release]}: {tree}"
        elif (current := digest_function(tree, target)) is None:
            reason = f"is not there, as it is in Nova {READ[release]}"
        elif current != expected:
            reason = f"is not that of Nova {READ[release]}"
        if reason is not None:
            changes.append(NovaChange(target, READ[release], reason))
    return tuple(changes)


def _parse_source(path: Path) -> ast.Module | str:
    """Parse a Python file; return its tree, or the reason why there is none."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    except (SyntaxError, ValueError, RecursionError) as error:
        return f"{path} is no Python that this interpreter reads ({error})"


def digest_function(tree: ast.Module, target: str) -> str | None:
    """Compute the SHA-256 of a function's body, decorators and parameters; None if missing."""
    owner, _, name = target.partition(":")[2].rpartition(".")
    body: Iterable[ast.stmt] = tree.body
    if owner:
        classes = [
            statement
            for statement in _flatten_statements(body)
            if isinstance(statement, ast.ClassDef)
        ]
        body = next(
            (definition.body for definition in reversed(classes) if definition.name == owner), []
        )
    functions = [
        statement
        for statement in _flatten_statements(body)
        if isinstance(statement, _FUNCTIONS) and statement.name == name
    ]
    if not functions:
        return None
    # If several definitions stand below conditions, any of them may count.
    return hashlib.sha256("\n".join(map(_dump_tree, functions)).encode()).hexdigest()


def _flatten_statements(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """Yield statements, and the statements inside conditions, ``try`` and ``with``."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(statement, ast.If | ast.Try | ast.ExceptHandler | ast.With):
                yield from _flatten_statements(getattr(statement, part, ()))


def _dump_tree(node: object) -> str:
    """Format a syntax tree as text, the same on every version of Python.

    Versions of Python differ in how they list missing parts.
    """
    if isinstance(node, list):
        return f"[{','.join(map(_dump_tree, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = []
    for name in node._fields:
        value = getattr(node, name, None)
        if name == "body" and isinstance(node, ast.ClassDef | ast.FunctionDef):
            value = _without_docstring(value)
        if name not in _STYLE and value is not None and value != []:
            parts.append(f"{name}={_dump_tree(value)}")
    return f"{type(node).__name__}({','.join(parts)})"


def _without_docstring(body: object) -> object:
    match body:
        case [ast.Expr(value=ast.Constant(value=str())), *rest]:
            return rest
    return body
