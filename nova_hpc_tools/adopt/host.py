# SPDX-License-Identifier: Apache-2.0
"""The work at boot on a host whose devices servers can get. Pure.

The plan contains functions for guests with their drivers, and adapters that get virtual
functions. It also contains hugepages of each NUMA node, and words of the kernel's command line.
:mod:`nova_hpc_tools.adopt.host_files` writes it into the files of udev, kmod and others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import attrs

from nova_hpc.topology import classes
from nova_hpc.topology.model import Node, PciFunction, address_key
from nova_hpc.topology.roles import Roles
from nova_hpc.topology.vfio import GENERIC, Vfio
from nova_hpc_tools.adopt import at_boot
from nova_hpc_tools.adopt.at_boot import Boot
from nova_hpc_tools.adopt.quiet_host import QuietCpus, choose_quiet_words
from nova_hpc_tools.site import kernel_words
from nova_hpc_tools.site.declaration import Declaration
from nova_hpc_tools.site.device_spec import DeviceSpec
from nova_hpc_tools.site.kernel_options import KernelOptions
from nova_hpc_tools.wire.node_declaration import NodeWishes, page_kib


@attrs.frozen
class BoundFunction:
    """A PCI function, and the driver to which it is bound at boot."""

    address: str
    #: Vendor and product: other hardware at the address keeps the driver of the host.
    ids: tuple[str, str]
    driver: str = GENERIC


@attrs.frozen
class SplitAdapter:
    """A physical function on which the host creates virtual functions at boot."""

    address: str
    #: Vendor and product: other hardware at the address gets no virtual functions.
    ids: tuple[str, str]
    vfs: int
    #: The driver of all of them if all are for guests; None if they have the host's driver.
    #: A macvtap port of a physical network needs their interface, and libvirt rebinds the
    #: others itself.
    driver: str | None = None
    #: The ones for guests, if the others are for the host.
    bound: tuple[BoundFunction, ...] = ()


@attrs.frozen
class Pages:
    """A number of huge pages on one NUMA node, to be allocated at boot."""

    numa_node: int
    size: str  # 2M, 1G
    count: int

    @property
    def size_kib(self) -> int:
        """The size of one page in KiB."""
        return page_kib(self.size)


@attrs.frozen
class HostStart:
    """The work of a host at boot: drivers, virtual functions, huge pages and kernel options."""

    #: Functions for guests that exist when the kernel starts.
    vfio: tuple[BoundFunction, ...] = ()
    adapters: tuple[SplitAdapter, ...] = ()
    pages: tuple[Pages, ...] = ()
    #: None if the host works on all CPUs.
    quiet: QuietCpus | None = None
    #: Words of the kernel's command line, in their order.
    kernel_line: tuple[str, ...] = ()
    #: Sentences about omitted work, with the reasons.
    notes: tuple[str, ...] = ()

    @property
    def drivers(self) -> tuple[str, ...]:
        """The VFIO drivers to load at boot: vfio-pci, and variants of it."""
        drivers = {
            bound.driver for bound in (*self.vfio, *(o for a in self.adapters for o in a.bound))
        }
        drivers |= {adapter.driver for adapter in self.adapters if adapter.driver is not None}
        return (GENERIC, *sorted(drivers - {GENERIC}))

    @property
    def has_devices(self) -> bool:
        """Whether there is any work at boot for devices, or their servers' memory."""
        return bool(self.vfio or self.adapters or self.pages)

    @property
    def needed(self) -> bool:
        """Whether there is any work at boot for servers."""
        return self.has_devices or self.quiet is not None


