# SPDX-License-Identifier: Apache-2.0
"""Allocations of PCI devices without a rightful consumer, and the remedy for each.

Nova deletes or moves a migration's allocation only in the step that ends the move
(``_delete_allocation_after_move`` and ``_revert_allocation`` of nova/compute/manager.py). If
that step fails, or the revert before it (``revert_resize``, on the destination), Nova never
deletes it, not even with the server. As long as the server has devices of the migration on the
node, by Nova's tracker, the allocation may still be given back to it. Nova itself removes the
allocation of a deleted server (``_remove_deleted_instances_allocations`` of
nova/compute/resource_tracker.py), on a running node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
from nova import exception, objects

from nova_hpc.topology.model import AddressError, normalise_address

#: A migration in one of these states has no claim any more.
_OVER: Final = frozenset(
    {"cancelled", "completed", "confirmed", "done", "error", "failed", "reverted"}
)


@attrs.frozen
class LeftoverConsumer:
    """A consumer in Placement with an allocation of a device that Nova's records do not give it."""

    consumer: str
    #: Addresses of the providers.
    addresses: tuple[str, ...]
    #: Their UUIDs.
    providers: tuple[str, ...]
    #: Servers that have devices of these providers by Nova's tracker.
    owners: frozenset[str] = frozenset()


@attrs.frozen
class Cure:
    """The remedy for a leftover allocation: a sentence, and whether the allocation was removed."""

    text: str
    #: The consumer is a migration that has ended: the allocation can be removed here.
    removed: bool = False


def find_leftover_consumers(
    allocations: Mapping[str, Any], addresses: Mapping[str, str], devices: Iterable[Any]
) -> tuple[LeftoverConsumer, ...]:
    """Find the consumers that have devices in Placement, and none of them in Nova.

    :param allocations: consumer -> its allocation in Placement.
    :param addresses: UUIDs of the providers of a node's PCI devices -> address.
    :param devices: the devices in Nova's tracker.
    :returns: sorted by the consumer's UUID.
    """
    owners = {
        (place, device.instance_uuid)
        for device in devices
        for place in (device.address, device.parent_addr)
        if "instance_uuid" in device and device.instance_uuid
    }
    owned = {(_normalise_or_none(place), server) for place, server in owners}
    consumers = []
    for consumer, body in sorted(allocations.items()):
        own_providers = sorted(
            (addresses[uuid], uuid)
            for uuid in body["allocations"]
            if uuid in addresses and (addresses[uuid], consumer) not in owned
        )
        if own_providers:
            places = tuple(address for address, _ in own_providers)
            servers = frozenset(server for place, server in owned if place in places)
            consumers.append(
                LeftoverConsumer(
                    consumer, places, tuple(uuid for _, uuid in own_providers), servers
                )
            )
    return tuple(consumers)


def _normalise_or_none(text: str | None) -> str | None:
    try:
        return None if text is None else normalise_address(text)
    except AddressError:
        return None


def find_cure(context: Any, leftover: LeftoverConsumer, host: str) -> Cure | None:
    """Find the remedy for a leftover allocation; None if the consumer has a right to it."""
    try:
        server = objects.Instance.get_by_uuid(context, leftover.consumer)
    except exception.InstanceNotFound:
        try:
            migration = objects.Migration.get_by_uuid(context, leftover.consumer)
        except exception.MigrationNotFound:
            return Cure(delete_command_of(leftover))
        return _cure_of_migration(context, leftover, migration)
    if server.host in (None, host) or server.task_state is not None:
        return None
    moves = objects.MigrationList.get_in_progress_by_instance(context, server.uuid)
    if len(moves):
        return None
    # The server lives elsewhere: its allocation there must stay.
    named = " ".join(f"--provider {provider}" for provider in leftover.providers)
    return Cure(f"openstack resource provider allocation unset {named} {leftover.consumer}")


def _cure_of_migration(context: Any, leftover: LeftoverConsumer, migration: Any) -> Cure | None:
    server = migration.instance_uuid
    every = context.elevated(read_deleted="yes")
    try:
        instance = objects.Instance.get_by_uuid(every, server)
    except exception.InstanceNotFound:
        instance = None  # archived
    if instance is not None and instance.hidden:
        return None  # of a move to another cell, which Nova has not finished
    if migration.status not in _OVER:
        # Its node was killed in the middle of it, and then the server was deleted, so it never
        # ends. The remedy for a migration that Nova does not call over is only reported.
        gone = instance is None or instance.deleted
        return Cure(delete_command_of(leftover)) if gone else None
    if instance is None or instance.deleted or server not in leftover.owners:
        return Cure(delete_command_of(leftover), removed=True)
    return Cure(f"a move of server {server} failed; it goes with the server")


def delete_command_of(leftover: LeftoverConsumer) -> str:
    """Return the ``openstack`` command that removes the consumer's whole allocation."""
    return f"openstack resource provider allocation delete {leftover.consumer}"
