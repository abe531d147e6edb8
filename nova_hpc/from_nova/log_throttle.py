# SPDX-License-Identifier: Apache-2.0
"""A record of recent log lines by cause, so that none is repeated at once.

A scheduler looks at all hosts for every server, and what is wrong with a host is wrong
at the next look, too. So a line names its cause and counts hosts, and the same cause is
not named again for ``[hpc]log_interval`` seconds. Causes have neither host nor address in
their keys: there are as many in a cloud of a thousand hosts as in one of ten.
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

#: Causes that are remembered; the one that was named longest ago is forgotten first.
_MOST: Final = 1024


class LogThrottle:
    """When each cause was named; bounded, and safe between threads.

    :param clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = _MOST) -> None:
        self._clock = clock
        self._most = most
        #: cause -> when it was named, and how often it was not since
        self._times: dict[Hashable, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def due(self, cause: Hashable) -> int | None:
        """Whether *cause* is to be named now; it then counts as named.

        :returns: how often it was held back since it was named last; None: hold it back.
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
        """Forget everything."""
        with self._lock:
            self._times.clear()


#: What this process has said.
LOG_THROTTLE: Final = LogThrottle()


def format_held_back(held: int) -> str:
    """The text after a line whose like was held back so often; "" for none."""
    return f" (and {held} times since the last such line)" if held else ""
