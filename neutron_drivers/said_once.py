# SPDX-License-Identifier: Apache-2.0
"""Complaints that hold for long are said once, and again when they have changed."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from typing import Any

import attrs


@attrs.define
class SaidOnce:
    """What a process has said of what; from any thread."""

    _said: dict[Hashable, str] = attrs.field(factory=dict)
    _guard: threading.Lock = attrs.field(factory=threading.Lock)

    def is_new(self, about: Hashable, text: str) -> bool:
        """Whether a text was not the last one on a thing; "": nothing is wrong with it."""
        with self._guard:
            before = self._said.pop(about, "")
            if text:
                self._said[about] = text
        return bool(text) and text != before

    def take_new(self, texts: Mapping[Any, str]) -> list[str]:
        """Those of all texts that are new; what is not among them holds no longer."""
        with self._guard:
            new = [text for about, text in texts.items() if self._said.get(about) != text]
            self._said = dict(texts)
        return new
