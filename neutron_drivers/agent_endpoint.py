# SPDX-License-Identifier: Apache-2.0
"""The methods of ``neutron-rpc-server`` for the fabric agents.

Every call may come twice, late or after another agent's: it changes only rows that are still in
the state that the call assumes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import oslo_messaging
from neutron.db import provisioning_blocks
from neutron_lib import constants
from neutron_lib import context as neutron_context
from neutron_lib.callbacks import resources
from neutron_lib.db import api as db_api
from neutron_lib.plugins import directory
from oslo_log import log

from neutron_drivers import member_store
from neutron_drivers.fabrics import FabricSettings
from neutron_drivers.rpc_names import LOST_VERSION
from nova_hpc.wire import partitions

LOG = log.getLogger(__name__)

#: Longest reason that goes to the log, in characters.
_LONGEST_REASON = 500


def block_of_row(row: int) -> str:
    """Return the name of the provisioning block of a membership row.

    The block keeps a port from ACTIVE until its membership is in force. Each row has a block of its
    own. So a late report on a former row leaves the block of its successor.
    """
    return f"HPC_PARTITION_{row}"


class FabricAgentEndpoint:
    """The methods that fabric agents call by RPC, on the topic ``hpc-partitions``."""

    target = oslo_messaging.Target(version=LOST_VERSION)

    def __init__(self, read_settings: Callable[[], FabricSettings]) -> None:
        self._read_settings = read_settings

    def read_desired(self, _context: object, fabric: str, agent: str) -> dict[str, Any]:
        """Return the desired partitions of a fabric, in the form of
        :mod:`nova_hpc.wire.partitions`.

        :param agent: its host, for the log.
        :raises ValueError: no physical network is on such a fabric.
        """
        settings = self._check_fabric(fabric, agent)
        desired = member_store.read_desired_partitions(
            neutron_context.get_admin_context(), fabric, settings.policies
        )
        LOG.debug("Ticket %d of fabric %s is for %s", desired.ticket, fabric, agent)
        return partitions.write_desired(desired)

    def report_members(
        self,
        _context: object,
        fabric: str,
        agent: str,
        ticket: int,
        present: Sequence[int] = (),
        gone: Sequence[int] = (),
        failed: Sequence[Sequence[Any]] = (),
        repeat: Sequence[int] = (),
        lost: Sequence[Sequence[Any]] = (),
    ) -> None:
        """Process an agent's report on the member rows that it has read back.

        :param ticket: of the reading that it compared with, for the log.
        :param present: rows whose membership is in force: their ports may be ACTIVE.
        :param gone: rows whose membership is gone.
        :param failed: rows that cannot be made members, with the reason.
        :param repeat: rows of ACTIVE ports: Nova gets their event once more.
        :param lost: rows of ACTIVE ports without a membership now, with the reason: DOWN.
        :raises ValueError: the options put no physical network on this fabric.
        """
        self._check_fabric(fabric, agent)
        context = neutron_context.get_admin_context()
        if gone:
            dropped = member_store.drop_gone_rows(context, fabric, gone)
            LOG.debug("Ticket %s: %s of %s rows are gone", ticket, dropped, list(gone))
        for row, port_id in _read_wanted(context, fabric, present):
            activate_port(context, row, port_id)
        losses = {int(row): str(reason) for row, reason in lost}
        for row, port_id in _read_wanted(context, fabric, losses):
            take_down_port(context, row, port_id, losses[row])
        reasons = {int(row): str(reason) for row, reason in failed}
        for row, port_id in _read_wanted(context, fabric, reasons):
            fail_port(context, port_id, reasons[row])
        for _, port_id in _read_wanted(context, fabric, repeat):
            repeat_event(context, port_id)

    def _check_fabric(self, fabric: str, agent: str) -> FabricSettings:
        settings = self._read_settings()
        if fabric not in settings.names_of_fabrics():
            raise ValueError(
                f"the fabric agent on {agent} serves fabric {fabric!r}, and "
                "[hpc_partitions]physical_networks of Neutron's server names no such one"
            )
        return settings


def activate_port(context: Any, row: int, port_id: str) -> None:
    """Let Neutron set a port to ACTIVE, because its membership is in force.

    This works without its block, too: a server may have ended between the block and the status.
    """
    before = _read_port(context, port_id)
    if before is None:
        return
    # OVN adds a block when its own switch reports the port as down. It always reports a whole or
    # virtual function as down. The mechanism driver that has bound the port decides.
    provisioning_blocks.remove_provisioning_component(
        context, port_id, resources.PORT, provisioning_blocks.L2_AGENT_ENTITY
    )
    provisioning_blocks.provisioning_complete(context, port_id, resources.PORT, block_of_row(row))
    if before.status == constants.PORT_STATUS_ERROR:
        # Neutron sends Nova no event for ports that leave ERROR.
        repeat_event(context, port_id)


def take_down_port(context: Any, row: int, port_id: str, reason: str) -> None:
    """Set an ACTIVE port to DOWN because its membership is lost; a later report makes it ACTIVE
    again.
    """
    before = _read_port(context, port_id)
    if before is None or before.status != constants.PORT_STATUS_ACTIVE:
        return
    LOG.error("Port %s has lost its membership and is DOWN: %s", port_id, _shorten(reason))
    # The wait for the membership begins again: the member watch counts from here.
    member_store.restart_wait(context, row)
    directory.get_plugin().update_port_status(context, port_id, constants.PORT_STATUS_DOWN)


def _shorten(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}..."


def fail_port(context: Any, port_id: str, reason: str) -> None:
    """Set a port to ERROR; Neutron sends Nova an event for that, so a build ends at once."""
    LOG.error("Port %s cannot be isolated and is set to ERROR: %s", port_id, _shorten(reason))
    directory.get_plugin().update_port_status(context, port_id, constants.PORT_STATUS_ERROR)


def repeat_event(context: Any, port_id: str) -> None:
    """Send Nova the event of a plugged port again, if the port is ACTIVE; a repetition is
    harmless.
    """
    notifier = getattr(directory.get_plugin(), "nova_notifier", None)
    port = _read_port(context, port_id)
    if notifier is not None and port is not None and port.status == constants.PORT_STATUS_ACTIVE:
        notifier.notify_port_active_direct(port)


def _read_port(context: Any, port_id: str) -> Any:
    # A transaction of its own: REPEATABLE READ would show the status of before.
    with db_api.CONTEXT_READER.using(context):
        return member_store.find_port(context.session, port_id)


def _read_wanted(context: Any, fabric: str, rows: Collection[int]) -> list[tuple[int, str]]:
    if not rows:
        return []
    with db_api.CONTEXT_READER.using(context):
        found = member_store.find_wanted_rows(context.session, fabric, [int(row) for row in rows])
        return [(row.id, row.port_id) for row in found]
