# SPDX-License-Identifier: Apache-2.0
"""What guests have is compared with what Nova's records give them, at every update."""

from __future__ import annotations

from typing import Any

from lxml import etree
from nova import context as nova_context
from nova import objects
from nova.tests import fixtures as nova_fixtures

from nova_hpc.tenancy import guest_domains
from tests.functional import fixtures
from tests.functional.guest_base import SUSPEND, GuestTest

ONE = {"pci_passthrough:alias": "gpu:1"}


class PromisesTest(GuestTest):
    """Devices that leave guests, and such as are in the wrong one."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(notification_format="versioned", group="notifications")
        self.notifier = self.useFixture(nova_fixtures.NotificationFixture(self))
        self.flags(allow_resize_to_same_host=True)
        self.useFixture(
            fixtures.fixtures.MockPatch(
                "nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off",
                return_value="{}",
            )
        )
        self.server = self.boot(self.make_flavor(ONE))
        (device,) = self.devices_of(self.server)
        self.address = device.address

    def differs(self, looks: int = 2) -> dict[str, str]:
        for _ in range(looks):
            self.update("alpha")
        found = dict(self.stats_of("alpha").differs)
        ledger = self.ledger("alpha").devices
        self.assertEqual(found, {each: one.differs for each, one in ledger.items() if one.differs})
        return found

    def told(self) -> list[tuple[str, str, str]]:
        """Priority, address and difference of what operators were told of this server."""
        found = []
        for each in self.notifier.versioned_notifications:
            if each["event_type"] == "hpc_guest_device.update":
                data = each["payload"]["nova_object.data"]
                self.assertEqual(self.server["id"], data["server_uuid"])
                self.assertEqual(("alpha", "alpha", 0),
                                 (data["host"], data["node"], data["left_out"]))  # fmt: skip
                found.append((each["priority"], data["address"], data["difference"]))
        return found

    def hostdev(self, address: str) -> etree._Element:
        bus, slot, function = address[5:7], address[8:10], address[11:]
        return etree.fromstring(
            "<hostdev mode='subsystem' type='pci' managed='no'><source>"
            f"<address domain='0x0000' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/>"
            "</source><address type='pci' domain='0x0000' bus='0x1e' slot='0x00' function='0x0'/>"
            "</hostdev>"
        )

    @staticmethod
    def text(element: etree._Element) -> str:
        return etree.tostring(element, encoding="unicode")

    def lose(self) -> None:
        """The device leaves the guest, and nobody has asked for it."""
        self.guests._gone(self.domain(self.server), self.text(self.hostdev(self.address)))

    def test_a_device_is_gone(self) -> None:
        self.assertEqual({}, self.differs())
        # Not even when the service has started for the first time.
        self.assertEqual([], self.log_lines("The driver cannot tell whether the servers"))
        self.lose()
        found = self.differs()
        self.assertEqual({self.address}, found.keys())
        self.assertIn("is gone from the guest", found[self.address])
        self.assertIn(f"hard reboot of server {self.server['id']}", found[self.address])
        self.assertEqual(1, len(self.log_lines(f"ERROR.*{self.address} is gone from the guest")))
        # Once, however often it is seen.
        self.assertEqual(found, self.differs())
        self.assertEqual(1, len(self.log_lines(f"ERROR.*{self.address} is gone from the guest")))
        self.assertEqual([("WARN", self.address, "gone")], self.told())
        # The cure that is named.
        self.assertEqual("", self.ask(self.server, {"reboot": {"type": "HARD"}}))
        self.assertEqual({}, self.differs(looks=1))
        self.assertEqual(1, len(self.places(self.server)))
        self.assertEqual(("INFO", self.address, ""), self.told()[-1])
        self.assertEqual(2, len(self.told()))

    def test_the_watch_does_not_wait_for_two_updates(self) -> None:
        """libvirt has reported the loss; two comparisons, some seconds apart, confirm it."""
        self.update("alpha")
        driver: Any = self.computes["alpha"].driver
        promises, watch = driver.hpc_promises, driver.hpc_watch
        watch.look()
        promises.look_again()
        self.assertIsNone(promises._between)  # nothing was lost
        self.lose()
        promises.removed(self.server["id"])
        promises.look_again()
        self.assertEqual([], promises.gone_from_guests())
        # Neither another one nor an update may confirm it at once.
        promises.look_again()
        self.update("alpha")
        self.assertEqual([], promises.gone_from_guests())
        promises._between -= 20.0
        watch.look()
        self.assertEqual([(self.server["id"], self.address)], promises.gone_from_guests())
        self.eventually(lambda: self.assertEqual(["hpc-fault=gone"], self.tags()))
        # Nothing more is due, and the next update compares again.
        promises._between -= 20.0
        watch.look()
        self.assertEqual(0, promises._due)
        self.assertEqual({self.address}, self.differs(looks=1).keys())

    def tags(self) -> list[str]:
        context = nova_context.get_admin_context()
        tags = objects.TagList.get_by_resource_id(context, self.server["id"])
        return [tag.tag for tag in tags]

    def test_a_device_too_many(self) -> None:
        other = next(each for each in self.tracked("alpha") if each != self.address)
        self.domain(self.server).hpc_live.plug(self.hostdev(other), named=True)
        found = self.differs()
        self.assertEqual({other}, found.keys())
        self.assertIn("was not given it", found[other])
        self.assertEqual("", self.ask(self.server, {"reboot": {"type": "HARD"}}))
        self.assertEqual({}, self.differs(looks=1))

    def test_another_device(self) -> None:
        other = next(each for each in self.tracked("alpha") if each != self.address)
        self.lose()
        self.domain(self.server).hpc_live.plug(self.hostdev(other), named=True)
        self.assertEqual({self.address, other}, self.differs().keys())
        self.assertEqual(
            sorted([("WARN", self.address, "gone"), ("WARN", other, "more")]), sorted(self.told())
        )

    def test_a_notification_that_cannot_be_sent_stops_nothing(self) -> None:
        notifier = "virt_driver_patches.driver.notifications.HpcGuestDeviceNotification.emit"
        self.lose()
        with fixtures.fixtures.MockPatch(notifier, side_effect=OSError("no queue")):
            self.assertEqual({self.address}, self.differs().keys())
        self.assertEqual([], self.told())

    def test_servers_that_are_as_they_should_be(self) -> None:
        server = self.server
        for away, status, back in (
            ({"pause": None}, "PAUSED", {"unpause": None}),
            ({"os-stop": None}, "SHUTOFF", {"os-start": None}),
            ({"rescue": {"adminPass": "secret"}}, "RESCUE", {"unrescue": None}),
        ):
            self.assertEqual("", self.ask(server, away, status))
            self.assertEqual({}, self.differs(), status)
            self.assertEqual("", self.ask(server, back))
            self.assertEqual({}, self.differs(), status)
        self.flags(suspend_with_devices=True, group="hpc")
        self.assertEqual("", self.ask(server, SUSPEND, "SUSPENDED"))
        self.assertEqual({}, self.differs())
        self.assertEqual("", self.ask(server, {"resume": None}))
        self.assertEqual({}, self.differs())
        resize = {"resize": {"flavorRef": self.make_flavor(ONE, memory_mb=128)}}
        self.assertEqual("", self.ask(server, resize, "VERIFY_RESIZE"))
        self.assertEqual({}, self.differs())
        self.assertEqual("", self.ask(server, {"revertResize": None}))
        self.assertEqual({}, self.differs())

    def test_libvirt_says_nothing(self) -> None:
        """Unknown is no difference, and does not end one."""
        self.lose()
        found = self.differs()
        promises: Any = self.computes["alpha"].driver.hpc_promises
        plain, promises._domains = (
            promises._domains,
            lambda: guest_domains.unknown_guest_domains("it hangs"),
        )
        self.assertEqual(found, self.differs())
        self.assertEqual(1, len(self.told()))
        promises._domains = plain
        self.assertEqual(found, self.differs())
        self.assertEqual(1, len(self.told()))
