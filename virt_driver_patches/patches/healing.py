# SPDX-License-Identifier: Apache-2.0
"""Nova does not heal the allocation of a server that is between two sets of devices.

During a resize on one host the server's former devices are allocated to the migration in
Placement, while Nova's PCI tracker still assigns them to the server. Nova identifies such servers
by the migrations that its resource tracker follows (``_update_to_placement``). It follows a
migration only from the claim of the new devices on, and at a revert only until the claim is
dropped. The migration holds its allocation before and after that time. Any update
of the node that falls into one of these two gaps, from a periodic task or another server's
claim, gives the former devices to the server a second time. Placement refuses (409), and
the operation that caused the update fails: another server's claim, or the server's own revert,
which ends in ERROR with a migration that keeps a GPU and its CPUs forever.

Placement itself reports which allocations a migration holds. So a server is left as
it is while one of its migrations has an allocation on this node.

Report: ``docs/source/contributor/upstream/index.rst`` (same-host-healing). No bug is known to be
filed. Its part revert-allocation describes allocations that a failed revert still leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nova import context as nova_context
from nova import objects
from nova.compute import pci_placement_translator
from oslo_log import log as logging

from nova_hpc.from_nova.gate import Call, Patch, wrap_method

LOG = logging.getLogger(__name__)

HEAL: Final = Patch(
    "nova.compute.pci_placement_translator:PlacementView.update_allocations",
    parameters=("self", "allocations", "provider_tree"),
    lines={32: (655, 672), 33: (655, 672), 34: (664, 681)},
    why="Before the claim and after the revert of a resize on one host Nova gives the server the "
    "devices that its migration still holds: Placement refuses, and every claim of the node fails "
    "meanwhile.",
    until="Nova leaves servers alone whose migration has an allocation on the node",
)

OWNERS: Final = Patch(
    "nova.compute.pci_placement_translator:PciResourceProvider._get_allocations",
    parameters=("self",),
    lines={32: (225, 244), 33: (225, 244), 34: (233, 252)},
    why="Called, not wrapped: which servers have devices of a provider, as Nova's healing sees it.",
    until="PlacementView.update_allocations is not wrapped any more",
    overridden=True,
)

_MARK: Final = "hpc_heals"


def leave_moves_unhealed() -> None:
    """Wrap Nova's view of Placement (idempotent); Nova makes one for every update.

    :raises nova.exception.InvalidConfiguration: the method is not as expected.
    """
    view = pci_placement_translator.PlacementView
    if not hasattr(view.update_allocations, _MARK):
        wrap_method(view, HEAL, _heal_without_moves)
        setattr(view.update_allocations, _MARK, True)


def _heal_without_moves(call: Call) -> Any:
    """Add servers in a move to Nova's list of resizes on the same host.

    Nova skips the servers of this list when it heals allocations
    (``PciResourceProvider.update_allocations``, releases 32 to 34).
    """
    view, allocations = call.given["self"], call.given["allocations"]
    owners = {owner for provider in view.rps.values() for owner in provider._get_allocations()}
    moving = _owners_in_move(owners, allocations) - set(view.same_host_instances)
    if moving:
        LOG.info("Servers between two sets of devices: %s", ", ".join(sorted(moving)))
        view.same_host_instances = [*view.same_host_instances, *sorted(moving)]
    return call()


def _owners_in_move(owners: set[str], allocations: Mapping[str, Any]) -> set[str]:
    """Return the *owners* whose migration has an allocation on this node.

    :param owners: servers that have devices here.
    :param allocations: consumer -> its allocation on this node.
    """
    others = sorted(allocations.keys() - owners)  # migrations, and servers without devices
    if not others or not owners & allocations.keys():
        return set()
    context = nova_context.get_admin_context()
    migrations = objects.MigrationList.get_by_filters(context, {"uuid": others})
    return {migration.instance_uuid for migration in migrations} & owners
