# SPDX-License-Identifier: Apache-2.0
"""Stands in for Nova: writes down the events that it gets, and reports servers as a test says.

``python -m tests.fabric.nova_events PORT FILE``: one JSON line an event, with the time. The file
``nova.json`` beside it has the status of requests by the last part of their path, e.g. a server's
id, or the host of a server that Nova has. Servers without an entry are gone.
"""

import http.server
import json
import signal
import sys
import time
from pathlib import Path

#: A status: the request gets no answer.
HANGS = 0
_SECONDS_OF_HANG = 20.0


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as Nova does when the server of an event is known."""

    protocol_version = "HTTP/1.1"

    def answer(self, code, document):
        text = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        answers = Path(sys.argv[2]).with_name("nova.json")
        statuses = json.loads(answers.read_text()) if answers.exists() else {}
        *_, kind, name = self.path.partition("?")[0].rstrip("/").split("/")
        status = statuses.get(name, 404 if kind == "servers" else 200)
        host = "cn0"
        if isinstance(status, str):
            status, host = 200, status
        if status == HANGS:
            time.sleep(_SECONDS_OF_HANG)
            self.close_connection = True
        elif kind == "servers" and status == 200:
            states = {"OS-EXT-STS:vm_state": "active", "OS-EXT-STS:task_state": None}
            server = {"id": name, "status": "ACTIVE", "OS-EXT-SRV-ATTR:host": host, **states}
            self.answer(200, {"server": server})
        elif kind == "servers" and status == 404:
            text = f"Instance {name} could not be found."
            self.answer(404, {"itemNotFound": {"code": 404, "message": text}})
        elif status != 200:
            self.answer(status, {"error": {"code": status, "message": "as the test says"}})
        elif name == "os-services":
            state = "down" if host == "is-down" else "up"
            self.answer(200, {"services": [{"binary": "nova-compute", "state": state}]})
        else:
            version = {"id": "v2.1", "status": "CURRENT", "version": "2.96", "min_version": "2.1"}
            self.answer(200, {"version": {**version, "links": []}})

    def do_POST(self):
        length = int(self.headers["Content-Length"])
        events = json.loads(self.rfile.read(length))["events"]
        with Path(sys.argv[2]).open("a") as stream:
            for event in events:
                stream.write(json.dumps({"time": time.time(), **event}) + "\n")
        self.answer(200, {"events": [{**event, "code": 200} for event in events]})

    def log_message(self, *arguments):
        """Nobody reads it."""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
