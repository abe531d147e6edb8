# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc gpu`` against Nova's own API: what users do, and what goes wrong."""

from __future__ import annotations

import threading

import pytest

from nova_hpc_guest.gpu import announcements, records
from tests.functional.cluster_client.base import OTHER_PROJECT
from tests.functional.gpu_client import base

KEYS = ("xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=", "a" * 42 + "E=")
BOOT = "1234abcd-1111-4222-8333-444455556666"


class GpuTest(base.GpuClientTest):
    def test_a_life(self) -> None:
        one, two = self.boot("one", "two")
        made = self.gpu(*self.share_words("sim", "--slots", "2", "--memory", "16G"), "-f", "json")
        share = made.json["id"]
        self.assertEqual(("READY", 16384), (made.json["state"], made.json["memory_mib"]))
        # Its ports are in its own group alone: members of "default" reach each other.
        self.assertEqual({f"hpc-gpu-{share}"}, self.groups_of_server(share))
        (own,) = [g for g in self.filters().values() if g["name"] == f"hpc-gpu-{share}"]
        (clients,) = [g for g in self.filters().values() if g["name"].endswith("-clients")]
        rules = [rule for rule in own["security_group_rules"] if rule["direction"] == "ingress"]
        self.assertEqual({clients["id"]}, {rule["remote_group_id"] for rule in rules})
        self.assertEqual(
            [("tcp", 16384, 32767), ("udp", 51820, 51820)],
            [(rule["protocol"], rule["port_range_min"], rule["port_range_max"]) for rule in rules],
        )

        self.gpu("attach", "sim", "one", two)
        shown = self.show()
        self.assertEqual(("READY", "", ""), (shown["state"], shown["reason"], shown["next"]))
        self.assertEqual({"one", "two"}, {slot["name"] for slot in shown["clients"]})
        self.assertEqual({True}, {slot["may_connect"] for slot in shown["clients"]})
        pointer = records.read_client(self.metadata(one)[records.CLIENT_KEY])
        slot = records.read_slot(self.metadata(share)[records.slot_key_of(one)])
        self.assertEqual((share, slot.port, slot.address), (pointer[0], pointer.port, pointer.own))
        self.assertEqual({"default", clients["name"]}, self.groups_of_server(one))
        # The same again changes nothing, and a third has no slot.
        self.gpu("attach", "sim", "one")
        self.assertEqual(slot, records.read_slot(self.metadata(share)[records.slot_key_of(one)]))
        (three,) = self.boot("three")
        said = self.gpu("attach", "sim", "three", status=1)
        self.assertIn("has 2 slots, and all are taken", said.err)
        self.assertEqual({}, self.metadata(three))

        self.gpu("detach", "sim", "one")
        self.assertEqual({}, self.metadata(one))
        self.assertEqual({"default"}, self.groups_of_server(one))
        said = self.gpu("share", "delete", "sim", status=1)
        self.assertIn("has the clients two, whose jobs would end", said.err)
        self.gpu("share", "delete", "--force", "sim")
        self.assert_no_share_left()

    def test_a_client_that_was_deleted_is_named_and_cleaned(self) -> None:
        one, _ = self.boot("one", "two")
        share = self.gpu(*self.share_words("sim", "--slots", "2"), "-f", "json").json["id"]
        self.gpu("attach", "sim", "one")
        self.api.delete_server(one)
        self._wait_until_deleted({"id": one})
        (row,) = self.shares()
        self.assertEqual(([one], 1), (row["Clients"], row["Wrong"]))
        self.assertIn("its client was deleted", row["Reason"])
        said = self.gpu("attach", "sim", "two")
        self.assertIn(f"took back slot of share sim for server {one}", said.err)
        self.assertNotIn(records.slot_key_of(one), self.metadata(share))
        # The share is deleted behind the command's back.
        self.api.delete_server(share)
        self._wait_until_deleted({"id": share})
        (row,) = self.shares()
        self.assertEqual(("GONE", ["two"]), (row["State"], row["Clients"]))
        said = self.gpu("detach", "sim", "two", status=1)
        self.assertIn("no share is called sim", said.err)
        self.assert_no_share_left()

    def test_what_is_refused_changes_nothing(self) -> None:
        (one,) = self.boot("one")
        bare = ("--flavor", "one", "--image", base.IMAGE)
        said = self.gpu("share", "create", "sim", *bare, status=2)
        self.assertIn("the following arguments are required: --engine", said.err)
        wrong = (
            ((*self.share_words("a b"),), "cannot name a share"),
            ((*self.share_words("sim", "--slots", "65"),), "at most 64"),
            ((*self.share_words("sim", "--availability-zone", "nova:host0"),), "skip its filters"),
            ((*self.share_words("sim", "--engine", "My"),), "no name of an engine"),
            (
                tuple(word for word in self.share_words() if word != "--force"),
                "flavor one has no GPU",
            ),
            (("attach", "sim", "one"), "no share is called sim"),
            (("share", "show", "sim"), "no share is called sim"),
            (("share", "delete", "sim"), "no share is called sim"),
        )
        for words, text in wrong:
            self.assertIn(text, self.gpu(*words, status=1).err)
        self.assertNotIn("POST /v2.1/servers", self.front.requests)
        self.gpu(*self.share_words())
        self.assertIn("there is a share sim", self.gpu(*self.share_words(), status=1).err)
        self.assertIn("is a share itself", self.gpu("attach", "sim", "sim", status=1).err)
        self.assertIn("is not attached", self.gpu("detach", "sim", "one", status=1).err)
        # A port without a filter needs keys.
        (port,) = [p for p in self.neutron._ports.values() if p["device_id"] == one]
        port["port_security_enabled"] = False
        self.assertIn("use --encrypt", self.gpu("attach", "sim", "one", status=1).err)
        port["port_security_enabled"] = True
        # A group that opens everything to its members was added to the share's port.
        (share,) = [row["ID"] for row in self.shares()]
        (default,) = self.groups_before
        (other,) = [p for p in self.neutron._ports.values() if p["device_id"] == share]
        self.neutron._security_groups[default]["security_group_rules"] = [
            {"direction": "ingress", "protocol": None, "remote_group_id": default}
        ]
        other["security_groups"].append(default)
        said = self.gpu("attach", "sim", "one", status=1)
        self.assertIn("lets others reach ports 16384 to 32767", said.err)
        self.assertEqual({}, self.metadata(one))
        self.front_subnet("192.168.0.0/16")
        other["security_groups"].remove(default)
        said = self.gpu("attach", "sim", "one", status=1)
        self.assertIn("take a subnet of /20 or smaller", said.err)
        port["network_id"] = "another"
        said = self.gpu("attach", "sim", "one", status=1)
        self.assertIn("have no network in common", said.err)
        self.assertEqual({}, self.metadata(one))

    def front_subnet(self, cidr: str) -> None:
        patch = pytest.MonkeyPatch()
        patch.setattr("tests.functional.gpu_client.filter_front.SUBNET", cidr)
        self.addCleanup(patch.undo)

    def test_another_project_reaches_nothing(self) -> None:
        (one,) = self.boot("one")
        self.gpu(*self.share_words())
        stranger = {"user": "stranger", "project": OTHER_PROJECT}
        self.assertEqual([], self.gpu("share", "list", "-f", "json", **stranger).json)
        for words in (
            ("attach", "sim", one),
            ("detach", "sim", one),
            ("share", "delete", "--force", "sim"),
        ):
            self.assertIn("no share is called sim", self.gpu(*words, status=1, **stranger).err)
        self.assertEqual("READY", self.show()["state"])

    def test_two_attach_at_one_moment(self) -> None:
        """Of 3 for 2 slots at most 2 get one; nothing is half, and Nova loses no slot for good."""
        names = ("one", "two")
        ids = self.boot(*names)
        share = self.gpu(*self.share_words("sim", "--slots", "2"), "-f", "json").json["id"]
        # The second one's slot is written between a request's reading and its writing.
        app, done = self.front._nova, threading.Event()
        key = records.slot_key_of(ids[1])
        text = records.write_slot(records.GpuSlot("192.168.1.250", 17384, 1))

        def nova(environ, start):
            asked = (environ["REQUEST_METHOD"], environ["PATH_INFO"])
            found = list(app(environ, start))
            if asked == ("POST", f"/v2.1/servers/{share}/metadata") and not done.is_set():
                done.set()
                # What Nova's other request does that read the items before: it writes all.
                kept = {records.SHARE_KEY: self.metadata(share)[records.SHARE_KEY], key: text}
                self.api.api_put(f"/servers/{share}/metadata", {"metadata": kept})
            return found

        self.front._nova = nova
        self.gpu("attach", "sim", "one")
        self.assertTrue(done.is_set())
        found = self.metadata(share)
        self.assertIn(records.slot_key_of(ids[0]), found)
        self.assertIn(key, found)

    def test_the_last_slot_goes_to_one(self) -> None:
        ids = self.boot("one", "two")
        share = self.gpu(*self.share_words("sim", "--slots", "1"), "-f", "json").json["id"]
        app, done = self.front._nova, threading.Event()
        text = records.write_slot(records.GpuSlot("192.168.1.250", 17384, 1))

        def nova(environ, start):
            asked = (environ["REQUEST_METHOD"], environ["PATH_INFO"])
            found = list(app(environ, start))
            if asked == ("POST", f"/v2.1/servers/{share}/metadata") and not done.is_set():
                done.set()
                self.api.post_server_metadata(share, {records.slot_key_of(ids[1]): text})
            return found

        self.front._nova = nova
        said = self.gpu("attach", "sim", "one", status=1)
        self.assertIn("another client took the last one at this moment", said.err)
        self.assertNotIn(records.slot_key_of(ids[0]), self.metadata(share))
        self.assertEqual({"default"}, self.groups_of_server(ids[0]))

    @pytest.mark.slow
    def test_keys_come_from_consoles(self) -> None:
        (one,) = self.boot("one")
        share = self.gpu(*self.share_words("sim", "--encrypt"), "-f", "json").json["id"]
        say = announcements.format_announcements
        consoles = base.TalkingFakeDriver.consoles
        said = self.gpu("attach", "sim", "one", "--timeout", "1", status=1)
        self.assertIn("has printed no key on its console", said.err)
        self.assertEqual({}, self.metadata(one))
        consoles[one] = "\n".join(say(BOOT, KEYS[0], {"pocl": "6.0"}, 0))
        consoles[share] = "\n".join([*say(BOOT, KEYS[1], {}, 0), *say(BOOT, KEYS[0], {}, 0)])
        said = self.gpu("attach", "sim", "one", status=1)
        self.assertIn("the console of sim says two different keys in one boot", said.err)
        consoles[share] = "\n".join(say(BOOT, KEYS[1], {"lupine": "2.1"}, 0))
        said = self.gpu("attach", "sim", "one", status=1)
        self.assertIn("the image of sim has no engine pocl; it has lupine", said.err)
        consoles[share] = "\n".join(say(BOOT, KEYS[1], {"pocl": "6.0"}, 8192))
        said = self.gpu("attach", "sim", "one", "--memory", "16G", status=1)
        self.assertIn("16384 MiB are more than the 8192 MiB", said.err)
        self.assertEqual({}, self.metadata(one))
        self.gpu("attach", "sim", "one")
        pointer = records.read_client(self.metadata(one)[records.CLIENT_KEY])
        slot = records.read_slot(self.metadata(share)[records.slot_key_of(one)])
        self.assertEqual((KEYS[1], KEYS[0]), (pointer.key, slot.key))
        self.assertEqual("", self.show()["reason"])
        # After a reboot of either end its key is another one: the records agree, and are old.
        boot = BOOT.replace("1", "3")
        for rebooted, text in ((share, "share sim was rebooted"), (one, "one was rebooted")):
            before = consoles[rebooted]
            lines = say(boot, KEYS[0] if rebooted == share else KEYS[1], {"pocl": "6.0"}, 8192)
            consoles[rebooted] = "\n".join([before, *lines])
            shown = self.show()
            self.assertIn(f"{text} and has another key: attach it again", shown["reason"])
            self.assertEqual("openstack hpc gpu attach sim one --encrypt", shown["next"])
            # What cannot be known is no problem.
            consoles[rebooted] = ""
            self.assertEqual("", self.show()["reason"])
            consoles[rebooted] = before
        consoles[share] = "\n".join(say(BOOT, KEYS[1], {"pocl": "6.0"}, 8192, ["pocl"]))
        said = self.gpu("attach", "sim", "one", "--memory", "4G", status=1)
        self.assertIn("cannot limit the memory of a slot: it has no NVIDIA MPS", said.err)

    @pytest.mark.slow
    def test_a_token_that_expires_in_the_middle(self) -> None:
        (one,) = self.boot("one")
        self.gpu(*self.share_words())
        self.front.arm()
        self.gpu("attach", "sim", "one")
        number = self.front.requests.index(f"PUT /network/v2.0/ports/{self.port_of(one)}")
        self.gpu("detach", "sim", "one")
        self.front.arm()
        self.front.expired = number
        said = self.gpu("attach", "sim", "one", status=1)
        self.assertIn("openstack hpc gpu attach sim one goes on", said.err)
        self.front.expired = 0
        self.assert_all_is_named()
        self.assertIn("it was not attached to its end", self.show()["reason"])
        self.gpu("attach", "sim", "one")
        self.assertEqual("", self.show()["reason"])

    def port_of(self, server: str) -> str:
        (port,) = [p["id"] for p in self.neutron._ports.values() if p["device_id"] == server]
        return port

    @pytest.mark.slow
    def test_records_that_others_wrote(self) -> None:
        _, two = self.boot("one", "two")
        share = self.gpu(*self.share_words("sim", "--slots", "3"), "-f", "json").json["id"]
        self.gpu("attach", "sim", "one")
        long = "x" * 255
        for text in (long, '{"v":2}', "[]", "\u202e{"):
            self.api.post_server_metadata(share, {records.slot_key_of(two): text})
            (row,) = self.shares()
            self.assertEqual(("READY", 1), (row["State"], row["Wrong"]))
            self.assertNotIn("\u202e", self.gpu("share", "show", "sim").out)
            self.api.post_server_metadata(share, {records.SHARE_KEY: text})
            (row,) = self.shares()
            self.assertEqual("UNKNOWN", row["State"])
            said = self.gpu("attach", share, "two", status=1)
            self.assertIn(f"share {row['Name']} is UNKNOWN", said.err)
            record = records.write_share(records.GpuShare("sim", "pocl", 3))
            self.api.post_server_metadata(share, {records.SHARE_KEY: record})
        self.gpu("detach", "sim", two)
        self.assertEqual(0, self.shares()[0]["Wrong"])

    def test_a_client_that_is_renamed_or_stopped(self) -> None:
        (one,) = self.boot("one")
        self.gpu(*self.share_words())
        self.gpu("attach", "sim", "one")
        self.api.put_server(one, {"server": {"name": "-x $(other)"}})
        (row,) = self.shares()
        self.assertEqual((["-x $(other)"], 0), (row["Clients"], row["Wrong"]))
        self._stop_server({"id": one})
        self.gpu("detach", "sim", one)
        self.assertEqual({}, self.metadata(one))

    def test_a_cluster_has_slots_as_long_as_it_lives(self) -> None:
        share = self.gpu(*self.share_words("sim", "--slots", "2"), "-f", "json").json["id"]
        said = self.create("big", 3, "--gpu-share", "sim", status=1)
        self.assertIn("has 2 free slots, and the cluster has 3 members", said.err)
        said = self.create("early", 2, "--gpu-share", "sim", "--no-wait", status=1)
        self.assertIn("leave --no-wait out", said.err)
        self.create("train", 2, "--gpu-share", "sim", "--network", base.NETWORK)
        self.assertEqual({"train-1", "train-2"}, {one["name"] for one in self.show()["clients"]})
        self.assertEqual("", self.show()["reason"])
        # A member that is made anew gets the slot of the one that went.
        self.cluster("replace", "train", "2")
        self.assertEqual(("", 2), (self.show()["reason"], len(self.show()["clients"])))
        self.cluster("delete", "train")
        self.assertEqual([], self.show()["clients"])
        self.assertEqual({records.SHARE_KEY}, set(self.metadata(share)))

    def test_what_cannot_be_cleaned_keeps_nobody_from_work(self) -> None:
        (one,) = self.boot("one")
        share = self.gpu(*self.share_words(), "-f", "json").json["id"]
        self.gpu("attach", "sim", "one")
        self.api.delete_server(one)
        self._wait_until_deleted({"id": one})
        self.admin_api.post_server_action(share, {"lock": None})
        said = self.gpu(*self.share_words("more"))
        self.assertIn(f"could not take back slot of share sim for server {one}", said.err)
        self.admin_api.post_server_action(share, {"unlock": None})
        said = self.gpu("share", "delete", "more")
        self.assertIn("took back slot of share sim", said.err)

    def test_a_share_joins_the_group_of_its_clients(self) -> None:
        self.create("train", 1, "--network", base.NETWORK)
        share = self.gpu(*self.share_words("sim", "--near", "train"), "-f", "json").json["id"]
        (group,) = self.groups()
        self.assertIn(share, group["members"])
        said = self.cluster("delete", "train", status=1)
        self.assertIn("sim; delete them first", said.err)

    def test_a_share_that_does_not_run_is_named(self) -> None:
        share = self.gpu(*self.share_words(), "-f", "json").json["id"]
        self._stop_server({"id": share})
        (row,) = self.shares()
        self.assertEqual(("DOWN", "its server is SHUTOFF"), (row["State"], row["Reason"]))
        self.gpu("share", "delete", "sim")
        self.assert_no_share_left()
