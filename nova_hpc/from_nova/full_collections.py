# SPDX-License-Identifier: Apache-2.0
"""Puts full passes of Python's garbage collector off while requests are served.

An answer of Placement for some thousand hosts is hundreds of thousands of objects, all of
which are in use until the request is served. Python counts them as new, and walks over all
objects of the process once or twice meanwhile, half a second each time, to find nothing. The
passes over young objects go on; a full one follows after a request, at most so often, and
waits for a moment without one. What requests leave that holds on to itself stays until then, so a
full one comes early where there is much of it.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

from oslo_config import cfg

from nova_hpc import conf as hpc_conf

CONF = cfg.CONF

hpc_conf.register_all_options(CONF)

#: Seconds between a request and the full pass that follows it.
_LATER: Final = 1.0
#: As a threshold of the oldest generation: so many passes over the middle one never come.
_NEVER: Final = 1_000_000
#: Blocks of memory, of some 100 bytes each, that may come beside those of the last full pass; or
#: a quarter of those, where that is more: so much Python itself lets come (gc.c, 3.11). Resident
#: memory does not tell: it seldom shrinks.
_ROOM: Final = 250_000


class FullCollections:
    """Full passes of one process; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._served = 0
        #: Python's thresholds while they are changed; None: they are not.
        self._before: tuple[int, int, int] | None = None
        #: When the last full pass began, and since when there has been a request without a pause.
        self._last = self._since = time.monotonic()
        #: Blocks of memory after the last full pass.
        self._settled = sys.getallocatedblocks()
        #: Whether a timer for the next full pass runs.
        self._planned = False

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """Hold full passes back while the body runs, for ``[hpc]full_collection_interval``."""
        self._begin()
        try:
            yield
        finally:
            if self._end():
                # Once the answer is on its way: the thread that passes holds up all others.
                later = threading.Timer(_LATER, self._collect_if_idle)
                later.daemon = True
                later.start()

    def _begin(self) -> None:
        interval: int = CONF.hpc.full_collection_interval
        with self._lock:
            self._served += 1
            if self._served == 1:
                self._since = time.monotonic()
            if time.monotonic() - self._since >= interval:
                # Requests that overlap without an end: Python's own passes have to do.
                self._restore()
            elif self._before is None:
                self._before = gc.get_threshold()
                gc.set_threshold(*self._before[:2], _NEVER)

    def _end(self) -> bool:
        """Whether a full pass is due now."""
        interval: int = CONF.hpc.full_collection_interval
        with self._lock:
            self._served -= 1
            if self._served:
                return False
            self._restore()
            waited = time.monotonic() - self._last >= interval
            due = interval > 0 and (waited or self._has_grown(1))
            begins = due and not self._planned
            self._planned = self._planned or begins
            return begins

    def _collect_if_idle(self) -> None:
        """Make the full pass that is due.

        The next request may be served by now, and it would be held up: the pass comes after that
        one, or the next. Where requests follow one another without a second between them, it is
        put off for one more interval at most, or until there is twice as much.
        """
        with self._lock:
            self._planned = False
            late = time.monotonic() - self._last >= 2 * CONF.hpc.full_collection_interval
            if self._served and not late and not self._has_grown(2):
                return
            self._last = time.monotonic()
        gc.collect()
        self._settled = sys.getallocatedblocks()

    def _has_grown(self, times: int) -> bool:
        """Whether there is so many times more than may come beside what the last pass left."""
        room = max(_ROOM, self._settled // 4)
        return sys.getallocatedblocks() - self._settled >= times * room

    def _restore(self) -> None:
        if self._before is not None:
            gc.set_threshold(*self._before)
            self._before = None


#: Of this process.
FULL_COLLECTIONS: Final = FullCollections()
