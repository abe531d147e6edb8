# SPDX-License-Identifier: Apache-2.0
"""The virtual functions that are declared for adapters, and those that they cannot have. Pure.

The firmware decides whether an adapter has the SR-IOV capability, and how many functions it can
have. Without either the kernel shows an ordinary function, which a role of whole adapters
matches. An adapter with declared virtual functions is only for them: it is never given whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.topology import classes
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.topology.roles import Roles
from nova_hpc_tools.site.cures import DoctorCure
from nova_hpc_tools.site.findings import DoctorFinding
from nova_hpc_tools.wire.node_declaration import EVERY, NodeWishes

#: The vendor whose adapters mlxconfig sets.
_MELLANOX: Final = "15b3"


@attrs.frozen
class FirmwareSriov:
    """The SR-IOV settings that an adapter's firmware will have after its next cold start."""

    is_on: bool
    vfs: int


def count_declared_vfs(
    wishes: NodeWishes, roles: Roles, node: Node, function: PciFunction
) -> int | None:
    """Return the declared number of virtual functions of a function; None if no number is declared.

    An adapter whose firmware has SR-IOV off is found by the role that it would have with SR-IOV.
    """
    wanted = wishes.vfs or {}
    if function.address in wanted:
        return wanted[function.address]
    if function.is_bridge or function.physical_function is not None or not wanted:
        return None
    apart = {device.address for device in (*(wishes.whole_pf or ()), *(wishes.left_out or ()))}
    if apart & {function.address, EVERY}:
        return None  # a number for its role does not apply to it
    if function.dev_type == "type-PF":
        return wanted.get(roles.role_of(function, node) or "")
    if not classes.is_adapter(function.class_code):
        return None
    able = attrs.evolve(function, total_vfs=1)
    for role in (roles.role_of(able, node), roles.role_of(function, node)):
        if role in wanted:
            return wanted[role or ""]
    return None


def list_declared_vfs(wishes: NodeWishes, roles: Roles, node: Node) -> dict[str, int]:
    """Map the address of each adapter with declared virtual functions to their number."""
    counts = {
        function.address: count_declared_vfs(wishes, roles, node, function)
        for function in node.functions
    }
    return {address: count for address, count in counts.items() if count}


def list_short_adapters(
    node: Node, roles: Roles, wishes: NodeWishes
) -> Iterator[tuple[PciFunction, int]]:
    """Yield adapters whose firmware allows fewer virtual functions than the declaration requests.

    Unreadable adapters are left out.

    :returns: pairs of the adapter's physical function and the declared number of virtual functions.
    """
    for address, count in list_declared_vfs(wishes, roles, node).items():
        function = node.function(address)
        if function is None or function.unknown is not None:
            continue
        if len(function.virtual_functions) < count and (function.total_vfs or 0) < count:
            yield function, count


def check_firmware(
    node: Node, roles: Roles, wishes: NodeWishes, firmware: Mapping[str, FirmwareSriov]
) -> Iterator[DoctorFinding]:
    """Find adapters whose firmware does not allow the declared virtual functions.

    :param firmware: address -> the settings of the firmware, if mlxconfig reported them.
    """
    for function, count in list_short_adapters(node, roles, wishes):
        most = function.total_vfs
        has = "no SR-IOV capability" if most is None else f"room for {most}"
        told = firmware.get(function.address)
        waits = told is not None and told.is_on and told.vfs >= count
        state = "has them after a cold start" if waits else f"has {has}"
        yield DoctorFinding(
            "vfs-firmware",
            f"{function.address}: {count} virtual functions are declared; its firmware {state}.",
            _cure_of_firmware(function, count, waits),
        )


def _cure_of_firmware(function: PciFunction, count: int, waits: bool) -> DoctorCure:
    cold = "switch the host off and on (a cold start; a reboot is not enough)"
    if waits:
        return DoctorCure.of(f"{cold[0].upper()}{cold[1:]}.")
    if function.vendor_id == _MELLANOX:
        return DoctorCure.of(
            f"mlxconfig -d {function.address} set SRIOV_EN=1 NUM_OF_VFS={count}, then {cold}."
        )
    return DoctorCure.of(
        f"Allow {count} virtual functions in the firmware of the adapter and of the host, then "
        f"{cold}."
    )
