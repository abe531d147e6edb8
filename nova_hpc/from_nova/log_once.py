"""Says the same thing once, not at every request."""

from __future__ import annotations

import collections
import threading
from collections.abc import Hashable
from typing import Final

_MOST: Final = 1024


class Once:
    """Remembers what was said already; bounded, and safe between threads."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._seen: collections.OrderedDict[Hashable, None] = collections.OrderedDict()
        self._lock = threading.Lock()

    def first(self, key: Hashable) -> bool:
        """Whether *key* is new (or was forgotten since); remembers it."""
        with self._lock:
            if key in self._seen:
                self._seen.move_to_end(key)
                return False
            self._seen[key] = None
            if len(self._seen) > self._most:
                self._seen.popitem(last=False)
            return True
