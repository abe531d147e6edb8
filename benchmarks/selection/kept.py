# SPDX-License-Identifier: Apache-2.0
"""The measured results, one a line of a file, so that an interrupted run can continue."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.selection.side import Question

#: Kinds of results: an answer of each side, of stock Nova as installed, of several schedulers.
PAIR: Final = "pair"
INSTALLED: Final = "installed"
TOGETHER: Final = "together"
#: Kind of results of only Placement, for the request of the simplest server.
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
        """The results of a question, in the order of the measurements."""
        return tuple(self._place(kind, hosts, str(question)))

    def add(self, kind: str, hosts: int, question: Question, result: Mapping[str, Any]) -> None:
        """Add a result; it is in the file before the next one is measured."""
        self._place(kind, hosts, str(question)).append(result)
        if self._path is not None:
            head = {"kind": kind, "hosts": hosts, "question": str(question)}
            with self._path.open("a") as stream:
                stream.write(json.dumps(head | dict(result)) + "\n")

    def _place(self, kind: str, hosts: int, question: str) -> list[Mapping[str, Any]]:
        return self._found.setdefault((kind, hosts, question), [])
