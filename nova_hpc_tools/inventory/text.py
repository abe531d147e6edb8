# SPDX-License-Identifier: Apache-2.0
"""A node as a text tree, for people.

Downstream ports of switches and empty ports are not drawn: the devices below a
switch are drawn right below its upstream port. The JSON document has them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from nova_hpc.topology import peer
from nova_hpc.topology.cpuset import format_list
from nova_hpc.topology.model import BridgeKind, HugePages, Node, NumaNode, PcieLink, PciFunction
from nova_hpc_common.outside.name_lists import cut_after
from nova_hpc_guest.show import format_size
from nova_hpc_tools.site import pci_classes

if TYPE_CHECKING:
    from nova_hpc_tools.inventory.standing import FunctionStanding

_DOT: Final = " · "
_MOST_PROBLEMS: Final = 20
_NARROW: Final = "!"
_SLOW: Final = "~"
_SHARED: Final = "*"
_PEER: Final = "^"
_UNSURE: Final = "?"
_LEGEND: Final = {
    _NARROW: "link with fewer lanes than it has",
    _SLOW: "link slower than it can be (an idle device may save power)",
    _SHARED: "IOMMU group shared with other devices: one guest gets all of it, or no guest",
    _PEER: "peer-to-peer traffic below this switch goes through the root complex (ACS redirect)",
    _UNSURE: "whether peer-to-peer traffic stays below this switch is not known; root can read it",
}
_KINDS: Final = {
    BridgeKind.ROOT_PORT: "Root port",
    BridgeKind.UPSTREAM: "Switch",
    BridgeKind.DOWNSTREAM: "Switch port",
    BridgeKind.PCI: "PCI bridge",
}


@attrs.define
class _NodeBranch:
    """A line of the drawn tree, with the branches below it."""

    line: str
    below: list[_NodeBranch] = attrs.Factory(list)


def draw_node_lines(
    node: Node,
    everything: bool = False,
    plain: bool = False,
    standings: Mapping[str, FunctionStanding] | None = None,
) -> Iterator[str]:
    """Draw *node* line by line.

    :param everything: also draw functions of the chipset, and empty ports.
    :param plain: ASCII characters only.
    :param standings: address -> role, and whether servers are offered it.
    """
    guides = ("|- ", "`- ", "|  ", "   ") if plain else ("├─ ", "└─ ", "│  ", "   ")
    for line in _iterate_node_lines(node, everything, guides, standings or {}):
        if plain:
            line = line.replace(_DOT, ", ").encode("ascii", "replace").decode("ascii")
        yield line


def _iterate_node_lines(
    node: Node,
    everything: bool,
    guides: tuple[str, str, str, str],
    standings: Mapping[str, FunctionStanding],
) -> Iterator[str]:
    marks: set[str] = set()
    reasons: dict[str, int] = {}
    peers = peer.switch_paths_of(node)
    unsure = _find_unsure_switches(node) & {
        switch for switch, path in peers.items() if path is peer.PeerPath.UNKNOWN
    }
    drawing = _Drawing(node, everything, marks, peers, unsure, standings, reasons)
    yield from _draw_branch_lines(drawing.trunk(), guides)
    if marks or reasons or node.problems:
        yield ""
    for mark in sorted(marks):
        yield f"{mark}  {_LEGEND[mark]}"
    for reason, number in reasons.items():
        yield f"({number})  {reason}"
    for problem in cut_after(
        node.problems, _MOST_PROBLEMS, lambda rest: f"and {rest} more; the JSON has them all"
    ):
        yield f"problem: {problem}"


def _find_unsure_switches(node: Node) -> frozenset[str]:
    switches: set[str] = set()
    for pair in peer.find_peer_pairs(node):
        gpu = node.function(pair.gpu)
        if pair.path is peer.PeerPath.UNKNOWN and gpu is not None:
            switches.update(gpu.switches)
    return frozenset(switches)


def _draw_branch_lines(trunk: _NodeBranch, guides: tuple[str, str, str, str]) -> Iterator[str]:
    fork, last, bar, gap = guides
    yield trunk.line
    stack = [(child, "", child is trunk.below[-1]) for child in reversed(trunk.below)]
    while stack:
        branch, indent, is_last = stack.pop()
        yield indent + (last if is_last else fork) + branch.line
        deeper = indent + (gap if is_last else bar)
        stack.extend((child, deeper, child is branch.below[-1]) for child in reversed(branch.below))


@attrs.define
class _Drawing:
    node: Node
    everything: bool
    marks: set[str]
    peers: Mapping[str, peer.PeerPath]
    #: Switches with a GPU and an adapter whose peer-to-peer path is unknown.
    unsure: frozenset[str]
    standings: Mapping[str, FunctionStanding]
    #: Reason not to offer a device -> its number in the drawing.
    reasons: dict[str, int]

    def trunk(self) -> _NodeBranch:
        """Return the root of the tree: the machine, its NUMA nodes, and the PCI roots of each."""
        homes: dict[int | None, list[str]] = {}
        by_root: dict[str, list[PciFunction]] = {}
        for function in self.node.functions:
            by_root.setdefault(function.root or "pci?", []).append(function)
        for root, functions in by_root.items():
            # As in lstopo, the first function of a root decides for all of the root.
            homes.setdefault(functions[0].numa_node, []).append(root)
        trunk = _NodeBranch(self.node.hostname or self.node.source)
        ids = {numa.id for numa in self.node.numa_nodes}
        for numa in self.node.numa_nodes:
            roots = homes.get(numa.id, [])
            below = [self.root(root, by_root[root], numa.id) for root in roots]
            trunk.below.append(_NodeBranch(_format_numa_node(numa), below))
        rest = [root for home, roots in homes.items() if home not in ids for root in roots]
        if rest:
            below = [self.root(root, by_root[root], None) for root in rest]
            trunk.below.append(_NodeBranch("near to no single NUMA node", below))
        return trunk

    def root(self, root: str, functions: list[PciFunction], home: int | None) -> _NodeBranch:
        branch = _NodeBranch(root)
        branches: dict[str, _NodeBranch] = {}
        folded = 0
        used = {bridge for function in functions for bridge in function.path}
        # Bridges come before the functions below them, also if their address is higher.
        for function in sorted(functions, key=lambda item: len(item.path)):
            if not self.everything and self.is_folded(function, function.address in used):
                folded += function.bridge is None and function.physical_function is None
                continue
            line = self.describe(function)
            if function.numa_node != home:
                line += _format_home(function)
            above = next((branches[b] for b in reversed(function.path) if b in branches), branch)
            branches[function.address] = _NodeBranch(line)
            above.below.append(branches[function.address])
        if folded:
            branch.line += f" · {folded} chipset function{'s' if folded > 1 else ''}"
        return branch

    def is_folded(self, function: PciFunction, used: bool) -> bool:
        if function.bridge is not None:
            return function.bridge is BridgeKind.DOWNSTREAM or not used
        if function.physical_function is not None:
            return self.node.function(function.physical_function) is not None
        return not function.path and pci_classes.is_chipset(function.class_code)

    def describe(self, function: PciFunction) -> str:
        kind = _KINDS.get(function.bridge) if function.bridge else None
        ids = f"{function.vendor_id or '????'}:{function.product_id or '????'}"
        parts = [
            f"{function.address} {kind or pci_classes.class_name_of(function.class_code)} {ids}"
        ]
        if function.model:
            parts[0] += f" {function.model}"
        if function.link is not None:
            # A port that has more lanes than the device below it is not degraded.
            port = function.bridge in (BridgeKind.ROOT_PORT, BridgeKind.DOWNSTREAM)
            if text := self.link(function.link, not port):
                parts.append(text)
        if function.bridge is None:
            parts.extend(self.use(function))
            parts.extend(self.stand(function))
        if self.peers.get(function.address) is peer.PeerPath.ROOT:
            parts.append("P2P via root" + self.mark(_PEER, True))
        elif function.address in self.unsure:
            parts.append("P2P" + self.mark(_UNSURE, True))
        if function.unknown:
            parts.append(f"UNKNOWN: {function.unknown}")
        return _DOT.join(parts)

    def use(self, function: PciFunction) -> Iterator[str]:
        """Yield the words about a function's driver, group, virtual functions, kernel devices."""
        if function.driver:
            yield function.driver
        if function.iommu_group is not None:
            yield f"group {function.iommu_group}" + self.mark(_SHARED, self.shared(function))
        if function.virtual_functions:
            yield f"VF x{len(function.virtual_functions)}" + self.virtual(function)
        elif function.total_vfs:
            yield f"VF x0 of {function.total_vfs}"
        names = [name.partition(" ")[2] for name in function.os_devices]
        names += [f"{kind.name}" for kind in function.rdma if kind.name not in names]
        if names:
            yield " ".join(names)

    def stand(self, function: PciFunction) -> Iterator[str]:
        """Yield words about a function's role and whether it or virtual functions are offered."""
        counts: dict[tuple[str, str, str], int] = {}
        for address in (function.address, *function.virtual_functions):
            standing = self.standings.get(address)
            if standing is not None:
                key = (standing.role, standing.offer.value, standing.reason)
                counts[key] = counts.get(key, 0) + 1
        for (role, offer, reason), count in counts.items():
            words = f"{role or 'no role'} {offer}" + (f" x{count}" if count > 1 else "")
            number = self.reasons.setdefault(reason, len(self.reasons) + 1) if reason else 0
            yield words + (f" ({number})" if number else "")

    def virtual(self, function: PciFunction) -> str:
        """Return the drivers of the virtual functions, and how many are in an unknown state."""
        functions = [self.node.function(address) for address in function.virtual_functions]
        drivers = sorted({item.driver for item in functions if item and item.driver})
        shared = any(self.shared(item) for item in functions if item)
        unknown = sum(item is None or item.unknown is not None for item in functions)
        text = f" {'/'.join(drivers)}" if drivers else ""
        text += self.mark(_SHARED, shared)
        return text + (f" ({unknown} unknown)" if unknown else "")

    def shared(self, function: PciFunction) -> bool:
        """Whether the IOMMU group has more than one member that is not a bridge."""
        members = (self.node.function(name) for name in self.node.group_members(function))
        return sum(item is None or item.bridge is None for item in members) > 1

    def link(self, link: PcieLink, judged: bool) -> str:
        """Return the words about a link: current speed and width, and the highest ones if higher.

        :param judged: whether to report fewer lanes or a lower speed than possible.
        """
        if link.width is None and link.speed is None:
            return f"{link.bandwidth:.3g} GB/s" if link.bandwidth else ""
        text = _format_lanes(link.speed, link.width)
        slow = None not in (link.speed, link.max_speed) and link.speed != link.max_speed
        if not judged:
            return text
        if link.narrow:
            return (
                f"{text} of "
                f"{_format_lanes(link.max_speed, link.max_width)}{self.mark(_NARROW, True)}"
            )
        if slow:
            return (
                f"{text} of {_format_lanes(link.max_speed, link.max_width)}{self.mark(_SLOW, True)}"
            )
        return text

    def mark(self, mark: str, wanted: bool) -> str:
        if not wanted:
            return ""
        self.marks.add(mark)
        return mark


