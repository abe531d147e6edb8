# SPDX-License-Identifier: Apache-2.0
"""Standard output and error whose reader may go away: no work is left undone for it.

``nova-hpc configure --write DIR | head -1`` closes the pipe while the differences are
shown. Python then raises at the next line, in the midst of the work. Here what nobody
reads is dropped, the work goes on, and the command ends with 141, as if SIGPIPE had ended
it, and with a line on standard error. A command that only looks something up stops at
once, and says nothing. A disk that is full is the same, with another status and its cause.
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
#: What could not be written for another reason.
UNWRITTEN: Final = 2


class OutletError(BrokenPipeError):
    """The output reaches nobody, and the command has nothing else to do."""


class Outlet:
    """A text stream that remembers what it could not write.

    :param stream: where to; all but writing is its own. None: it was closed from the start.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        #: Why something was not written; None: all of it was.
        self.lost: OSError | None = None
        #: Nothing is left to be done once nobody reads.
        self.stops = False
        #: Both of the process.
        self.pair: Outlets | None = None

    def write(self, text: str) -> int:
        """Write a text, or drop it.

        :raises OutletError: it stops, and nobody reads.
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
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what is still held.

        :raises OutletError: it stops, and nobody reads.
        """
        if self.stream is not None and self.lost is None:
            try:
                self.stream.flush()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        self.lost = error
        # Python would complain once more when it flushes at exit.
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
    """Both streams of a process."""

    out: Outlet
    err: Outlet
    _said: bool = False

    def end(self, status: int, name: str) -> int:
        """The exit status of the command, which is not success where something was not read.

        :param status: as if everything had been.
        :param name: of the command.
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
            done = "" if stopped or status else "; the command has done all that was asked for"
            with contextlib.suppress(OSError):
                print(f"{name}: the output {what}{done}", file=self.err)
                self.err.flush()
        return status or (CLOSED if closed else UNWRITTEN)


def _format_os_error(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


@contextlib.contextmanager
def open_outlets(app: Any = None) -> Iterator[Outlets]:
    """Have both streams as outlets meanwhile; within another such block, those of that one.

    :param app: of cliff; it has a stream of its own to write rows to.
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
        # Not the process's, where openstack has wrapped it.
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
    """Open what a process has to find open: the next file would be taken for its output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest that is free is taken.
            os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)


class HeardOutput:
    """A command of cliff whose work no reader stops by going away."""

    app: Any
    cmd_name: Any
    #: Exit status once the command itself has gone well, such as that of a verdict.
    verdict_status: int = 0

    def run(self, parsed_args: Any) -> int:
        """Run the command; 141 where nobody has read its output to the end."""
        with open_outlets(self.app) as streams:
            status = int(super().run(parsed_args) or 0)  # type: ignore[misc]
            status = status or self.verdict_status
            name = " ".join(filter(None, ("openstack", getattr(self, "cmd_name", None))))
        return streams.end(status, name)
