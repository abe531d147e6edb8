# SPDX-License-Identifier: Apache-2.0
"""The process of opensm, and the signal that makes it read its files again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.fabric.partitions.backends.base import SubnetManagerError
from nova_hpc.fabric.partitions.backends.opensm_options import CommandLineError, read_command_line
from nova_hpc.fabric.partitions.manager_options import RunningOptions

_NAME: Final = "opensm"
_HANGUP_BIT: Final = 1 << (signal.SIGHUP - 1)
_PROC: Final = Path("/proc")


class NotRunningError(SubnetManagerError):
    """No process on this host is the running opensm."""


@attrs.frozen
class OpensmProcess:
    """One run of opensm: a process id and the start time of the process.

    :ivar started: in clock ticks since boot (proc_pid_stat(5), starttime): distinguishes a process
        from a later one with its number.
    """

    pid: int
    started: int


def find_opensm(pid_file: Path) -> OpensmProcess:
    """Find the opensm process that the pid file names.

    :raises SubnetManagerError: it does not run.
    """
    try:
        pid = int(pid_file.read_text(encoding="ascii"))
    except FileNotFoundError as error:
        raise NotRunningError(
            f"{pid_file} is not there: opensm does not run, or its unit does not write the file "
            "(ExecStartPost=/bin/sh -c 'echo $MAINPID >FILE' does)"
        ) from error
    except (OSError, ValueError) as error:
        raise SubnetManagerError(f"{pid_file} names no process: {error}") from error
    process = _look_at(pid)
    if process is None:
        raise NotRunningError(f"opensm does not run: process {pid} of {pid_file} is gone")
    return process


def _look_at(pid: int) -> OpensmProcess | None:
    """Look whether a process is opensm, and alive.

    :raises SubnetManagerError: it is another program.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    if name != _NAME:
        raise SubnetManagerError(f"process {pid} is {name!r} and not opensm: it gets no signal")
    return OpensmProcess(pid, int(fields[19]))


def read_running_options(pid_file: Path, config: Path) -> RunningOptions:
    """Read the options that the command line of the running opensm sets; none if it does not run.

    Problems are in the field ``unknown`` of the result; the function does not raise.

    :param config: the file of options that the agent looks at.
    """
    try:
        process = find_opensm(pid_file)
        command = read_command_line(process.pid, _PROC)
        folder = (_PROC / str(process.pid) / "cwd").readlink()
    except NotRunningError:
        return RunningOptions()
    except OSError as error:
        return RunningOptions(
            unknown=f"the working directory of opensm, process {process.pid}: {error.strerror}"
        )
    except (SubnetManagerError, CommandLineError) as error:
        return RunningOptions(unknown=str(error))
    if _look_at(process.pid) != process:
        return RunningOptions()
    values = dict(command.values)
    if "partition_config_file" in values:
        values["partition_config_file"] = str(folder / values["partition_config_file"])
    used = folder / command.config
    other = None if used.resolve() == config.resolve() else str(used)
    return RunningOptions(values, other)


def wake_opensm(process: OpensmProcess) -> None:
    """Make opensm read its files again, with the signal SIGHUP.

    :raises SubnetManagerError: it has ended, or it has only begun and would die of the signal.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except OSError as error:
        raise SubnetManagerError(f"opensm, process {process.pid}, is gone") from error
    try:
        # The handle refers to the present process with this number, so this second look decides.
        if _look_at(process.pid) != process:
            raise SubnetManagerError(f"opensm, process {process.pid}, is gone")
        if not _catches_hangup(process.pid):
            raise SubnetManagerError(
                f"opensm, process {process.pid}, has only begun: it gets no signal yet"
            )
        signal.pidfd_send_signal(handle, signal.SIGHUP)
    except OSError as error:
        raise SubnetManagerError(
            f"opensm, process {process.pid}, gets no signal: {error.strerror}"
        ) from error
    finally:
        os.close(handle)


def _catches_hangup(pid: int) -> bool:
    """Return whether the process has a handler for SIGHUP, which ends a process without one."""
    for line in (_PROC / str(pid) / "status").read_text(encoding="utf-8").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) & _HANGUP_BIT)
    return False
