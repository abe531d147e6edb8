# SPDX-License-Identifier: Apache-2.0
"""A suspend takes devices out of a running guest: refused, unless the operator allows it.

QEMU keeps a request that the guest did not answer, and the guest's next reset completes
it. The domains of these tests do the same.
"""

from __future__ import annotations

from typing import Any

from tests.functional.guest_base import HOST, MIRROR, OURS, SNAPSHOT, STOCK, SUSPEND, GuestTest
from tests.functional.lifecycle.domains import source_of


class RefusedTest(GuestTest):
    """The default."""

    def check(self, specs: dict[str, str], body: dict[str, Any], words: str) -> None:
        server = self.boot(self.make_flavor(specs))
        before = self.places(server)
        self.assertEqual(2, len(before))
        self.guests.busy = True
        reason = self.ask(server, body)
        # Days later the guest is reset, by itself or by its user.
        self.reset(server)
        self.assertEqual(before, self.places(server), "the ACTIVE server lost its devices")
        self.assertIn(words, reason)
        self.assertIn("helve", reason)
        self.assert_no_secrets(reason)
        self.assertNotIn("snapshot", [each["name"] for each in self.glance.detail(None)])

    def test_suspend_of_a_stock_flavor(self) -> None:
        self.check(STOCK, SUSPEND, "cannot be suspended")

    def test_suspend_of_a_flavor_of_ours(self) -> None:
        self.check(OURS, SUSPEND, "cannot be suspended")

    def test_suspend_of_a_mirrored_tree(self) -> None:
        self.check(MIRROR, SUSPEND, "cannot be suspended")

    def test_a_cold_snapshot(self) -> None:
        self.flags(disable_libvirt_livesnapshot=True, group="workarounds")
        self.check(STOCK, SNAPSHOT, "snapshot")

    def test_a_server_without_devices_is_suspended(self) -> None:
        server = self.boot(self.make_flavor({}))
        self.assertEqual("", self.ask(server, SUSPEND, "SUSPENDED"))
        self.assertEqual("", self.ask(server, {"resume": None}))


class AllowedTest(GuestTest):
    """``[hpc]suspend_with_devices``."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(suspend_with_devices=True, group="hpc")

    def mark(self, server: dict[str, Any]) -> str | None:
        return self.instance(server).system_metadata.get("hpc_unplug")

    def test_a_guest_that_answers(self) -> None:
        for specs in (STOCK, MIRROR):
            server = self.boot(self.make_flavor(specs))
            before = self.places(server)
            self.assertEqual("", self.ask(server, SUSPEND, "SUSPENDED"))
            self.assertEqual("", self.ask(server, {"resume": None}))
            self.assertEqual(before.keys(), self.places(server).keys())
            if specs is MIRROR:
                self.assertEqual(before, self.places(server))
            self.assertIsNone(self.mark(server))

    def test_a_guest_that_does_not_answer_is_marked_until_it_is_started_anew(self) -> None:
        server = self.boot(self.make_flavor(STOCK))
        self.guests.busy = True
        reason = self.ask(server, SUSPEND)
        self.assertIn("did not give up its PCI devices in time", reason)
        self.assertIn("still give up 2 of them", reason)
        self.assertIn("hard reboot", reason)
        self.assert_no_secrets(reason)
        self.assertEqual('{"v":1,"asked":2}', self.mark(server))
        self.assertEqual("", self.ask(server, {"reboot": {"type": "HARD"}}))
        self.assertIsNone(self.mark(server))

    def test_what_the_guest_gives_up_later_comes_back_to_its_place(self) -> None:
        for specs in (STOCK, MIRROR):
            server = self.boot(self.make_flavor(specs))
            before = self.places(server)
            self.guests.busy = True
            self.ask(server, SUSPEND)
            self.reset(server)
            self.eventually(lambda s=server, b=before: self.assertEqual(b, self.places(s)))
            self.guests.busy = False
            self.update("alpha")
            self.update("alpha")
            self.assertEqual({}, self.stats_of("alpha").differs)

    def test_an_event_that_never_came(self) -> None:
        """The next update puts the devices back; nova-compute was away meanwhile."""
        server = self.boot(self.make_flavor(STOCK))
        before = self.places(server)
        self.guests.busy = True
        self.ask(server, SUSPEND)
        self.no_answer = True
        self.reset(server)
        self.assertEqual({}, self.places(server))
        self.update("alpha")
        self.assertEqual(before, self.places(server))

    def test_a_device_that_is_ill_is_not_put_back(self) -> None:
        server = self.boot(self.make_flavor(STOCK))
        before = self.places(server)
        self.guests.busy = True
        self.ask(server, SUSPEND)
        self.no_answer = True
        self.reset(server)
        for each in self.devices_of(server):
            self.sysfs["alpha"].bind(each.address, "nvidia")
        self.update("alpha")
        self.update("alpha")
        self.assertEqual({}, self.places(server))
        gone = {"{:04x}:{:02x}:{:02x}.{:x}".format(*each) for each in before}
        self.assertEqual(gone, self.stats_of("alpha").differs.keys())

    def test_one_of_two_devices(self) -> None:
        """What the guest gave up is back, and what it did not give up is asked for."""
        server = self.boot(self.make_flavor(STOCK))
        before = self.places(server)
        kept = next(iter(before))
        self.guests.busy = lambda device: source_of(device) == kept
        self.assertIn("give up 1 of them", self.ask(server, SUSPEND))
        self.assertEqual(before, self.places(server))

    def test_a_cold_snapshot(self) -> None:
        self.flags(disable_libvirt_livesnapshot=True, group="workarounds")
        server = self.boot(self.make_flavor(STOCK))
        self.guests.busy = True
        self.ask(server, SNAPSHOT)
        self.eventually(lambda: self.assertEqual('{"v":1,"asked":2}', self.mark(server)))
        self.assertEqual("ACTIVE", self.api.get_server(server["id"])["status"])
        self.assertNotIn("snapshot", [each["name"] for each in self.glance.detail(None)])


class ElsewhereTest(GuestTest):
    """A node on which this project is not in use, and a flavor that does not ask for it."""

    def setUp(self) -> None:
        super().setUp()
        self.host("beta", HOST, device_spec=HOST.device_spec(tags=False))

    def test_it_is_nova_s(self) -> None:
        server = self.boot(self.make_flavor(STOCK), host="beta")
        self.assertEqual("beta", self.host_of(server))
        self.api.post_server_action(server["id"], SUSPEND)
        self._wait_for_state_change(server, "SUSPENDED")
