# SPDX-License-Identifier: Apache-2.0
"""Allocations of a node's PCI devices that were left behind, each with the command against it.

A server that is deleted while its host is down, a migration that broke off, a restored
database: each can leave an allocation in Placement that no server has. The device is
healthy and idle, and nobody gets it. Operators are told.

One kind is removed: that of a migration which Nova's database has, which is over, and whose
server has none of its devices here, or is deleted. Nova deletes or moves a migration's
allocation only in the step that ends the move (``_delete_allocation_after_move`` and
``_revert_allocation`` of nova/compute/manager.py); if that step fails, or the revert before it
(``revert_resize``, on the destination), it never does, not even with the server. As long as
the server has devices of the migration's here, by Nova's tracker, somebody may still give
the allocation back to it, and it is left alone. Nova itself removes that of a server that is
deleted (``_remove_deleted_instances_allocations`` of nova/compute/resource_tracker.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs
from nova import context as nova_context
from nova import exception, objects
from oslo_log import log as logging

from nova_hpc.topology.model import AddressError, normalise_address
from virt_driver_patches.driver.reserve import Known

LOG = logging.getLogger(__name__)

#: A migration in one of these has no claim on anything any more.
_OVER: Final = frozenset(
    {"cancelled", "completed", "confirmed", "done", "error", "failed", "reverted"}
)


@attrs.frozen
class Suspect:
    """A consumer with a device that Nova's records do not give it."""

    consumer: str
    #: Addresses of the providers.
    addresses: tuple[str, ...]
    #: Their UUIDs.
    providers: tuple[str, ...]
    #: Servers that have devices of these by Nova's tracker.
    owners: frozenset[str] = frozenset()


@attrs.frozen
class _Cure:
    """What helps."""

    text: str
    #: The consumer is a migration that is over: it can be removed here.
    removed: bool = False


def suspects(
    allocations: Mapping[str, Any], known: Mapping[str, Known], devices: Iterable[Any]
) -> tuple[Suspect, ...]:
    """Who has devices by Placement, and none of them by Nova.

    :param known: address -> provider of the node's PCI devices.
    :param devices: what Nova's tracker knows.
    """
    addresses = {one.uuid: address for address, one in known.items()}
    owners = {
        (place, device.instance_uuid)
        for device in devices
        for place in (device.address, device.parent_addr)
        if "instance_uuid" in device and device.instance_uuid
    }
    owned = {(_normal(place), server) for place, server in owners}
    found = []
    for consumer, body in sorted(allocations.items()):
        mine = sorted(
            (addresses[uuid], uuid)
            for uuid in body["allocations"]
            if uuid in addresses and (addresses[uuid], consumer) not in owned
        )
        if mine:
            places = tuple(each for each, _ in mine)
            servers = frozenset(server for place, server in owned if place in places)
            found.append(Suspect(consumer, places, tuple(each for _, each in mine), servers))
    return tuple(found)


def _normal(text: str | None) -> str | None:
    try:
        return None if text is None else normalise_address(text)
    except AddressError:
        return None


class Orphans:
    """Looks twice before it names anybody: a server that is being built comes to be known.

    Both looks have to find that it has no right to what Placement said after the look
    before: an answer of Placement's that is older than the end of a move proves nothing.
    """

    def __init__(self) -> None:
        self._seen: tuple[Suspect, ...] = ()
        self._before: frozenset[Suspect] = frozenset()
        self._named: tuple[str, ...] = ()
        self._over: tuple[Suspect, ...] = ()
        #: Replaced by the resource tracker, below its lock.
        self.suspects: tuple[Suspect, ...] = ()

    def look(self, host: str) -> tuple[str, ...]:
        """Once in each periodic update: one sentence for each that was left behind."""
        now = self.suspects
        if now and now is self._seen:
            return self._named  # Placement was not asked since
        over = dict(_over(now, host))
        certain = {each: cure for each, cure in over.items() if each in self._before}
        texts = tuple(cure.text for cure in certain.values())
        for text in texts:
            if text not in self._named:
                LOG.warning("%s", text)
        self._over = tuple(each for each, cure in certain.items() if cure.removed)
        self._seen, self._before, self._named = now, frozenset(over), texts
        return texts

    def finish(self, client: Any, context: Any) -> None:
        """Remove what migrations that are over have left. Never raises.

        Below the resource tracker's lock, after a look and before Placement is asked again.

        :param client: Nova's, of Placement.
        """
        over, self._over = self._over, ()
        for each in over:
            try:
                # Not by force: should anybody change it just now, the next look sees that.
                client.delete_allocation_for_instance(
                    context, each.consumer, consumer_type="migration"
                )
            except Exception as error:
                LOG.warning("The allocation of migration %s stays: %s", each.consumer, error)
            else:
                LOG.warning(
                    "%s: the allocation that migration %s had left behind is removed",
                    ", ".join(each.addresses),
                    each.consumer,
                )


def _over(suspects: Iterable[Suspect], host: str) -> Iterator[tuple[Suspect, _Cure]]:
    """Those that have no right to what is allocated to them, each with a sentence."""
    context = nova_context.get_admin_context()
    for each in sorted(suspects, key=lambda one: one.addresses):
        try:
            cure = _cure(context, each, host)
        except Exception as error:
            LOG.debug("Nobody knows whether %s still lives: %s", each.consumer, error)
            continue
        if cure is not None:
            where = ", ".join(each.addresses)
            text = f"{where}: allocation left behind by {each.consumer}: {cure.text}"
            yield each, attrs.evolve(cure, text=text)


def _cure(context: Any, suspect: Suspect, host: str) -> _Cure | None:
    """What helps against the allocation; None: it has a right to it."""
    try:
        server = objects.Instance.get_by_uuid(context, suspect.consumer)
    except exception.InstanceNotFound:
        try:
            migration = objects.Migration.get_by_uuid(context, suspect.consumer)
        except exception.MigrationNotFound:
            return _Cure(_delete(suspect))
        return _of_migration(context, suspect, migration)
    if server.host in (None, host) or server.task_state is not None:
        return None
    moves = objects.MigrationList.get_in_progress_by_instance(context, server.uuid)
    if len(moves):
        return None
    # It lives elsewhere: what it has there must stay.
    named = " ".join(f"--provider {each}" for each in suspect.providers)
    return _Cure(f"openstack resource provider allocation unset {named} {suspect.consumer}")


def _of_migration(context: Any, suspect: Suspect, migration: Any) -> _Cure | None:
    server = migration.instance_uuid
    every = context.elevated(read_deleted="yes")
    try:
        found = objects.Instance.get_by_uuid(every, server)
    except exception.InstanceNotFound:
        found = None  # archived
    if found is not None and found.hidden:
        return None  # of a move to another cell: Nova still works at it
    if migration.status not in _OVER:
        # Its node was killed in the middle of it, and then the server was deleted: nobody
        # ends it any more. What Nova does not call over is named, and not removed.
        gone = found is None or found.deleted
        return _Cure(_delete(suspect)) if gone else None
    if found is None or found.deleted or server not in suspect.owners:
        return _Cure(_delete(suspect), removed=True)
    return _Cure(f"a move of server {server} failed; it goes with the server")


def _delete(suspect: Suspect) -> str:
    return f"openstack resource provider allocation delete {suspect.consumer}"
