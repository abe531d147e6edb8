# SPDX-License-Identifier: Apache-2.0
"""The desired partitions of a fabric, as Neutron's server sends them to the agent."""

from __future__ import annotations

from typing import Any, Final

import attrs

from nova_hpc.fabric.partitions.keys import (
    LARGEST_PKEY,
    LEAST_PKEY,
    Membership,
    format_guid,
    parse_guid,
)
from nova_hpc.fabric.partitions.members import (
    DesiredPartitions,
    PartitionMember,
    PartitionPolicy,
)
from nova_hpc.wire.strict import (
    WrongError,
    make_strict_converter,
    number_field,
    structure_document,
)
from nova_hpc_common.wire.version import WireDocument, WireError, show_json_value

DESIRED_PARTITIONS: Final = WireDocument(
    name="desired partitions",
    lives="the answer to read_desired of Neutron's server",
    writer="nova_hpc.wire.partitions:write_desired",
    readers=("nova_hpc.wire.partitions:read_desired",),
    schema="nova-hpc/desired-partitions",
)

_MOST_ROWS: Final = (1 << 63) - 1


@attrs.frozen
class _KeyPolicy:
    pkey: int
    service_level: int | None
    rate: int | None
    #: Servers of earlier releases do not send this key.
    mtu: int | None = None


@attrs.frozen
class _DesiredDocument:
    ticket: int
    members: tuple[PartitionMember, ...]
    policies: tuple[_KeyPolicy, ...]


def _read_guid(value: Any, _: Any) -> int:
    try:
        return parse_guid(value)
    except ValueError:
        raise WrongError(f"is {show_json_value(value)}, not a port GUID") from None


def _read_membership(value: Any, _: Any) -> Membership:
    try:
        return Membership(value)
    except ValueError:
        raise WrongError(f"is {show_json_value(value)}, not full or limited") from None


_CONVERTER: Final = make_strict_converter(
    {
        "ticket": number_field(0, _MOST_ROWS),
        "row": number_field(1, _MOST_ROWS),
        "guid": (int, _read_guid),
        "pkey": number_field(LEAST_PKEY, LARGEST_PKEY),
        "membership": (str, _read_membership),
        "service_level": number_field(0, 15),
        "rate": number_field(0, 63),
        "mtu": number_field(1, 5),
    },
    defaults=(_KeyPolicy,),
    growing=True,
)


def write_desired(desired: DesiredPartitions) -> dict[str, Any]:
    """Return the desired partitions as a JSON object, for the RPC to the fabric agent."""
    return {
        **DESIRED_PARTITIONS.head(),
        "ticket": desired.ticket,
        "members": [
            {**attrs.asdict(member), "guid": format_guid(member.guid)}
            | {"membership": member.membership.value}
            for member in desired.members
        ],
        "policies": [
            {"pkey": pkey, **attrs.asdict(policy)}
            for pkey, policy in sorted(desired.policies.items())
        ],
    }


def read_desired(data: object) -> DesiredPartitions:
    """Read the desired partitions from the RPC document.

    :raises nova_hpc_common.wire.version.LaterError: only a later release reads it.
    :raises WireError: it is broken: the desired partitions are unknown.
    """
    if not isinstance(data, dict) or data.get("schema") != DESIRED_PARTITIONS.schema:
        raise WireError(f"it is no document of {DESIRED_PARTITIONS.name}")
    DESIRED_PARTITIONS.check(data.get(DESIRED_PARTITIONS.key))
    try:
        document = structure_document(
            _CONVERTER, data, _DesiredDocument, {"members": "member", "policies": "policy"}
        )
    except WireError as error:
        raise DESIRED_PARTITIONS.broken(f"are wrong: {error}") from error
    policies = {
        policy.pkey: PartitionPolicy(policy.service_level, policy.rate, policy.mtu)
        for policy in document.policies
    }
    rows = {member.row for member in document.members}
    if len(rows) != len(document.members) or len(policies) != len(document.policies):
        raise DESIRED_PARTITIONS.broken("name a row or a P_Key twice")
    return DesiredPartitions(document.ticket, document.members, policies)
