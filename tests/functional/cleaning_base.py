# SPDX-License-Identifier: Apache-2.0
"""Hosts with a stage between two servers, whose service VMs are folders."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import attrs

from nova_hpc.tenancy.stage import device_stage, process
from nova_hpc.tenancy.stage.device_stage import StageMode
from nova_hpc.tenancy.stage.step import StageStep
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

GPU = {"pci_passthrough:alias": "gpu:1"}
FIRST = "0000:40:00.0"
ONE = fixtures.Shape((fixtures.Switch(gpus=1),))
_FAKE = Path(__file__).parents[1] / "unit/tenancy/fake_libvirt"


class CleaningBase(DriverTest):
    """The process that has the service VM is the real one; its libvirt is a folder."""

    def setUp(self) -> None:
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.fixtures.TempDir()).path)
        (self.folder / "image").write_text("")
        self.does("pass")
        # Tests say themselves when it is attended to what is due.
        self.useFixture(fixtures.fixtures.MockPatchObject(StageStep, "_wake"))
        self.stage_of("gpu:service-vm")

    def does(self, what: str) -> None:
        (self.folder / "does").write_text(what)

    def stage_of(self, text: str) -> None:
        modes = dict([text.split(":")]) if text else {}
        self.flags(
            clean_stage=modes,
            clean_checks={"gpu": "memory"},
            clean_vm_kernel=str(self.folder / "image"),
            clean_vm_initrd=str(self.folder / "image"),
            clean_vm_memory=64,
            clean_timeout=20.0,
            group="hpc",
        )

    def stage(self, name: str) -> StageStep:
        """The step, which attends when a test says so."""
        found = self.computes[name].driver.hpc_node.tenancy.step("stage")
        assert isinstance(found, StageStep)
        return found

    def begin(self, name: str = "alpha") -> None:
        """Start a host whose service VMs are those of the folder."""

        def meminfo(tree: object) -> None:
            path = tree.root / "proc/meminfo"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("MemAvailable: 4000000 kB\n")

        self.host(name, ONE, before=meminfo)
        node = self.computes[name].driver.hpc_node
        self.fake(node)
        # Nobody knows who had it: what is due at the first start.
        self.assertIn("waits to be cleaned", self.reason())
        self.stage(name).attend()
        self.update(name)
        self.settle_start(name)

    def fake(self, node: object) -> None:
        step = node.tenancy.step("stage")
        paths = os.pathsep.join([str(_FAKE), *(each for each in sys.path if each)])
        service, tester = (
            attrs.evolve(
                runners[StageMode.SERVICE_VM],
                uri=f"fake://{self.folder}",
                execute=functools.partial(process.run_stage_program, more={"PYTHONPATH": paths}),
            )
            for runners in (step.runners, step.testers)
        )
        runners = {**step.runners, StageMode.SERVICE_VM: service}
        testers = {StageMode.SERVICE_VM: tester}
        # Reported devices are processed at once, not in a second thread.
        fake = attrs.evolve(step, runners=runners, testers=testers, spawn=lambda attend: attend())
        fake._work.view, fake._work.owners = step._work.view, step._work.owners
        steps = tuple(fake if each is step else each for each in node.tenancy.steps)
        node.__dict__["tenancy"] = attrs.evolve(node.tenancy, steps=steps)

    def entry(self) -> device_stage.Stage:
        found = device_stage.load_stage(self.ledger("alpha").device(FIRST).stage)
        assert found is not None
        return found

    def reason(self) -> str:
        return self.stats_of("alpha").withheld.get(FIRST, "")

    def vms(self) -> list[Path]:
        return list(self.folder.glob("*.domain"))
