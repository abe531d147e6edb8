# SPDX-License-Identifier: Apache-2.0
"""The lines that ``nova-hpc configure`` has replaced: ``--undo`` restores them.

::

    {"schema": "nova-hpc/undo", "version": 1,
     "steps": [{"files": [{"path": "/etc/...", "before": null, "after": "[pci]..."}]}]}
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from nova_hpc.wire import strict
from nova_hpc.wire.documents import UNDO
from nova_hpc.wire.strict import WrongError
from nova_hpc.wire.version import show_json_value


@attrs.frozen
class Replaced:
    """One file; a content is None if the file did not exist."""

    path: str
    before: str | None
    after: str | None


#: The files that one run has replaced.
Step = tuple[Replaced, ...]


def write_undo(steps: tuple[Step, ...]) -> str:
    """The record as text, the oldest step first; ends with a newline."""
    body = [{"files": [attrs.asdict(file) for file in step]} for step in steps]
    return f"{json.dumps({**UNDO.head(), 'steps': body}, indent=1)}\n"


def read_undo(text: object) -> tuple[Step, ...]:
    """Read the record.

    :raises WireError: it is broken, or only a later release reads it.
    """
    steps = strict.read_document(UNDO, text, _CONVERTER, _UndoSteps).steps
    if not all(step.files for step in steps):
        raise UNDO.broken("has a step without files")
    return tuple(step.files for step in steps)


def _check_path(path: Any, _: Any) -> str:
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise WrongError(f"is {show_json_value(path)}, not an absolute path")
    return path


@attrs.frozen
class _UndoStep:
    files: tuple[Replaced, ...]


@attrs.frozen
class _UndoSteps:
    steps: tuple[_UndoStep, ...]


_CONVERTER: Final = strict.make_strict_converter(
    {"path": (str, _check_path), "before": strict.ANY_TEXT, "after": strict.ANY_TEXT}, growing=True
)
