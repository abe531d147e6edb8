# SPDX-License-Identifier: Apache-2.0
"""Devices are cleaned and checked between two servers, and never given dirty."""

from __future__ import annotations

import os
import threading

import attrs
from nova import context as nova_context
from nova import objects
from nova.virt.libvirt.driver import LibvirtDriver

from nova_hpc.tenancy.ledger import copy_of
from nova_hpc.tenancy.step import NodeView
from nova_hpc.wire.ledger import SOMEBODY, LedgerDevice
from nova_hpc_tools.device.upkeep import DeviceUpkeep
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.driver_fixtures import FakeSysfs
from tests.unit.tenancy.hygiene_node import config

GPU = {"pci_passthrough:alias": "gpu:1"}
#: Of servers without hpc: keys Nova's own words replace the node's.
TELLING = GPU | {"hpc:affinity": "host"}
FIRST, SECOND = "0000:40:00.0", "0000:40:01.0"
PF, VF = "0000:40:01.0", "0000:40:01.1"
ONE = fixtures.Shape((fixtures.Switch(gpus=1),))
TWO = fixtures.Shape((fixtures.Switch(gpus=2),))


class _Base(DriverTest):
    def path(self, host: str, address: str, name: str):
        return self.sysfs[host].devices / address / name

    def resets(self, host: str, address: str) -> int:
        return self.path(host, address, "reset").read_text().count("1")

    def forget(self, host: str, address: str) -> None:
        self.path(host, address, "reset").write_text("")

    def held(self, host: str) -> dict[str, str]:
        return self.ledger(host).quarantined

    def record(self, host: str, address: str) -> LedgerDevice:
        return self.ledger(host).device(address)

    def release(self, host: str, address: str) -> str | None:
        """What the operator's command does."""
        node = self.computes[host].driver.hpc_node
        candidate = NodeView(node.source.read().node, {address: "gpu"}).candidate(address)
        assert candidate is not None
        owners = attrs.evolve(node.owners(host), records=frozenset)  # it cannot ask Nova
        return DeviceUpkeep.of(node.tenancy.step("hygiene")).release(candidate, owners)

    def refusal(self, server) -> str:
        """The node's own words; Nova adds others in the same second."""
        found = [text for text in self.fault_messages(server) if "PCI devices" in text]
        self.assertTrue(found, self.fault_messages(server))
        return found[0]

    def assert_lost(self, host: str, address: str) -> None:
        self.assertNotIn(address, self.tracked(host))
        self.assertNotIn(address, self.given_by_placement(host))
        # Its provider stays: what is known of it there is not lost.
        self.assertIn(address, self.in_placement(host))


