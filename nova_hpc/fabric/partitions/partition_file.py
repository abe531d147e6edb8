# SPDX-License-Identifier: Apache-2.0
"""opensm's ``partitions.conf`` as a whole: the default partition, the administrator's own ones and
the partitions of Neutron's networks.

Three parts, in this order, each after a comment of the agent's. The comments contain the ticket of
the reading, and a digest that shows whether others have changed the file.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from nova_hpc.fabric.partitions.default_rule import read_default_rule
from nova_hpc.fabric.partitions.keys import (
    DEFAULT_PKEY,
    LARGEST_PKEY,
    LEAST_PKEY,
    MOST_PKEYS_OF_A_PORT,
    Membership,
    format_guid,
    format_pkey,
)
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionPolicy
from nova_hpc.fabric.partitions.own_partitions import (
    RESERVED_COMMENT,
    OwnPartitions,
    find_long_line,
    parse_own_partitions,
)

_TITLE: Final = (
    f"{RESERVED_COMMENT}written by nova-hpc-fabric-agent; what is changed here is undone"
)
_TICKET: Final = re.compile(r"# ticket (0|[1-9][0-9]{0,18})")
_DIGEST: Final = re.compile(re.escape(RESERVED_COMMENT) + r"sha256 ([0-9a-f]{64})")
_OWN: Final = f"{RESERVED_COMMENT}the administrator's own partitions"
_NETWORKS: Final = f"{RESERVED_COMMENT}networks"
_HEAD: Final = re.compile(
    r"network_([0-9a-f]{4})=0x([0-9a-f]{4}), ipoib(?:, sl=(\d+))?(?:, rate=(\d+))?"
    r"(?:, mtu=(\d+))? :"
)
_MEMBER: Final = re.compile(r" 0x([0-9a-f]{16})=(full|limited)([,;])")


class PartitionFileError(ValueError):
    """The file of partitions does not have the agent's form. The text names the place."""


def _freeze_partitions(
    given: Mapping[int, Mapping[int, Membership]],
) -> Mapping[int, Mapping[int, Membership]]:
    return MappingProxyType({pkey: dict(members) for pkey, members in given.items()})


@attrs.frozen
class PartitionLayout:
    """The networks in the subnet manager's file: their members and settings.

    :ivar partitions: P_Key -> GUID of each member -> its membership.
    :ivar refused: row -> the reason why *partitions* lacks it.
    """

    partitions: Mapping[int, Mapping[int, Membership]] = attrs.field(
        factory=dict, converter=_freeze_partitions
    )
    policies: Mapping[int, PartitionPolicy] = attrs.field(factory=dict)
    refused: Mapping[int, str] = attrs.field(factory=dict, eq=False)

    def pkeys_by_guid(self) -> Mapping[int, Mapping[int, Membership]]:
        """Return port GUID -> P_Key (15 bits) of each network of the port -> its membership."""
        turned: defaultdict[int, dict[int, Membership]] = defaultdict(dict)
        for pkey, members in self.partitions.items():
            for guid, membership in members.items():
                turned[guid][pkey] = membership
        return turned


@attrs.frozen
class PartitionFile:
    """The parsed content of a file of partitions that the agent has written.

    :ivar unchanged: its digest is right, so no other program or person changed it since.
    """

    ticket: int
    own: OwnPartitions
    layout: PartitionLayout
    unchanged: bool = True


def lay_out_partitions(
    desired: DesiredPartitions,
    own: OwnPartitions,
    most_pkeys: int = MOST_PKEYS_OF_A_PORT,
    managers: frozenset[int] = frozenset(),
) -> PartitionLayout:
    """Decide the content of the file. Each row is judged by itself; a refused row stops no other.

    Rows of one physical port and P_Key share a table entry, which has the membership of the
    earliest row. A later row never changes it.

    :param managers: GUIDs of ports with a subnet manager.
    """
    partitions: defaultdict[int, dict[int, Membership]] = defaultdict(dict)
    refused: dict[int, str] = {}
    keys_of: defaultdict[int, set[int]] = defaultdict(set)
    own_pkeys = own.pkeys()
    for member in sorted(desired.wanted(), key=lambda member: member.row):
        reason = _refuse_pkey(member.pkey, own_pkeys)
        keys = keys_of[member.guid]
        if reason is None and not keys:
            keys |= {entry & 0x7FFF for entry in own.entries_of(member.guid)} - {DEFAULT_PKEY}
        if reason is None and member.guid in managers:
            reason = describe_manager_port(member.guid)
        if reason is None and member.pkey not in keys and len(keys) >= most_pkeys:
            reason = (
                f"port {format_guid(member.guid)} is in {len(keys)} partitions already, and the "
                f"subnet manager keeps {most_pkeys} of a port: take it out of another network"
            )
        given = partitions.get(member.pkey, {}).get(member.guid, member.membership)
        if reason is None and given is not member.membership:
            reason = (
                f"port {format_guid(member.guid)} is a {given} member of "
                f"{format_pkey(member.pkey)}, because an earlier port of the network has the same "
                "physical port: one table entry has one membership"
            )
        if reason is not None:
            refused[member.row] = reason
            continue
        keys.add(member.pkey)
        partitions[member.pkey][member.guid] = member.membership
    policies = {
        pkey: policy
        for pkey, policy in desired.policies.items()
        if pkey in partitions and policy != PartitionPolicy()
    }
    return PartitionLayout(partitions, policies, refused)


