# SPDX-License-Identifier: Apache-2.0
"""One stage of devices that can only be given together, from its beginning to its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import attrs

from nova_hpc.tenancy.hygiene import cleaning
from nova_hpc.tenancy.hygiene.cleaner import RoleCleaners
from nova_hpc.tenancy.hygiene.records import HygieneRecords
from nova_hpc.tenancy.identity import is_hardware_known
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.stage import ledger_edits, reported_checks, waiting_tenants
from nova_hpc.tenancy.stage.device_stage import StageMode
from nova_hpc.tenancy.stage.runner import StageOutcome, StageRunner


@attrs.frozen
class StageRun:
    """Runs stages; see :class:`nova_hpc.tenancy.stage.step.StageStep` for the rules."""

    records: HygieneRecords
    cleaners: RoleCleaners
    runners: Mapping[StageMode, StageRunner]
    #: Role -> the checks of reported devices, and their runners.
    tests: Mapping[str, Sequence[str]]
    testers: Mapping[StageMode, StageRunner]
    #: Takes one sentence for the log.
    note: Callable[[str], None]

    def process(
        self, mode: StageMode, roles: Mapping[str, str | None], owners: DeviceOwners
    ) -> None:
        """Run the stage of some devices, under their locks.

        :param mode: the place of the stage.
        :param roles: address -> role, of devices that can only be given together.
        :raises LedgerError: the ledger cannot be written.
        """
        ledger = self.records.known()
        taken = waiting_tenants.list_taken_devices(ledger, owners)
        if not ledger.staged.issuperset(roles) or taken & roles.keys():
            return  # another process was faster, or it is given
        if waiting_tenants.find_held_devices(roles, ledger, owners):
            return  # hygiene reports the holder
        dirty = {address: roles[address] for address in roles if ledger.device(address).owes}
        if cleaning.clean_devices(self.records, self.cleaners, dirty)[1]:
            return  # hygiene reports the failure
        began = time.monotonic()
        runner = self.runners[mode]
        holder = runner.holder()
        wall = self.records.moment().wall
        self.records.change(
            lambda ledger: ledger_edits.begin_device_stages(ledger, roles, holder, wall)
        )
        outcome, answered = runner.run(holder, roles), True
        if outcome.problem:
            problem = runner.end(holder, list(roles))
            if problem is not None:
                self.note(f"PCI devices {', '.join(roles)}: {problem}")
                return  # the entry stays begun: the next update ends it
        elif not any(outcome.symptom(address) for address in roles):
            tested = self._test(self.testers.get(mode), roles, outcome)
            if tested is None:
                return
            outcome, answered = tested
        held = waiting_tenants.find_held_devices(roles, ledger, owners)
        if held:
            for address, holding in held.items():
                self.note(f"PCI device {address} after its stage: {holding.text}")
            return
        unclean = cleaning.clean_devices(self.records, self.cleaners, dict(roles))[1]
        decided = answered and not outcome.problem
        self._settle(roles, outcome, unclean, time.monotonic() - began, decided)

    def _test(
        self, tester: StageRunner | None, roles: Mapping[str, str | None], outcome: StageOutcome
    ) -> tuple[StageOutcome, bool] | None:
        """Test reported devices whose stage has passed.

        :param outcome: of their stage.
        :returns: the outcome with the test's verdicts, or that of the stage if the test came to no
            answer; and whether each report is answered. None if the test cannot be ended.
        """
        asked = reported_checks.find_devices_to_test(self.records.known(), roles, self.tests)
        if not asked or tester is None:
            return outcome, True
        holder, wall = tester.holder(), self.records.moment().wall
        self.records.change(
            lambda ledger: ledger_edits.begin_device_stages(ledger, roles, holder, wall)
        )
        tested = tester.run(holder, roles)
        if not tested.problem:
            return reported_checks.add_verdicts(outcome, tested, asked), True
        names = ", ".join(sorted(asked))
        self.note(f"the test of reported PCI devices {names} came to no answer: {tested.problem}")
        problem = tester.end(holder, list(roles))
        if problem is not None:
            self.note(f"PCI devices {names}: {problem}")
            return None
        return outcome, False

    def _settle(
        self,
        roles: Mapping[str, str | None],
        outcome: StageOutcome,
        unclean: Mapping[str, str],
        seconds: float,
        decided: bool,
    ) -> None:
        moment = self.records.moment()
        stays = {address: self.records.read_stay(address) for address in outcome.proofs}
        self.records.change(
            lambda ledger: {
                address: ledger_edits.settle_device_stage(
                    ledger.device(address),
                    None if address in unclean else outcome.symptom(address),
                    address not in unclean,
                    seconds,
                    moment,
                    self.records.rules,
                    outcome.proofs.get(address, ""),
                    ""
                    if is_hardware_known(ledger.device(address).hardware)
                    else stays.get(address, ""),
                    decided=decided,
                )
                for address in roles
            }
        )
        for address in roles:
            symptom = outcome.symptom(address)
            if symptom is not None:
                self.note(f"PCI device {address} has not passed its stage: {symptom.reason}")
