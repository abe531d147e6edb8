# SPDX-License-Identifier: Apache-2.0
"""Snapshots of clusters against Nova's own API, and clusters that are made from them.

Glance is Nova's fixture, in which an image becomes active once the driver has uploaded it.

``slow``: ``snapshot`` and ``create --from-snapshot`` die at each of their requests, before and
after it takes effect, and are given again.
"""

from __future__ import annotations

import threading
from typing import Any

import fixtures
import pytest
from nova.compute import task_states
from nova.image import glance
from nova.tests.functional.api import client
from oslo_utils import timeutils

from tests.functional.cluster_client import base


class ImagingDriver(base.SmallFakeDriver):
    """A host that uploads images as Nova's drivers do.

    :cvar broken: names of servers of whose disk no image is made.
    :cvar open: images are uploaded while it is set.
    :cvar uploaded: name and state of each server when its image was made.
    """

    broken: set[str] = set()
    open = threading.Event()
    uploaded: list[tuple[str, str]] = []

    def snapshot(self, context: Any, instance: Any, image: str, update_task_state: Any) -> None:
        update_task_state(task_state=task_states.IMAGE_PENDING_UPLOAD)
        if instance.display_name in self.broken:
            raise OSError("no room")
        update_task_state(
            task_state=task_states.IMAGE_UPLOADING,
            expected_state=task_states.IMAGE_PENDING_UPLOAD,
        )
        glance.API().update(context, image, {"status": "saving"})
        assert self.open.wait(60)
        self.uploaded.append((instance.display_name, instance.vm_state))
        glance.API().update(context, image, {"status": "active"}, data=None)


class SnapshotTest(base.ClusterClientTest):
    HOSTS = 2

    def setUp(self) -> None:
        self.useFixture(
            fixtures.MonkeyPatch(
                "tests.functional.cluster_client.base.SmallFakeDriver", ImagingDriver
            )
        )
        ImagingDriver.broken, ImagingDriver.uploaded = set(), []
        ImagingDriver.open.set()
        super().setUp()
        make = self.glance.create

        def create(context: Any, metadata: dict[str, Any], data: Any = None) -> Any:
            # As Glance: an image of a server is empty at first.
            if metadata["properties"].get("image_type") == "snapshot":
                metadata |= {"status": "queued", "created_at": timeutils.utcnow()}
            return make(context, metadata, data)

        self.glance.create = create

    # -- the truth -----------------------------------------------------------

    def images(self) -> list[dict[str, Any]]:
        """Images of members."""
        kept = [
            each
            for each in self.glance.images.values()
            if "hpc_cluster_snapshot" in each["properties"]
        ]
        return sorted(kept, key=lambda each: each["name"])

    def rows(self) -> list[dict[str, Any]]:
        return self.openstack("hpc", "snapshot", "list", "--long", "-f", "json").json

    def statuses(self, name: str = "k") -> set[str]:
        return {each["status"] for each in self.servers() if each["name"].startswith(f"{name}-")}

    def actions(self, name: str, *kinds: str) -> list[str]:
        (server,) = [each for each in self.servers() if each["name"] == name]
        recorded = self.api.get_instance_actions(server["id"])
        return [each["action"] for each in reversed(recorded) if each["action"] in kinds]

    def image_of(self, name: str) -> str:
        (server,) = [each for each in self.servers() if each["name"] == name]
        return server["image"]["id"]

    def assert_whole(self, status: str = "ACTIVE", members: str = "1-2") -> str:
        """One snapshot, with one active image for each member; its id."""
        self.assertEqual({status}, self.statuses())
        (cluster,) = self.cluster("list", "-f", "json").json
        self.assertEqual("ACTIVE" if status == "ACTIVE" else "STOPPED", cluster["State"])
        (row,) = self.rows()
        self.assertEqual(
            ("k", "COMPLETE", members, "", ""),
            tuple(row[key] for key in ("Cluster", "State", "Members", "Reason", "Next")),
        )
        images = self.images()
        self.assertEqual({"active"}, {each["status"] for each in images})
        self.assertEqual(
            [f"k-{at + 1}-snapshot-{row['ID']}" for at in range(len(images))],
            [each["name"] for each in images],
        )
        return str(row["ID"])


