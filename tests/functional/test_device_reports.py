# SPDX-License-Identifier: Apache-2.0
"""Owners' reports of devices: from a tag to an instance action, and to the node's ledger."""

from __future__ import annotations

from typing import Any
from unittest import mock

import oslo_messaging
import pytest
from nova import context as nova_context
from nova import objects

from nova_hpc.tenancy.watch.owner_report import load_owner_report
from tests.functional.test_watch import ONE, SHAPE, WatchCase, equip

SLOW, GONE = "hpc-report=slow", "hpc-report=gone"


class ReportTest(WatchCase):
    """The reports about one node's devices, minute by minute."""

    def minute(self, times: int = 1) -> None:
        self.look(times, seconds=61.0)

    def report(self, server: dict[str, Any]) -> tuple[list[str], list[bool]]:
        """The words in the ledger for the server's devices, and whether a stage has decided."""
        words, judged = set(), []
        for device in self.ledger("alpha").devices.values():
            entry = load_owner_report(device.report)
            if entry is not None and entry.server == server["id"]:
                words |= {word.value for word in entry.words}
                judged.append(entry.judged is not None)
        return sorted(words), judged

    def filed(self, server: dict[str, Any]) -> list[tuple[str, str]]:
        return [
            (action.removeprefix("hpc_report_").removeprefix("reported"), word)
            for action, word in self.actions(server)
        ]

    def test_a_tag_becomes_an_action_and_an_entry_once(self) -> None:
        server, well = self.boot(self.make_flavor(ONE)), self.boot(self.make_flavor(ONE))
        self.set_tags(server, SLOW, "hpc-report=host", "hpc-report=\x1b[31m", "hpc-report=", "own")
        self.minute()
        self.assertEqual([("", "slow")], self.filed(server))
        self.assertEqual((["slow"], [False]), self.report(server))
        self.restart_compute_service("alpha")
        self.minute(2)
        self.set_tags(server, SLOW, GONE, "own")
        self.minute(2)
        self.assertEqual([("", "slow"), ("", "gone")], self.filed(server))
        self.assertEqual((["gone", "slow"], [False]), self.report(server))
        self.set_tags(server, "own")
        self.minute(2)
        self.assertEqual(
            [("", "slow"), ("", "gone"), ("withdrawn", "gone"), ("withdrawn", "slow")],
            self.filed(server),
        )
        self.assertEqual(([], []), self.report(server))
        # A second report is a new one.
        self.set_tags(server, SLOW)
        self.minute(2)
        self.assertEqual(("", "slow"), self.filed(server)[-1])
        self.assertEqual(([], [], []), (self.filed(well), *self.report(well)))
        # A word withholds no device, and is no fault.
        self.assertEqual([], self.notified())
        self.assertEqual([], self.log_lines("\x1b"))

    def test_two_requests_a_minute_whatever_the_servers(self) -> None:
        """One for reports, and one for notices of preemption."""
        servers = [self.boot(self.make_flavor(ONE)) for _ in range(2)]
        self.minute(4)
        calls: list[str] = []
        indirect = objects.InstanceList.get_by_filters

        def count(context: Any, filters: Any, **keywords: Any) -> Any:
            calls.append(sorted(filters["uuid"]))
            return indirect(context, filters, **keywords)

        with (
            mock.patch.object(objects.InstanceList, "get_by_filters", side_effect=count),
            mock.patch.object(objects.Instance, "get_by_uuid", side_effect=AssertionError),
            mock.patch.object(
                objects.InstanceActionList, "get_by_instance_uuid", side_effect=AssertionError
            ),
        ):
            self.look(8, seconds=15.0)
        self.assertEqual([sorted(server["id"] for server in servers)] * 4, calls)

    def test_the_conductor_is_away_and_nova_compute_ends_in_between(self) -> None:
        server, second = self.boot(self.make_flavor(ONE)), self.boot(self.make_flavor(ONE))
        self.minute(3)
        self.set_tags(server, SLOW)
        self.set_tags(second, GONE)
        away = mock.patch.object(
            objects.InstanceList, "get_by_filters", side_effect=oslo_messaging.MessagingTimeout
        )
        with away:
            self.minute(2)
        self.assertEqual(1, len(self.log_lines("reports of owners are read later")))
        # One server's failure holds up no other.
        create = objects.InstanceAction.create

        def fail(action: Any) -> None:
            if action.instance_uuid == server["id"]:
                raise OSError("broken")
            create(action)

        with mock.patch.object(objects.InstanceAction, "create", fail):
            self.minute()
        self.assertEqual([("", "gone")], self.filed(second))

        # The action is written, and its answer is lost with the service.
        def lose(action: Any) -> None:
            create(action)
            raise OSError("killed")

        with mock.patch.object(objects.InstanceAction, "create", lose):
            self.minute()
        self.assertEqual(([], []), self.report(server))
        self.restart_compute_service("alpha")
        self.minute(2)
        self.assertEqual([("", "slow")], self.filed(server))
        self.assertEqual((["slow"], [False]), self.report(server))
        with mock.patch.object(objects.InstanceAction, "create", lose):
            self.set_tags(server)
            self.minute()
        self.minute(2)
        self.assertEqual([("", "slow"), ("withdrawn", "slow")], self.filed(server))

    def test_a_report_right_before_the_end_counts(self) -> None:
        server = self.boot(self.make_flavor(ONE))
        self.minute(3)
        self.set_tags(server, SLOW)
        self._delete_server(server)
        self.assertEqual((["slow"], [False]), self.report(server))
        admin = nova_context.get_admin_context()
        actions = objects.InstanceActionList.get_by_instance_uuid(admin, server["id"])
        filed = [each.message for each in actions if each.action == "hpc_fault_reported"]
        self.assertEqual(["slow"], filed)
        # The next owner has nothing of it, and the device is not withheld.
        self.minute(2)
        after = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:2"}))
        self.minute(2)
        self.assertEqual([], self.filed(after))
        self.assertEqual(([], []), self.report(after))

    @pytest.mark.slow
    def test_a_report_ends_with_the_devices_that_it_is_about(self) -> None:
        self.host("beta", SHAPE, before=equip)
        server = self.boot(self.make_flavor(ONE), host="alpha")
        self.minute(3)
        self.set_tags(server, SLOW)
        self.minute()
        with mock.patch(
            "nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off", return_value="{}"
        ):
            self._migrate_server(server)
        self.look_at("beta")
        self.assertEqual([], self.tags(server))
        self.assertEqual([("", "slow"), ("withdrawn", "slow")], self.filed(server))
        self._confirm_resize(server)
        self.minute()
        self.assertEqual((["slow"], [False]), self.report(server))
        self.look_at("beta")
        self.assertEqual([("", "slow"), ("withdrawn", "slow")], self.filed(server))

    def look_at(self, host: str) -> None:
        watch = self.computes[host].driver.hpc_watch
        self.now += 61.0
        watch._clock = lambda: self.now
        watch.look()
