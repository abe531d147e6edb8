"""The machines of a simulated cloud, and where their GPUs sit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.topology.level import Level, Location

#: Where each GPU of a node sits; empty: nothing is known.
Layout = tuple[Location, ...]

#: The built-in layout: GPUs of a switch, switches of a host, sockets of a host.
PER_SWITCH: Final = 2
SWITCHES: Final = 4
SOCKETS: Final = 2


@attrs.frozen
class Machine:
    """One node, empty."""

    name: str
    kind: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    layout: Layout = ()
    #: GPUs that something else holds and never releases.
    busy: tuple[int, ...] = ()

    @property
    def free(self) -> int:
        """GPUs that can be given."""
        return self.gpus - len(self.busy)


def dgx(gpus: int) -> Layout:
    """A host like a DGX: two sockets, four switches, two GPUs on a switch.

    A smaller host has fewer switches, on the two sockets in turn.

    :raises ValueError: more GPUs than such a host has.
    """
    if gpus > PER_SWITCH * SWITCHES:
        raise ValueError(f"a DGX-like host has at most {PER_SWITCH * SWITCHES} GPUs, not {gpus}")
    places = []
    for number in range(gpus):
        switch = number // PER_SWITCH
        socket = switch % SOCKETS
        places.append(
            Location(
                numa=socket,
                socket=socket,
                root=f"pci0000:{16 * (switch + 1):02x}",
                switches=(f"0000:{16 * (switch + 1) + 1:02x}:00.0",),
            )
        )
    return tuple(places)


def with_layout(machines: Sequence[Machine], layouts: Mapping[str, Layout]) -> list[Machine]:
    """The same machines; those of a kind in *layouts* have that one.

    :raises ValueError: a layout has fewer GPUs than the machine.
    """
    result = []
    for machine in machines:
        layout = layouts.get(machine.kind)
        if layout is not None:
            if len(layout) < machine.gpus:
                raise ValueError(
                    f"the topology of {machine.kind!r} has {len(layout)} GPUs, "
                    f"but {machine.name} has {machine.gpus}"
                )
            machine = attrs.evolve(machine, layout=layout[: machine.gpus])
        result.append(machine)
    return result


def all_dgx(machines: Sequence[Machine]) -> list[Machine]:
    """The same machines, each with the built-in layout for its GPUs."""
    return [attrs.evolve(machine, layout=dgx(machine.gpus)) for machine in machines]


def add(machines: Sequence[Machine], count: int, kind: str | None = None) -> list[Machine]:
    """The machines and *count* more of one kind (default: the most frequent).

    :raises ValueError: there is no machine of that kind to copy.
    """
    kinds = Counter(machine.kind for machine in machines)
    if kind is None:
        kind = max(sorted(kinds), key=lambda name: kinds[name])
    model = next((machine for machine in machines if machine.kind == kind), None)
    if model is None:
        raise ValueError(f"no node of type {kind!r}; there are {', '.join(sorted(kinds))}")
    extra = [
        attrs.evolve(model, name=f"added-{number:04}", busy=()) for number in range(1, count + 1)
    ]
    return [*machines, *extra]


def domain_sizes(layouts: Sequence[Layout]) -> tuple[int, int]:
    """GPUs of the largest switch and of the largest NUMA node; 1 where none is known."""
    most = []
    for level in (Level.SWITCH, Level.NUMA):
        sizes = [
            count
            for layout in layouts
            for domain, count in Counter(place.domain(level) for place in layout).items()
            if domain is not None
        ]
        most.append(max(sizes, default=1))
    return most[0], most[1]
