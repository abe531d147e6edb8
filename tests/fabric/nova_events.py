# SPDX-License-Identifier: Apache-2.0
"""Stands in for Nova's os-server-external-events, and writes down what it was told.

``python -m tests.fabric.nova_events PORT FILE``: one JSON line an event, with the time.
"""

import http.server
import json
import signal
import sys
import time
from pathlib import Path


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
