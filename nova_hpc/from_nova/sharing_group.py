# SPDX-License-Identifier: Apache-2.0
"""The server group with which a server may share memory: its own, of its own project.

Nova keeps server groups in its API database. A nova-compute queries the conductor of its cell
(``InstanceGroup.get_by_instance_uuid`` is remotable in releases 32 to 34,
nova/objects/instance_group.py), like Nova's own late check of policies
(``_validate_instance_group_policy`` of nova/compute/manager.py). It is one of the upcalls in
Nova's guide to cells: the conductor of a cell cannot answer if it may not reach the API database.
``[workarounds]disable_group_policy_check_upcall`` forbids the query.
"""

from __future__ import annotations

import attrs
import nova.conf
from nova import context as nova_context
from nova import exception, objects
from oslo_log import log as logging

from nova_hpc.from_nova.log_throttle import LOG_THROTTLE, format_held_back

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


@attrs.frozen
class SharingGroup:
    """The result of a query for a server's group: the group, no group, or unknown.

    Servers of the group share memory if their flavor has ``hpc:shared_memory``.
    """

    #: UUID of the group; None if the server shares with no other server.
    uuid: str | None = None
    #: Whether Nova did not answer.
    unknown: bool = False


def find_sharing_group(instance: objects.Instance) -> SharingGroup:
    """Find the server group with which *instance* shares memory, if it is of the same project.

    Never raises: the result also records that Nova's database gave no answer.
    """
    if CONF.workarounds.disable_group_policy_check_upcall:
        _warn_of_silence("setting", "[workarounds]disable_group_policy_check_upcall is set")
        return SharingGroup(unknown=True)
    try:
        group = objects.InstanceGroup.get_by_instance_uuid(
            nova_context.get_admin_context(), instance.uuid
        )
    except exception.InstanceGroupNotFound:
        return SharingGroup()
    except Exception as error:
        _warn_of_silence(type(error).__name__, f"{type(error).__name__}: {error}")
        return SharingGroup(unknown=True)
    if not instance.project_id or group.project_id != instance.project_id:
        LOG.warning(
            "It shares no memory: its server group %s is of another project",
            group.uuid,
            instance=instance,
        )
        return SharingGroup()
    return SharingGroup(str(group.uuid).lower())


def _warn_of_silence(kind: str, reason: str) -> None:
    held = LOG_THROTTLE.due(("sharing group", kind))
    if held is not None:
        LOG.warning(
            "Servers share no memory%s: Nova's API database, which has the server groups, "
            "does not answer here (%s)",
            format_held_back(held),
            reason,
        )
