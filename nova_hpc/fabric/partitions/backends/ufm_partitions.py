# SPDX-License-Identifier: Apache-2.0
"""Partitions as UFM has them, and what has to change at UFM for them to be as desired.

Pure: answers of UFM come in as JSON, changes go out as values. What an answer does not say
is unknown, never absent: it is an error here, but for fields of which nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

from nova_hpc.fabric.partitions.backends.base import SubnetManagerError
from nova_hpc.fabric.partitions.keys import (
    DEFAULT_PKEY,
    Membership,
    format_guid,
    format_pkey,
    parse_guid,
)
from nova_hpc.fabric.partitions.members import DesiredPartitions
from nova_hpc.outside.text import printable_text

#: Beginning of the names of the partitions that this project makes (UFM 6.22 takes names).
NAME_PREFIX: Final = "nova-hpc-"
#: UFM calls rates by Gb/s: encoding of the InfiniBand specification (static rate) -> Gb/s.
GIGABITS: Final[Mapping[int, float]] = MappingProxyType(
    dict(
        enumerate(
            (2.5, 10, 30, 5, 20, 40, 60, 80, 120, 14, 56, 112, 168, 25, 100, 200, 300), start=2
        )
    )
)
#: GUID -> its membership.
Members = Mapping[int, Membership]
_LIKE: Final = "the agent knows the answers of UFM 6.15.1 to 6.24.1"


def _freeze_members(members: Members) -> Members:
    return MappingProxyType(dict(members))


@attrs.frozen
class UfmPartition:
    """One partition as UFM tells it.

    :ivar default_membership: of the default partition alone, from UFM 6.19 on: what ports have
        that are in no other list.
    """

    pkey: int
    name: str
    members: Members = attrs.field(converter=_freeze_members)
    default_membership: Membership | None = None

    @property
    def named_ours(self) -> bool:
        """Whether its name says that this project has made it."""
        return self.name.startswith(NAME_PREFIX)


@attrs.frozen
class UfmChanges:
    """What has to be asked of UFM, in this order.

    :ivar removals: P_Key -> GUIDs that go: first of all, so that no GUID is in two partitions.
    :ivar removed_partitions: of ours that nobody wants.
    :ivar new_partitions: that UFM has not.
    :ivar additions: P_Key -> GUIDs that come; a membership that changes is among both.
    :ivar conflicts: P_Key -> name of a partition of somebody else that has a wanted P_Key.
    """

    removals: Mapping[int, tuple[int, ...]]
    removed_partitions: tuple[int, ...]
    new_partitions: tuple[int, ...]
    additions: Mapping[int, Members]
    conflicts: Mapping[int, str]

    @property
    def empty(self) -> bool:
        """Whether UFM has to be asked for nothing."""
        return not (
            self.removals or self.removed_partitions or self.new_partitions or self.additions
        )


def merge_members(desired: DesiredPartitions) -> dict[int, dict[int, Membership]]:
    """P_Key -> the wanted members; where rows of one GUID differ, limited membership wins."""
    wanted: dict[int, dict[int, Membership]] = {}
    for member in desired.wanted():
        partition = wanted.setdefault(member.pkey, {})
        if partition.get(member.guid) is not Membership.LIMITED:
            partition[member.guid] = member.membership
    return wanted


def plan_changes(
    wanted: Mapping[int, Members], ours: frozenset[int], present: Mapping[int, UfmPartition]
) -> UfmChanges:
    """What makes *present* as *wanted*, without a touch of what is not *ours*."""
    conflicts = {
        pkey: present[pkey].name for pkey in sorted(wanted) if pkey in present and pkey not in ours
    }
    removals: dict[int, tuple[int, ...]] = {}
    additions: dict[int, Members] = {}
    for pkey in sorted((ours & present.keys()) | (wanted.keys() - conflicts.keys())):
        before = present[pkey].members if pkey in present else {}
        after = wanted.get(pkey, {})
        going = tuple(sorted(guid for guid in before if after.get(guid) is not before[guid]))
        # A partition that nobody wants goes whole.
        if going and after:
            removals[pkey] = going
        coming = {guid: after[guid] for guid in sorted(after) if after[guid] != before.get(guid)}
        if coming:
            additions[pkey] = coming
    return UfmChanges(
        removals=removals,
        removed_partitions=tuple(sorted((ours & present.keys()) - wanted.keys())),
        new_partitions=tuple(sorted(wanted.keys() - present.keys())),
        additions=additions,
        conflicts=conflicts,
    )


def read_partitions(answer: object) -> dict[int, UfmPartition]:
    """Read the answer to ``GET /resources/pkeys?guids_data=true``: P_Key -> partition.

    :raises SubnetManagerError: it is none, or says too little.
    """
    if not isinstance(answer, dict):
        raise _unknown("the list of partitions is no object", answer)
    partitions: dict[int, UfmPartition] = {}
    for key, body in answer.items():
        partition = _read_partition(key, body)
        if partition.pkey in partitions:
            raise _unknown("two partitions have one P_Key", key)
        partitions[partition.pkey] = partition
    if DEFAULT_PKEY not in partitions:
        # It cannot be deleted: a list without it is not the list.
        raise _unknown("the list of partitions lacks the default one, 0x7fff", sorted(answer)[:5])
    return partitions


def _read_partition(key: object, body: object) -> UfmPartition:
    try:
        pkey = int(str(key), 16) & DEFAULT_PKEY
    except ValueError:
        raise _unknown("a P_Key is no hexadecimal number", key) from None
    if not isinstance(body, dict) or not isinstance(body.get("partition"), str):
        raise _unknown(f"partition {format_pkey(pkey)} has no name", body)
    # The default partition has a list only of those that are in it otherwise than by default.
    entries = body.get("guids", [] if pkey == DEFAULT_PKEY else None)
    if not isinstance(entries, list):
        raise _unknown(f"partition {format_pkey(pkey)} does not say who is in it", body)
    members: dict[int, Membership] = {}
    for entry in entries:
        try:
            members[parse_guid(entry["guid"])] = Membership(entry["membership"])
        except (KeyError, TypeError, ValueError):
            raise _unknown(f"a member of partition {format_pkey(pkey)}", entry) from None
    stated = body.get("membership")
    try:
        default_membership = None if stated is None else Membership(stated)
    except ValueError:
        raise _unknown(f"the membership of partition {format_pkey(pkey)}", stated) from None
    return UfmPartition(pkey, body["partition"], members, default_membership)


def read_port_guids(answer: object, field: str) -> frozenset[int]:
    """Read the answer to ``GET /resources/ports`` (*field* ``guid``) or ``/resources/vports``.

    Ports of switches have GUIDs that no member has, and some have none: those are left out.

    :raises SubnetManagerError: it is none.
    """
    if not isinstance(answer, list):
        raise _unknown("the list of ports is no list", answer)
    guids: set[int] = set()
    for port in answer:
        if not isinstance(port, dict) or field not in port:
            raise _unknown(f"a port has no {field}", port)
        try:
            guids.add(parse_guid(port[field]))
        except ValueError:
            continue
    return frozenset(guids)


@attrs.frozen
class UfmQuality:
    """What UFM says of a partition's quality of service."""

    mtu_limit: int
    service_level: int
    #: Gb/s.
    rate_limit: float


