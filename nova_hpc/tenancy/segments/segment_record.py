# SPDX-License-Identifier: Apache-2.0
"""The servers of each segment's parts: libvirt's XML of each domain is the record.

The record consists of the file's path and the device's name; there is no other record. The
file's name contains its owner, its NUMA node and its size.
"""

from __future__ import annotations

import re
import uuid
from pathlib import PurePosixPath
from typing import Any, Final

import attrs

from nova_hpc.placement.segment_shape import SegmentShape

#: Prefix of the name of a guest's device; the number of the part follows. Libvirt keeps names
#: that start with ``ua-`` for its users.
DEVICE_NAME: Final = "ua-hpc-shared-"
_PART: Final = re.compile(rf"{DEVICE_NAME}([0-9]|1[0-5])", re.ASCII)
_FILE: Final = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"\.node([0-9]{1,4})\.([0-9]{1,2})x([0-9]{1,4})\.([0-9a-f]{8})",
    re.ASCII,
)


@attrs.frozen(order=True)
class SegmentFileName:
    """The parsed name of a segment's file: owner, NUMA node, size, serial; names are unique."""

    #: UUID of the server group, or of the only server that it is for.
    owner: str
    #: The host's NUMA node that holds it.
    node: int
    shape: SegmentShape
    #: Eight hexadecimal digits.
    serial: str

    def __str__(self) -> str:
        shape = f"{self.shape.parts}x{self.shape.part_mib}"
        return f"{self.owner}.node{self.node}.{shape}.{self.serial}"


def name_new_file(owner: str, node: int, shape: SegmentShape) -> SegmentFileName:
    """Return a name for a new segment's file that no file has had.

    :param owner: of the segment: a server group.
    :param node: the NUMA node of its memory.
    """
    return SegmentFileName(owner, node, shape, uuid.uuid4().hex[:8])


def parse_file_name(text: str) -> SegmentFileName | None:
    """Parse a name; return None if it is not a segment's file."""
    match = _FILE.fullmatch(text)
    if match is None:
        return None
    owner, node, parts, part_mib, serial = match.groups()
    name = SegmentFileName(owner, int(node), SegmentShape(int(part_mib), int(parts)), serial)
    return name if str(name) == text else None


@attrs.frozen
class SegmentUse:
    """A file that a guest maps as memory, with the guest's part in it."""

    #: Path in the domain.
    path: str
    #: None if the device's name is not one of this project.
    part: int | None

    def file_in(self, folder: PurePosixPath) -> SegmentFileName | None:
        """Parse the name of the file if it is in *folder*; None if it is no segment's there."""
        path = PurePosixPath(self.path)
        return parse_file_name(path.name) if path.parent == folder else None


def read_segment_uses(domain: Any) -> tuple[SegmentUse, ...]:
    """Return the files that a domain maps as memory.

    :param domain: its ``<domain>``, parsed by lxml.
    """
    uses = []
    for device in domain.iterfind("devices/memory"):
        path = device.findtext("source/path")
        if path:
            alias = device.find("alias")
            match = None if alias is None else _PART.fullmatch(alias.get("name") or "")
            uses.append(SegmentUse(path, None if match is None else int(match[1])))
    return tuple(uses)
