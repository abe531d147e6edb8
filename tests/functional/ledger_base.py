# SPDX-License-Identifier: Apache-2.0
"""Hosts whose ledger is taken away, and devices that keep what servers have left in them."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_hpc.tenancy.ledger import copy_of
from nova_hpc.tenancy.stage import domain
from nova_hpc.tenancy.stage.device_stage import StageMode
from nova_hpc.tenancy.stage.runner import StageOutcome, StageRunner
from tests.functional import fixtures
from tests.functional.cleaning_base import FIRST, GPU, ONE, CleaningBase
from tests.functional.kills.hypervisor import devices_of
from virt_driver_patches.driver.tenancy import TenancySteps

#: Who had the devices before their node had nova-compute.
SOMEBODY_BEFORE = "somebody before"
_MIB = 1 << 20


@attrs.define
class Traces:
    """What servers have left in one device."""

    #: In its registers, until it is reset.
    registers: str = SOMEBODY_BEFORE
    #: In its memory, until its stage has passed.
    memory: str | None = SOMEBODY_BEFORE


@attrs.define
class Passing(StageRunner):
    """A service VM that cleans memory."""

    traces: Traces
    #: Called once while the VM has the device.
    meanwhile: list[Callable[[], None]] = attrs.field(factory=list)
    runs: int = 0

    def holder(self) -> str:
        return domain.new_uuid()

    def run(self, holder: str, devices: Mapping[str, str | None]) -> StageOutcome:
        self.runs += 1
        while self.meanwhile:
            self.meanwhile.pop()()
        self.traces.memory = None
        return StageOutcome(dict.fromkeys(devices, ""))

    def end(self, holder: str, devices: Sequence[str]) -> str | None:
        return None


class LedgerBase(CleaningBase):
    """Two hosts with one GPU each, and every start of a guest is looked at."""

    #: Whether the GPUs have a stage between two servers.
    STAGE = True

    def setUp(self) -> None:
        super().setUp()
        if not self.STAGE:
            self.stage_of("")
        self.useFixture(fixtures.Moves())
        self.traces: dict[str, Traces] = {}
        self.runners: dict[str, Passing] = {}
        self.boots = 0
        #: What must never be, and how often guests got a device.
        self.violations: list[str] = []
        self.given = 0
        self._watch_domains()
        self.flavor = self.make_flavor(GPU)

    # -- the truth ------------------------------------------------------------------

    def _watch_domains(self) -> None:
        test, start, end = self, fakelibvirt.Domain.createWithFlags, fakelibvirt.Domain.destroy

        def create(guest: fakelibvirt.Domain, flags: int) -> None:
            test._started(guest)
            start(guest, flags)

        def destroy(guest: fakelibvirt.Domain) -> None:
            test._ends(guest)
            end(guest)

        patch = fixtures.fixtures.MonkeyPatch
        self.useFixture(patch("nova.tests.fixtures.libvirt.Domain.createWithFlags", create))
        self.useFixture(patch("nova.tests.fixtures.libvirt.Domain.destroy", destroy))

    def _host_of(self, guest: fakelibvirt.Domain) -> str:
        return next(
            name
            for name, compute in self.computes.items()
            if compute.driver._host.get_connection() is guest._connection
        )

    def _started(self, guest: fakelibvirt.Domain) -> None:
        for _ in devices_of(guest.XMLDesc(0)):
            host, uuid = self._host_of(guest), guest.UUIDString()
            traces = self.traces[host]
            if traces.registers != uuid and not self.was_reset(host):
                self.violations.append(f"{host}: given without a reset after {traces.registers}")
            if self.STAGE and traces.memory not in (None, uuid):
                self.violations.append(f"{host}: given with the memory of {traces.memory}")
            traces.registers, traces.memory = uuid, uuid
            (self.sysfs[host].devices / FIRST / "reset").write_text("")
            self.given += 1

    def _ends(self, guest: fakelibvirt.Domain) -> None:
        if guest.isActive() and devices_of(guest.XMLDesc(0)):
            host = self._host_of(guest)
            if self.was_reset(host):
                self.violations.append(f"{host}: reset under a guest")

    def was_reset(self, host: str) -> bool:
        """Since a guest got the device last."""
        return "1" in (self.sysfs[host].devices / FIRST / "reset").read_text()

    # -- hosts ------------------------------------------------------------------------

    def ledger_path(self, host: str) -> Path:
        return self.sysfs[host].root / "state/ledger"

    def first_start(self, name: str, before: Callable[[], None] = lambda: None) -> None:
        """Start a host; its ledger lies on a disk of its own."""

        def prepare(tree: object) -> None:
            path = tree.root / "proc/meminfo"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("MemAvailable: 4000000 kB\n")
            self._mount(self.ledger_path(name).parent)
            before()

        self.traces[name] = Traces()
        self.runners[name] = Passing(self.traces[name])
        self.host(name, ONE, before=prepare)
        self.fake_of(name)

    def settle_start(self, name: str) -> None:
        """Nothing of the first start is forgotten here."""

    def fake_of(self, name: str) -> None:
        if not self.STAGE:
            return
        node = self.computes[name].driver.hpc_node
        step = node.tenancy.step("stage")
        runners = {**step.runners, StageMode.SERVICE_VM: self.runners[name]}
        fake = attrs.evolve(step, runners=runners, spawn=lambda attend: None)
        fake._work.view, fake._work.owners = step._work.view, step._work.owners
        steps = tuple(fake if each is step else each for each in node.tenancy.steps)
        node.__dict__["tenancy"] = attrs.evolve(node.tenancy, steps=steps)

    def restart(self, name: str, reboot: bool = False) -> None:
        """A new nova-compute; with *reboot* on a host that was booted."""
        root = self.sysfs[name].root
        self.flags(sysfs_root=str(root), ledger_file=str(self.ledger_path(name)), group="hpc")
        shape, words = self.shapes[name], {}
        if reboot:
            self.boots += 1
            boot = root / "proc/sys/kernel/random/boot_id"
            boot.parent.mkdir(parents=True, exist_ok=True)
            boot.write_text(f"boot-{self.boots}\n")
            words = {"host_info": shape.host_info(), "pci_info": shape.pci_info()}
        self.computes[name] = self.restart_compute_service(
            name, keep_hypervisor_state=not reboot, **words
        )
        self.fake_of(name)

    def attend(self, name: str) -> None:
        if self.STAGE:
            with contextlib.suppress(Exception):  # as its thread does
                self.stage(name).attend()

    def put_in_order(self, name: str) -> None:
        """Updates and stages, until everything is done that can be."""
        for _ in range(3):
            self.update(name)
            self.attend(name)
        self.update(name)

    # -- servers ----------------------------------------------------------------------

    def try_server(self, host: str) -> dict:
        """A server that starts, or is refused."""
        body = self._build_server(flavor_id=self.flavor, networks="none", host=host)
        server = self.api.post_server({"server": body})
        states: list[str] = []

        def over() -> None:
            states.append(self.api.get_server(server["id"])["status"])
            self.assertIn(states[-1], ("ACTIVE", "ERROR"))

        self.eventually(over)
        return self.api.get_server(server["id"])

    @contextlib.contextmanager
    def around(
        self,
        name: str,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> Iterator[None]:
        """Do something once, before or after a method of what is done around a server."""
        plain, left = getattr(TenancySteps, name), [1]

        def call(tenancy: TenancySteps, *arguments: object, **keywords: object) -> object:
            mine, left[:] = bool(left), []
            if mine and before is not None:
                before()
            try:
                return plain(tenancy, *arguments, **keywords)
            finally:
                if mine and after is not None:
                    after()

        with fixtures.fixtures.MonkeyPatch(f"{TenancySteps.__module__}.TenancySteps.{name}", call):
            yield

    # -- what happens to ledgers --------------------------------------------------------

    def texts(self, host: str) -> bytes:
        return self.ledger_path(host).read_bytes()

    def write(self, host: str, data: bytes) -> None:
        """Put a ledger into its place, with its copy."""
        path = self.ledger_path(host)
        path.parent.mkdir(parents=True, exist_ok=True)
        for each in (path, copy_of(path)):
            each.write_bytes(data)

    def lose(self, host: str) -> None:
        for each in (self.ledger_path(host), copy_of(self.ledger_path(host))):
            each.unlink(missing_ok=True)

    def of_the_release_before(self) -> bytes:
        """A ledger that says that nobody has the device, and that its stage has passed."""
        entry = {"state": "offered", "hardware": f"slot:{FIRST}", "counts": {"cleaned": 1}}
        if self.STAGE:
            entry["stage"] = {"phase": "clean", "since": 1.0}
        body = {"v": 1, "devices": {FIRST: entry}, "compared": True}
        return json.dumps(body | {"nvlink": {"gpus": [], "partitions": {}}}).encode()

    # -- the disk of a ledger -----------------------------------------------------------

    def _mount(self, place: Path) -> None:
        place.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
        self.mounted = not subprocess.run(words, check=False, capture_output=True).returncode
        if self.mounted:
            self.addCleanup(subprocess.run, ["umount", "-l", str(place)], check=False)

    def need_a_disk(self) -> None:
        if not self.mounted:
            self.skipTest("this machine does not let this user mount a disk")

    def make_read_only(self, host: str) -> None:
        self._remount(host, "ro")

    def fill(self, host: str) -> None:
        filler = self.ledger_path(host).parent / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            for _ in range(_MIB // 512):
                file.write(bytes(512))

    def heal(self, host: str) -> None:
        if self.mounted:
            self._remount(host, "rw")
        (self.ledger_path(host).parent / "filler").unlink(missing_ok=True)

    def _remount(self, host: str, how: str) -> None:
        place = str(self.ledger_path(host).parent)
        subprocess.run(["mount", "-o", f"remount,{how}", place], check=True, capture_output=True)
