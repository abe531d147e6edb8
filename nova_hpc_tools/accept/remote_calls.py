# SPDX-License-Identifier: Apache-2.0
"""Commands on other machines: several at a time, each with a limit, and none is left running.

All of them are watched by one thread, so that Ctrl-C ends them: first their standard input is
closed, which ends what runs on the other side, then the launcher itself is ended.
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

from nova_hpc.outside.text import printable_text

#: The longest output that is read, in bytes.
LONGEST: Final = 1 << 22
#: Seconds between two looks.
_LOOK: Final = 0.05
#: Seconds for the other side to end its tools once standard input is closed; for the launcher.
_GRACE: Final = 8.0
_PATIENCE: Final = 2.0
#: How much is shown of what the other side said last.
_SHOWN: Final = 160
#: How a shell ends where there is no such command, or one that it must not run.
_NO_COMMAND: Final = (126, 127)
_SSH_FAILED: Final = 255
_BAD_OPTIONS: Final = 2
_OLD_WORDS: Final = ("unrecognized arguments", "invalid choice", "the following arguments")


@attrs.frozen
class CallEnd:
    """How a command on another machine ended.

    :ivar output: what it wrote to standard output.
    :ivar problem: None: it ended by itself and well.
    """

    output: str
    problem: str | None = None


class RemoteCall:
    """A command that runs on another machine.

    :param words: of the launcher.
    :param limit: seconds until it is ended.
    :param environment: of the launcher; None: this command's.
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
                # No terminal: ssh cannot ask there, and Ctrl-C comes to this command alone.
                start_new_session=True,
            )
        except OSError as error:
            self._finish(CallEnd("", f"{words[0]} does not start: {error.strerror or error}"))

    def poll(self) -> CallEnd | None:
        """How it ended; None: it runs. One that is at its limit is ended."""
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
        """What it has written until now."""
        return "" if self.ended is not None else _read_start(self._out)

    def end(self) -> None:
        """End it, there and here."""
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
        """Close its standard input, so that it ends there; :meth:`end` waits for it."""
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
    """Start these commands; whatever ends the block ends them all."""
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
    """Run these commands at the same time, each to its end or its limit."""
    with started_calls(commands, limit, environment) as calls:
        return wait_for_calls(calls)


def wait_for_calls(calls: Sequence[RemoteCall]) -> list[CallEnd]:
    """How each ended, once all have."""
    while True:
        ends = [call.poll() for call in calls]
        if all(end is not None for end in ends):
            return [end for end in ends if end is not None]
        time.sleep(_LOOK)


def explain_end(name: str, status: int, text: str) -> str:
    """The end of a launcher that is not success, with what helps.

    :param name: of the launcher.
    :param text: what the other side, or the launcher, wrote.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    last = " ".join(lines[-1].split()) if lines else ""
    shown = printable_text(last)[:_SHOWN]
    if status in _NO_COMMAND:
        return f"it has no nova-hpc-guest that can be run ({shown}): install it, or --guest-command"
    if status == _SSH_FAILED and name == "ssh":
        return f"ssh: {shown or 'it failed and said nothing'}"
    if status == _BAD_OPTIONS and any(word in text for word in _OLD_WORDS):
        return f"its nova-hpc-guest is older than this command ({shown}): install this release's"
    if status < 0:
        return f"{name} was ended by signal {-status}" + (f": {shown}" if shown else "")
    return f"status {status}: {shown}" if shown else f"it ended with status {status}"


def _read_start(file: Any) -> str:
    return os.pread(file.fileno(), LONGEST, 0).decode("utf-8", "replace")
