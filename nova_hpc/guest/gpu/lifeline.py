# SPDX-License-Identifier: Apache-2.0
"""The lifeline of a slot: a connection that lives exactly as long as the slot's engine.

One engine's client hangs for ever when its server dies, the other's for up to 107 seconds. So a
slot's unit runs ``gpu slot``, which starts the engine and holds the lifelines of its client's
jobs; when either ends, or the machine does, the jobs know. It answers one line and reads none.
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


class LifelineError(Exception):
    """There is no share at the other end; the text says what there is."""


class Hello(NamedTuple):
    """What a slot says of itself."""

    client: str
    engine: str
    release: str


def format_hello(hello: Hello) -> bytes:
    """The line of a slot."""
    return f"nova-hpc-gpu 1 {hello.client} {hello.engine} {hello.release}\n".encode("ascii")


def parse_hello(data: bytes) -> Hello:
    """Read a slot's line.

    :raises LifelineError: it is none.
    """
    match = _HELLO.fullmatch(data.decode("ascii", "replace"))
    if match is None:
        raise LifelineError("what answers there is no slot of a share")
    return Hello(match[1], match[2], match[3])


def open_lifeline(address: str, port: int, timeout: float = 10.0) -> tuple[socket.socket, Hello]:
    """Connect to a slot.

    :param port: the first port of the slot.
    :raises LifelineError: nothing answers, or something else.
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
    """Whether the other end is gone; to be asked when there is something to read."""
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


def is_listening(port: int, table: str = "/proc/net/tcp") -> bool:
    """Whether a process of this machine listens on a port; no connection is made."""
    ending = f":{port:04X}"
    with contextlib.suppress(OSError), open(table, encoding="ascii") as stream:  # noqa: PTH123
        for line in stream:
            words = line.split()
            if len(words) > 3 and words[1].endswith(ending) and words[3] == "0A":
                return True
    return False


def run_slot(hello: Hello, peer: str, bind: str, port: int, command: Sequence[str]) -> int:
    """Run an engine, and hold lifelines while it lives.

    :param peer: the one address that may connect.
    :param bind: this machine's address towards it.
    :returns: the exit status: 0 if it was told to end, 1 if the engine ended before that.
    """
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda one, _: told.append(one))
    engine = subprocess.Popen(list(command), stdin=subprocess.DEVNULL)  # nosec B603
    try:
        begun = time.monotonic()
        while not is_listening(port):
            if told:
                return 0
            if engine.poll() is not None or time.monotonic() - begun > _STARTS:
                return 1
            time.sleep(0.1)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind((bind, port + LIFELINE))
            door.listen(16)
            return _hold_lines(door, engine, hello, peer, told)
    finally:
        with contextlib.suppress(OSError):
            engine.kill()
        engine.wait()


def _hold_lines(
    door: socket.socket,
    engine: subprocess.Popen[bytes],
    hello: Hello,
    peer: str,
    told: Sequence[int],
) -> int:
    lines: list[socket.socket] = []
    try:
        while not told:
            if engine.poll() is not None:
                return 1
            try:
                ready, _, _ = select.select([door, *lines], [], [], 1.0)
            except InterruptedError:
                continue
            for one in ready:
                if one is not door:
                    if is_cut(one):
                        lines.remove(one)
                        one.close()
                    continue
                line, address = door.accept()
                if address[0] != peer or len(lines) >= _MOST:
                    line.close()
                    continue
                line.setblocking(False)
                with contextlib.suppress(OSError):
                    _keep_alive(line)
                    line.send(format_hello(hello))
                lines.append(line)
        return 0
    finally:
        for line in lines:
            line.close()
