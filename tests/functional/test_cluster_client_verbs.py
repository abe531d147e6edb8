# SPDX-License-Identifier: Apache-2.0
"""All members of a cluster stop, start, shelve, unshelve, reboot and are rebuilt, or none.

``slow``: each command dies at each of its steps, before and after it takes effect, and is given
again.
"""

from __future__ import annotations

import pytest

from tests.functional.cluster_client import base

#: Of Nova's own fixture for Glance.
OTHER_IMAGE = "a2459075-d96c-40d5-893e-577ff92e721c"
ENDS = {
    "stop": "SHUTOFF",
    "start": "ACTIVE",
    "shelve": "SHELVED_OFFLOADED",
    "unshelve": "ACTIVE",
    "reboot": "ACTIVE",
    "rebuild": "ACTIVE",
}
#: The state from which a verb has something to do.
BEGINS = {"start": "stop", "unshelve": "shelve"}
STATES = {"SHUTOFF": "STOPPED", "ACTIVE": "ACTIVE", "SHELVED_OFFLOADED": "SHELVED"}


class VerbTest(base.ClusterClientTest):
    HOSTS = 2

    def status_of(self, name: str = "k") -> set[str]:
        members = [each for each in self.servers() if each["name"].startswith(f"{name}-")]
        self.assertEqual({None}, {each["OS-EXT-STS:task_state"] for each in members})
        return {each["status"] for each in members}

    def assert_whole(self, status: str) -> None:
        self.assertEqual({status}, self.status_of())
        (row,) = self.cluster("list", "-f", "json").json
        self.assertEqual(STATES[status], row["State"])

    def actions(self, action: str) -> list[int]:
        """How often Nova has done it, for each member by its name."""
        counts = []
        for server in sorted(self.servers(), key=lambda each: each["name"]):
            actions = self.api.get_instance_actions(server["id"])
            counts.append(sum(each["action"] == action for each in actions))
        return counts

    def turns(self, verb: str) -> list[int]:
        return self.actions({"reboot": "start"}.get(verb, verb))


