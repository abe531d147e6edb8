# SPDX-License-Identifier: Apache-2.0
"""Snapshots of clusters, read from their images in Glance. Pure.

Only Glance keeps a snapshot: one image for each member. An image's properties name the snapshot and
the member, and describe the cluster. A tag on one image confirms that all members were stopped
while the images were made.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from nova_hpc_common.wire import cluster_wish, numbers
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_common.wire.version import WireError

#: The verb of the turn (:attr:`ClusterWish.turn`) of a cluster whose snapshot is not finished.
SNAPSHOT: Final = "snapshot"
#: Properties of a member's image: id of the snapshot, number of the member, id of its server.
KEY: Final = "hpc_cluster_snapshot"
MEMBER_KEY: Final = "hpc_cluster_snapshot_member"
SERVER_KEY: Final = "hpc_cluster_snapshot_server"
#: Nova's own properties of an image of a server: the server's id, and the id of the image from
#: which the server's disk was made.
_NOVA_SERVER: Final = "instance_uuid"
_NOVA_BASE: Final = "base_image_ref"
#: Tag of one image, set when all images are known to show the same moment.
TAG: Final = "hpc-cluster-snapshot-whole"
#: Statuses of Glance in which an image may still become active.
COMING: Final = ("queued", "saving", "uploading", "importing")
#: Prefix of :attr:`ClusterWish.image` if each member boots from its own image of a snapshot. Nova
#: accepts no such image id, so an older client without snapshots creates no member.
_WORD: Final = "snapshot:"
_ID: Final = re.compile(r"[0-9a-f]{12}", re.ASCII)
_TURN: Final = re.compile(rf"{SNAPSHOT}-[0-9]+-([0-9a-f]{{12}})(-run)?", re.ASCII)
#: Actions of Nova's API that neither let a guest run nor change its disk.
_HARMLESS: Final = (
    *("stop", "createImage", "createBackup", "lock", "unlock", "changePassword"),
    *("attach_interface", "detach_interface", "attach_volume", "detach_volume"),
)


@attrs.frozen
class SnapshotTurn:
    """The turn in a cluster's ``ClusterWish`` while its snapshot is not finished.

    :ivar id: id of the snapshot.
    :ivar runs: members ran before, and are started again afterwards.
    """

    id: str
    runs: bool

    def write(self, generation: int) -> str:
        """Format the snapshot in progress as the text of :attr:`ClusterWish.turn`."""
        return f"{SNAPSHOT}-{generation}-{self.id}{'-run' if self.runs else ''}"


@attrs.frozen
class MemberImage:
    """The image of a member's disk.

    :ivar number: number of the member; it may be 0 in an adopted cluster.
    :ivar server: id of the member's server.
    :ivar created: time in UTC, in whole seconds.
    :ivar size: in bytes; 0 until Glance reports it.
    :ivar tagged: it has the tag that its snapshot is whole.
    :ivar wish: description of the cluster at that time; None if it cannot be read.
    """

    id: str
    name: str
    status: str
    snapshot: str
    number: int
    server: str
    created: datetime.datetime
    size: int = 0
    tagged: bool = False
    wish: ClusterWish | None = None


@attrs.frozen
class ClusterSnapshot:
    """All images of one snapshot of a cluster, with the snapshot's id."""

    id: str
    images: tuple[MemberImage, ...]

    @property
    def wish(self) -> ClusterWish | None:
        """The description of the cluster at that time; None if no image has it."""
        return next((image.wish for image in self.images if image.wish is not None), None)

    @property
    def active(self) -> Mapping[int, MemberImage]:
        """Number of a member -> its active image, the oldest if there are several."""
        active: dict[int, MemberImage] = {}
        for image in order_images(self.images):
            if image.status == "active":
                active.setdefault(image.number, image)
        return active

    @property
    def problem(self) -> str:
        """The missing parts, in words; empty if a cluster can be made from it."""
        if self.wish is None:
            return "no image says what the cluster was"
        missing = self.wish.members - self.active.keys()
        if missing:
            listed = numbers.format_number_ranges(missing)
            return f"the images of members {listed} are missing or not active"
        if not any(image.tagged for image in self.images):
            return "it is not finished"
        return ""


def new_turn(
    group: str, generation: int, servers: Iterable[str], runs: bool, taken: int = 0
) -> SnapshotTurn:
    """Make the record of a new snapshot: two clients that begin it at once make the same one.

    The generation is not enough to distinguish snapshots: it begins again after all members were
    lost or released.

    :param group: id of the cluster's server group.
    :param generation: generation of the ``ClusterWish`` with the turn.
    :param servers: ids of the members' servers.
    :param runs: whether the members run while the images are taken.
    :param taken: the number of ids of this generation that have images already.
    """
    text = " ".join((group, str(generation), str(taken), *sorted(servers)))
    return SnapshotTurn(cluster_wish.short_digest_of(text.encode()), runs)


def read_turn(wish: ClusterWish | None) -> SnapshotTurn | None:
    """Parse the record of a snapshot that is not finished; None if there is none."""
    match = _TURN.fullmatch(wish.turn) if wish is not None else None
    return SnapshotTurn(match[1], bool(match[2])) if match else None


