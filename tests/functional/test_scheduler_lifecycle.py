"""Servers with ``hpc:`` flavors on the move: aligned, or refused and unharmed."""

from __future__ import annotations

from unittest import mock

from nova_hpc.topology.level import Level
from tests.functional import base, fixtures
from tests.functional.fixtures import Shape, Switch

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}


class LifecycleTest(base.HpcServersTest):
    def setUp(self) -> None:
        super().setUp()
        # Files of disks are moved by ssh and rsync; there are none here.
        self.useFixture(
            fixtures.fixtures.MockPatch(
                "nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off",
                new=mock.Mock(return_value="{}"),
            )
        )
        self.start_host("one", fixtures.two_switches(gpus=2))
        self.flavor = self.make_flavor(PAIR)

    def addresses(self, server: dict) -> list[str]:
        return [device.address for device in self.devices_of(server)]

    def assert_unharmed(self, server: dict, before: list[str]) -> None:
        """Still ACTIVE on its host with the devices that it had."""
        again = self.api.get_server(server["id"])
        self.assertEqual("ACTIVE", again["status"])
        self.assertEqual("one", self.host_of(server))
        self.assertEqual(before, self.addresses(server))
        self.assert_given_once()

    def test_rebuild_keeps_the_devices(self) -> None:
        server = self.boot(self.flavor)
        before = self.addresses(server)
        self._rebuild_server(server, "155d900f-4e14-4e4c-a73d-069cbf4541e6")
        self.assert_unharmed(server, before)

    def test_cold_migration_is_aligned(self) -> None:
        server = self.boot(self.flavor)
        self.start_host("two", Shape((Switch(gpus=1), Switch(gpus=1), Switch(gpus=2))))
        self._migrate_server(server)
        server = self._wait_for_state_change(server, "VERIFY_RESIZE")
        self._confirm_resize(server)
        self.assertEqual("two", self.host_of(server))
        self.assertIs(Level.SWITCH, self.level_of(server))
        self.assertEqual(2, len(self.devices_of(server)))
        self.assert_given_once()

    def test_cold_migration_back(self) -> None:
        server = self.boot(self.flavor)
        before = self.addresses(server)
        self.start_host("two", fixtures.two_switches(gpus=2))
        self._migrate_server(server)
        server = self._wait_for_state_change(server, "VERIFY_RESIZE")
        self._revert_resize(server)
        self.assert_unharmed(server, before)

    def test_cold_migration_is_refused(self) -> None:
        server = self.boot(self.flavor)
        before = self.addresses(server)
        self.start_host("two", fixtures.two_switches(gpus=1))
        error = self.assertRaises(
            base.client.OpenStackApiException, self.api.post_server_action,
            server["id"], {"migrate": None},
        )
        self.assertEqual(400, error.response.status_code)
        self.assertIn("switch", str(error))
        self.assertNotIn("two", str(error).replace("two_", ""))
        self.assert_unharmed(server, before)

    def test_resize_is_aligned(self) -> None:
        server = self.boot(self.flavor)
        self.start_host("two", Shape((Switch(gpus=2), Switch(gpus=2), Switch(gpus=3))))
        larger = self.make_flavor(PAIR | {"pci_passthrough:alias": "gpu:3"})
        self._resize_server(server, larger)
        server = self._wait_for_state_change(server, "VERIFY_RESIZE")
        self._confirm_resize(server)
        self.assertEqual("two", self.host_of(server))
        self.assertEqual(3, len(self.devices_of(server)))
        self.assertIs(Level.SWITCH, self.level_of(server))
        self.assert_given_once()

    def test_resize_on_the_same_host(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        server = self.boot(self.flavor)
        other = self.make_flavor(PAIR, memory_mb=512)
        self._resize_server(server, other)
        server = self._wait_for_state_change(server, "VERIFY_RESIZE")
        self._confirm_resize(server)
        self.assertIs(Level.SWITCH, self.level_of(server))
        self.assert_given_once()

    def test_resize_is_refused(self) -> None:
        server = self.boot(self.flavor)
        before = self.addresses(server)
        self.start_host("two", fixtures.two_switches(gpus=2))
        larger = self.make_flavor(PAIR | {"pci_passthrough:alias": "gpu:3"})
        error = self.assertRaises(
            base.client.OpenStackApiException, self.api.post_server_action,
            server["id"], {"resize": {"flavorRef": larger}},
        )
        self.assertEqual(400, error.response.status_code)
        self.assertIn("3 gpu", str(error))
        self.assert_unharmed(server, before)

    def test_resize_to_a_wrong_flavor_is_refused(self) -> None:
        server = self.boot(self.flavor)
        before = self.addresses(server)
        self.start_host("two", fixtures.two_switches(gpus=2))
        wrong = self.make_flavor(PAIR | {"hpc:affinity": "swtich"})
        error = self.assertRaises(
            base.client.OpenStackApiException, self.api.post_server_action,
            server["id"], {"resize": {"flavorRef": wrong}},
        )
        self.assertIn("swtich", str(error))
        self.assert_unharmed(server, before)

    def test_shelve_and_unshelve(self) -> None:
        self.flags(shelved_offload_time=0)
        server = self.boot(self.flavor)
        self._shelve_server(server)
        self.assertEqual([], self.addresses(server))
        self._unshelve_server(server)
        self.assertIs(Level.SWITCH, self.level_of(server))
        self.assertEqual(2, len(self.devices_of(server)))

    def test_evacuation_is_aligned(self) -> None:
        server = self.boot(self.flavor)
        self.start_host("two", Shape((Switch(gpus=1), Switch(gpus=1), Switch(gpus=2))))
        self.computes["one"].stop()
        services = self.admin_api.get_services(host="one", binary="nova-compute")
        self.admin_api.put_service(services[0]["id"], {"forced_down": True})
        server = self._evacuate_server(
            server, expected_host="two", expected_migration_status="done"
        )
        self.assertIs(Level.SWITCH, self.level_of(server))
        self.assertEqual(2, len(self.devices_of(server)))
