# SPDX-License-Identifier: Apache-2.0
"""A new cluster is accepted, with members replaced once where they are not, or it fails whole."""

from __future__ import annotations

from collections.abc import Callable

from nova_hpc.guest.accept.result import ACCEPTED
from nova_hpc.outside.text import printable_text
from nova_hpc_tools.accept.cluster_result import ClusterAcceptance
from nova_hpc_tools.cluster.life_cycle import commands
from nova_hpc_tools.cluster.life_cycle.run import (
    ClusterCloud,
    ClusterCloudError,
    ClusterError,
    Pace,
)
from nova_hpc_tools.cluster.members.model import Cluster
from nova_hpc_tools.cluster.wish import Secrets


def settle_cluster(
    cloud: ClusterCloud,
    cluster: Cluster,
    secrets: Secrets,
    pace: Pace,
    measure: Callable[[Cluster], ClusterAcceptance],
    told: Callable[[str], None] = lambda text: None,
) -> Cluster:
    """Measure a cluster, and replace members that are rejected, once.

    :param measure: measures all members.
    :param told: is given the reasons before a member is replaced, which takes its verdict along.
    :returns: the cluster as it is now: all of its members are accepted.
    :raises ClusterError: one is not; what there is stays as it is.
    """
    measured = measure(cluster)
    if measured.verdict == ACCEPTED:
        return _look_again(cloud, cluster)
    which = sorted(member.number for member in measured.rejected)
    if not which:
        # Another member would not decide it.
        raise ClusterError(format_rejection(measured))
    told(f"{format_rejection(measured)}\nwhat is rejected is replaced, once")
    changed = commands.replace_members(cloud, cluster, which, secrets, pace)
    again = measure(changed)
    if again.verdict != ACCEPTED:
        names = ", ".join(printable_text(member.name) for member in measured.rejected)
        raise ClusterError(f"{format_rejection(again)}\n{names} had been replaced once before")
    return _look_again(cloud, changed)


def _look_again(cloud: ClusterCloud, cluster: Cluster) -> Cluster:
    """The cluster with its verdicts: they were written after it had been looked at."""
    try:
        return cloud.look(cluster.id)
    except ClusterCloudError:
        # It is accepted, whatever hinders the last look.
        return cluster


def format_rejection(measured: ClusterAcceptance) -> str:
    """Which members are not accepted, and why; one line each."""
    lines = [f"cluster {measured.name} is not accepted: {measured.verdict}"]
    for member in measured.members:
        if member.result.verdict != ACCEPTED:
            reasons = "; ".join(member.reasons)
            about = f"{member.name}: {member.result.verdict}"
            lines.append(printable_text(f"{about}: {reasons}" if reasons else about))
    return "\n".join([*lines, *map(printable_text, measured.notes)])
