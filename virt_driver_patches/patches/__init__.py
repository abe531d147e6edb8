# SPDX-License-Identifier: Apache-2.0
"""Wraps of single functions of Nova; each checks Nova's release and the function's signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nova_hpc.from_nova import gate
from nova_hpc.from_nova import patches as both_patches
from nova_hpc.from_nova.contract import RELIED_ON
from nova_hpc.from_nova.gate import Patch
from virt_driver_patches.patches import (
    healing,
    moves,
    new_servers,
    overrides,
    pci_devices,
    placement,
    ports,
    reasons,
    refuse_early,
    same_host,
)


def _patch_of_override(
    name: str, lines: dict[int, tuple[int, int]], reason: str, *parameters: str
) -> Patch:
    return Patch(
        f"nova.virt.libvirt.driver:LibvirtDriver.{name}",
        parameters=parameters,
        lines=lines,
        why=reason,
        until="drivers have a public method there",
        overridden=True,
    )


#: All wraps, and the private methods of Nova's driver that this project overrides. The
#: overridden public methods are in :mod:`~virt_driver_patches.patches.overrides`.
ALL: Final[tuple[Patch, ...]] = (
    *both_patches.BOTH,
    new_servers.CLAIM,
    pci_devices.SETUP,
    moves.BIND,
    moves.RESIZE,
    moves.REBUILD,
    moves.LIVE,
    moves.DROP,
    healing.HEAL,
    healing.OWNERS,
    same_host.USAGE,
    reasons.LAST_HOST,
    reasons.BUILD,
    reasons.ATTACH,
    ports.APPLY,
    ports.CONSUME,
    placement.TRANSLATE,
    placement.UPDATE,
    placement.DELETE,
    *refuse_early.ACTIONS.values(),
    pci_devices.READING,
    _patch_of_override(
        "_hard_reboot",
        {32: (4104, 4246), 33: (4135, 4281), 34: (4241, 4392)},
        "Starts of stopped servers and of the host's boot go through it, after the old domain is "
        "destroyed: the devices are checked before.",
        *("context", "instance"),
    ),
    _patch_of_override(
        "_get_guest_xml",
        {32: (8064, 8093), 33: (8167, 8197), 34: (8338, 8368)},
        "The one place where every domain is made.",
        *("context", "instance", "network_info"),
    ),
    _patch_of_override(
        "_detach_pci_devices",
        {32: (5502, 5531), 33: (5540, 5569), 34: (5689, 5718)},
        "Nova gives a guest five seconds to let go of devices; one that handles hot plugging "
        "itself needs longer.",
        *("guest", "pci_devs"),
    ),
    _patch_of_override(
        "_attach_pci_devices",
        {32: (5533, 5541), 33: (5571, 5579), 34: (5720, 5728)},
        "Nova gives devices back without their addresses in the guest.",
        *("guest", "pci_devs"),
    ),
)


def install_all_wraps(
    virtapi: Any,
    check_move: moves.Check,
    early: Mapping[str, refuse_early.Check],
    providers: placement.PlacementGuard,
) -> None:
    """Install the wraps in this process, all or none.

    :param check_move: called when a move has claimed its devices.
    :param early: name of a method of the compute manager -> check that is called before it.
    :param providers: wraps the updates of Placement.
    :raises nova.exception.InvalidConfiguration: this release of Nova is not supported.
    """
    gate.check_release()
    for patch in ALL:
        patch.function()
    gate.warn_of_changes([*(patch.target for patch in (*ALL, *overrides.DRIVER)), *RELIED_ON])
    manager = gate.manager_of(virtapi)
    tracker = getattr(manager, "rt", None)
    new_servers.serve_new_claims(tracker)
    moves.check_claims(tracker, check_move)
    moves.serve_live_moves(manager)
    pci_devices.follow_pci_devices(tracker)
    same_host.count_resized_once(tracker)
    placement.install_placement_wraps(tracker, providers)
    ports.install_port_wraps()
    reasons.keep_user_reasons(manager)
    refuse_early.install_early_refusals(manager, early)
    both_patches.install_shared_patches()
    moves.bind_claims()
    healing.leave_moves_unhealed()


def install_early_wraps(virtapi: Any, early: Mapping[str, refuse_early.Check]) -> None:
    """Install only the early refusals and their reasons, on a node without devices of this project.

    :param early: name of a method of the compute manager -> check that is called before it.
    :raises nova.exception.InvalidConfiguration: this release of Nova is not supported.
    """
    gate.check_release()
    for patch in (*refuse_early.ACTIONS.values(), reasons.LAST_HOST, reasons.BUILD):
        patch.function()
    manager = gate.manager_of(virtapi)
    reasons.keep_start_reasons(manager)
    refuse_early.install_early_refusals(manager, early)
