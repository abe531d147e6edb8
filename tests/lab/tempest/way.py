# SPDX-License-Identifier: Apache-2.0
"""A way to services on other ports, for a client that knows the usual ones alone."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator

#: Of the loopback, and nobody else's.
ADDRESS = "127.42.0.2"


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def way(port: int, there: int) -> Iterator[None]:
    """What is sent to *port* of :data:`ADDRESS` comes to *there* of 127.0.0.1."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", there)) as target:
                back = threading.Thread(target=_pump, args=(target, self.request), daemon=True)
                back.start()
                _pump(self.request, target)
                back.join()

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server((ADDRESS, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
