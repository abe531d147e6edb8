# SPDX-License-Identifier: Apache-2.0
"""An operator's care of a device: see how it differs, accept it, release it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import attrs

from nova_hpc.tenancy.health_states import Moment
from nova_hpc.tenancy.hygiene import baseline, cleaning, symptoms
from nova_hpc.tenancy.hygiene.baseline import DeviceSnapshot
from nova_hpc.tenancy.hygiene.snapshots import (
    baseline_differences_of,
    baseline_of,
    distrust_damaged_baselines,
    excess_errors_of,
    is_unused_by_host,
)
from nova_hpc.tenancy.hygiene.step import HygieneStep
from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.sign import HealthSign
from nova_hpc.tenancy.stage.device_stage import DeviceStage, StagePhase, load_stage
from nova_hpc.tenancy.step import DeviceCandidate
from nova_hpc.wire.announcements import Accepted
from nova_hpc.wire.ledger import SOMEBODY, DeviceState, Ledger, LedgerDevice


@attrs.frozen
class DeviceUpkeep(HygieneStep):
    """The step that cleans and checks devices, extended by the actions of an operator."""

    @classmethod
    def of(cls, step: HygieneStep) -> DeviceUpkeep:
        """Extend *step* by the actions of an operator."""
        return cls(**attrs.asdict(step, recurse=False))

    def check(self, device: DeviceCandidate) -> tuple[list[str], list[str]]:
        """Compare a device with its baseline.

        :returns: the differences, and the reasons why parts were not compared.
        """
        ledger = distrust_damaged_baselines(self.records.ledger.read())
        if ledger.lost:
            return [], [ledger.problems[0]]
        address = device.function.address
        entry = ledger.device(address)
        if entry.server is not None:
            return [], [explain_uncompared(entry, None)]  # a server may change it as it likes
        look = self.records.look([device])[address]
        faults = baseline_differences_of(entry, look, device.function)
        faults += excess_errors_of(entry, look, self.records.moment(), self.records.rules)
        unknown = [*filter(None, [explain_uncompared(entry, look)])]
        return [symptom.reason for symptom in faults], unknown

    def changes(self, devices: Iterable[DeviceCandidate]) -> tuple[dict[str, str], dict[str, str]]:
        """The differences of devices from their baselines that an operator can accept.

        :returns: address -> the differences; for a device that a server may have, only if it was
            found changed when it was cleaned. And address -> why it is not compared.
        """
        devices = list(devices)
        ledger = distrust_damaged_baselines(self.records.ledger.read())
        wanted = {
            candidate.function.address: candidate
            for candidate in devices
            if (device := ledger.device(candidate.function.address)).server is None
            or device.state is not DeviceState.OFFERED
        }
        looks = self.records.look(wanted.values())
        reasons = {
            address: explain_uncompared(ledger.device(address), looks.get(address))
            for address in (candidate.function.address for candidate in devices)
        }
        differences = {
            address: baseline_differences_of(ledger.device(address), look, wanted[address].function)
            for address, look in looks.items()
        }
        return {
            address: "; ".join(
                symptom.reason for symptom in device_symptoms if symptom.sign in symptoms.EXPECTED
            )
            for address, device_symptoms in differences.items()
            if any(symptom.sign in symptoms.EXPECTED for symptom in device_symptoms)
        }, {address: reason for address, reason in reasons.items() if reason}

    def accept(self, device: DeviceCandidate, owners: DeviceOwners, reason: str = "") -> str:
        """Record a device in its present state as its new baseline.

        :param reason: the operator's. With a reason, the same change is also accepted at other
            devices of the model.
        :returns: the result, for people.
        :raises LedgerError: the device may have an owner, could not be compared as a whole, or has
            a fault that cannot be accepted.
        """
        address = device.function.address
        with self.records.locks([address], 1.0):
            entry = self.records.known().device(address)
            found_changed = is_change(entry)
            self._expect_nobodys(address, owners, found_changed)
            look = self.records.look([device])[address]
            if entry.baseline is not None and (unread := explain_uncompared(entry, look)):
                raise LedgerError(f"{address}: {unread}")
            change = symptoms.lasting_change_of(
                tuple(baseline_differences_of(entry, look, device.function))
            )
            model = symptoms.recorded_model_of(entry)
            accepted = None
            if change and model is not None and reason:
                accepted = Accepted(model, change, reason)
            for wrong in baseline.find_inherent_faults(look, is_unused_by_host(device.function)):
                if not (found_changed and wrong.sign is HealthSign.MASTER):
                    raise LedgerError(f"{address}: {wrong.reason}")
            ids = self.records.identify([device], {address: look})
            hardware = ids.get(address, f"slot:{address}")
            moment = self.records.moment()

            def edit(ledger: Ledger) -> Ledger:
                ledger = distrust_damaged_baselines(ledger)
                entry = accept_changed_device(ledger.device(address), look, moment)
                ledger = ledger.put({address: attrs.evolve(entry, hardware=hardware)})
                if accepted is None or accepted in ledger.accepted:
                    return ledger
                return attrs.evolve(ledger, accepted=(*ledger.accepted, accepted))

            entry = self.records.ledger.change(edit).device(address)
        if entry.server is not None:
            return "recorded as it is now; it is cleaned and offered at the next update"
        return "recorded as it is now"

    def release(self, device: DeviceCandidate, owners: DeviceOwners) -> str | None:
        """Clean and check a device, and end its quarantine if it is well."""
        address = device.function.address
        with self.records.locks([address], self.timeout + 10):
            self._expect_nobodys(address, owners)
            _, dirty = cleaning.clean_devices(self.records, self.cleaners, {address: device.role})
            if dirty:
                return dirty[address]
            self.records.ledger.release(address)
            return None

    def describe(self, address: str) -> Mapping[str, str]:
        """The servers that have had a device, its baseline, and the phase of its stage."""
        device = distrust_damaged_baselines(self.records.ledger.read()).device(address)
        baseline_text = json.dumps(device.baseline, sort_keys=True) if device.baseline else ""
        return {
            "Server": device.server or "",
            "Last server": device.last_server or "",
            "Hardware": device.hardware or "",
            "Baseline": baseline_text,
            "Stage": describe_stage(load_stage(device.stage)),
        }

    def _expect_nobodys(self, address: str, owners: DeviceOwners, marked: bool = False) -> None:
        """Touch only a device that has no owner according to Nova, libvirt and the kernel.

        :param marked: it may have the mark of a server that is gone.
        :raises LedgerError: it has an owner, or that is unknown.
        """
        server = self.records.known().device(address).server
        if server is not None and not marked:
            raise LedgerError(
                f"{address} is with server {server}, or has not been cleaned since: nova-compute "
                "does that when the server is gone, at the latest at its next periodic update"
            )
        if address in owners.records() and not marked:
            raise LedgerError(f"a server has {address}, by Nova's records")
        for held in owners.held([address], self._waiting_server(address, owners)).values():
            raise LedgerError(f"{address} is not touched: {held.text}")

    def _waiting_server(self, address: str, owners: DeviceOwners) -> str | None:
        """The stopped server whose guest domain waits for hardware that replaced its own."""
        if not self.records.known().device(address).replaced:
            return None
        domain = owners.domains().having(address)
        held = domain is None or address in domain.live.all | domain.behind_disks
        return None if domain is None or held else domain.uuid


def explain_uncompared(device: LedgerDevice, look: DeviceSnapshot | None) -> str:
    """The reason why a device, or a part of it, is not compared; "" if all of it is.

    :param look: None if it was not looked at, since a server may have it.
    """
    if look is None:
        server = "an unknown server" if device.server == SOMEBODY else f"server {device.server}"
        return f"not compared: {server} has it, or it has not been cleaned since"
    recorded = baseline_of(device)
    if recorded is None:
        return "not compared: it has no baseline yet"
    if look.silent or look.capabilities is not None or recorded.capabilities is None:
        return ""
    return (
        "not compared: its configuration space cannot be read; run the command as root, and put "
        "the device in quarantine if that does not help"
    )


def is_change(device: LedgerDevice) -> bool:
    """Whether a device is withheld because its identity or settings have changed."""
    sign = "" if device.trial is None else device.trial.sign
    return device.state is not DeviceState.OFFERED and sign in (
        HealthSign.CHANGED.value,
        HealthSign.MODEL.value,
    )


def accept_changed_device(
    device: LedgerDevice, look: DeviceSnapshot, moment: Moment
) -> LedgerDevice:
    """The entry of a device whose change an operator accepts.

    A device that is withheld for the change has to be cleaned; its next trial is due at once.
    """
    entry = attrs.evolve(symptoms.renew_baseline(device, look, moment), unreported=False)
    if not is_change(device):
        sign = "" if device.trial is None else device.trial.sign
        if device.state is DeviceState.SUSPECT and sign == HealthSign.FUNCTIONS.value:
            return attrs.evolve(entry, state=DeviceState.OFFERED, reason="", trial=None)
        return entry
    server = device.server
    if device.state is DeviceState.QUARANTINED:
        server = server or device.last_server or SOMEBODY
        return attrs.evolve(entry, state=DeviceState.SUSPECT, trial=None, server=server)
    if server is None:
        return attrs.evolve(entry, state=DeviceState.OFFERED, reason="", trial=None)
    return attrs.evolve(entry, trial=None)


def describe_stage(stage: DeviceStage | None) -> str:
    """The stage's phase and duration, for people; "" if the device has no stage."""
    if stage is None:
        return ""
    took = "" if stage.seconds is None else f"{stage.seconds:g} s"
    if stage.phase is StagePhase.CLEAN:
        text = f"passed in {took}" if took else "passed"
        return f"{text}: {stage.proof}" if stage.proof else text
    text = "due" if stage.phase is StagePhase.DUE else f"begun by {stage.holder}"
    return f"{text}, took {took} the last time" if took else text
