# SPDX-License-Identifier: Apache-2.0
"""Delays full passes of Python's garbage collector while requests are served.

Placement's answer for some thousand hosts has hundreds of thousands of objects, which all
are in use until the request is served. Python counts them as new, and walks over all objects
of the process once or twice in that time, half a second each, without a result. The passes
over young objects go on. A full pass follows after a request, at most once per interval, and
waits for a moment without a request. Reference cycles left by requests stay until then, so a
full pass comes early if there are many.
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
#: Threshold of the oldest generation: so many passes over the middle one never happen.
_NEVER: Final = 1_000_000
#: Blocks of memory, of some 100 bytes each, that may be added after the last full pass. If a
#: quarter of the blocks of that pass is more, it replaces this number, as in Python itself (gc.c,
#: 3.11). Resident memory is not a measure, because it rarely shrinks.
_ROOM: Final = 250_000


class FullCollections:
    """Delay of full garbage collections in one process while requests are served; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._served = 0
        #: Python's thresholds while they are changed; None while they are not.
        self._before: tuple[int, int, int] | None = None
        #: When the last full pass began, and the start of the present run of requests.
        self._last = self._since = time.monotonic()
        #: Blocks of memory after the last full pass.
        self._settled = sys.getallocatedblocks()
        #: Whether a timer for the next full pass runs.
        self._planned = False

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """Delay full garbage collections while the body runs.

        The delay is at most ``[hpc]full_collection_interval``.
        """
        self._begin()
        try:
            yield
        finally:
            if self._end():
                # After the answer is sent, because a pass stops all other threads.
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
                # Requests overlap without an end, so Python's own passes are enabled again.
                self._restore()
            elif self._before is None:
                self._before = gc.get_threshold()
                gc.set_threshold(*self._before[:2], _NEVER)

    def _end(self) -> bool:
        """Count one request less; return whether a full garbage collection is due now."""
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

        If the next request is already being served, the pass would delay it. The pass then
        comes after that request, or a later one. If requests follow one another within less
        than a second, it is delayed by one more interval at most, or until there is twice as
        much to collect.
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
        """Whether the new blocks are *times* the permitted number."""
        room = max(_ROOM, self._settled // 4)
        return sys.getallocatedblocks() - self._settled >= times * room

    def _restore(self) -> None:
        if self._before is not None:
            gc.set_threshold(*self._before)
            self._before = None


#: The object of this process.
FULL_COLLECTIONS: Final = FullCollections()
