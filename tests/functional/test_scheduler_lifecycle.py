# SPDX-License-Identifier: Apache-2.0
"""Servers with ``hpc:`` flavors on the move: aligned, or refused and unharmed."""

from __future__ import annotations

import inspect
from unittest import mock

from nova import context as nova_context
from nova import objects
from nova.compute import api as compute_api

from nova_hpc_common.level import Level, common_level
from tests.functional import base, fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.fixtures import Shape, Switch

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}
#: Only the last switch has two GPUs: taking any two is not good enough.
ONE_PAIR = Shape((Switch(gpus=1), Switch(gpus=1), Switch(gpus=2)))


class LifecycleTest(DriverTest):
    """The whole stack: the scheduler chooses, Placement and the node agree."""

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
        self.host("alpha", fixtures.two_switches(gpus=2))
        self.flavor = self.make_flavor(PAIR)

    def here(self, server: dict, host: str) -> list[str]:
        """Addresses of the server's devices on one host."""
        node = objects.ComputeNode.get_by_nodename(nova_context.get_admin_context(), host)
        return [each.address for each in self.devices_of(server) if each.compute_node_id == node.id]

    def allocated(self, server: dict, host: str) -> list[str]:
        """Addresses of the devices that Placement has for the server on a host."""
        found = []
        for uuid in self._get_allocations_by_server_uuid(server["id"]):
            name = self._get_resource_provider_by_uuid(uuid)["name"]
            if name.startswith(f"{host}_"):
                found.append(name.removeprefix(f"{host}_"))
        return sorted(found)

    def assert_together(self, server: dict, host: str, count: int) -> None:
        """Chosen, allocated and claimed are the same, under one switch."""
        addresses = self.here(server, host)
        self.assertEqual(count, len(addresses))
        self.assertEqual(addresses, self.allocated(server, host))
        places = self.shapes[host].locations()
        self.assertIs(Level.SWITCH, common_level(places[address] for address in addresses))

    def assert_refused(self, server: dict, action: str, body: object, *words: str) -> None:
        """The action fails with its reason; the server is as it was."""
        before = self.here(server, "alpha")
        self.api.post_server_action(server["id"], {action: body})
        self._wait_for_action_fail_completion(server, action, "conductor_migrate_server")
        again = self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
        fault = self.fault_messages(server)[0]
        for word in words:
            self.assertIn(word, fault)
        self.assert_no_secrets(fault)
        self.assertEqual("ACTIVE", again["status"])
        self.assertEqual("alpha", self.host_of(server))
        self.assertEqual(before, self.here(server, "alpha"))
        self.assertEqual(before, self.allocated(server, "alpha"))
        self.assert_given_once()

    def test_rebuild_keeps_the_devices(self) -> None:
        server = self.boot(self.flavor)
        before = self.here(server, "alpha")
        self._rebuild_server(server, "155d900f-4e14-4e4c-a73d-069cbf4541e6")
        self.assertEqual(before, self.here(server, "alpha"))
        self.assertEqual(before, self.allocated(server, "alpha"))
        self.assert_given_once()

    def test_a_user_with_the_mark_of_a_rebuild(self) -> None:
        """Nova before 32.2.1 and 33.0.2 believes it and claims nothing (CVE-2026-46448)."""
        believes = "startswith('_nova')" not in inspect.getsource(compute_api.API.create)
        hints = {"_nova_check_type": ["rebuild"]}
        body = self._build_server(flavor_id=self.flavor, networks="none")
        server = self.api.post_server({"server": body, "os:scheduler_hints": hints})
        server = self._wait_for_state_change(server, "ERROR" if believes else "ACTIVE")
        if believes:
            self.assertIn("_nova_check_type", server["fault"]["message"])
            self.assertEqual([], self.devices_of(server))
        else:
            self.assert_together(server, "alpha", 2)
        self.assert_given_once()

    def test_a_record_with_the_mark_is_refused_and_can_be_rebuilt(self) -> None:
        """A server of before: its record keeps the hint on a Nova with the fix."""
        server = self.boot(self.flavor)
        context = nova_context.get_admin_context()
        record = objects.RequestSpec.get_by_instance_uuid(context, server["id"])
        record.scheduler_hints = {"_nova_check_type": ["rebuild"]}
        record.save()
        self.host("beta", ONE_PAIR)
        self.assert_refused(server, "migrate", None, "_nova_check_type")
        before = self.here(server, "alpha")
        self._rebuild_server(server, "155d900f-4e14-4e4c-a73d-069cbf4541e6")
        self.assertEqual(before, self.here(server, "alpha"))

    def test_cold_migration_is_aligned(self) -> None:
        server = self.boot(self.flavor)
        self.host("beta", ONE_PAIR)
        self._migrate_server(server)
        self.assert_together(server, "beta", 2)
        self._confirm_resize(server)
        self.assert_together(server, "beta", 2)
        self.assertEqual([], self.here(server, "alpha"))
        self.assert_given_once()

    def test_cold_migration_back(self) -> None:
        server = self.boot(self.flavor)
        before = self.here(server, "alpha")
        self.host("beta", ONE_PAIR)
        self._migrate_server(server)
        self._revert_resize(server)
        self.assertEqual(before, self.here(server, "alpha"))
        self.assertEqual(before, self.allocated(server, "alpha"))
        self.assertEqual([], self.here(server, "beta"))
        self.assert_given_once()

    def test_cold_migration_is_refused(self) -> None:
        server = self.boot(self.flavor)
        self.host("secret", fixtures.two_switches(gpus=1))
        self.assert_refused(server, "migrate", None, "2 gpu under one switch")

    def test_cold_migration_to_a_node_with_another_driver_is_refused(self) -> None:
        server = self.boot(self.flavor)
        self.flags(compute_driver=base.STOCK_DRIVER)
        self.start_host("secret", Shape((Switch(gpus=2),)))
        self.assert_refused(server, "migrate", None, "No host with such devices can be used")

    def test_resize_is_aligned(self) -> None:
        server = self.boot(self.flavor)
        self.host("beta", Shape((Switch(gpus=2), Switch(gpus=2), Switch(gpus=3))))
        larger = self.make_flavor(PAIR | {"pci_passthrough:alias": "gpu:3"})
        self._resize_server(server, larger)
        self.assert_together(server, "beta", 3)
        self._confirm_resize(server)
        self.assert_together(server, "beta", 3)
        self.assert_given_once()

    def test_resize_of_a_guest_with_cells(self) -> None:
        """Nova forgets the flavor's NUMA policy on a resize; the flavor still has it."""
        cells = PAIR | {"hw:numa_nodes": "1", "hw:pci_numa_affinity_policy": "required"}
        server = self.boot(self.make_flavor(cells))
        self.host("beta", Shape((Switch(gpus=2), Switch(gpus=2), Switch(gpus=3))))
        self._resize_server(server, self.make_flavor(cells | {"pci_passthrough:alias": "gpu:3"}))
        self.assert_together(server, "beta", 3)
        self._confirm_resize(server)
        self.assert_together(server, "beta", 3)
        self.assert_given_once()

    def test_resize_on_the_same_host(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        server = self.boot(self.flavor)
        self._resize_server(server, self.make_flavor(PAIR, memory_mb=512))
        self._confirm_resize(server)
        self.assert_together(server, "alpha", 2)
        self.assert_given_once()

    def test_resize_is_refused(self) -> None:
        server = self.boot(self.flavor)
        self.host("secret", fixtures.two_switches(gpus=2))
        larger = self.make_flavor(PAIR | {"pci_passthrough:alias": "gpu:3"})
        self.assert_refused(server, "resize", {"flavorRef": larger}, "3 gpu under one switch")

    def test_resize_to_a_wrong_flavor_is_refused(self) -> None:
        server = self.boot(self.flavor)
        self.host("secret", fixtures.two_switches(gpus=2))
        wrong = self.make_flavor(PAIR | {"hpc:affinity": "swtich"})
        self.assert_refused(server, "resize", {"flavorRef": wrong}, "Flavor:", "swtich")

    def test_unshelve_is_aligned(self) -> None:
        self.flags(shelved_offload_time=0)
        server = self.boot(self.flavor)
        self._shelve_server(server)
        # The status comes before the devices are given back.
        self._wait_for_assert(lambda: self.assertEqual([], self.here(server, "alpha")), 120)
        self._unshelve_server(server)
        self.assert_together(server, "alpha", 2)

    def test_a_scheduler_of_an_unknown_nova(self) -> None:
        """New servers are refused; what runs can leave its host, aligned."""
        server = self.boot(self.flavor)
        self.host("beta", ONE_PAIR)
        self.useFixture(
            fixtures.fixtures.MonkeyPatch("nova.version.version_string", lambda: "35.0.0")
        )
        refused = self.boot(self.flavor, state="ERROR")
        self.assertIn("for which hpc: flavors are not ready", self.fault(refused))
        self.assertTrue(self.log_lines("Nova 35.0.0 is not supported"))
        self._migrate_server(server)
        self.assert_together(server, "beta", 2)
        self.assertTrue(self.log_lines(f"moves without a promise .{server['id']}.: Nova 35.0.0"))
        self._confirm_resize(server)
        self.assert_given_once()

    def test_resize_and_evacuation_on_an_unknown_nova(self) -> None:
        """As on a known one: the devices are under one switch wherever the server goes."""
        server = self.boot(self.flavor)
        for name in ("beta", "gamma"):
            self.host(name, Shape((Switch(gpus=2), Switch(gpus=2), Switch(gpus=3))))
        self.useFixture(
            fixtures.fixtures.MonkeyPatch("nova.version.version_string", lambda: "35.0.0")
        )
        larger = self.make_flavor(PAIR | {"pci_passthrough:alias": "gpu:3"})
        self._resize_server(server, larger)
        self._confirm_resize(server)
        first = self.host_of(server)
        self.assert_together(server, first, 3)
        (other,) = {"beta", "gamma"} - {first}
        self.stop_host(first)
        server = self._evacuate_server(
            server, expected_host=other, expected_migration_status="done"
        )
        self.assert_together(server, other, 3)
        self.assertEqual(2, len(self.log_lines("moves without a promise")))

    def test_evacuation_is_aligned(self) -> None:
        server = self.boot(self.flavor)
        self.host("beta", ONE_PAIR)
        self.computes["alpha"].stop()
        services = self.admin_api.get_services(host="alpha", binary="nova-compute")
        self.admin_api.put_service(services[0]["id"], {"forced_down": True})
        server = self._evacuate_server(
            server, expected_host="beta", expected_migration_status="done"
        )
        # The devices of the host that is down stay allocated until it is back.
        self.assert_together(server, "beta", 2)
