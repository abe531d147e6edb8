# SPDX-License-Identifier: Apache-2.0
"""What becomes of a device that does not look well: the states and the ways between them.

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
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from nova_hpc.tenancy.sign import Sign, Symptom
from nova_hpc.wire.ledger import Device, State, Trial

#: Nothing would make these right but an operator.
AT_ONCE: Final = frozenset({Sign.FAILED})
#: Quarantined after so many tries; the others come and go with the host's set-up.
GRAVE: Final = frozenset({Sign.SILENT, Sign.LOST, Sign.CHANGED, Sign.ERRORS, Sign.MASTER})
#: Suspicion alone: a guest may provoke them, and whoever got the device would not be harmed.
CAPPED: Final = frozenset({Sign.ERRORS, Sign.LINK, Sign.FUNCTIONS})

_MOST_DOUBLINGS: Final = 40
_SHOWN: Final = 8


@attrs.frozen
class Moment:
    """When a look was made."""

    #: Unix time, seconds. It is shown and never compared.
    wall: float
    #: Seconds of a clock that counts from the boot of the machine.
    up: float
    #: Which boot that is; None: nobody knows.
    boot: str | None = None


@attrs.frozen
class Rules:
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
    def from_options(cls, options: Any) -> Rules:
        """As group ``[hpc]`` of the configuration says."""
        return cls(**{each.name: getattr(options, each.name) for each in attrs.fields(cls)})

    def wait(self, tries: int) -> float:
        """Seconds until the next try of a device that was found ill *tries* times."""
        if tries <= 1:
            return 0.0
        doubled = self.suspect_retry * 2.0 ** min(tries - 2, _MOST_DOUBLINGS)
        return min(doubled, max(self.suspect_retry_most, self.suspect_retry))

    def room(self, devices: int) -> int:
        """How many of so many devices suspicion alone may withhold."""
        return max(1, math.floor(self.suspect_share * devices)) if devices else 0

    def many(self, devices: int) -> int:
        """How many of so many devices of a model change in one event at least."""
        return max(2, math.ceil(self.model_share * devices))

    def tolerated(self, seconds: float) -> float:
        """How many errors in so many seconds are not judged."""
        return self.errors_per_hour * max(1.0, seconds / 3600.0)


@attrs.frozen
class Settled:
    """What a look comes to."""

    #: Address -> entry, of the devices whose entries are different now.
    entries: Mapping[str, Device] = attrs.field(factory=dict, hash=False)
    #: One sentence each, for the log and for who watches the node.
    alarms: tuple[str, ...] = ()


def due(trial: Trial | None, now: Moment, rules: Rules) -> bool:
    """Whether a suspect device is to be tried again."""
    if trial is None or trial.boot != now.boot or now.up < trial.tried:
        return True  # of a release that had no tries, or of another boot
    return now.up - trial.tried >= rules.wait(trial.tries)


def tries_of(trial: Trial | None, now: Moment, rules: Rules) -> int:
    """How often an offered device was tried, less what is forgiven."""
    if trial is None or trial.boot != now.boot or now.up < trial.tried:
        return 0
    if rules.suspect_forgive <= 0:
        return 0
    forgiven = min(float(trial.tries), (now.up - trial.tried) / rules.suspect_forgive)
    return trial.tries - int(forgiven)


def step(device: Device, found: Iterable[Symptom], now: Moment, rules: Rules) -> Device:
    """The entry of one device after a look; the cap is not looked at.

    :param found: everything that is wrong with it, the worst first.
    """
    symptoms = tuple(found)
    if device.state is State.QUARANTINED:
        return device
    first = next((each for each in symptoms if each.sign in AT_ONCE), None)
    if first is not None:
        return _put(device, State.QUARANTINED, first, _more(device, now, rules), now)
    if device.state is State.OFFERED:
        if not symptoms:
            return _unspared(device)
        return _put(device, State.SUSPECT, symptoms[0], _more(device, now, rules), now)
    if not due(device.trial, now, rules):
        return device
    if not symptoms:
        trial = device.trial or Trial()
        trial = attrs.evolve(
            trial, sign="", since=now.wall, tried=now.up, boot=now.boot, spared=False
        )
        return attrs.evolve(device, state=State.OFFERED, reason="", trial=trial)
    tries = (device.trial.tries if device.trial else 0) + 1
    grave = next((each for each in symptoms if each.sign in GRAVE), None)
    if grave is not None and tries >= rules.suspect_tries:
        return _put(device, State.QUARANTINED, grave, tries, now)
    return _put(device, State.SUSPECT, symptoms[0], tries, now)


def _more(device: Device, now: Moment, rules: Rules) -> int:
    if device.state is State.SUSPECT and device.trial is not None:
        return device.trial.tries + 1
    return tries_of(device.trial, now, rules) + 1


def _put(device: Device, state: State, why: Symptom, tries: int, now: Moment) -> Device:
    since = now.wall
    if state is device.state and device.trial is not None:
        since = device.trial.since
    trial = Trial(sign=why.sign.value, since=since, tries=tries, tried=now.up, boot=now.boot)
    return attrs.evolve(device, state=state, reason=why.reason, trial=trial)


def _unspared(device: Device) -> Device:
    if device.trial is None or not device.trial.spared:
        return device
    return attrs.evolve(device, trial=attrs.evolve(device.trial, sign="", spared=False))


def settle(
    known: Mapping[str, Device],
    found: Mapping[str, tuple[Symptom, ...]],
    roles: Mapping[str, str | None],
    now: Moment,
    rules: Rules,
) -> Settled:
    """The entries of a node's devices after a look.

    :param known: entries of all devices of the node.
    :param found: what is wrong with each device that was looked at; (): nothing.
    :param roles: of all devices that the node offers: the cap is a share of them.
    """
    entries = {
        each: step(known.get(each, Device()), symptoms, now, rules)
        for each, symptoms in found.items()
    }
    alarms = []
    for role, members in sorted(_by_role(roles).items()):
        spared = _spared(members, known, entries, found, rules)
        if not spared:
            continue
        for each in spared:
            entries[each] = _spare(known.get(each, Device()), found[each][0], now)
        alarms.append(_alarm(role, len(members), spared, found, rules))
    changed = {each: entry for each, entry in entries.items() if entry != known.get(each, Device())}
    return Settled(changed, tuple(alarms))


def _by_role(roles: Mapping[str, str | None]) -> dict[str, list[str]]:
    members: dict[str, list[str]] = defaultdict(list)
    for each in sorted(roles):
        members[roles[each] or ""].append(each)
    return members


def doubted(device: Device) -> bool:
    """Whether suspicion alone withholds a device."""
    capped = {each.value for each in CAPPED}
    withheld = device.state is not State.OFFERED
    return withheld and device.trial is not None and device.trial.sign in capped


def _spared(
    members: Iterable[str],
    known: Mapping[str, Device],
    entries: Mapping[str, Device],
    found: Mapping[str, tuple[Symptom, ...]],
    rules: Rules,
) -> list[str]:
    """Those of a role that suspicion would withhold beyond its share, and may not."""
    mine = list(members)
    before = [each for each in mine if doubted(known.get(each, Device()))]
    after = {each: entries.get(each, known.get(each, Device())) for each in mine}
    room = rules.room(len(mine)) - sum(1 for each in before if doubted(after[each]))
    # Whoever is withheld already stays so: it is not swapped for another.
    new = [
        each
        for each in mine
        if each not in before
        and known.get(each, Device()).state is not State.QUARANTINED
        and doubted(after[each])
        and all(symptom.sign in CAPPED for symptom in found.get(each, ()))
    ]
    spared = new[max(0, room) :]
    if spared:
        # No further step by suspicion either.
        spared += [
            each
            for each in before
            if known[each].state is State.SUSPECT
            and after[each].state is State.QUARANTINED
            and doubted(after[each])
        ]
    return spared


def _spare(device: Device, why: Symptom, now: Moment) -> Device:
    if doubted(device):
        return device
    trial = device.trial or Trial(tried=now.up, boot=now.boot, since=now.wall)
    trial = attrs.evolve(trial, sign=why.sign.value, spared=True)
    return attrs.evolve(device, state=State.OFFERED, reason="", trial=trial)


def _alarm(
    role: str,
    members: int,
    spared: list[str],
    found: Mapping[str, tuple[Symptom, ...]],
    rules: Rules,
) -> str:
    reasons = Counter(found[each][0].reason for each in spared if found.get(each))
    most = reasons.most_common(1)[0][0] if reasons else "several reasons"
    return (
        f"suspicion may withhold {rules.room(members)} of the {members} devices of role "
        f"{role or '(none)'} ([hpc]suspect_share), so {len(spared)} more stay as they are: "
        f"{shown(spared)} ({most}); look at them, and quarantine those that are bad"
    )


def shown(addresses: Iterable[str]) -> str:
    """Some addresses, for a sentence."""
    all_of_them = sorted(addresses)
    text = ", ".join(all_of_them[:_SHOWN])
    more = len(all_of_them) - _SHOWN
    return f"{text} and {more} more" if more > 0 else text


# -- events of a model ------------------------------------------------------------------


@attrs.frozen
class Event:
    """The same change at many devices of a model."""

    model: str  # vendor:product, and the subsystem's where there is one
    change: str  # for operators
    addresses: tuple[str, ...]
    #: How many devices of the model were looked at.
    looked_at: int

    @property
    def text(self) -> str:
        """What stands as the reason of each of them."""
        return (
            f"{len(self.addresses)} of {self.looked_at} devices of model {self.model} have "
            f"changed alike, as after an update of firmware or driver: {self.change}; if that is "
            f"right: nova-hpc device accept --model {self.model} --reason TEXT"
        )


def events(
    changes: Mapping[str, str], models: Mapping[str, str | None], rules: Rules
) -> list[Event]:
    """The events in what has changed.

    :param changes: address -> how a device differs from its baseline in what cannot
        come right by itself.
    :param models: address -> model of every device that was looked at, by its baseline.
    """
    totals = Counter(model for model in models.values() if model is not None)
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for each, change in changes.items():
        model = models.get(each)
        if model is not None:
            alike[model, change].append(each)
    return [
        Event(model, change, tuple(sorted(addresses)), totals[model])
        for (model, change), addresses in sorted(alike.items())
        if len(addresses) >= rules.many(totals[model])
    ]


def as_event(
    found: Mapping[str, tuple[Symptom, ...]], happened: Iterable[Event]
) -> dict[str, tuple[Symptom, ...]]:
    """What was found, with the change of each device in an event replaced by the event."""
    result = dict(found)
    for event in happened:
        symptom = Symptom(Sign.MODEL, event.text)
        for each in event.addresses:
            rest = tuple(one for one in result.get(each, ()) if one.sign is not Sign.CHANGED)
            result[each] = (symptom, *rest)
    return result


#: Says the time; see :class:`Moment`.
Clock = Callable[[], Moment]
