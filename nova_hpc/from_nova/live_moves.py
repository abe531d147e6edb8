# SPDX-License-Identifier: Apache-2.0
"""Live migration of servers with ``hpc:`` keys: those that cannot move while they run, and why.

Nova's conductor keeps each refusal in its log and reports only that there is no host
(``_find_destination`` of nova/conductor/tasks/live_migrate.py, 32 to 34). So the scheduler returns
the reason before that, and the source refuses again.
"""

from __future__ import annotations

from typing import Final

from nova import context as nova_context
from nova import objects
from nova.compute import instance_actions
from oslo_log import log as logging

from nova_hpc.from_nova import server
from nova_hpc.placement import flavor as flavors
from nova_hpc.wire.guest_abi import TopologyMode

LOG = logging.getLogger(__name__)

_COLD: Final = "Use a cold migration."
PORTS: Final = (
    "A server with hpc: keys and direct (SR-IOV) ports cannot be live-migrated: Nova would choose "
    f"the adapters apart from its devices. {_COLD}"
)
DEVICES: Final = (
    "The server's PCI devices cannot be live-migrated: the operator has not declared them (and "
    f"their aliases) live_migratable. {_COLD}"
)
TREE: Final = (
    "A guest with hpc:guest_topology=mirror or numa cannot be live-migrated: it shows the places "
    f"of its present devices. {_COLD}"
)


def refusal_of(flavor: objects.Flavor, requests: objects.InstancePCIRequests | None) -> str | None:
    """Return the reason why a server cannot move while it runs; None if it may, or has no ``hpc:``.

    :param requests: its PCI requests, of its flavor's aliases and of its ports.
    """
    specs = flavor.extra_specs or {}
    if not flavors.has_hpc_keys(specs):
        return None
    aliases = server.alias_requests(requests)
    if server.port_requests(requests):
        return PORTS
    if not all(request.is_live_migratable() for request in aliases):
        return DEVICES
    flat = TopologyMode.FLAT.value
    return TREE if aliases and specs.get(flavors.GUEST_TOPOLOGY, flat) != flat else None


def refusal_of_request(
    context: nova_context.RequestContext, spec: objects.RequestSpec
) -> str | None:
    """Return the reason to refuse *spec* at once; None if it is no live migration, or possible."""
    reason = refusal_of(spec.flavor, spec.pci_requests if "pci_requests" in spec else None)
    return reason if reason is not None and _is_live_move(context, spec) else None


def _is_live_move(context: nova_context.RequestContext, spec: objects.RequestSpec) -> bool:
    """Whether Nova moves the server while it runs: its record of the user's action shows it.

    The conductor names the cell of a server that moves. Of an unknown answer, the source decides.
    """
    wanted = spec.requested_destination if "requested_destination" in spec else None
    cell = wanted.cell if wanted is not None and "cell" in wanted else None
    if cell is None:
        return False
    try:
        with nova_context.target_cell(context, cell) as in_cell:
            action = objects.InstanceAction.get_by_request_id(
                in_cell, spec.instance_uuid, context.request_id
            )
        return action is not None and action.action == instance_actions.LIVE_MIGRATION
    except Exception as error:
        LOG.debug("Whether server %s moves live is unknown: %s", spec.instance_uuid, error)
        return False
