# SPDX-License-Identifier: Apache-2.0
"""Runners of a stage: one way for a service VM, one for the host itself."""

from __future__ import annotations

import abc
import json
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import attrs

from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.tenancy.stage import domain, process, report, spare_capacity
from nova_hpc.tenancy.stage.domain import ServiceVmMachine
from nova_hpc.tenancy.stage.process import LateError
from nova_hpc.tenancy.stage.spare_capacity import ShortError
from nova_hpc.topology.cpuset import parse_list
from nova_hpc.topology.files import FileError, FileTree

#: Seconds beyond those of the check itself: for libvirt to end the VM.
_GRACE: Final = 20.0
#: Seconds for libvirt to end a VM that was left.
_END: Final = 60.0
_ATTEND: Final = "nova_hpc.tenancy.stage.attendant"


class ProgramRun(Protocol):
    """Runs a program; see :func:`nova_hpc.tenancy.stage.process.run_stage_program`."""

    def __call__(
        self, argv: Sequence[str], timeout: float, more: Mapping[str, str] | None = None
    ) -> str:
        """Its output."""


@attrs.frozen
class StageOutcome:
    """The outcome of a stage."""

    #: Address -> why the device did not pass; "": it passed. Every device has one, or
    #: there is a *problem*.
    verdicts: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Why that is unknown: it was not looked at, or not to the end; "": it was.
    problem: str = ""
    #: The problem is one of the host, and says nothing of the device.
    host: bool = False
    #: Address -> how its data were erased, of devices that passed and whose check proves that.
    proofs: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    def symptom(self, address: str) -> Symptom | None:
        """The symptom of a device after its stage; None: it has passed."""
        if self.problem:
            sign = HealthSign.UNFIT if self.host else HealthSign.UNCHECKED
            return Symptom(sign, f"it was not cleaned from within: {self.problem}")
        verdict = self.verdicts.get(address)
        if verdict is None:
            return Symptom(HealthSign.UNCHECKED, "its stage says nothing of it")
        return (
            Symptom(HealthSign.FAILED, f"it did not pass its stage: {verdict}") if verdict else None
        )


class StageRunner(abc.ABC):
    """Looks at devices that nobody has, somewhere."""

    @abc.abstractmethod
    def holder(self) -> str:
        """The name of what will have the devices, for the ledger."""

    @abc.abstractmethod
    def run(self, holder: str, devices: Mapping[str, str | None]) -> StageOutcome:
        """Look at devices. Never raises.

        :param holder: as :meth:`holder` said.
        :param devices: address -> role; they can only be given together.
        """

    @abc.abstractmethod
    def end(self, holder: str, devices: Sequence[str]) -> str | None:
        """End what a killed process may have left. Never raises.

        :returns: why something may still have the devices; None: nothing has.
        """


def problem_of_check(result: Mapping[str, Any]) -> str | None:
    """The reason why a check could not be made; None: it was."""
    if result.get("ok") is True or result.get("unable") is not True:
        return None
    return f"a check could not be made: {report.failure_reason_of(dict(result))}"


@attrs.frozen
class ServiceVmRunner(StageRunner):
    """A throw-away guest domain."""

    uri: str
    machine: ServiceVmMachine
    #: Seconds from the start of the VM to its answer.
    timeout: float
    #: Role -> names of its checks.
    checks: Callable[[str | None], Sequence[str]]
    #: Role -> what an operator has pinned.
    pins: Callable[[str | None], Mapping[str, Any]] = attrs.field(default=lambda role: {})
    root: Path = Path("/")
    dedicated: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()
    execute: ProgramRun = process.run_stage_program

    def holder(self) -> str:
        """A UUID that Nova does not know."""
        return domain.new_uuid()

    def run(self, holder: str, devices: Mapping[str, str | None]) -> StageOutcome:
        """See :meth:`StageRunner.run`."""
        nonce = secrets.token_hex(16)
        addresses = sorted(devices)
        checks = list(
            dict.fromkeys(check for address in addresses for check in self.checks(devices[address]))
        )
        pins = {
            str(number): dict(self.pins(devices[address]))
            for number, address in enumerate(addresses)
        }
        try:
            self._expect_files()
            cpus = self._reserve()
            xml = domain.build_service_domain(
                holder, self.machine, addresses, cpus, nonce, checks, pins
            )
        except (ShortError, FileError, ValueError) as error:
            return StageOutcome(problem=str(error), host=True)
        asked = {"uri": self.uri, "xml": xml, "nonce": nonce, "seconds": self.timeout}
        answer = self._ask("run", asked, self.timeout + _GRACE)
        results = answer.get("results")
        if not isinstance(results, dict):
            return StageOutcome(problem=str(answer.get("problem", "the service VM gave no answer")))
        verdicts, proofs = {}, {}
        for number, address in enumerate(addresses):
            result = results.get(str(number))
            if not isinstance(result, dict):
                return StageOutcome(problem=f"the service VM says nothing of {address}")
            if (problem := problem_of_check(result)) is not None:
                return StageOutcome(problem=problem)
            verdicts[address] = "" if result.get("ok") is True else report.failure_reason_of(result)
            if result.get("ok") is True:
                proofs[address] = report.proof_of_result(result)
        return StageOutcome(verdicts, proofs=proofs)

    def end(self, holder: str, devices: Sequence[str]) -> str | None:
        """See :meth:`StageRunner.end`."""
        answer = self._ask("end", {"uri": self.uri, "vm": holder}, _END)
        if answer.get("ended") is True:
            return None
        return f"service VM {holder} may still have it: {answer.get('problem', 'no answer')}"

    def _expect_files(self) -> None:
        for option, path in (
            ("clean_vm_kernel", self.machine.kernel),
            ("clean_vm_initrd", self.machine.initrd),
        ):
            if not path:
                raise ShortError(f"[hpc]{option} is not set, and a service VM needs it")
            if not Path(path).is_file():
                raise ShortError(f"[hpc]{option}: there is no file {path} on this node")

    def _reserve(self) -> frozenset[int]:
        tree = FileTree(self.root)
        spare_capacity.check_spare_memory(tree.text("/proc/meminfo") or "", self.machine.memory_mib)
        online = parse_list(tree.text("/sys/devices/system/cpu/online") or "")
        return spare_capacity.spare_cpus_of(online, self.dedicated, self.shared)

    def _ask(self, what: str, asked: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        argv = [sys.executable, "-s", "-m", _ATTEND, what, json.dumps(asked)]
        try:
            answer = json.loads(self.execute(argv, timeout))
        except LateError as error:
            return {"problem": f"the process that has the service VM failed: {error}"}
        except ValueError:
            return {"problem": "the process that has the service VM gave no answer"}
        return answer if isinstance(answer, dict) else {"problem": "its answer is no object"}
