# SPDX-License-Identifier: Apache-2.0
"""Devices that ``vfio-pci.ids`` takes at boot although the host needs them. Pure.

The option gives every function of a vendor and a product to vfio-pci, in whichever slot it is:
also one that is left out, and an adapter whose virtual functions are for servers, which then has
none. ``nova-hpc prepare`` binds each device by its address and needs no such option.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from nova_hpc.topology import classes
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.topology.roles import Roles
from nova_hpc_tools.site.cures import PREPARE, DoctorCure
from nova_hpc_tools.site.findings import DoctorFinding, join_first_few
from nova_hpc_tools.site.kernel_options import KernelOption, KernelOptions
from nova_hpc_tools.wire.node_declaration import NodeWishes

_IDS: Final = "vfio_pci.ids"
_HEX: Final = re.compile(r"(?:0x)?([0-9a-f]{1,8})", re.ASCII | re.IGNORECASE)
#: PCI_ANY_ID.
_ANY: Final = 0xFFFFFFFF


def find_taken_at_boot(
    node: Node,
    roles: Roles,
    wishes: NodeWishes,
    offered: Iterable[PciFunction],
    left_out: Collection[str],
    kernel: KernelOptions,
) -> Iterator[DoctorFinding]:
    """Find devices of the host that ``vfio-pci.ids`` would take at the next boot.

    :param offered: the functions that servers can get.
    :param left_out: addresses that the declaration keeps with the host.
    """
    given = {function.address for function in offered}
    parents = {function.physical_function for function in offered} - {None}
    for option in kernel.named(_IDS):
        taken: dict[str, list[str]] = {}
        for function in node.functions:
            if function.address in given or not _takes(option, function):
                continue
            reason = _reason_to_keep(function, parents, left_out, roles, wishes, node)
            if reason is not None:
                taken.setdefault(reason, []).append(function.address)
        for reason, addresses in taken.items():
            yield DoctorFinding(
                "driver-ids",
                f"{join_first_few(addresses)}: {reason}, and at boot vfio-pci takes it by "
                f"{option.text} ({option.place}).",
                DoctorCure.of(
                    f"Take its id out of {option.place}, make the initramfs or GRUB's file again, "
                    "and restart the host when no server is on it: ",
                    PREPARE,
                    " binds devices by their address.",
                ),
            )


def _reason_to_keep(
    function: PciFunction,
    parents: Collection[str | None],
    left_out: Collection[str],
    roles: Roles,
    wishes: NodeWishes,
    node: Node,
) -> str | None:
    vfs = wishes.vfs or {}
    if function.address in left_out:
        return "left_out keeps it with the host"
    if function.address in parents or function.virtual_functions:
        return "it has virtual functions"
    if vfs.get(function.address, vfs.get(roles.role_of(function, node) or "")):
        return "the declaration gives it virtual functions"
    if classes.stays_with_host(function.class_code):
        return "it is not offered, so it is the host's"
    return None


def _takes(option: KernelOption, function: PciFunction) -> bool:
    return any(_matches(text, function) for text in option.value.split(",") if text)


def _matches(text: str, function: PciFunction) -> bool:
    """Match like drivers/vfio/pci/vfio_pci.c.

    The format is vendor:device[:subvendor[:subdevice[:class[:mask]]]].
    """
    numbers = []
    for part in text.split(":"):
        match = _HEX.fullmatch(part)
        if match is None:
            return False
        numbers.append(int(match[1], 16))
    if not 2 <= len(numbers) <= 6:
        return False
    ids = (
        function.vendor_id,
        function.product_id,
        function.subsystem_vendor_id,
        function.subsystem_id,
    )
    for wanted, own in zip(numbers[:4], ids, strict=False):
        if wanted != _ANY and wanted != int(own or "0", 16):
            return False
    code, mask = (*numbers[4:], 0, 0)[:2]
    return not (code ^ int(function.class_code or "0", 16)) & mask
