# SPDX-License-Identifier: Apache-2.0
"""Owners learn of planned work days ahead: on a host by Nova's API, on a device by the watch."""

from __future__ import annotations

import contextlib
import datetime
import io
import json
from typing import Any
from unittest import mock

import pytest
from nova import context as nova_context
from nova import objects

from nova_hpc_common.wire.planned_work import (
    PlannedWork,
    earliest_planned_time,
    format_planned_time,
)
from nova_hpc_tools.cloud import drain_api
from nova_hpc_tools.device import bulk_commands
from nova_hpc_tools.device import command as device_command
from nova_hpc_tools.fabric.nova_aggregates import NovaApiError
from nova_hpc_tools.main import NovaHpc
from tests.functional.cluster_client import base as client_base
from tests.functional.drain_base import STOCK, DrainCase
from tests.functional.test_watch import ONE, SHAPE, WatchCase, equip


def in_days(days: int) -> str:
    return format_planned_time(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days))


class HostWorkTest(DrainCase):
    """``nova-hpc drain --at`` and ``--no-at``."""

    def shown(self, server: dict[str, Any]) -> dict[str, Any]:
        """The server as its owner's client reads it."""
        kept, self.api.microversion = self.api.microversion, "2.84"
        try:
            return dict(self.api.get_server(server["id"]))
        finally:
            self.api.microversion = kept

    def planned(self, *servers: dict[str, Any]) -> list[str]:
        """The time that each owner reads."""
        shown = [self.shown(server) for server in servers]
        return [earliest_planned_time(each["tags"], each["hostId"]) for each in shown]

    def tag(self, server: dict[str, Any], tag: str) -> None:
        admin = nova_context.get_admin_context()
        objects.Tag(context=admin, resource_id=server["id"], tag=tag).create()

    def test_each_owner_on_the_host_is_told_and_nothing_moves(self) -> None:
        ours = self.make("a", self.pair, "alpha")
        stock = self.make("b", self.make_flavor(STOCK), "alpha")
        away = self.make("c", self.pair, "beta")
        first, second = in_days(3), in_days(2)
        status, out, err = self.drain("--at", first)
        self.assertEqual((0, ""), (status, err))
        self.assertIn(f"done: a ({ours['id']}) is announced for {first}\n", out)
        self.assertIn(f"work on alpha at {first} is announced to the owners of 2 servers\n", out)
        self.assertEqual([first, first, ""], self.planned(ours, stock, away))
        self.assertEqual(["alpha", "alpha", "beta"], self.where(ours, stock, away))
        self.assertEqual(("enabled", None), self.service())
        status, _, err = self.drain("--at", first, "--dead")
        self.assertEqual(2, status)
        self.assertIn("--at and --no-at move nothing: leave --dead out", err)
        # The tag has the time, and nothing of the host that Nova does not show to owners.
        (tag,) = self.shown(ours)["tags"]
        self.assertEqual(f"hpc-planned={first}@{self.shown(ours)['hostId'][:8]}", tag)
        # Another time replaces the first one, and the same one changes nothing.
        for _ in range(2):
            status, out, err = self.drain("--at", second, "-f", "json")
            self.assertEqual(0, status, err)
            self.assertEqual([(True, second)] * 2, [
                (row["Done"], row["Planned"]) for row in json.loads(out)
            ])  # fmt: skip
        self.assertEqual([second, second, ""], self.planned(ours, stock, away))
        self.assertEqual(1, len(self.shown(ours)["tags"]))
        # A server that comes later is not announced, until the operator announces it again.
        late = self.make("d", self.make_flavor(STOCK), "alpha")
        self.assertEqual([""], self.planned(late))
        self.assertEqual(0, self.drain("--at", second)[0])
        self.assertEqual([second], self.planned(late))
        # Taken back; a tag of nova-compute is not ours.
        device = PlannedWork(in_days(5))
        self.tag(ours, device.tag)
        status, out, err = self.drain("--no-at")
        self.assertEqual((0, ""), (status, err))
        self.assertIn("no work on alpha is announced any more; 3 servers had an announcement", out)
        self.assertEqual([device.time, "", ""], self.planned(ours, stock, late))
        self.assertEqual([[device.tag], [], []], [
            self.shown(server)["tags"] for server in (ours, stock, late)
        ])  # fmt: skip
        self.assertIn("0 servers had", self.drain("--no-at")[1])

    @pytest.mark.slow
    def test_a_full_server_keeps_no_other_from_being_told(self) -> None:
        full = self.make("a", self.pair, "alpha")
        other = self.make("b", self.pair, "alpha")
        own = [f"tag-{number}" for number in range(50)]
        for tag in own:
            self.tag(full, tag)
        time = in_days(3)
        status, out, err = self.drain("--at", time)
        self.assertEqual(1, status, err)
        self.assertIn(f"failed: a ({full['id']}): PUT ", err)
        self.assertIn("exceeded the per-server limit 50; its owner has to remove a tag", err)
        self.assertIn("is announced to the owners of 1 server\n", out)
        self.assertEqual(["", time], self.planned(full, other))
        # With one tag less there is room, also for another time.
        objects.Tag.destroy(nova_context.get_admin_context(), full["id"], own[0])
        for later in (time, in_days(4)):
            self.assertEqual(0, self.drain("--at", later)[0])
            self.assertEqual([later, later], self.planned(full, other))
        # Nova refuses tags of a server in ERROR: this is said, and is no end.
        self.admin_api.post_server_action(full["id"], {"os-resetState": {"state": "error"}})
        status, out, err = self.drain("--no-at", "-f", "json")
        self.assertEqual(1, status)
        self.assertIn("409", err)
        self.assertEqual({"a": False, "b": True}, {
            row["Server"]: row["Done"] for row in json.loads(out)
        })  # fmt: skip

    @pytest.mark.slow
    def test_moved_servers_do_not_keep_it(self) -> None:
        ours = self.make("a", self.pair, "alpha")
        hand = self.make("b", self.make_flavor(STOCK), "alpha")
        stock = self.make("c", self.make_flavor(STOCK), "alpha")
        time = in_days(3)
        self.assertEqual(0, self.drain("--at", time)[0])
        # Moved by hand: its owner reads nothing, though the tag is still there.
        self.admin_api.post_server_action(hand["id"], {"migrate": {"host": "gamma"}})
        self._wait_for_state_change(hand, "VERIFY_RESIZE")
        self.assertEqual(["", time, time], self.planned(hand, ours, stock))
        self.assertEqual(0, self.drain("--no-at")[0])
        self.assertEqual(1, len(self.shown(hand)["tags"]))  # it may come back
        self.assertEqual(0, self.drain("--at", time)[0])
        self.admin_api.post_server_action(hand["id"], {"confirmResize": None})
        self._wait_for_state_change(hand, "ACTIVE")
        # The plan shows the time. Afterwards all servers that have left are without a tag.
        status, out, err = self.drain("-f", "json")
        self.assertEqual([("a", time)], [
            (row["Server"], row["Planned"]) for row in json.loads(out)
        ])  # fmt: skip
        status, out, err = self.drain("--yes")
        self.assertEqual(0, status, err)
        self.assertIn(f"done: a ({ours['id']}) has no announcement any more", out)
        self.assertEqual([[], []], [self.shown(server)["tags"] for server in (ours, hand)])
        self.assertEqual([time], self.planned(stock))

    @pytest.mark.slow
    def test_an_evacuated_server_does_not_keep_it(self) -> None:
        server = self.make("a", self.pair, "alpha")
        self.assertEqual(0, self.drain("--at", in_days(3))[0])
        self.die()
        status, _, err = self.drain("--dead", "--yes")
        self.assertEqual(0, status, err)
        self.assertEqual([], self.shown(server)["tags"])

    @pytest.mark.slow
    def test_nova_falls_silent(self) -> None:
        server = self.make("a", self.pair, "alpha")

        class Silent(drain_api.DrainCloud):
            def all_servers(self) -> Any:
                raise NovaApiError("GET /servers/detail: no answer")

            def remove_tag(self, uuid: str, tag: str) -> None:
                raise NovaApiError("404: it was deleted", 404)

        first, second = in_days(3), in_days(4)
        self.assertEqual(0, self.drain("--at", first)[0])
        # A server that is deleted meanwhile needs no announcement.
        status, out, _ = self.drain("--at", second, cloud=Silent)
        self.assertEqual(0, status)
        self.assertIn("is announced to the owners of 0 servers\n", out)
        status, out, err = self.drain("--yes", cloud=Silent)
        self.assertEqual(0, status)
        self.assertIn("note: former announcements stay: GET /servers/detail: no answer", err)
        self.assertEqual([""], self.planned(server))


