# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster create --head`` against Nova's own API: one server more, without devices.

``slow``: each command dies at each of its steps, before and after it takes effect.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from nova import context, objects

from nova_hpc_guest import cluster_files, host_list
from tests.functional.cluster_client import base

#: Of Nova's own fixture for Glance.
HEAD_IMAGE = "a2459075-d96c-40d5-893e-577ff92e721c"
_NIC = ("--nic", f"net-id={base.NETWORK}")
#: No ordinary port; Nova asks no host for a device of this type.
_OTHER = ("--nic", f"net-id={base.NETWORK},vnic-type=smart-nic")
_HEAD = ("--head", "login", "--head-image", HEAD_IMAGE)
MEMBERS = ["k-1", "k-2"]
ALL = [*MEMBERS, "k-head"]


class HeadTest(base.ClusterClientTest):
    HOSTS = 3

    def setUp(self) -> None:
        super().setUp()
        self.login = self._create_flavor(
            vcpu=1, memory_mb=512, disk=1, ephemeral=0, name="login", id="77"
        )

    def by_name(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self.servers()}

    def row(self) -> dict[str, Any]:
        (row,) = self.cluster("list", "--long", "-f", "json").json
        return dict(row)

    def assert_whole(self, names: list[str], status: str = "ACTIVE") -> None:
        servers = self.by_name()
        self.assertEqual(sorted(names), sorted(servers))
        self.assertEqual({status}, {each["status"] for each in servers.values()})
        self.assertEqual({None}, {each["OS-EXT-STS:task_state"] for each in servers.values()})
        # The head is in no server group: policies and places of domains are of members alone.
        (group,) = self.groups()
        members = {each["id"] for name, each in servers.items() if name != "k-head"}
        self.assertEqual(members, set(group["members"]))
        states = {"ACTIVE": "ACTIVE", "SHUTOFF": "STOPPED", "SHELVED_OFFLOADED": "SHELVED"}
        count = len(names) - 1
        row = self.row()
        self.assertEqual(
            (states[status], f"{count}/{count} + head"), (row["State"], row["Members"])
        )


