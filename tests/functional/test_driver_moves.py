# SPDX-License-Identifier: Apache-2.0
"""Servers that restart and move: aligned, or refused before anything is touched."""

from __future__ import annotations

import pytest
from nova import context as nova_context
from nova import exception, objects

from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}
ONE = {"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"}
#: A host with two GPUs below one switch, and one where no two are together.
TOGETHER = fixtures.Shape((fixtures.Switch(gpus=2),))
APART = fixtures.two_switches(gpus=1)
FOUR = fixtures.Shape((fixtures.Switch(gpus=4),))


class RestartTest(DriverTest):
    """A server that exists is refused only what would fail or harm the host."""

    def setUp(self) -> None:
        super().setUp()
        self.host("alpha", TOGETHER)
        self.server = self.boot(self.make_flavor(PAIR))

    def addresses(self) -> list[str]:
        return [device.address for device in self.devices_of(self.server)]

    def status(self) -> str:
        return self.api.get_server(self.server["id"])["status"]

    def test_nothing_has_changed(self) -> None:
        before, decision = self.addresses(), self.decision(self.server)
        self._reboot_server(self.server, hard=True)
        self._stop_server(self.server)
        self._start_server(self.server)
        self._rebuild_server(self.server, "155d900f-4e14-4e4c-a73d-069cbf4541e6")
        self.assertEqual(before, self.domain_devices(self.server))
        self.flags(suspend_with_devices=True, group="hpc")
        self._suspend_server(self.server)
        self._resume_server(self.server)
        self.assertEqual(before, self.addresses())
        self.assertEqual(decision, self.decision(self.server))

    def test_links_quarantine_and_place_do_not_stop_a_restart(self) -> None:
        for address in self.addresses():
            self.quarantine("alpha", address, "to be replaced")
        # As if the tags and the cabling had changed.
        path = self.sysfs["alpha"].devices / self.addresses()[0]
        (path / "numa_node").write_text("1\n")
        (path / "reset_method").unlink()
        self._reboot_server(self.server, hard=True)
        self._rebuild_server(self.server, "155d900f-4e14-4e4c-a73d-069cbf4541e6")
        self.assertEqual("ACTIVE", self.status())

    def test_a_hard_reboot_that_would_fail_leaves_the_server_running(self) -> None:
        self.sysfs["alpha"].vanish(self.addresses()[0])
        given = len(self.domains.given[self.server["id"]])
        self.refused_action(self.server, {"reboot": {"type": "HARD"}})
        self._wait_for_action_fail_completion(self.server, "reboot", "compute_reboot_instance")
        self.assertEqual("ACTIVE", self.status())
        faults = self.fault_messages(self.server)
        self.assertIn("1 has disappeared", faults[0])
        self.assertEqual(given, len(self.domains.given[self.server["id"]]))
        self.assertEqual(2, len(self.addresses()))

    def test_a_rebuild_that_would_fail_keeps_server_and_disk(self) -> None:
        self.sysfs["alpha"].bind(self.addresses()[0], "nvidia")
        given = len(self.domains.given[self.server["id"]])
        rebuild = {"rebuild": {"imageRef": "155d900f-4e14-4e4c-a73d-069cbf4541e6"}}
        self.refused_action(self.server, rebuild)
        self._wait_for_action_fail_completion(self.server, "rebuild", "compute_rebuild_instance")
        self.assertEqual("ACTIVE", self.status())
        self.assertIn("1 is in use by the host", self.fault_messages(self.server)[0])
        self.assertEqual(given, len(self.domains.given[self.server["id"]]))

    def test_a_start_that_would_fail_leaves_the_server_stopped(self) -> None:
        self._stop_server(self.server)
        self.sysfs["alpha"].add_function("0000:40:00.7", group=41, driver="snd_hda_intel")
        self.refused_action(self.server, {"os-start": None})
        self._wait_for_action_fail_completion(self.server, "start", "compute_start_instance")
        self.assertEqual("SHUTOFF", self.status())

    def test_a_resume_that_would_fail_leaves_the_server_suspended(self) -> None:
        self.flags(suspend_with_devices=True, group="hpc")
        self._suspend_server(self.server)
        self.sysfs["alpha"].vanish(self.addresses()[0])
        self.refused_action(self.server, {"resume": None})
        self._wait_for_action_fail_completion(self.server, "resume", "compute_resume_instance")
        self.assertEqual("SUSPENDED", self.status())

    def test_a_snapshot_that_would_fail_leaves_no_image(self) -> None:
        # For which Nova suspends the guest, and has to give its devices back.
        self.flags(suspend_with_devices=True, group="hpc")
        self.flags(disable_libvirt_livesnapshot=True, group="workarounds")
        self.sysfs["alpha"].vanish(self.addresses()[0])
        deleted = []
        self.useFixture(
            fixtures.fixtures.MockPatch(
                "nova.compute.utils.delete_image",
                side_effect=lambda context, instance, api, image, **_: deleted.append(image),
            )
        )
        self.refused_action(self.server, {"createImage": {"name": "cold"}})
        self._wait_for_action_fail_completion(
            self.server, "createImage", "compute_snapshot_instance"
        )
        (image,) = deleted
        self.assertEqual("cold", self.glance.show(None, image)["name"])
        self.assertEqual("ACTIVE", self.status())


