# SPDX-License-Identifier: Apache-2.0
"""Partitions, ports and qualities of service in UFM's answers.

Pure: UFM's answers come in as JSON. A record that lacks something makes one partition unknown, and
does not affect the others. An answer that is not a list of partitions at all is an error.
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
from nova_hpc_common.outside.text import printable_text

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
#: UFM takes two MTUs, by KiB: encoding of the InfiniBand specification -> ``mtu_limit``.
KIBIBYTES: Final[Mapping[int, int]] = MappingProxyType({4: 2, 5: 4})
#: GUID -> its membership.
Members = Mapping[int, Membership]
#: P_Key -> members.
Memberships = Mapping[int, Members]
_LIKE: Final = "the agent can read the answers of UFM 6.15.1 to 6.24.1"
#: A key among the partitions if UFM is configured to add the name of the site to all answers.
_NAME_OF_SITE: Final = "site_name"


@attrs.frozen
class UfmPartition:
    """A partition in UFM's answer, with its members.

    :ivar members: GUID -> its membership; None if UFM lists no valid membership, or two.
    :ivar default_membership: only of the default partition, from UFM 6.19 on: the membership of
        ports that are in no other list.
    :ivar problem: why its members are unknown; "" if they are known.
    """

    pkey: int
    name: str = ""
    members: Mapping[int, Membership | None] = attrs.field(factory=dict)
    default_membership: Membership | None = None
    problem: str = ""

    @property
    def named_ours(self) -> bool:
        """Whether the partition's name has the prefix of nova-hpc's agent."""
        return self.name.startswith(NAME_PREFIX)


@attrs.frozen
class UfmListing:
    """All partitions that UFM lists.

    :ivar partitions: P_Key -> partition, including those whose members are unknown.
    :ivar faults: sentences on records that are not understood.
    """

    partitions: Mapping[int, UfmPartition]
    faults: tuple[str, ...] = ()

    @property
    def default(self) -> UfmPartition:
        """The default partition (P_Key 0x7fff), as UFM lists it."""
        return self.partitions[DEFAULT_PKEY]

    def members(self, pkey: int) -> Mapping[int, Membership | None]:
        """Return GUID -> membership in the partition; empty if it is absent or unknown."""
        partition = self.partitions.get(pkey)
        return {} if partition is None else partition.members

    def is_unknown(self, pkey: int) -> bool:
        """Whether the partition exists and its members are unknown."""
        partition = self.partitions.get(pkey)
        return partition is not None and bool(partition.problem)


def read_partitions(answer: object) -> UfmListing:
    """Parse the answer to ``GET /resources/pkeys?guids_data=true``.

    :raises SubnetManagerError: it is none.
    """
    if not isinstance(answer, dict):
        raise _unknown("the list of partitions is no object", answer)
    partitions: dict[int, UfmPartition] = {}
    faults: list[str] = []
    for key, body in answer.items():
        if key == _NAME_OF_SITE:
            continue
        try:
            pkey = int(str(key), 16) & DEFAULT_PKEY
        except ValueError:
            faults.append(str(_unknown("a P_Key is no hexadecimal number", key)))
            continue
        partition = _read_partition(pkey, body)
        if pkey in partitions:
            partition = UfmPartition(pkey, problem="UFM lists it twice")
        partitions[pkey] = partition
    if DEFAULT_PKEY not in partitions:
        # UFM cannot delete it, so a list without it is not the list.
        raise _unknown("the list of partitions lacks the default one, 0x7fff", sorted(answer)[:5])
    faults += [
        f"the members of the partition {format_pkey(pkey)} at UFM are unknown, and it is left as "
        f"it is: {partition.problem}"
        for pkey, partition in sorted(partitions.items())
        if partition.problem
    ]
    faults += [
        f"UFM reports no membership, or two, of {format_guid(guid)} in the partition "
        f"{format_pkey(pkey)}"
        for pkey, partition in sorted(partitions.items())
        for guid, membership in sorted(partition.members.items())
        if membership is None
    ]
    return UfmListing(partitions, tuple(faults))


def _read_partition(pkey: int, body: object) -> UfmPartition:
    if not isinstance(body, dict):
        return UfmPartition(pkey, problem=_quote("its record is no object", body))
    name = body.get("partition")
    if not isinstance(name, str):
        return UfmPartition(pkey, problem=_quote("it has no name", body))
    # The default partition's list contains only members that are not in it by default.
    entries = body.get("guids", [] if pkey == DEFAULT_PKEY else None)
    if not isinstance(entries, list):
        return UfmPartition(pkey, name, problem=_quote("UFM lists no members", body))
    members: dict[int, Membership | None] = {}
    for entry in entries:
        try:
            guid = parse_guid(entry["guid"])
        except (KeyError, TypeError, ValueError):
            return UfmPartition(pkey, name, problem=_quote("a member has no GUID", entry))
        membership = _read_membership(entry.get("membership"))
        members[guid] = membership if members.get(guid, membership) is membership else None
    stated = body.get("membership")
    default = _read_membership(stated)
    if stated is not None and default is None:
        return UfmPartition(pkey, name, problem=_quote("its default membership", stated))
    return UfmPartition(pkey, name, MappingProxyType(members), default)


def _read_membership(stated: object) -> Membership | None:
    try:
        return Membership(stated)  # type: ignore[arg-type]
    except ValueError:
        return None


@attrs.frozen
class UfmPorts:
    """The GUIDs of ports on the fabric, as UFM lists them.

    :ivar whole: whether all are known, so that another GUID is on the fabric nowhere.
    """

    guids: frozenset[int] = frozenset()
    whole: bool = True

    def joined(self, other: UfmPorts) -> UfmPorts:
        """Return the ports of both lists; the result is whole if both are."""
        return UfmPorts(self.guids | other.guids, self.whole and other.whole)


def read_port_guids(answer: object, field: str) -> UfmPorts:
    """Read the answer to ``GET /resources/ports`` (*field* ``guid``) or ``/resources/vports``.

    Ports of switches have GUIDs that no member has, and some have none: those are left out.
    """
    if not isinstance(answer, list):
        return UfmPorts(whole=False)
    guids: set[int] = set()
    whole = True
    for port in answer:
        if not isinstance(port, dict) or field not in port:
            whole = False
            continue
        try:
            guids.add(parse_guid(port[field]))
        except ValueError:
            continue
    return UfmPorts(frozenset(guids), whole)


@attrs.frozen
class UfmQuality:
    """The quality-of-service settings of a partition at UFM: MTU, service level and rate."""

    #: KiB.
    mtu_limit: int
    service_level: int
    #: Gb/s.
    rate_limit: float


def read_qualities(answer: object) -> dict[int, UfmQuality]:
    """Read the answer to ``GET /resources/pkeys?qos_conf=true``.

    Partitions without a quality of service, or with one that is not understood, are absent.

    :raises SubnetManagerError: the answer has another form.
    """
    if not isinstance(answer, dict):
        raise _unknown("the list of partitions is no object", answer)
    qualities: dict[int, UfmQuality] = {}
    for key, body in answer.items():
        try:
            stated = body["qos_conf"]
            qualities[int(str(key), 16) & DEFAULT_PKEY] = UfmQuality(
                mtu_limit=int(stated["mtu_limit"]),
                service_level=int(stated["service_level"]),
                rate_limit=float(stated["rate_limit"]),
            )
        except (KeyError, TypeError, ValueError):
            continue
    return qualities


def describe_members(members: Mapping[int, Membership | None]) -> str:
    """Format GUIDs with their memberships, as a text for people."""
    return ", ".join(
        f"{format_guid(guid)} {members[guid] or 'with an unknown membership'}"
        for guid in sorted(members)
    )


def describe_pkeys(pkeys: Iterable[int]) -> str:
    """Format P_Keys as a text for people, such as ``0x0101, 0x0102``."""
    return ", ".join(format_pkey(pkey) for pkey in sorted(pkeys))


def _unknown(what: str, answer: Any) -> SubnetManagerError:
    return SubnetManagerError(f"UFM's answer is not understood: {_quote(what, answer)}")


def _quote(what: str, answer: object) -> str:
    return f"{what}: {printable_text(repr(answer))[:200]}; {_LIKE}"
