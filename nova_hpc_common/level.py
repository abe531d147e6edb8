# SPDX-License-Identifier: Apache-2.0
"""The place of a PCI function, and how close several of them are.

The words are those of the flavor language (``hpc:affinity``); the abbreviations are the
ones that NCCL and ``nvidia-smi topo`` print.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import attrs


class Level(enum.IntEnum):
    """The tightest part of a host that contains all devices of a group: a PCIe switch ... the whole
    host.
    """

    SWITCH = 0
    ROOT = 1
    NUMA = 2
    SOCKET = 3
    HOST = 4

    @property
    def word(self) -> str:
        """The word of ``hpc:affinity`` for this level, e.g. ``switch``."""
        return self.name.lower()

    @classmethod
    def from_word(cls, word: str) -> Level:
        """Parse a word of ``hpc:affinity``.

        :raises ValueError: the text names the valid words.
        """
        try:
            return _BY_WORD[word]
        except KeyError:
            legal = ", ".join(level.word for level in cls)
            raise ValueError(f"{word!r} is not one of: {legal}") from None


_BY_WORD = {level.word: level for level in Level}


class AffinityPolicy(enum.Enum):
    """``hpc:affinity_policy``: the reaction if the level cannot be reached."""

    REQUIRED = "required"
    PREFERRED = "preferred"


class Distance(enum.IntEnum):
    """Path type between two PCI functions, as NCCL prints it; nearest first."""

    PIX = 0  # at most one PCIe switch
    PXB = 1  # several PCIe switches, no host bridge
    PHB = 2  # through one PCIe host bridge (root complex)
    NODE = 3  # between host bridges of one NUMA node
    SYS = 4  # between NUMA nodes


@attrs.frozen
class Location:
    """The place of one PCI function in its host.

    ``switches`` are the addresses of the points that devices below share,
    outermost first: the upstream port of each PCIe switch on the path. Without
    a switch it is only the root port (several functions behind one root port
    are as close as below a switch). It is empty for an endpoint that is
    integrated in the root complex. ``None`` means unknown; an unknown value is
    never equal to another one, not even to another unknown.
    """

    numa: int | None = None
    socket: int | None = None
    root: str | None = None
    switches: tuple[str, ...] = ()

    def domain(self, level: Level) -> tuple[str, ...] | None:
        """Return the widest domain that satisfies *level*; None if it is unknown.

        Two locations satisfy a level exactly if their domains at that level are equal and not None.
        """
        if level is Level.SWITCH:
            if self.root is None or not self.switches:
                return None
            return ("switch", self.root, self.switches[0])
        if level is Level.ROOT:
            return None if self.root is None else ("root", self.root)
        if level is Level.NUMA:
            return None if self.numa is None else ("numa", str(self.numa))
        if level is Level.SOCKET:
            return None if self.socket is None else ("socket", str(self.socket))
        return ("host",)


def common_level(locations: Iterable[Location]) -> Level:
    """Return the tightest level that all *locations* share (SWITCH if there is only one)."""
    places = list(locations)
    if len(places) < 2:
        return Level.SWITCH
    for level in Level:
        domains = {place.domain(level) for place in places}
        if len(domains) == 1 and None not in domains:
            return level
    return Level.HOST


def distance_between(first: Location, second: Location) -> Distance:
    """Return the path type between two functions, as NCCL would print it."""
    if first.root is not None and first.root == second.root:
        if first.switches and second.switches:
            if first.switches == second.switches:
                return Distance.PIX
            if first.switches[0] == second.switches[0]:
                return Distance.PXB
        return Distance.PHB
    if first.numa is not None and first.numa == second.numa:
        return Distance.NODE
    return Distance.SYS