def _format_home(function: PciFunction) -> str:
    if not function.local_numa_nodes:
        return " · NUMA node unknown"
    return " · near to NUMA node " + ",".join(map(str, sorted(function.local_numa_nodes)))


def _format_lanes(speed: float | None, width: int | None) -> str:
    return f"{speed or '?':g} GT/s x{width or '?'}" if speed else f"x{width or '?'}"


def _format_numa_node(numa: NumaNode) -> str:
    parts = [f"NUMA node {numa.id}"]
    if numa.socket is not None:
        parts.append(f"socket {numa.socket}")
    if numa.cpus:
        cores = len(numa.smt_siblings)
        more = f"{cores} core{'s' if cores != 1 else ''}"
        if numa.offline:
            more = f"{format_list(numa.offline)} offline"
        parts.append(f"CPUs {format_list(numa.cpus)} ({more})")
    elif numa.memory_of is None:
        parts.append("no CPUs")
    if numa.memory_of is not None:
        parts.append(f"memory of {numa.memory_of}")
    if numa.memory_kib is not None:
        parts.append(format_size(numa.memory_kib))
    parts.extend(_format_page_pools(numa.hugepages))
    return _DOT.join(parts)


def _format_page_pools(pools: Iterable[HugePages]) -> Iterator[str]:
    for pool in pools:
        if pool.total:
            free = "" if pool.free is None else f", {pool.free} free"
            yield f"{pool.total} pages of {format_size(pool.size_kib)}{free}"