class WholeTest(VerbTest):
    def test_a_life(self) -> None:
        self.create("k", 3)
        shown = self.cluster("stop", "k", "-f", "json").json
        self.assertEqual("STOPPED", shown["state"])
        self.assert_whole("SHUTOFF")
        hosts = [each["OS-EXT-SRV-ATTR:host"] for each in self.servers()]
        # What promises members that run does not end with success.
        for words in (("create", "--resume", "k"), ("scale", "k", "--members", "4")):
            said = self.cluster(*words, status=1)
            self.assertIn(
                "SHUTOFF (and 2 more do not run): openstack hpc cluster start k", said.err
            )
        self.cluster("start", "k")
        self.assert_whole("ACTIVE")
        self.assertEqual(hosts, [each["OS-EXT-SRV-ATTR:host"] for each in self.servers()])
        self.cluster("shelve", "k")
        self.assert_whole("SHELVED_OFFLOADED")
        # Nova changes no metadata then, so nothing can say which members go.
        said = self.cluster("scale", "k", "--members", "2", status=1)
        self.assertIn("Nova changes no metadata then: openstack hpc cluster unshelve k", said.err)
        self.cluster("unshelve", "k")
        self.assert_whole("ACTIVE")
        self.cluster("reboot", "k")
        self.assertEqual([2, 2, 2], self.actions("stop"))
        self.cluster("rebuild", "k", "--image", OTHER_IMAGE)
        self.assert_whole("ACTIVE")
        self.assertEqual([1, 1, 1], self.actions("rebuild"))
        self.assertEqual({OTHER_IMAGE}, {each["image"]["id"] for each in self.servers()})
        shown = self.cluster("show", "k", "-f", "json").json
        self.assertEqual((OTHER_IMAGE, "", ""), (shown["image"], shown["reason"], shown["next"]))
        self.cluster("scale", "k", "--members", "4")
        self.assertEqual({OTHER_IMAGE}, {each["image"]["id"] for each in self.servers()})
        self.cluster("delete", "k")
        self.assert_nothing_left()

    def test_no_room_to_come_back(self) -> None:
        self.create("k", 3)
        self.cluster("shelve", "k")
        # Another one takes two of the four places.
        self.create("other", 2)
        said = self.cluster("unshelve", "k", status=1)
        self.assertIn("cluster k does not fit any more: 2 of 3 members fit", said.err)
        self.assertEqual({"SHELVED_OFFLOADED"}, self.status_of())
        self.assertEqual({"ACTIVE"}, self.status_of("other"))
        self.cluster("delete", "other")
        self.cluster("unshelve", "k")
        self.assert_whole("ACTIVE")

    def test_a_kept_place(self) -> None:
        self.create("k", 3)
        hosts = [each["OS-EXT-SRV-ATTR:host"] for each in self.servers()]
        shown = self.cluster("shelve", "k", "--keep-place", "-f", "json").json
        self.assertEqual(("STOPPED", "SHUTOFF"), (shown["state"], *self.status_of()))
        # One of the four places is left.
        self.create("other", 2, status=1)
        self.cluster("unshelve", "k")
        self.assert_whole("ACTIVE")
        self.assertEqual(hosts, [each["OS-EXT-SRV-ATTR:host"] for each in self.servers()])
        # The place of shelved members is lost already.
        self.cluster("shelve", "k")
        said = self.cluster("shelve", "k", "--keep-place", status=1)
        self.assertIn("openstack hpc cluster unshelve k", said.err)
        self.assertEqual({"SHELVED_OFFLOADED"}, self.status_of())

    @pytest.mark.slow
    def test_refused_before_the_first_member(self) -> None:
        self.create("k", 2)
        second = next(each["id"] for each in self.servers() if each["name"] == "k-2")
        acts = (
            ({"pause": None}, "PAUSED", "openstack server unpause k-2", {"unpause": None}),
            ({"suspend": None}, "SUSPENDED", "openstack server resume k-2", {"resume": None}),
            ({"rescue": {}}, "RESCUE", "openstack server unrescue k-2", {"unrescue": None}),
            ({"lock": None}, "ACTIVE", "openstack server unlock k-2", {"unlock": None}),
        )
        for act, status, cure, back in acts:
            self.api.post_server_action(second, act)
            self._wait_for_state_change({"id": second}, status)
            for verb in ("stop", "reboot", "rebuild"):
                said = self.cluster(verb, "k", status=1)
                self.assertIn(cure, said.err)
                self.assertIn("nothing has changed", said.err)
            if status != "ACTIVE":
                self.assertIn(cure, self.cluster("create", "--resume", "k", status=1).err)
                self.assertIn(cure, self.cluster("replace", "k", "1", status=1).err)
            self.api.post_server_action(second, back)
            self._wait_for_state_change({"id": second}, "ACTIVE")
        self.assert_whole("ACTIVE")

    @pytest.mark.slow
    def test_a_member_that_can_be_restored_is_missing(self) -> None:
        self.flags(reclaim_instance_interval=3600)
        self.create("k", 2)
        second = next(each["id"] for each in self.servers() if each["name"] == "k-2")
        self.api.delete_server(second)
        self._wait_for_state_change({"id": second}, "SOFT_DELETED")
        (row,) = self.cluster("list", "--long", "-f", "json").json
        self.assertEqual(("INCOMPLETE", "1/2"), (row["State"], row["Members"]))
        self.cluster("create", "--resume", "k")
        self.assert_whole("ACTIVE")
        self.assertNotIn(second, {each["id"] for each in self.servers()})
        self.cluster("delete", "k")
        self.assertEqual([], self.groups())

    def test_two_are_killed_at_some_requests(self) -> None:
        """EveryStepTest, which is slow, has all verbs and all writes."""
        self.create("k", 2)
        for verb, at in (("stop", 5), ("start", 6)):
            self.assertTrue(self.killed(at, True, (verb, "k")), verb)
            self.wait_until_calm()
            self.cluster(verb, "k")
            self.assert_whole(ENDS[verb])
        before = self.turns("reboot")
        self.assertTrue(self.killed(10, False, ("reboot", "k")))
        self.wait_until_calm()
        (row,) = self.cluster("list", "--long", "-f", "json").json
        self.assertEqual(
            ("CHANGING", "openstack hpc cluster reboot k"), (row["State"], row["Next"])
        )
        self.cluster("reboot", "k")
        self.assert_whole("ACTIVE")
        self.assertEqual([each + 1 for each in before], self.turns("reboot"))


class EveryStepTest(VerbTest):
    def _every_step(self, verb: str) -> None:
        """Kill it before and after each step; it is given again, and the cluster is whole."""
        self.create("k", 2)
        done: list[int] = []

        def prepare() -> None:
            if verb in BEGINS:
                self.cluster(BEGINS[verb], "k")
            elif verb in ("stop", "shelve"):
                self.cluster("unshelve", "k")
            done[:] = self.turns(verb)

        for _ in self.kill_at_each_step((verb, "k"), prepare):
            self.wait_until_calm()
            self._resume(verb, done)

    def _resume(self, verb: str, done: list[int]) -> None:
        (row,) = self.cluster("list", "--long", "-f", "json").json
        if row["State"] not in STATES.values():
            self.assertIn("openstack hpc cluster", row["Next"])
        if verb not in ("reboot", "rebuild") or row["State"] == "CHANGING":
            self.cluster(verb, "k")
        self.assert_whole(ENDS[verb])
        if verb in ("reboot", "rebuild"):
            # All had their turn once, or the client died before any of them.
            more = [now - before for before, now in zip(done, self.turns(verb), strict=True)]
            self.assertIn(more, ([0, 0], [1, 1]))

    @pytest.mark.slow
    def test_every_step_of_stop(self) -> None:
        self._every_step("stop")

    @pytest.mark.slow
    def test_every_step_of_start(self) -> None:
        self._every_step("start")

    @pytest.mark.slow
    def test_every_step_of_shelve(self) -> None:
        self._every_step("shelve")

    @pytest.mark.slow
    def test_every_step_of_unshelve(self) -> None:
        self._every_step("unshelve")

    @pytest.mark.slow
    def test_every_step_of_reboot(self) -> None:
        self._every_step("reboot")

    @pytest.mark.slow
    def test_every_step_of_rebuild(self) -> None:
        self._every_step("rebuild")
