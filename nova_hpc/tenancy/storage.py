# SPDX-License-Identifier: Apache-2.0
"""Storage devices: offered only if a cleaner of their role proves that it erases them. Pure.

A reset of a PCI function erases no data of a disk. So no role and no declaration offers a function
of class 01, or one with memory (0500 to 0502), without a cleaner that erases it and proves that
(``Cleaner.erases``).
``configure`` and ``doctor`` use the same functions as nova-compute.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.topology import classes
from nova_hpc.topology.model import Node, PciFunction


@attrs.frozen
class Erasers:
    """The roles whose cleaner proves that it erases a storage device."""

    #: Role -> prefixes of the class codes that its cleaner erases.
    of_role: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict, hash=False)

    def explain_refusal(self, node: Node, function: PciFunction, role: str | None) -> str | None:
        """Return the reason not to offer a function; None if it is no storage, or has an eraser.

        A virtual function shares the medium of its physical function.
        """
        parent = node.function(function.physical_function or "")
        codes = [part.class_code for part in (function, parent) if part is not None]
        storage = [code for code in codes if classes.is_storage(code)]
        if not storage:
            return None
        erased = self.of_role.get(role or "", ())
        # A cleaner erases a controller as a whole, with the data of all its virtual functions.
        if parent is None and not function.virtual_functions:
            if all((code or "").startswith(erased) for code in storage) and erased:
                return None
            whose = f"of the role {role}" if role else "without a role"
            return (
                f"it is a storage device (class {(storage[0] or '')[:4]}), and no cleaner {whose} "
                "proves that its data are erased; a reset erases nothing"
            )
        return (
            f"it is a storage device (class {(storage[0] or '')[:4]}) with virtual functions, and "
            "no cleaner proves that the data of one of them are erased; a reset erases nothing"
        )


def storage_devices_of(node: Node, addresses: Iterable[str]) -> frozenset[str]:
    """Return those of *addresses* whose data must be erased between two servers."""
    return frozenset(
        address
        for address in addresses
        if (function := node.function(address)) is not None
        and Erasers().explain_refusal(node, function, None) is not None
    )


def find_unerased_storage(
    node: Node, addresses: Iterable[str], roles: Mapping[str, str | None], erasers: Erasers
) -> dict[str, Symptom]:
    """Find storage devices that no cleaner provably erases, so that a server never gets them.

    :param roles: address -> role, which selects the cleaner.
    :returns: PCI address -> the reason; other devices are left out.
    """
    symptoms = {}
    for address in addresses:
        function = node.function(address)
        if function is None:
            continue
        reason = erasers.explain_refusal(node, function, roles.get(address))
        if reason is not None:
            symptoms[address] = Symptom(HealthSign.NEVER, reason)
    return symptoms