def read_qualities(answer: object) -> dict[int, UfmQuality]:
    """Read the answer to ``GET /resources/pkeys?qos_conf=true``; partitions without it are absent.

    :raises SubnetManagerError: it is none.
    """
    if not isinstance(answer, dict):
        raise _unknown("the list of partitions is no object", answer)
    qualities: dict[int, UfmQuality] = {}
    for key, body in answer.items():
        stated = body.get("qos_conf") if isinstance(body, dict) else None
        if stated is None:
            continue
        try:
            qualities[int(str(key), 16) & DEFAULT_PKEY] = UfmQuality(
                mtu_limit=int(stated["mtu_limit"]),
                service_level=int(stated["service_level"]),
                rate_limit=float(stated["rate_limit"]),
            )
        except (KeyError, TypeError, ValueError):
            raise _unknown(f"the quality of service of partition {key}", stated) from None
    return qualities


def describe_members(members: Members) -> str:
    """For people: GUIDs with their memberships."""
    return ", ".join(f"{format_guid(guid)} {members[guid]}" for guid in sorted(members))


def describe_pkeys(pkeys: Iterable[int]) -> str:
    """For people, e.g. ``0x0101, 0x0102``."""
    return ", ".join(format_pkey(pkey) for pkey in sorted(pkeys))


def _unknown(what: str, answer: Any) -> SubnetManagerError:
    return SubnetManagerError(
        f"UFM's answer is not understood: {what}: {printable_text(repr(answer))[:200]}; {_LIKE}"
    )
