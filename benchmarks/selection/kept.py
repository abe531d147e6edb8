# SPDX-License-Identifier: Apache-2.0
"""What was measured, one result a line of a file, so that a run that was cut off goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.selection.side import Question

#: Kinds of results: an answer of each side; of stock Nova as installed; of several schedulers.
PAIR: Final = "pair"
INSTALLED: Final = "installed"
TOGETHER: Final = "together"
#: The same of Placement alone, for what the plainest server asks for.
PLAINEST: Final = "plainest"


class Kept:
    """Results by kind, number of hosts and question."""

    def __init__(self, path: Path | None, resume: bool) -> None:
        self._path = path
        self._found: dict[tuple[str, int, str], list[Mapping[str, Any]]] = {}
        if path is None:
            return
        if not resume or not path.exists():
            path.write_text("")
        for line in path.read_text().splitlines():
            told = json.loads(line)
            self._place(told.pop("kind"), told.pop("hosts"), told.pop("question")).append(told)

    def all(self, kind: str, hosts: int, question: Question) -> Sequence[Mapping[str, Any]]:
        """What there is, in the order of measuring."""
        return tuple(self._place(kind, hosts, str(question)))

    def add(self, kind: str, hosts: int, question: Question, result: Mapping[str, Any]) -> None:
        """One more, which is in the file before the next is measured."""
        self._place(kind, hosts, str(question)).append(result)
        if self._path is not None:
            head = {"kind": kind, "hosts": hosts, "question": str(question)}
            with self._path.open("a") as stream:
                stream.write(json.dumps(head | dict(result)) + "\n")

    def _place(self, kind: str, hosts: int, question: str) -> list[Mapping[str, Any]]:
        return self._found.setdefault((kind, hosts, question), [])