def describe_manager_port(guid: int) -> str:
    """Return the reason why a subnet manager's port gets no P_Key of a network."""
    return (
        f"port {format_guid(guid)} is a subnet manager's: it reaches all ports over the default "
        "partition, so no server may have it"
    )


def _refuse_pkey(pkey: int, own_pkeys: frozenset[int]) -> str | None:
    if not LEAST_PKEY <= pkey <= LARGEST_PKEY:
        return f"P_Key {pkey:#06x} is none that a network can have"
    if pkey in own_pkeys:
        return (
            f"P_Key {format_pkey(pkey)} is one of the administrator's own partitions: give the "
            "network or the partition another one"
        )
    return None


def render_body(layout: PartitionLayout, own: OwnPartitions) -> str:
    """Render the part of the file that opensm reads. Files with equal bodies have the same effect.

    :raises PartitionFileError: a line would be too long for opensm.
    """
    body = f"{own.default.render()}{_OWN}, {len(own.text)} characters\n"
    body += f"{own.text}\n{_NETWORKS}\n"
    for pkey, members in sorted(layout.partitions.items()):
        if members:
            body += _render_partition(pkey, members, layout.policies.get(pkey, PartitionPolicy()))
    number = find_long_line(body)
    if number is not None:
        raise PartitionFileError(f"line {number} would be too long for opensm")
    return body


def _render_partition(pkey: int, members: Mapping[int, Membership], policy: PartitionPolicy) -> str:
    flags = "" if policy.service_level is None else f", sl={policy.service_level}"
    flags += "" if policy.rate is None else f", rate={policy.rate}"
    flags += "" if policy.mtu is None else f", mtu={policy.mtu}"
    rows = ",\n".join(
        f" {format_guid(guid)}={membership}" for guid, membership in sorted(members.items())
    )
    return f"network_{pkey:04x}={format_pkey(pkey)}, ipoib{flags} :\n{rows};\n"


def render_file(body: str, ticket: int) -> str:
    """Return the complete file of partitions: the agent's comment lines, then the body.

    :param ticket: number of the reading of the desired state that the body is made from.
    """
    digest = _digest_body(body, ticket)
    return f"{_TITLE}\n# ticket {ticket}\n{RESERVED_COMMENT}sha256 {digest}\n{body}"


def _digest_body(body: str, ticket: int) -> str:
    return hashlib.sha256(f"{ticket}\n{body}".encode("utf-8", "surrogateescape")).hexdigest()


def body_of_file(text: str) -> str | None:
    """Return the part of an agent's file that opensm reads; None if the file is not an agent's.

    Only a file that was not changed since it was written has a body.
    """
    head = text.split("\n", 3)
    if len(head) < 4 or head[0] != _TITLE:
        return None
    ticket, digest = _TICKET.fullmatch(head[1]), _DIGEST.fullmatch(head[2])
    if ticket is None or digest is None or digest[1] != _digest_body(head[3], int(ticket[1])):
        return None
    return head[3]


def parse_file(text: str) -> PartitionFile:
    """Read a file that the agent has written.

    :raises PartitionFileError: it is not as the agent writes it.
    """
    head = text.split("\n", 3)
    if len(head) < 4 or head[0] != _TITLE:
        raise PartitionFileError("line 1: the agent has not written this file")
    ticket = _TICKET.fullmatch(head[1])
    if ticket is None:
        raise PartitionFileError(f"line 2: {head[1][:60]!r} is no ticket")
    default_text, _, rest = head[3].partition(f"{_OWN}, ")
    default = read_default_rule(default_text)
    if default.render() != default_text:
        raise PartitionFileError("line 4: the default partition is another one")
    length, _, rest = rest.partition(" characters\n")
    if not length.isdecimal() or len(rest) < int(length):
        raise PartitionFileError("line 5: the own partitions are not as long as they should be")
    own_text, networks = rest[: int(length)], rest[int(length) :]
    if not networks.startswith(f"\n{_NETWORKS}\n"):
        raise PartitionFileError("the networks do not follow the own partitions")
    try:
        own = attrs.evolve(parse_own_partitions(own_text), default=default)
    except ValueError as error:
        raise PartitionFileError(f"own partitions: {error}") from error
    layout = _parse_networks(networks.removeprefix(f"\n{_NETWORKS}\n"))
    return PartitionFile(int(ticket[1]), own, layout, body_of_file(text) is not None)


def _parse_networks(text: str) -> PartitionLayout:
    partitions: dict[int, dict[int, Membership]] = {}
    policies: dict[int, PartitionPolicy] = {}
    members: dict[int, Membership] | None = None
    for line in text.split("\n")[:-1]:
        if members is None:
            match = _HEAD.fullmatch(line)
            if match is None or match[1] != match[2] or int(match[1], 16) in partitions:
                raise PartitionFileError(f"{line[:60]!r} is no partition of a network")
            pkey = int(match[1], 16)
            policy = PartitionPolicy(
                *(None if text is None else int(text) for text in match.group(3, 4, 5))
            )
            if policy != PartitionPolicy():
                policies[pkey] = policy
            members = partitions[pkey] = {}
        else:
            match = _MEMBER.fullmatch(line)
            if match is None or int(match[1], 16) in members:
                raise PartitionFileError(f"{line[:60]!r} is no member")
            members[int(match[1], 16)] = Membership(match[2])
            if match[3] == ";":
                members = None
    if members is not None or not (text == "" or text.endswith("\n")):
        raise PartitionFileError("the last partition is cut off")
    return PartitionLayout(partitions, policies)
