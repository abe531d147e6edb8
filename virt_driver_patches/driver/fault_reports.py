# SPDX-License-Identifier: Apache-2.0
"""Reports faults and planned work of a server's devices to its owner: a tag and an action each.

Nova's objects write both, so a user's limit of 50 tags does not count: only the API checks it
(nova/api/openstack/compute/server_tags.py, releases 32 to 34). A report that fails stays in its
server's queue, and the next look sends it again. Its request id shows whether an earlier try has
arrived all the same. The texts contain the word of the fault or the time of the work, and nothing
of the host.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Mapping
from typing import TypeAlias

import attrs
import oslo_messaging
from nova import context as nova_context
from nova import exception, objects
from oslo_log import log as logging
from oslo_utils import timeutils

from nova_hpc_common.wire.planned_work import PlannedWork
from nova_hpc_common.wire.server_faults import FaultWord

LOG = logging.getLogger(__name__)

#: A fact that is reported to an owner.
OwnerFact: TypeAlias = FaultWord | PlannedWork


def _new_request_id() -> str:
    request_id: str = nova_context.get_admin_context().request_id
    return request_id


@attrs.define
class _PendingReport:
    """One change of the facts of a server that is not reported yet."""

    fact: OwnerFact
    present: bool
    moment: datetime.datetime = attrs.field(factory=timeutils.utcnow)
    request_id: str = attrs.field(factory=_new_request_id)
    #: Whether an earlier try may have written the action.
    tried: bool = False


@attrs.define
class OwnerReports:
    """The reports of one node. Only the thread of the watch uses it."""

    #: Server -> facts that its owner has as tags and actions.
    _reported: dict[str, set[OwnerFact]] = attrs.field(factory=dict)
    _queues: dict[str, list[_PendingReport]] = attrs.field(factory=dict)
    _failed: set[str] = attrs.field(factory=set)

    def restore(self, server: str, fact: OwnerFact) -> None:
        """Take over a fact that an earlier run of this service has reported."""
        self._reported.setdefault(server, set()).add(fact)

    def put(self, server: str, fact: OwnerFact, present: bool) -> None:
        """Add a change to the server's queue."""
        self._queues.setdefault(server, []).append(_PendingReport(fact, present))

    def is_reported(self, server: str, fact: OwnerFact) -> bool:
        """Whether a present fact has its tag and its action."""
        return fact in self._reported.get(server, ())

    @property
    def waiting(self) -> frozenset[str]:
        """The servers with reports that are not sent yet."""
        return frozenset(self._queues)

    def send(self, tags: Mapping[str, frozenset[str]]) -> None:
        """Send the reports that wait, and write tags again that are missing. Never raises.

        :param tags: server -> its present tags, for the servers whose tags were read.
        """
        for server in sorted(self._queues.keys() | tags.keys()):
            try:
                if server in self._queues:
                    self._send_queue(server)
                    continue  # the tags were read before
                for fact in self._reported.get(server, ()):
                    if fact.tag not in tags[server]:
                        _add_tag(server, fact)
            except exception.InstanceNotFound:
                self.forget(server)  # deleted, and its tags with it
            except oslo_messaging.MessagingTimeout as error:
                # Without a conductor each further call would wait for its whole timeout.
                LOG.debug("Owners are told later: %s", error)
                break
            except Exception as error:
                if server not in self._failed:
                    LOG.warning(
                        "The faults or planned work of server %s are not reported yet: %s",
                        *(server, error),
                    )
                self._failed.add(server)
            finally:
                self._failed &= self._queues.keys()

    def forget(self, server: str) -> None:
        """Drop a server that is deleted."""
        self._reported.pop(server, None)
        self._queues.pop(server, None)

    def _send_queue(self, server: str) -> None:
        queue = self._queues[server]
        while queue:
            report = queue[0]
            if report.present:
                _add_tag(server, report.fact)
            else:
                _remove_tag(server, report.fact)
            _write_action(server, report)
            reported = self._reported.setdefault(server, set())
            if report.present:
                reported.add(report.fact)
            else:
                reported.discard(report.fact)
            del queue[0]
        del self._queues[server]
        if not self._reported[server]:
            del self._reported[server]


def _add_tag(server: str, fact: OwnerFact) -> None:
    context = nova_context.get_admin_context()
    objects.Tag(context=context, resource_id=server, tag=fact.tag).create()


def _remove_tag(server: str, fact: OwnerFact) -> None:
    with contextlib.suppress(exception.InstanceTagNotFound):  # its owner was faster
        objects.Tag.destroy(nova_context.get_admin_context(), server, fact.tag)


def _write_action(server: str, report: _PendingReport) -> None:
    context = nova_context.get_admin_context()
    if report.tried and objects.InstanceAction.get_by_request_id(
        context, server, report.request_id
    ):
        return
    report.tried = True
    objects.InstanceAction(
        context=context,
        instance_uuid=server,
        request_id=report.request_id,
        action=report.fact.action(report.present),
        message=report.fact.message,
        start_time=report.moment,
        updated_at=report.moment,
    ).create()
