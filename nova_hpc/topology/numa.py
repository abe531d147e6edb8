# SPDX-License-Identifier: Apache-2.0
"""NUMA nodes, CPUs, memory and hugepages, from sysfs and procfs.

Rules; the second and the last two are also hwloc's:

* every CPU that is present counts, also an offline one: Nova's CPU power management
  switches dedicated CPUs off while no server uses them, and Nova still offers them;
* only NUMA nodes that are online count;
* a node whose CPUs overlap those of an earlier one is a firmware error and is
  left out;
* a kernel without NUMA support has no ``node`` directory: then the machine is
  one node 0 with all CPUs and all memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import attrs

from nova_hpc.topology import cpuset
from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import AddressError, HugePages, NumaNode, normalise_address

_CPUS: Final = "/sys/devices/system/cpu"
_NODES: Final = "/sys/devices/system/node"
_GPUS: Final = "/proc/driver/nvidia/gpus"

_MEMINFO: Final = re.compile(r"^(?:Node\s+\d+\s+)?(\w+):\s+(\d{1,15})\b", re.ASCII | re.MULTILINE)
_POOL: Final = re.compile(r"hugepages-(\d{1,12})kB", re.ASCII)
_DISTANCE: Final = re.compile(r"\d{1,5}", re.ASCII)
_NUMBER: Final = re.compile(r"-?\d{1,18}", re.ASCII)

_T = TypeVar("_T")


@attrs.define
class _NumaReader:
    tree: FileTree
    problems: list[str]

    def attempt(self, read: Callable[[], _T], default: _T) -> _T:
        """Return the result of *read*; if it fails, keep the error as a problem and return
        *default*.
        """
        try:
            return read()
        except (FileError, ValueError) as error:
            self.problems.append(str(error))
            return default

    def text(self, path: str) -> str | None:
        return self.attempt(lambda: self.tree.text(path), None)

    def names(self, path: str) -> list[str]:
        return self.attempt(lambda: self.tree.names(path), [])

    def number(self, path: str) -> int | None:
        text = self.text(path)
        if text is None:
            return None
        if _NUMBER.fullmatch(text) is None:
            self.problems.append(f"{path}: {text[:40]!r} is not a number")
            return None
        return int(text)

    def cpus(self, listed: str, masked: str = "") -> frozenset[int] | None:
        """Read a set of CPUs or nodes from a list file else a mask file; None without both."""
        for path, parse in ((listed, cpuset.parse_list), (masked, cpuset.parse_mask)):
            text = self.text(path) if path else None
            if text is not None:
                try:
                    return parse(text)
                except ValueError as error:
                    self.problems.append(f"{path}: {error}")
        return None


def read_sysfs_numa(
    tree: FileTree,
) -> tuple[tuple[NumaNode, ...], tuple[HugePages, ...], list[str]]:
    """Read NUMA nodes by id, the hugepages of the whole machine, and problems as texts.

    A machine without NUMA gets one node, with the memory and the hugepages of the machine. Siblings
    are restricted to the node and to online CPUs, which Nova can use.
    """
    reader = _NumaReader(tree, [])
    online = _read_online_cpus(reader)
    present = _read_present_cpus(reader, online)
    siblings, packages = _read_cores(reader, online)
    machine = _read_hugepages(reader, "/sys/kernel/mm/hugepages")
    memory = _read_total_memory(reader, "/proc/meminfo")
    node_cpus = _read_node_cpus(reader, present)
    if node_cpus is None:
        node_cpus = {0: present} if present else {}
        single = True
    else:
        single = False
        lost = online - frozenset().union(*node_cpus.values())
        if lost:
            # An offline node keeps its online CPUs, or a node may be missing.
            reader.problems.append(
                f"CPUs {cpuset.format_list(lost)} are online, but on no NUMA node that is; "
                "servers cannot use them"
            )
    owners = _gpu_memory(reader)
    near = {} if single else _find_nearest_nodes(reader, node_cpus)
    nodes = []
    for number, cpus in sorted(node_cpus.items()):
        folder = f"{_NODES}/node{number}"
        sockets = {packages[cpu] for cpu in cpus if cpu in packages}
        nodes.append(
            NumaNode(
                id=number,
                socket=sockets.pop() if len(sockets) == 1 else None,
                cpus=cpus,
                offline=cpus - online,
                smt_siblings=tuple(
                    sorted(
                        {siblings.get(cpu, frozenset({cpu})) & cpus for cpu in cpus & online},
                        key=min,
                    )
                ),
                memory_kib=memory if single else _read_total_memory(reader, f"{folder}/meminfo"),
                hugepages=machine if single else _read_hugepages(reader, f"{folder}/hugepages"),
                memory_of=owners.get(number),
                near=near.get(number, frozenset()),
            )
        )
    return tuple(nodes), machine, reader.problems


def read_thread_control(tree: FileTree) -> bool:
    """Whether the kernel keeps the second threads of cores offline (``nosmt``)."""
    try:
        return tree.text(f"{_CPUS}/smt/control") in ("off", "forceoff")
    except FileError:
        return False


def find_unplaced_cpus(
    tree: FileTree, nodes: Iterable[NumaNode]
) -> tuple[frozenset[int], str | None]:
    """Find CPUs that are offline and on none of *nodes*, and why the set may be incomplete.

    :returns: the CPUs, and the reason; the reason is None if the set is complete.
    """
    reader = _NumaReader(tree, [])
    present = reader.cpus(f"{_CPUS}/present")
    if present is None and reader.problems:
        return frozenset(), reader.problems[0]
    return _find_lost_cpus(reader, nodes), None


def place_offline_cpus(
    tree: FileTree,
    nodes: tuple[NumaNode, ...],
    near: Iterable[tuple[int | None, frozenset[int] | None]],
) -> tuple[NumaNode, ...]:
    """Return *nodes* with the offline CPUs that only devices can place (a capture without links).

    :param near: for each device its ``numa_node`` and its local CPUs.
    """
    lost, _ = find_unplaced_cpus(tree, nodes)
    homes: dict[int, set[int]] = {}
    for number, cpus in near if lost else ():
        if number is not None and number >= 0:
            for cpu in (cpus or frozenset()) & lost:
                homes.setdefault(cpu, set()).add(number)
    if not homes:
        return nodes
    return tuple(
        attrs.evolve(node, cpus=node.cpus | more, offline=node.offline | more)
        for node in nodes
        for more in (frozenset(cpu for cpu, home in homes.items() if home == {node.id}),)
    )


def _find_lost_cpus(reader: _NumaReader, nodes: Iterable[NumaNode]) -> frozenset[int]:
    """Find the present CPUs that are offline and that none of *nodes* has, by number."""
    online = _read_online_cpus(reader)
    placed = frozenset[int]().union(*(node.cpus for node in nodes))
    return _read_present_cpus(reader, online) - online - placed


def _read_online_cpus(reader: _NumaReader) -> frozenset[int]:
    """Read the numbers of online CPUs, by the best of the sources that a system has."""
    listed = _numbers_in_names(reader.names(_CPUS), "cpu")
    online = reader.cpus(f"{_CPUS}/online")
    if online is not None:
        # A capture may hold fewer CPUs than the machine has. hwloc then uses the CPUs
        # that it finds.
        return online & listed if listed else online
    if listed:
        return frozenset(
            cpu for cpu in listed if reader.text(f"{_CPUS}/cpu{cpu}/online") in (None, "1")
        )
    text = reader.text("/proc/cpuinfo") or ""
    numbers = re.findall(r"^processor\s*:\s*(\d{1,5})\s*$", text, re.ASCII | re.MULTILINE)
    return frozenset(int(cpu) for cpu in numbers)


def _read_present_cpus(reader: _NumaReader, online: frozenset[int]) -> frozenset[int]:
    """Read the numbers of present CPUs, including the offline ones."""
    listed = _numbers_in_names(reader.names(_CPUS), "cpu")
    present = reader.cpus(f"{_CPUS}/present")
    if present is None or (listed and not present & listed):
        return listed | online
    # A capture may hold fewer CPUs than the machine has.
    return (present & listed if listed else present) | online


def _numbers_in_names(names: Iterable[str], word: str) -> frozenset[int]:
    matches = (re.fullmatch(rf"{word}(\d{{1,5}})", name, re.ASCII) for name in names)
    return frozenset(int(match[1]) for match in matches if match)


def _read_cores(
    reader: _NumaReader, online: frozenset[int]
) -> tuple[dict[int, frozenset[int]], dict[int, int]]:
    """Read the SMT siblings of each online CPU, and its physical package, where known.

    :returns: CPU -> its siblings and itself; CPU -> package.
    """
    siblings: dict[int, frozenset[int]] = {}
    packages: dict[int, int] = {}
    for cpu in sorted(online):
        folder = f"{_CPUS}/cpu{cpu}/topology"
        if cpu not in siblings:
            core = reader.cpus(f"{folder}/core_cpus_list", f"{folder}/core_cpus")
            if core is None:  # before Linux 5.3
                core = reader.cpus(f"{folder}/thread_siblings_list", f"{folder}/thread_siblings")
            # A core must contain its own CPU. If it does not, the CPU is a core by itself.
            core = core & online if core and cpu in core else frozenset({cpu})
            for sibling in core - siblings.keys():
                siblings[sibling] = core
        package = reader.number(f"{folder}/physical_package_id")
        if package is not None and package >= 0:
            packages[cpu] = package
    return siblings, packages


def _read_node_cpus(
    reader: _NumaReader, present: frozenset[int]
) -> dict[int, frozenset[int]] | None:
    """Read the CPUs of each online NUMA node; None if the kernel has no NUMA nodes."""
    names = reader.names(_NODES)
    listed = _numbers_in_names(names, "node")
    if not listed:
        return None
    wanted = reader.cpus(f"{_NODES}/online")
    node_cpus: dict[int, frozenset[int]] = {}
    taken: dict[int, int] = {}
    for number in sorted(listed if wanted is None else listed & wanted):
        folder = f"{_NODES}/node{number}"
        cpus = reader.cpus(f"{folder}/cpulist", f"{folder}/cpumap")
        if cpus is None:
            reader.problems.append(f"{folder}: its CPUs are not known, so it is left out")
            continue
        clash = sorted({taken[cpu] for cpu in cpus if cpu in taken})
        if clash:
            reader.problems.append(f"{folder}: shares CPUs with node {clash[0]}, so it is left out")
            continue
        taken.update(dict.fromkeys(cpus, number))
        node_cpus[number] = cpus & present if present else cpus
    for cpu in present - taken.keys():
        # The lists name online CPUs only; this link is made when a CPU is registered and
        # stays while it is offline (drivers/base/cpu.c, register_cpu).
        homes = _numbers_in_names(reader.names(f"{_CPUS}/cpu{cpu}"), "node") or listed
        if len(homes) == 1 and homes <= node_cpus.keys():
            node_cpus[min(homes)] |= {cpu}
    return node_cpus or None


def _find_nearest_nodes(
    reader: _NumaReader, node_cpus: Mapping[int, frozenset[int]]
) -> dict[int, frozenset[int]]:
    """Return node without CPUs -> the nearest nodes with some, by the firmware's table (ACPI SLIT).

    Such a node is the memory of a GPU, or of a CXL device. For example, if node 2 has no CPUs and
    its distances are ``20 40 10``, node 0 is the nearest: its own distance does not count.
    """
    without = sorted(number for number, cpus in node_cpus.items() if not cpus)
    if not without or len(without) == len(node_cpus):
        return {}
    # A line has a column for each online node, also for nodes that are left out here.
    columns = sorted(reader.cpus(f"{_NODES}/online") or node_cpus)
    nearest = {}
    for number in without:
        text = reader.text(f"{_NODES}/node{number}/distance")
        words = (text or "").split()
        if text is None:
            continue
        if len(words) != len(columns) or not all(_DISTANCE.fullmatch(word) for word in words):
            reader.problems.append(f"{_NODES}/node{number}/distance: {text[:60]!r} is no table")
            continue
        far = {
            column: int(word)
            for column, word in zip(columns, words, strict=True)
            if node_cpus.get(column)
        }
        least = min(far.values(), default=None)
        nearest[number] = frozenset(column for column, distance in far.items() if distance == least)
    return nearest


def _read_total_memory(reader: _NumaReader, path: str) -> int | None:
    """Read ``MemTotal`` of a meminfo file, in KiB; None if it is missing."""
    for key, value in _MEMINFO.findall(reader.text(path) or ""):
        if key == "MemTotal":
            return int(value)
    return None


def _read_hugepages(reader: _NumaReader, folder: str) -> tuple[HugePages, ...]:
    pools = []
    for name in reader.names(folder):
        match = _POOL.fullmatch(name)
        total = match and reader.number(f"{folder}/{name}/nr_hugepages")
        if match is None or total is None or total < 0:
            continue
        free = reader.number(f"{folder}/{name}/free_hugepages")
        if free is not None and not 0 <= free <= total:
            reader.problems.append(f"{folder}/{name}: {free} of {total} pages free is impossible")
            free = None
        pools.append(HugePages(size_kib=int(match[1]), total=total, free=free))
    if not pools and folder.startswith("/sys/kernel"):
        pools = _hugepages_of_meminfo(reader)
    return tuple(sorted(pools, key=lambda pool: pool.size_kib))


def _hugepages_of_meminfo(reader: _NumaReader) -> list[HugePages]:
    """Read the hugepages of the default size, the only one in kernels before 2.6.27; [] if none."""
    text = reader.text("/proc/meminfo") or ""
    values = {key: int(value) for key, value in _MEMINFO.findall(text)}
    size, total = values.get("Hugepagesize"), values.get("HugePages_Total")
    if not size or total is None:
        return []
    return [HugePages(size_kib=size, total=total, free=values.get("HugePages_Free"))]


def _gpu_memory(reader: _NumaReader) -> dict[int, str]:
    """Return NUMA node -> address of the GPU whose memory it is, as NVIDIA's driver reports."""
    owners: dict[int, str] = {}
    for name in reader.names(_GPUS):
        text = reader.text(f"{_GPUS}/{name}/numa_status") or ""
        match = re.search(r"^Node:\s*(\d{1,5})\s*$", text, re.ASCII | re.MULTILINE)
        if match is not None:
            try:
                owners[int(match[1])] = normalise_address(name)
            except AddressError as error:
                reader.problems.append(f"{_GPUS}: {error}")
    return owners
