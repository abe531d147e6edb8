# SPDX-License-Identifier: Apache-2.0
"""The stage between two servers, on Nova's own stack: withheld before Nova frees, offered after."""

from __future__ import annotations

import json
import signal

import attrs
import pytest
from nova import exception
from nova.virt.libvirt.driver import LibvirtDriver

from nova_hpc.tenancy.stage import device_stage, process
from nova_hpc.tenancy.stage.device_stage import StageMode, StagePhase
from nova_hpc.tenancy.watch import owner_report
from nova_hpc.wire.ledger import DeviceState
from tests.functional.cleaning_base import FIRST, GPU, ONE, CleaningBase


class CleaningTest(CleaningBase):
    # -- the ordinary life ------------------------------------------------------------

    def test_a_device_is_withheld_before_nova_frees_it(self) -> None:
        self.begin()
        server = self.boot(self.make_flavor(GPU))
        self.assertIs(StagePhase.DUE, self.entry().phase)
        self.update("alpha")
        self.assertEqual({FIRST: "allocated"}, self.tracked("alpha"))
        seen = []
        client = self.computes["alpha"].manager.reportclient
        plain = client.delete_allocation_for_instance

        def delete(*args: object, **keywords: object) -> object:
            # Its inventory is reserved while its allocation is still there.
            seen.append(self.reserved_in_placement("alpha"))
            return plain(*args, **keywords)

        client.delete_allocation_for_instance = delete
        self._delete_server(server)
        self.assertEqual([{FIRST: 1}], seen)
        self.assertEqual([], self.vms())  # delete has waited for nothing
        self.assertEqual({}, self.given_by_placement("alpha"))
        refused = self.boot(self.make_flavor(GPU), "ERROR")
        self._delete_server(refused)
        self.update("alpha")
        self.assertNotIn(FIRST, self.tracked("alpha"))
        self.assertIn("waits to be cleaned", self.reason())
        self.assertIn(FIRST, self.in_placement("alpha"))
        # The stage, in a VM that Nova knows nothing of.
        self.stage("alpha").attend()
        self.assertIs(StagePhase.CLEAN, self.entry().phase)
        self.assertEqual([], self.vms())
        self.update("alpha")
        self.assertEqual({FIRST: "available"}, self.tracked("alpha"))
        self.assertEqual({FIRST: 1}, self.given_by_placement("alpha"))
        self.assertEqual("", self.reason())
        device = self.ledger("alpha").device(FIRST)
        self.assertEqual((server["id"], None), (device.last_server, device.server))
        print(f"RESULT: cleaned in {self.entry().seconds} s")
        self.boot(self.make_flavor(GPU))

    def test_a_restart_is_no_end(self) -> None:
        self.begin()
        server = self.boot(self.make_flavor(GPU))
        self._reboot_server(server, hard=True)
        self._stop_server(server)
        self._start_server(server)
        self.update("alpha")
        self.stage("alpha").attend()
        self.assertEqual(server["id"], self.entry().server)
        self.assertIs(StagePhase.DUE, self.entry().phase)

    @pytest.mark.slow
    def test_a_reported_device_is_tested_and_the_verdict_decides(self) -> None:
        """From the owner's tag to the test after the server's end; a word withholds nothing."""
        self.flags(reported_checks={"gpu": "burn"}, group="hpc")
        self.begin()
        self.api.microversion = "2.64"
        for does, state in (
            ("pass", DeviceState.OFFERED),
            ("unable burn", DeviceState.OFFERED),
            ("refuse burn", DeviceState.QUARANTINED),
        ):
            self.does(does)
            server = self.boot(self.make_flavor(GPU))
            self.api.api_put(f"/servers/{server['id']}/tags", {"tags": ["hpc-report=slow"]})
            self._delete_server(server)
            device = self.ledger("alpha").device(FIRST)
            self.assertTrue(owner_report.is_unjudged(device, server["id"]))
            self.update("alpha")
            self.stage("alpha").attend()
            device = self.ledger("alpha").device(FIRST)
            self.assertIs(state, device.state, does)
            # A test without an answer has checked nothing.
            unjudged = owner_report.is_unjudged(device, server["id"])
            self.assertIs(does == "unable burn", unjudged)
            self.assertEqual([], self.vms())
            self.update("alpha")
            self.assertEqual(state is DeviceState.OFFERED, FIRST in self.tracked("alpha"))
        self.assertIn("the test after its owner's report: BAR 0", self.reason())
        # The same hardware fault is not looked for where no owner has reported one.
        self.assertEqual(
            1, len(self.log_lines("test of reported PCI devices .* burn|cannot be run"))
        )

    # -- what can go wrong --------------------------------------------------------------

    def _ended(self) -> None:
        self.begin()
        server = self.boot(self.make_flavor(GPU))
        self._delete_server(server)
        self.update("alpha")

    def test_a_device_that_does_not_pass(self) -> None:
        self._ended()
        self.does("refuse")
        self.stage("alpha").attend()
        self.update("alpha")
        self.assertIs(DeviceState.QUARANTINED, self.ledger("alpha").device(FIRST).state)
        self.assertIn("zeros are not read as written", self.reason())
        self.assertEqual({}, self.given_by_placement("alpha"))

    def test_a_vm_that_gives_no_answer(self) -> None:
        for what, words in (
            ("die", "has ended without an answer"),
            ("fail", "Cannot access kernel"),
            ("unable", "check foo cannot be run"),
        ):
            with self.subTest(what):
                if not self.computes:
                    self._ended()
                self.does(what)
                self.stage("alpha").attend()
                self.update("alpha")
                self.assertIs(DeviceState.SUSPECT, self.ledger("alpha").device(FIRST).state)
                self.assertIn(words, self.reason())
                self.assertEqual([], self.vms())
                # An hour later.
                self.ledger_file("alpha").change(
                    lambda now: now.put({FIRST: attrs.evolve(now.device(FIRST), trial=None)})
                )
        self.does("pass")
        self.stage("alpha").attend()
        self.update("alpha")
        self.assertEqual({FIRST: "available"}, self.tracked("alpha"))

    def test_a_node_out_of_its_reserve(self) -> None:
        self._ended()
        (self.sysfs["alpha"].root / "proc/meminfo").write_text("MemAvailable: 1000 kB\n")
        self.stage("alpha").attend()
        self.update("alpha")
        self.assertIn("[DEFAULT]reserved_host_memory_mb", self.reason())
        self.assertIs(DeviceState.SUSPECT, self.ledger("alpha").device(FIRST).state)

    def test_a_service_that_was_killed(self) -> None:
        """The VM is of another life: it is ended, and the device cleaned anew."""
        self._ended()
        vm = "0d6a4f6e-1111-4222-8333-444455556666"
        xml = (
            f"<domain><uuid>{vm}</uuid><metadata><x:service-vm "
            "xmlns:x='urn:nova-hpc:service-vm:1'/></metadata></domain>"
        )
        (self.folder / f"{vm}.domain").write_text(f"0\n{xml}")
        self.ledger_file("alpha").change(
            lambda now: now.put(
                {
                    FIRST: attrs.evolve(
                        now.device(FIRST),
                        server=vm,
                        stage=device_stage.begin_stage(self.entry(), vm, 0.0).dumps(),
                    )
                }
            )
        )
        self.restart_compute_service("alpha")
        self.fake(self.computes["alpha"].driver.hpc_node)
        self.update("alpha")
        self.assertIn(f"is being cleaned in service VM {vm}", self.reason())
        self.stage("alpha").attend()
        self.assertEqual([], self.vms())
        self.stage("alpha").attend()
        self.update("alpha")
        self.assertIs(StagePhase.CLEAN, self.entry().phase)
        self.assertEqual({FIRST: "available"}, self.tracked("alpha"))

    def test_a_child_that_is_killed(self) -> None:
        self._ended()
        step = self.stage("alpha")
        service = step.runners[StageMode.SERVICE_VM]

        def execute(argv: list[str], timeout: float, more: object = None) -> str:
            return process.run_stage_program(
                ["/bin/sh", "-c", f"kill -{signal.SIGKILL} $$"], timeout
            )

        step.runners[StageMode.SERVICE_VM] = attrs.evolve(service, execute=execute)
        step.attend()
        # Nobody can say whether the VM is gone: the next look asks again.
        self.assertIs(StagePhase.BEGUN, self.entry().phase)
        step.runners[StageMode.SERVICE_VM] = service
        step.attend()
        step.attend()
        self.assertIs(StagePhase.CLEAN, self.entry().phase)

    # -- options ------------------------------------------------------------------------

    def test_options_that_cannot_be_used(self) -> None:
        self.begin()
        node = self.computes["alpha"].driver.hpc_node
        for options, words in (
            ({"clean_checks": {}}, "clean_checks names no check for role gpu"),
            ({"clean_vm_kernel": ""}, "clean_vm_kernel"),
            ({"clean_devices": False}, "needs [hpc]clean_devices"),
            ({"reported_checks": {"nic": "burn"}}, "reported_checks names role nic, which has no"),
            ({"clean_pins": ["{"]}, "clean_pins"),
            ({"clean_pins": ['{"role": "a"}', '{"role": "a"}']}, "given twice"),
        ):
            with self.subTest(words):
                self.flags(group="hpc", **options)
                del node.__dict__["tenancy"]
                error = self.assertRaises(exception.InvalidConfiguration, lambda: node.tenancy)
                self.assertIn(words, str(error))
                for name in options:
                    self.flags(group="hpc", **{name: _DEFAULTS.get(name, [])})
                self.stage_of("gpu:service-vm")
                _ = node.tenancy

    def test_a_mistyped_role_is_refused_by_its_name(self) -> None:
        """The devices of the right one would be given uncleaned, and nobody would know."""
        tag = {"role": "gpuu"}
        for options, words in (
            ({"clean_stage": {"gpu": "service-vm", "gpuu": "host"}}, "clean_stage names the role"),
            ({"clean_stage": {"gpuu": "none"}}, "clean_stage names the role"),
            ({"clean_checks": {"gpu": "memory", "gpuu": "memory"}}, "clean_checks names the role"),
            ({"clean_drivers": {"gpuu": "nvidia"}}, "clean_drivers names the role"),
            ({"reported_checks": {"gpuu": "burn"}}, "reported_checks names the role"),
            ({"clean_pins": [json.dumps(tag)]}, "clean_pins names the role"),
        ):
            with self.subTest(str(options)):
                self.flags(group="hpc", **options)
                error = self.assertRaises(exception.InvalidConfiguration, self.begin)
                self.assertIn(f"[hpc]{words} gpuu, which neither", str(error))
                self.assertRegex(str(error), r"the roles are .*\bgpu, ")
                self.flags(group="hpc", clean_drivers={}, clean_pins=[], reported_checks={})
                self.stage_of("gpu:service-vm")
        # A role that its devices have kept, and that the configuration has no more.
        self.flags(group="hpc", device_role=['{"role": "accel", "vendor_id": "10de"}'])
        self.begin()
        self.assertIsNotNone(self.stage("alpha"))

    def test_without_the_option_nothing_changes(self) -> None:
        self.stage_of("")
        self.host("alpha", ONE)
        self.assertIsNone(self.computes["alpha"].driver.hpc_node.tenancy.step("stage"))
        self.assertTrue(issubclass(type(self.computes["alpha"].driver), LibvirtDriver))
        server = self.boot(self.make_flavor(GPU))
        self._delete_server(server)
        self.assertIsNone(self.ledger("alpha").device(FIRST).stage)


_DEFAULTS = {
    **{"clean_devices": True, "clean_pins": [], "clean_checks": {}, "clean_vm_kernel": ""},
    "reported_checks": {},
}
