# SPDX-License-Identifier: Apache-2.0
"""Run a program that may never end, and that ends with this process.

As :func:`nova_hpc.tenancy.hygiene.reset.run_with_deadline`, and the program's standard
input is a pipe whose other end only this process has: it closes however this process ends,
SIGKILL among them, and the program sees that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

_GRACE: Final = 2.0
_PAUSE: Final = 0.05
_LONGEST: Final = 1 << 20

#: Killed, and not dead yet: in the kernel.
_abandoned: list[subprocess.Popen[bytes]] = []
_lock = threading.Lock()


class LateError(Exception):
    """A program did not end in time, or could not be started."""


def run_stage_program(
    argv: Sequence[str], timeout: float, more: Mapping[str, str] | None = None
) -> str:
    """Run a program with this interpreter's module path.

    :param timeout: seconds; then it is killed and, where the kernel does not let go of
        it, left behind.
    :param more: environment variables.
    :returns: what it has written to its standard output.
    :raises LateError: it did not end in time, ended badly, or cannot be started.
    """
    with _lock:
        _abandoned[:] = [former for former in _abandoned if former.poll() is None]
    reading, writing = os.pipe()
    environ = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder),
        **(more or {}),
    }
    try:
        with os.fdopen(os.memfd_create("answer"), "w+b") as answer:
            try:
                process = subprocess.Popen(
                    list(argv),
                    stdin=reading,
                    stdout=answer,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    env=environ,
                )
            except OSError as error:
                raise LateError(f"cannot start {argv[0]}: {error.strerror}") from error
            finally:
                os.close(reading)
            if not _is_over_in_time(process, timeout):
                process.kill()
                if not _is_over_in_time(process, _GRACE):
                    with _lock:
                        _abandoned.append(process)
                raise LateError(f"it did not end within {timeout:g} seconds and was killed")
            if process.returncode < 0:
                raise LateError(f"it was killed by signal {-process.returncode}")
            if process.returncode:
                raise LateError(f"it ended with status {process.returncode}")
            answer.seek(0)
            return answer.read(_LONGEST).decode("utf-8", "replace")
    finally:
        os.close(writing)


def _is_over_in_time(process: subprocess.Popen[bytes], patience: float) -> bool:
    deadline = time.monotonic() + patience
    pause = 0.001
    while process.poll() is None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE)
    return True
