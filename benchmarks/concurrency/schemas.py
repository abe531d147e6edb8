# SPDX-License-Identifier: Apache-2.0
"""``python -m benchmarks.concurrency.schemas NOVA_CONF``: the tables of Nova's databases.

It replaces ``nova-manage api_db sync`` and ``nova-manage db sync --local_cell``, with only one
import of Nova. An import takes as long as the tables.
"""

from __future__ import annotations

import sys


def main() -> None:
    from nova import config
    from nova.db import migration

    config.parse_args(["nova", f"--config-file={sys.argv[1]}"])
    for database in ("api", "main"):
        migration.db_sync(database=database)


if __name__ == "__main__":
    main()
