# SPDX-License-Identifier: Apache-2.0
"""The states of a device that does not look well, and the ways between them.

Pure: what the ledger knows, what one look has found, the time and the thresholds
go in; entries of the ledger and alarms come out. The rules:

* an **offered** device with a symptom becomes **suspect**: nobody gets it, and it is
  tried again, at the next look first and then after waits that double;
* a suspect device that is tried and well is offered again; how often it was tried is
  forgiven bit by bit as long as it stays well, so that one which comes and goes waits
  longer each time;
* a suspect device with a *grave* symptom is **quarantined** after so many tries, one
  that could not be cleaned at once; only an operator ends that;
* suspicion alone (what a guest may provoke, and what harms nobody) withholds no more
  than a share of a role; beyond that there is an alarm, and devices stay as they are;
* the same change at many devices of a model is one event: they are suspect until an
  operator accepts it, and none is quarantined for it.

Waits are measured by the clock that counts from the boot, which nobody sets. The time
of day is only shown.

An example, with waits that begin at 60 s and three tries. The times count from the boot.

* 0 s: a GPU is silent. It is suspect, found ill once, and due at the next look.
* 1 s: still silent: found ill twice, due after 60 s.
* 30 s: well, and not due: it stays suspect.
* 61 s: still silent: the third time, and the sign is grave. It is quarantined.
* 61 s, had it been well: offered again. The two times are remembered, and one of them is
  forgiven an hour later: silent again at 3,700 s, it counts as found ill twice and waits 60 s.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from nova_hpc.outside.name_lists import join_first
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.wire.ledger import DeviceState, LedgerDevice, Trial

#: Nothing would make these right but an operator.
AT_ONCE: Final = frozenset({HealthSign.FAILED})
#: Quarantined after so many tries; the others come and go with the host's set-up.
GRAVE: Final = frozenset(
    {HealthSign.SILENT, HealthSign.LOST, HealthSign.CHANGED, HealthSign.ERRORS, HealthSign.MASTER}
)
#: Suspicion alone: a guest may provoke them, and whoever got the device would not be harmed.
CAPPED: Final = frozenset({HealthSign.ERRORS, HealthSign.LINK, HealthSign.FUNCTIONS})

_MOST_DOUBLINGS: Final = 40
_SHOWN: Final = 8


@attrs.frozen
class Moment:
    """The time of a look."""

    #: Unix time, seconds. It is shown and never compared.
    wall: float
    #: Seconds of a clock that counts from the boot of the machine.
    up: float
    #: Which boot that is; None: unknown.
    boot: str | None = None


@attrs.frozen
class HealthRules:
    """The thresholds; see the options of the same names in group ``[hpc]``."""

    #: Seconds of the first wait; the very first try comes without one.
    suspect_retry: float = 60.0
    suspect_retry_most: float = 900.0
    suspect_tries: int = 8
    #: Seconds after which one try is forgiven.
    suspect_forgive: float = 3600.0
    #: Part of a role's devices, 0 to 1; never less than one device.
    suspect_share: float = 0.25
    errors_per_hour: float = 1.0
    #: Part of a model's devices, 0 to 1; never less than two devices.
    model_share: float = 0.5

    @classmethod
    def from_options(cls, options: Any) -> HealthRules:
        """As group ``[hpc]`` of the configuration says."""
        return cls(**{field.name: getattr(options, field.name) for field in attrs.fields(cls)})

    def wait(self, tries: int) -> float:
        """Seconds until the next try of a device that was found ill *tries* times."""
        if tries <= 1:
            return 0.0
        doubled = self.suspect_retry * 2.0 ** min(tries - 2, _MOST_DOUBLINGS)
        return min(doubled, max(self.suspect_retry_most, self.suspect_retry))

    def room(self, devices: int) -> int:
        """The number of so many devices that suspicion alone may withhold."""
        return max(1, math.floor(self.suspect_share * devices)) if devices else 0

    def many(self, devices: int) -> int:
        """The least number of so many devices of a model that change in one event."""
        return max(2, math.ceil(self.model_share * devices))

    def tolerated(self, seconds: float) -> float:
        """The number of errors in so many seconds that are not judged."""
        return self.errors_per_hour * max(1.0, seconds / 3600.0)


@attrs.frozen
class SettledStates:
    """The result of a look."""

    #: Address -> entry, of the devices whose entries are different now.
    entries: Mapping[str, LedgerDevice] = attrs.field(factory=dict, hash=False)
    #: One sentence each, for the log and for who watches the node.
    alarms: tuple[str, ...] = ()


def is_trial_due(trial: Trial | None, moment: Moment, rules: HealthRules) -> bool:
    """Whether a suspect device is to be tried again."""
    if trial is None or trial.boot != moment.boot or moment.up < trial.tried:
        return True  # of a release that had no tries, or of another boot
    return moment.up - trial.tried >= rules.wait(trial.tries)


def count_unforgiven_tries(trial: Trial | None, moment: Moment, rules: HealthRules) -> int:
    """Count the tries of an offered device, less what is forgiven."""
    if trial is None or trial.boot != moment.boot or moment.up < trial.tried:
        return 0
    if rules.suspect_forgive <= 0:
        return 0
    forgiven = min(float(trial.tries), (moment.up - trial.tried) / rules.suspect_forgive)
    return trial.tries - int(forgiven)


def advance_device_state(
    device: LedgerDevice, reported: Iterable[Symptom], moment: Moment, rules: HealthRules
) -> LedgerDevice:
    """The entry of one device after a look; the cap is not looked at.

    :param reported: everything that is wrong with it, the worst first.
    """
    symptoms = tuple(reported)
    if device.state is DeviceState.QUARANTINED:
        return device
    first = next((symptom for symptom in symptoms if symptom.sign in AT_ONCE), None)
    if first is not None:
        return _put_into_state(
            device, DeviceState.QUARANTINED, first, _count_next_try(device, moment, rules), moment
        )
    if device.state is DeviceState.OFFERED:
        if not symptoms:
            return _clear_spared_mark(device)
        return _put_into_state(
            device, DeviceState.SUSPECT, symptoms[0], _count_next_try(device, moment, rules), moment
        )
    if not is_trial_due(device.trial, moment, rules):
        return device
    if not symptoms:
        trial = device.trial or Trial()
        trial = attrs.evolve(
            trial, sign="", since=moment.wall, tried=moment.up, boot=moment.boot, spared=False
        )
        return attrs.evolve(device, state=DeviceState.OFFERED, reason="", trial=trial)
    tries = (device.trial.tries if device.trial else 0) + 1
    grave = next((symptom for symptom in symptoms if symptom.sign in GRAVE), None)
    if grave is not None and tries >= rules.suspect_tries:
        return _put_into_state(device, DeviceState.QUARANTINED, grave, tries, moment)
    return _put_into_state(device, DeviceState.SUSPECT, symptoms[0], tries, moment)


def _count_next_try(device: LedgerDevice, moment: Moment, rules: HealthRules) -> int:
    if device.state is DeviceState.SUSPECT and device.trial is not None:
        return device.trial.tries + 1
    return count_unforgiven_tries(device.trial, moment, rules) + 1


def _put_into_state(
    device: LedgerDevice, state: DeviceState, symptom: Symptom, tries: int, moment: Moment
) -> LedgerDevice:
    since = moment.wall
    if state is device.state and device.trial is not None:
        since = device.trial.since
    trial = Trial(
        sign=symptom.sign.value, since=since, tries=tries, tried=moment.up, boot=moment.boot
    )
    return attrs.evolve(device, state=state, reason=symptom.reason, trial=trial)


def _clear_spared_mark(device: LedgerDevice) -> LedgerDevice:
    if device.trial is None or not device.trial.spared:
        return device
    return attrs.evolve(device, trial=attrs.evolve(device.trial, sign="", spared=False))


def settle_device_states(
    devices: Mapping[str, LedgerDevice],
    symptoms_found: Mapping[str, tuple[Symptom, ...]],
    roles: Mapping[str, str | None],
    moment: Moment,
    rules: HealthRules,
) -> SettledStates:
    """The entries of a node's devices after a look.

    :param devices: entries of all devices of the node.
    :param symptoms_found: what is wrong with each device that was looked at; (): nothing.
    :param roles: of all devices that the node offers: the cap is a share of them.
    """
    entries = {
        address: advance_device_state(devices.get(address, LedgerDevice()), symptoms, moment, rules)
        for address, symptoms in symptoms_found.items()
    }
    alarms = []
    for role, members in sorted(_addresses_by_role(roles).items()):
        spared = _choose_spared_devices(members, devices, entries, symptoms_found, rules)
        if not spared:
            continue
        for address in spared:
            entries[address] = _spare_device(
                devices.get(address, LedgerDevice()), symptoms_found[address][0], moment
            )
        alarms.append(_share_alarm_text(role, len(members), spared, symptoms_found, rules))
    changed = {
        address: entry
        for address, entry in entries.items()
        if entry != devices.get(address, LedgerDevice())
    }
    return SettledStates(changed, tuple(alarms))


def _addresses_by_role(roles: Mapping[str, str | None]) -> dict[str, list[str]]:
    members: dict[str, list[str]] = defaultdict(list)
    for address in sorted(roles):
        members[roles[address] or ""].append(address)
    return members


def is_withheld_by_suspicion(device: LedgerDevice) -> bool:
    """Whether suspicion alone withholds a device."""
    capped = {sign.value for sign in CAPPED}
    withheld = device.state is not DeviceState.OFFERED
    return withheld and device.trial is not None and device.trial.sign in capped


def _choose_spared_devices(
    members: Iterable[str],
    devices: Mapping[str, LedgerDevice],
    entries: Mapping[str, LedgerDevice],
    symptoms_found: Mapping[str, tuple[Symptom, ...]],
    rules: HealthRules,
) -> list[str]:
    """Those of a role that suspicion would withhold beyond its share, and may not."""
    addresses = list(members)
    before = [
        address
        for address in addresses
        if is_withheld_by_suspicion(devices.get(address, LedgerDevice()))
    ]
    after = {
        address: entries.get(address, devices.get(address, LedgerDevice())) for address in addresses
    }
    room = rules.room(len(addresses)) - sum(
        1 for address in before if is_withheld_by_suspicion(after[address])
    )
    # Whoever is withheld already stays so: it is not swapped for another.
    new = [
        address
        for address in addresses
        if address not in before
        and devices.get(address, LedgerDevice()).state is not DeviceState.QUARANTINED
        and is_withheld_by_suspicion(after[address])
        and all(symptom.sign in CAPPED for symptom in symptoms_found.get(address, ()))
    ]
    spared = new[max(0, room) :]
    if spared:
        # No further step by suspicion either.
        spared += [
            address
            for address in before
            if devices[address].state is DeviceState.SUSPECT
            and after[address].state is DeviceState.QUARANTINED
            and is_withheld_by_suspicion(after[address])
        ]
    return spared


def _spare_device(device: LedgerDevice, symptom: Symptom, moment: Moment) -> LedgerDevice:
    if is_withheld_by_suspicion(device):
        return device
    trial = device.trial or Trial(tried=moment.up, boot=moment.boot, since=moment.wall)
    trial = attrs.evolve(trial, sign=symptom.sign.value, spared=True)
    return attrs.evolve(device, state=DeviceState.OFFERED, reason="", trial=trial)


def _share_alarm_text(
    role: str,
    members: int,
    spared: list[str],
    symptoms_found: Mapping[str, tuple[Symptom, ...]],
    rules: HealthRules,
) -> str:
    reasons = Counter(
        symptoms_found[address][0].reason for address in spared if symptoms_found.get(address)
    )
    most = reasons.most_common(1)[0][0] if reasons else "several reasons"
    return (
        f"suspicion may withhold {rules.room(members)} of the {members} devices of role "
        f"{role or '(none)'} ([hpc]suspect_share), so {len(spared)} more stay as they are: "
        f"{shorten_address_list(spared)} ({most}); look at them, and quarantine those that are bad"
    )


def shorten_address_list(addresses: Iterable[str]) -> str:
    """Some addresses, for a sentence."""
    return join_first(sorted(addresses), _SHOWN)


# -- events of a model ------------------------------------------------------------------


@attrs.frozen
class ModelEvent:
    """The same change at many devices of a model."""

    model: str  # vendor:product, and the subsystem's where there is one
    change: str  # for operators
    addresses: tuple[str, ...]
    #: How many devices of the model were looked at.
    looked_at: int

    @property
    def text(self) -> str:
        """The reason that each of them gets."""
        return (
            f"{len(self.addresses)} of {self.looked_at} devices of model {self.model} have "
            f"changed alike, as after an update of firmware or driver: {self.change}; if that is "
            f"right: nova-hpc device accept --model {self.model} --reason TEXT"
        )


def find_model_events(
    changes: Mapping[str, str], models: Mapping[str, str | None], rules: HealthRules
) -> list[ModelEvent]:
    """The events in what has changed.

    :param changes: address -> how a device differs from its baseline in what cannot
        come right by itself.
    :param models: address -> model of every device that was looked at, by its baseline.
    """
    totals = Counter(model for model in models.values() if model is not None)
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for address, change in changes.items():
        model = models.get(address)
        if model is not None:
            alike[model, change].append(address)
    return [
        ModelEvent(model, change, tuple(sorted(addresses)), totals[model])
        for (model, change), addresses in sorted(alike.items())
        if len(addresses) >= rules.many(totals[model])
    ]


def replace_by_model_events(
    symptoms_found: Mapping[str, tuple[Symptom, ...]], happened: Iterable[ModelEvent]
) -> dict[str, tuple[Symptom, ...]]:
    """The symptoms found, with the change of each device in an event replaced by the event."""
    result = dict(symptoms_found)
    for event in happened:
        symptom = Symptom(HealthSign.MODEL, event.text)
        for address in event.addresses:
            rest = tuple(
                former
                for former in result.get(address, ())
                if former.sign is not HealthSign.CHANGED
            )
            result[address] = (symptom, *rest)
    return result
