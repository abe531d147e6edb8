# SPDX-License-Identifier: Apache-2.0
"""Moves of servers with devices, on one host and on two: nothing stays allocated.

Nova's own tests of a resize on one host run alone. Here other things happen to the node
while the server is between its two sets of devices: the periodic update, and claims and
reverts of other servers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from nova import context, exception, objects
from nova.compute import manager as compute_manager
from nova.tests.functional.api.client import OpenStackApiNotFoundException

from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

#: Six GPUs: two servers, each with its former and its new one, and a third.
HOST = fixtures.Shape((fixtures.Switch(gpus=6),), cores=3)
CPUS = "1-5,7-11"
#: Flavors without and with a key of this project's; a dedicated CPU each.
STOCK = {"pci_passthrough:alias": "gpu:1", "hw:cpu_policy": "dedicated"}
OURS = {**STOCK, "hw:pci_numa_affinity_policy": "preferred", "hpc:affinity": "host"}
OVER = "reverted", "confirmed", "error", "failed"


class MovesTest(DriverTest):
    """Servers whose moves are disturbed."""

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.known: set[str] = set()
        self.flags(allow_resize_to_same_host=True)
        self.useFixture(
            fixtures.fixtures.MockPatch(
                "nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off",
                return_value="{}",
            )
        )
        self.place("alpha")

    def place(self, name: str) -> None:
        self.host(name, HOST, cpu_dedicated_set=CPUS)

    def allocated(self, consumer: str) -> dict[str, Any]:
        return dict(self.placement.get(f"/allocations/{consumer}").body["allocations"])

    def held(self, server: dict[str, Any]) -> dict[str, int]:
        """Resource class -> amount that a server has, of all hosts."""
        found: dict[str, int] = {}
        for each in self.allocated(server["id"]).values():
            for name, amount in each["resources"].items():
                found[name] = found.get(name, 0) + amount
        return found

    def left(self) -> dict[str, Any]:
        """Migration -> what it holds in Placement, of all that were ever asked for."""
        # Nova shows none of a server that is deleted.
        now = self.api.api_get("/os-migrations").body["migrations"]
        self.known |= {each["uuid"] for each in now}
        found = {uuid: self.allocated(uuid) for uuid in self.known}
        return {uuid: each for uuid, each in found.items() if each}

    def body(self, specs: dict[str, str]) -> dict[str, Any]:
        return {"resize": {"flavorRef": self.make_flavor(specs, memory_mb=128)}}

    def act(self, server: dict[str, Any], body: dict[str, Any], status: str) -> None:
        self.api.post_server_action(server["id"], body)
        idle = {"OS-EXT-STS:task_state": None, "status": status}
        self._wait_for_server_parameter(server, idle)

    def before(self, name: str, disturb: Callable[[], None]) -> None:
        """Let something happen just before one of the compute manager's methods, once."""
        plain = getattr(compute_manager.ComputeManager, name)
        todo = [disturb]

        @functools.wraps(plain)
        def late(manager: Any, *args: Any, **keywords: Any) -> Any:
            while todo:
                todo.pop()()
            return plain(manager, *args, **keywords)

        self.useFixture(
            fixtures.fixtures.MonkeyPatch(f"{compute_manager.__name__}.ComputeManager.{name}", late)
        )

    def clean(self, *servers: dict[str, Any]) -> None:
        """The servers have what their flavors say, then they are deleted, and all is free."""
        # A confirm ends after the server is ACTIVE.
        self.eventually(lambda: self.assertEqual({}, self.left()))
        for host in self.computes:
            self.update(host)  # which heals what is allocated
        for server in servers:
            found = self.held(server)
            self.assertEqual((1, 1), (found["CUSTOM_HPC_GPU"], found["PCPU"]), found)
            self._delete_server(server)
        self.update("alpha")
        self.assert_all_free("alpha")
        self.assertEqual({}, self.left())


#: Methods of the compute manager; before each begins, a resize is at another point.
ON_THE_WAY = "_prep_resize", "_resize_instance", "_finish_resize", "_complete_volume_attachments"
BACK = "revert_resize", "_finish_revert_resize", "_revert_allocation", "_delete_stashed_flavor_info"
FORTH = "confirm_resize", "_confirm_resize", "_delete_allocation_after_move"


