# SPDX-License-Identifier: Apache-2.0
"""Runs a program that may never end, and that ends with this process.

It works like :func:`nova_hpc.tenancy.hygiene.reset.run_with_deadline`. In addition, the program's
standard input is a pipe with its other end only in this process. The pipe closes however this
process ends, also by SIGKILL, and the program detects that.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from nova_hpc.tenancy.programs import ends_in_time

_GRACE: Final = 2.0
_LONGEST: Final = 1 << 20


class LateError(Exception):
    """A program did not end in time, or could not be started."""


def run_stage_program(
    argv: Sequence[str], timeout: float, more: Mapping[str, str] | None = None
) -> str:
    """Run a program with this interpreter's module path.

    :param timeout: seconds; then it is killed, and left behind if the kernel does not
        release it.
    :param more: environment variables.
    :returns: its standard output.
    :raises LateError: it did not end in time, failed, or could not be started.
    """
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
            if not ends_in_time(process, timeout, _GRACE):
                raise LateError(f"it did not end within {timeout:g} seconds and was killed")
            if process.returncode < 0:
                raise LateError(f"it was killed by signal {-process.returncode}")
            if process.returncode:
                raise LateError(f"it ended with status {process.returncode}")
            answer.seek(0)
            return answer.read(_LONGEST).decode("utf-8", "replace")
    finally:
        os.close(writing)
