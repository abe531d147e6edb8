# SPDX-License-Identifier: Apache-2.0
"""Devices in their places: NUMA nodes, root complexes, switches. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc_common.level import Location
from nova_hpc_tools.pictures.model import DeviceTile, PlaceBox

#: Equal devices of a place beyond which they are one tile with a count.
_MOST_ALIKE: Final = 8
_NO_NODE: Final = "NUMA node not known"


@attrs.define
class _Place:
    kind: str
    title: str
    tiles: list[DeviceTile] = attrs.Factory(list)
    below: dict[str, _Place] = attrs.Factory(dict)

    def at(self, key: str, kind: str, title: str) -> _Place:
        """Return the place below this one with this key; make it if it is not there.

        A place is a NUMA node, a root complex or a switch.
        """
        return self.below.setdefault(key, _Place(kind, title))


def build_place_boxes(
    located: Iterable[tuple[Location, DeviceTile]],
    numa_titles: Mapping[int, str],
    switch_titles: Mapping[str, str],
    empty: Sequence[int] = (),
) -> tuple[PlaceBox, ...]:
    """Arrange devices in nested boxes: NUMA nodes, root complexes and switches.

    :param numa_titles: NUMA node -> its title, in the order in which they are drawn.
    :param switch_titles: address of a switch -> its title; a point of the path without a title
        (a root port) has no box.
    :param empty: NUMA nodes that are drawn although they have no device.
    """
    top: dict[int | None, _Place] = {
        number: _Place("numa", title) for number, title in numa_titles.items()
    }
    for location, tile in located:
        place = top.setdefault(
            location.numa,
            _Place("numa", _NO_NODE if location.numa is None else f"NUMA node {location.numa}"),
        )
        if location.root is not None:
            place = place.at(location.root, "root", location.root)
        for point in location.switches:
            if point in switch_titles:
                place = place.at(point, "switch", switch_titles[point])
        place.tiles.append(tile)
    return tuple(
        _freeze_place(place)
        for number, place in top.items()
        if place.tiles or place.below or number in empty
    )


def _freeze_place(place: _Place) -> PlaceBox:
    return PlaceBox(
        kind=place.kind,
        title=place.title,
        tiles=fold_equal_tiles(place.tiles),
        boxes=tuple(_freeze_place(below) for below in place.below.values()),
    )


def fold_equal_tiles(
    tiles: Iterable[DeviceTile], most: int = _MOST_ALIKE
) -> tuple[DeviceTile, ...]:
    """Replace many devices of one kind and state by one tile with a count.

    Devices that stay with the host, and devices that servers never get, are always folded.
    """
    alike: dict[DeviceTile, list[DeviceTile]] = {}
    for tile in tiles:
        alike.setdefault(attrs.evolve(tile, address="", details=()), []).append(tile)
    folded: list[DeviceTile] = []
    for kind, members in alike.items():
        limit = most if kind.role else 1
        if len(members) <= limit or kind.servers:
            folded += members
            continue
        addresses = tuple(member.address for member in members[:_MOST_ALIKE])
        more = (
            (f"and {len(members) - len(addresses)} more",) if len(members) > len(addresses) else ()
        )
        folded.append(
            attrs.evolve(
                members[0],
                count=len(members),
                free=sum(member.free for member in members),
                total=sum(member.total for member in members),
                details=(*members[0].details, *addresses, *more),
            )
        )
    return tuple(folded)
