# SPDX-License-Identifier: Apache-2.0
"""Nova's API on a port: ``python -m benchmarks.group_cloud.serve_api PORT``."""

from __future__ import annotations

import sys


def main() -> None:
    port = int(sys.argv[1])
    # Nova reads the command line of the process that imports it.
    sys.argv = ["nova-api"]
    from nova.wsgi import osapi_compute
    from waitress import serve

    from benchmarks.group_cloud import elsewhere

    elsewhere.install()
    serve(
        osapi_compute.application,
        host="127.0.0.1",
        port=port,
        threads=8,
        connection_limit=400,
        channel_timeout=300,
    )


if __name__ == "__main__":
    main()
