"""Random hosts and requests for the property tests."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

from nova_hpc.placement.model import (
    Cell,
    Group,
    Host,
    HostNode,
    Policy,
    Pool,
    Request,
    Want,
)
from nova_hpc.topology.level import Level, Location

WANTS = ("A", "B")


@st.composite
def locations(draw: st.DrawFn, nodes: int, known: bool) -> list[Location]:
    """The places of a small, consistent tree."""
    per_socket = draw(st.integers(1, 2))
    places: list[Location] = []
    for root in range(draw(st.integers(1, 3))):
        numa = draw(st.integers(0, nodes - 1)) if known else None
        socket = None if numa is None else numa // per_socket
        name = f"root{root}"
        places.append(Location(numa=numa, socket=socket, root=name))
        for switch in range(draw(st.integers(0, 2))):
            upper = (f"r{root}s{switch}",)
            places.append(Location(numa=numa, socket=socket, root=name, switches=upper))
            if draw(st.booleans()):
                lower = (*upper, f"r{root}s{switch}below")
                places.append(Location(numa=numa, socket=socket, root=name, switches=lower))
    if draw(st.integers(0, 4)) == 0:
        places.append(Location())
    return places


@st.composite
def hosts(draw: st.DrawFn, request: Request, devices: int, nodes: int) -> Host:
    """A host that has about what the request wants, and some more."""
    known = draw(st.integers(0, 5)) > 0
    places = draw(locations(nodes, known))
    sockets = {place.numa: place.socket for place in places if place.numa is not None}
    units = draw(st.sampled_from([[None], [None], [None, None, "u0"], [None, "u0", "u1"]]))
    kinds = [{want.key} for want in request.wants for _ in range(want.count)]
    kinds = kinds[: len(kinds) - draw(st.sampled_from([0, 0, 0, 0, 1]))]
    if len(kinds) < devices:
        more = st.sampled_from([{"A"}, {"B"}, {"A", "B"}, {"A"}, {"B"}, set()])
        kinds += draw(st.lists(more, max_size=devices - len(kinds)))
    if draw(st.integers(0, 4)) == 0:
        kinds = [kind | {"A", "B"} if draw(st.booleans()) else kind for kind in kinds]
    pools = []
    while kinds:
        serves = kinds[0]
        free = min(kinds.count(serves), draw(st.sampled_from([1, 1, 1, 2, 3])))
        for _ in range(free):
            kinds.remove(serves)
        number = len(pools)
        pools.append(
            Pool(
                id=f"id{number}",
                name=f"dev{number}",
                location=draw(st.sampled_from(places)),
                free=free,
                serves=frozenset(serves),
                unit=draw(st.sampled_from(units)),
            )
        )
    return Host(
        name="host",
        pools=tuple(pools),
        nodes=tuple(
            HostNode(
                id=number,
                socket=sockets.get(number, number if known else None),
                dedicated_cpus=draw(st.sampled_from([None, 8, 8, 4, 0])),
                pages=draw(st.sampled_from([None, {2048: 10}, {2048: 10}, {2048: 0}])),
            )
            for number in range(nodes)
        ),
    )


@st.composite
def requests(draw: st.DrawFn, nodes: int) -> Request:
    groups = draw(st.integers(1, 3))
    size = {
        key: count for key in WANTS if (count := draw(st.integers(0, 2 if groups < 3 else 1)))
    } or {"A": 1}
    cells = []
    for number in range(draw(st.integers(0, 2))):
        pages = draw(st.booleans())
        cells.append(
            Cell(
                id=number,
                dedicated_cpus=draw(st.sampled_from([0, 0, 4, 8])),
                memory_kib=2048 * 8 if pages else 0,
                page_kib=2048 if pages else None,
            )
        )
    if cells and draw(st.integers(0, 3)) == 0:
        # As on the node, after Nova has mapped the cells.
        chosen = draw(st.permutations(range(nodes)))
        if len(cells) <= nodes:
            cells = [
                attrs.evolve(cell, host_node=node)
                for cell, node in zip(cells, chosen, strict=False)
            ]
    return Request(
        wants=tuple(Want(key, key.lower(), count * groups) for key, count in size.items()),
        groups=tuple(Group(size) for _ in range(groups)),
        level=draw(st.sampled_from(Level)),
        policy=draw(st.sampled_from(Policy)),
        cells=tuple(cells),
        on_cells=bool(cells) and draw(st.booleans()),
    )


@st.composite
def cases(draw: st.DrawFn, devices: int = 7) -> tuple[Request, Host]:
    nodes = draw(st.sampled_from([2, 2, 3, 1]))
    request = draw(requests(nodes))
    return request, draw(hosts(request, devices, nodes))
