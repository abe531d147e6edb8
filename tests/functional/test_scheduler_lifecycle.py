"""Servers with ``hpc:`` flavors on the move: aligned, or refused and unharmed."""

from __future__ import annotations

from unittest import mock

from nova_hpc.topology.level import Level, common_level
from tests.functional import base, fixtures
from tests.functional.fixtures import Shape, Switch

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}


class LifecycleTest(base.HpcServersTest):
    """What the scheduler decides; the compute service's part is the driver's tests.

    A move's devices are read from its allocation in Placement: that is what
    the scheduler chose.
    """

    # Moves are refused in the conductor, after the API has answered.
    CAST_AS_CALL = False

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

    def allocated(self, server: dict, host: str) -> list[str]:
        """Addresses of the devices that Placement has for the server."""
        found = []
        for uuid in self._get_allocations_by_server_uuid(server["id"]):
            name = self._get_resource_provider_by_uuid(uuid)["name"]
            if name.startswith(f"{host}_"):
                found.append(name.removeprefix(f"{host}_"))
        return sorted(found)

    def assert_allocated_together(self, server: dict, host: str, count: int) -> None:
        addresses = self.allocated(server, host)
        self.assertEqual(count, len(addresses))
        places = self.shapes[host].locations()
        self.assertIs(Level.SWITCH, common_level(places[address] for address in addresses))

    def assert_refused(self, server: dict, action: str, body: object, *words: str) -> None:
        """The action fails with its reason; the server is as it was."""
        before = self.addresses(server)
        self.api.post_server_action(server["id"], {action: body})
        event = self._wait_for_action_fail_completion(server, action, "conductor_migrate_server")
        for word in words:
            self.assertIn(word, event["details"])
        self.assertNotIn("secret", event["details"])
        self.assertNotIn("0000:", event["details"])
        again = self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
        self.assertEqual("ACTIVE", again["status"])
        self.assertEqual("one", self.host_of(server))
        self.assertEqual(before, self.addresses(server))
        self.assertEqual(before, self.allocated(server, "one"))
        self.assert_given_once()

    def test_rebuild_keeps_the_devices(self) -> None:
        server = self.boot(self.flavor)
        before = self.addresses(server)
        self._rebuild_server(server, "155d900f-4e14-4e4c-a73d-069cbf4541e6")
        self.assertEqual(before, self.addresses(server))
        self.assertEqual(before, self.allocated(server, "one"))
        self.assert_given_once()

    def test_cold_migration_is_aligned(self) -> None:
        server = self.boot(self.flavor)
        self.start_host("two", Shape((Switch(gpus=1), Switch(gpus=1), Switch(gpus=2))))
        self._migrate_server(server)
        self.assertEqual("two", self.host_of(server))
        self.assert_allocated_together(server, "two", 2)

    def test_cold_migration_is_refused(self) -> None:
        server = self.boot(self.flavor)
        self.start_host("secret", fixtures.two_switches(gpus=1))
        self.assert_refused(server, "migrate", None, "2 gpu free", "switch")

    def test_resize_is_aligned(self) -> None:
        server = self.boot(self.flavor)
        self.start_host("two", Shape((Switch(gpus=2), Switch(gpus=2), Switch(gpus=3))))
        larger = self.make_flavor(PAIR | {"pci_passthrough:alias": "gpu:3"})
        self._resize_server(server, larger)
        self.assertEqual("two", self.host_of(server))
        self.assert_allocated_together(server, "two", 3)

    def test_resize_is_refused(self) -> None:
        server = self.boot(self.flavor)
        self.start_host("secret", fixtures.two_switches(gpus=2))
        larger = self.make_flavor(PAIR | {"pci_passthrough:alias": "gpu:3"})
        self.assert_refused(server, "resize", {"flavorRef": larger}, "4 gpu free", "switch")

    def test_resize_to_a_wrong_flavor_is_refused(self) -> None:
        server = self.boot(self.flavor)
        self.start_host("secret", fixtures.two_switches(gpus=2))
        wrong = self.make_flavor(PAIR | {"hpc:affinity": "swtich"})
        self.assert_refused(server, "resize", {"flavorRef": wrong}, "Flavor:", "swtich")

    def test_unshelve_is_aligned(self) -> None:
        self.flags(shelved_offload_time=0)
        server = self.boot(self.flavor)
        self._shelve_server(server)
        self.assertEqual([], self.addresses(server))
        self._unshelve_server(server)
        self.assertIs(Level.SWITCH, self.level_of(server))
        self.assertEqual(self.addresses(server), self.allocated(server, "one"))

    def test_evacuation_is_aligned(self) -> None:
        server = self.boot(self.flavor)
        self.start_host("two", Shape((Switch(gpus=1), Switch(gpus=1), Switch(gpus=2))))
        self.computes["one"].stop()
        services = self.admin_api.get_services(host="one", binary="nova-compute")
        self.admin_api.put_service(services[0]["id"], {"forced_down": True})
        server = self._evacuate_server(
            server, expected_host="two", expected_migration_status="done"
        )
        # The devices of the host that is down stay allocated until it is back.
        self.assert_allocated_together(server, "two", 2)
