# SPDX-License-Identifier: Apache-2.0
"""Programs that may never end: awaited for a limited time, then killed or left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from typing import Final

_PAUSE: Final = 0.05

#: Killed programs that have not ended yet, because they are in the kernel.
_abandoned: list[subprocess.Popen[bytes]] = []
_lock = threading.Lock()


def ends_in_time(process: subprocess.Popen[bytes], timeout: float, grace: float) -> bool:
    """Whether a program ends by itself; otherwise it is killed, with its process group.

    :param process: the leader of its process group: no program that it started may go on.
    :param timeout: seconds.
    :param grace: seconds to end after the kill. A process in the kernel ends only when the
        kernel call returns: it is left behind, and a later call collects it.
    """
    with _lock:
        _abandoned[:] = [former for former in _abandoned if former.poll() is None]
    if _has_ended(process, timeout):
        return True
    # It is not collected yet, so its number is still that of its group.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if not _has_ended(process, grace):
        with _lock:
            _abandoned.append(process)
    return False


def _has_ended(process: subprocess.Popen[bytes], patience: float) -> bool:
    deadline = time.monotonic() + patience
    pause = 0.001
    while process.poll() is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE)
    return True