class DeviceWorkTest(WatchCase):
    """``nova-hpc device maintenance --at``, and the watch of the node."""

    def ask(self, *words: str) -> str:
        """Run ``nova-hpc device maintenance`` on the node; its output."""
        path = self.sysfs["alpha"].root / "nova.conf"
        path.touch()
        # Overridden options of this process count for the command, too.
        self.flags(
            sysfs_root=str(self.sysfs["alpha"].root),
            ledger_file=str(self.ledger_path("alpha")),
            watch_interval=15.0,
            group="hpc",
        )
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            app = NovaHpc()
            for name, command in (
                ("maintenance", bulk_commands.MaintenanceWindow),
                ("show", device_command.ShowDevice),
            ):
                app.command_manager.add_command(f"device {name}", command)
            status = app.run(["device", *words, "--config-file", str(path)])
        self.flags(watch_interval=0.0, group="hpc")
        self.assertEqual(0, status, err.getvalue())
        return out.getvalue()

    def plan(self, address: str, time: str) -> None:
        self.ask("maintenance", address, "--at", time)

    def tag(self, time: str) -> str:
        return f"hpc-planned={time}@device"

    def test_from_the_node_to_the_owner_and_back(self) -> None:
        server, well = self.boot(self.make_flavor(ONE)), self.boot(self.make_flavor(ONE))
        address, _ = self.settle(server, well)
        first, second = in_days(3), in_days(2)
        # The owner's tags may be as many as Nova allows.
        own = sorted(f"tag-{number}" for number in range(50))
        self.set_tags(server, *own)
        self.plan(address, first)
        self.assertIn("not reported to its owner yet", self.ask("show", address))
        self.look()
        self.assertEqual([self.tag(first), *own], self.tags(server))
        self.assertEqual([("hpc_work_planned", first)], self.actions(server))
        self.assertEqual({server["id"]: first}, self.ledger("alpha").planned.announced)
        self.assertNotIn("not reported", self.ask("show", address))
        # Once, also after a restart of the service.
        self.look(2)
        self.restart_compute_service("alpha")
        self.look(4)
        self.assertEqual([("hpc_work_planned", first)], self.actions(server))
        self.plan(address, second)
        self.look()
        self.assertEqual([self.tag(second), *own], self.tags(server))
        self.ask("maintenance", "--stop", address)
        self.look(2)
        self.assertEqual(own, self.tags(server))
        history = [
            *(("hpc_work_planned", first), ("hpc_work_planned", second)),
            *(("hpc_work_cancelled", first), ("hpc_work_cancelled", second)),
        ]
        self.assertEqual(history, self.actions(server))
        self.assertEqual({}, self.ledger("alpha").planned.announced)
        # The other server of the node, and operators' notifications, have heard nothing.
        self.assertEqual(([], []), (self.tags(well), self.actions(well)))
        self.assertEqual([], self.notified())

    @pytest.mark.slow
    def test_a_server_that_leaves_and_one_that_comes(self) -> None:
        self.host("beta", SHAPE, before=equip)
        server = self.boot(self.make_flavor(ONE), host="alpha")
        (address,) = self.settle(server)
        time = in_days(3)
        self.plan(address, time)
        self.look()
        self.assertEqual([self.tag(time)], self.tags(server))
        with mock.patch(
            "nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off", return_value="{}"
        ):
            self._migrate_server(server)
        self.look()
        self._confirm_resize(server)
        self.look()
        self.assertEqual([], self.tags(server))
        history = [("hpc_work_planned", time), ("hpc_work_cancelled", time)]
        self.assertEqual(history, self.actions(server))
        # The next server with the device is told; one that is deleted needs nothing.
        following = self.boot(self.make_flavor(ONE), host="alpha")
        (device,) = self.devices_of(following)
        self.plan(device.address, time)
        self.look(2)
        self.assertEqual([self.tag(time)], self.tags(following))
        self._delete_server(following)
        self.look(2)
        self.assertEqual({}, self.ledger("alpha").planned.announced)
        self.assertEqual([], self.log_lines("are not reported"))

    @pytest.mark.slow
    def test_tags_of_a_dead_node_are_cleared_and_those_of_the_host_stay(self) -> None:
        server = self.boot(self.make_flavor(ONE))
        host = PlannedWork.on_host(in_days(3), "1f2e3d4c").tag
        self.set_tags(server, self.tag(in_days(3)), host, "hpc-planned=soon")
        self.look(3)
        self.assertEqual([host, "hpc-planned=soon"], self.tags(server))
        self.assertEqual([("hpc_work_cancelled", in_days(3))], self.actions(server))

    @pytest.mark.slow
    def test_work_on_an_adapter_concerns_its_virtual_functions(self) -> None:
        server = self.boot(self.make_flavor({"pci_passthrough:alias": "vf:1"}))
        (address,) = self.settle(server)
        time = in_days(3)
        self.plan(f"{address[:-1]}0", time)
        self.assertIn(time, self.ask("show", address))
        self.look()
        self.assertEqual([self.tag(time)], self.tags(server))

    @pytest.mark.slow
    def test_the_conductor_or_the_ledger_is_away(self) -> None:
        server = self.boot(self.make_flavor(ONE))
        (address,) = self.settle(server)
        time = in_days(3)
        self.plan(address, time)
        with mock.patch.object(objects.Tag, "create", side_effect=OSError("away")):
            self.look(2)
            self.assertEqual({}, self.ledger("alpha").planned.announced)
        self.look()
        self.assertEqual([("hpc_work_planned", time)], self.actions(server))
        # A damaged mark is unknown: it takes nothing back, and holds up no other one.
        other = self.boot(self.make_flavor(ONE))
        (beside,) = self.settle(other)
        path = self.ledger_path("alpha")
        text = path.read_text()
        marks = f'"{address}": "soon", "{beside}": "{time}"'
        path.write_text(text.replace(f'"{address}": "{time}"', marks))
        self.assertNotEqual(text, path.read_text())
        self.look()
        self.assertEqual([self.tag(time)], self.tags(server))
        self.assertEqual([self.tag(time)], self.tags(other))
        path.write_text(text)
        self.look()
        self.assertEqual([("hpc_work_planned", time)], self.actions(server))


