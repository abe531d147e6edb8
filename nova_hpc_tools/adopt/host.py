# SPDX-License-Identifier: Apache-2.0
"""How a host has to start so that servers can get its devices: what is done at boot. Pure.

Which functions belong to guests and by which driver, which adapters get virtual functions,
how many hugepages each NUMA node has, and what the kernel's command line says.
:mod:`nova_hpc_tools.adopt.host_files` writes it down for the programs that act on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.topology.model import Function, Node, address_key
from nova_hpc.topology.roles import Roles
from nova_hpc.topology.vfio import GENERIC, Vfio
from nova_hpc.wire.node_declaration import Wishes, page_kib
from nova_hpc_tools.adopt import at_boot
from nova_hpc_tools.adopt.at_boot import Boot
from nova_hpc_tools.adopt.declaration import Declaration
from nova_hpc_tools.adopt.device_spec import DeviceSpec

#: Kind of IOMMU -> what switches it on (Documentation/admin-guide/kernel-parameters.txt).
#: AMD's is on where the firmware has it; Arm's has no word but that for the host's own devices.
IOMMU_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "intel": ("intel_iommu=on", "iommu=pt"),
    "amd": ("iommu=pt",),
    "arm": ("iommu.passthrough=1",),
}

#: Classes of functions that are no companions: disks and network interfaces.
OF_THE_HOST: Final = ("01", "02")


@attrs.frozen
class Bound:
    """A function, and the driver that it has from the start."""

    address: str
    driver: str = GENERIC


@attrs.frozen
class Adapter:
    """A physical function that stays with the host, and has virtual functions."""

    address: str
    vfs: int
    #: The driver of all of them, which are for guests alone; None: they have the host's.
    #: A macvtap port of a physical network needs their interface, and libvirt rebinds the
    #: others itself.
    driver: str | None = None
    #: Those for guests, where others of them are the host's.
    bound: tuple[Bound, ...] = ()


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

    #: Functions that are there when the kernel starts and belong to guests.
    vfio: tuple[Bound, ...] = ()
    adapters: tuple[Adapter, ...] = ()
    pages: tuple[Pages, ...] = ()
    #: Words of the kernel's command line, in their order.
    kernel_line: tuple[str, ...] = ()
    #: What is not done, and why; sentences.
    notes: tuple[str, ...] = ()

    @property
    def drivers(self) -> tuple[str, ...]:
        """The VFIO drivers that are loaded: vfio-pci, and variants of it."""
        found = {each.driver for each in (*self.vfio, *(o for a in self.adapters for o in a.bound))}
        found |= {each.driver for each in self.adapters if each.driver is not None}
        return (GENERIC, *sorted(found - {GENERIC}))

    @property
    def needed(self) -> bool:
        """Whether the host has anything for servers."""
        return bool(self.vfio or self.adapters or self.pages)


def plan(
    boot: Boot,
    spec: DeviceSpec,
    roles: Roles,
    wishes: Wishes,
    declaration: Declaration,
    *,
    never: Collection[str],
    used: Mapping[str, str],
    iommu: str | None,
) -> Host:
    """Decide what the host does at its start.

    A driver is given to what is offered for aliases, and to what only goes with it: see
    :func:`companions`. No other function is named, but for physical functions whose virtual
    functions are switched on.

    :param boot: the node as it will be.
    :param spec: what it offers then, function by function.
    :param wishes: what is declared for it.
    :param declaration: the same with what is configured.
    :param never: addresses of functions that must never be given.
    :param used: companion -> who of the host uses it, or may.
    :param iommu: a key of :data:`IOMMU_WORDS`; None: unknown.
    """
    node, notes = boot.node, [*boot.notes]
    adapters = tuple(_adapters(boot, spec, roles, declaration, never, notes))
    offered = [one for each in _given(spec) if (one := node.function(each)) is not None]
    split = {each.address for each in adapters} | boot.too_many
    split |= {each for each, switched in boot.switched.items() if switched.declared}
    whole = [
        each for each in offered if each.physical_function is None and each.address not in split
    ]
    bare = {each.address for each in whole if _is_bare(each, declaration)}
    notes += [
        f"{each}: nobody has said whether it is given whole (nova-hpc configure --whole-pf {each}) "
        f"or by virtual functions (--vfs {each}=N), so its driver stays."
        for each in sorted(bare, key=address_key)
    ]
    given = {each.address for each in whole} - bare
    beside = set(companions(boot, spec, roles, declaration)) & _mates(node, given)
    notes += [
        f"{each} shares the IOMMU group of a device for servers and stays with the host: "
        f"{used[each]}. The device cannot be given until then."
        for each in sorted(beside & used.keys(), key=address_key)
    ]
    vfio = tuple(_bound(node, sorted(given | (beside - used.keys()), key=address_key)))
    pages = tuple(_pages(node, wishes))
    if (vfio or adapters) and not pages:
        notes.append(
            "Hugepages are not declared, so nothing is done for them: nova-hpc configure "
            "--hugepages 1G=N of each NUMA node."
        )
    words = (*IOMMU_WORDS[iommu or "intel"], *_line(node, pages))
    host = Host(vfio, adapters, pages, notes=tuple(notes))
    return attrs.evolve(host, kernel_line=words) if host.needed else host


def _given(spec: DeviceSpec) -> Iterator[str]:
    """What is offered for aliases; libvirt binds the devices of ports itself."""
    for offer in spec.offers:
        if offer.network is None:
            yield from offer.functions


def _is_bare(function: Function, declaration: Declaration) -> bool:
    """Whether it is an adapter of which nobody has said how it is given."""
    return (
        function.dev_type == "type-PF"
        and (function.class_code or "").startswith("02")
        and not declaration.gives_whole(function.address)
    )


def companions(
    boot: Boot, spec: DeviceSpec, roles: Roles, declaration: Declaration
) -> tuple[str, ...]:
    """What goes with offered devices: the other functions of a card in its IOMMU group.

    The kernel gives all of a group or none, so the sound, USB and UCSI functions of a graphics
    card go where its picture goes. What has a role is offered or not by itself, what is
    left out stays, and an interface or a disk is the host's until somebody offers it.
    """
    node = boot.node
    offered = {*_given(spec)}
    return tuple(
        each.address
        for each in node.functions
        if each.address in _mates(node, offered)
        and each.address not in offered
        and each.physical_function is None
        and not each.virtual_functions
        and not each.is_bridge
        and (each.class_code or "")[:2] not in OF_THE_HOST
        and roles.role_of(each, node) is None
        and each.address not in declaration.left_out
    )


def _mates(node: Node, addresses: Collection[str]) -> set[str]:
    """The functions that share both slot and IOMMU group with one of *addresses*."""
    places = {
        (each.partition(".")[0], function.iommu_group)
        for each in addresses
        if (function := node.function(each)) is not None and function.iommu_group is not None
    }
    return {
        each.address
        for each in node.functions
        if (each.address.partition(".")[0], each.iommu_group) in places
    }


def _adapters(
    boot: Boot,
    spec: DeviceSpec,
    roles: Roles,
    declaration: Declaration,
    never: Collection[str],
    notes: list[str],
) -> Iterator[Adapter]:
    """The physical functions whose virtual functions are offered, or are declared."""
    given = {*_given(spec)}
    for address, switched in boot.switched.items():
        function = boot.node.function(address)
        if function is None:
            continue
        mine = tuple(each for each in function.virtual_functions if each in given)
        if any(offer.provider == address and offer.network for offer in spec.offers):
            yield Adapter(address, switched.count)
            continue
        family = map(boot.node.function, function.virtual_functions)
        if any(one.vfio is Vfio.VENDOR for one in family if one):
            notes.append(
                f"{address}: its driver {function.driver} gives its virtual functions to guests "
                "itself, so who switches them on now goes on doing so."
            )
            continue
        if switched.unplaced:
            yield from _unplaced(boot, function, mine, roles, declaration, never, notes)
            continue
        if not mine:
            if switched.declared and address not in never:
                yield Adapter(address, switched.count)
            continue
        if not switched.declared:
            notes.append(
                f"{address}: {switched.count} virtual functions are switched on now, and will be "
                "at boot; declare another number with nova-hpc configure --vfs."
            )
        bound = tuple(_bound(boot.node, mine))
        drivers = {each.driver for each in bound}
        if len(mine) == switched.count and len(drivers) == 1:
            yield Adapter(address, switched.count, driver=drivers.pop())
        else:
            yield Adapter(address, switched.count, bound=bound)


def _bound(node: Node, addresses: Iterable[str]) -> Iterator[Bound]:
    """Each with the driver that it has for guests; a VFIO driver that it has is kept."""
    for each in addresses:
        function = node.function(each)
        yield Bound(each, GENERIC if function is None else function.guest_driver)


def _unplaced(
    boot: Boot,
    adapter: Function,
    mine: tuple[str, ...],
    roles: Roles,
    declaration: Declaration,
    never: Collection[str],
    notes: list[str],
) -> Iterator[Adapter]:
    """Nobody knows their addresses: all of them are bound where none can be the host's."""
    address, count = adapter.address, boot.switched[adapter.address].count
    role = roles.role_of(at_boot.look_of(adapter), boot.node)
    if address in never:
        notes.append(
            f"{address}: {count} virtual functions are declared, of which nobody can tell whether "
            "they may be given: none are switched on."
        )
        return
    if role is None or declaration.network_of(role, address) is not None:
        yield Adapter(address, count)
        return
    held_back = {*declaration.left_out, *declaration.withheld}
    sure = {*adapter.virtual_functions} <= {*mine} and all(map(boot.node.function, held_back))
    # In which IOMMU groups the others will be nobody knows either; alone is what is usual.
    alone = all(
        len(boot.node.group_members(one)) < 2 for one in map(boot.node.function, mine) if one
    )
    if sure and alone:
        known = {each.driver for each in _bound(boot.node, mine)}
        yield Adapter(address, count, driver=known.pop() if len(known) == 1 else GENERIC)
        return
    notes.append(
        f"{address}: the kernel does not say where all of its {count} virtual functions will be, "
        "and one of them may be the host's: they keep its driver. Run the command again when they "
        "are switched on."
    )
    yield Adapter(address, count, bound=tuple(_bound(boot.node, mine if alone else ())))


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
