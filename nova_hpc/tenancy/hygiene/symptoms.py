# SPDX-License-Identifier: Apache-2.0
"""The result of one check of a node's free devices: states, new baselines, alarms.

Pure: snapshots, the ledger and the time go in; entries of the ledger come
out. :mod:`nova_hpc.tenancy.health_states` contains the states. This module derives symptoms from
snapshots, and makes a change that an operator has announced or accepted the new baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.tenancy import health_states
from nova_hpc.tenancy.health_states import HealthRules, Moment
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene.baseline import DeviceSnapshot
from nova_hpc.tenancy.hygiene.snapshots import (
    baseline_differences_of,
    baseline_of,
    excess_errors_of,
    restart_error_count,
)
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.tenancy.step import DeviceCandidate
from nova_hpc.wire.ledger import DeviceState, Ledger, LedgerDevice

#: Symptoms that an operator can announce or accept.
EXPECTED: Final = frozenset({HealthSign.CHANGED, HealthSign.FUNCTIONS})
#: Seconds after which tolerated errors no longer count.
_WINDOW: Final = 3600.0


@attrs.frozen
class DeviceJudgement:
    """The result of a check of free devices: changed entries, reasons, notes and alarms."""

    #: Address -> entry, of the devices whose entries have changed.
    entries: Mapping[str, LedgerDevice] = attrs.field(factory=dict, hash=False)
    #: Address -> why it must not be offered.
    reasons: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: One sentence each, for the log.
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()


def recorded_model_of(device: LedgerDevice) -> str | None:
    """Return the recorded model of a device; None without a baseline.

    See baseline.snapshot_model_of.
    """
    recorded = baseline_of(device)
    return None if recorded is None else baseline.snapshot_model_of(recorded)


def lasting_change_of(symptoms: tuple[Symptom, ...]) -> str:
    """Return the differences of a device that are permanent; "" if there are none."""
    return "; ".join(symptom.change for symptom in symptoms if symptom.sign is HealthSign.CHANGED)


def judge_free_devices(
    ledger: Ledger,
    looks: Mapping[str, DeviceSnapshot],
    candidates: Mapping[str, DeviceCandidate],
    ill: Mapping[str, Symptom],
    roles: Mapping[str, str | None],
    moment: Moment,
    rules: HealthRules,
) -> DeviceJudgement:
    """Judge free devices.

    :param looks: snapshots of devices that no server has, clean ones and suspect ones.
    :param candidates: the same devices, from the reading.
    :param ill: symptoms of devices that cannot be given in this reading.
    :param roles: roles of all devices that the node offers.
    """
    devices: dict[str, LedgerDevice] = dict(ledger.devices)
    symptoms_found: dict[str, tuple[Symptom, ...]] = {}
    notes: list[str] = []
    for address, look in looks.items():
        symptoms = (
            *baseline_differences_of(ledger.device(address), look, candidates[address].function),
            *excess_errors_of(ledger.device(address), look, moment, rules),
        )
        reason = explain_expected_change(ledger, address, symptoms, moment)
        if reason is not None and not look.silent:
            devices[address] = renew_baseline(ledger.device(address), look, moment)
            symptoms = tuple(symptom for symptom in symptoms if symptom.sign not in EXPECTED)
            notes.append(f"PCI device {address} has changed and is recorded as it is now: {reason}")
        symptoms_found[address] = symptoms
    symptoms_found |= {address: (symptom,) for address, symptom in ill.items()}
    happened = health_states.find_model_events(
        {
            address: change
            for address, device_symptoms in symptoms_found.items()
            if (change := lasting_change_of(device_symptoms))
        },
        {address: recorded_model_of(ledger.device(address)) for address in looks},
        rules,
    )
    symptoms_found = health_states.replace_by_model_events(symptoms_found, happened)
    settled = health_states.settle_device_states(devices, symptoms_found, roles, moment, rules)
    devices |= settled.entries
    for address, look in looks.items():
        devices[address] = _recount_errors(
            devices.get(address, LedgerDevice()), look, symptoms_found[address], moment
        )
    return DeviceJudgement(
        entries={
            address: device
            for address, device in devices.items()
            if device != ledger.device(address)
        },
        reasons={
            address: devices[address].reason
            for address in symptoms_found
            if address in devices and devices[address].state is not DeviceState.OFFERED
        },
        notes=tuple(notes),
        alarms=(*settled.alarms, *(event.text for event in happened)),
    )


def explain_expected_change(
    ledger: Ledger, address: str, symptoms: tuple[Symptom, ...], moment: Moment
) -> str | None:
    """Return why a change is expected; None if it is not, or if there is no change."""
    if not any(symptom.sign in EXPECTED for symptom in symptoms):
        return None
    model = recorded_model_of(ledger.device(address))
    announced = ledger.maintenance
    if announced is not None and announced.covers(moment.wall, model):
        return f"maintenance: {announced.reason}"
    change = lasting_change_of(symptoms)
    for acceptance in ledger.accepted:
        if change and (acceptance.model, acceptance.change) == (model, change):
            return f"accepted for its model: {acceptance.reason}"
    return None


def renew_baseline(device: LedgerDevice, look: DeviceSnapshot, moment: Moment) -> LedgerDevice:
    """Return an entry with the present snapshot as its baseline."""
    return attrs.evolve(device, baseline=look.dumps(), counted=moment.up)


def _recount_errors(
    device: LedgerDevice, look: DeviceSnapshot, symptoms: tuple[Symptom, ...], moment: Moment
) -> LedgerDevice:
    """Restart the count of errors if they were judged, or if an hour had too few to judge.

    :returns: the device's entry of the ledger, changed or as it is.
    """
    many = any(symptom.sign is HealthSign.ERRORS for symptom in symptoms)
    if many:
        tried = device.trial is not None and device.trial.tried == moment.up
        withheld = device.state is not DeviceState.OFFERED
        return restart_error_count(device, look, moment) if tried and withheld else device
    if device.counted is None or not 0 <= moment.up - device.counted < _WINDOW:
        return restart_error_count(device, look, moment)
    return device