class OwnerViewTest(client_base.ClusterClientTest):
    """The owner's client shows the earliest time of each member."""

    HOSTS = 2

    def test_show_list_and_server_show(self) -> None:
        self.create("k", 2)
        members = {server["name"]: server for server in self.servers()}
        first, second = in_days(2), in_days(3)
        admin = nova_context.get_admin_context()
        host = self.api.get_server(members["k-2"]["id"])["hostId"]
        for work in (
            PlannedWork.on_host(first, "00000000"),  # of a former host
            PlannedWork.on_host(second, host),
            PlannedWork(in_days(4)),
        ):
            objects.Tag(context=admin, resource_id=members["k-2"]["id"], tag=work.tag).create()
        shown = self.cluster("show", "k", "-f", "json").json
        self.assertEqual(({"k-2": second}, {}), (shown["planned"], shown["faults"]))
        (row,) = self.cluster("list", "--long", "-f", "json").json
        self.assertEqual([f"k-2 {second}"], row["Planned"])
        for name, time in (("k-1", ""), ("k-2", second)):
            server = self.openstack("hpc", "server", "show", name, "-f", "json").json
            self.assertEqual((time, []), (server["planned"], server["faults"]))
        # A healer leaves the member alone.
        self.assertIn("no member of k has to be replaced", self.cluster("heal", "k").out)
