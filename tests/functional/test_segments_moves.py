# SPDX-License-Identifier: Apache-2.0
"""Servers that share memory and move, or whose host boots: on Nova's stack.

Memory stays on its host: who comes gets that of the host it comes to, and what no guest has any
more is given back.
"""

from __future__ import annotations

from typing import Any

import pytest
from nova import context as nova_context
from nova import objects

from tests.functional import fixtures
from tests.functional.segments_base import DEDICATED, REQUIRED, SHARED, SegmentsTest

HARD = {"reboot": {"type": "HARD"}}
IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"
FOUR = {**SHARED, "hpc:shared_memory": "4"}


def power_off(driver: Any, context: Any, instance: Any, *_: Any, **__: Any) -> str:
    """Nova's method without its copying of disks."""
    driver.power_off(instance)
    return "{}"


class SegmentMoveTest(SegmentsTest):
    """Two hosts that give memory."""

    def setUp(self) -> None:
        super().setUp()
        path = "nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off"
        self.useFixture(fixtures.fixtures.MonkeyPatch(path, power_off))
        self.node("alpha")
        self.node("beta")

    def pair(self) -> tuple[str, dict[str, Any], dict[str, Any]]:
        """A group, and its two members on alpha."""
        group = self.group()
        first, second = (self.make(group, host="alpha") for _ in range(2))
        (name,) = self.files("alpha")
        self.assertEqual([(name, 0), (name, 1)], [self.use(first), self.use(second)])
        return group, first, second

    def finish(self, server: dict[str, Any], action: str, status: str = "ACTIVE") -> None:
        self.assertEqual("", self.ask(server, {action: None}, status))

    def test_a_cold_migration_and_its_revert(self) -> None:
        group, first, second = self.pair()
        (here,) = self.files("alpha")
        self.finish(first, "migrate", "VERIFY_RESIZE")
        self.assertEqual("beta", self.host_of(first))
        (there,) = self.files("beta")
        self.assertEqual((group, (there, 0)), (there.owner, self.use(first, "beta")))
        self.assertEqual([first["id"], *7 * [""]], self.members(there, "beta"))
        # Its peer keeps the former memory, where the part is free.
        self.assertEqual((here, 1), self.use(second))
        self.assertEqual(["", second["id"], *6 * [""]], self.members(here))

        self.finish(first, "revertResize")
        self.assertEqual(("alpha", (here, 0)), (self.host_of(first), self.use(first)))
        self.assertEqual([], self.files("beta"))
        self.assertEqual([first["id"], second["id"], *6 * [""]], self.members(here))

        # Both go on together elsewhere, and nothing is left.
        for server in (first, second):
            self.finish(server, "migrate", "VERIFY_RESIZE")
            self.finish(server, "confirmResize")
        (there,) = self.files("beta")
        self.assertEqual(
            [(there, 0), (there, 1)], [self.use(first, "beta"), self.use(second, "beta")]
        )
        self.assertEqual([], self.files("alpha"))
        self.assertEqual("", self.ask(second, HARD))
        self.assertEqual((there, 1), self.use(second, "beta"))

    @pytest.mark.slow
    def test_resizes(self) -> None:
        _, first, second = self.pair()
        (here,) = self.files("alpha")
        sized, plain = self.make_flavor(FOUR), self.make_flavor(DEDICATED)
        for flavor, mib in ((sized, 4), (plain, None)):
            before = self.abi(first)
            self.ask(first, {"resize": {"flavorRef": flavor}}, "VERIFY_RESIZE")
            self.assertEqual("beta", self.host_of(first))
            use = self.use(first, "beta")
            self.assertEqual(mib, use[0].shape.part_mib if use else None)
            self.assertEqual(mib is None, self.abi(first) is None)
            self.assertEqual([use[0]] if use else [], self.files("beta"))
            # Back to what it had, beside its peer.
            self.finish(first, "revertResize")
            self.assertEqual(
                ((here, 0), before, []), (self.use(first), self.abi(first), self.files("beta"))
            )
        self.ask(first, {"resize": {"flavorRef": plain}}, "VERIFY_RESIZE")
        self.finish(first, "confirmResize")
        self.assertIsNone(self.use(first, "beta"))
        self.assertEqual((here, 1), self.use(second))
        self.assertEqual(["", second["id"], *6 * [""]], self.members(here))
        # A server that was started without gets it with its next hardware.
        self.ask(first, {"resize": {"flavorRef": sized}}, "VERIFY_RESIZE")
        self.assertEqual(("alpha", {"why": "size"}), (self.host_of(first), self.told(first)))
        self.finish(first, "revertResize")
        self.delete(second)
        self.assertEqual([], self.files("alpha"))
        self.ask(first, {"resize": {"flavorRef": sized}}, "VERIFY_RESIZE")
        self.finish(first, "confirmResize")
        self.assertEqual(4, self.use(first)[0].shape.part_mib)

    @pytest.mark.slow
    def test_an_evacuation(self) -> None:
        group, first, second = self.pair()
        self.stop_host("alpha")
        for server in (first, second):
            self._evacuate_server(server, expected_host="beta", expected_state="SHUTOFF")
        for server in (first, second):
            self.finish(server, "os-start")
        (there,) = self.files("beta")
        self.assertEqual(
            {(there, 0), (there, 1)}, {self.use(first, "beta"), self.use(second, "beta")}
        )
        self.assertEqual(group, there.owner)
        # Its host comes back: Nova ends the guests there, and their memory goes.
        self.assertEqual(1, len(self.files("alpha")))
        self.flags(
            shared_memory_dir=str(self.folder("alpha")),
            sysfs_root=str(self.sysfs["alpha"].root),
            group="hpc",
        )
        self.computes["alpha"] = self.restart_compute_service("alpha", keep_hypervisor_state=True)
        self.update("alpha")
        self.assertEqual([], self.files("alpha"))
        self.assertEqual([there], self.files("beta"))

    @pytest.mark.slow
    def test_a_shelved_server_and_a_rebuilt_one(self) -> None:
        self.flags(shelved_offload_time=0)
        _, first, second = self.pair()
        (here,) = self.files("alpha")
        self.assertEqual("", self.ask(second, {"rebuild": {"imageRef": IMAGE}}))
        self.assertEqual((here, 1), self.use(second))
        self._shelve_server(first, expected_state="SHELVED_OFFLOADED")
        self.eventually(lambda: self.assertEqual(["", second["id"], *6 * [""]], self.members(here)))
        self._shelve_server(second, expected_state="SHELVED_OFFLOADED")
        self.eventually(lambda: self.assertEqual([], self.files("alpha")))
        # They come back together, or apart: each has memory of its host.
        for server in (first, second):
            self._unshelve_server(server)
            host = self.host_of(server)
            (file,) = self.files(host)
            self.assertEqual(file, self.use(server, host)[0])
            self.assertEqual(2 << 20, self.told(server)["bytes"])

    def test_a_guest_that_was_saved_when_its_host_went_down(self) -> None:
        _, first, second = self.pair()
        (here,) = self.files("alpha")
        driver = self.computes["alpha"].driver
        context = nova_context.get_admin_context()

        def boot(server: dict[str, Any]) -> None:
            instance = objects.Instance.get_by_uuid(context, server["id"])
            driver.resume_state_on_host_boot(
                context,
                instance,
                instance.get_network_info(),
                block_device_info=None,
                share_info=objects.ShareMappingList(),
            )

        domain = self.domain(first)
        domain.managedSave(0)
        given = len(self.domains.given[first["id"]])
        with self.assertRaisesRegex(
            Exception, "cannot be resumed from its saved state.*Hard reboot the server"
        ):
            boot(first)
        # Its user reads why, and the guest is as it was.
        self.assertIn("cannot be resumed from its saved state", self.fault_messages(first)[0])
        self.assert_no_secrets(self.fault_messages(first)[0])
        self.assertEqual(1, domain.hasManagedSaveImage(0))
        self.assertEqual(given, len(self.domains.given[first["id"]]))
        self.assertEqual((here, 1), self.use(second))
        # The user decides, and a guest that is not saved comes back.
        self.assertEqual("", self.ask(first, HARD))
        self.assertEqual((here, 0), self.use(first))
        self.assertEqual(0, self.domain(first).hasManagedSaveImage(0))
        self.domain(second).destroy()
        boot(second)
        self.assertEqual((here, 1), self.use(second))


