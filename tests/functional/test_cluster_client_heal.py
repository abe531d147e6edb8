# SPDX-License-Identifier: Apache-2.0
"""Healers replace faulty members: each once, within their limits, and never half.

The tags are written as nova-compute writes them: rows of Nova's database. ``slow``: healers die at
each of their steps, and two heal at once.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from nova import context as nova_context
from nova import exception, objects
from nova.compute import power_state
from nova.tests.functional.api import client

from nova_hpc_common.wire.server_faults import FaultWord
from tests.functional.cluster_client import base

NIC = ("--nic", f"net-id={base.NETWORK}")
#: A healer of tests looks often.
SOON = ("--interval", "0.3")


class HealTest(base.ClusterClientTest):
    HOSTS = 3

    def make(self, members: int = 3, *words: str) -> dict[str, dict[str, Any]]:
        """A cluster of members with ports; returns its servers by name."""
        self.create("k", members, *NIC, *words)
        return self.by_name()

    def by_name(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self.servers()}

    def tag(self, server: str, word: FaultWord) -> None:
        """What nova-compute does when it sees a fault."""
        admin = nova_context.get_admin_context()
        tag = objects.Tag(context=admin, resource_id=server, tag=word.tag)
        tag.create()

    def untag(self, server: str, word: FaultWord) -> None:
        objects.Tag.destroy(nova_context.get_admin_context(), server, word.tag)

    def fail(self, server: str) -> None:
        self.admin_api.post_server_action(server, {"os-resetState": {"state": "error"}})

    def manager_of(self, server: str) -> Any:
        """Find the nova-compute of a server."""
        (host,) = (
            service.manager
            for service in self.computes.values()
            if server in service.manager.driver.instances
        )
        return host

    def eventually_stopped(self, server: str) -> None:
        """Wait until Nova has stopped a server without a request."""
        for _ in range(100):
            answer = self.api.api_get(f"/servers/{server}/os-instance-actions").body
            newest = answer["instanceActions"][0]
            if newest["action"] == "stop" and newest["user_id"] is None:
                break
            time.sleep(0.1)
        else:
            self.fail("Nova has not stopped it")
        self._wait_for_state_change({"id": server}, "SHUTOFF")

    def end_guest(self, server: str) -> None:
        """End a guest as a QEMU that crashes, and let nova-compute notice it."""
        host = self.manager_of(server)
        host.driver.instances[server].state = power_state.SHUTDOWN
        host._sync_power_states(nova_context.get_admin_context())
        self._wait_for_state_change({"id": server}, "SHUTOFF")

    def heal(self, *words: str, status: int = 0) -> list[str]:
        """Run a healer for one round; returns its lines."""
        return self.cluster("heal", "k", *SOON, *words, status=status).out.splitlines()

    def ports_of(self, server: str) -> set[str]:
        return {port["id"] for port in self.made_ports() if port["device_id"] == server}


class OneRoundTest(HealTest):
    def test_a_tagged_member_is_another_server_with_its_name_and_ports(self) -> None:
        before = self.make()
        self.assertIn("no member of k has to be replaced", self.heal()[-1])
        old = before["k-2"]["id"]
        ports = self.ports_of(old)
        self.tag(old, FaultWord.LINK)
        shown = self.cluster("show", "k", "-f", "json").json
        self.assertEqual({"k-2": ["link"]}, shown["faults"])
        (row,) = self.cluster("list", "--long", "-f", "json").json
        self.assertEqual(["k-2 link"], row["Faults"])
        server = self.openstack("hpc", "server", "show", "k-2", "-f", "json").json
        self.assertEqual(["link"], server["faults"])
        lines = self.heal("--dry-run", "--force", status=1)
        self.assertEqual("next: k-2 is replaced", lines[1])
        self.assertEqual(old, self.by_name()["k-2"]["id"])
        self.heal("--force")
        after = self.by_name()
        self.assertNotEqual(old, after["k-2"]["id"])
        self.assertEqual(ports, self.ports_of(after["k-2"]["id"]))
        for name in ("k-1", "k-3"):
            self.assertEqual(before[name]["id"], after[name]["id"])
        self.assert_complete("k", [1, 2, 3], ports_each=1)
        shown = self.cluster("show", "k", "-f", "json").json
        self.assertEqual(("ACTIVE", {}), (shown["state"], shown["faults"]))

    @pytest.mark.slow
    def test_a_busy_member_stays_and_the_others_are_healed(self) -> None:
        before = self.make(5)
        calls = self._folder / "drained"
        drain = self.program("drain", f'echo "$1 $HPC_FAULTS" >>{calls}; [ "$1" != k-4 ]')
        self.tag(before["k-4"]["id"], FaultWord.GONE)
        self.tag(before["k-2"]["id"], FaultWord.ERRORS)
        # Only an operator repairs a partition, and a firmware's change is no fault of one server.
        self.tag(before["k-5"]["id"], FaultWord.FIRMWARE)
        # Nothing says whether jobs run.
        lines = self.heal(status=1)
        self.assertIn("may have jobs: --drain PROGRAM drains it before, --force ends", lines[-1])
        self.assertEqual(before.keys(), self.by_name().keys())
        # The owner has not chosen these faults.
        self.heal("--fault", "slow", "--force")
        lines = self.heal("--drain", drain, status=1)
        after = self.by_name()
        changed = {name for name in before if after[name]["id"] != before[name]["id"]}
        self.assertEqual({"k-2"}, changed)
        self.assertEqual(["k-4 gone", "k-2 errors"], calls.read_text().splitlines())
        self.assertIn("k-4 (gone) is busy", lines)
        self.assertEqual("not replaced: k-4; faulty: k-4 (gone)", lines[-1])
        # Its job has ended.
        drain = self.program("drain", "true")
        self.heal("--drain", drain)
        self.assertNotEqual(before["k-4"]["id"], self.by_name()["k-4"]["id"])

    def test_a_member_whose_guest_has_ended_is_started_again(self) -> None:
        before = self.make()
        self.api.post_server_action(before["k-1"]["id"], {"os-stop": None})
        self._wait_for_state_change(before["k-1"], "SHUTOFF")
        self.end_guest(before["k-2"]["id"])
        shown = self.cluster("show", "k", "-f", "json").json
        self.assertEqual(
            ("DEGRADED", "k-2 is SHUTOFF: its guest has ended"), (shown["state"], shown["reason"])
        )
        lines = self.heal("--dry-run", status=1)
        self.assertEqual(["next: k-2 is started again: its guest had ended"], lines)
        lines = self.heal()
        self.assertEqual("k-2 is started again: its guest had ended", lines[0])
        after = self.by_name()
        self.assertEqual({before[name]["id"] for name in before}, {s["id"] for s in after.values()})
        # Its owner has stopped the first one.
        statuses = {name: server["status"] for name, server in after.items()}
        self.assertEqual({"k-1": "SHUTOFF", "k-2": "ACTIVE", "k-3": "ACTIVE"}, statuses)
        for _ in range(2):
            self.end_guest(before["k-2"]["id"])
            self.heal()
        self.end_guest(before["k-2"]["id"])
        lines = self.heal(status=1)
        self.assertIn("k-2 is off: its guest has ended or not started 4 times", lines[-1])

    @pytest.mark.slow
    def test_guests_that_do_not_start_or_have_lost_a_device(self) -> None:
        before = self.make()
        ended = before["k-2"]["id"]
        self.end_guest(ended)
        host = self.manager_of(ended)
        refusal = exception.InternalError("Unknown PCI header type '127'")
        with mock.patch.object(host.driver, "power_on", side_effect=refusal):
            lines = self.heal("--interval", "1", status=1)
        # Before: "no member of k has to be replaced", and status 0.
        self.assertIn("k-2 is off: its guest has ended or not started 4 times", lines[-1])
        self.assertIn("openstack hpc cluster replace k k-2", lines[-1])
        # A word beside it makes it faulty.
        self.tag(ended, FaultWord.GONE)
        self.heal("--force")
        self.assertNotEqual(ended, self.by_name()["k-2"]["id"])
        self.assert_complete("k", [1, 2, 3], ports_each=1)

    @pytest.mark.slow
    def test_a_member_that_its_owner_and_then_nova_has_stopped(self) -> None:
        before = self.make()
        server = before["k-2"]["id"]
        self.api.post_server_action(server, {"os-stop": None})
        self._wait_for_state_change({"id": server}, "SHUTOFF")
        host = self.manager_of(server)
        host.driver.instances[server].state = power_state.RUNNING
        host._sync_power_states(nova_context.get_admin_context())
        self.eventually_stopped(server)
        self.assertIn("no member of k has to be replaced", self.heal()[-1])
        self.assertEqual("SHUTOFF", self.by_name()["k-2"]["status"])

    def test_all_members_are_faulty(self) -> None:
        before = self.make()
        for server in before.values():
            self.tag(server["id"], FaultWord.LINK)
        self.front.arm()
        lines = self.heal("--force", status=1)
        self.assertIn("3 of 3 members are faulty, and none is replaced: a switch", lines[-1])
        self.assertEqual([], [each for each in self.front.requests if not each.startswith("GET")])
        # Half of them are not more than half.
        self.untag(before["k-1"]["id"], FaultWord.LINK)
        self.untag(before["k-3"]["id"], FaultWord.LINK)
        self.heal("--force")
        self.assertNotEqual(before["k-2"]["id"], self.by_name()["k-2"]["id"])

    @pytest.mark.slow
    def test_two_members_at_once(self) -> None:
        before = self.make(5)
        ports = {name: self.ports_of(before[name]["id"]) for name in before}

        def changed() -> set[str]:
            after = self.by_name()
            for name, server in after.items():
                self.assertEqual(ports[name], self.ports_of(server["id"]))
            found = {name for name in before if after[name]["id"] != before[name]["id"]}
            before.update(after)
            return found

        for name in ("k-2", "k-5"):
            self.tag(before[name]["id"], FaultWord.LINK)
        self.front.arm()
        lines = self.heal("--force", "--at-once", "2")
        of_servers = [
            each for each in self.front.requests if re.match(r"(DELETE|POST) /v2.1/serv", each)
        ]
        self.assertEqual({"k-2", "k-5"}, changed())
        self.assertIn("k-2, k-5 is another server now", lines)
        # Both are gone before the first new one is created.
        kinds = [each.split("/servers")[0] for each in of_servers if "/metadata" not in each]
        self.assertEqual(["DELETE /v2.1"] * 2 + ["POST /v2.1"] * 2, kinds)
        self.assert_complete("k", [1, 2, 3, 4, 5], ports_each=1)
        # Two that failed, one after the other: the one that waits does not stop the first.
        for name in ("k-1", "k-4"):
            self.fail(before[name]["id"])
        lines = self.heal()
        self.assertEqual({"k-1", "k-4"}, changed())
        self.assertLess(
            lines.index("k-1 is another server now"), lines.index("k-4 is another server now")
        )
        self.assert_complete("k", [1, 2, 3, 4, 5], ports_each=1)
        # All four are in the count.
        self.tag(before["k-3"]["id"], FaultWord.LINK)
        lines = self.heal("--force", "--at-once", "2", status=1)
        self.assertIn("4 members were replaced within an hour, which is the most", lines[-1])

    @pytest.mark.slow
    def test_nova_gives_a_port_to_one_server(self) -> None:
        """No new member can have the ports before the old one is deleted: a contract of Nova's."""
        before = self.make(2)
        (port,) = self.ports_of(before["k-1"]["id"])
        early = {
            "name": "early",
            "flavorRef": self.flavor,
            "imageRef": base.IMAGE,
            "networks": [{"port": port}],
        }
        with self.assertRaisesRegex(client.OpenStackApiException, f"Port {port} is still in use"):
            self.api.post_server({"server": early})
        self.assert_complete("k", [1, 2], ports_each=1)

    @pytest.mark.slow
    def test_the_only_member_has_to_be_named(self) -> None:
        before = self.make(1)
        self.tag(before["k-1"]["id"], FaultWord.GONE)
        lines = self.heal("--force", status=1)
        self.assertIn("if it is named: openstack hpc cluster heal k k-1", lines[-1])
        self.assertEqual(before["k-1"]["id"], self.by_name()["k-1"]["id"])
        self.cluster("heal", "k", "k-1", *SOON, "--force")
        self.assertNotEqual(before["k-1"]["id"], self.by_name()["k-1"]["id"])
        self.assert_complete("k", [1], ports_each=1)
        # It dies with the member's server gone: the group's name has what the cluster is to be.
        self.tag(self.by_name()["k-1"]["id"], FaultWord.GONE)
        self.assertTrue(self.killed(2, False, ("heal", "k", "k-1", *SOON, "--force"), writes=True))
        self.wait_until_calm()
        self.assertEqual({}, self.by_name())
        lines = self.cluster("heal", "k", "k-1", *SOON, status=1).out.splitlines()
        self.assertIn("k-1 is missing: openstack hpc cluster create --resume k, or", lines[-1])
        self.cluster("create", "--resume", "k")
        self.assert_complete("k", [1], ports_each=1)

    @pytest.mark.slow
    def test_most_per_hour_is_counted_in_the_cloud(self) -> None:
        self.make(4)
        for at, name in enumerate(("k-1", "k-1", "k-2")):
            server = self.by_name()[name]["id"]
            self.tag(server, FaultWord.LINK)
            lines = self.heal("--force", "--most-per-hour", "2", status=int(at == 2))
        self.assertIn("2 members were replaced within an hour, which is the most", lines[-1])
        self.assertEqual(server, self.by_name()["k-2"]["id"])
        # Another command keeps the count.
        self.cluster("scale", "k", "--members", "5")
        self.heal("--force", "--most-per-hour", "2", status=1)
        self.heal("--force", "--most-per-hour", "3")

    @pytest.mark.slow
    def test_a_quota_is_short_and_a_host_is_missing(self) -> None:
        before = self.make()
        self.tag(before["k-2"]["id"], FaultWord.LINK)
        quotas = f"/os-quota-sets/{base.PROJECT}"
        self.admin_api.api_put(quotas, {"quota_set": {"cores": 2, "force": True}})
        lines = self.heal("--force", status=1)
        self.assertIn("quota cores: 1 more needed, 3 used, the limit is 2", "\n".join(lines))
        self.assertEqual(before["k-2"]["id"], self.by_name()["k-2"]["id"])
        self.admin_api.api_put(quotas, {"quota_set": {"cores": 20}})
        # The other cluster takes the place as soon as the old member is gone: no room is known
        # before. The cluster is not whole, and the next healer makes it whole.
        for host in self.computes.values():
            service = self.admin_api.get_services(host=host.host, binary="nova-compute")[0]
            self.admin_api.put_service(service["id"], {"status": "disabled"})
        lines = self.heal("--force", status=1)
        self.assertIn("k-2 failed: ", "\n".join(lines))
        (row,) = self.cluster("list", "-f", "json").json
        self.assertEqual("ERROR", row["State"])
        for host in self.computes.values():
            service = self.admin_api.get_services(host=host.host, binary="nova-compute")[0]
            self.admin_api.put_service(service["id"], {"status": "enabled"})
        self.heal()
        self.assert_complete("k", [1, 2, 3], ports_each=1)

    @pytest.mark.slow
    def test_renamed_members_and_tags_of_users(self) -> None:
        before = self.make()
        own = [f"own-{number}" for number in range(48)]
        server = before["k-2"]["id"]
        tags = [*before["k-2"]["tags"], *own]
        self.api.api_put(f"/servers/{server}/tags", {"tags": tags})
        self.tag(server, FaultWord.PORT)
        self.assertEqual(50, len(self.by_name()["k-2"]["tags"]))
        self.assertEqual({"k-2": ["port"]}, self.cluster("show", "k", "-f", "json").json["faults"])
        # A server whose name is no member's has the free number.
        self.api.put_server(server, {"server": {"name": "mine; reboot"}})
        tags = [*before["k-1"]["tags"], "kept"]
        self.api.api_put(f"/servers/{before['k-1']['id']}/tags", {"tags": tags})
        lines = self.heal("--drain", self.program("drain", "true"), status=1)
        self.assertIn("not replaced: mine; reboot", lines[-1])
        self.heal("--force")
        self.assert_complete("k", [1, 2, 3], ports_each=1)
        self.assertIn("kept", self.by_name()["k-1"]["tags"])

    @pytest.mark.slow
    def test_the_head_is_replaced_only_if_it_is_named(self) -> None:
        before = self.make(2, "--head", "one")
        self.tag(before["k-head"]["id"], FaultWord.GONE)
        shown = self.cluster("show", "k", "-f", "json").json
        self.assertEqual({"k-head": ["gone"]}, shown["faults"])
        self.heal("--force")
        self.assertEqual(before["k-head"]["id"], self.by_name()["k-head"]["id"])
        self.cluster("heal", "k", "k-head", *SOON, "--force")
        after = self.by_name()
        self.assertNotEqual(before["k-head"]["id"], after["k-head"]["id"])
        self.assertEqual(before["k-1"]["id"], after["k-1"]["id"])

    @pytest.mark.slow
    def test_a_port_outside_its_partition_is_shown_and_not_replaced(self) -> None:
        before = self.make()
        (port,) = self.ports_of(before["k-3"]["id"])
        self.neutron._ports[port]["status"] = "DOWN"
        self.assertEqual({}, self.cluster("show", "k", "-f", "json").json["faults"])
        self.neutron._ports[port]["status"] = "ERROR"
        faults = self.cluster("show", "k", "-f", "json").json["faults"]
        self.assertEqual({"k-3": ["partition"]}, faults)
        server = self.openstack("hpc", "server", "show", "k-3", "-f", "json").json
        self.assertEqual(["partition"], server["faults"])
        self.heal("--force")
        self.assertEqual(before["k-3"]["id"], self.by_name()["k-3"]["id"])

    @pytest.mark.slow
    def test_a_failed_member_and_a_cluster_in_change(self) -> None:
        before = self.make()
        self.fail(before["k-2"]["id"])
        self.heal()
        self.assertNotEqual(before["k-2"]["id"], self.by_name()["k-2"]["id"])
        # A killed scale is another command's: heal names it and changes nothing.
        self.assertTrue(self.killed(2, False, ("scale", "k", "--members", "5"), writes=True))
        self.wait_until_calm()
        self.front.arm()
        lines = self.heal("--force", status=1)
        self.assertIn("is missing: openstack hpc cluster create --resume k, or", lines[-1])
        self.assertEqual([], [each for each in self.front.requests if not each.startswith("GET")])