class LifeTest(SnapshotTest):
    @pytest.mark.slow
    def test_a_life(self) -> None:
        self.create("k", 3, "--network", base.NETWORK, "--security-group", "default")
        made = self.cluster("snapshot", "k", "-f", "json").json
        self.assertEqual(
            ("k", "COMPLETE", "1-3"), (made["cluster"], made["state"], made["members"])
        )
        snapshot = self.assert_whole(members="1-3")
        self.assertEqual(snapshot, made["id"])
        # All of them rested while images were made, and each was stopped and started once.
        self.assertEqual({"stopped"}, {state for _, state in ImagingDriver.uploaded})
        for at in (1, 2, 3):
            self.assertEqual(
                ["stop", "createImage", "start"],
                self.actions(f"k-{at}", "stop", "createImage", "start"),
            )
        self.cluster("delete", "k")

        said = self.cluster("create", "new", "--from-snapshot", snapshot, "-f", "json")
        self.assertEqual(("ACTIVE", "1-3"), (said.json["state"], said.json["wanted"]))
        self.assertEqual(f"snapshot:{snapshot}", said.json["image"])
        self.assert_complete("new", [1, 2, 3])
        wanted = {f"new-{at}": made["images"][str(at)] for at in (1, 2, 3)}
        self.assertEqual(wanted, {name: self.image_of(name) for name in wanted})
        # A member comes back from its own image; one that the snapshot did not have, from the
        # image in that cluster's own wish.
        self.cluster("replace", "new", "2")
        self.assertEqual(wanted["new-2"], self.image_of("new-2"))
        self.cluster("scale", "new", "--members", "4")
        self.assertEqual(base.IMAGE, self.image_of("new-4"))
        self.assertIn("say --image", self.cluster("rebuild", "new", status=1).err)

        # Images of these members inherit the properties of theirs, and are no second ones.
        (second,) = [each for each in self.servers() if each["name"] == "new-2"]
        self.api.post_server_action(second["id"], {"createImage": {"name": "own"}})
        self.wait_until_calm()
        (row,) = self.rows()
        self.assertEqual(("COMPLETE", "1-3"), (row["State"], row["Members"]))
        self.cluster("snapshot", "new")
        first, again = self.rows()
        self.assertEqual((snapshot, "COMPLETE"), (first["ID"], first["State"]))
        self.assertEqual(
            ("new", "COMPLETE", "1-4"), (again["Cluster"], again["State"], again["Members"])
        )

        said = self.openstack("hpc", "snapshot", "delete", snapshot)
        self.assertEqual(0, said.status, said.err)
        self.assertEqual([again["ID"]], [row["ID"] for row in self.rows()])
        said = self.cluster("replace", "new", "2", status=1)
        self.assertIn(f"snapshot {snapshot} is gone, so member 2 cannot be made", said.err)
        self.assert_complete("new", [1, 2, 3, 4])
        self.cluster("delete", "new")
        self.assert_nothing_left()

    def test_a_stopped_cluster_stays_stopped(self) -> None:
        self.create("k", 2)
        self.cluster("stop", "k")
        # Tokens end while images are made; the client gets new ones.
        self.front.arm()
        self.front.expire = {4, 9, 12}
        self.cluster("snapshot", "k")
        self.assertGreater(len(self.front.requests), 12)
        self.assert_whole("SHUTOFF")
        self.assertEqual([], self.actions("k-1", "start"))

    def test_refused_before_the_first_member(self) -> None:
        self.create("k", 2)
        second = next(each["id"] for each in self.servers() if each["name"] == "k-2")
        self.api.post_server_action(second, {"pause": None})
        self._wait_for_state_change({"id": second}, "PAUSED")
        said = self.cluster("snapshot", "k", status=1)
        self.assertIn("openstack server unpause k-2", said.err)
        self.api.post_server_action(second, {"unpause": None})
        self.api.post_server_action(second, {"lock": None})
        said = self.cluster("snapshot", "k", status=1)
        self.assertIn("openstack server unlock k-2", said.err)
        self.assertIn("nothing has changed", said.err)
        self.assertEqual({"ACTIVE"}, self.statuses())
        self.assertEqual([], self.rows())
        (row,) = self.cluster("list", "-f", "json").json
        self.assertEqual("ACTIVE", row["State"])
        # As a client asks that does not know of snapshots.
        server = self._build_server(image_uuid="snapshot:123456789abc", networks="none")
        error = self.assertRaises(
            client.OpenStackApiException, self.api.post_server, {"server": server}
        )
        self.assertEqual(400, error.response.status_code)
        for words in (("no",), ("123456789abc",)):
            said = self.cluster("create", "n", "--from-snapshot", *words, status=1)
            self.assertIn("no snapshot has the ID", said.err)

    def test_an_image_that_fails_leaves_all_as_before(self) -> None:
        self.create("k", 2)
        ImagingDriver.broken = {"k-2"}
        said = self.cluster("snapshot", "k", status=1)
        self.assertIn("the image of k-2 failed, or was deleted", said.err)
        self.assertIn("openstack server event list k-2", said.err)
        self.assertIn("nothing is left of the snapshot", said.err)
        self.assertEqual([], self.images())
        self.assertEqual({"ACTIVE"}, self.statuses())
        ImagingDriver.broken = set()
        self.cluster("snapshot", "k")
        self.assert_whole()


