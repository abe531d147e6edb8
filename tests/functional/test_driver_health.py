# SPDX-License-Identifier: Apache-2.0
"""What others hear of a device that does not look well: Placement, stats, notifications."""

from __future__ import annotations

from unittest import mock

from nova import context as nova_context
from nova import objects
from nova.tests import fixtures as nova_fixtures

from nova_hpc.tenancy.step import NodeView
from nova_hpc.wire import stats
from nova_hpc.wire.ledger import DeviceState
from nova_hpc_tools.device.upkeep import DeviceUpkeep
from nova_hpc_tools.readers import node_health
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

FIRST, SECOND = "0000:40:00.0", "0000:40:01.0"
TWO = fixtures.Shape((fixtures.Switch(gpus=2),))
FOUR = fixtures.Shape((fixtures.Switch(gpus=2), fixtures.Switch(gpus=2)))
GPUS = [FIRST, SECOND, "0000:41:00.0", "0000:41:01.0"]


def errors(tree, address: str, count: int) -> None:
    path = tree.devices / address / "aer_dev_nonfatal"
    path.write_text(f"Undefined 0\nTOTAL_ERR_NONFATAL {count}\n")


class HealthTest(DriverTest):
    def setUp(self) -> None:
        super().setUp()
        self.flags(notification_format="versioned", group="notifications")
        self.notifier = self.useFixture(nova_fixtures.NotificationFixture(self))

    def host_with_counters(self, name: str, shape: fixtures.Shape) -> None:
        def before(tree) -> None:
            for function in shape.functions():
                errors(tree, function.address, 0)

        self.host(name, shape, before=before)

    def told(self) -> list[tuple[str, str, str, str]]:
        """Address, state before, state now, and what was wrong."""
        found = []
        for each in self.notifier.versioned_notifications:
            if each["event_type"] == "hpc_device.update":
                data = each["payload"]["nova_object.data"]
                found.append((data["address"], data["old_state"], data["state"], data["sign"]))
        return found

    def test_a_device_with_errors(self) -> None:
        self.host_with_counters("alpha", FOUR)
        self.update("alpha")
        self.assertEqual([], self.told())
        errors(self.sysfs["alpha"], FIRST, 5)
        self.update("alpha")
        self.assertEqual([(FIRST, "offered", "suspect", "errors")], self.told())
        document = self.stats_of("alpha")
        self.assertEqual([FIRST], list(document.withheld))
        state, since = document.states[FIRST]
        self.assertEqual("suspect", state)
        self.assertEqual(int(self.ledger("alpha").device(FIRST).trial.since), since)
        (node,) = node_health.collect_node_health()
        self.assertEqual(("alpha", document.withheld), (node.host, node.withheld))
        self.assertEqual(document.states, node.states)
        # Once, and not at every update; and when it is well again.
        self.update("alpha")
        self.update("alpha")
        self.assertEqual((FIRST, "suspect", "offered", ""), self.told()[-1])
        self.assertEqual(2, len(self.told()))
        self.assertEqual(stats.StatsDocument(), self.stats_of("alpha"))
        self.assert_all_free("alpha")

    def test_nobody_empties_a_node(self) -> None:
        """A tenant whose GPUs report errors, one after the other, all of them."""
        self.host_with_counters("alpha", FOUR)
        server = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:4"}))
        for each in GPUS:
            errors(self.sysfs["alpha"], each, 50)
        self._delete_server(server)
        self.update("alpha")
        self.assertEqual(1, len(self.ledger("alpha").suspect))
        self.assertEqual(3, len(self.tracked("alpha")))
        document = self.stats_of("alpha")
        (reason,) = document.withheld.values()
        # Who had it is for operators.
        self.assertIn(f"the last server that had it is {server['id']}", reason)
        self.assertIn("[hpc]suspect_share", document.notes[0])
        self.assertTrue(self.log_lines(r"ERROR.*suspicion may withhold 1 of the 4"))
        again = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:3"}))
        self.assertEqual(3, len(self.devices_of(again)))

    def test_narrow_links_withhold_no_more_than_the_share(self) -> None:
        """A riser that gives every slot half of its lanes: an alarm, and no empty node."""

        def link(tree, width: int) -> None:
            for device in tree.devices.iterdir():
                values = {"max_link_width": 16, "current_link_width": width}
                for name, value in values.items():
                    (device / name).write_text(f"{value}\n")
                for name in ("max_link_speed", "current_link_speed"):
                    (device / name).write_text("16.0 GT/s PCIe\n")

        self.host("alpha", FOUR, before=lambda tree: link(tree, 8))
        for _ in range(4):
            self.update("alpha")
            self.assertEqual(3, len(self.tracked("alpha")), self.stats_of("alpha"))
            self.assertEqual(1, len(self.stats_of("alpha").withheld))
            self.assertIn("[hpc]suspect_share", self.stats_of("alpha").notes[0])
        # Who is offered can be given.
        server = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:3"}))
        self.assertEqual(3, len(self.devices_of(server)))
        self._delete_server(server)
        link(self.sysfs["alpha"], 16)
        self.flags(suspect_retry=0.0, group="hpc")
        node = self.computes["alpha"].driver.hpc_node
        del node.__dict__["tenancy"]
        self.update("alpha")
        self.assert_all_free("alpha")
        self.assertEqual(4, len(self.tracked("alpha")))

    def test_no_notification_without_the_option(self) -> None:
        self.flags(notification_format="unversioned", group="notifications")
        self.host_with_counters("alpha", TWO)
        errors(self.sysfs["alpha"], FIRST, 5)
        self.update("alpha")
        self.assertEqual(DeviceState.SUSPECT, self.ledger("alpha").device(FIRST).state)
        self.assertEqual([], self.told())

    def test_a_notification_that_cannot_be_sent_stops_nothing(self) -> None:
        self.host_with_counters("alpha", TWO)
        notifier = "virt_driver_patches.driver.notifications._build_state_notification"
        self.useFixture(fixtures.fixtures.MockPatch(notifier, side_effect=OSError("no queue")))
        errors(self.sysfs["alpha"], FIRST, 5)
        self.update("alpha")
        self.assertEqual([FIRST], list(self.stats_of("alpha").withheld))

    def test_an_update_of_firmware(self) -> None:
        """One event, with one reason; an operator accepts it, and all are back."""

        def brand(tree, model: str) -> None:
            for each in GPUS:
                (tree.devices / each / "subsystem_vendor").write_text("0x10de\n")
                (tree.devices / each / "subsystem_device").write_text(f"0x{model}\n")

        self.host("alpha", FOUR, before=lambda tree: brand(tree, "16c1"))
        brand(self.sysfs["alpha"], "16c2")
        self.update("alpha")
        document = self.stats_of("alpha")
        self.assertEqual(GPUS, list(document.withheld))
        self.assertEqual(1, len(set(document.withheld.values())))
        self.assertEqual(4, len(self.told()))
        self.assertEqual({"model"}, {sign for *_, sign in self.told()})
        self.assertTrue(self.log_lines("4 of 4 devices of model 10de:.*have changed alike"))
        node = self.computes["alpha"].driver.hpc_node
        step = node.tenancy.step("hygiene")
        upkeep = DeviceUpkeep.of(step)
        view = NodeView(node.source.read().node, dict.fromkeys(GPUS, "gpu"))
        for each in GPUS:
            upkeep.accept(view.candidate(each), node.owners("alpha"), "firmware 2.0")
        self.update("alpha")
        self.assert_all_free("alpha")
        self.assertEqual(4, len(self.tracked("alpha")))


