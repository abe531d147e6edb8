# SPDX-License-Identifier: Apache-2.0
"""The lifeline of a slot: a connection that lives exactly as long as the slot's engine.

If its server dies, one engine's client hangs for ever, and the other's for up to 107 seconds. So a
slot's unit runs ``gpu slot``, which starts the engine and holds the lifelines of its client's
jobs. If the engine, the unit or the machine ends, the lifelines end, and the jobs notice it.
A lifeline sends one line, and reads none.
"""

from __future__ import annotations

import contextlib
import re
import select
import signal
import socket
import subprocess  # nosec B404
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from .port_rule import LIFELINE
from .records import ENGINE, RELEASE, UUID

#: Seconds of silence until a peer counts as gone: 5 + 4 x 5. With the job's end, below 40.
_IDLE, _EVERY, _TIMES = 5, 5, 4
SILENCE: Final = _IDLE + _EVERY * _TIMES
_HELLO: Final = re.compile(
    rf"nova-hpc-gpu 1 ({UUID.pattern}) ({ENGINE.pattern}) ({RELEASE.pattern})\n", re.ASCII
)
_LONGEST: Final = 256
#: Jobs of one client at one time.
_MOST: Final = 256
#: Seconds until an engine that does not listen has failed.
_STARTS: Final = 60.0
#: Seconds without a job after which an engine that has served one gives way to a fresh one.
IDLE: Final = 300.0
_ESTABLISHED, _LISTENS = "01", "0A"


class LifelineError(Exception):
    """The other end is not a share; the text describes the other end."""


class SlotPlace(NamedTuple):
    """The addresses and ports of a slot (one client's part of a shared GPU)."""

    #: The one address that may connect.
    peer: str
    #: This machine's address towards it.
    bind: str
    #: The first of the engine's ports, and their number.
    port: int
    ports: int = 1


class Hello(NamedTuple):
    """A slot's description of itself: its client, its engine and the engine's release."""

    client: str
    engine: str
    release: str


def format_hello(hello: Hello) -> bytes:
    """Format the line with which a slot describes itself."""
    return f"nova-hpc-gpu 1 {hello.client} {hello.engine} {hello.release}\n".encode("ascii")


def parse_hello(data: bytes) -> Hello:
    """Parse the line with which a slot describes itself.

    :raises LifelineError: it is none.
    """
    match = _HELLO.fullmatch(data.decode("ascii", "replace"))
    if match is None:
        raise LifelineError("what answers there is no slot of a share")
    return Hello(match[1], match[2], match[3])


def open_lifeline(address: str, port: int, timeout: float = 10.0) -> tuple[socket.socket, Hello]:
    """Connect to a slot of a shared GPU, and read the greeting of its server.

    :param port: the first port of the slot; the lifeline has a fixed distance from it.
    :param timeout: seconds.
    :raises LifelineError: no server answers, or the answer is no greeting.
    """
    try:
        line = socket.create_connection((address, port + LIFELINE), timeout)
    except OSError as error:
        raise LifelineError(f"the share does not answer: {error}") from error
    try:
        _keep_alive(line)
        data = b""
        while not data.endswith(b"\n") and len(data) < _LONGEST:
            piece = line.recv(_LONGEST - len(data))
            if not piece:
                break
            data += piece
        hello = parse_hello(data)
    except OSError as error:
        line.close()
        raise LifelineError(f"the share does not answer: {error}") from error
    except LifelineError:
        line.close()
        raise
    line.setblocking(False)
    return line, hello


def is_cut(line: socket.socket) -> bool:
    """Whether the other end is gone; called when there is something to read."""
    try:
        return not line.recv(_LONGEST)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True


def _keep_alive(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _EVERY)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _TIMES)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE * 1000)


def is_listening(port: int) -> bool:
    """Whether a process of this machine listens on a port; no connection is made."""
    return _LISTENS in _read_states((port,))


def is_connected(place: SlotPlace) -> bool:
    """Whether a client is connected to the engine, also one without a lifeline."""
    return _ESTABLISHED in _read_states(range(place.port, place.port + place.ports))


def _read_states(ports: Sequence[int]) -> set[str]:
    """Return states of the TCP sockets on some ports of this machine, as the kernel writes them."""
    endings = tuple(f":{port:04X}" for port in ports)
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as stream:  # noqa: PTH123
            for line in stream:
                words = line.split()
                if len(words) > 3 and words[1].endswith(endings):
                    found.add(words[3])
    return found


def run_slot(hello: Hello, place: SlotPlace, command: Sequence[str], idle: float = IDLE) -> int:
    """Run an engine, and hold lifelines while it lives.

    An engine that has served jobs and has none for a while is ended, and a fresh one started, so
    that it keeps nothing of the jobs.

    :param idle: seconds.
    :returns: the exit status: 0 after a signal, 1 if an engine ended before that.
    """
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda one, _: told.append(one))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((place.bind, place.port + LIFELINE))
        status = None
        while status is None:
            engine = subprocess.Popen(list(command), stdin=subprocess.DEVNULL)  # nosec B603
            try:
                status = _await_engine(engine, place, told)
                if status is None:
                    door.listen(16)
                    status = _Lines(door, engine, hello, place, told, idle).hold()
            finally:
                with contextlib.suppress(OSError):
                    engine.kill()
                engine.wait()
        return status


def _await_engine(
    engine: subprocess.Popen[bytes], place: SlotPlace, told: Sequence[int]
) -> int | None:
    """Wait until an engine listens on its port; return None then, else the exit status to end with.

    The status is 0 if the service must stop, and 1 if the engine ended or started too
    slowly.
    """
    begun = time.monotonic()
    while not is_listening(place.port):
        if told:
            return 0
        if engine.poll() is not None or time.monotonic() - begun > _STARTS:
            return 1
        time.sleep(0.1)
    return None


class _Lines:
    """The lifeline connections of the clients of one engine."""

    def __init__(
        self,
        door: socket.socket,
        engine: subprocess.Popen[bytes],
        hello: Hello,
        place: SlotPlace,
        told: Sequence[int],
        idle: float,
    ) -> None:
        self.door, self.engine, self.hello, self.place = door, engine, hello, place
        self.told, self.idle = told, idle
        self.lines: list[socket.socket] = []
        #: The last time at which the engine was in use; None if never.
        self.used: float | None = None

    def hold(self) -> int | None:
        """Attend to the connections until the engine ends, has to stop, or is idle.

        Return the exit status, 0 or 1; None if the engine has been idle.
        """
        try:
            while not self.told:
                if self.engine.poll() is not None:
                    return 1
                if self._is_idle():
                    return None
                with contextlib.suppress(InterruptedError):
                    self._attend()
            return 0
        finally:
            for line in self.lines:
                line.close()

    def _is_idle(self) -> bool:
        if self.lines or is_connected(self.place):
            self.used = time.monotonic()
        return self.used is not None and time.monotonic() - self.used > self.idle

    def _attend(self) -> None:
        ready, _, _ = select.select([self.door, *self.lines], [], [], 1.0)
        for one in ready:
            if one is self.door:
                self._accept()
            elif is_cut(one):
                self.lines.remove(one)
                one.close()

    def _accept(self) -> None:
        line, address = self.door.accept()
        if address[0] != self.place.peer or len(self.lines) >= _MOST:
            line.close()
            return
        self.used = time.monotonic()
        line.setblocking(False)
        with contextlib.suppress(OSError):
            _keep_alive(line)
            line.send(format_hello(self.hello))
        self.lines.append(line)
