# SPDX-License-Identifier: Apache-2.0
"""Nova's metadata service for guests without a cloud: of each the file ADDRESS.json in FOLDER.

``metadata_service.py FOLDER`` answers at the address at which guests ask.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Answer(BaseHTTPRequestHandler):
    """What the guest that asks is told."""

    def do_GET(self):
        try:
            data = Path(sys.argv[1], f"{self.client_address[0]}.json").read_bytes()
        except OSError:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    ThreadingHTTPServer(("169.254.169.254", 80), Answer).serve_forever()
