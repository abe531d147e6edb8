# SPDX-License-Identifier: Apache-2.0
"""The node as it will be once it has started as it is declared. Pure.

What a host does at its start is about virtual functions that need not be there yet: so
they are put where the kernel will make them, and what the node offers then is decided by
the function that decides what it offers now (:func:`nova_hpc_tools.adopt.device_spec.build`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.topology.model import Function, Node, address_key
from nova_hpc.topology.roles import Roles
from nova_hpc.topology.vfio import GENERIC
from nova_hpc.wire.node_declaration import Wishes
from nova_hpc_tools.adopt.declaration import EVERY

_LAST_BUS: Final = 0xFF


@attrs.frozen
class Switched:
    """How many virtual functions a physical function has at the start."""

    count: int
    #: The operator has said so; else it is what is switched on now.
    declared: bool
    #: Nobody can tell where those will be that are not there yet.
    unplaced: bool = False


@attrs.frozen
class Boot:
    """A node as it will be."""

    node: Node
    #: Address of each physical function whose virtual functions are switched on.
    switched: Mapping[str, Switched] = attrs.field(factory=dict, hash=False)
    #: Physical functions that cannot have as many as are declared.
    too_many: frozenset[str] = frozenset()
    #: One sentence each: what is declared and is not done.
    notes: tuple[str, ...] = ()


def foresee(
    node: Node,
    roles: Roles,
    wishes: Wishes,
    *,
    whole: Collection[str],
    left_out: Collection[str],
    variant: Callable[[Function], str | None] = lambda function: None,
) -> Boot:
    """See which functions the node will have.

    A physical function that is left out or given whole stays as it is.

    :param node: as it is now.
    :param whole: addresses of adapters that are given whole, or ``all``.
    :param left_out: addresses of functions that stay with the host.
    :param variant: the VFIO driver that the kernel has for the ids of a function.
    """
    wanted = wishes.vfs or {}
    switched: dict[str, Switched] = {}
    families: dict[str, tuple[Function, ...]] = {}
    too_many: set[str] = set()
    notes = []
    for each in node.functions:
        kept = {each.address, EVERY} & {*whole} or each.address in left_out
        if each.dev_type != "type-PF" or kept:
            continue
        count = wanted.get(each.address, wanted.get(roles.role_of(each, node) or ""))
        declared = count is not None
        if count is None:
            count = len(each.virtual_functions)
        if count > (each.total_vfs or 0) and declared:
            too_many.add(each.address)
            notes.append(
                f"{each.address}: {count} virtual functions are declared, and it can have "
                f"{each.total_vfs or 0}: none are switched on. The firmware of many adapters "
                "has to allow them first."
            )
            count = 0
        families[each.address] = found = _family(node, each, count, variant)
        if count:
            switched[each.address] = Switched(count, declared, unplaced=len(found) < count)
    return Boot(_with_families(node, families), switched, frozenset(too_many), tuple(notes))


def look_of(adapter: Function) -> Function:
    """A virtual function of *adapter* as it looks to the roles, at no address yet."""
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


def _family(
    node: Node, adapter: Function, count: int, variant: Callable[[Function], str | None]
) -> tuple[Function, ...]:
    """The first *count* virtual functions, or those of them whose places are known."""
    there = [node.function(each) for each in adapter.virtual_functions]
    found = tuple(each for each in there if each is not None)[:count]
    if len(found) == count or (adapter.vf_product is None and not found):
        return found
    places = list(_places(adapter, found, count))
    if len(places) < count or places[: len(found)] != [each.address for each in found]:
        return found
    new = places[len(found) :]
    if any(node.function(each) is not None for each in new):
        return found  # who is there is somebody else, so it is not where they will be
    like = found[0] if found else look_of(adapter)
    wanted = found[0].guest_driver if found else variant(like)
    like = attrs.evolve(
        like,
        driver=None,
        vfio=None,
        vfio_variant=None if wanted == GENERIC else wanted,
        iommu_group=None,
        unknown=None,
        reset_methods=None,
    )
    return (*found, *(attrs.evolve(like, address=each) for each in new))


def _places(adapter: Function, found: Sequence[Function], count: int) -> Iterator[str]:
    """Addresses by the adapter's offset and stride (PCIe 9.3.3.9, 9.3.3.10).

    Virtual functions that are there tell both better than an adapter that has none: its
    registers are void until then, and some only know the stride with two of them.
    """
    own = _route(adapter.address)
    offset, stride = adapter.vf_offset, adapter.vf_stride
    if found:
        offset = _route(found[0].address) - own
    if len(found) > 1:
        stride = _route(found[1].address) - _route(found[0].address)
    if not offset or (count > 1 and not stride):
        return
    domain = adapter.address.partition(":")[0]
    for number in range(count):
        route = own + offset + number * (stride or 0)
        if route >> 8 > _LAST_BUS:
            return
        yield f"{domain}:{route >> 8:02x}:{route >> 3 & 31:02x}.{route & 7}"


def _route(address: str) -> int:
    _, bus, device, number = address_key(address)
    return bus << 8 | device << 3 | number


def _with_families(node: Node, families: Mapping[str, tuple[Function, ...]]) -> Node:
    """*node* where the physical functions of *families* have these and no others."""
    functions: dict[str, Function] = {}
    for each in node.functions:
        if each.physical_function in families:
            continue
        if each.address in families:
            own = tuple(one.address for one in families[each.address])
            each = attrs.evolve(each, virtual_functions=own)
        functions[each.address] = each
    for family in families.values():
        functions |= {each.address: each for each in family}
    ordered = tuple(functions[each] for each in sorted(functions, key=address_key))
    return node if ordered == node.functions else attrs.evolve(node, functions=ordered)
