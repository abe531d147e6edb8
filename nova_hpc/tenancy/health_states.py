# SPDX-License-Identifier: Apache-2.0
"""The states of a device with symptoms, and the transitions between them.

Pure: the ledger's entries, the findings of one check, the time and the thresholds
go in; entries of the ledger and alarms come out. The rules:

* An **offered** device with a symptom becomes **suspect**: no server gets it, and it is
  tried again, first at the next check and then after waits that double.
* A suspect device without symptoms at its trial is offered again. Its former tries are
  forgiven one by one while it stays healthy. So a device with recurring symptoms waits
  longer each time.
* A suspect device with a *grave* symptom is **quarantined** after a number of tries, a device
  that could not be cleaned at once. Only an operator ends a quarantine.
* Suspicion (symptoms that a guest may provoke, or that are harmless) withholds no more
  than a share of a role. Beyond this share there is an alarm, and devices keep their state.
* The same change on many devices of a model is one event: they are suspect until an
  operator accepts it, and none is quarantined for it.

Waits are measured with the clock that counts from the boot, because it cannot be set. The wall
clock is only displayed.

An example, with waits that begin at 60 s and three tries. The times count from the boot.

* 0 s: a GPU is silent. It is suspect, found faulty once, and due at the next check.
* 1 s: still silent: found faulty twice, due after 60 s.
* 30 s: healthy, but not due: it stays suspect.
* 61 s: still silent: the third time, and the sign is grave. It is quarantined.
* 61 s, had it been healthy: offered again. The two times are stored, and one of them is
  forgiven an hour later: silent again at 3,700 s, it counts as found faulty twice and waits 60 s.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.wire.ledger import DeviceState, LedgerDevice, Trial
from nova_hpc_common.outside.name_lists import join_first

#: Signs that only an operator can resolve.
AT_ONCE: Final = frozenset({HealthSign.FAILED})
#: Signs that lead to quarantine after some tries; the others depend on the host's setup.
GRAVE: Final = frozenset(
    {HealthSign.SILENT, HealthSign.LOST, HealthSign.CHANGED, HealthSign.ERRORS, HealthSign.MASTER}
)
#: Suspect only: a guest can provoke these signs, and they do not harm the next server.
CAPPED: Final = frozenset({HealthSign.ERRORS, HealthSign.LINK, HealthSign.FUNCTIONS})

_MOST_DOUBLINGS: Final = 40
_SHOWN: Final = 8


@attrs.frozen
class Moment:
    """The time of a check of devices: wall clock, seconds since boot, and the boot's id."""

    #: Unix time, seconds. It is displayed and never compared.
    wall: float
    #: Seconds of a clock that counts from the boot of the machine.
    up: float
    #: Id of that boot; None if unknown.
    boot: str | None = None


@attrs.frozen
class HealthRules:
    """The thresholds; see the options of the same names in group ``[hpc]``."""

    #: Seconds of the first wait; the first try comes without a wait.
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
        """Build the rules for suspect and quarantined devices from group ``[hpc]`` of nova.conf."""
        return cls(**{field.name: getattr(options, field.name) for field in attrs.fields(cls)})

    def wait(self, tries: int) -> float:
        """Return seconds until the next try of a device that was found faulty *tries* times.

        The defaults give 0 s after the first finding, then 60, 120, 240, 480 and at most 900 s.
        """
        if tries <= 1:
            return 0.0
        doubled = self.suspect_retry * 2.0 ** min(tries - 2, _MOST_DOUBLINGS)
        return min(doubled, max(self.suspect_retry_most, self.suspect_retry))

    def room(self, devices: int) -> int:
        """Return how many of so many devices suspicion may withhold.

        With the default share of 0.25: 1 of 4 devices, 2 of 8 and 2 of 10.
        """
        return max(1, math.floor(self.suspect_share * devices)) if devices else 0

    def many(self, devices: int) -> int:
        """Return how many of a model's devices must change alike to count as one event."""
        return max(2, math.ceil(self.model_share * devices))

    def tolerated(self, seconds: float) -> float:
        """Return the number of errors in so many seconds that are tolerated."""
        return self.errors_per_hour * max(1.0, seconds / 3600.0)


@attrs.frozen
class SettledStates:
    """The result of a check of devices: the ledger's changed entries, and operators' alarms."""

    #: Address -> entry, of the devices whose entries have changed.
    entries: Mapping[str, LedgerDevice] = attrs.field(factory=dict, hash=False)
    #: One sentence each, for the log and for operators who monitor the node.
    alarms: tuple[str, ...] = ()


def is_trial_due(trial: Trial | None, moment: Moment, rules: HealthRules) -> bool:
    """Return whether a suspect device is due for the next trial, by its number of trials so far."""
    if trial is None or trial.boot != moment.boot or moment.up < trial.tried:
        return True  # from a release without tries, or from another boot
    return moment.up - trial.tried >= rules.wait(trial.tries)


def count_unforgiven_tries(trial: Trial | None, moment: Moment, rules: HealthRules) -> int:
    """Count the tries of an offered device, without the forgiven ones."""
    if trial is None or trial.boot != moment.boot or moment.up < trial.tried:
        return 0
    if rules.suspect_forgive <= 0:
        return 0
    forgiven = min(float(trial.tries), (moment.up - trial.tried) / rules.suspect_forgive)
    return trial.tries - int(forgiven)


def advance_device_state(
    device: LedgerDevice, reported: Iterable[Symptom], moment: Moment, rules: HealthRules
) -> LedgerDevice:
    """Return the entry of one device after a check, without applying the cap.

    :param reported: all its symptoms, the worst first.
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
    """Return the entries of a node's devices after a check.

    :param devices: entries of all devices of the node.
    :param symptoms_found: symptoms of each checked device; () if it has none.
    :param roles: roles of all devices that the node offers: the cap is a share of them.
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
    """Whether suspicion is the only reason to withhold a device."""
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
    """Return devices of a role that suspicion would withhold beyond its share."""
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
    # A device that is already withheld stays so: it is not exchanged for another.
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
        # Suspicion also leads to no quarantine then.
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
    """Return the first addresses and the number of the others, for a sentence."""
    return join_first(sorted(addresses), _SHOWN)


# -- events of a model ------------------------------------------------------------------


@attrs.frozen
class ModelEvent:
    """The same change on many devices of a model, such as a firmware update by the operator."""

    model: str  # vendor:product, with the subsystem's if there is one
    change: str  # for operators
    addresses: tuple[str, ...]
    #: Number of the model's devices that were checked.
    looked_at: int

    @property
    def text(self) -> str:
        """The reason in the entry of each of them."""
        return (
            f"{len(self.addresses)} of {self.looked_at} devices of model {self.model} have "
            f"changed alike, as after an update of firmware or driver: {self.change}; if that is "
            f"right: nova-hpc device accept --model {self.model} --reason TEXT"
        )


def find_model_events(
    changes: Mapping[str, str], models: Mapping[str, str | None], rules: HealthRules
) -> list[ModelEvent]:
    """Find events in the changes.

    :param changes: address -> permanent difference of a device from its
        baseline.
    :param models: address -> model of every checked device, from its baseline.
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
    """Return the symptoms, with the change of each device in an event replaced by the event."""
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
