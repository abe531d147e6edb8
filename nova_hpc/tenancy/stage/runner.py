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

#: Seconds beyond the check's own limit, in which libvirt ends the VM.
_GRACE: Final = 20.0
#: Seconds in which libvirt ends a leftover VM.
_END: Final = 60.0
_ATTEND: Final = "nova_hpc.tenancy.stage.attendant"


class ProgramRun(Protocol):
    """Interface of :func:`~nova_hpc.tenancy.stage.process.run_stage_program`."""

    def __call__(
        self, argv: Sequence[str], timeout: float, more: Mapping[str, str] | None = None
    ) -> str:
        """Return its output."""


@attrs.frozen
class StageOutcome:
    """The outcome of a stage for its devices: verdicts and proofs by address, or one problem."""

    #: Address -> why the device did not pass; "" if it passed. Every device has one, or
    #: there is a *problem*.
    verdicts: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Why the verdicts are unknown: the check did not run, or did not finish; "" if it did.
    problem: str = ""
    #: Whether the problem is the host's, and unrelated to the device.
    host: bool = False
    #: Address -> the way in which its data were erased, if it passed and its check proves that.
    proofs: Mapping[str, str] = attrs.field(factory=dict, hash=False)

    def symptom(self, address: str) -> Symptom | None:
        """Return the symptom of a device after its stage; None if it has passed."""
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
    """Interface that checks devices that no server has: in a service VM, or on the node itself."""

    @abc.abstractmethod
    def holder(self) -> str:
        """Return the name of the devices' next holder, for the ledger."""

    @abc.abstractmethod
    def run(self, holder: str, devices: Mapping[str, str | None]) -> StageOutcome:
        """Check devices. Never raises.

        :param holder: a name from :meth:`holder`.
        :param devices: address -> role; they can only be given together.
        """

    @abc.abstractmethod
    def end(self, holder: str, devices: Sequence[str]) -> str | None:
        """End the remains of a killed process. Never raises.

        :returns: why the devices may still be in use; None if they are not.
        """


def problem_of_check(result: Mapping[str, Any]) -> str | None:
    """Return the reason why a check could not run; None if it ran."""
    if result.get("ok") is True or result.get("unable") is not True:
        return None
    return f"a check could not be made: {report.failure_reason_of(dict(result))}"


@attrs.frozen
class ServiceVmRunner(StageRunner):
    """Runner that checks devices in a throw-away guest domain (service VM) of the node."""

    uri: str
    machine: ServiceVmMachine
    #: Seconds from the start of the VM to its answer.
    timeout: float
    #: Role -> names of its checks.
    checks: Callable[[str | None], Sequence[str]]
    #: Role -> values that an operator has pinned.
    pins: Callable[[str | None], Mapping[str, Any]] = attrs.field(default=lambda role: {})
    root: Path = Path("/")
    dedicated: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()
    execute: ProgramRun = process.run_stage_program

    def holder(self) -> str:
        """Return a UUID that is not in Nova."""
        return domain.new_uuid()

    def run(self, holder: str, devices: Mapping[str, str | None]) -> StageOutcome:
        """Start a service VM with the devices, and read the results of its checks.

        See :meth:`StageRunner.run`.
        """
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
        """End a service VM that may be left from before; return why it may still run, else None.

        See :meth:`StageRunner.end`.
        """
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
