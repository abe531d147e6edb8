# SPDX-License-Identifier: Apache-2.0
"""Every small host and every flavor for it; what Nova's own rules allow, by trying all.

Nothing here uses the placement engine: the reference tries every choice of devices on
every choice of NUMA nodes, and asks Nova's own function whether a guest's cell fits on a
node.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import attrs
from nova import objects
from nova.virt import hardware

from nova_hpc_common.level import Level, Location, common_level
from tests.functional.fixtures import Shape, Switch

#: What of a NUMA node is free.
FREE, BUSY, SPLIT, NO_PAGES = "free", "no CPUs", "one thread of each core", "no pages"

#: ``hpc:affinity``, ``hpc:affinity_policy`` and ``hw:pci_numa_affinity_policy`` that go together.
WORDS = (
    ("switch", "required", "required"),
    ("switch", "required", "preferred"),
    ("root", "required", "required"),
    ("root", "required", "preferred"),
    ("numa", "required", "required"),
    ("numa", "required", "preferred"),
    ("socket", "required", "socket"),
    ("socket", "required", "preferred"),
    ("host", "required", "preferred"),
    ("switch", "preferred", "preferred"),
    ("numa", "preferred", "preferred"),
    ("socket", "preferred", "preferred"),
)

#: Aliases, ``hpc:group``, and numbers of guest cells.
DEVICES = (
    ({"gpu": 1}, None, (1,)),
    ({"gpu": 2}, None, (1, 2)),
    ({"vf": 2}, None, (1, 2)),
    ({"gpu": 1, "vf": 1}, None, (1,)),
    ({"gpu": 2, "vf": 2}, {"gpu": 1, "vf": 1}, (1, 2)),
    ({"gpu": 2}, {"gpu": 1}, (1,)),
)

#: GPUs on each NUMA node, adapters on each, sockets.
LAYOUTS = (
    ((2,), (1,), 1),
    ((2, 2), (1, 0), 2),
    ((2, 2), (1, 0), 1),
    ((1, 1), (1, 1), 2),
    ((2, 1), (0, 2), 2),
    ((0, 2), (2, 0), 1),
    ((0, 2), (2, 0), 2),
    ((1, 2), (1, 1), 2),
    ((0, 2, 0), (1, 0, 1), 1),
    ((2, 0, 1), (1, 1, 0), 3),
    ((0, 2, 0, 2), (2, 0, 2, 0), 2),
    ((1, 0, 2, 1), (0, 0, 1, 0), 2),
    ((2, 2, 0, 0), (0, 0, 0, 2), 2),
    ((1, 1, 1, 1), (1, 0, 0, 1), 2),
    ((0, 1, 1, 0), (1, 0, 0, 2), 2),
)


@attrs.frozen
class World:
    """One host in one state, and one flavor."""

    shape: Shape
    states: tuple[str, ...]
    devices: Mapping[str, int]
    group: Mapping[str, int] | None
    cells: int
    level: Level
    required: bool
    numa_policy: str
    threads: str | None
    pages: bool

    @property
    def extra_specs(self) -> dict[str, str]:
        specs = {
            "pci_passthrough:alias": _text(self.devices),
            "hw:cpu_policy": "dedicated",
            "hw:numa_nodes": str(self.cells),
            "hw:pci_numa_affinity_policy": self.numa_policy,
            "hpc:affinity": self.level.word,
            "hpc:affinity_policy": "required" if self.required else "preferred",
        }
        if self.group:
            specs["hpc:group"] = _text(self.group)
        if self.threads:
            specs["hw:cpu_thread_policy"] = self.threads
        if self.pages:
            specs["hw:mem_page_size"] = "large"
        return specs

    @property
    def groups(self) -> int:
        if self.group is None:
            odd = any(count % self.cells for count in self.devices.values())
            return 1 if odd else self.cells
        name, count = next(iter(self.group.items()))
        return self.devices[name] // count

    def topology(self) -> objects.NUMATopology:
        """The host as Nova has it: four CPUs, two of one core, on every node."""
        return objects.NUMATopology(
            cells=[
                objects.NUMACell(
                    id=node,
                    socket=node // (self.shape.nodes // self.shape.sockets),
                    cpuset=set(),
                    pcpuset=set(range(node * 4, node * 4 + 4)),
                    pinned_cpus=_pinned(node * 4, state),
                    memory=4096,
                    cpu_usage=0,
                    memory_usage=0,
                    siblings=[{node * 4 + cpu, node * 4 + cpu + 1} for cpu in (0, 2)],
                    mempages=[
                        objects.NUMAPagesTopology(size_kb=4, total=262144, used=0, reserved=0),
                        objects.NUMAPagesTopology(
                            size_kb=2048,
                            total=1024,
                            used=1000 if state == NO_PAGES else 0,
                            reserved=0,
                        ),
                    ],
                )
                for node, state in enumerate(self.states)
            ]
        )


def _text(counts: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{count}" for name, count in counts.items())


def _pinned(first: int, state: str) -> set[int]:
    return {
        BUSY: {first, first + 1, first + 2},
        SPLIT: {first, first + 2},
    }.get(state, set())


def worlds() -> Iterator[World]:
    """All of them, in a fixed order."""
    for (gpus, pfs, sockets), paired in itertools.product(LAYOUTS, (True, False)):
        shape = _shape(gpus, pfs, sockets, paired)
        for states in _states(shape.nodes):
            for (devices, group, cells), words in itertools.product(DEVICES, WORDS):
                for count in cells:
                    yield World(
                        shape,
                        states,
                        devices,
                        group,
                        count,
                        Level.from_word(words[0]),
                        words[1] == "required",
                        words[2],
                        "isolate" if SPLIT in states else None,
                        NO_PAGES in states,
                    )


def _states(nodes: int) -> Iterator[tuple[str, ...]]:
    """Idle; each set of nodes busy; each one short of what numbers do not show."""
    for busy in itertools.product((FREE, BUSY), repeat=nodes):
        if FREE in busy:
            yield busy
    for node, state in itertools.product(range(nodes), (SPLIT, NO_PAGES)):
        yield tuple(state if each == node else FREE for each in range(nodes))


def _shape(gpus: Sequence[int], pfs: Sequence[int], sockets: int, paired: bool) -> Shape:
    """A host whose GPUs share a switch with an adapter, or have roots of their own."""
    switches = []
    for node, (some, others) in enumerate(zip(gpus, pfs, strict=True)):
        both = min(some, others) if paired else 0
        switches += [Switch(gpus=1, pfs=1, vfs=2, numa=node)] * both
        switches += [Switch(gpus=1, numa=node)] * (some - both)
        switches += [Switch(gpus=0, pfs=1, vfs=2, numa=node)] * (others - both)
    return Shape(tuple(switches), nodes=len(gpus), sockets=sockets)


# -- what is possible -----------------------------------------------------------


def tightest(world: World, guest: objects.InstanceNUMATopology) -> Level | None:
    """The tightest level that any placement reaches which satisfies the flavor; None: none does."""
    host = world.topology()
    rooms = [
        {
            cell.id
            for cell in host.cells
            if hardware._numa_fit_instance_cell(cell, each.obj_clone(), None, 0) is not None
        }
        for each in guest.cells
    ]
    best = None
    for nodes in itertools.permutations(range(world.shape.nodes), world.cells):
        if all(node in room for node, room in zip(nodes, rooms, strict=True)):
            found = _on(world, nodes)
            if found is not None and (best is None or found < best):
                best = found
    if best is None or (world.required and best > world.level):
        return None
    return best


def level_of(world: World, nodes: Sequence[int], given: Mapping[str, Sequence[Location]]) -> Level:
    """The tightest level at which these devices make up the groups, spread over the cells."""
    found = _grouped(world, nodes, {name: list(places) for name, places in given.items()}, 0, {})
    assert found is not None
    return found


def _on(world: World, nodes: Sequence[int]) -> Level | None:
    best = None
    for given in _choices(world):
        places = [place for some in given.values() for place in some]
        if _nova_allows(world, nodes, places):
            found = _grouped(world, nodes, given, 0, {})
            if found is not None and (best is None or found < best):
                best = found
    return best


def _choices(world: World) -> Iterator[dict[str, list[Location]]]:
    """Every choice of devices; of a kind, each place is as often there as it has functions."""
    free = {
        kind: [each.location for each in world.shape.functions() if each.kind == kind]
        for kind in world.devices
    }
    kinds = list(world.devices)
    for chosen in itertools.product(
        *(
            {_key(c): c for c in itertools.combinations(free[k], world.devices[k])}.values()
            for k in kinds
        )
    ):
        yield {kind: list(places) for kind, places in zip(kinds, chosen, strict=True)}


def _key(places: Sequence[Location]) -> tuple[str, ...]:
    return tuple(sorted(map(str, places)))


def _nova_allows(world: World, nodes: Sequence[int], places: Sequence[Location]) -> bool:
    per_socket = world.shape.nodes // world.shape.sockets
    if world.numa_policy == "required":
        return all(place.numa in nodes for place in places)
    if world.numa_policy == "socket":
        sockets = {node // per_socket for node in nodes}
        return all(place.socket in sockets for place in places)
    return True


def _grouped(
    world: World,
    nodes: Sequence[int],
    left: Mapping[str, list[Location]],
    number: int,
    seated: Mapping[int, int],
) -> Level | None:
    """The tightest widest level of the groups from *number* on; None: they do not go."""
    if number == world.groups:
        counts = [seated.get(node, 0) for node in nodes]
        return Level.SWITCH if max(counts) - min(counts) <= 1 else None
    size = {name: count // world.groups for name, count in world.devices.items()}
    best = None
    picks = [
        {
            _key([left[name][i] for i in c]): c
            for c in itertools.combinations(range(len(left[name])), size[name])
        }.values()
        for name in size
    ]
    for chosen in itertools.product(*picks):
        mine = [left[name][i] for name, some in zip(size, chosen, strict=True) for i in some]
        rest = {
            name: [place for i, place in enumerate(left[name]) if i not in some]
            for name, some in zip(size, chosen, strict=True)
        }
        for node in nodes:
            found = _grouped(
                world, nodes, rest, number + 1, {**seated, node: seated.get(node, 0) + 1}
            )
            if found is not None:
                found = max(found, _level(world, mine, node))
                if best is None or found < best:
                    best = found
    return best


def _level(world: World, places: Sequence[Location], node: int) -> Level:
    """Of a group of devices with its guest cell, which is on *node*."""
    if all(place.numa == node for place in places):
        return common_level(places)
    socket = node // (world.shape.nodes // world.shape.sockets)
    if all(place.socket == socket for place in places):
        return max(Level.SOCKET, common_level(places))
    return Level.HOST
