# SPDX-License-Identifier: Apache-2.0
"""A suspend takes devices out of a running guest: refused, unless the operator allows it.

QEMU keeps a request that the guest did not answer, and the guest's next reset completes
it. The domains of these tests do the same.
"""

from __future__ import annotations

import threading
from typing import Any

from nova.virt.libvirt import event as libvirtevent

from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.lifecycle.domains import FaithfulDomains, source_of
from virt_driver_patches.domain import attach

HOST = fixtures.Shape((fixtures.Switch(gpus=4),))
#: Without any hpc: key, as most flavors are.
STOCK = {"pci_passthrough:alias": "gpu:2"}
OURS = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}
MIRROR = {**OURS, "hpc:guest_topology": "mirror"}
SUSPEND = {"suspend": None}
SNAPSHOT = {"createImage": {"name": "snapshot"}}


class GuestTest(DriverTest):
    """A host whose guests keep their domains, and may be busy."""

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.flags(hw_machine_type=["x86_64=q35"], group="libvirt")
        self.guests = self.useFixture(FaithfulDomains(self._removed))
        self.useFixture(fixtures.fixtures.MonkeyPatch(f"{attach.__name__}._PAUSE", 0.0))
        self.flags(device_detach_timeout=1, device_detach_attempts=1, group="libvirt")
        for path, value in (
            ("nova.virt.libvirt.utils.get_disk_size", 1 << 30),
            ("nova.virt.libvirt.utils.get_disk_backing_file", None),
            ("nova.virt.libvirt.utils.create_image", None),
            ("nova.virt.libvirt.utils.extract_snapshot", None),
            ("nova.privsep.path.chown", None),
        ):
            self.useFixture(fixtures.fixtures.MockPatch(path, return_value=value))
        self.host("alpha", HOST)

    def _removed(self, connection: Any, uuid: str, alias: str) -> None:
        event = libvirtevent.DeviceRemovedEvent(uuid, alias)
        driver = self.computes["alpha"].driver
        threading.Timer(0.01, driver.emit_event, [event]).start()

    def domain(self, server: dict[str, Any]) -> Any:
        connection = self.computes["alpha"].driver._host.get_connection()
        (found,) = (each for each in connection._vms.values() if each.UUIDString() == server["id"])
        return found

    def places(self, server: dict[str, Any]) -> dict[Any, dict[str, str]]:
        """Host address of the devices in the running guest -> address in the guest."""
        devices = self.domain(server).hpc_live.devices
        return {
            source_of(each): dict(each.find("address").attrib)
            for each in devices
            if source_of(each) is not None
        }

    def reset(self, server: dict[str, Any]) -> None:
        self.guests.reset(self.domain(server))

    def ask(self, server: dict[str, Any], body: dict[str, Any], status: str = "ACTIVE") -> str:
        """An action to its end; the reason if it has failed."""
        self.api.post_server_action(server["id"], body)
        idle = {"OS-EXT-STS:task_state": None, "status": status}
        self._wait_for_server_parameter(server, idle)
        (newest, *_) = self.api.get_instance_actions(server["id"])
        events: list[dict[str, Any]] = []

        def over() -> None:
            found = self.api.get_instance_action_details(server["id"], newest["request_id"])
            events[:] = found["events"]
            self.assertTrue(events and all(each["finish_time"] for each in events))

        self.eventually(over)
        return " ".join(each["details"] or "" for each in events).strip()


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
