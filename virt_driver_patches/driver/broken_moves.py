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

#: Statuses in which the source works on a move; Nova itself writes error at the start.
_AT_WORK: Final = ("queued", "preparing", "running", "running (post-copy)", "error")
#: ``virDomainJobType`` of libvirt: none, failed, cancelled.
_IDLE: Final = (0, 4, 5)
#: In this one the conductor may still work on it.
_ACCEPTED: Final = "accepted"


class MoveEnd(enum.Enum):
    """The way in which a broken move ends."""

    #: The guest is still here: the source's allocation is the server's again.
    REVERT = "error"
    #: The server is at the destination.
    COMPLETE = "completed"
    #: The server is elsewhere, or deleted.
    FORGET = "failed"
    #: Its libvirt still copies, its user does something, or a source is unknown.
    WAIT = "wait"


@attrs.frozen
class BrokenMove:
    """A move without a process, and the places of its server."""

    accepted: bool
    #: Nova's names of the hosts; None if the server is deleted or has none.
    server_host: str | None
    dest_host: str | None
    #: Whether the server has a task.
    busy: bool
    #: Whether its guest domain is on the source; None if unknown.
    here: bool | None
    #: Whether libvirt still copies it.
    copies: bool


def choose_move_end(move: BrokenMove, source: str, patient: bool) -> MoveEnd:
    """Choose the way in which a broken move ends.

    :param source: Nova's name of the move's source.
    :param patient: whether the conductor may still work on a move that it has accepted.
    """
    if move.busy or (move.accepted and patient):
        return MoveEnd.WAIT
    if move.server_host != source:
        at_destination = move.server_host is not None and move.server_host == move.dest_host
        return MoveEnd.COMPLETE if at_destination else MoveEnd.FORGET
    return MoveEnd.REVERT if move.here and not move.copies else MoveEnd.WAIT


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
        if migration.status not in (*_AT_WORK, _ACCEPTED):
            return True
        try:
            uuid = migration.instance_uuid
            instance = objects.Instance.get_by_uuid(context, uuid, ["migration_context"])
        except exception.InstanceNotFound:
            instance = None
        if instance is not None and not (instance.pci_requests and instance.pci_requests.requests):
            return True  # Nova's own
        move = self._read_move(migration, instance, host)
        end = choose_move_end(move, host, time.monotonic() - self._begun < self.patience)
        if end is MoveEnd.WAIT:
            return False
        if end is MoveEnd.REVERT:
            _revert_move(context, tracker, migration, instance)
        if migration.status != "error" or end is MoveEnd.COMPLETE:
            migration.status = end.value
            migration.save()
            LOG.warning(
                "Live migration %s to %s broke off when nova-compute ended: it is %s now",
                migration.uuid,
                migration.dest_compute,
                end.value,
                instance=instance,
            )
        return True

    def _read_move(
        self, migration: objects.Migration, instance: objects.Instance | None, host: str
    ) -> BrokenMove:
        here: bool | None = None
        copies = False
        lives = instance is not None and not instance.deleted
        if lives and instance.host == host:
            domains = self._domains()
            here = None if domains.problem is not None else domains.of(instance.uuid) is not None
            copies = bool(here) and self._job_of(instance) not in _IDLE
        return BrokenMove(
            accepted=migration.status == _ACCEPTED,
            server_host=instance.host if lives else None,
            dest_host=migration.dest_compute,
            busy=lives and instance.task_state is not None,
            here=here,
            copies=copies,
        )


def _read_moves_of(context: nova_context.RequestContext, host: str) -> frozenset[int]:
    found = objects.MigrationList.get_by_filters(
        context,
        {
            "source_compute": host,
            "migration_type": fields.MigrationType.LIVE_MIGRATION,
            "status": [*_AT_WORK, _ACCEPTED],
        },
    )
    return frozenset(migration.id for migration in found)


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
