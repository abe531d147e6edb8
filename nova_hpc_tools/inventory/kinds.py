# SPDX-License-Identifier: Apache-2.0
"""Comparison of many nodes: the kinds of nodes, and the odd values within a kind.

Nodes are of one kind if more than half of their devices are the same. Within a kind
each device is compared with those at its place in the other nodes: the third GPU with
the third GPU. The value of most nodes is usual, and other values are odd. If no
value has a majority, all of them are reported.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.topology.model import Node, NumaNode, PciFunction, address_key
from nova_hpc_tools.site import pci_classes

#: The share of a node's memory by which firmware and kernels of equal nodes differ.
_MEMORY: Final = 0.02
_MIB: Final = 1 << 20
_KIB_OF_GIB: Final = 1 << 20


@attrs.frozen
class NodeKind:
    """Nodes with the same numbers of the same products.

    :ivar number: from 1, the largest kind first.
    :ivar nodes: their names, in order.
    :ivar processors: NUMA nodes and CPUs of most of them.
    :ivar devices: name of a product -> its usual number in these nodes.
    """

    number: int
    nodes: tuple[str, ...]
    processors: str
    devices: Mapping[str, int]


@attrs.frozen
class KindValue:
    """The value that some nodes of a kind have at a place."""

    value: str
    nodes: tuple[str, ...]


@attrs.frozen
class KindDifference:
    """A fact with different values in the nodes of a kind.

    :ivar kind: the number of the kind.
    :ivar place: ``node``, ``NUMA node 1``, or a device: ``3D controller 10de:2330 no. 3``.
    :ivar values: the most frequent first.
    """

    kind: int
    place: str
    fact: str
    values: tuple[KindValue, ...]

    @property
    def usual(self) -> KindValue | None:
        """The value that more than half of the nodes have; None if there is no such value."""
        first, *others = self.values
        rest = sum(len(value.nodes) for value in others)
        return first if len(first.nodes) > rest else None

    @property
    def odd(self) -> tuple[KindValue, ...]:
        """The values that are not usual; all values if none is usual."""
        return self.values[1:] if self.usual else self.values


@attrs.frozen
class NodeFleet:
    """The kinds of the compared nodes, and the differences inside each kind."""

    kinds: tuple[NodeKind, ...]
    differences: tuple[KindDifference, ...]


def compare_nodes(nodes: Mapping[str, Node]) -> NodeFleet:
    """Sort nodes into kinds (with the same products) and find their differences within a kind.

    :param nodes: name -> node.
    """
    parts = {name: _group_by_product(nodes[name]) for name in sorted(nodes)}
    kinds = []
    differences: list[KindDifference] = []
    for number, names in enumerate(_group_by_kind(parts), 1):
        own = {name: parts[name] for name in names}
        usual = _usual_devices(own)
        kinds.append(
            NodeKind(
                number,
                tuple(names),
                _most_frequent([_format_processors(nodes[name]) for name in names]),
                {product: len(places) for product, places in usual.items() if places},
            )
        )
        differences += _find_differences(number, {name: nodes[name] for name in names}, own, usual)
    return NodeFleet(tuple(kinds), tuple(differences))


# A product's devices in the order of their addresses.
_Products = Mapping[str, Sequence[PciFunction]]


def _group_by_product(node: Node) -> _Products:
    products: dict[str, list[PciFunction]] = defaultdict(list)
    for function in sorted(node.functions, key=lambda function: address_key(function.address)):
        chipset = not function.path and pci_classes.is_chipset(function.class_code)
        bridge = function.is_bridge or (function.class_code or "").startswith("0600")
        if function.physical_function is None and not bridge and not chipset:
            products[_product_name_of(function)].append(function)
    return products


def _product_name_of(function: PciFunction) -> str:
    ids = f"{function.vendor_id or '????'}:{function.product_id or '????'}"
    return f"{pci_classes.class_name_of(function.class_code)} {ids}"


def _group_by_kind(parts: Mapping[str, _Products]) -> list[list[str]]:
    """Group the names of nodes by kind, the largest kind first.

    Nodes that share more than half of their devices with a larger kind belong to it.
    """
    alike: dict[frozenset[tuple[str, int]], list[str]] = defaultdict(list)
    for name, products in parts.items():
        alike[frozenset((product, len(some)) for product, some in products.items())].append(name)
    kinds: list[tuple[Counter[str], list[str]]] = []
    # Nodes with exactly the same devices form a set. The largest sets come first; a smaller one
    # joins the most similar kind if more than half of the devices are the same.
    for devices, names in sorted(alike.items(), key=lambda entry: (-len(entry[1]), entry[1])):
        count = Counter(dict(devices))
        near = max(kinds, key=lambda kind: _common_share_of(kind[0], count), default=None)
        if near is not None and _common_share_of(near[0], count) > 0.5:
            near[1].extend(names)
        else:
            kinds.append((count, list(names)))
    return sorted((sorted(names) for _, names in kinds), key=lambda names: (-len(names), names))


def _common_share_of(first: Counter[str], second: Counter[str]) -> float:
    """Divide the number of devices in both by that in either; 1.0 without devices."""
    either = (first | second).total()
    return (first & second).total() / either if either else 1.0


def _usual_devices(parts: Mapping[str, _Products]) -> dict[str, tuple[str, ...]]:
    """Return product -> its usual addresses, by the nodes that have the usual number of it."""
    names = {product for products in parts.values() for product in products}
    usual = {}
    for product in sorted(names):
        addresses = [
            tuple(function.address for function in products.get(product, ()))
            for products in parts.values()
        ]
        number = Counter(map(len, addresses)).most_common(1)[0][0]
        of_number = Counter(places for places in addresses if len(places) == number)
        usual[product] = of_number.most_common(1)[0][0]
    return usual


def _find_differences(
    kind: int,
    nodes: Mapping[str, Node],
    parts: Mapping[str, _Products],
    usual: Mapping[str, tuple[str, ...]],
) -> Iterator[KindDifference]:
    seen: dict[tuple[str, str], dict[str, str]] = {}
    for name, node in nodes.items():
        for place, fact, value in (
            *_facts_of_node(node),
            *(
                product_fact
                for product in usual
                for product_fact in _facts_of_product(node, product, parts[name], usual)
            ),
        ):
            seen.setdefault((place, fact), {})[name] = value
    memory = _compare_memory(nodes)
    for (place, fact), values in sorted((seen | memory).items(), key=_difference_order):
        groups: dict[str, list[str]] = defaultdict(list)
        for name, value in values.items():
            groups[value].append(name)
        if len(groups) > 1:
            ordered = sorted(groups.items(), key=lambda entry: (-len(entry[1]), entry[0]))
            yield KindDifference(
                kind, place, fact, tuple(KindValue(value, tuple(some)) for value, some in ordered)
            )


def _difference_order(entry: tuple[tuple[str, str], object]) -> tuple[bool, bool, str, int, str]:
    """Sort key of differences: the node, then its NUMA nodes, then its devices by number."""
    (place, fact), _ = entry
    of, _, number = place.rpartition(" ")
    numa = of == "NUMA node"
    return place != "node", not numa, of, int(number) if number.isdigit() else 0, fact


def _facts_of_node(node: Node) -> Iterator[tuple[str, str, str]]:
    """Yield place, fact and value of the facts that do not belong to a device."""
    cores = [core for numa in node.numa_nodes for core in numa.smt_siblings]
    if cores:
        yield "node", "CPUs of a core", str(max(map(len, cores)))
    yield "node", "NUMA nodes", str(len(node.numa_nodes))
    yield "node", "not readable", "; ".join(node.problems) or "nothing"
    for numa in node.numa_nodes:
        place = f"NUMA node {numa.id}"
        yield place, "CPUs", str(len(numa.cpus))
        yield place, "huge pages", _format_pools(numa)


def _format_pools(numa: NumaNode) -> str:
    pools = (f"{pool.total} of {pool.size_kib} KiB" for pool in numa.hugepages if pool.total)
    return ", ".join(pools) or "none"


def _compare_memory(nodes: Mapping[str, Node]) -> dict[tuple[str, str], dict[str, str]]:
    """Compare the memory of NUMA nodes; an amount close to the median counts as the median.

    :returns: (NUMA node, ``memory``) -> name of the node -> amount in GiB, as text.
    """
    amounts: dict[int, dict[str, int]] = defaultdict(dict)
    for name, node in nodes.items():
        for numa in node.numa_nodes:
            if numa.memory_kib is not None:
                amounts[numa.id][name] = numa.memory_kib
    memory = {}
    for number, of in amounts.items():
        middle = statistics.median_low(of.values())
        memory[f"NUMA node {number}", "memory"] = {
            name: _format_gib(middle if abs(amount - middle) <= _MEMORY * middle else amount)
            for name, amount in of.items()
        }
    return memory


def _format_gib(kib: int) -> str:
    return f"{kib / _KIB_OF_GIB:.1f} GiB"


def _facts_of_product(
    node: Node, product: str, products: _Products, usual: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, str, str]]:
    devices = products.get(product, ())
    places = usual[product]
    if len(devices) == len(places):
        yield "node", f"number of {product}", str(len(devices))
        numbered = list(enumerate(devices, 1))
    else:
        # Only the addresses show which device is missing.
        addresses = {function.address for function in devices}
        missing = [address for address in places if address not in addresses]
        more = [function.address for function in devices if function.address not in places]
        remarks = [f"without {', '.join(missing)}"] if missing and not more else []
        remarks += [f"with {', '.join(more)}"] if more and not missing else []
        yield "node", f"number of {product}", " ".join([str(len(devices)), *remarks])
        numbered = [
            (places.index(function.address) + 1, function)
            for function in devices
            if function.address in places
        ]
    for number, function in numbered:
        for fact, value in _facts_of_device(node, function):
            yield f"{product} no. {number}", fact, value


def _facts_of_device(node: Node, function: PciFunction) -> Iterator[tuple[str, str]]:
    """Yield name and value of the compared facts of a device.

    The current link speed is not among them: an idle device may lower it.
    """
    yield "NUMA node", "unknown" if function.numa_node is None else str(function.numa_node)
    yield "driver", function.driver or "none"
    yield "beside it at its switch", _products_beside(node, function)
    yield "IOMMU group shared with", str(max(0, len(node.group_members(function)) - 1))
    yield "largest memory region", _largest_region_of(function)
    if function.revision is not None:
        yield "revision", function.revision
    if function.subsystem_id is not None:
        yield "board", f"{function.subsystem_vendor_id}:{function.subsystem_id}"
    if function.link is not None and function.link.width is not None:
        yield "link width", f"x{function.link.width}"
        if function.link.max_speed is not None:
            yield "highest link speed", f"{function.link.max_speed:g} GT/s"
    if function.total_vfs:
        yield "virtual functions", f"{len(function.virtual_functions)} of {function.total_vfs}"
    if function.reset_methods is not None:
        yield "ways to reset it", ", ".join(function.reset_methods) or "none"
    for device in function.rdma:
        for port in device.ports:
            words = (port.link_layer, port.state, port.rate)
            yield f"port {port.number}", " ".join(word for word in words if word) or "unknown"
    yield "place", function.unknown or "known"


def _products_beside(node: Node, function: PciFunction) -> str:
    """Describe the products of other devices below the same innermost switch, for people."""
    if not function.switches:
        return "no switch"
    near = Counter(
        _product_name_of(neighbour)
        for neighbour in node.functions
        if neighbour.address != function.address
        and neighbour.switches[-1:] == function.switches[-1:]
        and neighbour.physical_function is None
        and not neighbour.is_bridge
    )
    return ", ".join(f"{number} {product}" for product, number in sorted(near.items())) or "nothing"


def _largest_region_of(function: PciFunction) -> str:
    size = max((bar.size for bar in function.bars if not bar.io and bar.index < 6), default=0)
    return f"{size // _MIB} MiB" if size >= _MIB else f"{size} bytes"


def _format_processors(node: Node) -> str:
    memory = sum(numa.memory_kib or 0 for numa in node.numa_nodes)
    # The memory of a GPU may be a NUMA node, too, without CPUs.
    number = sum(bool(numa.cpus) for numa in node.numa_nodes)
    nodes = f"{number} NUMA node{'s' if number != 1 else ''}"
    return f"{nodes}, {len(node.cpus)} CPUs, {memory // _KIB_OF_GIB} GiB"


def _most_frequent(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0]