class SameHostTest(MovesTest):
    """A resize on one host, with updates in its gaps."""

    def setUp(self) -> None:
        super().setUp()
        self.errors: list[str] = []

    @property
    def tracker(self) -> Any:
        return self.computes["alpha"].manager.rt

    def pinned(self) -> list[int]:
        """The dedicated CPUs that somebody has, by what claims of this node go by."""
        topology = objects.NUMATopology.obj_from_db_obj(
            self.tracker.compute_nodes["alpha"].numa_topology
        )
        return sorted(cpu for cell in topology.cells for cpu in cell.pinned_cpus)

    def look(self, when: str = "") -> None:
        """The periodic update, which finds what there was.

        Not by the manager, which logs most errors and goes on.
        """
        before = self.pinned()
        try:
            self.tracker.update_available_resource(context.get_admin_context(), "alpha")
        except Exception as error:
            self.errors.append(f"{when}: {type(error).__name__}: {error}")
        if self.pinned() != before:
            self.errors.append(f"{when}: CPUs {before}, then {self.pinned()}")

    def look_before(self, names: Iterable[str]) -> None:
        for name in names:
            self.before(name, functools.partial(self.look, name))

    def reverted(self, specs: dict[str, str]) -> None:
        server = self.boot(self.make_flavor(specs))
        devices = self.devices_of(server)
        self.look_before((*ON_THE_WAY, *BACK))
        self.act(server, self.body(specs), "VERIFY_RESIZE")
        self.act(server, {"revertResize": None}, "ACTIVE")
        self.assertEqual([], self.errors)
        # Nor did an update go on only because each device was tried by itself.
        self.assertNotIn("Placement refuses", self.stdlog.logger.output)
        self.assertEqual(
            [each.address for each in devices], [each.address for each in self.devices_of(server)]
        )
        self.clean(server)

    def test_updates_around_a_revert_stock(self) -> None:
        self.reverted(STOCK)

    def test_updates_around_a_revert_ours(self) -> None:
        self.reverted(OURS)

    def test_updates_around_a_confirm(self) -> None:
        server = self.boot(self.make_flavor(STOCK))
        self.look_before((*ON_THE_WAY, *FORTH))
        self.act(server, self.body(STOCK), "VERIFY_RESIZE")
        self.act(server, {"confirmResize": None}, "ACTIVE")
        self.eventually(lambda: self.assertEqual({}, self.left()))
        self.assertEqual([], self.errors)
        self.clean(server)

    def test_a_confirm_after_one_update_in_between(self) -> None:
        """The second resize, after the first was reverted; no other update repairs anything."""
        server = self.boot(self.make_flavor(STOCK))
        self.act(server, self.body(STOCK), "VERIFY_RESIZE")
        self.act(server, {"revertResize": None}, "ACTIVE")
        self.look_before(["_finish_resize"])
        self.act(server, self.body(STOCK), "VERIFY_RESIZE")
        self.api.post_server_action(server["id"], {"confirmResize": None})
        self._wait_for_migration_status(server, ["confirmed", "error"])
        self.eventually(lambda: self.assertIn(self._status(server), ("ACTIVE", "ERROR")))
        self.assertEqual([], self.fault_messages(server))
        self.assertEqual([], self.errors)
        self.clean(server)

    @pytest.mark.slow
    def test_a_cpu_that_a_guest_still_has_is_nobody_elses(self) -> None:
        server = self.boot(self.make_flavor(STOCK))
        others: list[dict[str, Any]] = []
        flavor = self.make_flavor({"hw:cpu_policy": "dedicated"})

        def crowd() -> None:
            self.look("_resize_instance")
            for _ in range(8):  # all that are free
                asked = self._build_server(flavor_id=flavor, networks="none")
                other = self.api.post_server({"server": asked})
                self.eventually(
                    lambda other=other: self.assertNotEqual("BUILD", self._status(other))
                )
                others.append(other)

        self.before("_resize_instance", crowd)
        before = self.cpus(server)
        self.act(server, self.body(STOCK), "VERIFY_RESIZE")
        theirs = [cpu for other in others for cpu in self.cpus(other)]
        self.assertEqual(8, len(set(theirs)), theirs)
        self.assertEqual(set(), set(theirs) & {*before, *self.cpus(server)})
        self.assertEqual([], self.errors)
        self.act(server, {"revertResize": None}, "ACTIVE")
        self.assertEqual(before, self.cpus(server))
        for other in others:
            self._delete_server(other)
        self.clean(server)

    def test_a_stock_flavor_gets_another_device_than_was_chosen(self) -> None:
        """What the scheduler has chosen falls ill before the claim; as in stock Nova."""
        server = self.boot(self.make_flavor(STOCK))
        taken: list[str] = []

        def fall_ill() -> None:
            names = self.placement.get("/resource_providers", version="1.14").body
            for each in names["resource_providers"]:
                address = each["name"].partition("_")[2]
                if address and each["uuid"] in self.allocated(server["id"]):
                    taken.append(address)
                    self.quarantine("alpha", address, "overheats")
            self.update("alpha")

        self.before("_prep_resize", fall_ill)
        self.act(server, self.body(STOCK), "VERIFY_RESIZE")
        (ill,) = taken
        self.assertNotIn(ill, [each.address for each in self.devices_of(server)])
        self.assertEqual(1, len(self.domain_devices(server)))

    def cpus(self, server: dict[str, Any]) -> list[int]:
        """The dedicated CPUs that a server has."""
        cells = self.instance(server).numa_topology.cells
        return sorted(cpu for cell in cells for cpu in cell.cpu_pinning.values())

    def test_a_server_is_created_in_the_gap(self) -> None:
        server = self.boot(self.make_flavor(STOCK))
        self.act(server, self.body(STOCK), "VERIFY_RESIZE")
        others: list[dict[str, Any]] = []
        flavor = self.make_flavor({"hw:cpu_policy": "dedicated"})

        def create() -> None:
            asked = self._build_server(flavor_id=flavor, networks="none")
            other = self.api.post_server({"server": asked})
            self.eventually(lambda: self.assertNotEqual("BUILD", self._status(other)))
            others.append(self.api.get_server(other["id"]))

        self.before("_revert_allocation", create)
        self.act(server, {"revertResize": None}, "ACTIVE")
        self.assertEqual(["ACTIVE"], [each["status"] for each in others])
        self.clean(server)

    def _status(self, server: dict[str, Any]) -> str:
        return str(self.api.get_server(server["id"])["status"])

    def test_another_server_is_reverted_in_the_gap(self) -> None:
        first, second = (self.boot(self.make_flavor(STOCK)) for _ in range(2))
        for each in (first, second):
            self.act(each, self.body(STOCK), "VERIFY_RESIZE")
        revert = {"revertResize": None}
        self.before("_revert_allocation", lambda: self._revert_now(second))
        self.act(first, revert, "ACTIVE")
        self._wait_for_server_parameter(second, {"OS-EXT-STS:task_state": None})
        self.assertEqual("ACTIVE", self._status(second))
        self.clean(first, second)

    def _revert_now(self, server: dict[str, Any]) -> None:
        self.api.post_server_action(server["id"], {"revertResize": None})
        self._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})