class NodeHealthTest(DriverTest):
    """What the controller reads."""

    def test_a_node_with_another_driver_says_so_where_it_has_tags(self) -> None:
        self.host("alpha", TWO)
        context = nova_context.get_admin_context()
        node = objects.ComputeNode.get_by_host_and_nodename(context, "alpha", "alpha")
        kept = dict(node.stats)
        node.stats = {key: value for key, value in kept.items() if key != stats.KEY}
        node.save()
        (found,) = node_health.collect_node_health()
        self.assertEqual((stats.OTHER_DRIVER,), found.notes)
        node.stats = {**kept, stats.KEY: "{"}
        node.save()
        (found,) = node_health.collect_node_health()
        self.assertIn("statistics document", found.notes[0])

    def test_a_disabled_cell_is_read_or_named(self) -> None:
        self.host("alpha", TWO)
        cells = objects.CellMappingList.get_all(nova_context.get_admin_context())
        for cell in cells:
            cell.disabled = True
            cell.save()
        patch = mock.patch.object(nova_context, "CELLS", [])
        patch.start()
        self.addCleanup(patch.stop)
        (found,) = node_health.collect_node_health()
        self.assertEqual("alpha", found.host)
        # Their databases are away.
        with mock.patch.object(objects.ComputeNodeList, "get_all", side_effect=OSError("away")):
            found = node_health.collect_node_health()
        self.assertEqual({f"cell {cell.name}" for cell in cells}, {each.host for each in found})
        self.assertIn("is disabled and cannot be read", found[0].notes[0])

    def test_a_node_without_tags_is_left_out(self) -> None:
        self.host("alpha", TWO, device_spec=TWO.device_spec(tags=False))
        self.assertEqual((), node_health.collect_node_health())
