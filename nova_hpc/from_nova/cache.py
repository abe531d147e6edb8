# SPDX-License-Identifier: Apache-2.0
"""A scheduler process's memory between requests: results, and the keys of logged messages.

Nova builds new host states for every request, so nothing can be kept on them. Useful
results are kept here, under a key of all their inputs. So an entry never has to be
invalidated; it is only forgotten. Both stores are bounded and safe between threads.
"""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from oslo_config import cfg

from nova_hpc import conf as hpc_conf

CONF = cfg.CONF

hpc_conf.register_all_options(CONF)

_Value = TypeVar("_Value")

_NUMBERS: Final = itertools.count(1)

#: Maximum number of remembered log keys.
_SAID: Final = 1024


class Cache(Generic[_Value]):
    """A thread-safe cache that keeps the results used last, up to ``[hpc]cache_size``."""

    def __init__(self) -> None:
        self._kept: collections.OrderedDict[Hashable, _Value] = collections.OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def get(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """Return the cached value of *key*; if missing, *make* computes it outside of the lock.

        Two threads may make the same value at the same time; one of them is kept.
        """
        with self._lock:
            try:
                value = self._kept[key]
            except KeyError:
                self.misses += 1
            else:
                self._kept.move_to_end(key)
                self.hits += 1
                return value
        made = make()
        most = CONF.hpc.cache_size
        with self._lock:
            value = self._kept.setdefault(key, made)
            while len(self._kept) > most:
                self._kept.popitem(last=False)
        return value

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Remove all results and reset the counters."""
        with self._lock:
            self._kept.clear()
            self.hits = self.misses = 0


def next_unique_number() -> int:
    """Return a number that no other call has returned: a short name for a long key."""
    return next(_NUMBERS)


class Once:
    """Remembers which messages were logged, so that each is logged once; bounded, and
    thread-safe.
    """

    def __init__(self, most: int = _SAID) -> None:
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
