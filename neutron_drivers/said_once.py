# SPDX-License-Identifier: Apache-2.0
"""Complaints that hold for long are logged once, and again when they have changed."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from typing import Any

import attrs


@attrs.define
class SaidOnce:
    """Remembers the last logged text for each subject, to avoid repetitions; thread-safe."""

    _said: dict[Hashable, str] = attrs.field(factory=dict)
    _guard: threading.Lock = attrs.field(factory=threading.Lock)

    def is_new(self, about: Hashable, text: str) -> bool:
        """Whether *text* differs from the last one about the subject, and remember it.

        "" (no fault) is never new; it makes the object forget the last text.
        """
        with self._guard:
            before = self._said.pop(about, "")
            if text:
                self._said[about] = text
        return bool(text) and text != before

    def take_new(self, texts: Mapping[Any, str]) -> list[str]:
        """Return the texts that differ from the last ones, and remember all.

        A subject that is missing has no fault any more.

        :param texts: subject -> complaint.
        """
        with self._guard:
            new = [text for about, text in texts.items() if self._said.get(about) != text]
            self._said = dict(texts)
        return new
