# SPDX-License-Identifier: Apache-2.0
"""Faults of devices in use, from the node's sysfs to the owner's API."""

from __future__ import annotations

import re
import time
from typing import Any
from unittest import mock

import oslo_messaging
import pytest
from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states
from nova.tests import fixtures as nova_fixtures
from nova.virt.libvirt.driver import LibvirtDriver

from nova_hpc.tenancy.watch import record
from nova_hpc_common.wire.server_faults import FaultWord
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.driver_fixtures import FakeSysfs

ONE = {"pci_passthrough:alias": "gpu:1"}
SHAPE = fixtures.Shape((fixtures.Switch(gpus=2), fixtures.Switch(pfs=1, vfs=2)))
HEADER = bytes.fromhex("de103023060010000000020300000000") + bytes(28) + bytes(20)


def equip(tree: FakeSysfs) -> None:
    """Registers, a link and counters of all devices; an adapter with a port."""
    for device in tree.devices.iterdir():
        values = {
            "current_link_width": "16",
            "current_link_speed": "32.0 GT/s PCIe",
            "aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0",
            "aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0",
            "power_state": "D0",
        }
        for name, value in values.items():
            (device / name).write_text(f"{value}\n")
        (device / "config").write_bytes(HEADER)
        if (device / "sriov_totalvfs").exists():
            port = device / "infiniband/mlx5_0/ports/1"
            port.mkdir(parents=True)
            (device / "infiniband/mlx5_0/fw_ver").write_text("28.39.1002\n")
            (port / "state").write_text("4: ACTIVE\n")
    boot = tree.root / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True, exist_ok=True)
    boot.write_text("5f0c0f6e-8b1c-4b64-9f3e-0d1c1d1c1d1c\n")


class WatchCase(DriverTest):
    """The watch of one node, look by look."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(notification_format="versioned", group="notifications")
        self.notifier = self.useFixture(nova_fixtures.NotificationFixture(self))
        self.host("alpha", SHAPE, before=equip)
        self.now = 1000.0

    @property
    def watch(self) -> Any:
        return self.computes["alpha"].driver.hpc_watch

    def look(self, times: int = 1, seconds: float = 25.0) -> None:
        for _ in range(times):
            self.now += seconds
            self.watch._clock = lambda: self.now
            self.watch.look()
        self.assertEqual([], self.log_lines("The devices of servers are not watched"))

    def settle(self, *servers: dict[str, Any]) -> list[str]:
        """Looks at healthy devices; the first after a start counts for nothing."""
        self.look(3)
        addresses = []
        for server in servers:
            (device,) = self.devices_of(server)
            addresses.append(device.address)
            self.assertEqual([], self.tags(server))
        return addresses

    def tags(self, server: dict[str, Any]) -> list[str]:
        """The tags, as the owner's client reads them."""
        kept, self.api.microversion = self.api.microversion, "2.26"
        try:
            return sorted(self.api.api_get(f"/servers/{server['id']}/tags").body["tags"])
        finally:
            self.api.microversion = kept

    def set_tags(self, server: dict[str, Any], *tags: str) -> None:
        kept, self.api.microversion = self.api.microversion, "2.26"
        try:
            self.api.api_put(f"/servers/{server['id']}/tags", {"tags": list(tags)})
        finally:
            self.api.microversion = kept

    def actions(self, server: dict[str, Any]) -> list[tuple[str, str]]:
        """The owner's list of faults, oldest first."""
        found = self.api.get_instance_actions(server["id"])
        ours = [each for each in found if each["action"].startswith("hpc_")]
        self.assertEqual(len(ours), len({each["request_id"] for each in ours}))
        for each in ours:
            # Nothing of the host, in whatever field.
            self.assert_no_secrets(
                re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "", str(each))
            )
            self.assertIsNone(each["user_id"])
        return [(each["action"].removeprefix("hpc_fault_"), each["message"]) for each in ours][::-1]

    def notified(self) -> list[tuple[str, str, str, str, bool]]:
        found = []
        for each in self.notifier.versioned_notifications:
            if each["event_type"] == "hpc_server_fault.update":
                data = each["payload"]["nova_object.data"]
                found.append(
                    (each["priority"], data["server_uuid"], data["address"], data["fault"],
                     data["present"])
                )  # fmt: skip
                self.assertEqual("alpha", data["host"])
                self.assertIsNotNone(data["since"])
        return found

    def file(self, address: str, name: str, text: str) -> None:
        (self.sysfs["alpha"].devices / address / name).write_text(f"{text}\n")

    def recorded(self, address: str) -> dict[str, bool]:
        entry = record.load_record(self.ledger("alpha").device(address).watch)
        assert entry is not None
        return {word.value: fault.reported for word, fault in entry.faults.items()}