@pytest.mark.slow
class KillTest(HealTest):
    def test_every_step_of_a_healer_is_finished_by_the_next_one(self) -> None:
        old: dict[str, str] = {}

        def make() -> None:
            if self.groups():
                self.cluster("delete", "k")
            servers = self.make()
            self.tag(servers["k-2"]["id"], FaultWord.LINK)
            old.update({name: each["id"] for name, each in servers.items()})

        words = ("heal", "k", *SOON, "--force")
        for _ in self.kill_at_each_step(words, make):
            self.wait_until_calm()
            self.assert_all_is_listed()
            self.heal("--force")
            self.assert_complete("k", [1, 2, 3], ports_each=1)
            after = self.by_name()
            changed = {name for name in old if after[name]["id"] != old[name]}
            self.assertEqual({"k-2"}, changed)

    def test_answers_that_are_lost_and_a_token_that_expires(self) -> None:
        before = self.make()
        self.tag(before["k-2"]["id"], FaultWord.LINK)
        self.front.arm()
        self.heal("--force", "--dry-run", status=1)
        looks = len(self.front.requests)
        self.front.arm()
        self.front.lose = {looks + 1, looks + 4, looks + 9, looks + 15}
        self.front.expire = {looks + 2, looks + 12}
        self.heal("--force")
        self.front.arm()
        self.assert_complete("k", [1, 2, 3], ports_each=1)


