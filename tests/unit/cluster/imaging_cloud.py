# SPDX-License-Identifier: Apache-2.0
"""The cloud in memory, with images of servers as Nova and Glance make them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from nova_hpc_client.cluster import snapshots
from nova_hpc_client.cluster.life_cycle.run import BusyError, ClusterCloudError
from nova_hpc_client.cluster.snapshots import ClusterSnapshot, MemberImage
from tests.unit.cluster.model_cloud import ModelCloud

_BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class ImagingCloud(ModelCloud):
    """One project's servers and images.

    :ivar images: as Glance shows them, and beside that the number of the server's starts.
    :ivar actions: of each server, as Nova records them.
    :ivar broken: names of servers whose images never become active.
    :ivar past: status and number of starts of each server, at every moment.
    """

    def __init__(self, *words: Any, **keywords: Any) -> None:
        super().__init__(*words, **keywords)
        self.images: dict[str, dict[str, Any]] = {}
        self.actions: dict[str, list[tuple[str, str]]] = {}
        self.broken: set[str] = set()
        self.past: list[set[tuple[str, str, int]]] = []
        self._seconds = 0

    def _change(self, what: str, effect: Any) -> Any:
        self._seconds += 1
        try:
            return super()._change(what, effect)
        finally:
            self.remember()

    def remember(self) -> None:
        self.past.append(
            {(id, each["status"], each.get("_boots", 0)) for id, each in self.servers.items()}
        )

    def tick(self) -> None:
        super().tick()
        self.remember()

    def record(self, server: str, action: str) -> None:
        time = (_BEGIN + datetime.timedelta(seconds=self._seconds)).replace(tzinfo=None)
        self.actions.setdefault(server, []).insert(0, (action, f"{time.isoformat()}.000000"))

    def _begin(self, server: str, task: str, statuses: set[str]) -> None:
        super()._begin(server, task, statuses)
        self.record(server, {"powering-off": "stop", "powering-on": "start"}.get(task, task))

    def _go_on(self, server: dict[str, Any]) -> None:
        if server["OS-EXT-STS:task_state"] != "image_snapshot":
            super()._go_on(server)
            return
        server["OS-EXT-STS:task_state"] = None
        image = server.pop("_imaging")
        if server["name"] in self.broken:
            self.images.pop(image, None)
        elif image in self.images:
            self.images[image]["status"] = "active"

    # -- images ----------------------------------------------------------------

    def make_image(self, server: str, name: str, properties: Mapping[str, str]) -> None:
        def effect() -> None:
            record = self.servers[server]
            if record["status"] not in ("ACTIVE", "SHUTOFF"):
                raise BusyError(record["status"])
            id = self._id()
            now = _BEGIN + datetime.timedelta(seconds=self._seconds)
            self.images[id] = {
                **record.get("_inherits", {}),
                **properties,
                "id": id,
                "name": name,
                "status": "queued",
                "size": 1 << 30,
                "instance_uuid": server,
                "created_at": f"{now:%Y-%m-%dT%H:%M:%SZ}",
                "_boots": record.get("_boots", 0),
            }
            # Nova creates the image first, and leaves it where it is then refused.
            if record["OS-EXT-STS:task_state"]:
                raise BusyError("task")
            record |= {"OS-EXT-STS:task_state": "image_snapshot", "_imaging": id}
            self.record(server, "createImage")

        self._change("image", effect)

    def rebuild_from(self, server: str, image: str) -> None:
        """As ``openstack server rebuild --image``: later images inherit that one's properties."""
        own = ("id", "name", "status", "size", "instance_uuid", "created_at", "tags", "_boots")
        inherited = {key: value for key, value in self.images[image].items() if key not in own}
        self.servers[server]["_inherits"] = {**inherited, "base_image_ref": image}
        self.record(server, "rebuild")

    def snapshot_images(self, snapshot: str) -> list[MemberImage]:
        read = snapshots.read_images(list(self.images.values()))
        return [image for image in read if image.snapshot == snapshot]

    def delete_image(self, image: str) -> None:
        self._change("delete image", lambda: self.images.pop(image, None))

    def tag_image(self, image: str, tag: str) -> None:
        def effect() -> None:
            if image not in self.images:
                raise ClusterCloudError("no such image")
            self.images[image].setdefault("tags", []).append(tag)

        self._change("tag", effect)

    def actions_of(self, server: str) -> list[tuple[str, str]]:
        return self.actions.get(server, [])

    # -- the truth -------------------------------------------------------------

    def snapshots(self) -> list[ClusterSnapshot]:
        return snapshots.gather_snapshots(snapshots.read_images(self.images.values()))

    def is_of_one_moment(self, snapshot: ClusterSnapshot) -> bool:
        """Whether all members rested at some moment with the disks that the images have."""
        disks = {
            (image.server, "SHUTOFF", self.images[image.id]["_boots"])
            for image in snapshot.active.values()
        }
        return any(disks <= moment for moment in self.past)