class MoveTest(DriverTest):
    """Cold migration and resize, without the filter, so that sets are misaligned."""

    # A cast that is a call would carry the source's refusal into the destination.
    CAST_AS_CALL = False
    WITH_FILTER = False

    def setUp(self) -> None:
        super().setUp()
        # Copying disks needs a real host; Nova's own tests do the same.
        self.useFixture(
            fixtures.fixtures.MockPatch(
                "nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off",
                return_value="{}",
            )
        )

    def refused_move(self, server, body, reason="hpc:affinity=switch") -> None:
        """The move fails; the server is as it was, and nothing stays claimed."""
        before = self.devices_of(server)
        known = len(self.fault_messages(server))
        self.api.post_server_action(server["id"], body)
        self._wait_for_migration_status(server, ["error"])
        idle = {"OS-EXT-STS:task_state": None, "status": "ACTIVE"}
        self._wait_for_server_parameter(server, idle)

        def news() -> str:
            faults = self.fault_messages(server)
            return " ".join(faults[: len(faults) - known])

        # The node writes its own fault down when the server is idle already.
        self.eventually(lambda: self.assertIn(reason, news()))
        self.assert_no_secrets(news())
        self.assertEqual("alpha", self.host_of(server))
        self.assertEqual(before, self.devices_of(server))
        self.assertEqual({"available"}, set(self.tracked("beta").values()))
        # A rebuild goes by it: it would be taken for an evacuation.
        self.assertIsNone(self.instance(server).migration_context)

    def test_a_cold_migration_to_scattered_devices_is_refused(self) -> None:
        self.host("alpha", TOGETHER)
        server = self.boot(self.make_flavor(PAIR))
        self.host("beta", APART)
        self.refused_move(server, {"migrate": None})

    def test_on_an_unknown_nova_the_node_has_the_last_word(self) -> None:
        """The operator lets the scheduler take any host, and the node takes nothing scattered."""
        self.host("alpha", TOGETHER)
        server = self.boot(self.make_flavor(PAIR))
        self.host("beta", APART)
        self.restart_scheduler(with_filter=True)
        self.topology_filter()._unknown = ["nobody has tried this Nova"]
        self.flags(moves_on_unknown_nova="any", group="hpc")
        self.refused_move(server, {"migrate": None})
        self.assertTrue(self.log_lines("moves to any host, whatever its devices"))

    def test_a_cold_migration_to_aligned_devices(self) -> None:
        self.host("alpha", TOGETHER)
        server = self.boot(self.make_flavor(PAIR))
        self.host("beta", FOUR)
        # Four GPUs below one switch: any two fit.
        self._migrate_server(server)
        self._confirm_resize(server)
        self.assertEqual("beta", self.host_of(server))
        self.assertEqual("switch", self.decision(server).reached.word)
        self.assert_given_once()

    @pytest.mark.slow
    def test_placement_refuses_nothing_in_a_move(self) -> None:
        """A device is reserved when its server has left, right after its allocation changed."""
        self.useFixture(fixtures.Moves())
        self.host("alpha", TOGETHER)
        server = self.boot(self.make_flavor(PAIR))
        self.host("beta", TOGETHER)
        self._migrate_server(server)
        self._confirm_resize(server)
        self.update("alpha")
        self.update("alpha")
        self.assertEqual([], self.log_lines("Failed to update inventory"))
        self.assertEqual(2, sum(self.given_by_placement("alpha").values()))
        self._migrate_server(server)
        self.api.post_server_action(server["id"], {"revertResize": None})
        self._wait_for_state_change(server, "ACTIVE")
        self.update("alpha")
        self.update("beta")
        self.assertEqual([], self.log_lines("Failed to update inventory"))

    def test_a_resize_to_scattered_devices_is_refused(self) -> None:
        self.host("alpha", APART)
        server = self.boot(self.make_flavor(ONE))
        self.host("beta", APART)
        pair = self.make_flavor(PAIR)
        self.refused_move(server, {"resize": {"flavorRef": pair}})
        self.assertEqual("gpu:1", self.instance_flavor(server)["pci_passthrough:alias"])

    def test_a_resize_and_its_revert(self) -> None:
        self.host("alpha", TOGETHER)
        server = self.boot(self.make_flavor(ONE))
        before = self.decision(server)
        self.host("beta", FOUR)
        preferred = {**PAIR, "hpc:affinity": "host", "hpc:affinity_policy": "preferred"}
        body = {"resize": {"flavorRef": self.make_flavor(preferred)}}
        self.api.post_server_action(server["id"], body)
        self._wait_for_state_change(server, "VERIFY_RESIZE")
        self.assertEqual("host", self.decision(server).asked.word)
        self.api.post_server_action(server["id"], {"revertResize": None})
        self._wait_for_migration_status(server, ["reverted"])
        self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual(before, self.decision(server))

    def resized(self) -> tuple[dict, str]:
        """A server that was resized from alpha to beta, and its address at alpha."""
        self.host("alpha", TOGETHER)
        server = self.boot(self.make_flavor(ONE))
        (before,) = [each.address for each in self.devices_of(server)]
        self.host("beta", FOUR)
        self.api.post_server_action(server["id"], {"resize": {"flavorRef": self.make_flavor(PAIR)}})
        self._wait_for_state_change(server, "VERIFY_RESIZE")
        return server, before

    def refused_revert(self, server: dict) -> None:
        """The server runs on as it is; its resize can be confirmed, or reverted later."""
        request = self.instance(server)
        devices, given = self.devices_of(server), len(self.domains.given[server["id"]])
        self.api.post_server_action(server["id"], {"revertResize": None})
        idle = {"OS-EXT-STS:task_state": None, "status": "VERIFY_RESIZE"}
        self._wait_for_migration_status(server, ["finished"])
        self._wait_for_server_parameter(server, idle)
        self.eventually(
            lambda: self.assertIn("It runs on as it is", " ".join(self.fault_messages(server)))
        )
        self.assert_no_secrets(self.fault_messages(server)[0])
        self.assertEqual("beta", self.host_of(server))
        self.assertEqual(devices, self.devices_of(server))
        self.assertEqual(given, len(self.domains.given[server["id"]]))
        self.assertEqual(request.flavor.id, self.instance(server).flavor.id)
        spec = objects.RequestSpec.get_by_instance_uuid(
            nova_context.get_admin_context(), server["id"]
        )
        self.assertEqual(request.flavor.flavorid, spec.flavor.flavorid)

    def test_a_revert_to_a_device_that_is_gone_is_refused(self) -> None:
        """It ended in ERROR: the guest was destroyed before its old host was asked."""
        server, before = self.resized()
        self.sysfs["alpha"].vanish(before)
        self.update("alpha")
        self.assertEqual((before,), self.stats_of("alpha").unusable)
        self.refused_revert(server)
        self.refused_revert(server)
        # It is plugged in again.
        self.sysfs["alpha"].come_back(before)
        self.update("alpha")
        self.api.post_server_action(server["id"], {"revertResize": None})
        self._wait_for_migration_status(server, ["reverted"])
        self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual([before], [each.address for each in self.devices_of(server)])

    def test_what_is_no_danger_is_no_reason_against_a_revert(self) -> None:
        server, before = self.resized()
        (self.sysfs["alpha"].devices / before / "reset_method").unlink()
        self.update("alpha")
        self.assertEqual({before}, self.stats_of("alpha").in_use.keys())
        self.api.post_server_action(server["id"], {"revertResize": None})
        self._wait_for_migration_status(server, ["reverted"])
        self._wait_for_state_change(server, "ACTIVE")

    def test_a_resize_whose_revert_was_refused_is_confirmed(self) -> None:
        server, before = self.resized()
        self.quarantine("alpha", before, "to be replaced")
        self.sysfs["alpha"].bind(before, "nvidia")
        self.update("alpha")
        self.refused_revert(server)
        self._confirm_resize(server)
        self.assertEqual(2, len(self.devices_of(server)))

    def test_a_move_to_a_device_that_is_ill_is_refused(self) -> None:
        self.host("alpha", TOGETHER)
        server = self.boot(self.make_flavor(PAIR))
        self.host("beta", TOGETHER)
        self.sysfs["beta"].bind("0000:40:01.0", "nvidia")
        self.refused_move(server, {"migrate": None}, "1 is in use by the host")
        # For flavors without hpc: keys as well.
        self._delete_server(server)
        server = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:2"}), host="alpha")
        self.refused_move(server, {"migrate": None}, "1 is in use by the host")

    def test_live_migration_is_refused(self) -> None:
        self.host("alpha", TOGETHER)
        server = self.boot(self.make_flavor(PAIR))
        self.host("beta", TOGETHER)
        driver = self.computes["alpha"].driver
        instance = self.instance(server)
        error = self.assertRaises(
            exception.MigrationPreCheckError,
            driver.check_can_live_migrate_source,
            None,
            instance,
            None,
        )
        self.assertIn("cold migration", str(error))


