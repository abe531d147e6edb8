# SPDX-License-Identifier: Apache-2.0
"""Selects the segment and the part of a server, or the reason why it gets none. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from typing import Final

import attrs

from nova_hpc.placement.segment_shape import MIB, SegmentShape
from nova_hpc.tenancy.segments import segment_record
from nova_hpc.tenancy.segments.segment_record import SegmentFileName


class SegmentLack(enum.Enum):
    """Why a server has no segment; the value appears in the guest's document."""

    #: The node offers no memory for segments: ``[hpc]shared_memory_mb``.
    OFF = "off"
    #: All of the node's memory for segments is in use.
    FULL = "full"
    #: The server is in no server group of its own project.
    GROUP = "group"
    #: Nova or libvirt did not report the servers that share memory.
    UNKNOWN = "unknown"
    #: Members of the group on the host use another size.
    SIZE = "size"
    #: All parts of the group's segment are in use.
    PARTS = "parts"
    #: The host could not create it.
    MEMORY = "memory"
    #: The guest's memory is encrypted.
    ENCRYPTED = "encrypted"
    #: The server was started without it, and its hardware must not change.
    BEFORE = "before"


#: For the server's user: the end of the sentence "The memory that the flavor's hpc:shared_memory
#: asks for cannot be given on the host: ".
LACK_TEXTS: Final[Mapping[SegmentLack, str]] = {
    SegmentLack.OFF: "it gives none. Use a host that does, or a flavor without the key.",
    SegmentLack.FULL: "all that it gives is taken. Use another host, or a smaller size.",
    SegmentLack.GROUP: (
        "the server is in no server group of its project. Boot it with the hint group=, or use a "
        "flavor without the key."
    ),
    SegmentLack.UNKNOWN: "it did not learn who shares it with the server. Try again later.",
    SegmentLack.SIZE: (
        "members of the server group there bring another size. Use one flavor, or one value of "
        "the key, for all of them."
    ),
    SegmentLack.PARTS: "so many members of the server group are there that no part is left.",
    SegmentLack.MEMORY: "it could not make it.",
    SegmentLack.ENCRYPTED: "the server's own memory is encrypted. Use a flavor without the key.",
    SegmentLack.BEFORE: (
        "the server was started without it, and its hardware stays as it is. Resize or shelve it."
    ),
}


@attrs.frozen
class SegmentRequest:
    """A server's request to its host for a part of a segment (shared memory of a server group)."""

    server: str
    #: UUID of the server group that shares it, or of the server itself.
    owner: str
    shape: SegmentShape
    #: The host's NUMA node of the server's first cell.
    node: int
    #: Whether its hardware must not change: exactly so many parts.
    exact: bool = False

    def fits(self, name: SegmentFileName) -> bool:
        """Return whether the segment with this file has parts of the requested size."""
        if self.exact:
            return name.shape == self.shape
        return name.shape.part_mib == self.shape.part_mib


@attrs.frozen
class SegmentState:
    """The segments of a host at one moment: their parts by server, and the free hugepages."""

    #: Usable files -> part -> server that has it, running or about to start.
    taken: Mapping[SegmentFileName, Mapping[int, str]] = attrs.field(factory=dict, hash=False)
    #: Missing files that running guests still have: they still take their memory.
    lost: frozenset[SegmentFileName] = frozenset()
    #: Files with an incomplete list of used parts.
    unclear: frozenset[SegmentFileName] = frozenset()
    #: NUMA node -> bytes for segments.
    pools: Mapping[int, int] = attrs.field(factory=dict, hash=False)

    def charge_of(self, node: int, without: Collection[SegmentFileName] = ()) -> int:
        """Return the bytes of a NUMA node that segments take."""
        return sum(
            name.shape.file_bytes
            for name in (*self.taken, *self.lost)
            if name.node == node and name not in without
        )


@attrs.frozen
class SegmentChoice:
    """The part of a segment that a server gets, and whether the segment's file is new."""

    name: SegmentFileName
    part: int
    #: Whether the file has to be created.
    new: bool = False


def choose_segment(
    request: SegmentRequest,
    state: SegmentState,
    former: SegmentChoice | None = None,
) -> SegmentChoice | SegmentLack:
    """Choose for a server that starts.

    First choice: the server's former segment and part, if the part is free. Second: the
    owner's segment that most servers share, with its lowest free part. Third: a new segment.

    :param former: the server's present part, or the part of its last run.
    """
    others = {
        name: {part: server for part, server in parts.items() if server != request.server}
        for name, parts in state.taken.items()
    }
    own = [name for name in others if name.owner == request.owner]
    alive = [name for name in own if others[name]]
    if not all(map(request.fits, alive)):
        return SegmentLack.SIZE
    if any(name in state.unclear for name in own):
        return SegmentLack.UNKNOWN
    fitting = list(filter(request.fits, own))
    # Leave a segment without other servers in favour of one that others share.
    stays = former is not None and former.name in fitting
    if former is not None and stays and (others[former.name] or not alive):
        part = _free_part_of(former.name, others[former.name], former.part)
        if part is not None:
            return SegmentChoice(former.name, part)
    for name in sorted(alive, key=lambda name: (-len(others[name]), name)):
        wanted = former.part if former is not None else 0
        part = _free_part_of(name, others[name], wanted)
        if part is not None:
            return SegmentChoice(name, part)
    if alive:
        return SegmentLack.PARTS
    return _choose_new(request, state, others, former)


def _free_part_of(name: SegmentFileName, taken: Mapping[int, str], wanted: int) -> int | None:
    """Return the wanted part if it is free, else the lowest free one."""
    free = [part for part in range(name.shape.parts) if part not in taken]
    if not free:
        return None
    return wanted if wanted in free else free[0]


def _choose_new(
    request: SegmentRequest,
    state: SegmentState,
    others: Mapping[SegmentFileName, Mapping[int, str]],
    former: SegmentChoice | None,
) -> SegmentChoice | SegmentLack:
    """Choose a new segment if the pool of the server's NUMA node has room for it.

    Segments that only this server uses do not count, because they are removed before it starts.
    """
    pool = state.pools.get(request.node, 0)
    if not any(state.pools.values()):
        return SegmentLack.OFF
    # Segments that only this server uses are removed before it starts.
    leaving = {
        name
        for name, parts in others.items()
        if not parts and request.server in state.taken[name].values()
    }
    if state.charge_of(request.node, leaving) + request.shape.file_bytes > pool:
        return SegmentLack.FULL
    name = segment_record.name_new_file(request.owner, request.node, request.shape)
    # After a restart of the host all servers come back, in any order.
    keeps_part = former is not None and former.part < request.shape.parts
    return SegmentChoice(name, former.part if former is not None and keeps_part else 0, new=True)


def read_pools(values: Collection[str], nodes: Collection[int]) -> dict[int, int]:
    """Parse the values of ``[hpc]shared_memory_mb``: NUMA node -> bytes.

    :param nodes: the host's NUMA nodes; values for other nodes are left out.
    """
    pools: dict[int, int] = {}
    for value in values:
        number, colon, mib = value.rpartition(":")
        for node in [int(number)] if colon else nodes:
            pools[node] = int(mib) * MIB
    return {node: size for node, size in pools.items() if node in nodes}
