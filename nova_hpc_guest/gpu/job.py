# SPDX-License-Identifier: Apache-2.0
"""``gpu run``: a job with the engine's environment, which ends when its share is gone.

A guard beside the command ends the job if the command itself is killed. Otherwise the job would
hang without its lifeline when the share is gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess  # nosec B404
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from .attached import join_environments
from .lifeline import is_cut

#: EX_TEMPFAIL of sysexits.h: try it again when there is a share.
GONE: Final = 75
#: Seconds that a job has to end by itself.
_GRACE: Final = 5.0
_TICK: Final = 0.2
#: Seconds to wait for the end of the lifeline after the engine's client has failed.
_LAST_LOOK: Final = 2.0
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_NOT_FOUND: Final = 127
_NOT_RUN: Final = 126
_DONE: Final = b"done\n"


def run_job(
    command: Sequence[str], environment: Mapping[str, str], line: socket.socket, share: str
) -> int:
    """Run the job, and return its exit status; 75 if the share of the GPU went away.

    :param line: the lifeline.
    :param share: the share's name in the message.
    """
    begun: list[int] = []
    early: list[int] = []

    def pass_on(number: int, _: object) -> None:
        if begun:
            _signal_group(begun[0], number)
        else:
            early.append(number)

    # Before the job begins: otherwise a job would go on if only its command were ended.
    for number in _PASSED_ON:
        signal.signal(number, pass_on)
    guard = _start_guard()

    def begin() -> None:
        # A process group of its own, so that all its processes can be ended together.
        os.setpgrp()
        os.write(guard, b"%d\n" % os.getpid())

    try:
        job = subprocess.Popen(  # nosec B603
            list(command), env=join_environments(os.environ, environment), preexec_fn=begin
        )
    except OSError as error:
        _end_guard(guard)
        print(f"nova-hpc-guest: {command[0]!a}: {error.strerror}", file=sys.stderr)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUN
    _give_terminal(os.getpgrp(), job.pid)
    begun.append(job.pid)
    for told in early:
        _signal_group(job.pid, told)
    try:
        while job.poll() is None:
            ready, _, _ = select.select([line], [], [], _TICK)
            if ready and is_cut(line):
                # A job that has just ended by itself has its own status.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    if job.wait(_TICK) == 0:
                        return 0
                _end_group(job)
                return _tell_gone(share)
        if job.returncode and _is_cut_soon(line):
            # An engine's client that loses its server may fail before this command sees it.
            return _tell_gone(share)
        return _status_of(job.returncode)
    finally:
        _end_guard(guard)
        _give_terminal(job.pid, os.getpgrp())


def _start_guard() -> int:
    """Start the guard; returns the write end of its pipe.

    The job writes its group into the pipe; ``_end_guard`` writes that the job has ended.
    """
    reading, writing = os.pipe()
    if os.fork() == 0:
        try:
            os.close(writing)
            _watch(reading)
        finally:
            os._exit(0)
    os.close(reading)
    return writing


def _end_guard(guard: int) -> None:
    """Send the guard that the job has ended, and close the connection to it."""
    with contextlib.suppress(OSError):
        os.write(guard, _DONE)
    os.close(guard)


def _watch(reading: int) -> None:
    """Read until the command has ended, and end the job that it has left."""
    os.setsid()
    for number in _PASSED_ON:
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for file in range(3):
        os.dup2(null, file)
    said = b""
    while piece := os.read(reading, 64):
        said += piece
    group, *more = said.split(b"\n")
    if not group or _DONE.strip() in (group, *more):
        return
    _signal_group(int(group), signal.SIGTERM)
    time.sleep(_GRACE)
    _signal_group(int(group), signal.SIGKILL)


def _is_cut_soon(line: socket.socket) -> bool:
    ready, _, _ = select.select([line], [], [], _LAST_LOOK)
    return bool(ready) and is_cut(line)


def _tell_gone(share: str) -> int:
    print(
        f"nova-hpc-guest: share {share} is gone or was detached: the job has ended; "
        "see openstack hpc gpu share list",
        file=sys.stderr,
    )
    return GONE


def _status_of(returned: int) -> int:
    return returned if returned >= 0 else 128 - returned


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _end_group(job: subprocess.Popen[bytes]) -> None:
    _signal_group(job.pid, signal.SIGTERM)
    end = time.monotonic() + _GRACE
    while job.poll() is None and time.monotonic() < end:
        time.sleep(_TICK)
    # Also the processes of a group whose leader has ended.
    _signal_group(job.pid, signal.SIGKILL)
    job.wait()


def _give_terminal(reads: int, follows: int) -> None:
    """Let another group read the terminal, if there is one and this group reads it now."""
    with contextlib.suppress(OSError, ValueError):
        if os.isatty(0) and os.tcgetpgrp(0) == reads:
            before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
            try:
                os.tcsetpgrp(0, follows)
            finally:
                signal.signal(signal.SIGTTOU, before)
