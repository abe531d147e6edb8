# SPDX-License-Identifier: Apache-2.0
"""The node after a start with its declaration. Pure.

A host creates virtual functions at its start, so some of them may not exist yet. This
module computes the addresses at which the kernel will create them. The same function
(:func:`nova_hpc_tools.site.device_spec.build_device_spec`) then computes the offer of
this future node and of the present one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.topology.model import Node, PciFunction, address_key, routing_number_of
from nova_hpc.topology.roles import Roles
from nova_hpc.topology.vfio import GENERIC
from nova_hpc_tools.site.declaration import EVERY
from nova_hpc_tools.site.declared_vfs import count_declared_vfs
from nova_hpc_tools.wire.node_declaration import NodeWishes

_LAST_BUS: Final = 0xFF


@attrs.frozen
class Switched:
    """The number of virtual functions that a physical function will have after the next boot."""

    count: int
    #: From the declaration; else the number that is switched on now.
    declared: bool
    #: The addresses of the missing ones are unknown.
    unplaced: bool = False


@attrs.frozen
class Boot:
    """The node as it will be after its next boot: its functions, and the switched-on adapters."""

    node: Node
    #: Address of each physical function whose virtual functions are switched on.
    switched: Mapping[str, Switched] = attrs.field(factory=dict, hash=False)
    #: Physical functions that cannot have the declared number.
    too_many: frozenset[str] = frozenset()
    #: One sentence for each declaration that has no effect.
    notes: tuple[str, ...] = ()


def foresee_boot(
    node: Node,
    roles: Roles,
    wishes: NodeWishes,
    *,
    whole: Collection[str],
    left_out: Collection[str],
    variant: Callable[[PciFunction], str | None] = lambda function: None,
) -> Boot:
    """Compute the functions that the node will have after its next boot.

    A physical function that is left out or given whole stays as it is.

    :param node: its present state.
    :param whole: addresses of adapters that are given whole, or ``all``.
    :param left_out: addresses of functions that stay with the host.
    :param variant: the VFIO driver that the kernel has for the ids of a function.
    """
    switched: dict[str, Switched] = {}
    families: dict[str, tuple[PciFunction, ...]] = {}
    too_many: set[str] = set()
    notes = []
    for function in node.functions:
        kept = {function.address, EVERY} & {*whole} or function.address in left_out
        count = None if kept else count_declared_vfs(wishes, roles, node, function)
        if kept or (function.dev_type != "type-PF" and not count):
            continue
        declared = count is not None
        if count is None:
            count = len(function.virtual_functions)
        if count > (function.total_vfs or 0) and declared:
            too_many.add(function.address)
            notes.append(
                f"{function.address}: {count} virtual functions are declared, and it can have "
                f"{function.total_vfs or 0}: none are switched on. Its firmware has to allow them "
                "first; nova-hpc doctor gives the command."
            )
            count = 0
        families[function.address] = family = _foresee_family(node, function, count, variant)
        if count:
            switched[function.address] = Switched(count, declared, unplaced=len(family) < count)
    return Boot(_with_families(node, families), switched, frozenset(too_many), tuple(notes))


def imagine_virtual_function(adapter: PciFunction) -> PciFunction:
    """Build a virtual function of *adapter*, for matching roles; its address is wrong."""
    return attrs.evolve(
        adapter,
        product_id=adapter.vf_product,
        physical_function=adapter.address,
        virtual_functions=(),
        total_vfs=None,
        vf_offset=None,
        vf_stride=None,
        vf_product=None,
        driver=None,
        vfio=None,
        vfio_variant=None,
        iommu_group=None,
        link=None,
        unknown=None,
    )


def _foresee_family(
    node: Node, adapter: PciFunction, count: int, variant: Callable[[PciFunction], str | None]
) -> tuple[PciFunction, ...]:
    """Return the first *count* virtual functions, or the present ones if others are unknown."""
    there = [node.function(address) for address in adapter.virtual_functions]
    present = tuple(function for function in there if function is not None)[:count]
    if len(present) == count or (adapter.vf_product is None and not present):
        return present
    places = list(_addresses_of_family(adapter, present, count))
    if len(places) < count or places[: len(present)] != [function.address for function in present]:
        return present
    new = places[len(present) :]
    if any(node.function(address) is not None for address in new):
        return present  # another function has the address, so the kernel cannot use it
    like = present[0] if present else imagine_virtual_function(adapter)
    wanted = present[0].guest_driver if present else variant(like)
    like = attrs.evolve(
        like,
        driver=None,
        vfio=None,
        vfio_variant=None if wanted == GENERIC else wanted,
        iommu_group=_foresee_group(node, adapter, present),
        unknown=None,
        reset_methods=None,
    )
    return (*present, *(attrs.evolve(like, address=address) for address in new))


def _foresee_group(node: Node, adapter: PciFunction, present: Sequence[PciFunction]) -> int | None:
    """Return the IOMMU group that new virtual functions join; None if each gets its own.

    Below a port without ACS the kernel puts the port, the adapter and its virtual functions into
    one group (``pci_device_group()`` in drivers/iommu/iommu.c). An adapter is below such a port if
    it is in the group of its port, or if a present virtual function is in its group.
    """
    near = (*(node.function(address) for address in adapter.path), *present)
    joined = {function.iommu_group for function in near if function is not None}
    return adapter.iommu_group if adapter.iommu_group in joined else None


def _addresses_of_family(
    adapter: PciFunction, present: Sequence[PciFunction], count: int
) -> Iterator[str]:
    """Yield addresses of virtual functions by offset and stride (PCIe 9.3.3.9, 9.3.3.10).

    An adapter at 0000:3b:00.0 with offset 8 and stride 1 has its first virtual function at
    0000:3b:01.0, and its second at 0000:3b:01.1. Fewer than *count* addresses are returned if one
    of the numbers is unknown, or if an address would be behind the last bus.

    Present virtual functions show both better than the registers of the adapter. The registers are
    void without virtual functions, and some adapters have a stride only with two of them.
    """
    own = routing_number_of(adapter.address)
    offset, stride = adapter.vf_offset, adapter.vf_stride
    if present:
        offset = routing_number_of(present[0].address) - own
    if len(present) > 1:
        stride = routing_number_of(present[1].address) - routing_number_of(present[0].address)
    if not offset or (count > 1 and not stride):
        return
    domain = adapter.address.partition(":")[0]
    for number in range(count):
        route = own + offset + number * (stride or 0)
        if route >> 8 > _LAST_BUS:
            return
        yield f"{domain}:{route >> 8:02x}:{route >> 3 & 31:02x}.{route & 7}"


def _with_families(node: Node, families: Mapping[str, tuple[PciFunction, ...]]) -> Node:
    """Return a copy of *node* in which physical functions have exactly these virtual functions.

    :param families: address of a physical function -> its virtual functions.
    """
    functions: dict[str, PciFunction] = {}
    for function in node.functions:
        if function.physical_function in families:
            continue
        if function.address in families:
            own = tuple(member.address for member in families[function.address])
            function = attrs.evolve(function, virtual_functions=own)
        functions[function.address] = function
    for family in families.values():
        functions |= {member.address: member for member in family}
    ordered = tuple(functions[address] for address in sorted(functions, key=address_key))
    return node if ordered == node.functions else attrs.evolve(node, functions=ordered)
