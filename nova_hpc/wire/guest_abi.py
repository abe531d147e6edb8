# SPDX-License-Identifier: Apache-2.0
"""The record of a server's guest tree, as it is stored with the server.

A running guest's hardware must not change. So the version of the rules that made
its tree is kept, and every later start uses that version.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import attrs

from nova_hpc.placement.segment_shape import FEWEST_PARTS, MOST_PARTS, SegmentShape
from nova_hpc_common.wire.version import (
    LONGEST_METADATA,
    LaterError,
    WireDocument,
    WireError,
    write_compact_json,
)

GUEST_ABI: Final = WireDocument(
    name="guest ABI",
    lives="system_metadata['hpc_guest_abi'] of the server",
    writer="nova_hpc.wire.guest_abi:Abi.dumps",
    readers=("nova_hpc.wire.guest_abi:read_guest_abi",),
    # 2: a flat guest has room for the memory of its devices.
    # 3, written only for servers with a segment: the segment, and the rules of the tree.
    version=2,
    reads=(1, 2, 3),
    key="v",
    limit=LONGEST_METADATA,
)

#: The key in the server's ``system_metadata``.
KEY: Final = "hpc_guest_abi"
#: The version of a record with a segment, and the existing rules of trees.
_WITH_SEGMENT: Final = 3
_TREE_RULES: Final = (1, 2)


class TopologyMode(enum.Enum):
    """The values of ``hpc:guest_topology``: how the guest's PCIe tree is built."""

    MIRROR = "mirror"
    NUMA = "numa"
    FLAT = "flat"


class AbiError(WireError):
    """A stored guest ABI text that this release must not act on. The text contains the remedy."""


@attrs.frozen
class Abi:
    """The rules that built a guest's PCIe tree, stored so that later starts build it again."""

    mode: TopologyMode
    #: Whether cliques are shown to GPUs.
    clique: bool = False
    #: Version of the rules of the tree.
    version: int = GUEST_ABI.version
    #: The guest's segment of memory; None if it has none.
    segment: SegmentShape | None = None

    def dumps(self) -> str:
        """Format the rules for Nova's database: ASCII, within the limit of :data:`GUEST_ABI`."""
        tree = {"mode": self.mode.value, "clique": int(self.clique)}
        if self.segment is None:
            return write_compact_json({GUEST_ABI.key: self.version, **tree})
        segment = {"mib": self.segment.part_mib, "parts": self.segment.parts}
        return write_compact_json(
            {GUEST_ABI.key: _WITH_SEGMENT, **tree, "tree": self.version, "segment": segment}
        )


def read_guest_abi(text: object) -> Abi | None:
    """Read the stored rules of a guest's PCIe tree.

    :returns: None if there is none: the server was started without one.
    :raises AbiError: it is damaged, or of a newer release.
    """
    if text is None:
        return None
    try:
        data = GUEST_ABI.load(text)
        version, segment = data[GUEST_ABI.key], None
        if version == _WITH_SEGMENT:
            version, segment = data["tree"], _read_segment(data["segment"])
            if type(version) is not int or version not in _TREE_RULES:
                raise ValueError("there are no such rules")
        return Abi(
            version=version,
            mode=TopologyMode(data["mode"]),
            clique=bool(data["clique"]),
            segment=segment,
        )
    except LaterError as error:
        raise AbiError(
            f"The server's virtual hardware is of version {error.version}, and this release of "
            f"nova-hpc makes {', '.join(map(str, GUEST_ABI.reads))}: start it with the release "
            "that it was started with, or a newer one."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise AbiError(
            f"The record of the server's virtual hardware ({KEY}) is damaged: it must be "
            "repaired before the server can start."
        ) from None


def _read_segment(data: Any) -> SegmentShape:
    """Read the size of a server's shared memory: MiB of a part, and number of parts.

    :raises ValueError: it has no size that a segment can have.
    """
    shape = SegmentShape(data["mib"], data["parts"])
    if type(shape.part_mib) is not int or type(shape.parts) is not int:
        raise ValueError("it has no size")
    if not 0 < shape.part_mib < 1 << 16 or not FEWEST_PARTS <= shape.parts <= MOST_PARTS:
        raise ValueError("its size is none of a segment")
    return shape