class HeadLifeTest(HeadTest):
    def test_a_life(self) -> None:
        made = self.create("k", 2, *_HEAD).json
        self.assertEqual(
            ("ACTIVE", "1-2", "k-head", "77", HEAD_IMAGE),
            tuple(made[key] for key in ("state", "wanted", "head", "head_flavor", "head_image")),
        )
        self.assertEqual(MEMBERS, made["members"])
        self.assert_whole(ALL)
        head = self.by_name()["k-head"]
        (group,) = self.groups()
        self.assertEqual([f"hpc-cluster={group['id']}"], head["tags"])
        self.assertEqual("head", head["metadata"]["hpc_cluster_role"])
        self.assertEqual((512, HEAD_IMAGE), (head["flavor"]["ram"], head["image"]["id"]))
        spec = objects.RequestSpec.get_by_instance_uuid(context.get_admin_context(), head["id"])
        self.assertFalse({"group", "hpc_members"} & set(spec.scheduler_hints or ()))
        # All know all; jobs run on members alone.
        lists = {
            name: host_list.read_host_list(host_list.from_items(server["metadata"]))
            for name, server in self.by_name().items()
        }
        self.assertEqual(sorted(ALL), sorted(lists))
        (hosts,) = set(lists.values())
        resolver = cluster_files.merge_hosts(b"", hosts).decode()
        self.assertEqual(sorted(ALL), sorted(line.split()[1] for line in resolver.splitlines()))
        self.assertEqual(
            ["k-1", "k-2"],
            sorted(line.split()[0] for line in cluster_files.format_host_file(hosts).splitlines()),
        )
        keys = {server["metadata"]["hpc_host_keys"] for server in self.by_name().values()}
        self.assertEqual(1, len(keys))

        # What takes every row for a node, as the programs for Slurm do, has nodes alone.
        rows = self.cluster("hosts", "k", "-f", "json").json
        self.assertEqual(MEMBERS, sorted(each["Name"] for each in rows))
        self.assertRegex(self.cluster("show", "k", "-f", "json").json["head_address"], r"^192\.")
        openmpi = self.cluster("hosts", "k", "-f", "openmpi", "--names").out
        self.assertEqual(["k-1 slots=1", "k-2 slots=1"], sorted(openmpi.splitlines()))
        slurm = self.cluster("hosts", "k", "-f", "slurm").out
        self.assertRegex(slurm, r"^SlurmctldHost=k-head\(192\.168\.1\.\d+\)\nNodeName=k-[12] ")
        self.assertNotIn("NodeName=k-head", slurm)
        groups = yaml.safe_load(self.cluster("hosts", "k", "-f", "ansible").out)["all"]["children"]
        self.assertEqual({"k", "k_head"}, set(groups))
        self.assertEqual({"k-head"}, set(groups["k_head"]["hosts"]))
        self.assertNotIn("k-head", self.cluster("topology", "k").out)

        self.cluster("scale", "k", "--members", "3")
        self.assert_whole([*ALL, "k-3"])
        self.cluster("scale", "k", "--members", "2")
        self.assertEqual(head["id"], self.by_name()["k-head"]["id"])
        others = {id for name, id in self.ids().items() if name != "k-head"}
        self.cluster("replace", "k", "k-head")
        self.assertNotEqual(head["id"], self.by_name()["k-head"]["id"])
        self.assertEqual(others, {id for name, id in self.ids().items() if name != "k-head"})
        self.assertEqual("ACTIVE", self.row()["State"])
        self.cluster("delete", "k")
        self.assert_nothing_left()

    def ids(self) -> dict[str, str]:
        return {name: server["id"] for name, server in self.by_name().items()}

    @pytest.mark.slow
    def test_the_head_follows_the_members(self) -> None:
        self.create("k", 2, *_HEAD)
        ids = self.ids()
        order = {
            "stop": ("os-stop", False, "SHUTOFF"),
            "start": ("os-start", True, "ACTIVE"),
            "shelve": ("shelve", False, "SHELVED_OFFLOADED"),
            "unshelve": ("unshelve", True, "ACTIVE"),
        }
        for verb, (_, first, status) in order.items():
            self.front.arm()
            self.cluster(verb, "k")
            asked = [each for each in self.front.requests if each.endswith("/action")]
            self.assertEqual(3, len(asked), asked)
            self.assertIn(ids["k-head"], asked[0 if first else -1])
            self.assert_whole(ALL, status)
        self.cluster("reboot", "k")
        self.assert_whole(ALL)
        stops = {
            name: sum(action["action"] == "stop" for action in self.api.get_instance_actions(id))
            for name, id in ids.items()
        }
        self.assertEqual(dict.fromkeys(ALL, 2), stops)
        # A rebuild leaves the head's disk and image as they are.
        self.cluster("rebuild", "k", "--image", HEAD_IMAGE)
        rebuilt = {
            name
            for name, id in ids.items()
            if any(a["action"] == "rebuild" for a in self.api.get_instance_actions(id))
        }
        self.assertEqual(set(MEMBERS), rebuilt)
        self.assert_whole(ALL)

    @pytest.mark.slow
    def test_no_place_for_the_head_or_a_member_leaves_nothing(self) -> None:
        big = self._create_flavor(vcpu=9, memory_mb=256, disk=1, ephemeral=0, name="big")
        said = self.create("k", 2, "--head", big, status=1)
        # Nova shows the server in error before it shows why.
        self.assertIn("k-head failed: N", said.err)
        self.assertIn("nothing is left of the cluster", said.err)
        self.assert_nothing_left()
        said = self.create("k", 7, *_HEAD, status=1)
        self.assertIn("nothing is left of the cluster", said.err)
        self.assert_nothing_left()

    @pytest.mark.slow
    def test_what_is_no_head_is_refused_before_anything_is_made(self) -> None:
        self._create_flavor(
            vcpu=1,
            memory_mb=256,
            disk=1,
            ephemeral=0,
            name="gpu",
            extra_spec={"pci_passthrough:alias": "gpu:1"},
        )
        wrong = (
            (("--head", "gpu"), "the flavor has pci_passthrough:alias, and a head has no devices"),
            (("--head", "none-such"), "no flavor is called none-such"),
            (("--head-image", HEAD_IMAGE), "--head-image goes with --head"),
            (("--head", "login", "--network", "none"), "the head would have no network"),
            (("--head", "login", *_OTHER), "the head would have no network"),
        )
        for words, text in wrong:
            self.assertIn(text, self.create("k", 2, *words, status=1).err)
        self.flags(cores=2, instances=2, group="quota")
        said = self.create("k", 2, *_HEAD, status=1)
        self.assertIn("openstack quota set --instances 3 --cores 3", said.err)
        self.assertNotIn("POST", " ".join(self.front.requests))

    @pytest.mark.slow
    def test_the_head_has_ordinary_ports_alone(self) -> None:
        self.create("k", 2, *_HEAD, "--network", base.NETWORK, *_OTHER, "--no-hosts")
        servers = self.by_name()
        kinds = {
            name: sorted(
                port["binding:vnic_type"]
                for port in self.made_ports()
                if port["device_id"] == server["id"]
            )
            for name, server in servers.items()
        }
        self.assertEqual(
            {"k-1": ["normal", "smart-nic"], "k-2": ["normal", "smart-nic"], "k-head": ["normal"]},
            kinds,
        )
        self.assertFalse({"hpc_hosts", "hpc_host_keys"} & set(servers["k-head"]["metadata"]))
        self.cluster("replace", "k", "k-head", "k-2")
        self.assert_whole(ALL)
        self.cluster("delete", "k")
        self.assert_nothing_left()

    @pytest.mark.slow
    def test_a_head_that_is_gone_fails_or_rests(self) -> None:
        self.create("k", 2, *_HEAD)
        head = self.ids()["k-head"]
        self.api.post_server_action(head, {"os-stop": None})
        self._wait_for_state_change({"id": head}, "SHUTOFF")
        row = self.row()
        self.assertEqual(("DEGRADED", "k-head is SHUTOFF"), (row["State"], row["Reason"]))
        said = self.cluster("scale", "k", "--members", "3", status=1)
        self.assertIn("k-head is SHUTOFF: openstack hpc cluster start k", said.err)
        self.cluster("start", "k")
        self.admin_api.post_server_action(head, {"os-resetState": {"state": "error"}})
        row = self.row()
        self.assertEqual(
            ("ERROR", "openstack hpc cluster replace k k-head"), (row["State"], row["Next"])
        )
        self.cluster("replace", "k")
        self.assert_whole(ALL)
        self.assertNotEqual(head, self.ids()["k-head"])
        # Users take its tag or the item with its role away, and find it as it was.
        head = self.ids()["k-head"]
        self.api.api_put(f"/servers/{head}/tags", {"tags": []})
        self.cluster("create", "--resume", "k")
        self.api.api_delete(f"/servers/{head}/metadata/hpc_cluster_role")
        self.cluster("create", "--resume", "k")
        self.assertEqual(head, self.ids()["k-head"])
        self.api.delete_server(head)
        self._wait_until_deleted({"id": head})
        row = self.row()
        self.assertEqual(("INCOMPLETE", "k-head is missing"), (row["State"], row["Reason"]))
        self.cluster("create", "--resume", "k")
        self.assert_whole(ALL)


