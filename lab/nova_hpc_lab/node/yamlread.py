"""YAML with the line of every value, so that an error can say where it is."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Final

import attrs
import yaml

from nova_hpc_lab.errors import LabError

_WORD: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")


class ShapeError(LabError):
    """A shape that makes no sense; the text names the file, the line and the key."""


@attrs.frozen
class Value:
    """A value of a YAML document, read in the form that the caller expects."""

    node: yaml.Node = attrs.field(repr=False)
    where: str
    #: Path of keys to here, for people: ``numa_nodes[1].cpus``.
    key: str

    @property
    def line(self) -> int:
        """Line in the text, from 1."""
        return int(self.node.start_mark.line) + 1

    def error(self, message: str) -> ShapeError:
        """An error that says where this value is."""
        return ShapeError(f"{self.where}, line {self.line}, {self.key or 'top'}: {message}")

    def mapping(self, required: Set[str], optional: Set[str] = frozenset()) -> dict[str, Value]:
        """The values by key, all of *required* and none beyond *optional*.

        :raises ShapeError: it is no mapping, or a key is missing, unknown or twice.
        """
        found = self._keys()
        known = required | optional
        for name, (mark, _) in found.items():
            if name not in known:
                raise mark.error(f"unknown key; known here: {', '.join(sorted(known))}")
        for name in sorted(required):
            if name not in found:
                raise self.error(f"the key {name} is missing")
        return {name: value for name, (_, value) in found.items()}

    def one_of(self, *kinds: str) -> str:
        """Which one of *kinds* is a key of this mapping.

        :raises ShapeError: none or several of them are.
        """
        found = [kind for kind in kinds if kind in self._keys()]
        if len(found) != 1:
            raise self.error(f"exactly one of {', '.join(kinds)} is needed here")
        return found[0]

    def sequence(self, least: int, most: int) -> list[Value]:
        """The items of a list.

        :raises ShapeError: it is no list, or too short or too long.
        """
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error("a list is expected")
        if not least <= len(self.node.value) <= most:
            raise self.error(f"{least} to {most} items are expected, not {len(self.node.value)}")
        return [
            Value(item, self.where, f"{self.key}[{number}]")
            for number, item in enumerate(self.node.value)
        ]

    def number(self, least: int, most: int) -> int:
        """A whole number.

        :raises ShapeError: it is none, or not within *least* and *most*.
        """
        text = self._text("a whole number")
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise self.error(f"a whole number is expected, not {text!r}")
        if not least <= int(text) <= most:
            raise self.error(f"{least} to {most} is expected, not {int(text)}")
        return int(text)

    def word(self) -> str:
        """A name: lower-case letters, digits and hyphens.

        :raises ShapeError: it is none.
        """
        text = self._text("a name")
        if not _WORD.fullmatch(text):
            raise self.error(
                f"a name of lower-case letters, digits and hyphens is expected, not {text!r}"
            )
        return text

    def _text(self, expected: str) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(f"{expected} is expected")
        return str(self.node.value)

    def _keys(self) -> dict[str, tuple[Value, Value]]:
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("keys with values are expected")
        found: dict[str, tuple[Value, Value]] = {}
        for key, value in self.node.value:
            name = str(key.value)
            path = f"{self.key}.{name}" if self.key else name
            if name in found:
                raise Value(key, self.where, path).error("this key is there twice")
            found[name] = (Value(key, self.where, path), Value(value, self.where, path))
        return found


def parse(text: str, where: str) -> Value:
    """Read a YAML document.

    :raises ShapeError: it is no YAML, or empty.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(err, "problem", None) or err
        raise ShapeError(f"{where}{line}: this is no YAML: {problem}") from err
    if node is None:
        raise ShapeError(f"{where} is empty")
    return Value(node, where, "")
