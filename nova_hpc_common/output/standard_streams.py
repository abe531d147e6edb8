# SPDX-License-Identifier: Apache-2.0
"""Standard output and error that outlive their reader, so that a command completes its work.

``nova-hpc configure --write DIR | head -1`` closes the pipe while the differences are
shown. Python then raises an exception at the next line, in the midst of the work. An outlet
drops the unread output, and the work goes on. The command ends with a line on standard error and
with status 141, as if SIGPIPE had ended it. A command that only looks something up stops at once,
without that line. A full disk has the same effect, with another status and its cause.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, Final

import attrs

#: Exit status of a program whose reader went away: 128 and the number of SIGPIPE.
CLOSED: Final = 141
#: Exit status if output could not be written for another reason.
UNWRITTEN: Final = 2


class OutletError(BrokenPipeError):
    """The reader of the output has gone, and the command has nothing else to do."""


class Outlet:
    """A text stream that remembers a failed write.

    :param stream: the target, which also has all other attributes; None if it was closed from
        the start.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        #: The first error of a write; None if all output was written.
        self.lost: OSError | None = None
        #: Whether the command stops when its reader is gone, because it has no other work.
        self.stops = False
        #: Both outlets of the process.
        self.pair: Outlets | None = None

    def write(self, text: str) -> int:
        """Write a text, or drop it after a failed write.

        :raises OutletError: the reader is gone, and the command stops then.
        """
        if self.stream is None:
            if text:
                self._lose(OSError("it is closed"))
        elif self.lost is None:
            try:
                self.stream.write(text)
            except OSError as error:
                self._lose(error)
        elif self.stops:
            raise OutletError(*self.lost.args)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts one after the other, as :meth:`write`."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write the buffered texts.

        :raises OutletError: the reader is gone, and the command stops then.
        """
        if self.stream is not None and self.lost is None:
            try:
                self.stream.flush()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        self.lost = error
        # Python would report the error again when it flushes the stream at exit.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.stream.fileno())
            os.close(nothing)
        if self.stops:
            raise OutletError(*error.args) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@attrs.define
class Outlets:
    """The wrapped standard output and standard error of a process."""

    out: Outlet
    err: Outlet
    _said: bool = False

    def end(self, status: int, name: str) -> int:
        """Flush both streams; return the exit status, which is not success if output was lost.

        :param status: the status if all output was written.
        :param name: name of the command, for the message.
        """
        stopped, self.out.stops = self.out.stops, False
        self.out.flush()
        self.err.flush()
        lost = self.out.lost
        if self.err.lost is not None and self.err.stream is not None:
            lost = lost or self.err.lost
        if lost is None:
            return status
        closed = isinstance(lost, BrokenPipeError)
        silent, self._said = self._said or (stopped and closed), True
        if not silent:
            what = (
                "was not read to its end"
                if closed
                else f"could not be written: {_format_os_error(lost)}"
            )
            done = "" if stopped or status else "; the command has completed its task"
            with contextlib.suppress(OSError):
                print(f"{name}: the output {what}{done}", file=self.err)
                self.err.flush()
        return status or (CLOSED if closed else UNWRITTEN)


def _format_os_error(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


@contextlib.contextmanager
def open_outlets(app: Any = None) -> Iterator[Outlets]:
    """Wrap both streams in the block; a nested block uses the outer outlets.

    :param app: the App of cliff, which has a stream of its own for rows.
    """
    before = sys.stdout, sys.stderr
    unfiltered_streams = [getattr(stream, "unfiltered", stream) for stream in before]
    if isinstance(unfiltered_streams[0], Outlet) and unfiltered_streams[0].pair is not None:
        yield unfiltered_streams[0].pair
        return
    pair = Outlets(Outlet(before[0]), Outlet(before[1]))
    sys.stdout, sys.stderr = pair.out, pair.err
    pair.out.pair = pair
    own = getattr(app, "stdout", None)
    if own is not None:
        # The openstack command has wrapped its stream, so it differs from standard output.
        app.stdout = pair.out if own is before[0] else Outlet(own)
    try:
        yield pair
    finally:
        sys.stdout, sys.stderr = before
        if own is not None:
            if app.stdout is not pair.out:
                app.stdout.flush()
                pair.out.lost = pair.out.lost or app.stdout.lost
            app.stdout = own


def fill_descriptors() -> None:
    """Open closed standard descriptors: else the next opened file would receive the output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The kernel assigns the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)


class HeardOutput:
    """A command of cliff that completes its work even if the reader of its output is gone."""

    app: Any
    cmd_name: Any
    #: Exit status after success of the command itself, e.g. for a bad verdict.
    verdict_status: int = 0

    def run(self, parsed_args: Any) -> int:
        """Run the command, and return its exit status; 141 if its reader left early."""
        with open_outlets(self.app) as streams:
            status = int(super().run(parsed_args) or 0)  # type: ignore[misc]
            status = status or self.verdict_status
            name = " ".join(filter(None, ("openstack", getattr(self, "cmd_name", None))))
        return streams.end(status, name)
