# SPDX-License-Identifier: Apache-2.0
"""What of the host itself keeps offered devices from servers: said at once. Pure.

Nothing here changes what is offered. nova-compute withholds what it may not give, and a
node whose offer waits for its host is a node that is not finished.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nova_hpc.topology.model import Function, HugePages, Node, NumaNode, address_key
from nova_hpc.topology.roles import Roles
from nova_hpc.wire.node_declaration import Wishes, page_kib
from nova_hpc_tools.adopt.device_spec import DeviceSpec
from nova_hpc_tools.adopt.findings import Finding

_MANY: Final = 4


def look(node: Node, spec: DeviceSpec, roles: Roles, wishes: Wishes) -> list[Finding]:
    """What has to be done on the host before servers get its devices.

    :param node: read from sysfs; lstopo's XML says nothing of this.
    :param spec: what it offers.
    :param wishes: what the operator has declared.
    """
    functions = offered(node, spec)
    return [
        *_iommu(node, functions),
        *_drivers(
            node,
            functions,
            {each for offer in spec.offers if offer.network for each in offer.functions},
        ),
        *_virtual_functions(node, roles, wishes),
        *(_pages(node, wishes) if functions or wishes.hugepages else ()),
    ]


def offered(node: Node, spec: DeviceSpec) -> list[Function]:
    """The functions that servers can be given."""
    return [
        function
        for offer in spec.offers
        for each in offer.functions
        if (function := node.function(each)) is not None
    ]


def _iommu(node: Node, offered: Iterable[Function]) -> Iterator[Finding]:
    without = [each.address for each in offered if each.iommu_group is None]
    if without and not node.iommu_groups:
        yield Finding(
            "iommu-off",
            "The IOMMU is off: the kernel shows no IOMMU group, so no device can be given.",
            "Switch VT-d or AMD-Vi on in the firmware, add intel_iommu=on (Intel) and iommu=pt to "
            "GRUB_CMDLINE_LINUX in /etc/default/grub, run update-grub and restart the host.",
        )
    elif without:
        yield Finding(
            "iommu-group",
            f"In no IOMMU group, so not to be given: {_listed(without)}.",
            f"See why in the kernel's log: dmesg | grep {without[0]}",
        )


def _drivers(node: Node, offered: Iterable[Function], ports: set[str]) -> Iterator[Finding]:
    """Of the devices for Neutron's ports libvirt changes the driver itself."""
    wrong: dict[tuple[str, str, bool], list[str]] = defaultdict(list)
    for each in offered:
        if each.address not in ports and not each.on_vfio:
            key = (each.driver or "", each.guest_driver, _gives_parts(node, each))
            wrong[key].append(each.address)
    for (driver, wanted, parts), addresses in sorted(wrong.items()):
        bound = f"bound to {driver}" if driver else "bound to no driver"
        cure = "; ".join(f"driverctl set-override {each} {wanted}" for each in _some(addresses))
        if parts:
            # Whoever unbinds them takes the vGPUs of all servers away.
            cure = (
                f"If they are vGPUs of {driver}, leave each of them out: nova-hpc configure "
                f"--write /etc/nova/nova.conf.d --leave-out {_some(addresses)[0]}"
            )
        yield Finding(
            "driver", f"{_listed(addresses)}: {bound}, withheld until bound to {wanted}.", cure
        )


def _gives_parts(node: Node, function: Function) -> bool:
    """Whether a virtual function of an accelerator has the driver of its physical function.

    Such a driver makes vGPUs of it, which some releases show in no other way.
    """
    parent = node.function(function.physical_function or "")
    return (
        parent is not None
        and function.driver is not None
        and function.driver == parent.driver
        and not (function.class_code or "").startswith("02")
    )


def _virtual_functions(node: Node, roles: Roles, wishes: Wishes) -> Iterator[Finding]:
    wanted = wishes.vfs or {}
    none = []
    for each in node.functions:
        if each.dev_type != "type-PF":
            continue
        role = roles.role_of(each, node)
        count = wanted.get(each.address, wanted.get(role or ""))
        now = len(each.virtual_functions)
        if count is not None and now != count:
            yield Finding(
                "vfs-declared",
                f"{each.address}: {now} virtual functions are switched on, and {count} are declared"
                f"{f'; it can have {each.total_vfs}' if (each.total_vfs or 0) < count else ''}.",
                f"echo {count} > /sys/bus/pci/devices/{each.address}/sriov_numvfs, at boot before "
                "nova-compute; or change vfs in /etc/nova-hpc/node.yaml.",
            )
        elif count is None and not now and (each.class_code or "").startswith("02") and role:
            none.append(each.address)
    if none:
        yield Finding(
            "vfs-none",
            f"{_listed(none)}: no virtual functions are switched on, so the adapter would be given "
            "whole.",
            f"echo N > /sys/bus/pci/devices/{none[0]}/sriov_numvfs, at boot before nova-compute; "
            "or name it with --whole-pf where that is meant.",
        )


def _pages(node: Node, wishes: Wishes) -> Iterator[Finding]:
    if wishes.hugepages:
        for size, count in wishes.hugepages.items():
            for numa in node.numa_nodes:
                now = _total(numa.hugepages, page_kib(size))
                if numa.cpus and now != count:
                    yield Finding(
                        "hugepages-declared",
                        f"NUMA node {numa.id}: {now} pages of {size}, and {count} are declared.",
                        f"echo {count} > /sys/devices/system/node/node{numa.id}/hugepages/"
                        f"hugepages-{page_kib(size)}kB/nr_hugepages, at boot; or change hugepages "
                        "in /etc/nova-hpc/node.yaml.",
                    )
        return
    pools = [*node.hugepages, *(pool for numa in node.numa_nodes for pool in numa.hugepages)]
    if not any(pool.total for pool in pools):
        yield Finding(
            "hugepages-none",
            "No hugepages are reserved: flavors with hw:mem_page_size find no memory here.",
            "Add hugepagesz=1G hugepages=N to GRUB_CMDLINE_LINUX in /etc/default/grub, run "
            "update-grub and restart the host.",
        )


def _total(pools: Iterable[HugePages], size_kib: int) -> int:
    return sum(pool.total for pool in pools if pool.size_kib == size_kib)


def pages_now(nodes: Iterable[NumaNode]) -> Mapping[str, int]:
    """Size -> pages of a NUMA node with CPUs, where all have the same number."""
    found: dict[int, set[int]] = defaultdict(set)
    for numa in nodes:
        for pool in numa.hugepages if numa.cpus else ():
            found[pool.size_kib].add(pool.total)
    return {
        _size(kib): counts.copy().pop()
        for kib, counts in sorted(found.items())
        if len(counts) == 1 and counts != {0}
    }


def _size(kib: int) -> str:
    for unit, step in (("G", 1 << 20), ("M", 1 << 10)):
        if kib % step == 0:
            return f"{kib // step}{unit}"
    return f"{kib}K"


def _some(addresses: Iterable[str]) -> list[str]:
    return sorted(addresses, key=address_key)[:_MANY]


def _listed(addresses: Iterable[str]) -> str:
    found = sorted(addresses, key=address_key)
    more = f" and {len(found) - _MANY} more" if len(found) > _MANY else ""
    return f"{', '.join(_some(found))}{more}"
