# SPDX-License-Identifier: Apache-2.0
"""A server's NVLink partition is active while it has its GPUs, and nobody else's."""

from __future__ import annotations

from pathlib import Path

import nova.conf
from nova import exception

from tests.fabric_manager import FabricManager, library
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from virt_driver_patches.driver.reading import ReadingSource
from virt_driver_patches.driver.tenancy import steps_of

GPU = {"pci_passthrough:alias": "gpu:1"}
PAIR = {
    "pci_passthrough:alias": "gpu:2",
    "hpc:affinity": "numa",
    "hpc:nvlink": "required",
}
#: Physical id -> address; the links cross the switches.
GPUS = {1: "0000:40:00.0", 2: "0000:40:01.0", 3: "0000:41:00.0", 4: "0000:41:01.0"}
SETS = {1: "left:2", 3: "left:2", 2: "right:2", 4: "right:2"}
LEFT = {GPUS[1], GPUS[3]}
SHAPE = fixtures.two_switches(gpus=2)


class NvlinkTest(DriverTest):
    def start(self, name="alpha", partitions=None, switch=None, **values) -> FabricManager:
        """A host with a manager of its own; *values* are of ``[hpc]nvlink_*``."""
        entries = SHAPE.device_spec()
        tags = {GPUS[number]: text for number, text in SETS.items()}
        for entry in entries:
            entry["hpc_nvlink"] = tags[entry["address"]]
            if entry["address"] == switch:
                entry["hpc_role"] = "nvswitch"
        folder = Path(self.useFixture(fixtures.fixtures.TempDir()).path)
        manager = FabricManager(folder, dict.fromkeys(GPUS, "-"), partitions)
        options = {
            "backend": "fabric-manager",
            "address": str(manager.path),
            "library": library(),
            "gpus": {str(number): address for number, address in GPUS.items()},
            **values,
        }
        self.flags(**{f"nvlink_{key}": value for key, value in options.items()}, group="hpc")
        self.host(name, SHAPE, entries)
        return manager

    def restart(self, name: str = "alpha") -> None:
        self.computes[name] = self.restart_compute_service(name, keep_hypervisor_state=True)

    def recorded(self, name: str = "alpha") -> dict[int, str]:
        state = self.computes[name].driver.hpc_node.tenancy.step("nvlink").state()
        return {key: one.server for key, one in state.tenancies.items()}

    def addresses(self, server) -> set[str]:
        return {device.address for device in self.devices_of(server)}

    def test_a_life(self) -> None:
        """Made active before the domain is, kept through restarts, gone with the server."""
        manager = self.start()
        driver = self.computes["alpha"].driver
        seen = []
        create = driver._create_guest

        def create_guest(*args: object, **keywords: object):
            seen.append(set(manager.active))
            return create(*args, **keywords)

        self.useFixture(fixtures.fixtures.MockPatchObject(driver, "_create_guest", create_guest))
        pair = self.boot(self.make_flavor(PAIR))
        self.assertEqual([{1 if self.addresses(pair) == LEFT else 2}], seen)
        mine = manager.active
        single = self.boot(self.make_flavor(GPU))
        (second,) = manager.active - mine
        (address,) = self.addresses(single)
        self.assertEqual({3: 1, 4: 2, 5: 3, 6: 4}[second], {v: k for k, v in GPUS.items()}[address])
        self.assertEqual({*mine, second}, set(self.recorded()))
        manager.calls()
        self._reboot_server(pair, hard=True)
        self._stop_server(pair)
        self._start_server(pair)
        self._rebuild_server(pair, "155d900f-4e14-4e4c-a73d-069cbf4541e6")
        self.update("alpha")
        # nova-compute is restarted: it knows what it had made.
        self.restart()
        self.update("alpha")
        self.assertEqual([], manager.calls())
        # So is the manager; it waits for the list.
        manager.restart()
        self.update("alpha")
        self.assertEqual([" ".join(["set", *map(str, sorted({*mine, second}))])], manager.calls())
        self.assertEqual({*mine, second}, manager.active)
        # And both at once.
        manager.restart()
        self.restart()
        self.assertEqual({*mine, second}, manager.active)
        # Another time with a new fabric; the server is started again.
        manager.start_afresh()
        self.update("alpha")
        self.assertTrue(self.log_lines(r"NVLink partition \d of server .* is not active"))
        self._reboot_server(pair, hard=True)
        self.assertEqual(mine, manager.active)
        self._delete_server(pair)
        self._delete_server(single)
        self.assertEqual(set(), manager.active)
        self.assertEqual({}, self.recorded())
        self.update("alpha")
        self.assert_all_free("alpha")

    def test_a_set_that_is_no_partition(self) -> None:
        """What the tags promise and the manager does not have is refused, and the server stays."""
        manager = self.start(partitions={0: (1, 2, 3, 4), 3: (1,), 4: (2,), 5: (3,), 6: (4,)})
        self.assertTrue(self.log_lines("NVLink set of this node is no NVLink partition"))
        server = self.boot(self.make_flavor(PAIR), state="ERROR")
        (fault,) = [text for text in self.fault_messages(server) if "NVLink" in text][:1]
        self.assertIn("No NVLink partition has exactly the 2 GPUs", fault)
        self.assert_no_secrets(fault)
        self._delete_server(server)
        self.assertEqual(0, self.failed_builds("alpha"))
        self.assertEqual(set(), manager.active)
        # Without the promise each GPU is alone.
        plain = self.boot(self.make_flavor({**PAIR, "hpc:nvlink": "none"}))
        self.assertEqual(2, len(manager.active))
        # The manager loses one of them while the server runs: no restart, and no harm.
        manager.start_afresh()
        gone = sorted(self.recorded())[0]
        lines = [line for line in manager._lines() if not line.startswith(f"part {gone} ")]
        manager._write(line for line in lines if not line.startswith("part 0 "))
        self.refused_action(plain, {"reboot": {"type": "HARD"}})
        plain = self._wait_for_state_change(plain, "ACTIVE")
        self.assertIsNone(plain["OS-EXT-STS:task_state"])
        self.assertEqual(set(), manager.active)

    def test_a_manager_that_hangs_or_fails(self) -> None:
        manager = self.start(timeout=1.0)
        manager.set("hang", "fmActivateFabricPartition")
        server = self.boot(self.make_flavor({**PAIR, "hpc:nvlink": "required"}), state="ERROR")
        (fault,) = [text for text in self.fault_messages(server) if "NVLink" in text][:1]
        self.assert_no_secrets(fault)
        self.assertTrue(self.log_lines("did not answer within 3 seconds"))
        self._delete_server(server)
        manager.clear("hang")
        self.update("alpha")
        self.assertEqual({}, self.recorded())
        # A server is deleted while the manager is away: its GPUs wait for it.
        server = self.boot(self.make_flavor(PAIR))
        manager.path.rename(manager.path.with_name("away"))
        self._delete_server(server)
        self.update("alpha")
        self.assertEqual({}, self.tracked("alpha"))
        self.assertIn("cannot be reached", self.stats_of("alpha").withheld[GPUS[1]])
        manager.path.with_name("away").rename(manager.path)
        self.assertEqual(1, len(manager.active))
        self.update("alpha")
        self.assertEqual(set(), manager.active)
        self.assert_all_free("alpha")

    def test_a_node_that_cannot_keep_the_promise_does_not_start(self) -> None:
        manager = self.start(switch=GPUS[4])
        self.assertTrue(self.log_lines(f"offers NVSwitches to servers, .*: {GPUS[4]};"))
        driver = self.computes["alpha"].driver
        for line, why in (
            (("mode", "bare"), "set FABRIC_MODE=1"),
            (("mode", "starting"), "not configured yet"),
            (("fail", "fmConnect", -9), "it cannot be reached"),
        ):
            manager.set(*line)
            with self.assertRaisesRegex(exception.InvalidConfiguration, why):
                driver.init_host("alpha")
        self.flags(nvlink_gpus={}, nvlink_address="10.0.0.1:6666", group="hpc")
        with self.assertRaisesRegex(exception.InvalidConfiguration, "nvlink_gpus"):
            list(steps_of(nova.conf.CONF, ReadingSource.from_config(nova.conf.CONF)))