class RequiredTest(SegmentsTest):
    """The scheduler knows which hosts give memory, with tags of this project's or without."""

    def test_who_must_have_it_goes_where_it_is(self) -> None:
        self.node("alpha", pool="0")
        group = self.group()
        refused = self.make(group, REQUIRED, state="ERROR")
        self.assertIn("gives the memory of hpc:shared_memory; use a flavor", self.fault(refused))
        self.assert_no_secrets(self.fault(refused))
        self.assertEqual(0, self.failed_builds("alpha"))
        self.assertEqual({"why": "off"}, self.told(self.make(group)))
        # Room for one segment of four parts, on the NUMA node that has the CPUs.
        self.node("beta", pool="20", cpu_dedicated_set="0-3")
        given = [self.make(group, REQUIRED) for _ in range(3)]
        self.assertEqual({"beta"}, {self.host_of(server) for server in given})
        self.assertEqual(1, len(self.files("beta")))
        # More than the host has is its own to refuse, by name.
        full = self.make(self.group("b"), REQUIRED, state="ERROR")
        self.assertIn("all that it gives is taken", self.fault(full))
        # A wish that makes no sense reaches no host.
        wrong = self.make(group, {**SHARED, "hpc:shared_memory": "66"}, state="ERROR")
        self.assertIn("more than a quarter of the flavor's memory", self.fault(wrong))
        self.assertTrue(self.log_lines("HpcTopologyFilter finds no host for server"))