class LeftOverTest(MovesTest):
    """An allocation of a migration that is over, as earlier releases have left some."""

    def allocate(self, uuid: str, held: dict[str, Any]) -> None:
        again = {
            "allocations": {each: {"resources": one["resources"]} for each, one in held.items()},
            "project_id": "project",
            "user_id": "user",
            "consumer_generation": None,
        }
        answer = self.placement.put(f"/allocations/{uuid}", again, version="1.28")
        self.assertEqual(204, answer.status, answer.body)

    def reverted(self) -> tuple[dict[str, Any], str, dict[str, Any]]:
        """A server whose resize was reverted; the migration, and what it had."""
        server = self.boot(self.make_flavor(STOCK))
        self.act(server, self.body(STOCK), "VERIFY_RESIZE")
        ((uuid, held),) = self.left().items()
        self.act(server, {"revertResize": None}, "ACTIVE")
        return server, uuid, held

    def test_it_is_removed_when_its_server_is_deleted(self) -> None:
        server, uuid, held = self.reverted()
        self._delete_server(server)
        self.assertEqual({}, self.left())
        self.allocate(uuid, held)
        self.update("alpha")  # asks Placement
        self.update("alpha")  # sees it, and waits
        self.assertEqual({uuid: held.keys()}, {k: one.keys() for k, one in self.left().items()})
        self.update("alpha")
        self.assertEqual({}, self.left())
        self.update("alpha")
        self.assertEqual((), self.stats_of("alpha").notes)

    def test_it_is_removed_when_its_server_has_other_devices(self) -> None:
        """One that was left by a confirm: the server lives and has what it should."""
        server = self.boot(self.make_flavor(STOCK))
        self.act(server, self.body(STOCK), "VERIFY_RESIZE")
        ((uuid, held),) = self.left().items()
        self.act(server, {"confirmResize": None}, "ACTIVE")
        self.eventually(lambda: self.assertEqual({}, self.left()))
        self.update("alpha")
        self.allocate(uuid, held)
        for _ in range(3):
            self.update("alpha")
        self.assertEqual({}, self.left())
        self.clean(server)

    def test_one_that_nobody_knows_is_named_with_the_command_that_removes_it(self) -> None:
        server, _, held = self.reverted()
        self._delete_server(server)
        uuid = "6f6f6f6f-0000-4000-8000-00000000000f"
        self.known.add(uuid)
        self.allocate(uuid, held)
        for _ in range(4):
            self.update("alpha")
        self.assertEqual({uuid}, self.left().keys())
        command = f"openstack resource provider allocation delete {uuid}"
        (note,) = [each for each in self.stats_of("alpha").notes if uuid in each]
        self.assertIn(command, note)
        self.placement.delete(f"/allocations/{uuid}")
        for _ in range(2):
            self.update("alpha")
        self.assertEqual((), self.stats_of("alpha").notes)


