# SPDX-License-Identifier: Apache-2.0
"""Withholding a device harms nobody else: its provider stays, and other claims go on."""

from __future__ import annotations

from unittest import mock

import attrs
from oslo_serialization import jsonutils

from tests.functional import fixtures
from tests.functional.reserve_base import (
    ADAPTER,
    AGGREGATE,
    FIRST,
    GPU,
    NEAR,
    PF,
    SECOND,
    TWO,
    VF,
    VFS,
    ReserveTest,
)


class OrphanTest(ReserveTest):
    """An allocation that was left behind on a device that is withheld."""

    def test_others_are_not_harmed(self) -> None:
        self.host("alpha", TWO)
        self.allocate("alpha", FIRST)
        self.quarantine("alpha", FIRST, "overheats")
        for _ in range(3):
            self.update("alpha")
        self.assertFalse(self.log_lines("Error updating resources for node"))
        self.assertFalse(self.log_lines("Failed to synchronize the placement"))
        # For a healthy GPU, and without any.
        server = self.boot(self.make_flavor(GPU))
        self.assertEqual([SECOND], [each.address for each in self.devices_of(server)])
        self.boot(self.make_flavor({}))


class FlapTest(ReserveTest):
    """A device that is withheld for a while keeps all that is known of it in Placement."""

    def test_everything_survives(self) -> None:
        self.host("alpha", TWO)
        before = self.mark("alpha", FIRST)
        self.quarantine("alpha", FIRST, "overheats")
        for _ in range(2):
            self.update("alpha")
        self.assertEqual({FIRST: (1, 1), SECOND: (0, 1)}, self.reserved("alpha"))
        self.assertEqual({SECOND: "available"}, self.tracked("alpha"))
        self.ledger_file("alpha").release(FIRST)
        for _ in range(2):
            self.update("alpha")
        self.assertEqual({FIRST: (0, 1), SECOND: (0, 1)}, self.reserved("alpha"))
        self.assertEqual(before["uuid"], self.provider("alpha", FIRST)["uuid"])
        self.assertEqual([AGGREGATE], self.aggregates("alpha", FIRST))
        self.assertEqual({FIRST: "available", SECOND: "available"}, self.tracked("alpha"))

    def test_one_that_is_ill_when_it_is_first_seen_is_left_out(self) -> None:
        self.host("alpha", TWO, before=lambda tree: tree.bind(FIRST, None) or tree.vanish(FIRST))
        self.update("alpha")
        self.assertEqual({SECOND: (0, 1)}, self.reserved("alpha"))

    def test_a_restart_changes_nothing(self) -> None:
        self.host("alpha", TWO)
        before = self.provider("alpha", FIRST)["uuid"]
        self.quarantine("alpha", FIRST, "overheats")
        self.update("alpha")
        self.restart("alpha")
        self.assertEqual({FIRST: (1, 1), SECOND: (0, 1)}, self.reserved("alpha"))
        self.assertEqual(before, self.provider("alpha", FIRST)["uuid"])
        self.ledger_file("alpha").release(FIRST)
        self.update("alpha")
        self.assertEqual({FIRST: (0, 1), SECOND: (0, 1)}, self.reserved("alpha"))

    def test_what_nobody_remembers_is_named_once(self) -> None:
        """A ledger that was lost, or a node that was installed anew under its name."""
        self.host("alpha", TWO)
        self.quarantine("alpha", FIRST, "overheats")
        self.update("alpha")
        self.restart("alpha")
        self.update("alpha")
        self.assertFalse(self.log_lines("does not know by whom"))
        (self.sysfs["alpha"].root / "ledger").unlink()
        self.restart("alpha")
        for _ in range(3):
            self.update("alpha")
        (line,) = self.log_lines("does not know by whom")
        uuid = self.provider("alpha", FIRST)["uuid"]
        command = f"inventory set --amend --resource {fixtures.GPU_CLASS}:reserved=0 {uuid}"
        self.assertIn(f"{FIRST}: openstack resource provider {command}", line)
        self.assertNotIn(SECOND, line)
        self.assertEqual({FIRST: (1, 1), SECOND: (0, 1)}, self.reserved("alpha"))

    def test_a_server_that_has_it_loses_nothing(self) -> None:
        """It is reserved once the server has gone, and not before."""
        self.host("alpha", TWO)
        server = self.boot(self.make_flavor(NEAR))
        (mine,) = (device.address for device in self.devices_of(server))
        self.quarantine("alpha", mine, "overheats")
        self.update("alpha")
        self.assertEqual((0, 1), self.reserved("alpha")[mine])
        self._delete_server(server)
        self.update("alpha")
        self.assertEqual((1, 1), self.reserved("alpha")[mine])

    def test_inventories_that_could_not_be_read(self) -> None:
        """Nova takes them for empty ones, and would delete what it does not track."""
        self.host("alpha", TWO)
        before = self.mark("alpha", FIRST)["uuid"]
        self.quarantine("alpha", FIRST, "overheats")
        self.reserve("alpha", SECOND, 1)
        for _ in range(2):
            self.update("alpha")
        client = self.computes["alpha"].manager.rt.reportclient
        client.clear_provider_cache()
        with mock.patch.object(client, "_get_inventory", return_value=None):
            self.update("alpha")
        self.refresh("alpha")
        for _ in range(2):
            self.update("alpha")
        self.assertEqual({FIRST: (1, 1), SECOND: (1, 1)}, self.reserved("alpha"))
        self.assertEqual(before, self.provider("alpha", FIRST)["uuid"])
        self.assertEqual([AGGREGATE], self.aggregates("alpha", FIRST))
        known = self.ledger("alpha").providers
        self.assertEqual((0, 1), (known[FIRST].operators, known[SECOND].operators))

    def test_one_that_does_not_pass_is_reserved_when_its_server_is_deleted(self) -> None:
        """There is no time in which it is free by Placement."""
        self.host("alpha", TWO)
        server = self.boot(self.make_flavor(NEAR))
        (mine,) = (device.address for device in self.devices_of(server))
        (self.sysfs["alpha"].devices / mine / "reset").unlink()
        self._delete_server(server)
        self.assertEqual([mine], list(self.ledger("alpha").quarantined))
        self.assertEqual((1, 1), self.reserved("alpha")[mine])

    def test_one_with_errors_is_reserved_when_its_server_is_deleted(self) -> None:
        """In the lab, the next server got it before the node's update, and did not start."""
        self.host("alpha", TWO)
        server = self.boot(self.make_flavor(NEAR))
        (mine,) = (device.address for device in self.devices_of(server))
        faults = {"errors": {"since": 1767225600.0, "reported": True}}
        watch = {"server": server["id"], "faults": faults}
        self.ledger_file("alpha").change(
            lambda ledger: ledger.put({mine: attrs.evolve(ledger.device(mine), watch=watch)})
        )
        self._delete_server(server)
        self.assertEqual([mine], list(self.ledger("alpha").suspect))
        self.assertEqual((1, 1), self.reserved("alpha")[mine])
        other = self.boot(self.make_flavor(NEAR))
        self.assertNotEqual([mine], [device.address for device in self.devices_of(other)])
        # Its trial finds no new errors.
        self.update("alpha")
        self.assertEqual((0, 1), self.reserved("alpha")[mine])


