# SPDX-License-Identifier: Apache-2.0
"""Nova's view of the servers whose devices show a fault: whether they are settled, and their tags.

Only these servers are read, because each read is a call of the conductor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import attrs
import oslo_messaging
from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states, vm_states
from oslo_log import log as logging

from nova_hpc.tenancy.watch.rules import ServerCondition

LOG = logging.getLogger(__name__)

#: States of a server without a guest that runs.
_OFF: Final = frozenset(
    {
        *(vm_states.BUILDING, vm_states.STOPPED, vm_states.SUSPENDED),
        *(vm_states.SHELVED, vm_states.SHELVED_OFFLOADED),
    }
)
#: Tasks that start or stop the guest, or reset its devices.
_RESTARTS: Final = frozenset(
    {
        *task_states.soft_reboot_states,
        *task_states.hard_reboot_states,
        *task_states.rebuild_states,
        *(task_states.SCHEDULING, task_states.SPAWNING, task_states.NETWORKING),
        *(task_states.POWERING_OFF, task_states.POWERING_ON),
        *(task_states.SUSPENDING, task_states.RESUMING),
        *(task_states.RESCUING, task_states.UNRESCUING),
        *(task_states.RESIZE_MIGRATING, task_states.RESIZE_MIGRATED, task_states.RESIZE_FINISH),
        *(task_states.RESIZE_REVERTING, task_states.DELETING, task_states.SOFT_DELETING),
        *(task_states.SHELVING, task_states.SHELVING_OFFLOADING, task_states.UNSHELVING),
    }
)


@attrs.frozen
class ServerState:
    """A server at one moment."""

    standing: ServerCondition
    #: Its tags; None if unknown.
    tags: frozenset[str] | None = None


def read_server_states(host: str, servers: Iterable[str]) -> dict[str, ServerState]:
    """Read servers; those that cannot be read are missing in the result. Never raises.

    :param host: the service's name for this node.
    """
    states = {}
    for server in sorted(servers):
        try:
            instance = objects.Instance.get_by_uuid(
                nova_context.get_admin_context(), server, expected_attrs=["tags"]
            )
            states[server] = ServerState(
                standing_of(instance, host), frozenset(tag.tag for tag in instance.tags)
            )
        except exception.InstanceNotFound:
            states[server] = ServerState(ServerCondition.AWAY)
        except oslo_messaging.MessagingTimeout as error:
            # Without a conductor each further call would wait for its whole timeout.
            LOG.debug("Servers are not read: %s", error)
            break
        except Exception as error:
            LOG.debug("Server %s is not read: %s", server, error)
    return states


def standing_of(instance: Any, host: str) -> ServerCondition:
    """Return the condition of a server.

    :param host: the service's name for this node.
    """
    if instance.host != host or instance.deleted:
        return ServerCondition.AWAY
    if instance.task_state in _RESTARTS or instance.vm_state in _OFF:
        return ServerCondition.RESTART
    if instance.task_state is None and instance.vm_state == vm_states.ACTIVE:
        return ServerCondition.SETTLED
    return ServerCondition.BUSY
