# SPDX-License-Identifier: Apache-2.0
"""Read a node from ``/sys`` and ``/proc``, of this machine or of a capture.

No function raises: an unreadable or senseless file makes one function ``unknown`` with the
reason, or becomes a problem of the node.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.topology import classes, device, numa, xgmi
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, FileTree, show_path
from nova_hpc.topology.function_places import Raw, make_groups, place_functions
from nova_hpc.topology.model import ADDRESS, Node, PciFunction, address_key, normalise_address

_GROUPS: Final = "/sys/kernel/iommu_groups"


def read_sysfs_node(root: Path, busy: Collection[str] = ()) -> Node:
    """Read the machine whose ``sys`` and ``proc`` are below *root*.

    :param root: ``/`` for this machine, or the top directory of a capture.
    :param busy: addresses of devices in a reset: the kernel blocks readers of
        their configuration space until its end.
    :returns: always a node; if nothing is readable below *root*, it is
        empty except for its problems.
    """
    return read_tree(FileTree(root), show_path(root), busy)


def read_tree(tree: FileTree, source: str, busy: Collection[str] = ()) -> Node:
    """Read a node from *tree*, like :func:`read_sysfs_node`; messages name it *source*.

    NUMA nodes and IOMMU groups are read first. The functions then help to place offline CPUs, and
    the completed nodes help to place the functions.

    :param busy: addresses of functions in a reset, whose configuration space is not read.
    """
    numa_nodes, hugepages, problems = numa.read_sysfs_numa(tree)
    groups = _read_iommu_groups(tree, problems)
    raws = _read_functions(tree, problems, busy)
    numa_nodes = numa.place_offline_cpus(
        tree, numa_nodes, [(raw.numa_node, raw.local_cpus) for raw in raws]
    )
    functions, inactive = place_functions(raws, numa_nodes, groups)
    functions = _with_hives(tree, functions, problems)
    unplaced, unread = numa.find_unplaced_cpus(tree, numa_nodes)
    by_group: dict[int, set[str]] = {group: set(members) for group, members in groups.items()}
    for function in (*functions, *inactive):
        if function.iommu_group is not None:
            by_group.setdefault(function.iommu_group, set()).add(function.address)
    return Node(
        source=source,
        hostname=_read_hostname(tree),
        numa_nodes=numa_nodes,
        functions=tuple(_with_virtual_functions(functions)),
        inactive=tuple(inactive),
        iommu_groups=make_groups({key: frozenset(value) for key, value in by_group.items()}),
        hugepages=hugepages,
        unplaced_cpus=unplaced,
        cpus_unread=unread,
        problems=tuple(problems),
    )


def _read_hostname(tree: FileTree) -> str | None:
    try:
        text = tree.text("/proc/sys/kernel/hostname")
    except FileError:
        return None
    return text if text and re.fullmatch(r"[\w.-]{1,253}", text, re.ASCII) else None


def _read_functions(tree: FileTree, problems: list[str], busy: Collection[str]) -> list[Raw]:
    """Read all PCI functions that the kernel lists, in the order of their addresses.

    :param problems: gets a text for each name that is left out.
    """
    try:
        names = tree.names(DEVICES)
    except FileError as error:
        problems.append(str(error))
        return []
    raws: dict[str, Raw] = {}
    for name in names:
        if ADDRESS.fullmatch(name) is None:
            problems.append(f"{DEVICES}/{name}: not a PCI address, left out")
            continue
        raw = device.read_pci_function(tree, name, busy=name in busy)
        if raw.address in raws:
            problems.append(f"{DEVICES}/{name}: a second {raw.address}, left out")
            continue
        raws[raw.address] = raw
    # The kernel lists reset methods since 5.15, and omits the file if a function
    # has none. So a missing file means "none" only on such kernels.
    if any(raw.function.reset_methods is not None for raw in raws.values()):
        for raw in raws.values():
            if raw.function.reset_methods is None:
                raw.function = attrs.evolve(raw.function, reset_methods=())
    return [raws[address] for address in sorted(raws, key=address_key)]


def _read_iommu_groups(tree: FileTree, problems: list[str]) -> dict[int, frozenset[str]]:
    """Return number of each IOMMU group -> its members; names of PCI functions are normalised."""
    groups: dict[int, frozenset[str]] = {}
    try:
        for name in tree.names(_GROUPS):
            if re.fullmatch(r"\d{1,9}", name, re.ASCII) is None:
                continue
            try:
                members = tree.names(f"{_GROUPS}/{name}/devices")
            except FileError as error:
                problems.append(str(error))
                continue
            groups[int(name)] = frozenset(
                normalise_address(member) if ADDRESS.fullmatch(member) else member
                for member in members
            )
    except FileError as error:
        problems.append(str(error))
    return groups


def _with_hives(
    tree: FileTree, functions: list[PciFunction], problems: list[str]
) -> list[PciFunction]:
    """Return the functions; accelerators with xGMI links get the lowest address of their hive."""
    gpus = [function.address for function in functions if classes.is_gpu(function.class_code)]
    hives, more = xgmi.read_xgmi_hives(tree, gpus) if gpus else ({}, [])
    problems.extend(more)
    return [
        attrs.evolve(function, hive=hives[function.address])
        if function.address in hives
        else function
        for function in functions
    ]


def _with_virtual_functions(functions: list[PciFunction]) -> list[PciFunction]:
    """Give every PF the VFs that name it, in addition to those that it names."""
    listed = {function.address for function in functions}
    virtual: dict[str, set[str]] = {}
    for function in functions:
        if function.physical_function is not None:
            virtual.setdefault(function.physical_function, set()).add(function.address)
    completed = []
    for function in functions:
        named = virtual.get(function.address, set()).union(function.virtual_functions) & listed
        ordered = tuple(sorted(named, key=address_key))
        if ordered != function.virtual_functions:
            function = attrs.evolve(function, virtual_functions=ordered)
        completed.append(function)
    return completed