def plan_host_start(
    boot: Boot,
    spec: DeviceSpec,
    roles: Roles,
    wishes: NodeWishes,
    declaration: Declaration,
    *,
    never: Collection[str],
    used: Mapping[str, str],
    iommu: str | None,
    kernel: KernelOptions,
    quiet: QuietCpus | None = None,
) -> HostStart:
    """Plan the work of the host at boot.

    Only functions that are offered for aliases and their companions
    (:func:`companions_of_devices`) get a driver. The plan names no other functions, except
    physical functions whose virtual functions are switched on.

    :param boot: the node after its start.
    :param spec: its offer at that time, function by function.
    :param wishes: the declared wishes for it.
    :param declaration: the same, with the configured settings.
    :param never: addresses of functions that must never be given.
    :param used: companion -> its user on the host, certain or possible.
    :param iommu: a key of :data:`kernel_words.IOMMU_WORDS`; None if unknown.
    :param kernel: the operator's options, and features of the running kernel.
    :param quiet: the CPUs without work of the host; None if it works on all.
    """
    node, notes = boot.node, [*boot.notes]
    adapters = tuple(_plan_adapters(boot, spec, roles, declaration, never, notes))
    offered = [
        function
        for address in _functions_for_aliases(spec)
        if (function := node.function(address)) is not None
    ]
    split = {adapter.address for adapter in adapters} | boot.too_many
    split |= {address for address, switched in boot.switched.items() if switched.declared}
    whole = [
        function
        for function in offered
        if function.physical_function is None and function.address not in split
    ]
    bare = {function.address for function in whole if _is_bare(function, declaration)}
    notes += [
        f"{address}: the declaration does not set whether it is given whole (whole_pf: "
        f"['{address}']) or by virtual functions (vfs: {{'{address}': N}}), so its driver stays."
        for address in sorted(bare, key=address_key)
    ]
    given = {function.address for function in whole} - bare
    beside = set(companions_of_devices(boot, spec, roles, declaration)) & _card_mates_of(
        node, given
    )
    notes += [
        f"{address} shares the IOMMU group of a device for servers and stays with the host: "
        f"{used[address]}. The device cannot be given until then."
        for address in sorted(beside & used.keys(), key=address_key)
    ]
    vfio = tuple(_bind_functions(node, sorted(given | (beside - used.keys()), key=address_key)))
    pages = tuple(_plan_hugepages(node, wishes))
    notes += [
        f"NUMA node {numa.id}: its memory cannot be read, so see that its hugepages leave enough "
        "for the host."
        for numa in node.numa_nodes
        if numa.memory_kib is None and any(pool.numa_node == numa.id for pool in pages)
    ]
    if (vfio or adapters) and not pages:
        notes.append(
            "Hugepages are not declared (hugepages: {1G: N} of each NUMA node), so nothing is done "
            "for them."
        )
    host = HostStart(vfio, adapters, pages, quiet, notes=tuple(notes))
    if host.has_devices:
        words, excluded = kernel_words.choose_words(
            (*kernel_words.IOMMU_WORDS[iommu or "intel"], *_hugepage_words(node, pages)), kernel
        )
        host = attrs.evolve(host, kernel_line=tuple(words), notes=(*notes, *excluded))
    if quiet is None:
        return host
    more, excluded_lists = choose_quiet_words(quiet, kernel)
    return attrs.evolve(
        host, kernel_line=(*host.kernel_line, *more), notes=(*host.notes, *excluded_lists)
    )


def _functions_for_aliases(spec: DeviceSpec) -> Iterator[str]:
    """Yield devices that are offered for aliases; libvirt binds the devices of ports itself."""
    for offer in spec.offers:
        if offer.network is None:
            yield from offer.functions


def _is_bare(function: PciFunction, declaration: Declaration) -> bool:
    """Whether the function is an adapter that the declaration does not give as a whole."""
    return (
        function.dev_type == "type-PF"
        and (function.class_code or "").startswith("02")
        and not declaration.gives_whole(function.address)
    )


def companions_of_devices(
    boot: Boot, spec: DeviceSpec, roles: Roles, declaration: Declaration
) -> tuple[str, ...]:
    """Return the companions of offered devices: the other functions of a card in its IOMMU group.

    The kernel gives all functions of a group or none. So the sound, USB and UCSI functions of a
    graphics card go with its display function. Functions with a role are not companions. Those that
    are left out stay with the host, and so do interfaces and disks without a role.
    """
    node = boot.node
    offered = {*_functions_for_aliases(spec)}
    return tuple(
        function.address
        for function in node.functions
        if function.address in _card_mates_of(node, offered)
        and function.address not in offered
        and function.physical_function is None
        and not function.virtual_functions
        and not function.is_bridge
        and not classes.stays_with_host(function.class_code)
        and roles.role_of(function, node) is None
        and function.address not in declaration.left_out
    )


def _card_mates_of(node: Node, addresses: Collection[str]) -> set[str]:
    """Return the functions that share both slot and IOMMU group with one of *addresses*."""
    places = {
        (address.partition(".")[0], function.iommu_group)
        for address in addresses
        if (function := node.function(address)) is not None and function.iommu_group is not None
    }
    return {
        function.address
        for function in node.functions
        if (function.address.partition(".")[0], function.iommu_group) in places
    }