class EvacuateTest(DriverTest):
    CAST_AS_CALL = False

    def test_evacuation(self) -> None:
        """Refused where the devices are apart, and aligned elsewhere."""
        self.host("alpha", TOGETHER)
        server = self.boot(self.make_flavor(PAIR))
        self.host("beta", APART)
        self.stop_host("alpha")
        self.restart_scheduler(with_filter=False)
        self._evacuate_server(
            server,
            expected_state="ACTIVE",
            expected_host="alpha",
            expected_migration_status="failed",
        )
        self.assertIn("hpc:affinity=switch", self.fault_messages(server)[0])
        # What is said of it afterwards was decided there, not here.
        instance = self.instance(server)
        del instance.system_metadata["hpc_decision"]
        instance.save()
        self.host("gamma", FOUR)
        self.restart_scheduler(with_filter=True)
        self._evacuate_server(server, expected_host="gamma", expected_state="SHUTOFF")
        self.assertEqual("switch", self.decision(server).reached.word)
        # Given there, as to a new server.
        tracked, devices = self.tracked("gamma"), self.ledger("gamma").devices
        mine = {each for each, status in tracked.items() if status == "allocated"}
        self.assertEqual(2, len(mine))
        self.assertEqual(mine, {each for each in devices if devices[each].server == server["id"]})

    def test_unshelve(self) -> None:
        self.host("alpha", TOGETHER)
        server = self.boot(self.make_flavor(PAIR))
        self._shelve_server(server, expected_state="SHELVED_OFFLOADED")
        self.eventually(lambda: self.assertEqual([], self.devices_of(server)))
        self.sysfs["alpha"].vanish("0000:40:00.0")
        self.api.post_server_action(server["id"], {"unshelve": None})
        self._wait_for_action_fail_completion(server, "unshelve", "compute_unshelve_instance")
        self.assertEqual("SHELVED_OFFLOADED", self.api.get_server(server["id"])["status"])
        self.host("beta", TOGETHER)
        self.update("alpha")
        self._unshelve_server(server)
        self.assertEqual("beta", self.host_of(server))
        self.assertEqual("switch", self.decision(server).reached.word)
