# SPDX-License-Identifier: Apache-2.0
"""A server group that plain requests have made becomes a cluster, and is let go again.

``slow``: the client dies at each step of ``adopt`` and of ``adopt --undo``.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from nova import context, objects

from tests.functional.cluster_client import base

OTHER_IMAGE = "a2459075-d96c-40d5-893e-577ff92e721c"


class AdoptTest(base.ClusterClientTest):
    HOSTS = 4

    def setUp(self) -> None:
        super().setUp()
        self.group = self.api.post_server_groups({"name": "stack-7", "policy": "soft-affinity"})

    def boot(self, name: str, *, port: str = "", **more: Any) -> dict[str, Any]:
        """A server of the group, by one request as any tool sends it."""
        body = {
            "name": name,
            "imageRef": base.IMAGE,
            "flavorRef": self.flavor,
            "networks": [{"port": port} if port else {"uuid": self.network()}],
            "metadata": {"role": "worker"},
            **more,
        }
        # A number, as Heat sends it.
        hints = {"group": self.group["id"], "hpc_members": 3}
        made = self.api.post_server({"server": body, "os:scheduler_hints": hints})
        return self._wait_for_state_change(made, "ACTIVE")

    def boot_all(self, *numbers: int, name: str = "web") -> None:
        for number in numbers:
            self.boot(f"{name}-{number}")

    def network(self) -> str:
        return next(id for id, net in self.neutron._networks.items() if net["name"] == base.NETWORK)

    def make_port(self, name: str, **more: Any) -> str:
        """A port that another tool makes, before the server."""
        body = {"name": name, "network_id": self.network(), "description": "of the stack", **more}
        return str(self.front._make_port(body, base.PROJECT)["id"])

    def rename(self, server: str, name: str) -> None:
        self.api.api_put(f"/servers/{server}", {"server": {"name": name}})

    def record(self, name: str) -> dict[str, Any]:
        (server,) = [each for each in self.servers() if each["name"] == name]
        return dict(self.api.get_server(server["id"]))

    def state(self, name: str = "web") -> tuple[str, str]:
        (row,) = self.cluster("list", "-f", "json").json
        self.assertEqual(name, row["Name"])
        return row["State"], row["Members"]

    def marks(self) -> list[tuple[list[str], list[str]]]:
        """Tags and ``hpc`` items of all servers."""
        return [
            (each["tags"], [key for key in each["metadata"] if key.startswith("hpc_")])
            for each in self.servers()
        ]


class WholeTest(AdoptTest):
    @pytest.mark.slow
    def test_every_verb(self) -> None:
        """A group as Heat makes it: numbers from 0 on."""
        self.boot_all(0, 1, 2)
        before = {each["id"]: each for each in self.servers()}
        for id in before:
            spec = objects.RequestSpec.get_by_instance_uuid(context.get_admin_context(), id)
            self.assertEqual(["3"], spec.scheduler_hints["hpc_members"])
        self.front.requests.clear()
        shown = self.cluster("adopt", "stack-7", "--no-user-data", "-f", "json").json
        self.assertEqual(("web", "ACTIVE", "0-2"), (shown["name"], shown["state"], shown["wanted"]))
        self.assertEqual(
            (self.group["id"], self.flavor, base.IMAGE),
            (shown["id"], shown["flavor"], shown["image"]),
        )
        self.assertEqual([self.network()], shown["networks"])
        # Marks alone are written.
        writes = {each.split()[0] + each.rpartition("/")[2][:8] for each in self.front.requests}
        self.assertEqual(
            {"POSTmetadata", "PUThpc-adop"}, {each for each in writes if "GET" not in each}
        )
        for id, was in before.items():
            server = self.api.get_server(id)
            self.assertEqual("worker", server["metadata"]["role"])
            self.assertEqual([f"hpc-adopted={self.group['id']}"], server["tags"])
            self.assertEqual(was["name"], server["name"])
        self.assertEqual(("ACTIVE", "3/3"), self.state())
        # A second time there is nothing to do.
        self.front.requests.clear()
        self.cluster("adopt", self.group["id"])
        self.assertNotIn("POST", " ".join(self.front.requests))

        self.assertEqual(3, len(self.cluster("hosts", "web", "-f", "openmpi").out.splitlines()))
        self.assertIn("web-0", self.cluster("topology", "web").out)
        for verb, status in (("stop", "STOPPED"), ("start", "ACTIVE"), ("shelve", "SHELVED")):
            self.cluster(verb, "web")
            self.assertEqual((status, "3/3"), self.state())
        self.assertIn("unshelve", self.cluster("adopt", "--undo", "web", status=1).err)
        for verb in ("unshelve", "reboot"):
            self.cluster(verb, "web")
            self.assertEqual(("ACTIVE", "3/3"), self.state())
        self.cluster("rebuild", "web", "--image", OTHER_IMAGE)
        self.assertEqual({OTHER_IMAGE}, {each["image"]["id"] for each in self.servers()})
        self.cluster("scale", "web", "--members", "5")
        self.assertEqual(
            [f"web-{at}" for at in range(5)], sorted(each["name"] for each in self.servers())
        )
        self.assertEqual(5, len(self.groups()[0]["members"]))
        self.cluster("scale", "web", "--remove", "web-0")
        self.assertEqual(("ACTIVE", "4/4"), self.state())
        first = self.record("web-1")["id"]
        self.cluster("replace", "web", "1")
        self.assertNotEqual(first, self.record("web-1")["id"])
        self.assertEqual(("ACTIVE", "4/4"), self.state())
        said = self.cluster("delete", "web")
        self.assertIn("server group stack-7 is left", said.err)
        self.assertEqual([], self.servers())
        self.assertEqual([self.group["id"]], [each["id"] for each in self.groups()])
        self.assertEqual([], self.cluster("list", "-f", "json").json)

    @pytest.mark.slow
    def test_ports_of_another_tool_outlive_a_replaced_member(self) -> None:
        ports = {}
        for at in (1, 2):
            ports[at] = self.make_port(f"mine-{at}")
            self.boot(f"web-{at}", port=ports[at])
        self.cluster("adopt", "stack-7", "--no-user-data")
        self.assertEqual([], [each for each in self.made_ports() if each.get("tags")])
        for _ in range(2):
            first = self.record("web-2")["id"]
            self.cluster("replace", "web", "2")
            server = self.record("web-2")
            self.assertNotEqual(first, server["id"])
            port = self.neutron._ports[ports[2]]
            self.assertEqual(server["id"], port["device_id"])
            self.assertEqual(("mine-2", "of the stack"), (port["name"], port["description"]))
        self.assertEqual(2, len(self.made_ports()))
        # A new member gets a port of the same kind, which goes with it.
        self.cluster("scale", "web", "--members", "3")
        self.assertEqual(3, len(self.made_ports()))
        self.cluster("delete", "web")
        self.assertEqual(set(ports.values()), {each["id"] for each in self.made_ports()})
        self.assertEqual([[], []], [each.get("tags", []) for each in self.made_ports()])
        self.assertEqual([], self.cluster("list", "-f", "json").json)

    def test_undo_removes_the_marks_and_nothing_else(self) -> None:
        self.boot_all(1, 2)
        before = sorted((each["id"], each["metadata"], each["tags"]) for each in self.servers())
        self.cluster("adopt", "stack-7", "--no-user-data")
        self.cluster("reboot", "web")
        released = self.cluster("adopt", "--undo", "web", "-f", "json").json
        self.assertEqual(["web-1", "web-2"], sorted(released["released"]))
        after = sorted((each["id"], each["metadata"], each["tags"]) for each in self.servers())
        self.assertEqual(before, after)
        self.assertEqual([], self.cluster("list", "-f", "json").json)
        self.assertIn("no cluster is called", self.cluster("adopt", "--undo", "web", status=1).err)

    @pytest.mark.slow
    def test_the_other_tool_goes_on(self) -> None:
        self.boot_all(1, 2)
        self.cluster("adopt", "stack-7")
        self.boot_all(3)
        shown = self.cluster("show", "web", "-f", "json").json
        self.assertEqual(("ACTIVE", ["web-3"]), (shown["state"], shown["others"]))
        self.cluster("adopt", "stack-7")
        self.assertEqual(("ACTIVE", "3/3"), self.state())
        # It replaces one: the name would be there twice.
        self._delete_server(self.record("web-2"))
        self.boot_all(2)
        (row,) = self.cluster("list", "--long", "-f", "json").json
        self.assertEqual(
            ("INCOMPLETE", "1 servers of its group are not adopted"), (row["State"], row["Reason"])
        )
        self.assertIn(f"openstack hpc cluster adopt {self.group['id']}", row["Next"])
        for words in (("create", "--resume", "web", "--no-user-data"), ("delete", "web")):
            said = self.cluster(*words, status=1)
            self.assertIn(f"openstack hpc cluster adopt {self.group['id']}", said.err)
        self.assertEqual(3, len(self.servers()))
        self.cluster("adopt", "stack-7")
        self.assertEqual(("ACTIVE", "3/3"), self.state())
        # It takes one away: either of the commands in the list helps.
        self._delete_server(self.record("web-3"))
        self.assertEqual(("INCOMPLETE", "2/3"), self.state())
        self.cluster("adopt", "stack-7")
        self.assertEqual(("ACTIVE", "2/2"), self.state())

    @pytest.mark.slow
    def test_user_data_that_no_api_tells(self) -> None:
        self.boot_all(1, 2)
        self.cluster("adopt", "stack-7")
        for words in (("scale", "web", "--members", "3"), ("replace", "web", "1")):
            said = self.cluster(*words, status=1)
            self.assertIn("or --no-user-data if they have none", said.err)
        self.assertEqual(2, len(self.servers()))
        self.cluster("scale", "web", "--members", "3", "--no-user-data")
        data = self._folder / "data"
        data.write_text("#!/bin/sh\n")
        self.cluster("adopt", "stack-7", "--user-data", str(data))
        said = self.cluster("replace", "web", "1", status=1)
        self.assertIn("give --user-data again", said.err)
        self.cluster("replace", "web", "1", "--user-data", str(data))
        server = self.admin_api.get_server(self.record("web-1")["id"])
        self.assertEqual("IyEvYmluL3NoCg==", server["OS-EXT-SRV-ATTR:user_data"])

    @pytest.mark.slow
    def test_what_is_refused(self) -> None:
        self.assertIn("has no servers", self.cluster("adopt", "stack-7", status=1).err)
        self.boot_all(1, 2)
        second = self.record("web-2")["id"]

        def refused(*texts: str) -> None:
            said = self.cluster("adopt", "stack-7", status=1)
            for text in texts:
                self.assertIn(text, said.err)
            self.assertEqual([([], [])] * len(self.servers()), self.marks())

        self.rename(second, "login")
        refused("is not called NAME-1, NAME-2 and so on", f"--name NAME-N {second}")
        self.rename(second, "web-2")
        self.api.post_server_action(second, {"lock": None})
        refused(f"openstack server unlock {second}")
        self.api.post_server_action(second, {"unlock": None})
        self.api.post_server_action(second, {"shelve": None})
        self._wait_for_state_change({"id": second}, "SHELVED_OFFLOADED")
        refused(f"openstack server unshelve {second}")
        self.api.post_server_action(second, {"unshelve": None})
        self._wait_for_state_change({"id": second}, "ACTIVE")
        self.admin_api.post_server_action(second, {"os-resetState": {"state": "error"}})
        refused("web-2 is in error", f"openstack server show {second}")
        self.admin_api.post_server_action(second, {"os-resetState": {"state": "active"}})
        big = self._create_flavor(vcpu=1, memory_mb=512, disk=1, ephemeral=0, name="big")
        third = self.boot("web-3", flavorRef=big)
        refused("has another flavor than", f"openstack server resize --flavor FLAVOR {third['id']}")
        self._delete_server(third)
        # Of another project: its owner and the group's do not see each other.
        stranger = self.admin_api.post_server(
            {
                "server": {
                    "name": "web-3",
                    "imageRef": base.IMAGE,
                    "flavorRef": self.flavor,
                    "networks": "none",
                },
                "os:scheduler_hints": {"group": self.group["id"]},
            }
        )
        stranger = self._wait_for_state_change(stranger, "ACTIVE")
        refused("has another")
        self.cluster("create", "web", status=1)

    def test_a_cluster_of_our_own_is_none_to_adopt(self) -> None:
        shown = self.create("train", 2).json
        said = self.cluster("adopt", shown["id"], status=1)
        self.assertIn("is a cluster already", said.err)
        said = self.cluster("adopt", "--undo", "train", status=1)
        self.assertIn(f"was not adopted: openstack hpc cluster delete {shown['id']}", said.err)
        self.boot_all(1, name="train")
        said = self.cluster("adopt", "stack-7", status=1)
        self.assertIn("there is a cluster train already", said.err)
        self.assert_cluster_is_whole(shown["id"])

    def assert_cluster_is_whole(self, id: str) -> None:
        (row,) = self.cluster("list", "-f", "json").json
        self.assertEqual((id, "ACTIVE", "2/2"), (row["ID"], row["State"], row["Members"]))


class KillTest(AdoptTest):
    """The client dies; another one goes on, or undoes it."""

    HOSTS = 2

    def assert_listed(self) -> None:
        """A server with any mark is in the list, with a command that helps."""
        self.wait_for_requests()
        marked = sum(bool(tags or items) for tags, items in self.marks())
        rows = self.cluster("list", "--long", "-f", "json").json
        self.assertEqual(bool(marked), bool(rows))
        for row in rows:
            self.assertEqual(self.group["id"], row["ID"])
            if row["State"] != "ACTIVE":
                self.assertIn("openstack hpc cluster adopt", row["Next"])

    def wait_for_requests(self) -> None:
        """The client sends several at once, and Nova does those that it has when it dies."""
        latest, earlier = self.marks(), None
        while latest != earlier:
            time.sleep(0.3)
            latest, earlier = self.marks(), latest

    def assert_adopted(self) -> None:
        self.cluster("adopt", "stack-7")
        self.assertEqual(("ACTIVE", "2/2"), self.state())

    def assert_released(self) -> None:
        if self.cluster("list", "-f", "json").json:
            self.cluster("adopt", "--undo", self.group["id"])
        self.assertEqual([([], []), ([], [])], self.marks())
        self.assertEqual(2, len(self.servers()))
        self.assertEqual([], self.cluster("list", "-f", "json").json)

    def first_write(self, *words: str) -> int:
        """Number of the first request of a command that changes something: it is run once."""
        self.front.arm()
        self.cluster(*words)
        writes = ("POST", "PUT", "DELETE")
        return next(at for at, text in enumerate(self.front.requests, 1) if text.startswith(writes))

    @pytest.mark.slow
    def test_adopt_is_killed_at_some_requests(self) -> None:
        self.boot_all(1, 2)
        first = self.first_write("adopt", "stack-7")
        self.assert_released()
        for at, before, resumes in ((first, False, True), (first + 1, True, False)):
            self.assertTrue(self.killed(at, before, ("adopt", "stack-7")))
            self.assert_listed()
            self.assertTrue(any(items for _, items in self.marks()))
            if resumes:
                self.assert_adopted()
            self.assert_released()

    @pytest.mark.slow
    def test_every_step_of_adopt(self) -> None:
        self.boot_all(1, 2)
        for goes_on in self.kill_at_each_step(("adopt", "stack-7")):
            self.assert_listed()
            if goes_on:
                self.assert_adopted()
            self.assert_released()

    @pytest.mark.slow
    def test_every_step_of_undo(self) -> None:
        self.boot_all(1, 2)
        self.assert_adopted()
        for _ in self.kill_at_each_step(("adopt", "--undo", "web"), self.assert_adopted):
            self.assert_listed()
            self.assert_released()

    @pytest.mark.slow
    def test_every_step_of_replace(self) -> None:
        """Ports that another tool made are there in the end, each with its member."""
        ports = [self.make_port(f"mine-{number}") for number in (1, 2)]
        for number, port in enumerate(ports, 1):
            self.boot(f"web-{number}", port=port)
        self.cluster("adopt", "stack-7", "--no-user-data")
        for _ in self.kill_at_each_step(("replace", "web", "2")):
            self.assert_listed()
            self.cluster("create", "--resume", "web")
            self.assertEqual(("ACTIVE", "2/2"), self.state())
            holders = [self.neutron._ports[port]["device_id"] for port in ports]
            ids = [self.record(f"web-{number}")["id"] for number in (1, 2)]
            self.assertEqual(ids, holders)
            self.assertEqual(2, len(self.made_ports()))
