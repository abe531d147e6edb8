# SPDX-License-Identifier: Apache-2.0
"""Masakari's own engine driver in a process of its own: it recovers one host, and prints the moves.

python -m tests.functional.masakari_engine masakari.conf HOST NOTIFICATION
"""

from __future__ import annotations

import eventlet

eventlet.monkey_patch()

import json  # noqa: E402
import logging  # noqa: E402
import sys  # noqa: E402

from keystonemiddleware import auth_token  # noqa: E402,F401
from masakari import config, context, exception, objects  # noqa: E402
from masakari.db import migration  # noqa: E402
from masakari.objects import fields  # noqa: E402


def main(file: str, host: str, notification: str) -> int:
    config.parse_args(["masakari-engine", "--config-file", file])
    logging.basicConfig(level=logging.INFO, force=True)  # to standard error
    logging.disable(logging.NOTSET)
    objects.register_all()
    migration.db_sync()
    # After the options are read: it takes some of them when it is imported.
    from masakari.engine.drivers.taskflow import TaskFlowDriver

    who = context.get_admin_context()
    failure = ""
    try:
        TaskFlowDriver().execute_host_failure(
            who, host, fields.FailoverSegmentRecoveryMethod.AUTO, notification
        )
    except exception.MasakariException as error:
        logging.exception("The recovery failed")
        failure = str(error)
    moves = objects.VMoveList.get_all_vmoves(who, notification)
    shown = {
        move.instance_uuid: [move.status, move.dest_host, move.message or ""] for move in moves
    }
    print(json.dumps({"failure": failure, "moves": shown}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
