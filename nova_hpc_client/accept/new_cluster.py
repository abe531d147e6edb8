# SPDX-License-Identifier: Apache-2.0
"""Measures a new cluster, and replaces rejected members once; it is accepted whole or fails."""

from __future__ import annotations

from collections.abc import Callable

from nova_hpc_client.accept.cluster_result import ClusterAcceptance
from nova_hpc_client.cluster.life_cycle import commands
from nova_hpc_client.cluster.life_cycle.run import (
    ClusterCloud,
    ClusterCloudError,
    ClusterError,
    Pace,
)
from nova_hpc_client.cluster.members.model import Cluster
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.outside.text import printable_text
from nova_hpc_guest.accept.result import ACCEPTED


def settle_cluster(
    cloud: ClusterCloud,
    cluster: Cluster,
    secrets: Secrets,
    pace: Pace,
    measure: Callable[[Cluster], ClusterAcceptance],
    told: Callable[[str], None] = lambda text: None,
) -> Cluster:
    """Measure a cluster, and replace rejected members once.

    :param measure: measures all members.
    :param told: called with the reasons before members are replaced: a replaced server takes the
        verdict in its metadata with it.
    :returns: the present cluster, with all members accepted.
    :raises ClusterError: a member is not accepted; the cluster stays as it is.
    """
    measured = measure(cluster)
    if measured.verdict == ACCEPTED:
        return _look_again(cloud, cluster)
    which = sorted(member.number for member in measured.rejected)
    if not which:
        # The members are undecided or refused: a replacement would not change that.
        raise ClusterError(format_rejection(measured))
    told(f"{format_rejection(measured)}\na rejected member is replaced, once")
    changed = commands.replace_members(cloud, cluster, which, secrets, pace)
    again = measure(changed)
    if again.verdict != ACCEPTED:
        names = ", ".join(printable_text(member.name) for member in measured.rejected)
        raise ClusterError(f"{format_rejection(again)}\n{names} had been replaced once before")
    return _look_again(cloud, changed)


def _look_again(cloud: ClusterCloud, cluster: Cluster) -> Cluster:
    """Read the cluster again with its verdicts; return *cluster* if it cannot be read.

    The verdicts were written after it had been read.
    """
    try:
        return cloud.look(cluster.id)
    except ClusterCloudError:
        # The cluster is accepted even if this last reading fails.
        return cluster


def format_rejection(measured: ClusterAcceptance) -> str:
    """Format one line for each member that is not accepted, with its reasons."""
    lines = [f"cluster {measured.name} is not accepted: {measured.verdict}"]
    for member in measured.members:
        if member.result.verdict != ACCEPTED:
            reasons = "; ".join(member.reasons)
            about = f"{member.name}: {member.result.verdict}"
            lines.append(printable_text(f"{about}: {reasons}" if reasons else about))
    return "\n".join([*lines, *map(printable_text, measured.notes)])
