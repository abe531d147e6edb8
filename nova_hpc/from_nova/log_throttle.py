# SPDX-License-Identifier: Apache-2.0
"""A record of recent log lines by cause, so that none is repeated at once.

A scheduler visits all hosts for every server, and a fault of a host is still there at the next
visit. So a line names its cause and counts hosts, and the same cause is not named again for
``[hpc]log_interval`` seconds. The keys of causes contain neither host nor address: a cloud of a
thousand hosts has as many causes as one of ten.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Final

from oslo_config import cfg

from nova_hpc import conf as hpc_conf

CONF = cfg.CONF

hpc_conf.register_all_options(CONF)

#: Maximum of remembered causes; the one that was named longest ago is forgotten first.
_MOST: Final = 1024


class LogThrottle:
    """Limits how often the same cause is logged; bounded, and thread-safe.

    :param clock: returns seconds that never fall.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = _MOST) -> None:
        self._clock = clock
        self._most = most
        #: cause -> when it was named, and how often it was held back since
        self._times: dict[Hashable, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def due(self, cause: Hashable) -> int | None:
        """Whether a line about *cause* is to be logged now.

        :returns: how often it was held back since it was last named; None to hold it back.
        """
        current_time = self._clock()
        with self._lock:
            named, held = self._times.pop(cause, (None, 0))
            if named is not None and current_time - named < CONF.hpc.log_interval:
                self._times[cause] = (named, held + 1)
                return None
            self._times[cause] = (current_time, 0)
            while len(self._times) > self._most:
                del self._times[
                    min(self._times, key=lambda named_cause: self._times[named_cause][0])
                ]
            return held

    def clear(self) -> None:
        """Forget the times of all causes, so that the next log line of each is written."""
        with self._lock:
            self._times.clear()


#: The lines of this process.
LOG_THROTTLE: Final = LogThrottle()


def format_held_back(held: int) -> str:
    """Return the end of a log line that names how often it was suppressed; "" if *held* is 0."""
    return f" (and {held} times since the last such line)" if held else ""
