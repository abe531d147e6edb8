# SPDX-License-Identifier: Apache-2.0
"""What one look at a node's free devices comes to: states, new baselines, alarms.

Pure: what was read, what the ledger says and the time go in; entries of the ledger come
out. The states are those of :mod:`nova_hpc.tenancy.health_states`; here a look becomes symptoms,
and a change that an operator has announced or accepted becomes a baseline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.tenancy import health_states as policy
from nova_hpc.tenancy.health_states import Moment, Rules
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene.baseline import Snapshot
from nova_hpc.tenancy.hygiene.snapshots import baseline_of, counted, differences_of, errors_of
from nova_hpc.tenancy.sign import Sign, Symptom
from nova_hpc.tenancy.step import Candidate
from nova_hpc.wire.ledger import SOMEBODY, Device, Ledger, State

#: What an operator can expect to change.
EXPECTED: Final = frozenset({Sign.CHANGED, Sign.FUNCTIONS})
#: Seconds after which errors that are tolerated are forgotten.
_WINDOW: Final = 3600.0


@attrs.frozen
class Judgement:
    """What a look comes to."""

    #: Address -> entry, of the devices whose entries are different now.
    entries: Mapping[str, Device] = attrs.field(factory=dict, hash=False)
    #: Address -> why it must not be offered.
    reasons: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: One sentence each, for the log.
    notes: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()


def model_of(device: Device) -> str | None:
    """The model of a device, as it was recorded; see baseline.model_of."""
    known = baseline_of(device)
    return None if known is None else baseline.model_of(known)


def change_of(symptoms: tuple[Symptom, ...]) -> str:
    """How a device differs in what cannot come right by itself; "": it does not."""
    return "; ".join(each.change for each in symptoms if each.sign is Sign.CHANGED)


def judge(
    ledger: Ledger,
    looks: Mapping[str, Snapshot],
    candidates: Mapping[str, Candidate],
    ill: Mapping[str, Symptom],
    roles: Mapping[str, str | None],
    now: Moment,
    rules: Rules,
) -> Judgement:
    """Judge free devices.

    :param looks: at devices that nobody has, clean ones and suspect ones.
    :param candidates: the same devices, as they were read.
    :param ill: those that cannot be given as the node looks now.
    :param roles: of everything that the node offers.
    """
    devices: dict[str, Device] = dict(ledger.devices)
    found: dict[str, tuple[Symptom, ...]] = {}
    notes: list[str] = []
    for each, look in looks.items():
        symptoms = (
            *differences_of(ledger.device(each), look, candidates[each].function),
            *errors_of(ledger.device(each), look, now, rules),
        )
        why = expected(ledger, each, symptoms, now)
        if why is not None and not look.silent:
            devices[each] = renewed(ledger.device(each), look, now)
            symptoms = tuple(one for one in symptoms if one.sign not in EXPECTED)
            notes.append(f"PCI device {each} has changed and is recorded as it is now: {why}")
        found[each] = symptoms
    found |= {each: (symptom,) for each, symptom in ill.items()}
    happened = policy.events(
        {each: change for each, one in found.items() if (change := change_of(one))},
        {each: model_of(ledger.device(each)) for each in looks},
        rules,
    )
    found = policy.as_event(found, happened)
    settled = policy.settle(devices, found, roles, now, rules)
    devices |= settled.entries
    for each, look in looks.items():
        devices[each] = _recount(devices.get(each, Device()), look, found[each], now)
    return Judgement(
        entries={each: one for each, one in devices.items() if one != ledger.device(each)},
        reasons={
            each: devices[each].reason
            for each in found
            if each in devices and devices[each].state is not State.OFFERED
        },
        notes=tuple(notes),
        alarms=(*settled.alarms, *(event.text for event in happened)),
    )


def expected(
    ledger: Ledger, address: str, symptoms: tuple[Symptom, ...], now: Moment
) -> str | None:
    """Why a change is right; None: nobody said so, or there is none."""
    if not any(each.sign in EXPECTED for each in symptoms):
        return None
    model = model_of(ledger.device(address))
    announced = ledger.maintenance
    if announced is not None and announced.covers(now.wall, model):
        return f"maintenance: {announced.reason}"
    change = change_of(symptoms)
    for each in ledger.accepted:
        if change and (each.model, each.change) == (model, change):
            return f"accepted for its model: {each.reason}"
    return None


def is_change(device: Device) -> bool:
    """Whether a device is withheld because it has changed."""
    sign = "" if device.trial is None else device.trial.sign
    return device.state is not State.OFFERED and sign in (Sign.CHANGED.value, Sign.MODEL.value)


def accepted(device: Device, look: Snapshot, now: Moment) -> Device:
    """The entry of a device whose change an operator accepts.

    One that is withheld for the change has to be cleaned, and is tried at once.
    """
    found = attrs.evolve(renewed(device, look, now), unreported=False)
    if not is_change(device):
        sign = "" if device.trial is None else device.trial.sign
        if device.state is State.SUSPECT and sign == Sign.FUNCTIONS.value:
            return attrs.evolve(found, state=State.OFFERED, reason="", trial=None)
        return found
    server = device.server
    if device.state is State.QUARANTINED:
        server = server or device.last_server or SOMEBODY
        return attrs.evolve(found, state=State.SUSPECT, trial=None, server=server)
    if server is None:
        return attrs.evolve(found, state=State.OFFERED, reason="", trial=None)
    return attrs.evolve(found, trial=None)


def renewed(device: Device, look: Snapshot, now: Moment) -> Device:
    """An entry with what a device looks like now for its baseline."""
    return attrs.evolve(device, baseline=look.dumps(), counted=now.up)


def _recount(device: Device, look: Snapshot, symptoms: tuple[Symptom, ...], now: Moment) -> Device:
    """When errors are counted anew: they were judged, or an hour had less than is judged."""
    many = any(each.sign is Sign.ERRORS for each in symptoms)
    if many:
        tried = device.trial is not None and device.trial.tried == now.up
        withheld = device.state is not State.OFFERED
        return counted(device, look, now) if tried and withheld else device
    if device.counted is None or not 0 <= now.up - device.counted < _WINDOW:
        return counted(device, look, now)
    return device
