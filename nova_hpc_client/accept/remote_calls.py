# SPDX-License-Identifier: Apache-2.0
"""Commands on other machines: several at a time, each with a limit, and none is left running.

One thread watches all of them, so Ctrl-C ends them in order. It first closes their standard input,
which ends the command on the other side, and then ends the launcher itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc_common.outside.text import printable_text

#: The longest output that is read, in bytes.
LONGEST: Final = 1 << 22
#: Seconds between two checks of the running commands.
_LOOK: Final = 0.05
#: Seconds for the other side to end its tools after standard input is closed; seconds for the
#: launcher to end after a signal.
_GRACE: Final = 8.0
_PATIENCE: Final = 2.0
#: Characters of the other side's last line that are shown.
_SHOWN: Final = 160
#: Exit statuses of a shell for a command that it cannot run, and for one that does not exist.
_NO_COMMAND: Final = (126, 127)
_SSH_FAILED: Final = 255
_BAD_OPTIONS: Final = 2
_OLD_WORDS: Final = ("unrecognized arguments", "invalid choice", "the following arguments")


@attrs.frozen
class CallEnd:
    """The result of a command on another machine.

    :ivar output: the text that it wrote to standard output.
    :ivar problem: None if it ended by itself with status 0.
    """

    output: str
    problem: str | None = None


class RemoteCall:
    """A command that runs on another machine through a launcher such as ssh.

    :param words: words of the launcher's command line.
    :param limit: seconds until it is ended.
    :param environment: environment of the launcher; None for this process's own.
    """

    def __init__(
        self, words: Sequence[str], limit: float, environment: Mapping[str, str] | None = None
    ) -> None:
        self._limit = limit
        self._begun = time.monotonic()
        self._name = Path(words[0]).name
        self._child: subprocess.Popen[bytes] | None = None
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self.ended: CallEnd | None = None
        try:
            self._child = subprocess.Popen(
                list(words),
                stdin=subprocess.PIPE,
                stdout=self._out,
                stderr=self._err,
                env=None if environment is None else dict(environment),
                # A session without a terminal: ssh cannot prompt, and Ctrl-C reaches only this
                # process.
                start_new_session=True,
            )
        except OSError as error:
            self._finish(CallEnd("", f"{words[0]} does not start: {error.strerror or error}"))

    def poll(self) -> CallEnd | None:
        """Return the result of the command; None while it runs. It is ended over its limit."""
        if self.ended is not None or self._child is None:
            return self.ended
        status = self._child.poll()
        if status is not None:
            self.end()
            output, error = _read_start(self._out), _read_start(self._err)
            problem = None if status == 0 else explain_end(self._name, status, error or output)
            return self._finish(CallEnd(output, problem))
        problem = None
        if time.monotonic() - self._begun > self._limit:
            problem = f"no answer within {self._limit:g} s"
        elif max(os.fstat(file.fileno()).st_size for file in (self._out, self._err)) > LONGEST:
            problem = f"it wrote more than {LONGEST >> 20} MiB"
        if problem is None:
            return None
        self.end()
        return self._finish(CallEnd("", problem))

    def read_output(self) -> str:
        """Return the output that the command has written so far; "" after its end."""
        return "" if self.ended is not None else _read_start(self._out)

    def end(self) -> None:
        """End the command on the other side, and the launcher here.

        Each step is taken only if the one before was not enough: close standard input, send
        SIGTERM, send SIGKILL.
        """
        child = self._child
        if child is None:
            return
        if child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()
        for patience, number in (
            (_GRACE, signal.SIGTERM),
            (_PATIENCE, signal.SIGKILL),
            (_PATIENCE, None),
        ):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(patience)
                return
            if number is not None:
                with contextlib.suppress(OSError):
                    os.killpg(child.pid, number)

    def let_go(self) -> None:
        """Close its standard input, so that it ends on the other side; :meth:`end` waits for it."""
        if self._child is not None and self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()

    def _finish(self, ended: CallEnd) -> CallEnd:
        self.ended = ended
        self._out.close()
        self._err.close()
        return ended


@contextlib.contextmanager
def started_calls(
    commands: Sequence[Sequence[str]], limit: float, environment: Mapping[str, str] | None = None
) -> Iterator[list[RemoteCall]]:
    """Start commands, and end them all when the block ends, also by an exception."""
    calls: list[RemoteCall] = []
    try:
        for words in commands:
            calls.append(RemoteCall(words, limit, environment))
        yield calls
    finally:
        for call in calls:
            call.let_go()
        for call in calls:
            call.end()


def run_calls(
    commands: Sequence[Sequence[str]], limit: float, environment: Mapping[str, str] | None = None
) -> list[CallEnd]:
    """Run commands at the same time, each to its end or its limit."""
    with started_calls(commands, limit, environment) as calls:
        return wait_for_calls(calls)


def wait_for_calls(calls: Sequence[RemoteCall]) -> list[CallEnd]:
    """Wait until all commands have ended, and return their results in the same order."""
    while True:
        ends = [call.poll() for call in calls]
        if all(end is not None for end in ends):
            return [end for end in ends if end is not None]
        time.sleep(_LOOK)


def explain_end(name: str, status: int, text: str) -> str:
    """Return a sentence for a launcher that ended without success, with the cure if there is one.

    :param name: name of the launcher.
    :param status: its exit status, or the negative number of the signal that ended it.
    :param text: the text that the other side, or the launcher, wrote.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    last = " ".join(lines[-1].split()) if lines else ""
    shown = printable_text(last)[:_SHOWN]
    if status in _NO_COMMAND:
        return f"it has no nova-hpc-guest that can be run ({shown}): install it, or --guest-command"
    if status == _SSH_FAILED and name == "ssh":
        return f"ssh: {shown or 'it failed without a message'}"
    if status == _BAD_OPTIONS and any(word in text for word in _OLD_WORDS):
        return f"its nova-hpc-guest is older than this command ({shown}): install this release's"
    if status < 0:
        return f"{name} was ended by signal {-status}" + (f": {shown}" if shown else "")
    return f"status {status}: {shown}" if shown else f"it ended with status {status}"


def _read_start(file: Any) -> str:
    return os.pread(file.fileno(), LONGEST, 0).decode("utf-8", "replace")