def _plan_adapters(
    boot: Boot,
    spec: DeviceSpec,
    roles: Roles,
    declaration: Declaration,
    never: Collection[str],
    notes: list[str],
) -> Iterator[SplitAdapter]:
    """Yield the physical functions whose virtual functions are offered or declared.

    :param notes: gets a text for each adapter that is left alone.
    """
    given = {*_functions_for_aliases(spec)}
    for address, switched in boot.switched.items():
        function = boot.node.function(address)
        if function is None:
            continue
        if (ids := _ids_of(function)) is None:
            notes.append(f"{address}: its vendor and product cannot be read: it is left alone.")
            continue
        offered_vfs = tuple(vf for vf in function.virtual_functions if vf in given)
        if any(offer.provider == address and offer.network for offer in spec.offers):
            yield SplitAdapter(address, ids, switched.count)
            continue
        family = map(boot.node.function, function.virtual_functions)
        if any(vf.vfio is Vfio.VENDOR for vf in family if vf):
            notes.append(
                f"{address}: its driver {function.driver} gives its virtual functions to guests "
                "itself, so who switches them on now goes on doing so."
            )
            continue
        if switched.unplaced:
            yield from _plan_unplaced_adapter(
                boot, function, ids, offered_vfs, roles, declaration, never, notes
            )
            continue
        if not offered_vfs:
            if switched.declared and address not in never:
                yield SplitAdapter(address, ids, switched.count)
            continue
        if not switched.declared:
            notes.append(
                f"{address}: {switched.count} virtual functions are switched on now, and will be "
                f"at boot; declare another number with vfs: {{'{address}': N}}."
            )
        bound = tuple(_bind_functions(boot.node, offered_vfs))
        drivers = {vf.driver for vf in bound}
        if len(offered_vfs) == switched.count and len(drivers) == 1:
            yield SplitAdapter(address, ids, switched.count, driver=drivers.pop())
        else:
            yield SplitAdapter(address, ids, switched.count, bound=bound)


def _bind_functions(node: Node, addresses: Iterable[str]) -> Iterator[BoundFunction]:
    """Yield a record of each present function with its driver for guests; bind nothing."""
    for address in addresses:
        function = node.function(address)
        if function is not None and (ids := _ids_of(function)) is not None:
            yield BoundFunction(address, ids, function.guest_driver)


def _ids_of(function: PciFunction) -> tuple[str, str] | None:
    if function.vendor_id is None or function.product_id is None:
        return None
    return function.vendor_id, function.product_id


def _plan_unplaced_adapter(
    boot: Boot,
    adapter: PciFunction,
    ids: tuple[str, str],
    offered_vfs: tuple[str, ...],
    roles: Roles,
    declaration: Declaration,
    never: Collection[str],
    notes: list[str],
) -> Iterator[SplitAdapter]:
    """Yield a plan for virtual functions whose addresses are unknown.

    All are bound for guests if none of them can be for the host.
    """
    address, count = adapter.address, boot.switched[adapter.address].count
    role = roles.role_of(at_boot.imagine_virtual_function(adapter), boot.node)
    if address in never:
        notes.append(
            f"{address}: {count} virtual functions are declared, of which it is unknown whether "
            "they may be given: none are switched on."
        )
        return
    if role is None or declaration.network_of(role, address) is not None:
        yield SplitAdapter(address, ids, count)
        return
    held_back = {*declaration.left_out, *declaration.withheld}
    sure = {*adapter.virtual_functions} <= {*offered_vfs} and all(
        map(boot.node.function, held_back)
    )
    # The IOMMU groups of the others are unknown, too; usually each function has its own.
    alone = all(
        len(boot.node.group_members(vf)) < 2 for vf in map(boot.node.function, offered_vfs) if vf
    )
    if sure and alone:
        drivers = {vf.driver for vf in _bind_functions(boot.node, offered_vfs)}
        driver = drivers.pop() if len(drivers) == 1 else GENERIC
        yield SplitAdapter(address, ids, count, driver=driver)
        return
    notes.append(
        f"{address}: the kernel does not report the places of all its {count} virtual "
        "functions, and one of them may be the host's: they keep its driver. Run the command "
        "again when they are switched on."
    )
    bound = tuple(_bind_functions(boot.node, offered_vfs if alone else ()))
    yield SplitAdapter(address, ids, count, bound=bound)


def _plan_hugepages(node: Node, wishes: NodeWishes) -> Iterator[Pages]:
    for size, count in sorted((wishes.hugepages or {}).items(), key=lambda item: page_kib(item[0])):
        for numa in node.numa_nodes:
            if numa.cpus:
                yield Pages(numa.id, size, count)


def _hugepage_words(node: Node, pages: tuple[Pages, ...]) -> Iterator[str]:
    """Yield the words of the kernel's command line that reserve hugepages.

    The kernel spreads pages evenly over the nodes with memory. If some of these have no CPUs (CXL,
    the memory of a GPU), the words name each node (Linux 5.16 and later).
    """
    even = all(numa.cpus for numa in node.numa_nodes if numa.memory_kib)
    for size in dict.fromkeys(pool.size for pool in pages):
        pools = [pool for pool in pages if pool.size == size]
        yield f"{kernel_words.PAGE_SIZE}{size}"
        if even:
            yield f"{kernel_words.PAGE_COUNT}{sum(pool.count for pool in pools)}"
        else:
            counts = ",".join(f"{pool.numa_node}:{pool.count}" for pool in pools)
            yield f"{kernel_words.PAGE_COUNT}{counts}"
