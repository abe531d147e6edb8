# SPDX-License-Identifier: Apache-2.0
"""Partitions that tests want of UFM, and what the backend says of them."""

from __future__ import annotations

from nova_hpc.fabric.partitions.backends.base import (
    MemberState,
)
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.members import (
    DesiredPartitions,
    PartitionMember,
)
from nova_hpc_ufm.subnet_manager import UfmSubnetManager

A, B, C = 0x0002C90000200001, 0x0002C90000200002, 0x0002C90000200003
TEXT = {guid: f"{guid:016x}" for guid in (A, B, C)}


def want(
    ticket: int, *members: tuple[int, int, Membership], **policies: object
) -> DesiredPartitions:
    rows = tuple(
        PartitionMember(row=row, port_id=f"port-{row}", guid=guid, pkey=pkey, membership=membership)
        for row, (pkey, guid, membership) in enumerate(members, start=1)
    )
    return DesiredPartitions(ticket, rows, policies.get("policies", {}))


FULL, LIMITED = Membership.FULL, Membership.LIMITED
TWO = ((0x101, A, FULL), (0x102, B, FULL), (0x102, C, LIMITED))


def states(manager: UfmSubnetManager, desired: DesiredPartitions) -> list[MemberState]:
    readings = manager.read_back(desired).members
    return [readings[row].state for row in sorted(readings)]


#: Settings of a manager that keeps everybody else out.
SECURE = {
    "sa_key": "0x3f1a9b77c20d4e58",
    "sm_key": "0x9d0be1f3a7c24861",
    "m_key": "0xffffffffffffffff",
    "m_key_protection_level": 2,
    "m_key_per_port": True,
    "no_partition_enforcement": False,
    "vs_key_enable": 2,
    "cc_key_enable": 2,
    "n2n_key_enable": 2,
    "allowed_sm_guids": "0x1070fd03001763d4,0x966daefffe2ac8d2",
    "sa_enhanced_trust_model": True,
    "virt_enabled": 2,
}
