# SPDX-License-Identifier: Apache-2.0
"""The lines that ``nova-hpc configure`` has replaced: ``--undo`` gives them back.

::

    {"schema": "nova-hpc/undo", "version": 1,
     "steps": [{"files": [{"path": "/etc/...", "before": null, "after": "[pci]..."}]}]}
"""

from __future__ import annotations

import json
from typing import Any

import attrs

from nova_hpc.wire.documents import UNDO
from nova_hpc.wire.version import WireError, show_json_value


@attrs.frozen
class Replaced:
    """One file; None: it was not there."""

    path: str
    before: str | None
    after: str | None


#: What one run has replaced.
Step = tuple[Replaced, ...]


def write_undo(steps: tuple[Step, ...]) -> str:
    """The record as text, the oldest step first; ends with a newline."""
    body = [{"files": [attrs.asdict(file) for file in step]} for step in steps]
    return f"{json.dumps({**UNDO.head(), 'steps': body}, indent=1)}\n"


def read_undo(text: object) -> tuple[Step, ...]:
    """Read the record.

    :raises WireError: it is broken, or only a later release reads it.
    """
    document = UNDO.load(text)
    steps = []
    for step in _read_objects(document, "steps"):
        files = tuple(
            Replaced(
                _read_path(file), _read_file_text(file, "before"), _read_file_text(file, "after")
            )
            for file in _read_objects(step, "files")
        )
        if not files:
            raise UNDO.broken("has a step without files")
        steps.append(files)
    return tuple(steps)


def _read_objects(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = document.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UNDO.broken(f"has {key} {show_json_value(entries)}, not a list of objects")
    return entries


def _read_path(entry: dict[str, Any]) -> str:
    path = entry.get("path")
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path:
        raise UNDO.broken(f"has a path {show_json_value(path)}, not an absolute one")
    return path


def _read_file_text(entry: dict[str, Any], key: str) -> str | None:
    if key not in entry:
        raise WireError(f"the {UNDO.name} has no key {key}")
    text = entry[key]
    if text is not None and not isinstance(text, str):
        raise UNDO.broken(f"has {key} {show_json_value(text)}, not a text")
    return text