RT = "nova.compute.resource_tracker.ResourceTracker"
MANAGER = "nova.compute.manager.ComputeManager"
DRIVER = "nova.virt.libvirt.driver.LibvirtDriver"
#: What fails -> whether that is on the way there, at the confirm or at the revert.
STEPS = {
    f"{RT}._move_claim": "move",
    f"{DRIVER}.migrate_disk_and_power_off": "move",
    f"{DRIVER}.finish_migration": "move",
    f"{DRIVER}.confirm_migration": "confirmResize",
    f"{RT}.drop_move_claim_at_source": "confirmResize",
    f"{MANAGER}._delete_allocation_after_move": "confirmResize",
    f"{DRIVER}.destroy": "revertResize",
    f"{RT}.drop_move_claim_at_dest": "revertResize",
    f"{MANAGER}._revert_allocation": "revertResize",
    f"{DRIVER}.finish_revert_migration": "revertResize",
}


def _fails(*args: Any, **keywords: Any) -> None:
    raise exception.NovaException("injected")


@pytest.mark.slow
class FailingTest(MovesTest):
    """A step of a move fails: what a migration keeps is named, and gone with its server."""

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.make_flavor(STOCK))

    def failing(self, path: str, body: dict[str, Any]) -> None:
        when = STEPS[path]
        if when != "move":
            self.act(self.server, body, "VERIFY_RESIZE")
        with fixtures.fixtures.MonkeyPatch(path, _fails):
            action = body if when == "move" else {when: None}
            self.api.post_server_action(self.server["id"], action)
            self._wait_for_migration_status(self.server, ["error", "failed"])
            self._wait_for_server_parameter(self.server, {"OS-EXT-STS:task_state": None})
        self.left()
        self.assertEqual(1, len(self.known))
        self.look()
        # While the server lives.
        notes = [note for host in self.computes for note in self.stats_of(host).notes]
        for each in self.left():
            self.assertTrue(any(each in note for note in notes), (path, each, notes))
        print(f"RESULT: {self.id().rpartition('.')[2]}: {notes}")
        self.eventually(self._deleted)
        self.look()
        self.assertEqual({}, self.left())
        self.assertEqual({}, self.allocated(self.server["id"]))
        for host in self.computes:
            self.assert_all_free(host)
            self.assertEqual((), self.stats_of(host).notes)

    def look(self) -> None:
        for _ in range(4):  # the first asks Placement, two have to see the same, one is after
            for host in self.computes:
                self.update(host)

    def _deleted(self) -> None:
        """Its user deletes the server, again if need be."""
        with contextlib.suppress(OpenStackApiNotFoundException):
            self.api.delete_server(self.server["id"])
            self.api.get_server(self.server["id"])
            self.fail("it is still there")


def _test(path: str, hosts: int, body: dict[str, Any] | None) -> Callable[[FailingTest], None]:
    def test(self: FailingTest) -> None:
        if hosts == 2:
            self.place("beta")
            self.flags(allow_resize_to_same_host=False)
        self.failing(path, body or self.body(STOCK))

    return test


for _path in STEPS:
    _name = _path.rpartition(".")[2].strip("_")
    setattr(FailingTest, f"test_resize_on_one_host_{_name}", _test(_path, 1, None))
    setattr(FailingTest, f"test_resize_on_two_hosts_{_name}", _test(_path, 2, None))
    setattr(FailingTest, f"test_migration_{_name}", _test(_path, 2, {"migrate": None}))
