# SPDX-License-Identifier: Apache-2.0
"""The texts that users of servers read when something is refused, as the code writes them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs

TOP: Final = Path(__file__).parents[2]
PACKAGES: Final = ("nova_hpc", "scheduler_filters", "virt_driver_patches")
#: What is called with a text for users -> which argument that is.
SAYS: Final[Mapping[str, int | str]] = {
    "AbiError": 0,
    "ClaimRefused": 0,
    "DeviceFault": 0,
    "FlavorError": 0,
    "HintError": 0,
    "MachineError": 0,
    "MigrationPreCheckError": "reason",
    "NoPartitionError": 1,
    "PlanError": 0,
    "RefusedError": 0,
    "RoleConflictError": 0,
    "SegmentDeviceError": 0,
    "UnknownNameError": 0,
    "TopologyAnswer": 0,
    "_FullError": 0,
    "_refuse_fabric_request": 1,
}
#: The same of Neutron's servers.
NEUTRON_SAYS: Final[Mapping[str, int | str]] = {
    "FabricUnavailableError": 0,
    "PartitionInUseError": 0,
    "WrongWishError": 0,
}
#: What stands for a value in a text.
VALUE: Final = "\0"
#: Fewer letters than these say nothing by themselves: the text is another's.
_LEAST: Final = 8


@attrs.frozen
class UserText:
    """A text with places for values."""

    literal: str
    #: ``file:line``.
    where: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.literal.replace(VALUE, '...')}"

    def matches(self, said: str) -> bool:
        """Whether *said* may be this text with values."""
        pieces = map(re.escape, self.literal.rstrip(".").split(VALUE))
        return re.search(".*".join(pieces), said) is not None


def read_texts(module: Path, says: Mapping[str, int | str] = SAYS) -> Iterator[UserText]:
    """The texts for users of one module."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    constants = _constants_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else ""
            name = function.id if isinstance(function, ast.Name) else name
            text = _argument_of(node, says.get(name))
            literal = "" if text is None else _render(text, constants)
            if len(re.sub(r"[\W\0]", "", literal)) >= _LEAST:
                yield UserText(literal, f"{module.name}:{node.lineno}")


@functools.cache
def all_texts() -> tuple[UserText, ...]:
    """Those of all packages that refuse servers."""
    modules = (path for name in PACKAGES for path in sorted((TOP / name).rglob("*.py")))
    return tuple(text for module in modules for text in read_texts(module))


def _argument_of(call: ast.Call, which: int | str | None) -> ast.expr | None:
    if isinstance(which, int) and len(call.args) > which:
        return call.args[which]
    return next((each.value for each in call.keywords if each.arg == which and which), None)


def _constants_of(tree: ast.Module) -> dict[str, ast.expr]:
    """Names of the module's own constants -> their values."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            found[ast.unparse(node.target)] = node.value
        elif isinstance(node, ast.Assign):
            found |= {ast.unparse(target): node.value for target in node.targets}
    return found


def _render(node: ast.expr, constants: Mapping[str, ast.expr]) -> str:
    """A text with :data:`VALUE` for what is only known when it runs."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else VALUE
    if isinstance(node, ast.JoinedStr):
        return "".join(_render(each, constants) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        inner = node.value
        is_word = isinstance(inner, ast.Name) and inner.id in constants
        return _render(inner, constants) if is_word else VALUE
    if isinstance(node, ast.BinOp):
        return _render(node.left, constants) + _render(node.right, constants)
    if isinstance(node, ast.Name) and node.id in constants:
        return _render(constants[node.id], {})
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".format"):
        assert isinstance(node.func, ast.Attribute)
        return re.sub(r"\{\w*\}", VALUE, _render(node.func.value, constants))
    if isinstance(node, ast.IfExp):
        return _render(node.body, constants)
    return VALUE