class WatchTest(WatchCase):
    # -- the whole way ------------------------------------------------------------

    def test_a_narrow_link_from_the_node_to_the_owner(self) -> None:
        server, well = self.boot(self.make_flavor(ONE)), self.boot(self.make_flavor(ONE))
        address, other = self.settle(server, well)
        self.file(address, "current_link_width", "4")
        self.look()
        self.assertEqual([], self.tags(server))
        self.look()
        self.assertEqual([FaultWord.LINK.tag], self.tags(server))
        self.assertEqual([("found", "link")], self.actions(server))
        # Once, however long it lasts.
        self.look(3)
        self.assertEqual([("found", "link")], self.actions(server))
        self.assertEqual({"link": True}, self.recorded(address))
        self.assertEqual({}, self.recorded(other))
        # The owner's tags stay, and a removed one of ours comes back. The API's limit is 50 tags.
        own = sorted(f"tag-{number}" for number in range(50))
        self.set_tags(server, *own)
        self.look()
        self.assertEqual([FaultWord.LINK.tag, *own], self.tags(server))
        self.file(address, "current_link_width", "16")
        self.look(3)
        self.assertEqual([FaultWord.LINK.tag, *own], self.tags(server))
        self.look()
        self.assertEqual(own, self.tags(server))
        self.assertEqual([("found", "link"), ("cleared", "link")], self.actions(server))
        self.assertEqual({}, self.recorded(address))
        # The other server of the node has heard nothing.
        self.assertEqual(([], []), (self.tags(well), self.actions(well)))
        self.assertEqual(
            [("WARN", server["id"], address, "link", True),
             ("INFO", server["id"], address, "link", False)],
            self.notified(),
        )  # fmt: skip
        self.assertEqual(1, len(self.log_lines(f"ERROR.*{address} of server .* fault link")))

    @pytest.mark.slow
    def test_each_kind_of_fault(self) -> None:
        server = self.boot(self.make_flavor(ONE))
        (address,) = self.settle(server)
        device = self.sysfs["alpha"].devices / address
        self.file(address, "aer_dev_fatal", "TOTAL_ERR_FATAL 1")
        self.look(2)
        self.assertEqual(["hpc-fault=errors"], self.tags(server))
        (device / "config").write_bytes(
            HEADER.replace(b"\x06", b"\x07", 1)[:8] + b"\xa2" + HEADER[9:]
        )
        self.look(2)
        self.assertEqual(["hpc-fault=errors", "hpc-fault=firmware"], self.tags(server))
        (device / "config").write_bytes(bytes([255]) * 64)
        self.look(2)
        self.assertIn("hpc-fault=gone", self.tags(server))
        (device / "config").write_bytes(HEADER)
        self.look(5)
        self.assertEqual(["hpc-fault=errors"], self.tags(server))
        self.sysfs["alpha"].vanish(address)
        self.look(2, seconds=2.0)
        self.assertIn("hpc-fault=gone", self.tags(server))
        self.sysfs["alpha"].come_back(address)

    @pytest.mark.slow
    def test_a_virtual_function_has_the_port_and_the_firmware_of_its_adapter(self) -> None:
        server = self.boot(self.make_flavor({"pci_passthrough:alias": "vf:1"}))
        (address,) = self.settle(server)
        (parent,) = self.sysfs["alpha"].devices.glob(f"{address[:-1]}0")
        (parent / "infiniband/mlx5_0/ports/1/state").write_text("1: DOWN\n")
        (parent / "infiniband/mlx5_0/fw_ver").write_text("28.40.1000\n")
        (parent / "current_link_width").write_text("8\n")
        self.look(2)
        self.assertEqual(
            ["hpc-fault=firmware", "hpc-fault=link", "hpc-fault=port"], self.tags(server)
        )

    # -- a busy cloud -------------------------------------------------------------------

    def test_a_restart_of_the_service_in_between(self) -> None:
        server = self.boot(self.make_flavor(ONE))
        (address,) = self.settle(server)
        self.file(address, "current_link_width", "4")
        self.look(2)
        self.restart_compute_service("alpha")
        self.look(3)
        self.assertEqual([("found", "link")], self.actions(server))
        self.assertEqual(["hpc-fault=link"], self.tags(server))
        # One more fault while the service is down, and the first is over.
        self.file(address, "current_link_width", "16")
        self.file(address, "aer_dev_fatal", "TOTAL_ERR_FATAL 3")
        self.restart_compute_service("alpha")
        self.look(5)
        self.assertEqual(["hpc-fault=errors"], self.tags(server))
        self.assertEqual(
            [("found", "link"), ("found", "errors"), ("cleared", "link")], self.actions(server)
        )

    @pytest.mark.slow
    def test_tags_of_a_lost_ledger_are_cleared_and_never_believed(self) -> None:
        server = self.boot(self.make_flavor(ONE))
        # Its owner, or an earlier run of the service, has written them.
        self.set_tags(server, "hpc-fault=link", "hpc-fault=slow", "hpc-faults")
        self.look(2)
        self.assertEqual(3, len(self.tags(server)))
        self.look()
        self.assertEqual(["hpc-fault=slow", "hpc-faults"], self.tags(server))
        self.assertEqual([("cleared", "link")], self.actions(server))
        self.assertEqual([], self.notified())

    def test_the_conductor_is_away(self) -> None:
        server, second = self.boot(self.make_flavor(ONE)), self.boot(self.make_flavor(ONE))
        address, other = self.settle(server, second)
        self.file(address, "current_link_width", "4")
        self.file(other, "current_link_width", "4")
        plain = objects.Instance.get_by_uuid
        self.look()
        with mock.patch.object(
            objects.Instance, "get_by_uuid", side_effect=oslo_messaging.MessagingTimeout()
        ) as away:
            self.look()
            self.assertEqual(1, away.call_count)  # each further call would wait as long
        self.assertEqual([], self.tags(server))

        # A server that cannot be read, or be told, holds up no other.
        def fail(context: Any, uuid: str, **keywords: Any) -> Any:
            if uuid == server["id"]:
                raise OSError("broken")
            return plain(context, uuid, **keywords)

        with mock.patch.object(objects.Instance, "get_by_uuid", side_effect=fail):
            self.look()
        self.assertEqual(([], ["hpc-fault=link"]), (self.tags(server), self.tags(second)))
        with mock.patch.object(objects.Tag, "create", side_effect=OSError("away")):
            self.look(3)
        self.assertEqual({"link": False}, self.recorded(address))
        self.assertEqual(
            1, len(self.log_lines(f"WARNING.*work of server {server['id']} are not reported"))
        )
        # Written, but the answer is lost.
        create = objects.InstanceAction.create

        def lose(action: Any) -> None:
            create(action)
            raise oslo_messaging.MessagingTimeout

        with mock.patch.object(objects.InstanceAction, "create", lose):
            self.look()
        self.look()
        self.assertEqual(["hpc-fault=link"], self.tags(server))
        self.assertEqual([("found", "link")], self.actions(server))
        self.assertEqual({"link": True}, self.recorded(address))

        # A fault that ends before it can be reported.
        self.file(address, "current_link_width", "16")
        with mock.patch.object(objects.Tag, "destroy", side_effect=OSError("away")):
            self.look(4)
            self.file(address, "aer_dev_fatal", "TOTAL_ERR_FATAL 1")
            self.look(2)
            self._reboot_server(server, hard=True)
            self.look(5)
        self.look()
        self.assertEqual([], self.tags(server))
        self.assertEqual(
            [
                *(("found", "link"), ("cleared", "link")),
                *(("found", "errors"), ("cleared", "errors")),
            ],
            self.actions(server),
        )

    @pytest.mark.slow
    def test_a_server_that_leaves(self) -> None:
        server = self.boot(self.make_flavor(ONE))
        (address,) = self.settle(server)
        self.file(address, "current_link_width", "4")
        self.look(2)
        self._shelve_server(server, expected_state="SHELVED_OFFLOADED")
        self.look()
        self.assertEqual([], self.tags(server))
        self.assertEqual([("found", "link"), ("cleared", "link")], self.actions(server))
        # Deleted with a fault: its tags end with it.
        self.file(address, "current_link_width", "16")
        server = self.boot(self.make_flavor(ONE))
        (address,) = self.settle(server)
        self.file(address, "current_link_width", "4")
        self.look(2)
        self.assertEqual(["hpc-fault=link"], self.tags(server))
        self._delete_server(server)
        self.look(2)
        self.assertEqual([], self.log_lines("are not reported"))
        self.assertFalse(self.notified()[-1][-1])
        self.assertIsNone(self.ledger("alpha").device(address).watch)

    @pytest.mark.slow
    def test_a_move_starts_clean(self) -> None:
        self.host("beta", SHAPE, before=equip)
        server = self.boot(self.make_flavor(ONE), host="alpha")
        (address,) = self.settle(server)
        self.file(address, "current_link_width", "4")
        self.look(2)
        self.assertEqual(["hpc-fault=link"], self.tags(server))
        with mock.patch(
            "nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off", return_value="{}"
        ):
            self._migrate_server(server)
        self.look()
        self.assertEqual([], self.tags(server))
        beta = self.computes["beta"].driver.hpc_watch
        for moment in range(3):
            beta._clock = lambda moment=moment: 25.0 * moment
            beta.look()
        self._confirm_resize(server)
        self.assertEqual([], self.tags(server))
        self.assertEqual([("found", "link"), ("cleared", "link")], self.actions(server))

    def test_a_reboot_is_no_fault(self) -> None:
        server = self.boot(self.make_flavor(ONE))
        (address,) = self.settle(server)
        config = self.sysfs["alpha"].devices / address / "config"
        plain = LibvirtDriver._hard_reboot

        def reset(*arguments: Any, **keywords: Any) -> Any:
            config.write_bytes(bytes([255]) * 64)
            self.file(address, "aer_dev_fatal", "TOTAL_ERR_FATAL 1")
            self.look(2)
            return plain(*arguments, **keywords)

        with mock.patch.object(LibvirtDriver, "_hard_reboot", autospec=True, side_effect=reset):
            self._reboot_server(server, hard=True)
        config.write_bytes(HEADER)
        self.look(4)
        self.assertEqual(([], []), (self.tags(server), self.actions(server)))
        # A task of Nova is enough, whoever resets the device.
        config.write_bytes(bytes([255]) * 64)
        instance = self.instance(server)
        for state in (task_states.REBOOTING, task_states.IMAGE_SNAPSHOT):
            instance.task_state = state
            instance.save()
            self.look(3)
        instance.task_state = None
        instance.save()
        self.look()
        self.assertEqual([], self.tags(server))
        self.look()
        self.assertEqual(["hpc-fault=gone"], self.tags(server))

    # -- the thread -----------------------------------------------------------------

    @pytest.mark.slow
    def test_the_thread_looks(self) -> None:
        server = self.boot(self.make_flavor(ONE))
        (address,) = self.settle(server)
        self.flags(watch_interval=1.0, group="hpc")
        self.restart_compute_service("alpha")
        with mock.patch.object(self.watch, "_clock", time.monotonic):
            time.sleep(3)
            self.sysfs["alpha"].vanish(address)
            self.eventually(lambda: self.assertEqual(["hpc-fault=gone"], self.tags(server)))
            self.watch.end()
        self.sysfs["alpha"].come_back(address)

    @pytest.mark.slow
    def test_errors_of_an_exporter(self) -> None:
        server = self.boot(self.make_flavor(ONE))
        path = self.sysfs["alpha"].root / "gpu.prom"
        self.flags(watch_error_file=str(path), group="hpc")
        self.watch.begin("alpha")
        (address,) = self.settle(server)
        path.write_text(f'gpu_driver_errors_total{{pci="{address}"}} 4\n')
        self.look(2)
        self.assertEqual([], self.tags(server))
        path.write_text(f'gpu_driver_errors_total{{pci="{address}"}} 5\n')
        self.look(2)
        self.assertEqual(["hpc-fault=errors"], self.tags(server))
        self.assertEqual(1, len(objects.TagList.get_by_resource_id(
            nova_context.get_admin_context(), server["id"])))  # fmt: skip
        self.flags(watch_error_metric="(", group="hpc")
        error = self.assertRaises(exception.InvalidConfiguration, self.watch.begin, "alpha")
        self.assertIn("[hpc]watch_error_metric", str(error))
