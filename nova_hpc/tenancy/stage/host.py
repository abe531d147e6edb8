# SPDX-License-Identifier: Apache-2.0
"""A stage on the host itself: the device gets the vendor's driver, and a process checks it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from nova_hpc.tenancy.stage import binding, process, report
from nova_hpc.tenancy.stage.binding import BindError
from nova_hpc.tenancy.stage.device_stage import StageMode
from nova_hpc.tenancy.stage.process import LateError
from nova_hpc.tenancy.stage.runner import ProgramRun, StageOutcome, StageRunner, problem_of_check
from nova_hpc.topology.device import DEVICES

_CHECK: Final = "nova_hpc.tenancy.hygiene.clean_check"
#: The check that erases an NVMe disk, and the driver that it needs.
ERASE: Final = "nvme"
#: Seconds that a driver may take to bind or to release a device.
_BIND: Final = 60.0

#: Root, address, driver, seconds; raises BindError.
Bind = Callable[[Path, str, str, float], None]


def build_check_command(
    root: Path, address: str, checks: Sequence[str], pins: Mapping[str, Any]
) -> list[str]:
    """Return the command line of the process that runs a device's checks.

    :param root: the directory that contains ``sys``.
    :param pins: expected values for the checks.
    """
    folder = f"{str(root).rstrip('/')}{DEVICES}/{address}"
    asked = json.dumps({"checks": list(checks), "pins": dict(pins)})
    return [sys.executable, "-s", "-m", _CHECK, folder, asked]


@attrs.frozen
class HostRunner(StageRunner):
    """Runner that binds a device to the vendor's driver on the node and checks it there."""

    root: Path
    #: Role -> driver; a device of another role is checked with its present driver.
    drivers: Mapping[str, str] = attrs.field(hash=False)
    #: Role -> names of its checks; role -> pinned values.
    checks: Callable[[str | None], Sequence[str]]
    pins: Callable[[str | None], Mapping[str, Any]]
    timeout: float
    bind: Bind = binding.bind_device
    execute: ProgramRun = process.run_stage_program
    #: Runs the check ``nvme`` of a device as root, and returns its output; None if this is root.
    erase: Callable[[str], str] | None = None

    def holder(self) -> str:
        """Return the mode's word (clean on the host), which the ledger records as the holder."""
        return StageMode.HOST.value

    def run(self, holder: str, devices: Mapping[str, str | None]) -> StageOutcome:
        """Check devices one by one on the node; see :meth:`StageRunner.run`.

        :param devices: PCI address -> role.
        """
        verdicts: dict[str, str] = {}
        proofs: dict[str, str] = {}
        for address, role in devices.items():
            driver = self.drivers.get(role or "")
            before = binding.driver_for_guests(self.root, address)
            try:
                if driver is not None:
                    self.bind(self.root, address, driver, _BIND)
                result = self._look(address, role)
            except (BindError, LateError, ValueError) as error:
                text = str(error) or type(error).__name__
                return StageOutcome(problem=f"its check on the host came to no answer: {text}")
            if (problem := problem_of_check(result)) is not None:
                return StageOutcome(problem=problem)
            verdicts[address] = "" if result.get("ok") is True else report.failure_reason_of(result)
            if result.get("ok") is True:
                proofs[address] = report.proof_of_result(result)
            if driver is not None:
                try:
                    self.bind(self.root, address, before, _BIND)
                except BindError as error:
                    return StageOutcome(problem=str(error))
        return StageOutcome(verdicts, proofs=proofs)

    def _look(self, address: str, role: str | None) -> dict[str, Any]:
        """Run the checks of one device, and return their document.

        :raises LateError: the program did not end in time.
        :raises ValueError: the output is not a JSON object, or the checks do not fit together.
        """
        checks = self.checks(role)
        if self.erase is not None and ERASE in checks:
            if list(checks) != [ERASE]:
                raise ValueError(f"the check {ERASE} of a service that is not root stands alone")
            result = json.loads(self.erase(address))
        else:
            argv = build_check_command(self.root, address, checks, self.pins(role))
            result = json.loads(self.execute(argv, self.timeout))
        if not isinstance(result, dict):
            raise ValueError("its answer is no object")
        return result

    def end(self, holder: str, devices: Sequence[str]) -> str | None:
        """See :meth:`StageRunner.end`: the check ended with its parent; the driver may remain."""
        for address in devices:
            try:
                back = binding.driver_for_guests(self.root, address)
                self.bind(self.root, address, back, _BIND)
            except BindError as error:
                return str(error)
        return None
