# SPDX-License-Identifier: Apache-2.0
"""Snapshots of clusters in Glance, and the images that members boot from."""

from __future__ import annotations

from nova_hpc_client.cluster import snapshots
from nova_hpc_client.cluster.life_cycle.run import ClusterCloudError, ClusterError
from nova_hpc_client.cluster.snapshots import ClusterSnapshot, MemberImage
from nova_hpc_client.openstack.rest import RestClient


class SnapshotImages:
    """Reads images of snapshots with the rights of one user.

    :param rest: the user's requests.
    """

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    def read_images(self, snapshot: str) -> list[MemberImage]:
        """Return Glance's images of one snapshot of a cluster, whatever the images' status.

        :param snapshot: id of the snapshot.
        """
        images = snapshots.read_images(self._rest.images(**{snapshots.KEY: snapshot}))
        return [image for image in images if image.snapshot == snapshot]

    def read_snapshots(self) -> list[ClusterSnapshot]:
        """Return snapshots of clusters that the project owns, also those with missing images."""
        # Nova gives image_type to each image that it makes of a server. Glance filters only by
        # values, so it cannot list all images with some id of a snapshot.
        images = snapshots.read_images(self._rest.images(image_type="snapshot"))
        return snapshots.gather_snapshots(images)

    def find_snapshot(self, snapshot: str) -> ClusterSnapshot:
        """Return the snapshot with this id, also if images of it are missing.

        :raises ClusterError: no image has this snapshot's id.
        """
        images = self.read_images(snapshot) if snapshots.is_snapshot_id(snapshot) else []
        if not images:
            raise ClusterError(
                f"no snapshot has the ID {snapshot}; see openstack hpc snapshot list"
            )
        return snapshots.gather_snapshots(images)[0]

    def find_boot_image(self, image: str, number: int) -> str:
        """Find the image that a member of a cluster boots from, and return its id.

        A member that is not in the snapshot boots from the image of the cluster that the snapshot
        was made of. That image may be a snapshot again, so the loop follows it.

        :param image: :attr:`ClusterWish.image`.
        :param number: number of the member.
        :raises ClusterCloudError: the snapshot does not have the member's image any more.
        """
        passed: set[str] = set()
        while snapshot := snapshots.snapshot_of_image(image):
            images = self.read_images(snapshot)
            (whole,) = snapshots.gather_snapshots(images) or (ClusterSnapshot(snapshot, ()),)
            if number in whole.active:
                return whole.active[number].id
            wish = whole.wish
            if wish is None or number in wish.members or snapshot in passed:
                gone = f"has no image of member {number} any more" if images else "is gone"
                raise ClusterCloudError(
                    f"snapshot {snapshot} {gone}, so member {number} cannot be made: openstack hpc "
                    "cluster delete ends the cluster"
                )
            passed.add(snapshot)
            image = wish.image
        return image