class ForcedTest(ReserveTest):
    """A forced host does not give what is withheld either."""

    def test_placement_refuses(self) -> None:
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=1),)))
        self.quarantine("alpha", FIRST, "overheats")
        self.update("alpha")
        for specs in (GPU, NEAR):
            server = self.boot(self.make_flavor(specs), state="ERROR", az="nova:alpha")
            fault = self.api.get_server(server["id"])["fault"]
            self.assertIn("No valid host", fault["message"])
            self._delete_server(server)
        self.assertEqual(0, self.failed_builds("alpha"))
        self.boot(self.make_flavor({}), az="nova:alpha")


class FunctionsTest(ReserveTest):
    """Functions of one adapter, which share a provider."""

    def test_the_withheld_one_is_never_given(self) -> None:
        self.host("alpha", ADAPTER)
        self.quarantine("alpha", VFS[3], "lost its link")
        self.update("alpha")
        self.assertEqual((1, 4), self.reserved("alpha")[PF])
        flavor = self.make_flavor(VF)
        servers = [self.boot(flavor) for _ in range(3)]
        given = {device.address for server in servers for device in self.devices_of(server)}
        self.assertEqual(set(VFS[:3]), given)
        self.boot(flavor, state="ERROR")
        self.assertEqual(0, self.failed_builds("alpha"))
        self.assertEqual((1, 4), self.reserved("alpha")[PF])
        # It is well again, and there is one more server.
        self.ledger_file("alpha").release(VFS[3])
        self.update("alpha")
        server = self.boot(flavor)
        self.assertEqual([VFS[3]], [each.address for each in self.devices_of(server)])

    def test_what_is_reserved_survives_another_total(self) -> None:
        """Nova sends no ``reserved`` with a new total, and Placement takes 0."""
        self.host("alpha", ADAPTER)
        uuid = self.provider("alpha", PF)["uuid"]
        self.quarantine("alpha", VFS[0], "lost its link")
        self.update("alpha")
        self.reserve("alpha", PF, 2)
        self.update("alpha")
        self.assertEqual((2, 4), self.reserved("alpha")[PF])
        with self.unlisted("alpha", VFS[3], kernel=False):
            self.update("alpha")
            self.assertEqual((2, 3), self.reserved("alpha")[PF])
        self.update("alpha")
        self.assertEqual((2, 4), self.reserved("alpha")[PF])
        self.ledger_file("alpha").release(VFS[0])
        self.update("alpha")
        # What is left is the operator's.
        self.assertEqual((2, 4), self.reserved("alpha")[PF])
        self.assertEqual(uuid, self.provider("alpha", PF)["uuid"])
        known = self.ledger("alpha").providers[PF]
        self.assertEqual((0, 2), (known.ours, known.operators))

    def test_functions_that_are_made_anew(self) -> None:
        """A driver that is loaded again takes all of them away for a moment."""
        self.host("alpha", ADAPTER)
        before = self.mark("alpha", PF)["uuid"]
        with self.unlisted("alpha", *VFS):
            for _ in range(2):
                self.update("alpha")
            self.assertEqual((4, 4), self.reserved("alpha")[PF])
            self.assertIn("vanished", self.stats_of("alpha").withheld[PF])
            self.boot(self.make_flavor(VF), state="ERROR")
        for _ in range(2):
            self.update("alpha")
        self.assertEqual((0, 4), self.reserved("alpha")[PF])
        self.assertEqual(before, self.provider("alpha", PF)["uuid"])
        self.assertEqual([AGGREGATE], self.aggregates("alpha", PF))


