# SPDX-License-Identifier: Apache-2.0
"""The operator's quality of service for a partition, in UFM's units."""

from __future__ import annotations

import attrs

from nova_hpc.fabric.partitions.members import PartitionPolicy
from nova_hpc_ufm.partitions import GIGABITS, KIBIBYTES, UfmQuality


def follow_policy(
    before: UfmQuality, policy: PartitionPolicy
) -> tuple[UfmQuality, tuple[str, ...]]:
    """Apply the operator's policy to the quality-of-service settings of a partition.

    :param before: the quality of service at UFM.
    :returns: the new one; and texts for people on the parts of the policy that UFM cannot do.
    """
    unknown = []
    after = before
    if policy.service_level is not None:
        after = attrs.evolve(after, service_level=policy.service_level)
    if policy.rate is not None and policy.rate in GIGABITS:
        after = attrs.evolve(after, rate_limit=GIGABITS[policy.rate])
    elif policy.rate is not None:
        unknown.append(
            f"[hpc_partitions]rates has {policy.rate}; UFM takes {min(GIGABITS)} to {max(GIGABITS)}"
        )
    if policy.mtu is not None and policy.mtu in KIBIBYTES:
        after = attrs.evolve(after, mtu_limit=KIBIBYTES[policy.mtu])
    elif policy.mtu is not None:
        unknown.append(
            f"[hpc_partitions]mtus has {128 << policy.mtu} bytes; UFM takes 2048 and 4096"
        )
    return after, tuple(unknown)
