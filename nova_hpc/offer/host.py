# SPDX-License-Identifier: Apache-2.0
"""How a host has to start so that servers can get its devices: what is done at boot. Pure.

Which functions belong to vfio-pci, which adapters get virtual functions, how many hugepages
each NUMA node has, and what the kernel's command line says. :mod:`nova_hpc.offer.host_files`
writes it down for the programs that act on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.offer.declaration import Declaration
from nova_hpc.offer.device_spec import DeviceSpec
from nova_hpc.offer.roles import Roles
from nova_hpc.topology.model import Function, Node, address_key
from nova_hpc.wire.node_declaration import Wishes, page_kib

#: Kind of IOMMU -> what switches it on (Documentation/admin-guide/kernel-parameters.txt).
#: AMD's is on where the firmware has it; Arm's has no word but that for the host's own devices.
IOMMU_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "intel": ("intel_iommu=on", "iommu=pt"),
    "amd": ("iommu=pt",),
    "arm": ("iommu.passthrough=1",),
}


@attrs.frozen
class Adapter:
    """A physical function that stays with the host, and has virtual functions."""

    address: str
    vfs: int
    #: They are for guests alone. Those of a physical network may have a driver of the host:
    #: a macvtap port needs their interface, and libvirt rebinds the others itself.
    to_vfio: bool


@attrs.frozen
class Pages:
    """A pool of hugepages of one NUMA node."""

    numa_node: int
    size: str  # 2M, 1G
    count: int

    @property
    def size_kib(self) -> int:
        """The size of one page in KiB."""
        return page_kib(self.size)


@attrs.frozen
class Host:
    """What is done when the host starts."""

    #: Functions that belong to vfio-pci from the start, by address.
    vfio: tuple[str, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    pages: tuple[Pages, ...] = ()
    #: Words of the kernel's command line, in their order.
    kernel_line: tuple[str, ...] = ()
    #: What is not done, and why; sentences.
    notes: tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        """Whether the host has anything for servers."""
        return bool(self.vfio or self.adapters or self.pages)


def plan(
    node: Node,
    spec: DeviceSpec,
    roles: Roles,
    wishes: Wishes,
    declaration: Declaration,
    *,
    never: Collection[str],
    iommu: str | None,
    vf_products: Mapping[str, str],
) -> Host:
    """Decide what the host does at its start.

    :param node: read from sysfs, prepared or not.
    :param spec: what it offers; a bare adapter is in it as a whole.
    :param wishes: what is declared for it.
    :param declaration: the same with what is configured.
    :param never: addresses of functions that must never be given, nor their virtual ones.
    :param iommu: a key of :data:`IOMMU_WORDS`; None: unknown.
    :param vf_products: address of a physical function -> product id that its virtual
        functions have, as ``sriov_vf_device`` says.
    """
    notes: list[str] = []
    able = [
        each
        for each in node.functions
        if each.dev_type == "type-PF"
        and not declaration.gives_whole(each.address)
        and each.address not in declaration.left_out
        and each.address not in never
    ]
    adapters = tuple(_adapters(node, able, roles, wishes, declaration, vf_products, notes))
    split = {each.address for each in adapters}
    bare = [
        each.address
        for each in able
        if each.address not in split and (each.class_code or "").startswith("02")
    ]
    given = {
        each
        for offer in spec.offers
        if offer.network is None
        for each in offer.functions
        if each not in (*split, *bare) and not _is_virtual(node, each)
    }
    notes += [
        f"{each}: nobody has said whether it is given whole (nova-hpc configure --whole-pf {each}) "
        f"or by virtual functions (--vfs {each}=N), so its driver stays."
        for each in bare
        if any(each in offer.functions for offer in spec.offers)
    ]
    vfio = sorted({*given, *_beside(node, given)}, key=address_key)
    pages = tuple(_pages(node, wishes))
    if (vfio or adapters) and not pages:
        notes.append(
            "Hugepages are not declared, so nothing is done for them: nova-hpc configure "
            "--hugepages 1G=N of each NUMA node."
        )
    words = (*IOMMU_WORDS[iommu or "intel"], *_line(node, pages))
    host = Host(tuple(vfio), adapters, pages, notes=tuple(notes))
    return attrs.evolve(host, kernel_line=words) if host.needed else host


def _is_virtual(node: Node, address: str) -> bool:
    function = node.function(address)
    return function is not None and function.physical_function is not None


def _beside(node: Node, given: Collection[str]) -> Iterator[str]:
    """The other functions of the same cards (the sound of a GPU), where the kernel gives all
    of an IOMMU group or none; what else is in the group, ``nova-hpc doctor`` names."""
    cards = {each.partition(".")[0]: each for each in given}
    for one in node.functions:
        card = node.function(cards.get(one.address.partition(".")[0], ""))
        if (
            card is not None
            and one.address not in given
            and not one.is_bridge
            and one.iommu_group is not None
            and one.iommu_group == card.iommu_group
        ):
            yield one.address


def _adapters(
    node: Node,
    able: Iterable[Function],
    roles: Roles,
    wishes: Wishes,
    declaration: Declaration,
    vf_products: Mapping[str, str],
    notes: list[str],
) -> Iterator[Adapter]:
    wanted = wishes.vfs or {}
    for each in able:
        role = roles.role_of(each, node) or ""
        virtual = _virtual_function(node, each, vf_products.get(each.address))
        child = roles.role_of(virtual, node)
        count = wanted.get(each.address, wanted.get(role))
        if not (role or child):
            continue
        if count is None:
            count = len(each.virtual_functions)
            if count and child:
                notes.append(
                    f"{each.address}: {count} virtual functions are switched on now, and will be "
                    "at boot; declare another number with nova-hpc configure --vfs."
                )
        if not count or count > (each.total_vfs or 0):
            if count:
                notes.append(
                    f"{each.address}: {count} virtual functions are declared, and it can have "
                    f"{each.total_vfs or 0}: none are switched on. The firmware of many adapters "
                    "has to allow them first."
                )
            continue
        network = declaration.network_of(child or role, each.address)
        yield Adapter(each.address, count, to_vfio=child is not None and network is None)


def _virtual_function(node: Node, adapter: Function, product_id: str | None) -> Function:
    """The first of *adapter*, or how one will look to the roles once it is there."""
    for address in adapter.virtual_functions:
        found = node.function(address)
        if found is not None:
            return found
    return attrs.evolve(
        adapter, product_id=product_id, physical_function=adapter.address, total_vfs=None
    )


def _pages(node: Node, wishes: Wishes) -> Iterator[Pages]:
    for size, count in sorted((wishes.hugepages or {}).items(), key=lambda item: page_kib(item[0])):
        for numa in node.numa_nodes:
            if numa.cpus:
                yield Pages(numa.id, size, count)


def _line(node: Node, pages: tuple[Pages, ...]) -> Iterator[str]:
    """The kernel deals pages evenly to the nodes with memory; where some of those have no
    CPUs (CXL, the memory of a GPU), it is told each node by itself (Linux 5.16 and later)."""
    even = all(numa.cpus for numa in node.numa_nodes if numa.memory_kib)
    for size in dict.fromkeys(each.size for each in pages):
        mine = [each for each in pages if each.size == size]
        yield f"hugepagesz={size}"
        if even:
            yield f"hugepages={sum(each.count for each in mine)}"
        else:
            yield "hugepages=" + ",".join(f"{each.numa_node}:{each.count}" for each in mine)
