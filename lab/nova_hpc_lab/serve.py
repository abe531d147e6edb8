# SPDX-License-Identifier: Apache-2.0
"""Serve one OpenStack API with waitress: ``python -m nova_hpc_lab.serve MODULE PORT``.

The services are WSGI applications without their own server.
"""

from __future__ import annotations

import importlib
import signal
import sys
from typing import Any, Final

import waitress

_THREADS: Final = 8
#: Bytes. An image is one request, and the snapshot of a server's disk is larger than waitress's own
#: limit of 1 GiB. waitress stores larger bodies in a file below TMPDIR.
_LARGEST_BODY: Final = 1 << 40


def main(argv: list[str]) -> int:
    """Import ``MODULE`` and serve its ``application`` on the loopback until SIGTERM."""
    module, port = argv
    signal.signal(signal.SIGTERM, _leave)
    # Nova and Neutron parse sys.argv when they are imported.
    sys.argv = [module]
    application: Any = importlib.import_module(module).application
    waitress.serve(
        application,
        host="127.0.0.1",
        port=int(port),
        threads=_THREADS,
        ident=None,
        channel_timeout=300,
        connection_limit=400,
        max_request_body_size=_LARGEST_BODY,
    )
    return 0


def _leave(signum: int, frame: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
