# SPDX-License-Identifier: Apache-2.0
"""Random hosts, requests and profiles for the property tests."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

from nova_hpc.placement.model import (
    DeviceGroup,
    DevicePool,
    FreeHost,
    HostNode,
    Nvlink,
    Request,
    Want,
    WantedCell,
)
from nova_hpc.placement.profile import DEFAULT, FlavorShape, Profile
from nova_hpc_common.level import AffinityPolicy, Level, Location

WANTS = ("A", "B", "C")
ROLES = ("gpu", "vf", "nic")


@st.composite
def locations(draw: st.DrawFn, nodes: int, known: bool) -> list[Location]:
    """The places of a small, consistent tree."""
    per_socket = draw(st.integers(1, 2))
    places: list[Location] = []
    for root in range(draw(st.integers(1, 3))):
        numa = draw(st.integers(0, nodes - 1)) if known else None
        socket = None if numa is None else numa // per_socket
        # Domains of 32 bits: what Hyper-V and VMD hand out.
        name = draw(st.sampled_from(["pci0000:", "pci10000:"])) + f"{root:02x}"
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
def hosts(draw: st.DrawFn, request: Request, devices: int, nodes: int) -> FreeHost:
    """A host that has about what the request wants, and some more."""
    known = draw(st.integers(0, 5)) > 0
    places = draw(locations(nodes, known))
    sockets = {place.numa: place.socket for place in places if place.numa is not None}
    units = draw(st.sampled_from([[None], [None], [None], [None, None, "u0"], [None, "u0", "u1"]]))
    kinds = [{want.key} for want in request.wants for _ in range(want.count)]
    kinds = kinds[: len(kinds) - draw(st.sampled_from([0, 0, 0, 0, 1]))]
    if len(kinds) < devices:
        keys = sorted({want.key for want in request.wants})
        more = st.sampled_from(
            [*({key} for key in keys), *({key} for key in keys), set(keys), set()]
        )
        kinds += draw(st.lists(more, max_size=devices - len(kinds)))
    if draw(st.integers(0, 4)) == 0:
        kinds = [
            kind | {"A", "B"} & _keys(request) if draw(st.booleans()) else kind for kind in kinds
        ]
    tagged = draw(st.sampled_from([True, True, False]))
    usual = dict(zip((*WANTS, ""), draw(st.permutations((*ROLES, None))), strict=True))
    pools = []
    while kinds:
        serves = kinds[0]
        free = min(kinds.count(serves), draw(st.sampled_from([1, 1, 1, 1, 2, 3])))
        for _ in range(free):
            kinds.remove(serves)
        number = len(pools)
        role = usual[min(serves, default="")] if tagged else None
        if tagged and draw(st.integers(0, 7)) == 0:
            role = draw(st.sampled_from((*ROLES, None)))
        pools.append(
            DevicePool(
                id=f"id{number}",
                name=f"dev{number:02}",
                location=draw(st.sampled_from(places)),
                free=free,
                serves=frozenset(serves),
                unit=draw(st.sampled_from(units)),
                role=role,
                aliases=draw(st.sampled_from([0, 0, 0, 1, 2, 3])),
            )
        )
    return FreeHost(
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
        nvlink=draw(links(request, pools)),
    )


def _keys(request: Request) -> set[str]:
    return {want.key for want in request.wants}


@st.composite
def links(draw: st.DrawFn, request: Request, pools: list[DevicePool]) -> tuple[frozenset[str], ...]:
    """NVLink sets, mostly of devices that serve the first want, of the right size."""
    if draw(st.integers(0, 3 if request.nvlink is not Nvlink.NONE else 9)) == 0:
        return ()
    key = request.wants[0].key
    single = [pool.id for pool in pools if pool.free == 1 and key in pool.serves]
    if draw(st.integers(0, 7)) == 0:
        single = [pool.id for pool in pools]
    if not single:
        return ()
    size = request.groups[0].counts[key]
    sizes = st.sampled_from([size, size, size, size + 1])
    found = []
    for _ in range(draw(st.integers(1, 5))):
        count = min(draw(sizes), len(single))
        found.append(frozenset(draw(st.permutations(single))[:count]))
    return tuple(found)


@st.composite
def requests(draw: st.DrawFn, nodes: int) -> Request:
    groups = draw(st.integers(1, 3))
    most = 2 if groups < 3 else 1
    size = {key: count for key in WANTS[:2] if (count := draw(st.integers(0, most)))}
    if not draw(st.integers(0, 5)):
        size["C"] = 1
    if groups == 1 and not draw(st.integers(0, 3)):
        size["A"] = draw(st.integers(3, 5))
    size = size or {"A": 1}
    cells = []
    for number in range(draw(st.integers(0, 2))):
        pages = draw(st.booleans())
        cells.append(
            WantedCell(
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
        groups=tuple(DeviceGroup(size) for _ in range(groups)),
        level=draw(st.sampled_from(Level)),
        policy=draw(st.sampled_from(AffinityPolicy)),
        cells=tuple(cells),
        on_cells=bool(cells) and draw(st.booleans()),
        nvlink=draw(st.sampled_from([Nvlink.NONE, Nvlink.NONE, Nvlink.PREFERRED, Nvlink.REQUIRED])),
    )


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    """What a cloud sells: the default, or a few shapes."""
    if draw(st.booleans()):
        return DEFAULT
    shapes = []
    for _ in range(draw(st.integers(0, 3))):
        roles = draw(st.lists(st.sampled_from(ROLES), min_size=1, max_size=2, unique=True))
        paged = draw(st.booleans())
        shapes.append(
            FlavorShape(
                {role: draw(st.integers(1, 3)) for role in roles},
                groups=draw(st.sampled_from([1, 1, 2])),
                level=draw(st.sampled_from(Level)),
                weight=draw(st.sampled_from([1, 1, 5, 0])),
                cpus=draw(st.sampled_from([0, 0, 3, 4])),
                memory_kib=2048 * 3 if paged else 0,
                page_kib=2048 if paged else None,
            )
        )
    return Profile(tuple(shapes))


@st.composite
def cases(draw: st.DrawFn, devices: int = 7) -> tuple[Request, FreeHost]:
    nodes = draw(st.sampled_from([2, 2, 3, 1]))
    request = draw(requests(nodes))
    return request, draw(hosts(request, draw(st.sampled_from([devices, 12])), nodes))
