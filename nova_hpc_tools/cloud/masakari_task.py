# SPDX-License-Identifier: Apache-2.0
"""A task of Masakari's host recovery, which evacuates servers with ``hpc:`` keys by our plan.

Masakari's own task lets Nova choose each host, many at once. Nova then sets each server without a
place to ERROR, and a server can take the only place that another one needs. This task runs before
it: ``nova-hpc drain --dead`` evacuates the servers with a place, and the others stay as they are.
Masakari's records show both results, so its own task leaves these servers out.

Masakari loads it by the entry point ``masakari.task_flow.tasks`` when the operator has added
``hpc_evacuate_servers_task`` to its option ``host_auto_failure_recovery_tasks``.
"""

from __future__ import annotations

import json
from typing import Any, Final

import masakari.conf
from masakari import exception, objects
from masakari.engine.drivers.taskflow import base
from masakari.objects import fields
from oslo_concurrency import processutils
from oslo_config import cfg

CONF = masakari.conf.CONF
CONF.register_opts(
    [
        cfg.ListOpt(
            "drain_command",
            default=["nova-hpc", "drain"],
            help="Words of the command that runs nova-hpc drain on a machine with the scheduler's "
            "configuration and an administrator's credentials, for example "
            "nova-hpc,drain,--os-cloud,admin.",
        )
    ],
    group="nova_hpc",
)
#: Exit statuses with a result: all servers were evacuated, or some were not.
_ANSWERED: Final = (0, 1)


class EvacuateHpcServersTask(base.MasakariTask):
    """Evacuate the servers with ``hpc:`` keys that have a place; record the others as failed."""

    def __init__(self, context: Any, novaclient: Any, **kwargs: Any) -> None:
        kwargs["requires"] = ["host_name", "notification_uuid"]
        super().__init__(context, novaclient, **kwargs)

    def execute(self, host_name: str, notification_uuid: str) -> None:
        """Run the command for the servers that Masakari is about to evacuate.

        :raises masakari.exception.HostRecoveryFailureException: the command failed. No server is
            evacuated then, because Nova would choose places that other servers need.
        """
        moves = {
            move.instance_uuid: move
            for move in objects.VMoveList.get_all_vmoves(
                self.context, notification_uuid, status=fields.VMoveStatus.PENDING
            )
        }
        if not moves:
            return
        self.update_details(f"Evacuating servers with hpc: keys from {host_name}")
        for row in _run_drain_command(host_name, sorted(moves)):
            move = moves[row["ID"]]
            move.status = fields.VMoveStatus.FAILED
            move.message = row["Reason"]
            if row["Done"]:
                move.status, move.dest_host = fields.VMoveStatus.SUCCEEDED, row["To"]
            move.save()
            self.update_details(f"{move.instance_uuid}: {move.status} {move.message}", 0.5)
        self.update_details(f"Evacuated servers with hpc: keys from {host_name}", 1.0)


def _run_drain_command(host: str, servers: list[str]) -> list[dict[str, Any]]:
    """Return the rows of ``nova-hpc drain --dead``, one for each server with ``hpc:`` keys."""
    words = [*CONF.nova_hpc.drain_command, host, "--dead", "--yes", "--format", "json"]
    words += [word for server in servers for word in ("--server", server)]
    try:
        out, _ = processutils.execute(*words, check_exit_code=_ANSWERED)
        rows = json.loads(out)
        if {row["ID"] for row in rows} <= set(servers):
            return list(rows)
        reason = "it names servers outside the request"
    except (OSError, processutils.ProcessExecutionError) as error:
        reason = str(error)
    except (ValueError, TypeError, LookupError) as error:
        reason = f"its output cannot be read: {error}"
    raise exception.HostRecoveryFailureException(
        message=f"{' '.join(words[: -2 * len(servers)])} failed, so no server of {host} was "
        f"evacuated: {reason}"
    )
