# SPDX-License-Identifier: Apache-2.0
"""Whether a node was read completely enough to write its settings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from nova_hpc.topology import cpuset
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc.wire import tags
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_tools.base import CommandError
from nova_hpc_tools.site import readiness, spec_entries
from nova_hpc_tools.site.declaration import SWITCH_CHOICE
from nova_hpc_tools.site.device_spec import DeviceSpec
from nova_hpc_tools.site.nvlink_sets import GPU_ROLE

_ONLINE: Final = "echo 1 > /sys/devices/system/cpu/cpu{}/online"


def check_has_devices(node: Node) -> None:
    """Refuse a node without PCI devices, such as an empty directory or a container.

    So good settings are not replaced by empty ones.

    :raises CommandError: *node* has no PCI device.
    """
    if node.functions:
        return
    what = "no PCI device" if node.numa_nodes else "no CPU and no PCI device"
    raise CommandError(
        f"{what} found in {node.source}, so a node's devices are unknown: name the directory "
        "that contains sys and proc of the node, or the part to be written (--part controller, "
        "--part placement)"
    )


def check_cpus_read(node: Node, offered: Iterable[PciFunction] = ()) -> None:
    """Refuse to write settings of NUMA nodes whose CPUs are unknown.

    :param offered: devices whose entries are to be written.
    :raises CommandError: :func:`find_unread_cpus` has a reason.
    """
    reason = find_unread_cpus(node, offered)
    if reason is not None:
        raise CommandError(f"nothing is written: {reason}")


def check_offer(node: Node, spec: DeviceSpec) -> None:
    """Refuse to write settings of a node that was not read completely, or is not decided.

    A server with some GPUs of a board has no NVLink until something runs the NVSwitches.

    :raises CommandError: as :func:`check_cpus_read`, or GPUs would be offered while the
        declaration leaves the owner of their NVSwitches open.
    """
    check_cpus_read(node, readiness.offered_functions_of(node, spec))
    if spec.undecided and any(offer.tags.role == GPU_ROLE for offer in spec.offers):
        raise CommandError(f"{join_first(spec.undecided, 2)}: {SWITCH_CHOICE}")


def find_unread_cpus(node: Node, offered: Iterable[PciFunction] = ()) -> str | None:
    """Return the unknown fact about the node's CPUs and the cure, as a clause; else None.

    :param offered: devices whose NUMA node needs a socket.
    """
    if node.cpus_unread is not None:
        return f"it cannot be read which CPUs are present ({node.cpus_unread})"
    bare = [
        numa.id
        for numa in node.numa_nodes
        if not numa.cpus and numa.memory_kib and numa.memory_of is None
    ]
    if node.unplaced_cpus and bare:
        lost = cpuset.format_list(node.unplaced_cpus)
        return (
            f"CPUs {lost} are offline, and the kernel does not report whether they are on NUMA "
            f"node {', '.join(map(str, bare))}: {_ONLINE.format(min(node.unplaced_cpus))}, then "
            "again"
        )
    homes = {function.numa_node for function in offered}
    for numa in node.numa_nodes:
        if numa.id in homes and numa.socket is None and numa.cpus and numa.cpus == numa.offline:
            return (
                f"all CPUs of NUMA node {numa.id} are offline, so the kernel does not report "
                f"its socket: {_ONLINE.format(min(numa.cpus))}, then again"
            )
    return None


def with_written_sockets(node: Node, device_spec: Iterable[str]) -> Node:
    """Return *node* with sockets of earlier entries, if all CPUs of a NUMA node are offline now.

    :param device_spec: values of ``[pci]device_spec``.
    """
    blind = {
        numa.id
        for numa in node.numa_nodes
        if numa.socket is None and numa.cpus and numa.cpus == numa.offline
    }
    sockets = _written_sockets(map(spec_entries.read_spec_entry, device_spec)) if blind else {}
    if not blind & sockets.keys():
        return node
    return attrs.evolve(
        node,
        numa_nodes=tuple(
            attrs.evolve(numa, socket=sockets[numa.id])
            if numa.id in blind & sockets.keys()
            else numa
            for numa in node.numa_nodes
        ),
        functions=tuple(
            attrs.evolve(function, socket=sockets[function.numa_node])
            if function.numa_node in blind & sockets.keys()
            else function
            for function in node.functions
        ),
    )


def _written_sockets(entries: Iterable[Mapping[str, Any]]) -> dict[int | None, int]:
    """Return NUMA node -> its socket in the entries' tags, if all entries agree."""
    said: dict[int | None, set[int]] = {}
    for entry in entries:
        try:
            written = tags.parse_tags(entry)
        except tags.TagError:
            continue
        place = written.location if written else None
        if place and place.numa is not None and place.socket is not None:
            said.setdefault(place.numa, set()).add(place.socket)
    return {numa: min(sockets) for numa, sockets in said.items() if len(sockets) == 1}