class VanishedTest(ReserveTest):
    """A device that is gone from the machine."""

    def test_it_is_kept_while_anybody_has_it(self) -> None:
        self.host("alpha", TWO)
        self.allocate("alpha", FIRST)
        with self.unlisted("alpha", FIRST):
            for _ in range(3):
                self.update("alpha")
            self.assertEqual({FIRST: (1, 1), SECOND: (0, 1)}, self.reserved("alpha"))
            self.assertFalse(self.log_lines("Error updating resources for node"))
            self.boot(self.make_flavor(GPU))

    def test_it_goes_after_a_week(self) -> None:
        self.goes_after(7 * 24 * 3600)

    def test_it_goes_after_the_time_that_is_configured(self) -> None:
        self.flags(keep_vanished=3600.0, group="hpc")
        self.goes_after(3600)

    def goes_after(self, seconds: int) -> None:
        self.host("alpha", TWO)
        with self.unlisted("alpha", FIRST):
            self.update("alpha")
            self.assertEqual((1, 1), self.reserved("alpha")[FIRST])
            gone = self.ledger("alpha").providers[FIRST].gone
            with mock.patch("virt_driver_patches.driver.provider_reserver.time") as clock:
                clock.time.return_value = gone + seconds - 1
                self.update("alpha")
                self.assertEqual((1, 1), self.reserved("alpha")[FIRST])
                clock.time.return_value = gone + seconds + 1
                self.update("alpha")
            self.assertEqual({SECOND: (0, 1)}, self.reserved("alpha"))
        for _ in range(2):
            self.update("alpha")
        self.assertEqual({FIRST: (0, 1), SECOND: (0, 1)}, self.reserved("alpha"))

    def test_one_that_is_configured_no_more_goes_at_once(self) -> None:
        self.host("alpha", TWO)
        entries = [
            {**entry, "address": SECOND}
            for entry in TWO.device_spec()
            if entry["hpc_role"] == "gpu"
        ][:1]
        self.flags(device_spec=[jsonutils.dumps(each) for each in entries], group="pci")
        self.restart("alpha")
        self.update("alpha")
        self.assertEqual({SECOND: (0, 1)}, self.reserved("alpha"))
