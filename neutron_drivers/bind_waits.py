# SPDX-License-Identifier: Apache-2.0
"""A limit on the requests of Neutron's API that wait for the fabric at the same time.

A request that waits holds a thread of the API. Requests beyond the limit get their answer at once,
and Nova gets an event for their ports later.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any, Final

from oslo_concurrency import lockutils
from oslo_log import log

LOG = log.getLogger(__name__)

#: For an API server that does not publish the number of its threads.
_UNKNOWN_PLACES: Final = 4


def count_places(wished: int | None, is_shared: bool) -> int:
    """Count the requests that may wait for the fabric: half of the API's threads on this host.

    uWSGI publishes its processes and threads to the program that it runs; other servers do not.

    :param wished: ``[hpc_partitions]bind_waiters``; None if the option is not set.
    :param is_shared: all processes of the host share the places.
    """
    if wished is not None:
        return wished
    try:
        uwsgi: Any = importlib.import_module("uwsgi")
        threads = int(uwsgi.opt.get("threads", 1))
        processes = int(uwsgi.numproc)
    except (ImportError, AttributeError, ValueError):
        return _UNKNOWN_PLACES
    return (threads * processes if is_shared else threads) // 2


class WaitPlaces:
    """Limits the number of API requests that wait for a membership.

    All processes with the same folder of locks share the places.
    """

    def __init__(self, most: int, lock_path: str | None) -> None:
        """Take none.

        :param lock_path: ``[oslo_concurrency]lock_path``; None if each process has its own places.
        """
        self._most = most
        self._lock_path = lock_path

    @contextlib.contextmanager
    def take(self) -> Iterator[bool]:
        """Take one of the places for waiting requests while the block runs; False if none is
        free.
        """
        with contextlib.ExitStack() as stack:
            yield self._take_one(stack)

    def _take_one(self, stack: contextlib.ExitStack) -> bool:
        for number in range(self._most):
            place = lockutils.lock(
                f"hpc-partition-bind-{number}",
                lock_file_prefix="neutron-",
                external=self._lock_path is not None,
                lock_path=self._lock_path,
                do_log=False,
                blocking=False,
            )
            try:
                stack.enter_context(place)
            except lockutils.AcquireLockFailedException:
                continue
            except OSError as error:
                LOG.warning("Requests do not wait for the fabric: %s", error)
                return False
            return True
        return False
