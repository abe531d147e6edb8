# SPDX-License-Identifier: Apache-2.0
"""Who has which part of which segment: the record is libvirt's, in each domain's XML.

The path of the file and the name of the device say it, and nothing else is kept. The file's
name says whose it is, on which NUMA node it lies and how large it is.
"""

from __future__ import annotations

import re
import uuid
from pathlib import PurePosixPath
from typing import Any, Final

import attrs

from nova_hpc.placement.segment_shape import SegmentShape

#: The name of a guest's device; the number of the part follows. Libvirt keeps names that
#: begin with ``ua-`` for its users.
DEVICE_NAME: Final = "ua-hpc-shared-"
_PART: Final = re.compile(rf"{DEVICE_NAME}([0-9]|1[0-5])", re.ASCII)
_FILE: Final = re.compile(
    r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"\.node([0-9]{1,4})\.([0-9]{1,2})x([0-9]{1,4})\.([0-9a-f]{8})",
    re.ASCII,
)


@attrs.frozen(order=True)
class SegmentFileName:
    """The name of a segment's file; none is used twice."""

    #: UUID of the server group, or of the only server that it is for.
    owner: str
    #: The host's NUMA node that it lies on.
    node: int
    shape: SegmentShape
    #: Eight hexadecimal digits.
    serial: str

    def __str__(self) -> str:
        shape = f"{self.shape.parts}x{self.shape.part_mib}"
        return f"{self.owner}.node{self.node}.{shape}.{self.serial}"


def name_new_file(owner: str, node: int, shape: SegmentShape) -> SegmentFileName:
    """A name that no file has had."""
    return SegmentFileName(owner, node, shape, uuid.uuid4().hex[:8])


def parse_file_name(text: str) -> SegmentFileName | None:
    """Read a name; None: it is none of a segment's file."""
    match = _FILE.fullmatch(text)
    if match is None:
        return None
    owner, node, parts, part_mib, serial = match.groups()
    name = SegmentFileName(owner, int(node), SegmentShape(int(part_mib), int(parts)), serial)
    return name if str(name) == text else None


@attrs.frozen
class SegmentUse:
    """A file that a guest has as memory."""

    #: As the domain says it.
    path: str
    #: None: the device's name is none of this project's.
    part: int | None

    def file_in(self, folder: PurePosixPath) -> SegmentFileName | None:
        """The segment's file, if it lies in *folder*."""
        path = PurePosixPath(self.path)
        return parse_file_name(path.name) if path.parent == folder else None


def read_segment_uses(domain: Any) -> tuple[SegmentUse, ...]:
    """The files that a domain has as memory.

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