class HygieneTest(_Base):
    # -- the ordinary life --------------------------------------------------

    def test_a_device_is_marked_and_cleaned(self) -> None:
        self.host("alpha", ONE)
        self.assertIsNotNone(self.record("alpha", FIRST).baseline)
        server = self.boot(self.make_flavor(GPU))
        self.assertEqual(server["id"], self.record("alpha", FIRST).server)
        self._reboot_server(server, hard=True)
        self._stop_server(server)
        self._start_server(server)
        self._rebuild_server(server, "155d900f-4e14-4e4c-a73d-069cbf4541e6")
        self.update("alpha")
        self.assertEqual(0, self.resets("alpha", FIRST))
        self._delete_server(server)
        self.assertEqual(1, self.resets("alpha", FIRST))
        self.assertIsNone(self.record("alpha", FIRST).server)
        self.update("alpha")
        self.assert_all_free("alpha")
        self.assertEqual({}, self.held("alpha"))
        self.assertEqual(1, self.resets("alpha", FIRST))

    def test_a_device_is_cleaned_when_its_guest_is_gone(self) -> None:
        """Never under a guest that runs: it would lose it, and could write to it again."""
        self.host("alpha", ONE)
        server = self.boot(self.make_flavor(GPU))
        plain, seen = LibvirtDriver.destroy, []

        def destroy(*args: object, **keywords: object) -> None:
            plain(*args, **keywords)
            seen.append(self.resets("alpha", FIRST))

        self.useFixture(fixtures.fixtures.MockPatchObject(LibvirtDriver, "destroy", destroy))
        self._delete_server(server)
        self.assertEqual([0], seen)
        self.assertEqual(1, self.resets("alpha", FIRST))

    def test_bus_mastering_that_firmware_left_on(self) -> None:
        """At each boot of the host, before nova-compute starts; a server's device keeps it."""

        def firmware(tree: FakeSysfs) -> None:
            for address in (FIRST, SECOND):
                path = tree.devices / address / "config"
                path.write_bytes(config(master=True))

        def masters(address: str) -> bool:
            return bool(self.path("alpha", address, "config").read_bytes()[4] & 4)

        self.host("alpha", TWO, before=firmware)
        self.assert_all_free("alpha")
        self.assertEqual((False, False), (masters(FIRST), masters(SECOND)))
        server = self.boot(self.make_flavor(GPU))
        (mine,) = (device.address for device in self.devices_of(server))
        (other,) = {FIRST, SECOND} - {mine}
        firmware(self.sysfs["alpha"])
        self.computes["alpha"] = self.restart_compute_service("alpha", keep_hypervisor_state=True)
        self.update("alpha")
        self.assertEqual({}, self.stats_of("alpha").withheld)
        self.assertEqual((True, False), (masters(mine), masters(other)))
        self.assertEqual((0, 1), (self.resets("alpha", mine), self.resets("alpha", other)))
        self.assertTrue(self.log_lines(rf"{other} had bus mastering on although no server"))
        one = self.boot(self.make_flavor(GPU))
        self.assertEqual([other], [device.address for device in self.devices_of(one)])
        self._delete_server(server)
        self.assertFalse(masters(mine))
        self.update("alpha")
        self.assertEqual({}, self.held("alpha"))

    def test_shelving(self) -> None:
        self.host("alpha", ONE)
        self.flags(shelved_offload_time=0)
        server = self.boot(self.make_flavor(GPU))
        self._shelve_server(server, expected_state="SHELVED_OFFLOADED")
        self.eventually(lambda: self.assertIsNone(self.record("alpha", FIRST).server))
        self.assertEqual(1, self.resets("alpha", FIRST))
        self._unshelve_server(server)
        self.assertEqual(server["id"], self.record("alpha", FIRST).server)

    def test_a_migration_leaves_its_devices_to_the_next_update(self) -> None:
        self.useFixture(fixtures.Moves())
        self.host("alpha", ONE)
        self.host("beta", ONE)
        server = self.boot(self.make_flavor(GPU), host="alpha")
        self._migrate_server(server)
        self._confirm_resize(server)
        self.assertEqual(server["id"], self.record("beta", FIRST).server)
        self.eventually(lambda: self.assert_all_free("alpha"))
        self.update("alpha")
        self.assertEqual(1, self.resets("alpha", FIRST))
        self.assertIsNone(self.record("alpha", FIRST).server)
        self.update("beta")
        self.assertEqual(0, self.resets("beta", FIRST))

    def test_a_device_in_use_when_this_comes_into_use(self) -> None:
        self.host("alpha", ONE)
        self.flags(clean_devices=False, group="hpc")
        node = self.computes["alpha"].driver.hpc_node
        del node.__dict__["tenancy"]
        server = self.boot(self.make_flavor(GPU))
        self.assertIsNone(self.record("alpha", FIRST).server)
        del node.__dict__["tenancy"]
        self.flags(clean_devices=True, group="hpc")
        self.update("alpha")
        self.assertEqual(SOMEBODY, self.record("alpha", FIRST).server)
        self._delete_server(server)
        self.update("alpha")
        self.assertEqual(1, self.resets("alpha", FIRST))
        self.assert_all_free("alpha")

    def test_virtual_functions(self) -> None:
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=0, pfs=1),)))
        server = self.boot(self.make_flavor({"pci_passthrough:alias": "vf:2"}))
        mine = [device.address for device in self.devices_of(server)]
        self.path("alpha", mine[0], "reset").unlink()
        self._delete_server(server)
        self.assertEqual([mine[0]], list(self.held("alpha")))
        self.update("alpha")
        self.assertEqual({f"{mine[0][:-1]}0": 3}, self.given_by_placement("alpha"))

    # -- a device that is not clean --------------------------------------------

    def test_a_reset_that_fails(self) -> None:
        self.host("alpha", TWO)
        server = self.boot(self.make_flavor(GPU))
        (mine,) = (device.address for device in self.devices_of(server))
        (other,) = {FIRST, SECOND} - {mine}
        self.path("alpha", mine, "reset").unlink()
        self._delete_server(server)
        self.assertEqual({mine: "the kernel knows no way to reset it"}, self.held("alpha"))
        self.assertTrue(self.log_lines(rf"{mine} is in quarantine: the kernel knows no way"))
        # Nova knows of it at the next update; until then the check before
        # start would refuse it. Now only the other is left.
        for _ in range(2):
            self.update("alpha")
            self.assert_lost("alpha", mine)
            reason = "in quarantine: the kernel knows no way to reset it"
            self.assertEqual({mine: reason}, self.stats_of("alpha").withheld)
            # It survives another start of the service.
            self.computes["alpha"] = self.restart_compute_service(
                "alpha", keep_hypervisor_state=True
            )
        one = self.boot(self.make_flavor(GPU))
        self.assertEqual([other], [device.address for device in self.devices_of(one)])
        none = self.boot(self.make_flavor(GPU), state="ERROR")
        self.assertIn("No valid host", self.fault(none))
        self._delete_server(none)
        # The operator.
        self.assertEqual("the kernel knows no way to reset it", self.release("alpha", mine))
        self.path("alpha", mine, "reset").write_text("")
        self.assertIsNone(self.release("alpha", mine))
        self.update("alpha")
        again = self.boot(self.make_flavor(GPU))
        self.assertEqual([mine], [device.address for device in self.devices_of(again)])

    def test_between_the_delete_and_the_update_the_check_before_start_guards(self) -> None:
        self.host("alpha", ONE)
        self.host("beta", ONE)
        server = self.boot(self.make_flavor(GPU), host="alpha")
        self.path("alpha", FIRST, "reset").unlink()
        self._delete_server(server)
        # Nova has it free: no update since.
        self.assertEqual({FIRST: "available"}, self.tracked("alpha"))
        self.assertEqual("beta", self.host_of(self.boot(self.make_flavor(GPU))))
        self.assertIsNone(self.record("alpha", FIRST).server)

    def test_a_reset_that_hangs_does_not_hang_the_service(self) -> None:
        self.flags(reset_timeout=1.0, group="hpc")
        self.host("alpha", TWO)
        server = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:2"}))
        self.path("alpha", FIRST, "reset").unlink()
        os.mkfifo(self.path("alpha", FIRST, "reset"))
        self._delete_server(server)
        self.assertEqual({FIRST: "it did not answer within 1 seconds"}, self.held("alpha"))
        self.assertEqual(1, self.resets("alpha", SECOND))
        self.update("alpha")
        self.assertEqual({SECOND: "available"}, self.tracked("alpha"))

    def test_a_device_that_has_changed_goes_to_nobody(self) -> None:
        self.host("alpha", ONE)
        self.host("beta", ONE)
        (self.path("alpha", FIRST, "vendor")).write_text("0x1af4\n")
        server = self.boot(self.make_flavor(TELLING), host="alpha", state="ERROR")
        self.assert_no_secrets(self.refusal(server))
        self._delete_server(server)

    def test_errors_since_the_last_check(self) -> None:
        def count(tree, number) -> None:
            path = tree.devices / FIRST / "aer_dev_fatal"
            path.write_text(f"Undefined 0\nTOTAL_ERR_FATAL {number}\n")

        self.host("alpha", ONE, before=lambda tree: count(tree, 0))
        self.host("beta", ONE)
        count(self.sysfs["alpha"], 2)
        server = self.boot(self.make_flavor(TELLING), host="alpha", state="ERROR")
        refused = self.refusal(server)
        self.assertIn("1 did not pass the check", refused)
        self.assert_no_secrets(refused)
        self.update("alpha")
        self.assert_lost("alpha", FIRST)
        reason = "suspect: 2 new uncorrected fatal errors (AER)"
        self.assertEqual({FIRST: reason}, self.stats_of("alpha").withheld)
        self.assertEqual({}, self.held("alpha"))
        self.assertEqual("beta", self.host_of(self.boot(self.make_flavor(GPU))))
        # No more of them: it is offered again at the next update.
        self.update("alpha")
        self.assert_all_free("alpha")
        self.assertEqual("alpha", self.host_of(self.boot(self.make_flavor(GPU))))

    def test_a_lost_state_file_gives_nothing_and_lives(self) -> None:
        self.host("alpha", ONE)
        path = self.ledger_file("alpha").path
        copy_of(path).unlink()
        path.write_text("{")
        server = self.boot(self.make_flavor(GPU), state="ERROR")
        self._delete_server(server)
        self.update("alpha")
        self.assertEqual({}, self.tracked("alpha"))
        self.assertIn("the ledger", self.stats_of("alpha").withheld[FIRST])
        path.unlink()
        self.update("alpha")
        self.assertEqual({FIRST: "available"}, self.tracked("alpha"))

    def test_two_deletes_at_once(self) -> None:
        self.host("alpha", TWO)
        servers = [self.boot(self.make_flavor(GPU)) for _ in range(2)]
        context = nova_context.get_admin_context()
        driver = self.computes["alpha"].driver
        instances = []
        for server in servers:
            found = objects.Instance.get_by_uuid(context, server["id"])
            found.task_state = "deleting"
            instances.append(found)
            domain = driver._host.get_connection().lookupByUUIDString(found.uuid)
            domain.destroy()
            domain.undefine()
        threads = [
            threading.Thread(
                target=driver.hpc_node.tenancy.take_back, args=(each, driver.hpc_node.source)
            )
            for each in instances * 2
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for address in (FIRST, SECOND):
            self.assertEqual(1, self.resets("alpha", address))
            self.assertIsNone(self.record("alpha", address).server)


class OneTimeUseTest(_Base):
    """Nova reserves a used device; a verified clean lets it go."""

    def entries(self):
        return [{**entry, "one_time_use": "true"} for entry in ONE.device_spec()]

    def reserved(self) -> int:
        body = self.placement.get("/resource_providers", version="1.14").body
        (provider,) = (
            each for each in body["resource_providers"] if each["name"] == f"alpha_{FIRST}"
        )
        url = f"/resource_providers/{provider['uuid']}/inventories"
        (fields,) = self.placement.get(url).body["inventories"].values()
        return fields["reserved"]

    def test_clean(self) -> None:
        self.host("alpha", ONE, device_spec=self.entries())
        self.assertEqual(0, self.reserved())
        for _ in range(2):
            server = self.boot(self.make_flavor(GPU))
            self.update("alpha")
            self.assertEqual(1, self.reserved())
            self._delete_server(server)
            self.assertEqual(0, self.reserved())
        self.update("alpha")
        self.assertFalse(self.record("alpha", FIRST).unreported)

    def test_not_clean(self) -> None:
        self.host("alpha", ONE, device_spec=self.entries())
        server = self.boot(self.make_flavor(GPU))
        self.path("alpha", FIRST, "reset").unlink()
        self._delete_server(server)
        # No window: Placement gives it to nobody although Nova has it free.
        self.assertEqual({FIRST: "available"}, self.tracked("alpha"))
        self.assertEqual(1, self.reserved())
        refused = self.boot(self.make_flavor(GPU), state="ERROR")
        self.assertIn("No valid host", self.fault(refused))
        self.update("alpha")
        self.assert_lost("alpha", FIRST)
        self.path("alpha", FIRST, "reset").write_text("")
        self.assertIsNone(self.release("alpha", FIRST))
        self.update("alpha")
        self.assertEqual(0, self.reserved())

    def test_withheld_for_something_else_when_it_is_clean(self) -> None:
        """Clean again, it stays reserved as long as anything else withholds it."""
        self.host("alpha", ONE, device_spec=self.entries())
        server = self.boot(self.make_flavor(GPU))
        self.update("alpha")
        self.assertEqual(1, self.reserved())
        self.quarantine("alpha", FIRST, "a ticket")
        self._delete_server(server)
        for _ in range(3):
            self.update("alpha")
            self.assertEqual(1, self.reserved())
            self.assert_lost("alpha", FIRST)
        self.assertFalse(self.log_lines("is clean and can be used again"))
        self.assertIsNone(self.release("alpha", FIRST))
        for _ in range(3):
            self.update("alpha")
        self.assertEqual(0, self.reserved())
        self.assertEqual({FIRST: "available"}, self.tracked("alpha"))
        self.assertFalse(self.record("alpha", FIRST).unreported)
        self.boot(self.make_flavor(GPU))

    def test_what_an_operator_has_reserved_stays_reserved(self) -> None:
        self.host("alpha", ONE, device_spec=self.entries())
        body = self.placement.get("/resource_providers", version="1.14").body
        (uuid,) = (
            each["uuid"] for each in body["resource_providers"] if each["name"] == f"alpha_{FIRST}"
        )
        url = f"/resource_providers/{uuid}/inventories"
        inventories = self.placement.get(url).body
        for fields in inventories["inventories"].values():
            fields["reserved"] = 1
        self.assertEqual(200, self.placement.put(url, inventories, version="1.26").status)
        self.computes["alpha"].manager.reset()  # as after SIGHUP: forgets its cache
        self.update("alpha")
        self.update("alpha")
        self.assertEqual(1, self.reserved())
