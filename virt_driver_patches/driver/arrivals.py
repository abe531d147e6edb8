# SPDX-License-Identifier: Apache-2.0
"""Servers that move while they run: the checks of the source and of the destination.

The destination's Nova claims devices in ``check_can_live_migrate_destination``
(nova/compute/manager.py): those of the flavor from the scheduler's choice, those of ports from
its pools, as of the last update. This module applies the checks of a new server's devices.
Refused devices are free again, and Nova tries another host, or reports that the server cannot be
moved. It keeps running on the source.

The guest keeps its hardware. So the new devices are of the same kind, in the same groups, and
with ``required`` as close as the former ones; and a tree that shows their places is refused
(:mod:`nova_hpc.from_nova.live_moves`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states
from nova.objects import fields
from oslo_log import log as logging

from nova_hpc.from_nova import live_moves
from nova_hpc.from_nova.claim import ServerClaim, instance_has_hpc_keys
from nova_hpc.placement import live_pairs
from nova_hpc.tenancy.guest_domains import NodeGuestDomains
from nova_hpc.topology.model import normalise_address
from nova_hpc.wire import decision as wire_decision
from nova_hpc.wire.decision import Decision
from nova_hpc_common.level import AffinityPolicy
from virt_driver_patches.driver import device_checks
from virt_driver_patches.driver.admission import Admission
from virt_driver_patches.driver.node import HpcNode
from virt_driver_patches.driver.reading import NodeReading
from virt_driver_patches.errors import ClaimRefused, DeviceFault

LOG = logging.getLogger(__name__)

_TAKEN: Final = (fields.PciDeviceStatus.CLAIMED, fields.PciDeviceStatus.ALLOCATED)
#: Statuses of live migrations that no service works on any more.
_OVER: Final = frozenset({"error", "failed", "cancelled", "completed"})


def check_departure(instance: objects.Instance, node: HpcNode) -> None:
    """Refuse to move a server with ``hpc:`` keys that cannot move while it runs.

    :raises ClaimRefused: with a text for the server's user.
    """
    if not instance_has_hpc_keys(instance) or not instance.pci_devices:
        return
    reason = live_moves.refusal_of(instance.flavor, instance.pci_requests)
    claim = ServerClaim.of(instance)
    if reason is None and claim.ports:
        reason = live_moves.PORTS
    if reason is not None:
        raise ClaimRefused(reason)
    groups = device_checks.claimed_groups_of(claim, node.source.lately())
    if not live_pairs.is_in_order(claim.claimed, groups):
        raise ClaimRefused(
            "The server's groups of devices are mixed up in the order of their addresses, by which "
            "Nova replaces them. Use a cold migration."
        )


def check_arriving_devices(
    admission: Admission,
    tracker: Any,
    context: nova_context.RequestContext,
    instance: objects.Instance,
    migrate_data: Any,
) -> None:
    """Check the devices that *instance* has claimed on this node, and give them.

    :param tracker: Nova's resource tracker of the node.
    :param migrate_data: Nova's data of the move; its pairs of devices are put in order.
    :raises nova.exception.MigrationPreCheckError: a device must not be given; all are free
        again.
    """
    # Nova's own list lacks those of the flavor if the server has ports, too.
    taken = _list_taken(tracker, instance.uuid)
    claimed = [device for device in taken if device.status == fields.PciDeviceStatus.CLAIMED]
    if not claimed:
        return
    node, record = admission.node, claimed[0].compute_node_id
    claim, reading = ServerClaim.of_arrival(instance, claimed), node.source.read()
    try:
        if len(taken) > sum(request.count for request in instance.pci_requests.requests):
            raise ClaimRefused(
                "The devices of an earlier live migration are not free there yet. Try again in "
                "some minutes."
            )
        decision = admission.claim(context, instance, claim, reading)
        if instance_has_hpc_keys(instance):
            _check_level_kept(instance, decision)
            pairs = _pairs_of(claim, reading, migrate_data.pci_dev_map_src_dst)
            _check_kinds_kept(context, instance, claimed, pairs)
            migrate_data.pci_dev_map_src_dst = pairs
        name = next(name for name, own in tracker.compute_nodes.items() if own.id == record)
        node.tenancy.give(instance, claim.addresses, reading, claim.ports, node=name)
    except (ClaimRefused, DeviceFault) as error:
        LOG.warning("The server cannot come here by live migration: %s", error, instance=instance)
        tracker.free_pci_device_claims_for_instance(context, instance)
        raise exception.MigrationPreCheckError(reason=str(error)) from error


def check_still_coming(tracker: Any, instance: objects.Instance, migrate_data: Any) -> None:
    """Refuse a server whose move was given up meanwhile, before its guest is copied.

    A message of the move can outlive the nova-compute of its source.

    :param tracker: Nova's resource tracker of the node.
    :raises nova.exception.MigrationPreCheckError: it does not move, or lacks its devices here.
    """
    pairs = getattr(migrate_data, "pci_dev_map_src_dst", None) or {}
    if not pairs or not tracker:
        return
    context = nova_context.get_admin_context()
    task = objects.Instance.get_by_uuid(context, instance.uuid).task_state
    claimed = {device.address for device in _list_taken(tracker, instance.uuid)}
    if task != task_states.MIGRATING or not claimed.issuperset(pairs.values()):
        raise exception.MigrationPreCheckError(
            reason="This live migration was given up. Migrate the server again."
        )


def _list_taken(tracker: Any, server: str) -> list[objects.PciDevice]:
    """List the devices of this node that Nova has claimed or allocated for a server."""
    return [
        device
        for device in (tracker.pci_tracker.pci_devs if tracker else ())
        if device.status in _TAKEN and device.instance_uuid == server
    ]


def free_left_claims(tracker: Any, host: str, domains: Callable[[], NodeGuestDomains]) -> None:
    """Free devices that a failed live migration has left taken on this node. Never raises.

    Nova frees them only if the destination also has files or pinned CPUs to give back
    (``_live_migration_cleanup_flags`` of nova/compute/manager.py), and its update keeps those
    of each migration with the status error. An update during the move has allocated them.
    Nova's records and libvirt decide here; a device that the kernel shows in use is withheld.

    :param tracker: Nova's resource tracker of the node.
    :param host: Nova's name of this service.
    :param domains: returns libvirt's domains.
    """
    pci_tracker = getattr(tracker, "pci_tracker", None)
    taken: dict[str, list[objects.PciDevice]] = {}
    for device in pci_tracker.pci_devs if pci_tracker else ():
        is_claimed = device.status == fields.PciDeviceStatus.CLAIMED
        # Servers of this node have theirs allocated.
        if is_claimed or (
            device.status in _TAKEN and device.instance_uuid not in tracker.tracked_instances
        ):
            taken.setdefault(device.instance_uuid, []).append(device)
    context = nova_context.get_admin_context(read_deleted="yes")
    for uuid, devices in taken.items():
        try:
            # Read after the devices: what a later move claims is not among them.
            instance = objects.Instance.get_by_uuid(context, uuid, ["migration_context"])
            left = [
                device
                for device in devices
                if instance.deleted
                or instance.host != host
                or device.status == fields.PciDeviceStatus.CLAIMED
            ]
            if not left or not _is_move_over(context, instance, host):
                continue
            found = domains()
            own = found.of(uuid)
            if found.unknown is not None or (own is not None and instance.host != host):
                continue
            for device in left:
                if found.having(normalise_address(device.address)) is None:
                    tracker.unclaim_pci_devices(context, device, instance)
                    LOG.info("PCI device %s is free after a failed move", device.address)
            # Of a claim whose nova-compute ended; no other move has one now.
            instance.drop_migration_context()
        except Exception:
            LOG.exception("Devices claimed for server %s are left as they are", uuid)


def _is_move_over(
    context: nova_context.RequestContext, instance: objects.Instance, host: str
) -> bool:
    """Whether a server was to come here by live migration, and does not any more."""
    moves = [
        move
        for move in objects.MigrationList.get_by_filters(
            context,
            {
                "instance_uuid": instance.uuid,
                "migration_type": fields.MigrationType.LIVE_MIGRATION,
            },
        )
        if move.dest_compute == host
    ]
    if instance.deleted:
        return bool(moves)
    former = instance.migration_context
    if instance.task_state is not None or (
        former is not None and former.migration_id not in {move.id for move in moves}
    ):
        return False
    statuses = {move.status for move in moves}
    return statuses <= _OVER and bool(statuses - {"completed"} or instance.host == host)


def _check_level_kept(instance: objects.Instance, decision: Decision | None) -> None:
    """Refuse devices that are less close than the server's present ones, if it requires a level.

    :raises ClaimRefused: the level is worse.
    """
    before = wire_decision.read_decision(instance.system_metadata.get(wire_decision.KEY))
    if decision is None or before is None or decision.policy is not AffinityPolicy.REQUIRED:
        return
    if decision.reached > before.reached:
        raise ClaimRefused(
            f"The server's devices share a {before.reached.word}, and those for its live "
            f"migration only a {decision.reached.word}. Use a cold migration."
        )


def _check_kinds_kept(
    context: nova_context.RequestContext,
    instance: objects.Instance,
    claimed: list[objects.PciDevice],
    pairs: dict[str, str],
) -> None:
    """Refuse devices of other kinds than the server's: a running guest keeps its hardware.

    :param pairs: former address -> new address.
    :raises ClaimRefused: vendor or product of a device differs.
    """
    # Nova lists no devices that are only claimed: these are the former ones.
    own = objects.PciDeviceList.get_by_instance_uuid(context, instance.uuid)
    former, new_ones = (
        {
            normalise_address(device.address): (device.vendor_id, device.product_id)
            for device in devices
        }
        for devices in (own, claimed)
    )
    for old, new in pairs.items():
        if former.get(normalise_address(old)) != new_ones[new]:
            raise ClaimRefused(
                "The devices for the server's live migration are not of the same kind as its own. "
                "Use a cold migration."
            )


def _pairs_of(claim: ServerClaim, reading: NodeReading, pairs: dict[str, str]) -> dict[str, str]:
    """Return Nova's *pairs* of former and new devices, by groups and in a safe order.

    :raises ClaimRefused: there is no such order.
    """
    former = {
        key: [old for old, new in pairs.items() if normalise_address(new) in addresses]
        for key, addresses in claim.claimed.items()
    }
    try:
        groups = device_checks.claimed_groups_of(claim, reading)
        return live_pairs.pair_devices(former, claim.claimed, groups)
    except live_pairs.PairsError as error:
        raise ClaimRefused(f"{error} Use a cold migration.") from error
