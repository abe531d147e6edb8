# SPDX-License-Identifier: Apache-2.0
"""The server in front of each API: what it takes, and how it ends."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

APPLICATION = """\
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [environ["REQUEST_METHOD"].encode()]
"""


@pytest.fixture
def port(tmp_path):
    (tmp_path / "application.py").write_text(APPLICATION)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    server = subprocess.Popen(
        [sys.executable, "-m", "nova_hpc_lab.serve", "application", str(number)],
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        _until_it_listens(server, number)
        yield number
        server.send_signal(signal.SIGTERM)
        assert server.wait(30) == 0
    finally:
        server.kill()
        server.wait()


def _until_it_listens(server, number):
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", number)).close()
            return
        except OSError:
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_requests_are_answered(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"GET"


def test_an_image_of_many_gigabytes_is_not_refused_for_its_size(port):
    # The snapshot of a server's raw disk is one request.
    with socket.create_connection(("127.0.0.1", port), timeout=3) as connection:
        connection.sendall(
            b"PUT /v2/images/x/file HTTP/1.1\r\nHost: x\r\nContent-Length: 64424509440\r\n\r\n"
        )
        # It waits for the data; what it refuses, it answers at once.
        with pytest.raises(TimeoutError):
            print(connection.recv(1000))
