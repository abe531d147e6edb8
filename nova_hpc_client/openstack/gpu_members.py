# SPDX-License-Identifier: Apache-2.0
"""Slots of a GPU share for the members of a virtual cluster, kept until the cluster is deleted."""

from __future__ import annotations

import contextlib
import sys

from nova_hpc_client.cluster.life_cycle.run import ClusterError, Pace
from nova_hpc_client.cluster.members.model import Cluster
from nova_hpc_client.gpu import attaching, cleaning, refusals
from nova_hpc_client.gpu.cloud import ask_again
from nova_hpc_client.openstack.cloud import SdkCloud
from nova_hpc_client.openstack.gpu_cloud import SdkShareCloud
from nova_hpc_common.outside.text import printable_text


def find_share_for(cloud: SdkCloud, name: str | None, members: int) -> str:
    """Return the id of the share with this name, if it has a free slot for each member.

    "" for no name.

    :raises ClusterError: there is no such share, or not enough room in it.
    """
    if not name:
        return ""
    view = ask_again(Pace(), SdkShareCloud(cloud.rest).look)
    share = refusals.find_share(view.shares, name)
    refusals.check_share(share)
    free = (share.record.slots if share.record else 0) - share.taken
    if free < members:
        raise ClusterError(
            f"share {share.name} has {max(free, 0)} free slots, and the cluster has {members} "
            "members: detach clients, or create another share"
        )
    return share.id


def attach_members(cloud: SdkCloud, cluster: Cluster, limit: float) -> None:
    """Give a slot to each member without one.

    :param limit: seconds for each member; 0 for no limit.
    :raises ClusterError: the cluster exists, but the named members have no slot.
    """
    wish = cluster.wish
    if wish is None or not wish.gpu_share:
        return
    share_cloud, pace = SdkShareCloud(cloud.rest), Pace(limit=limit)
    view = ask_again(pace, share_cloud.look)
    # Replaced members have left their slots, and no other slot may be free.
    for line in cleaning.clean_leftovers(share_cloud, view, pace):
        print(printable_text(line), file=sys.stderr)
    wrong = []
    for member in cluster.members:
        if member.going:
            continue
        try:
            attaching.attach_client(
                share_cloud,
                wish.gpu_share,
                member.id,
                attaching.AttachWish(),
                pace,
                lambda text: None,
            )
        except ClusterError as error:
            wrong.append(f"{member.shown}: {error}")
    if wrong:
        lines = "\n".join(wrong)
        raise ClusterError(
            f"cluster {cluster.name} is there, and {len(wrong)} members have no slot of its "
            f"share:\n{lines}"
        )


def give_back_slots(cloud: SdkCloud, cluster: Cluster) -> None:
    """Take the members' slots back. After an error, the next command takes back the other slots."""
    wish = cluster.wish
    if wish is None or not wish.gpu_share:
        return
    share_cloud, pace = SdkShareCloud(cloud.rest), Pace()
    members = {member.id for member in cluster.members}
    with contextlib.suppress(ClusterError):
        view = ask_again(pace, share_cloud.look)
        for share in view.shares:
            for slot in share.slots:
                if share.id == wish.gpu_share and slot.client_id in members:
                    attaching.take_slot(share_cloud, view, share, slot, pace)
