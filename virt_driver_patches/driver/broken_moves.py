# SPDX-License-Identifier: Apache-2.0
"""Live migrations that ended with the process of nova-compute that worked on them.

Nova never ends them (``_reset_live_migration`` of nova/compute/manager.py, 32 to 34, at most
writes the status error): the migration keeps the server's allocation of the source, and the
destination's devices stay claimed for ever. The source ends them at its next start, before it
takes messages, because no other process works on them. The destination frees its devices once
the move has ended (:mod:`virt_driver_patches.driver.arrivals`).
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import Any, Final

import attrs
from nova import context as nova_context
from nova import exception, objects
from nova.objects import fields
from oslo_log import log as logging

from nova_hpc.tenancy.guest_domains import NodeGuestDomains

LOG = logging.getLogger(__name__)

#: ``virDomainJobType`` of libvirt: none, failed, cancelled.
_IDLE: Final = (0, 4, 5)
#: The conductor may still work on such a move.
_ACCEPTED: Final = "accepted"
#: Nova writes it when a source starts, and does no more.
_ERROR: Final = "error"
_UNFINISHED: Final = (_ACCEPTED, "queued", "preparing", "running", "running (post-copy)", _ERROR)


class MoveEnd(enum.Enum):
    """The way in which a broken move ends; the value is Nova's status."""

    #: The guest is still here: the source's allocation is the server's again.
    REVERT = _ERROR
    #: The server is at the destination.
    COMPLETE = "completed"
    #: The server is elsewhere, or deleted.
    FORGET = "failed"
    #: It is not known yet.
    WAIT = "wait"


@attrs.frozen
class BrokenMove:
    """A move without a process, and the places of its server."""

    #: Nova's names of the hosts; the server's is None if it is deleted.
    source: str
    destination: str | None
    server: str | None
    #: Whether the conductor may still work on the move, or the server has another task.
    busy: bool
    #: Whether the guest domain is on the source, and libvirt does not copy it.
    stays: bool


def choose_move_end(move: BrokenMove) -> MoveEnd:
    """Choose the way in which a broken move ends."""
    if move.busy:
        return MoveEnd.WAIT
    if move.server == move.source:
        return MoveEnd.REVERT if move.stays else MoveEnd.WAIT
    return MoveEnd.COMPLETE if move.server and move.server == move.destination else MoveEnd.FORGET


class BrokenMoves:
    """Ends the moves that a former process of this service has left. Never raises.

    :param domains: returns libvirt's domains.
    :param job_of: returns libvirt's job on the guest of an instance, a ``virDomainJobType``.
    :param patience: seconds after which no conductor works on a move that was accepted.
    """

    def __init__(
        self,
        domains: Callable[[], NodeGuestDomains],
        job_of: Callable[[objects.Instance], int],
        patience: float,
    ) -> None:
        self._domains, self._job_of = domains, job_of
        self.patience = patience
        self._begun = time.monotonic()
        #: Ids of the moves; None before the first look, which is before the first message.
        self._left: frozenset[int] | None = None

    def end_moves(self, tracker: Any, host: str) -> None:
        """End the broken moves that can be ended now.

        :param tracker: Nova's resource tracker of the node.
        :param host: Nova's name of this service.
        """
        context = nova_context.get_admin_context(read_deleted="yes")
        if self._left is None:
            self._left = frozenset()  # a later look would find moves of this process
            try:
                self._left = _read_moves_of(context, host)
            except Exception:
                LOG.exception("Broken live migrations are not ended before the next start")
        for number in self._left:
            try:
                if self._end_move(context, tracker, host, number):
                    self._left -= {number}
            except Exception:
                LOG.exception("Live migration %s is left as it is for now", number)

    def _end_move(
        self, context: nova_context.RequestContext, tracker: Any, host: str, number: int
    ) -> bool:
        """End one move; whether it needs no further look."""
        migration = objects.Migration.get_by_id(context, number)
        if migration.status not in _UNFINISHED:
            return True
        try:
            uuid = migration.instance_uuid
            instance = objects.Instance.get_by_uuid(context, uuid, ["migration_context"])
        except exception.InstanceNotFound:
            instance = None
        if instance is None or instance.deleted:
            move = BrokenMove(host, migration.dest_compute, None, False, False)
        elif not (instance.pci_requests and instance.pci_requests.requests):
            return True  # Nova's own
        else:
            waits = time.monotonic() - self._begun < self.patience
            busy = instance.task_state is not None or (migration.status == _ACCEPTED and waits)
            stays = instance.host == host and self._stays(instance)
            move = BrokenMove(host, migration.dest_compute, instance.host, busy, stays)
        end = choose_move_end(move)
        if end is MoveEnd.WAIT:
            return False
        if end is MoveEnd.REVERT:
            _revert_move(context, tracker, migration, instance)
        if migration.status != _ERROR:
            migration.status = end.value
            migration.save()
            LOG.warning("Live migration %s broke off: it is %s now", migration.uuid, end.value)
        return True

    def _stays(self, instance: objects.Instance) -> bool:
        domains = self._domains()
        if domains.problem is not None:
            return False
        if domains.of(instance.uuid) is None:
            LOG.warning("A broken live migration has moved the guest away", instance=instance)
            return False
        return self._job_of(instance) in _IDLE


def _read_moves_of(context: nova_context.RequestContext, host: str) -> frozenset[int]:
    moves = objects.MigrationList.get_by_filters(
        context,
        {
            "source_compute": host,
            "migration_type": fields.MigrationType.LIVE_MIGRATION,
            "status": list(_UNFINISHED),
        },
    )
    return frozenset(migration.id for migration in moves)


def _revert_move(
    context: nova_context.RequestContext,
    tracker: Any,
    migration: objects.Migration,
    instance: objects.Instance,
) -> None:
    """Give the source's allocation back to the server, and drop the destination's claim.

    As ``_rollback_live_migration`` of nova/compute/manager.py does.

    :raises nova.exception.AllocationMoveFailed: another client has changed an allocation.
    """
    client = tracker.reportclient
    held = client.get_allocations_for_consumer(context, migration.uuid)
    # The tracker does not have its node yet at the first look.
    node = objects.ComputeNode.get_by_host_and_nodename(context, instance.host, instance.node).uuid
    if node in held and node not in client.get_allocations_for_consumer(context, instance.uuid):
        client.move_allocations(context, migration.uuid, instance.uuid)
    former = instance.migration_context
    if former is not None and former.migration_id == migration.id:
        instance.drop_migration_context()