def is_snapshot_id(text: str) -> bool:
    """Whether the text has the form of a snapshot's id."""
    return bool(_ID.fullmatch(text))


def write_snapshot_image(snapshot: str) -> str:
    """Format :attr:`ClusterWish.image` for members that boot from a snapshot's images."""
    return f"{_WORD}{snapshot}"


def snapshot_of_image(image: str) -> str:
    """Find the snapshot that a :attr:`ClusterWish.image` names; "" if it is Glance's id."""
    snapshot = image.removeprefix(_WORD)
    return snapshot if snapshot != image and is_snapshot_id(snapshot) else ""


def build_properties(
    wish: ClusterWish, group: str, turn: SnapshotTurn, number: int, server: str
) -> dict[str, str]:
    """Build the properties of a member's image in Glance.

    :param group: id of the cluster's server group.
    :param number: number of the member.
    :param server: id of the member's server.
    """
    own = {KEY: turn.id, MEMBER_KEY: str(number), SERVER_KEY: server}
    return {**cluster_wish.to_metadata(wish, group), **own}


def image_name(member: str, snapshot: str) -> str:
    """Return the name of a member's image in Glance.

    :param member: name of the member.
    """
    return f"{member}-snapshot-{snapshot}"


def read_images(records: Iterable[Mapping[str, Any]]) -> list[MemberImage]:
    """Select the images of Glance that belong to a snapshot.

    A member that was rebuilt from its image has that image's properties. Nova copies them to every
    image that it makes of the member: the disk of a shelved one, and images of its owner. Such
    copies are left out: their name differs, or their base is an image of the same snapshot.
    """
    records = list(records)
    snapshot_of = {record.get("id"): record.get(KEY) for record in records}
    return [
        image
        for record in records
        if (image := read_image(record)) is not None
        and snapshot_of.get(record.get(_NOVA_BASE)) != image.snapshot
    ]


def read_image(record: Mapping[str, Any]) -> MemberImage | None:
    """Read one image of Glance's API, without its base; None if it is not an image of a snapshot.

    Nova copies the properties of a server's base image to each image of the server. So an image
    counts only if Nova made it from the server in its properties, and if it has the name of a
    member's image.
    """
    snapshot, number = record.get(KEY), record.get(MEMBER_KEY)
    server = record.get(SERVER_KEY)
    if not isinstance(snapshot, str) or not is_snapshot_id(snapshot):
        return None
    if not isinstance(number, str) or not re.fullmatch("0|[1-9][0-9]{0,5}", number, re.ASCII):
        return None
    if not isinstance(server, str) or server != record.get(_NOVA_SERVER):
        return None
    name = record.get("name")
    if not isinstance(name, str) or not name.endswith(image_name(f"-{number}", snapshot)):
        return None
    try:
        created = _parse_time(record.get("created_at"))
        wish: ClusterWish | None = cluster_wish.from_metadata(record)
    except WireError:
        wish = None
    except ValueError:
        return None
    return MemberImage(
        id=str(record["id"]),
        name=name,
        status=str(record.get("status") or ""),
        snapshot=snapshot,
        number=int(number),
        server=server,
        created=created,
        size=int(record.get("size") or 0),
        tagged=TAG in (record.get("tags") or ()),
        wish=wish,
    )


def order_images(images: Iterable[MemberImage]) -> list[MemberImage]:
    """Sort images by preference, the same for every client: active ones first, then by age."""
    return sorted(images, key=lambda image: (image.status != "active", image.created, image.id))


def gather_snapshots(images: Iterable[MemberImage]) -> list[ClusterSnapshot]:
    """Group images into the snapshots to which they belong, the oldest first."""
    by_id: dict[str, list[MemberImage]] = {}
    for image in sorted(images, key=lambda image: (image.created, image.number, image.id)):
        by_id.setdefault(image.snapshot, []).append(image)
    return [ClusterSnapshot(id, tuple(images)) for id, images in by_id.items()]


def find_disturbance(actions: Iterable[tuple[str, str]], since: datetime.datetime) -> str:
    """Return the action that may have started a server or changed its disk; "" if there is none.

    An action whose time cannot be read counts as later than the first image.

    :param actions: names and times of Nova's instance actions.
    :param since: time of the first image. Glance reports whole seconds, so an action within that
        second counts as earlier.
    """
    for action, begun in actions:
        if action in _HARMLESS:
            continue
        try:
            later = _parse_time(begun).replace(microsecond=0) > since
        except ValueError:
            later = True
        if later:
            return action
    return ""


def choose_images(
    images: Sequence[MemberImage], servers: Mapping[int, str]
) -> dict[int, list[MemberImage]]:
    """Return number of a member -> the images of its present server, in order of preference.

    :param servers: number of a member -> id of its server.
    """
    ordered = order_images(images)
    return {
        number: [image for image in ordered if (image.number, image.server) == (number, server)]
        for number, server in servers.items()
    }


def _parse_time(text: object) -> datetime.datetime:
    time = datetime.datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