class HeadKillTest(HeadTest):
    HOSTS = 2

    def create_words(self, *more: str) -> tuple[str, ...]:
        usual = ("--members", "2", "--flavor", "one", "--image", base.IMAGE)
        return ("create", "k", *usual, *_HEAD, *more)

    def finish_or_end(self, resumes: bool) -> None:
        self.assert_all_is_listed()
        if self.groups() and resumes:
            self.cluster("create", "--resume", "k")
            self.assert_whole(ALL)
        if self.groups():
            self.cluster("delete", "k")
        self.assert_nothing_left()

    @pytest.mark.slow
    def test_create_is_killed_around_the_head(self) -> None:
        self.cluster(*self.create_words(*_NIC))
        asked = [at for at, each in enumerate(self.front.requests, 1) if each.startswith("POST")]
        self.cluster("delete", "k")
        for at, before, resumes in ((asked[3], False, True), (asked[4], False, False)):
            self.assertTrue(self.killed(at, before, self.create_words(*_NIC)))
            self.finish_or_end(resumes)

    def _every_step(self, words: tuple[str, ...], begins: str = "") -> None:
        """Kill a command before and after each step; then the cluster is whole, or it ends.

        :param begins: a verb that gives the command something to do.
        """

        def prepare() -> None:
            if words[0] != "create":
                self.cluster(*self.create_words())
            if begins:
                self.cluster(begins, "k")

        for resumes in self.kill_at_each_step(words, prepare):
            self.wait_until_calm()
            if words[0] in ("create", "delete"):
                self.finish_or_end(resumes)
                continue
            self.assert_all_is_listed()
            self._go_on(words)
            self.cluster("delete", "k")
            self.assert_nothing_left()

    def _go_on(self, words: tuple[str, ...]) -> None:
        if words[0] == "scale":
            self.cluster("create", "--resume", "k")
            more = ["k-3"] if len(self.servers()) > 3 else []
            self.assert_whole([*ALL, *more])
        elif words[0] == "replace":
            self.cluster("create", "--resume", "k")
            self.assert_whole(ALL)
        else:
            self.cluster(*words)
            self.assert_whole(ALL, "SHUTOFF" if words[0] == "stop" else "ACTIVE")

    @pytest.mark.slow
    def test_every_step_of_create(self) -> None:
        self._every_step(self.create_words())

    @pytest.mark.slow
    def test_every_step_of_scale(self) -> None:
        self._every_step(("scale", "k", "--members", "3"))

    @pytest.mark.slow
    def test_every_step_of_replace(self) -> None:
        self._every_step(("replace", "k", "k-head"))

    @pytest.mark.slow
    def test_every_step_of_delete(self) -> None:
        self._every_step(("delete", "k"))

    @pytest.mark.slow
    def test_every_step_of_stop(self) -> None:
        self._every_step(("stop", "k"))

    @pytest.mark.slow
    def test_every_step_of_start(self) -> None:
        self._every_step(("start", "k"), begins="stop")

    @pytest.mark.slow
    def test_every_step_of_reboot(self) -> None:
        self._every_step(("reboot", "k"))
