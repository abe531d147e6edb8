# SPDX-License-Identifier: Apache-2.0
"""YAML and JSON as values with their line numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import attrs
import yaml

from nova_hpc_tools.fabric.problems import FabricMapError, ProblemCollector

#: libyaml's loader if PyYAML was built with it: it is ten times as fast.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: The deepest nesting that is read.
_DEEPEST: Final = 40


@attrs.frozen
class LineValue:
    """A value of a YAML or JSON document, with its line number."""

    #: A text, None, a dict of texts to values, or a list of values. Numbers are texts, too.
    value: Any
    #: From 1.
    line: int

    def items(self) -> Iterator[tuple[str, LineValue]]:
        """Yield the keys and entries of a dict; none for other values."""
        if isinstance(self.value, dict):
            yield from self.value.items()

    def each(self) -> Iterator[LineValue]:
        """Yield the entries of a list; none for other values."""
        if isinstance(self.value, list):
            yield from self.value

    def get(self, key: str) -> LineValue | None:
        """Return the entry of a dict; None if it is missing or null."""
        entry = self.value.get(key) if isinstance(self.value, dict) else None
        return None if entry is None or entry.value is None else entry

    @property
    def kind(self) -> str:
        """The type of the value in words, such as ``a list``."""
        for kind, word in ((dict, "a mapping"), (list, "a list"), (str, "a text")):
            if isinstance(self.value, kind):
                return word
        return "nothing"


def text_of(value: LineValue | None) -> str | None:
    """Return the text of a value; None if the value is missing or not a text."""
    return value.value if value is not None and isinstance(value.value, str) else None


def load_with_lines(text: str, collector: ProblemCollector) -> LineValue:
    """Read YAML or JSON; a repeated key is a problem, and its first value counts.

    :raises FabricMapError: *text* is neither, is empty or is nested too deep.
    """
    if text.lstrip()[:1] == "{":
        try:
            json.loads(text)
        except ValueError:
            pass  # YAML may also begin with a brace, and its parser reports errors with their line
        except RecursionError:
            raise FabricMapError("it is nested too deep") from None
        else:
            # Strings of JSON contain no raw tab, and YAML refuses tabs between the values.
            text = text.replace("\t", " ")
    try:
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise FabricMapError(f"{where}it is neither YAML nor JSON: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise FabricMapError(f"it is neither YAML nor JSON: {error}") from error
    if node is None:
        raise FabricMapError("it is empty")
    return _value_of_node(node, collector, set(), 0)


def _value_of_node(node: Any, collector: ProblemCollector, seen: set[int], depth: int) -> LineValue:
    line = node.start_mark.line + 1
    if depth > _DEEPEST:
        raise FabricMapError(f"line {line}: it is nested too deep")
    if isinstance(node, yaml.ScalarNode):
        null = node.tag == "tag:yaml.org,2002:null"
        return LineValue(None if null else node.value, line)
    if id(node) in seen:
        # A few lines of nested aliases can expand to more values than fit in memory.
        raise FabricMapError(f"line {line}: aliases of mappings and lists are not read")
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        return LineValue(
            [_value_of_node(child, collector, seen, depth + 1) for child in node.value], line
        )
    entries: dict[str, LineValue] = {}
    for key, value in node.value:
        key_line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            collector.wrong("a key is no text", key_line)
        elif key.value in entries:
            collector.wrong(f"{key.value!r} is there twice; the first one counts", key_line)
        else:
            entries[key.value] = _value_of_node(value, collector, seen, depth + 1)
    return LineValue(entries, line)