@pytest.mark.slow
class WatchTest(HealTest):
    """Healers in processes of their own."""

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a healer that watches the cluster."""
        command = [sys.executable, "-m", "openstackclient.shell", "hpc", "cluster", "heal", "k"]
        log = (self._folder / f"healer-{len(self.healers)}").open("w+")
        self.addCleanup(log.close)
        process = subprocess.Popen(
            [*command, "--watch", "--force", *SOON, *words],
            env=self.own_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.healers.append((process, log.name))
        return process

    def setUp(self) -> None:
        super().setUp()
        self.healers: list[tuple[subprocess.Popen[str], str]] = []

    def said(self) -> list[str]:
        return [Path(name).read_text() for _, name in self.healers]

    def until(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + 300
        while not done():
            self.assertLess(time.monotonic(), end, self.said())
            time.sleep(0.2)

    def healed(self, old: str, name: str = "k-2") -> bool:
        """The member is another server, and the cluster is whole again."""
        server = self.by_name().get(name)
        if server is None or old == server["id"] or server["status"] != "ACTIVE":
            return False
        (row,) = self.cluster("list", "-f", "json").json
        return bool(row["State"] == "ACTIVE")

    def created(self) -> int:
        return self.front.requests.count("POST /v2.1/servers")

    @pytest.mark.slow
    def test_two_healers_replace_each_member_once(self) -> None:
        before = self.make()
        # Of two --interval the last one counts. A healer is not dead while the other one waits.
        for _ in range(2):
            self.start("--interval", "3")
        calm = lambda: all("no member of k" in text[-60:] for text in self.said())  # noqa: E731
        self.until(calm)
        self.front.arm()
        for number, name in enumerate(("k-1", "k-2", "k-3"), 1):
            self.tag(before[name]["id"], FaultWord.ERRORS)
            self.until(lambda name=name: self.healed(before[name]["id"], name))
            self.assertEqual(number, self.created())
        self.until(calm)
        for process, _ in self.healers:
            process.terminate()
        self.assertEqual([0, 0], [process.wait(60) for process, _ in self.healers])
        self.assertEqual(["ended by a signal"] * 2, [text[-18:].strip() for text in self.said()])
        self.assert_complete("k", [1, 2, 3], ports_each=1)

    @pytest.mark.slow
    def test_an_outage_a_signal_and_the_next_healer(self) -> None:
        before = self.make()
        healer = self.start()
        self.until(lambda: "no member of k" in self.said()[0])
        # The cloud does not answer for a while, and the token expires.
        self.front.arm()
        self.front.lose = set(range(1, 40))
        self.front.expire = {44}
        self.until(lambda: len(self.front.requests) > 50)
        self.assertIn("the cloud does not answer", self.said()[0])
        # It ends between two requests, in the midst of a replacement.
        self.front.arm(4, writes=True)
        self.front.kill = healer.terminate
        self.tag(before["k-2"]["id"], FaultWord.GONE)
        self.assertEqual(1, healer.wait(60), self.said())
        self.front.arm()
        self.wait_until_calm()
        self.assertNotIn("k-2", self.by_name())
        (row,) = self.cluster("list", "--long", "-f", "json").json
        self.assertEqual("INCOMPLETE", row["State"])
        # A healer that finds nothing to do but that.
        self.start()
        self.until(lambda: self.healed(before["k-2"]["id"]))
        self.assertIn("a healer has left k: its work is finished", self.said()[1])
        self.cluster("delete", "k")
        self.assertEqual(0, self.healers[1][0].wait(60))
        self.assertIn("there is no cluster", self.said()[1])
