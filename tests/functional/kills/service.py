# SPDX-License-Identifier: Apache-2.0
"""The stage between two servers in a world: its steps, what it is about, and its faults.

The stage itself, the process that has a service VM and its pipe are the real ones. The libvirt
of service VMs is a folder of the world (``service_libvirt``), and a device's memory a file in
it, which a guest writes and only a stage that has passed removes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nova import exception

from nova_hpc.tenancy.stage import process
from nova_hpc.tenancy.stage.runner import ServiceVmRunner
from nova_hpc.tenancy.stage.step import StageStep
from tests.functional.kills.agent import AGENT
from virt_driver_patches.driver import stage

_LIBVIRT: Final = Path(__file__).parent / "service_libvirt"
#: Seconds for a service VM to begin.
_SOON: Final = 60.0


def _load() -> Any:
    """The libvirt of service VMs; Nova's own is imported under that name."""
    spec = importlib.util.spec_from_file_location("service_libvirt", _LIBVIRT / "libvirt.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ServiceVms:
    """The service VMs of one node and the memory of its devices, on the disk."""

    def __init__(self, folder: Path, staged: Collection[str]) -> None:
        """*staged*: addresses of the devices whose memory outlives a reset."""
        self.folder = folder
        self.staged = frozenset(staged)
        self._libvirt = _load()

    def prepare(self) -> None:
        """Make what is not there yet; service VMs pass."""
        (self.folder / "memory").mkdir(parents=True, exist_ok=True)
        (self.folder / "image").write_text("")
        self.does("pass")

    def does(self, what: str) -> None:
        """What service VMs do from now on, and one that waits for its word."""
        (self.folder / "does").write_text(what)

    def end(self) -> None:
        """Those that there are end, as when their QEMU is killed."""
        for uuid in self._alive():
            (self.folder / f"{uuid}.domain").unlink(missing_ok=True)

    def _alive(self) -> list[str]:
        while True:
            # One may be gone, or not whole yet.
            with contextlib.suppress(FileNotFoundError, ValueError):
                found: list[str] = self._libvirt.alive(self.folder)
                return found

    def devices(self) -> dict[str, str]:
        """Address -> the service VM that has it."""
        found = {}
        for uuid in self._alive():
            with contextlib.suppress(FileNotFoundError):
                xml = (self.folder / f"{uuid}.domain").read_text()
                found |= dict.fromkeys(self._libvirt.devices_of(xml), uuid)
        return found

    # -- memory --------------------------------------------------------------------

    def memory(self) -> dict[str, str]:
        """Address -> the server whose data are in its memory."""
        return {each.name: each.read_text() for each in (self.folder / "memory").iterdir()}

    def started(self, server: str, devices: Sequence[str]) -> list[str]:
        """A guest starts with devices; what must not be about it."""
        memory, busy = self.memory(), self.devices()
        found = [
            f"{each} was given with another's memory"
            for each in devices
            if memory.get(each, server) != server
        ]
        found += [f"{each} is in a guest and in a service VM" for each in devices if each in busy]
        self.wrote(server, devices)
        return found

    def wrote(self, server: str, devices: Sequence[str]) -> None:
        """A guest has used its devices."""
        for each in self.staged.intersection(devices):
            (self.folder / "memory" / each).write_text(server)

    def seen(self) -> list[str]:
        """What libvirt has seen that must not be."""
        path = self.folder / "seen"
        return path.read_text().splitlines() if path.exists() else []

    # -- the process that has a service VM -------------------------------------------

    def execute(
        self, argv: Sequence[str], timeout: float, more: Mapping[str, str] | None = None
    ) -> str:
        """Run it with this libvirt; a step of nova-compute."""
        (self.folder / "go").unlink(missing_ok=True)
        AGENT.step(f"process: {argv[4]} a service VM")
        paths = os.pathsep.join([str(_LIBVIRT), *(each for each in sys.path if each)])
        return process.run_stage_program(argv, timeout, {**(more or {}), "PYTHONPATH": paths})

    def install(self) -> None:
        """Let the stage of this process have its service VMs here, and attend when it is told."""

        def service(**options: Any) -> ServiceVmRunner:
            return ServiceVmRunner(
                **{**options, "uri": f"fake://{self.folder}", "execute": self.execute}
            )

        plain = process.ends_in_time

        def ended(child: subprocess.Popen[bytes], patience: float, grace: float) -> bool:
            if not (self.folder / "go").exists():
                end = time.monotonic() + _SOON
                while child.poll() is None and not self.devices() and time.monotonic() < end:
                    time.sleep(0.01)
                AGENT.step("a service VM has the devices")
                (self.folder / "go").touch()
            return plain(child, patience, grace)

        process.ends_in_time = ended
        stage.ServiceVmRunner = service  # type: ignore[assignment,misc]
        stage.StageStep = functools.partial(  # type: ignore[assignment,misc]
            StageStep, spawn=lambda attend: None
        )


class Stages:
    """Those of a world's orders that are about the stage."""

    host_name: str
    computes: Any
    folder: Path
    #: Whether GPUs have a stage.
    with_stage: bool
    service: ServiceVms
    update: Any

    def prepare_stage(self, staged: Collection[str], root: Path) -> dict[str, Any]:
        """Before nova-compute starts.

        :param staged: addresses of the devices that have a stage.
        :param root: what stands for the node's ``/``.
        :returns: options of ``[hpc]``.
        """
        self.service = ServiceVms(self.folder / "service", staged)
        self.service.prepare()
        self.service.install()
        (root / "proc").mkdir(exist_ok=True)
        (root / "proc/meminfo").write_text("MemAvailable: 4000000 kB\n")
        image = str(self.service.folder / "image")
        return {
            "clean_stage": {"gpu": "service-vm"},
            "clean_checks": {"gpu": "memory"},
            "clean_vm_kernel": image,
            "clean_vm_initrd": image,
            "clean_vm_memory": 64,
            "clean_timeout": 60.0,
            # Every look tries a suspect device again.
            "suspect_retry": 0.0,
            "suspect_retry_most": 0.0,
        }

    def do_clean(self) -> None:
        """What is due is attended to, and the periodic update offers what has passed."""
        step = self.computes[self.host_name].driver.hpc_node.tenancy.step("stage")
        assert isinstance(step, StageStep)
        step.attend()
        manager = self.computes[self.host_name].manager
        plain = manager._update_available_resource_for_node

        def named(*args: Any, **kwargs: Any) -> Any:
            # In a thread of Nova's own.
            with AGENT.inside("update", True):
                return plain(*args, **kwargs)

        manager._update_available_resource_for_node = named
        try:
            with contextlib.suppress(exception.HypervisorUnavailable):
                self.update(self.host_name)
        finally:
            del manager._update_available_resource_for_node
