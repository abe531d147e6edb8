# SPDX-License-Identifier: Apache-2.0
"""Wraps of single functions of Nova, each gated by release and signature."""

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


def _override(name: str, lines: dict[int, tuple[int, int]], why: str, *parameters: str) -> Patch:
    return Patch(
        f"nova.virt.libvirt.driver:LibvirtDriver.{name}",
        parameters=parameters,
        lines=lines,
        why=why,
        until="drivers have a public method there",
        overridden=True,
    )


#: All of them, and the private methods of Nova's driver that this project's overrides; the
#: public ones are in :mod:`~virt_driver_patches.patches.overrides`.
ALL: Final[tuple[Patch, ...]] = (
    *both_patches.BOTH,
    new_servers.CLAIM,
    pci_devices.SETUP,
    moves.BIND,
    moves.RESIZE,
    moves.REBUILD,
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
    _override(
        "_hard_reboot",
        {32: (4104, 4246), 33: (4135, 4281), 34: (4241, 4392)},
        "Starts of stopped servers and of the host's boot go through it, after the old domain is "
        "destroyed: the devices are checked before.",
        *("context", "instance"),
    ),
    _override(
        "_get_guest_xml",
        {32: (8064, 8093), 33: (8167, 8197), 34: (8338, 8368)},
        "The one place where every domain is made.",
        *("context", "instance"),
    ),
    _override(
        "_detach_pci_devices",
        {32: (5502, 5531), 33: (5540, 5569), 34: (5689, 5718)},
        "Nova gives a guest five seconds to let go of devices; one that handles hot plugging "
        "itself needs longer.",
        *("guest", "pci_devs"),
    ),
    _override(
        "_attach_pci_devices",
        {32: (5533, 5541), 33: (5571, 5579), 34: (5720, 5728)},
        "Nova gives devices back without their addresses in the guest.",
        *("guest", "pci_devs"),
    ),
)


def install(
    virtapi: Any,
    check_move: moves.Check,
    early: Mapping[str, refuse_early.Check],
    providers: placement.Providers,
) -> None:
    """Install the wraps in this process, all or none.

    :param check_move: what is asked when a move has claimed its devices.
    :param early: name of a method of the compute manager -> what is asked before it.
    :param providers: what stands around updates of Placement.
    :raises nova.exception.InvalidConfiguration: this Nova is not known.
    """
    gate.check_release()
    for patch in ALL:
        patch.function()
    gate.warn_of_changes([*(each.target for each in (*ALL, *overrides.DRIVER)), *RELIED_ON])
    manager = gate.manager_of(virtapi)
    tracker = getattr(manager, "rt", None)
    new_servers.serve(tracker)
    moves.check_claims(tracker, check_move)
    pci_devices.follow(tracker)
    same_host.count_once(tracker)
    placement.install(tracker, providers)
    ports.install()
    reasons.keep(manager)
    refuse_early.install(manager, early)
    both_patches.install()
    moves.bind_claims()
    healing.leave_moves()
