# SPDX-License-Identifier: Apache-2.0
"""The ``hpc_*`` tags of ``[pci]device_spec``: the contract between a node's
inventory (which writes them), Nova (which carries any extra key of a device
specification into the PCI pools) and the scheduler (which reads them).

All values are strings, because Nova keeps tags as strings. All virtual
functions of one physical function carry identical tags: Nova reports them as
one resource provider and one pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc_common.level import Location
from nova_hpc_common.wire.version import WireDocument, WireError

DEVICE_TAGS: Final = WireDocument(
    name="device tags",
    lives="[pci]device_spec, and Nova's PCI pools",
    writer="nova_hpc.wire.tags:Tags.to_spec",
    readers=("nova_hpc.wire.tags:parse_tags",),
    key="hpc_tags",
)

#: Version of the meaning of the tags below.
VERSION: Final = DEVICE_TAGS.key
ROLE: Final = "hpc_role"
SWITCH: Final = "hpc_switch"
ROOT: Final = "hpc_root"
NUMA: Final = "hpc_numa"
SOCKET: Final = "hpc_socket"
GROUP: Final = "hpc_group"
NVLINK: Final = "hpc_nvlink"
# Nova strips these two of its own keys from the pools, so they are mirrored.
RESOURCE_CLASS: Final = "hpc_resource_class"
TRAITS: Final = "hpc_traits"

ALL: Final = frozenset(
    {VERSION, ROLE, SWITCH, ROOT, NUMA, SOCKET, GROUP, NVLINK, RESOURCE_CLASS, TRAITS}
)

_READS: Final = tuple(map(str, DEVICE_TAGS.reads))

#: Switches of one path are written outermost first, joined by this.
SEPARATOR: Final = "/"


class TagError(WireError):
    """``hpc_*`` tags that cannot be trusted. The text names the tag and the reason."""


@attrs.frozen
class Tags:
    """The parsed ``hpc_*`` tags of one device or pool."""

    location: Location
    role: str | None = None
    #: IOMMU unit: the lowest address of a group with several assignable
    #: functions, which go to one guest together; None if there is only one.
    group: str | None = None
    resource_class: str | None = None
    traits: frozenset[str] = frozenset()
    #: Its NVLink sets, in the form of :mod:`nova_hpc.topology.nvlink`.
    #: They can be checked only together with all members.
    nvlink: str | None = None

    def to_spec(self) -> dict[str, str]:
        """Return the keys and texts to add to an entry of ``[pci]device_spec``."""
        place = self.location
        pairs = {
            VERSION: str(DEVICE_TAGS.version),
            ROLE: self.role,
            SWITCH: SEPARATOR.join(place.switches) or None,
            ROOT: place.root,
            NUMA: None if place.numa is None else str(place.numa),
            SOCKET: None if place.socket is None else str(place.socket),
            GROUP: self.group,
            NVLINK: self.nvlink,
            RESOURCE_CLASS: self.resource_class,
            TRAITS: ",".join(sorted(self.traits)) or None,
        }
        return {key: value for key, value in pairs.items() if value is not None}


def parse_tags(pool: Mapping[str, object]) -> Tags | None:
    """Read the tags of a pool (or of a device specification).

    :param pool: any mapping that may hold ``hpc_*`` keys.
    :returns: None if there is no ``hpc_*`` key at all: an ordinary device.
    :raises TagError: unknown schema version, or a value of the wrong form.
    """
    tags = {key: value for key, value in pool.items() if key.startswith("hpc_")}
    if not tags:
        return None
    for key, value in tags.items():
        if not isinstance(value, str) or len(value) > 255:
            raise TagError(f"tag {key} is not a string of at most 255 characters")
    text = {key: str(value) for key, value in tags.items()}
    version = text.get(VERSION)
    if version not in _READS:
        readable = " or ".join(map(repr, _READS))
        raise TagError(f"tag {VERSION} is {version!r}, this release reads {readable}")
    switches = tuple(filter(None, text.get(SWITCH, "").split(SEPARATOR)))
    if switches and ROOT not in text:
        raise TagError(f"tag {SWITCH} needs tag {ROOT}")
    return Tags(
        location=Location(
            numa=_read_tag_number(text, NUMA),
            socket=_read_tag_number(text, SOCKET),
            root=text.get(ROOT) or None,
            switches=switches,
        ),
        role=text.get(ROLE) or None,
        group=text.get(GROUP) or None,
        nvlink=text.get(NVLINK) or None,
        resource_class=text.get(RESOURCE_CLASS) or None,
        traits=frozenset(filter(None, text.get(TRAITS, "").split(","))),
    )


def has_tags(pool: Mapping[str, object]) -> bool:
    """Whether a pool has ``hpc_*`` tags at all, also unreadable ones."""
    return any(key.startswith("hpc_") for key in pool)


def _read_tag_number(text: Mapping[str, str], key: str) -> int | None:
    value = text.get(key)
    if value is None:
        return None
    # str.isdigit accepts other scripts' digits, which int() would take too.
    if not (value.isascii() and value.isdigit() and len(value) <= 6):
        raise TagError(f"tag {key} is {value!r}, not a small whole number")
    return int(value)
