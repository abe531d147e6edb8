# SPDX-License-Identifier: Apache-2.0
"""The content of pictures, before anything is drawn. Data only."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from nova_hpc_common.level import Level


class TileState(enum.Enum):
    """The state of a device; the value is the word for people."""

    FREE = "free"
    #: In an inventory, which contains no servers: an entry of ``[pci]device_spec`` names it.
    OFFERED = "offered"
    POSSIBLE = "can be offered"
    USED = "in use"
    #: A server has it, and it will be withheld when that server leaves.
    FAULTY = "in use, faulty"
    WITHHELD = "withheld"
    REFUSED = "not offered"
    UNKNOWN = "unknown"
    #: No server ever gets it.
    HOST = "stays with the host"


@attrs.frozen
class DeviceTile:
    """A device in a picture, or the devices of one provider."""

    #: PCI address; for virtual functions the address of their physical function.
    address: str
    state: TileState
    role: str = ""
    #: Its product name, for people.
    product: str = ""
    #: For several functions: the number of free ones, and the total.
    free: int = 0
    total: int = 1
    #: Names of the servers that have it.
    servers: tuple[str, ...] = ()
    #: Why it is as it is, and more that only a tooltip has room for.
    details: tuple[str, ...] = ()
    #: How many equal devices the tile stands for.
    count: int = 1


@attrs.frozen
class PlaceBox:
    """A place in a picture: a NUMA node, a root complex or a switch, with its devices."""

    #: ``numa``, ``root`` or ``switch``.
    kind: str
    title: str
    tiles: tuple[DeviceTile, ...] = ()
    boxes: tuple[PlaceBox, ...] = ()
    details: tuple[str, ...] = ()


#: Role -> level -> the largest set that still fits.
Largest = Mapping[str, Mapping[Level, int]]


@attrs.frozen
class NodePicture:
    """The content of the picture of one node."""

    name: str
    #: Sentences about it.
    facts: tuple[str, ...]
    boxes: tuple[PlaceBox, ...]
    #: None for an inventory, in which all is free.
    largest: Largest = attrs.field(factory=dict, hash=False)
    #: Server, its flavor, and its devices by role.
    servers: tuple[tuple[str, str, str], ...] = ()
    problems: tuple[str, ...] = ()


@attrs.frozen
class RoleRow:
    """The devices of one role on one host in a picture, grouped by NUMA node and switch."""

    role: str
    #: Devices of one switch are together, and so are devices of one NUMA node.
    places: tuple[tuple[tuple[DeviceTile, ...], ...], ...]

    @property
    def tiles(self) -> tuple[DeviceTile, ...]:
        """All devices of the row in one sequence."""
        return tuple(tile for numa in self.places for switch in numa for tile in switch)

    @property
    def free(self) -> int:
        """The number of free functions in the row."""
        return sum(tile.free for tile in self.tiles)

    @property
    def total(self) -> int:
        """The number of all functions in the row."""
        return sum(tile.total for tile in self.tiles)


@attrs.frozen
class HostTile:
    """One host in the picture of a cloud: its devices by role, and the sets that still fit."""

    name: str
    rows: tuple[RoleRow, ...]
    largest: Largest = attrs.field(factory=dict, hash=False)
    #: Why it gets no servers; "" if it does.
    out: str = ""
    #: Letter -> name of the server.
    letters: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    notes: tuple[str, ...] = ()


@attrs.frozen
class GroupNote:
    """A server group that has a fabric domain, for the picture of a cloud."""

    group: str
    level: str
    domain: str
    members: int
    announced: int


@attrs.frozen
class LeafBox:
    """The hosts of one leaf in a picture, or of the tightest domain that is known."""

    #: Level and name of the domains above, widest first; () if the place is unknown.
    path: tuple[tuple[str, str], ...]
    hosts: tuple[HostTile, ...]
    groups: tuple[GroupNote, ...] = ()

    @property
    def title(self) -> str:
        """The name of the tightest domain, or the words that it is unknown."""
        return " ".join(self.path[-1]) if self.path else "place on the fabric unknown"


@attrs.frozen
class CloudPicture:
    """The content of the picture of a cloud, or of some of its leaves."""

    title: str
    facts: tuple[str, ...]
    leaves: tuple[LeafBox, ...]
    #: Server, host, flavor, and its devices by role.
    servers: tuple[tuple[str, str, str, str], ...] = ()
    groups: tuple[GroupNote, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def hosts(self) -> tuple[HostTile, ...]:
        """All hosts of the picture, leaf by leaf."""
        return tuple(host for leaf in self.leaves for host in leaf.hosts)