class InterruptedTest(SnapshotTest):
    """The client dies while images are uploaded."""

    def interrupted(self) -> str:
        """A cluster whose snapshot has an image of each member, and is not finished; its id."""
        self.create("k", 2)
        ImagingDriver.open.clear()
        self.addCleanup(ImagingDriver.open.set)
        self.front.arm()
        words = ("snapshot", "k")
        asked = threading.Thread(target=self._kill_when_saving)
        asked.start()
        said = self.openstack("hpc", "cluster", *words)
        asked.join()
        self.assertEqual(-9, said.status, said.err)
        (row,) = self.rows()
        self.assertEqual(("INCOMPLETE", ""), (row["State"], row["Members"]))
        self.assertEqual(
            f"openstack hpc cluster snapshot k, or openstack hpc snapshot delete {row['ID']}",
            row["Next"],
        )
        (cluster,) = self.cluster("list", "--long", "-f", "json").json
        self.assertEqual(
            ("CHANGING", "openstack hpc cluster snapshot k"), (cluster["State"], cluster["Next"])
        )
        said = self.cluster("create", "n", "--from-snapshot", row["ID"], status=1)
        self.assertIn("is not whole: the images of members 1-2 are missing or not active", said.err)
        ImagingDriver.open.set()
        self.wait_until_calm()
        # No client has seen yet that they are of one moment.
        said = self.cluster("create", "n", "--from-snapshot", row["ID"], status=1)
        self.assertIn("is not whole: it is not finished", said.err)
        return str(row["ID"])

    def _kill_when_saving(self) -> None:
        while [each["status"] for each in self.images()] != ["saving", "saving"]:
            threading.Event().wait(0.05)
        self._kill()

    def test_it_goes_on(self) -> None:
        id = self.interrupted()
        self.assertIn(
            "first openstack hpc cluster snapshot k", self.cluster("reboot", "k", status=1).err
        )
        images = {each["id"] for each in self.images()}
        self.cluster("snapshot", "k")
        self.assertEqual(id, self.assert_whole())
        self.assertEqual(images, {each["id"] for each in self.images()})

    @pytest.mark.slow
    def test_it_is_undone(self) -> None:
        id = self.interrupted()
        said = self.openstack("hpc", "snapshot", "delete", id)
        self.assertEqual(0, said.status, said.err)
        self.assertEqual([], self.images())
        self.assertEqual({"ACTIVE"}, self.statuses())
        (row,) = self.cluster("list", "-f", "json").json
        self.assertEqual("ACTIVE", row["State"])

    @pytest.mark.slow
    def test_a_member_that_ran_meanwhile(self) -> None:
        self.interrupted()
        second = next(each["id"] for each in self.servers() if each["name"] == "k-2")
        threading.Event().wait(1.1)
        self.api.post_server_action(second, {"os-start": None})
        self._wait_for_state_change({"id": second}, "ACTIVE")
        self.api.post_server_action(second, {"os-stop": None})
        self._wait_for_state_change({"id": second}, "SHUTOFF")
        said = self.cluster("snapshot", "k", status=1)
        self.assertIn("k-2 did not rest while images were made: Nova has recorded start", said.err)
        self.assertEqual([], self.images())
        self.assertEqual({"ACTIVE"}, self.statuses())
        self.cluster("snapshot", "k")
        self.assert_whole()


class EveryStepTest(SnapshotTest):
    @pytest.mark.slow
    def test_every_step_of_snapshot(self) -> None:
        """Kill it before and after each step; then it goes on, or is undone."""
        self.create("k", 2)
        for goes_on in self.kill_at_each_step(("snapshot", "k")):
            self.wait_until_calm()
            self._end(goes_on)

    def _end(self, goes_on: bool) -> None:
        rows = self.rows()
        (cluster,) = self.cluster("list", "--long", "-f", "json").json
        if cluster["State"] != "ACTIVE":
            self.assertIn("openstack hpc cluster snapshot k", cluster["Next"])
            if goes_on or not rows:
                self.cluster("snapshot", "k")
                self.assert_whole()
        elif rows:
            self.assert_whole()
        for row in self.rows():
            said = self.openstack("hpc", "snapshot", "delete", row["ID"])
            self.assertEqual(0, said.status, said.err)
        self.assertEqual(([], []), (self.images(), self.rows()))
        self.assertEqual({"ACTIVE"}, self.statuses())
        (cluster,) = self.cluster("list", "-f", "json").json
        self.assertEqual("ACTIVE", cluster["State"])

    @pytest.mark.slow
    def test_every_step_of_create(self) -> None:
        self.create("k", 2)
        snapshot = self.cluster("snapshot", "k", "-f", "json").json
        self.cluster("delete", "k")
        words = ("create", "new", "--from-snapshot", snapshot["id"])
        for _ in self.kill_at_each_step(words):
            if self.groups():
                self.cluster("create", "--resume", "new")
                self.assert_complete("new", [1, 2])
                made = [self.image_of("new-1"), self.image_of("new-2")]
                self.assertEqual(list(snapshot["images"].values()), made)
                self.cluster("delete", "new")
            self.assert_nothing_left()
