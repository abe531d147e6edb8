# SPDX-License-Identifier: Apache-2.0
"""Members that their user renames or locks, against Nova's own API: none is deleted over it."""

from __future__ import annotations

from tests.functional import test_cluster_head


class RenamedTest(test_cluster_head.HeadTest):
    def test_renamed_members_stay(self) -> None:
        self.create("k", 2, "--head", "login", "--head-image", test_cluster_head.HEAD_IMAGE)
        before = {each["id"] for each in self.servers()}
        for old, new in (("k-1", "k-head"), ("k-2", "k-5")):
            self.api.api_put(f"/servers/{self.by_name()[old]['id']}", {"server": {"name": new}})
        self.assertEqual(("ACTIVE", ""), (self.row()["State"], self.row()["Reason"]))
        self.cluster("create", "--resume", "k")
        self.assertEqual(before, {each["id"] for each in self.servers()})
        kept = self.by_name()["k-5"]["id"]
        self.cluster("replace", "k", "1")
        left = {each["id"] for each in self.servers()}
        self.assertIn(kept, left)
        self.assertEqual(1, len(before - left))
        self.api.post_server_action(kept, {"lock": None})
        said = self.openstack("hpc", "cluster", "delete", "k")
        self.assertEqual(1, said.status)
        self.assertIn("k-5 is locked: openstack server unlock k-5; nothing has changed", said.err)
        self.assertEqual(left, {each["id"] for each in self.servers()})
