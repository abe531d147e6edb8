# SPDX-License-Identifier: Apache-2.0
"""States of the host that keep offered devices from servers, reported at once. Pure.

These findings do not change the offer. nova-compute withholds devices that it may not give,
and a node whose offer waits for its host is not finished.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nova_hpc.topology.model import HugePages, Node, NumaNode, PciFunction, address_key
from nova_hpc.topology.roles import Roles
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_tools.site import kernel_words, page_memory
from nova_hpc_tools.site.cures import DECLARATION, WRITE, DoctorCure
from nova_hpc_tools.site.declared_vfs import count_declared_vfs
from nova_hpc_tools.site.device_spec import DeviceSpec
from nova_hpc_tools.site.device_users import DeviceUsers
from nova_hpc_tools.site.findings import DoctorFinding
from nova_hpc_tools.site.kernel_options import KernelOptions
from nova_hpc_tools.site.vgpu_findings import check_vgpu_types
from nova_hpc_tools.wire.node_declaration import EVERY, NodeWishes, page_kib

_MANY: Final = 4
_TO_GRUB: Final = (
    "to GRUB_CMDLINE_LINUX in /etc/default/grub, run update-grub and restart the host."
)


def check_readiness(
    node: Node,
    spec: DeviceSpec,
    roles: Roles,
    wishes: NodeWishes,
    kernel: KernelOptions,
    users: Mapping[str, DeviceUsers],
) -> list[DoctorFinding]:
    """Find work that remains on the host before servers can get its devices.

    :param node: read from sysfs; lstopo's XML does not contain these facts.
    :param spec: its offer.
    :param wishes: the operator's declaration.
    :param kernel: the operator's options, and features of the running kernel.
    :param users: address -> processes that have a device open.
    """
    functions = offered_functions_of(node, spec)
    return [
        *_check_iommu(node, functions, kernel),
        *_check_drivers(
            node,
            functions,
            {address for offer in spec.offers if offer.network for address in offer.functions},
            users,
        ),
        *_check_virtual_functions(node, roles, wishes),
        *check_vgpu_types(node, spec),
        *(_check_hugepage_pools(node, wishes, kernel) if functions or wishes.hugepages else ()),
    ]


def offered_functions_of(node: Node, spec: DeviceSpec) -> list[PciFunction]:
    """Return the PCI functions that servers can get."""
    return [
        function
        for offer in spec.offers
        for address in offer.functions
        if (function := node.function(address)) is not None
    ]


def _check_iommu(
    node: Node, offered: Iterable[PciFunction], kernel: KernelOptions
) -> Iterator[DoctorFinding]:
    without = [function.address for function in offered if function.iommu_group is None]
    if without and not node.iommu_groups:
        yield DoctorFinding(
            "iommu-off",
            "The IOMMU is off: the kernel shows no IOMMU group, so no device can be given.",
            _switch_iommu_on(kernel),
        )
    elif without:
        yield DoctorFinding(
            "iommu-group",
            f"In no IOMMU group, so not to be given: {_list_addresses(without)}.",
            f"See why in the kernel's log: dmesg | grep {without[0]}",
        )


def _switch_iommu_on(kernel: KernelOptions) -> str:
    firmware = "Switch VT-d or AMD-Vi on in the firmware"
    intel = kernel_words.find_exclusion(kernel_words.INTEL_IOMMU, kernel)
    if intel is not None:
        return f"{firmware}, and look at the kernel's command line: {intel}."
    words = kernel_words.advise_words(
        (kernel_words.INTEL_IOMMU, kernel_words.PASSTHROUGH), kernel
    ).replace(kernel_words.INTEL_IOMMU, f"{kernel_words.INTEL_IOMMU} (Intel)")
    return f"{firmware}, add {words} {_TO_GRUB}"


def _check_drivers(
    node: Node,
    offered: Iterable[PciFunction],
    ports: set[str],
    users: Mapping[str, DeviceUsers],
) -> Iterator[DoctorFinding]:
    """Find offered functions that no VFIO driver has.

    libvirt itself changes the driver of devices for Neutron's ports, so these are no fault.
    """
    wrong: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for function in offered:
        if function.address not in ports and not function.on_vfio:
            key = (function.driver or "", function.guest_driver, _gives_parts(node, function))
            wrong[key].append(function.address)
    for (driver, wanted, parts), addresses in sorted(wrong.items()):
        bound = f"bound to {driver}" if driver else "bound to no driver"
        held = "; ".join(
            f"{address}: {users[address].text}"
            for address in _first_addresses(addresses)
            if address in users and users[address].text
        )
        cure = DoctorCure.of(
            # The unbind waits for these processes, and driverctl waits for the unbind.
            f"First end the programs that have it open ({held}); then " if held else "",
            "; ".join(
                f"driverctl set-override {address} {wanted}"
                for address in _first_addresses(addresses)
            ),
        )
        if parts:
            # An unbind would take the vGPUs away from all servers.
            cure = DoctorCure.of(
                f"If they are vGPUs of {driver}, leave them out: left_out: ["
                f"{', '.join(map(repr, sorted(addresses, key=address_key)))}] in ",
                DECLARATION,
                ", then ",
                WRITE,
            )
        yield DoctorFinding(
            "driver",
            f"{_list_addresses(addresses)}: {bound}, withheld until bound to {wanted}.",
            cure,
        )


def _gives_parts(node: Node, function: PciFunction) -> bool:
    """Whether a virtual function of an accelerator has the driver of its physical function.

    Such a driver makes vGPUs of it, and some releases show vGPUs only in this way.
    """
    parent = node.function(function.physical_function or "")
    return (
        parent is not None
        and function.driver is not None
        and function.driver == parent.driver
        and not (function.class_code or "").startswith("02")
    )


def _check_virtual_functions(
    node: Node, roles: Roles, wishes: NodeWishes
) -> Iterator[DoctorFinding]:
    none = []
    whole = {device.address for device in wishes.whole_pf or ()}
    for function in node.functions:
        if function.dev_type != "type-PF":
            continue
        role = roles.role_of(function, node)
        count = count_declared_vfs(wishes, roles, node, function)
        current_count = len(function.virtual_functions)
        if count is not None and current_count < count and (function.total_vfs or 0) < count:
            continue  # its firmware has to allow the functions first
        if count is not None and current_count != count:
            yield DoctorFinding(
                "vfs-declared",
                f"{function.address}: {current_count} virtual functions are switched on, "
                f"and {count} are declared.",
                DoctorCure.of(
                    f"echo {count} > /sys/bus/pci/devices/{function.address}/sriov_numvfs, "
                    "at boot before nova-compute; or change vfs in ",
                    DECLARATION,
                    ".",
                ),
            )
        elif (
            count is None
            and not current_count
            and (function.class_code or "").startswith("02")
            and role
            and not whole & {function.address, EVERY}
        ):
            none.append(function.address)
    if none:
        yield DoctorFinding(
            "vfs-none",
            f"{_list_addresses(none)}: no virtual functions are switched on, so the "
            f"adapter would be given "
            "whole.",
            DoctorCure.of(
                f"echo N > /sys/bus/pci/devices/{none[0]}/sriov_numvfs, at boot before "
                f"nova-compute; or whole_pf: ['{none[0]}'] in ",
                DECLARATION,
                " where that is meant.",
            ),
        )


def _check_hugepage_pools(
    node: Node, wishes: NodeWishes, kernel: KernelOptions
) -> Iterator[DoctorFinding]:
    if wishes.hugepages:
        for size, count in wishes.hugepages.items():
            for numa in node.numa_nodes:
                current_count = _total_pages_of_size(numa.hugepages, page_kib(size))
                if numa.cpus and current_count != count:
                    yield DoctorFinding(
                        "hugepages-declared",
                        f"NUMA node {numa.id}: {current_count} pages of {size}, and "
                        f"{count} are declared.",
                        _cure_declared_pages(numa, wishes.hugepages, size),
                    )
        return
    pools = [*node.hugepages, *(pool for numa in node.numa_nodes for pool in numa.hugepages)]
    if not any(pool.total for pool in pools):
        yield DoctorFinding(
            "hugepages-none",
            "No hugepages are reserved: flavors with hw:mem_page_size find no memory here.",
            _reserve_pages(kernel),
        )


def _cure_declared_pages(numa: NumaNode, declared: Mapping[str, int], size: str) -> DoctorCure:
    excess = page_memory.explain_excess(numa, declared)
    if excess is not None:
        return DoctorCure.of("Lower hugepages in ", DECLARATION, f": {excess}.")
    unknown = "See that the NUMA node has the memory, which cannot be read; then "
    return DoctorCure.of(
        unknown if numa.memory_kib is None else "",
        f"echo {declared[size]} > /sys/devices/system/node/node{numa.id}/hugepages/"
        f"hugepages-{page_kib(size)}kB/nr_hugepages, at boot; or change hugepages in ",
        DECLARATION,
        ".",
    )


def _reserve_pages(kernel: KernelOptions) -> str:
    size, count = f"{kernel_words.PAGE_SIZE}1G", f"{kernel_words.PAGE_COUNT}N"
    excluded = kernel_words.find_exclusion(size, kernel)
    if excluded is None:
        return f"Add {size} {count} {_TO_GRUB}"
    pool = "/sys/devices/system/node/nodeM/hugepages/hugepages-1048576kB/nr_hugepages"
    return f"echo N > {pool} of each NUMA node, at boot before nova-compute ({excluded})."


def _total_pages_of_size(pools: Iterable[HugePages], size_kib: int) -> int:
    return sum(pool.total for pool in pools if pool.size_kib == size_kib)


def pages_now(nodes: Iterable[NumaNode]) -> Mapping[str, int]:
    """Map page size to the number of pages on each NUMA node with CPUs, such as ``1G`` to 64.

    A size is left out if the NUMA nodes have different numbers, or none.
    """
    counts_by_size: dict[int, set[int]] = defaultdict(set)
    for numa in nodes:
        for pool in numa.hugepages if numa.cpus else ():
            counts_by_size[pool.size_kib].add(pool.total)
    return {
        _format_page_size(kib): counts.copy().pop()
        for kib, counts in sorted(counts_by_size.items())
        if len(counts) == 1 and counts != {0}
    }


def _format_page_size(kib: int) -> str:
    for unit, step in (("G", 1 << 20), ("M", 1 << 10)):
        if kib % step == 0:
            return f"{kib // step}{unit}"
    return f"{kib}K"


def _first_addresses(addresses: Iterable[str]) -> list[str]:
    return sorted(addresses, key=address_key)[:_MANY]


def _list_addresses(addresses: Iterable[str]) -> str:
    return join_first(sorted(addresses, key=address_key), _MANY)
