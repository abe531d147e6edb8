# SPDX-License-Identifier: Apache-2.0
"""Many nodes side by side: which are of one kind, and what is odd about one of them.

Nodes are of one kind when more than half of their devices are the same. Within a kind
each device is compared with those at its place in the other nodes: the third GPU with
the third GPU. What most nodes have is usual, and what another one has is odd; where no
value has a majority, all of them are told.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.topology import classes
from nova_hpc.topology.model import Function, Node, NumaNode, address_key

#: The share of a node's memory by which firmware and kernels of equal nodes differ.
_MEMORY: Final = 0.02
_MIB: Final = 1 << 20
_KIB_OF_GIB: Final = 1 << 20


@attrs.frozen
class Kind:
    """Nodes with the same devices.

    :ivar number: from 1, the largest kind first.
    :ivar nodes: their names, in order.
    :ivar processors: NUMA nodes and CPUs of most of them.
    :ivar devices: name of a product -> how many of it most of them have.
    """

    number: int
    nodes: tuple[str, ...]
    processors: str
    devices: Mapping[str, int]


@attrs.frozen
class Value:
    """What some nodes of a kind have at a place."""

    value: str
    nodes: tuple[str, ...]


@attrs.frozen
class Difference:
    """A fact of which not all nodes of a kind have the same value.

    :ivar kind: the number of the kind.
    :ivar place: ``node``, ``NUMA node 1``, or a device: ``3D controller 10de:2330 no. 3``.
    :ivar values: the most frequent first.
    """

    kind: int
    place: str
    fact: str
    values: tuple[Value, ...]

    @property
    def usual(self) -> Value | None:
        """What more than half of the nodes have; None: there is no such value."""
        first, *others = self.values
        rest = sum(len(each.nodes) for each in others)
        return first if len(first.nodes) > rest else None

    @property
    def odd(self) -> tuple[Value, ...]:
        """What is not usual; every value where none is."""
        return self.values[1:] if self.usual else self.values


@attrs.frozen
class Fleet:
    """What nodes have in common, and in what they differ."""

    kinds: tuple[Kind, ...]
    differences: tuple[Difference, ...]


def compare(nodes: Mapping[str, Node]) -> Fleet:
    """Sort nodes into kinds and find what is odd.

    :param nodes: name -> node.
    """
    parts = {name: _products(nodes[name]) for name in sorted(nodes)}
    kinds = []
    differences: list[Difference] = []
    for number, names in enumerate(_kinds(parts), 1):
        own = {name: parts[name] for name in names}
        usual = _usual_devices(own)
        kinds.append(
            Kind(
                number,
                tuple(names),
                _most([_processors(nodes[name]) for name in names]),
                {product: len(places) for product, places in usual.items() if places},
            )
        )
        differences += _differences(number, {name: nodes[name] for name in names}, own, usual)
    return Fleet(tuple(kinds), tuple(differences))


# A product's devices in the order of their addresses.
_Products = Mapping[str, Sequence[Function]]


def _products(node: Node) -> _Products:
    found: dict[str, list[Function]] = defaultdict(list)
    for one in sorted(node.functions, key=lambda each: address_key(each.address)):
        chipset = not one.path and classes.is_chipset(one.class_code)
        bridge = one.is_bridge or (one.class_code or "").startswith("0600")
        if one.physical_function is None and not bridge and not chipset:
            found[_product(one)].append(one)
    return found


def _product(one: Function) -> str:
    ids = f"{one.vendor_id or '????'}:{one.product_id or '????'}"
    return f"{classes.name_of(one.class_code)} {ids}"


def _kinds(parts: Mapping[str, _Products]) -> list[list[str]]:
    """The names of each kind, the largest kind first."""
    alike: dict[frozenset[tuple[str, int]], list[str]] = defaultdict(list)
    for name, products in parts.items():
        alike[frozenset((each, len(some)) for each, some in products.items())].append(name)
    kinds: list[tuple[Counter[str], list[str]]] = []
    # Nodes with just the same devices are one kind; fewer join more that are nearly the same.
    for devices, names in sorted(alike.items(), key=lambda each: (-len(each[1]), each[1])):
        count = Counter(dict(devices))
        near = max(kinds, key=lambda kind: _common(kind[0], count), default=None)
        if near is not None and _common(near[0], count) > 0.5:
            near[1].extend(names)
        else:
            kinds.append((count, list(names)))
    return sorted((sorted(names) for _, names in kinds), key=lambda names: (-len(names), names))


def _common(one: Counter[str], other: Counter[str]) -> float:
    """The share of devices that both have, of those that either has."""
    either = (one | other).total()
    return (one & other).total() / either if either else 1.0


def _usual_devices(parts: Mapping[str, _Products]) -> dict[str, tuple[str, ...]]:
    """The addresses of each product in most of the nodes that have its usual number."""
    names = {product for products in parts.values() for product in products}
    found = {}
    for product in sorted(names):
        addresses = [
            tuple(one.address for one in products.get(product, ())) for products in parts.values()
        ]
        number = Counter(map(len, addresses)).most_common(1)[0][0]
        of_number = Counter(each for each in addresses if len(each) == number)
        found[product] = of_number.most_common(1)[0][0]
    return found


def _differences(
    kind: int,
    nodes: Mapping[str, Node],
    parts: Mapping[str, _Products],
    usual: Mapping[str, tuple[str, ...]],
) -> Iterator[Difference]:
    seen: dict[tuple[str, str], dict[str, str]] = {}
    for name, node in nodes.items():
        for place, fact, value in (
            *_of_node(node),
            *(
                found
                for product in usual
                for found in _of_product(node, product, parts[name], usual)
            ),
        ):
            seen.setdefault((place, fact), {})[name] = value
    memory = _memory(nodes)
    for (place, fact), values in sorted((seen | memory).items(), key=_order):
        groups: dict[str, list[str]] = defaultdict(list)
        for name, value in values.items():
            groups[value].append(name)
        if len(groups) > 1:
            ordered = sorted(groups.items(), key=lambda each: (-len(each[1]), each[0]))
            yield Difference(
                kind, place, fact, tuple(Value(value, tuple(some)) for value, some in ordered)
            )


def _order(each: tuple[tuple[str, str], object]) -> tuple[bool, bool, str, int, str]:
    """The node first, then its NUMA nodes, then its devices by number."""
    (place, fact), _ = each
    of, _, number = place.rpartition(" ")
    numa = of == "NUMA node"
    return place != "node", not numa, of, int(number) if number.isdigit() else 0, fact


def _of_node(node: Node) -> Iterator[tuple[str, str, str]]:
    """Place, fact and value of what does not belong to a device."""
    cores = [core for numa in node.numa_nodes for core in numa.smt_siblings]
    if cores:
        yield "node", "CPUs of a core", str(max(map(len, cores)))
    yield "node", "NUMA nodes", str(len(node.numa_nodes))
    yield "node", "not readable", "; ".join(node.problems) or "nothing"
    for numa in node.numa_nodes:
        place = f"NUMA node {numa.id}"
        yield place, "CPUs", str(len(numa.cpus))
        yield place, "huge pages", _pages(numa)


def _pages(numa: NumaNode) -> str:
    pools = (f"{pool.total} of {pool.size_kib} KiB" for pool in numa.hugepages if pool.total)
    return ", ".join(pools) or "none"


def _memory(nodes: Mapping[str, Node]) -> dict[tuple[str, str], dict[str, str]]:
    """Memory of NUMA nodes in GiB; what is near the median is called the same."""
    amounts: dict[int, dict[str, int]] = defaultdict(dict)
    for name, node in nodes.items():
        for numa in node.numa_nodes:
            if numa.memory_kib is not None:
                amounts[numa.id][name] = numa.memory_kib
    found = {}
    for number, of in amounts.items():
        middle = statistics.median_low(of.values())
        found[f"NUMA node {number}", "memory"] = {
            name: _gib(middle if abs(amount - middle) <= _MEMORY * middle else amount)
            for name, amount in of.items()
        }
    return found


def _gib(kib: int) -> str:
    return f"{kib / _KIB_OF_GIB:.1f} GiB"


def _of_product(
    node: Node, product: str, products: _Products, usual: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, str, str]]:
    here = products.get(product, ())
    places = usual[product]
    if len(here) == len(places):
        yield "node", f"number of {product}", str(len(here))
        numbered = list(enumerate(here, 1))
    else:
        # Which one is missing only its address can say.
        addresses = {one.address for one in here}
        missing = [each for each in places if each not in addresses]
        more = [one.address for one in here if one.address not in places]
        said = [f"without {', '.join(missing)}"] if missing and not more else []
        said += [f"with {', '.join(more)}"] if more and not missing else []
        yield "node", f"number of {product}", " ".join([str(len(here)), *said])
        numbered = [(places.index(one.address) + 1, one) for one in here if one.address in places]
    for number, one in numbered:
        for fact, value in _facts(node, one):
            yield f"{product} no. {number}", fact, value


def _facts(node: Node, one: Function) -> Iterator[tuple[str, str]]:
    """What is compared of a device. A speed is not: an idle device may lower it."""
    yield "NUMA node", "unknown" if one.numa_node is None else str(one.numa_node)
    yield "driver", one.driver or "none"
    yield "beside it at its switch", _beside(node, one)
    yield "IOMMU group shared with", str(max(0, len(node.group_members(one)) - 1))
    yield "largest memory region", _largest(one)
    if one.revision is not None:
        yield "revision", one.revision
    if one.subsystem_id is not None:
        yield "board", f"{one.subsystem_vendor_id}:{one.subsystem_id}"
    if one.link is not None and one.link.width is not None:
        yield "link width", f"x{one.link.width}"
        if one.link.max_speed is not None:
            yield "highest link speed", f"{one.link.max_speed:g} GT/s"
    if one.total_vfs:
        yield "virtual functions", f"{len(one.virtual_functions)} of {one.total_vfs}"
    if one.reset_methods is not None:
        yield "ways to reset it", ", ".join(one.reset_methods) or "none"
    for device in one.rdma:
        for port in device.ports:
            words = (port.link_layer, port.state, port.rate)
            yield f"port {port.number}", " ".join(each for each in words if each) or "unknown"
    yield "place", one.unknown or "known"


def _beside(node: Node, one: Function) -> str:
    """Products below the same innermost switch."""
    if not one.switches:
        return "no switch"
    near = Counter(
        _product(other)
        for other in node.functions
        if other.address != one.address
        and other.switches[-1:] == one.switches[-1:]
        and other.physical_function is None
        and not other.is_bridge
    )
    return ", ".join(f"{number} {product}" for product, number in sorted(near.items())) or "nothing"


def _largest(one: Function) -> str:
    size = max((bar.size for bar in one.bars if not bar.io and bar.index < 6), default=0)
    return f"{size // _MIB} MiB" if size >= _MIB else f"{size} bytes"


def _processors(node: Node) -> str:
    memory = sum(numa.memory_kib or 0 for numa in node.numa_nodes)
    # A GPU's own memory may be NUMA nodes, too.
    number = sum(bool(numa.cpus) for numa in node.numa_nodes)
    nodes = f"{number} NUMA node{'s' if number != 1 else ''}"
    return f"{nodes}, {len(node.cpus)} CPUs, {memory // _KIB_OF_GIB} GiB"


def _most(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0]
