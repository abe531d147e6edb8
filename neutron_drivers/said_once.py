# SPDX-License-Identifier: Apache-2.0
"""Complaints that hold for long are logged once, and again when they have changed."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from typing import Any

import attrs


@attrs.define
class SaidOnce:
    """The last text on each thing that a process has logged; usable from any thread."""

    _said: dict[Hashable, str] = attrs.field(factory=dict)
    _guard: threading.Lock = attrs.field(factory=threading.Lock)

    def is_new(self, about: Hashable, text: str) -> bool:
        """Whether a text differs from the last one on a thing; False for "", without a fault."""
        with self._guard:
            before = self._said.pop(about, "")
            if text:
                self._said[about] = text
        return bool(text) and text != before

    def take_new(self, texts: Mapping[Any, str]) -> list[str]:
        """The new ones of all texts; a thing that is missing in *texts* has no fault any more."""
        with self._guard:
            new = [text for about, text in texts.items() if self._said.get(about) != text]
            self._said = dict(texts)
        return new
