# SPDX-License-Identifier: Apache-2.0
"""A stage on the host itself: the vendor's driver gets the device, and a process checks it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc.tenancy.service_vm import binding, process, report
from nova_hpc.tenancy.service_vm.binding import BindError
from nova_hpc.tenancy.service_vm.process import LateError
from nova_hpc.tenancy.service_vm.runner import Outcome, Run, Runner, unable
from nova_hpc.tenancy.service_vm.stage import Mode
from nova_hpc.topology.device import DEVICES

_CHECK: Final = "nova_hpc.tenancy.hygiene.clean_check"
#: Seconds for a driver to take or to leave a device.
_BIND: Final = 60.0

#: Root, address, driver, seconds; raises BindError.
Bind = Callable[[Path, str, str, float], None]


@attrs.frozen
class OnHost(Runner):
    """The devices stay on the node."""

    root: Path
    #: Role -> driver; a role without one is checked as it is bound.
    drivers: Mapping[str, str] = attrs.field(hash=False)
    #: Role -> names of its checks; role -> what is pinned.
    checks: Callable[[str | None], Sequence[str]]
    pins: Callable[[str | None], Mapping[str, Any]]
    timeout: float
    bind: Bind = binding.bind
    execute: Run = process.run

    def holder(self) -> str:
        """The word of the mode."""
        return Mode.HOST.value

    def run(self, holder: str, devices: Mapping[str, str | None]) -> Outcome:
        """See :meth:`Runner.run`."""
        found: dict[str, str] = {}
        for address, role in devices.items():
            driver = self.drivers.get(role or "")
            before = binding.driver_for_guests(self.root, address)
            try:
                if driver is not None:
                    self.bind(self.root, address, driver, _BIND)
                result = self._look(address, role)
            except (BindError, LateError, ValueError) as error:
                text = str(error) or type(error).__name__
                return Outcome(problem=f"its check on the host came to no answer: {text}")
            if (why := unable(result)) is not None:
                return Outcome(problem=why)
            found[address] = "" if result.get("ok") is True else report.reason(result)
            if driver is not None:
                try:
                    self.bind(self.root, address, before, _BIND)
                except BindError as error:
                    return Outcome(problem=str(error))
        return Outcome(found)

    def _look(self, address: str, role: str | None) -> dict[str, Any]:
        asked = {"checks": list(self.checks(role)), "pins": dict(self.pins(role))}
        folder = f"{str(self.root).rstrip('/')}{DEVICES}/{address}"
        argv = [sys.executable, "-s", "-m", _CHECK, folder, json.dumps(asked)]
        found = json.loads(self.execute(argv, self.timeout))
        if not isinstance(found, dict):
            raise ValueError("its answer is no object")
        return found

    def end(self, holder: str, devices: Sequence[str]) -> str | None:
        """See :meth:`Runner.end`: the process ended with its parent; the driver may have it."""
        for address in devices:
            try:
                back = binding.driver_for_guests(self.root, address)
                self.bind(self.root, address, back, _BIND)
            except BindError as error:
                return str(error)
        return None
