# SPDX-License-Identifier: Apache-2.0
"""Files an instance action for each notice that a server will be shelved for another.

``nova-hpc capacity --preempt`` writes the notice as a tag
(:mod:`nova_hpc_common.wire.preemption_notice`); Nova's API files no action for a tag. The watch
reads the tags of this node's servers once a minute, in one request. The server's own actions show
which notices are filed, so a restart of nova-compute files none twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
from nova import context as nova_context
from nova import exception, objects
from oslo_log import log as logging
from oslo_utils import timeutils

from nova_hpc.placement import flavor as hpc_flavor
from nova_hpc_common.wire.planned_work import format_planned_time
from nova_hpc_common.wire.preemption_notice import NOTICE_ACTION, read_notice_tags

LOG = logging.getLogger(__name__)

#: Seconds between two readings.
PAUSE: Final = 60.0


@attrs.define
class PreemptionNotices:
    """The notices of the servers of one node. Only the thread of the watch uses it."""

    _due: float = attrs.field(default=0.0, init=False)
    _filed: frozenset[tuple[str, str]] = attrs.field(default=frozenset(), init=False)
    _failed: bool = attrs.field(default=False, init=False)

    def read(self, users: Mapping[str, str], moment: float) -> None:
        """Read and file the notices of this node's servers if a minute has passed. Never raises.

        :param users: device address -> server.
        :param moment: seconds of a clock that only goes forward.
        """
        if not users or moment < self._due:
            return
        self._due = moment + PAUSE
        try:
            self._filed = frozenset(
                (server, time)
                for server, times in _read_notices(set(users.values())).items()
                for time in times
                if (server, time) in self._filed or _file_notice(server, time)
            )
            self._failed = False
        except Exception as error:
            if not self._failed:
                LOG.info("Notices of preemption are filed later: %s", error)
            self._failed = True


def _read_notices(servers: set[str]) -> dict[str, list[str]]:
    """Read the times in the notices of preemptible servers."""
    filters = {"uuid": sorted(servers), "deleted": False, "soft_deleted": True}
    instances = objects.InstanceList.get_by_filters(
        nova_context.get_admin_context(), filters, expected_attrs=["tags"]
    )
    notices: dict[str, list[str]] = {}
    for instance in instances:
        times = read_notice_tags(tag.tag for tag in instance.tags).values()
        if times and _is_preemptible(instance):
            notices[instance.uuid] = sorted(map(format_planned_time, times))
    return notices


def _is_preemptible(instance: Any) -> bool:
    specs = instance.flavor.extra_specs or {}
    return bool(specs.get(hpc_flavor.PREEMPTIBLE) == hpc_flavor.YES)


def _file_notice(server: str, time: str) -> bool:
    """File an action for the owner, unless it is there; returns False for a deleted server."""
    context = nova_context.get_admin_context()
    actions = objects.InstanceActionList.get_by_instance_uuid(context, server)
    if (NOTICE_ACTION, time) in {(action.action, action.message) for action in actions}:
        return True
    moment = timeutils.utcnow(with_timezone=True)
    try:
        objects.InstanceAction(
            context=context,
            instance_uuid=server,
            request_id=context.request_id,
            action=NOTICE_ACTION,
            message=time,
            start_time=moment,
            updated_at=moment,
        ).create()
    except exception.InstanceNotFound:
        return False
    return True
