# SPDX-License-Identifier: Apache-2.0
"""NVLink sets as the tags of their members: written by nodes, read back by schedulers.

A *set* is usable by a server as a whole: all GPUs of a partition of NVSwitches, or GPUs
with direct links. Every member carries the tag ``hpc_nvlink``: a comma-separated list of
``name:size``, one entry for each set that it is in. A reader rebuilds the sets from the
devices that it sees. A set counts only if all of its *size* members are present.

For example, two GPUs with ``pair0:2`` and two with ``pair1:2,quad:4`` make the set
``pair0`` and the set ``pair1``. ``quad`` has two of its four members, so it does not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

#: The role of NVSwitches in the default of ``[hpc]device_role``.
SWITCH_ROLE: Final = "nvswitch"

#: Names of sets are short, because a tag holds 255 characters.
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", re.ASCII)

#: More GPUs than any NVLink domain inside one host has.
MOST_MEMBERS: Final = 64

_SIZE: Final = re.compile(r"[0-9]{1,3}", re.ASCII)


def format_nvlink_tag(memberships: Mapping[str, int]) -> str | None:
    """Format the tag ``hpc_nvlink`` of a device; None if the device is in no NVLink set.

    :param memberships: name of each set -> number of its members.
    """
    return ",".join(f"{name}:{size}" for name, size in sorted(memberships.items())) or None


@attrs.frozen
class NvlinkSetTable:
    """The complete NVLink sets of a node, and the faults of the others."""

    #: Ids of the members of each set, in the order of the sets' names.
    sets: tuple[frozenset[str], ...] = ()
    #: One sentence for each set that is unusable because its tags are wrong.
    faults: tuple[str, ...] = ()


@attrs.define
class _Set:
    sizes: set[int] = attrs.field(factory=set)
    members: set[str] = attrs.field(factory=set)
    fault: str | None = None


def rebuild_nvlink_sets(tags: Mapping[str, str], shared: Iterable[str] = ()) -> NvlinkSetTable:
    """Rebuild the NVLink sets of a node from the tags of its usable devices.

    A wrong tag disables only the set that it names. An incomplete set is normal: a server
    uses the missing device.

    :param tags: id of each usable device -> value of its tag.
    :param shared: ids of pools with several functions, which cannot be members.
    """
    sets: dict[str, _Set] = {}
    faults: list[str] = []
    several = set(shared)
    for identifier, text in sorted(tags.items()):
        seen: set[str] = set()
        for word in text.split(","):
            name, colon, size = (part.strip() for part in word.partition(":"))
            if not NAME.fullmatch(name):
                # The intended set lacks this member now, so it is not used.
                faults.append(f"NVLink set {word[:40]!r} has no usable name")
                continue
            nvlink_set = sets.setdefault(name, _Set())
            if not (colon and _SIZE.fullmatch(size) and 2 <= int(size) <= MOST_MEMBERS):
                nvlink_set.fault = f"{size[:40]!r} is no size (2 to {MOST_MEMBERS})"
            elif name in seen:
                nvlink_set.fault = "a device names it twice"
            elif identifier in several:
                nvlink_set.fault = "one of its members is shared by several functions"
            else:
                nvlink_set.sizes.add(int(size))
                nvlink_set.members.add(identifier)
            seen.add(name)
    complete: dict[frozenset[str], None] = {}
    for name, nvlink_set in sorted(sets.items()):
        if nvlink_set.fault is None and len(nvlink_set.sizes) > 1:
            nvlink_set.fault = (
                f"its members disagree about its size ({_format_sizes(nvlink_set.sizes)})"
            )
        if nvlink_set.fault is None and len(nvlink_set.members) > max(nvlink_set.sizes):
            nvlink_set.fault = (
                f"it has {len(nvlink_set.members)} members, but its tag gives "
                f"{max(nvlink_set.sizes)}"
            )
        if nvlink_set.fault is not None:
            faults.append(f"NVLink set {name!r}: {nvlink_set.fault}")
        elif len(nvlink_set.members) == max(nvlink_set.sizes):
            complete.setdefault(frozenset(nvlink_set.members))
    return NvlinkSetTable(sets=tuple(complete), faults=tuple(dict.fromkeys(faults)))


def _format_sizes(sizes: Iterable[int]) -> str:
    return ", ".join(str(size) for size in sorted(sizes))
