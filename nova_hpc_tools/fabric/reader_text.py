# SPDX-License-Identifier: Apache-2.0
"""YAML and JSON whose values know the line that they stand on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import attrs
import yaml

from nova_hpc_tools.fabric.problems import FabricError, Found

#: libyaml's, where PyYAML was built with it: it is ten times as fast.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: The deepest nesting that is read.
_DEEPEST: Final = 40


@attrs.frozen
class Value:
    """One value of the document."""

    #: A text, None, a dict of texts to values, or a list of values. Numbers are texts, too.
    value: Any
    #: From 1.
    line: int

    def items(self) -> Iterator[tuple[str, Value]]:
        """The entries of a dict; nothing of anything else."""
        if isinstance(self.value, dict):
            yield from self.value.items()

    def each(self) -> Iterator[Value]:
        """The entries of a list; nothing of anything else."""
        if isinstance(self.value, list):
            yield from self.value

    def get(self, key: str) -> Value | None:
        """The entry of a dict; None: there is none, or it is null."""
        found = self.value.get(key) if isinstance(self.value, dict) else None
        return None if found is None or found.value is None else found

    @property
    def kind(self) -> str:
        """What it is, in words."""
        for kind, word in ((dict, "a mapping"), (list, "a list"), (str, "a text")):
            if isinstance(self.value, kind):
                return word
        return "nothing"


def text_of(value: Value | None) -> str | None:
    """The text of a value; None: there is none, or it is no text."""
    return value.value if value is not None and isinstance(value.value, str) else None


def load(text: str, found: Found) -> Value:
    """Read YAML or JSON; keys that are there twice are a problem, and the first one counts.

    :raises FabricError: it is neither.
    """
    if text.lstrip()[:1] == "{":
        try:
            json.loads(text)
        except ValueError:
            pass  # YAML may begin so, too, and says more about what is wrong
        except RecursionError:
            raise FabricError("it is nested too deep") from None
        else:
            # Inside of the texts of JSON there is no tab, and YAML minds it elsewhere.
            text = text.replace("\t", " ")
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise FabricError(f"{where}it is neither YAML nor JSON: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise FabricError(f"it is neither YAML nor JSON: {error}") from error
    if node is None:
        raise FabricError("it is empty")
    return _value(node, found, set(), 0)


def _value(node: Any, found: Found, seen: set[int], depth: int) -> Value:
    line = node.start_mark.line + 1
    if depth > _DEEPEST:
        raise FabricError(f"line {line}: it is nested too deep")
    if isinstance(node, yaml.ScalarNode):
        null = node.tag == "tag:yaml.org,2002:null"
        return Value(None if null else node.value, line)
    if id(node) in seen:
        # A few lines of aliases can stand for more than memory holds.
        raise FabricError(f"line {line}: aliases of mappings and lists are not read")
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        return Value([_value(each, found, seen, depth + 1) for each in node.value], line)
    entries: dict[str, Value] = {}
    for key, value in node.value:
        here = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            found.wrong("a key is no text", here)
        elif key.value in entries:
            found.wrong(f"{key.value!r} is there twice; the first one counts", here)
        else:
            entries[key.value] = _value(value, found, seen, depth + 1)
    return Value(entries, line)
