# SPDX-License-Identifier: Apache-2.0
"""Decides when the owner of a server learns of a device's fault, and when it is over.

Pure: a state, a look and a moment in; a state and the changed faults out. A false alarm costs a
user hours, so one look never reports anything:

* A fault is found if all looks of 20 seconds, and two at least, show it and the server is settled.
* It is over after four looks in a row without it. One that comes and goes is reported once.
* A value is compared with the best one that two looks in a row have shown during this tenancy.
* A restart of the guest resets its devices: errors, firmware and identity are compared from there.
* An unknown value is no fault, and it does not end one.

Moments are seconds of ``time.monotonic``, so the host's clock may jump.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from nova_hpc.tenancy.watch.look import (
    DRIVER,
    FATAL,
    NONFATAL,
    PARENT_FATAL,
    PORT_FATAL,
    DeviceLook,
)
from nova_hpc.tenancy.watch.trail import CounterTrail
from nova_hpc_common.wire.server_faults import FaultWord

#: The faults that a node sees. The others are the owner's client's.
NODE_WORDS: Final = frozenset(
    {
        *(FaultWord.GONE, FaultWord.ERRORS, FaultWord.LINK),
        *(FaultWord.PORT, FaultWord.FIRMWARE),
    }
)

#: Looks in a row that find a fault, and that find it over.
LOOKS_TO_FIND: Final = 2
LOOKS_TO_CLEAR: Final = 4
#: Seconds between the first and the last of these looks. A reset takes a few seconds, during
#: which registers read as ones. It never removes the device from the kernel. The watch looks more
#: often as long as it suspects a device, so two short resets are not taken for a long fault.
PATIENCE: Final = 20.0
PATIENCE_OF_ABSENCE: Final = 1.5
PATIENCE_TO_CLEAR: Final = 45.0


class ServerCondition(enum.Enum):
    """The condition of a server in Nova."""

    #: It runs, and Nova does nothing with it.
    SETTLED = "settled"
    #: It is paused or in a task that leaves its guest running, or its state is unknown.
    BUSY = "busy"
    #: Its guest starts, stops or is off: its devices are reset.
    RESTART = "restart"
    #: It is on another node, or deleted.
    AWAY = "away"


@attrs.frozen
class Run:
    """Looks in a row with the same result."""

    since: float
    looks: int = 1

    def longer(self) -> Run:
        """The same with one more look."""
        return Run(self.since, self.looks + 1)

    def lasts(self, looks: int, seconds: float, moment: float) -> bool:
        """Whether it has so many looks over so many seconds."""
        return self.looks >= looks and moment - self.since >= seconds


@attrs.frozen
class DeviceBest:
    """The best values of a device during this tenancy; None if it has not shown any yet."""

    width: int | None = None
    speed: float | None = None
    ids: str | None = None
    firmware: str | None = None
    #: Ports that have been active.
    ports: frozenset[str] = frozenset()

    def then(self, before: DeviceLook, look: DeviceLook) -> DeviceBest:
        """Take over the values that two looks in a row agree on."""
        if before.width == look.width and before.speed == look.speed and look.readable:
            width = max(filter(None, (self.width, look.width)), default=None)
            speed = max(filter(None, (self.speed, look.speed)), default=None)
        else:
            width, speed = self.width, self.speed
        active = {name for name, up in look.ports.items() if up and before.ports.get(name)}
        return DeviceBest(
            width=width,
            speed=speed,
            ids=self.ids or (look.ids if before.ids == look.ids else None),
            firmware=self.firmware or (look.firmware if before.firmware == look.firmware else None),
            ports=self.ports | active,
        )


@attrs.frozen
class WatchedDevice:
    """A device of one server: the memory of its watch."""

    server: str
    best: DeviceBest = attrs.field(factory=DeviceBest)
    #: Counter -> its growth.
    trails: Mapping[str, CounterTrail] = attrs.field(factory=dict, hash=False)
    #: Faults that the last looks have shown, and that are not reported yet.
    suspected: Mapping[FaultWord, Run] = attrs.field(factory=dict, hash=False)
    #: Faults that were reported -> the looks that do not show them any more.
    reported: Mapping[FaultWord, Run | None] = attrs.field(factory=dict, hash=False)
    #: The last look; None after a restart of the guest or of this service.
    last: DeviceLook | None = None

    @property
    def still(self) -> bool:
        """Whether a look like the last one changes nothing."""
        return (
            not self.suspected and not self.reported and all(map(_is_still, self.trails.values()))
        )


def _is_still(trail: CounterTrail) -> bool:
    return trail.still


@attrs.frozen
class WatchStep:
    """The result of one look."""

    device: WatchedDevice
    found: frozenset[FaultWord] = frozenset()
    cleared: frozenset[FaultWord] = frozenset()


def find_faults(
    device: WatchedDevice, look: DeviceLook, errors_per_hour: float
) -> dict[FaultWord, bool | None]:
    """Judge one look, whatever the server does.

    :param errors_per_hour: nonfatal errors of an hour that are no fault.
    :returns: each word of :data:`NODE_WORDS` -> whether it shows; None if that is unknown.
    """
    best = device.best
    if look.asleep:
        gone: bool | None = look.left_guest
    elif look.left_guest or look.present is False or look.silent:
        gone = True
    else:
        gone = False if look.present and look.silent is False else None
    differs = [
        current != value
        for value, current in ((best.ids, look.ids), (best.firmware, look.firmware))
        if value is not None and current is not None
    ]
    narrow = [
        current < value
        for value, current in ((best.width, look.width), (best.speed, look.speed))
        if value is not None and current is not None
    ]
    down = [not look.ports[name] for name in best.ports if name in look.ports]
    return {
        FaultWord.GONE: gone,
        FaultWord.ERRORS: _has_errors(device, look, errors_per_hour),
        FaultWord.LINK: any(narrow) if narrow else None,
        FaultWord.PORT: any(down) if down else None,
        FaultWord.FIRMWARE: any(differs) if differs else None,
    }


def _has_errors(device: WatchedDevice, look: DeviceLook, errors_per_hour: float) -> bool | None:
    """Whether the counters have grown: one fatal error, or more nonfatal ones than tolerated."""
    grown = {
        name: device.trails[name].growth(value)
        for name, value in look.counters.items()
        if name in device.trails
    }
    if not grown:
        return None
    severe = any(grown.get(name) for name in (FATAL, PARENT_FATAL, PORT_FATAL, DRIVER))
    return severe or grown.get(NONFATAL, 0) > errors_per_hour


def judge_look(
    device: WatchedDevice,
    look: DeviceLook,
    standing: ServerCondition,
    moment: float,
    errors_per_hour: float = 1.0,
) -> WatchStep:
    """Return the state after one more look, and the faults that are reported or over with it.

    :param standing: the condition of the device's server.
    :param moment: seconds of a clock that only goes forward.
    """
    if standing is ServerCondition.AWAY:
        return WatchStep(WatchedDevice(device.server), cleared=frozenset(device.reported))
    if standing is ServerCondition.RESTART:
        # The looks of a restart show a device in a reset, so nothing of them is kept.
        begun = WatchedDevice(
            server=device.server,
            best=attrs.evolve(device.best, ids=None, firmware=None),
            reported=dict.fromkeys(device.reported),
        )
        return WatchStep(begun)
    trails = dict(device.trails)
    for name, value in look.counters.items():
        trail = trails.get(name)
        trails[name] = (
            CounterTrail.begun(moment, value) if trail is None else trail.then(moment, value)
        )
    best = device.best if device.last is None else device.best.then(device.last, look)
    device = attrs.evolve(device, trails=trails, best=best, last=look)
    if standing is ServerCondition.BUSY or look.asleep or look.resetting:
        return WatchStep(
            attrs.evolve(device, suspected={}, reported=dict.fromkeys(device.reported))
        )
    return _confirm(device, look, find_faults(device, look, errors_per_hour), moment)


def _confirm(
    device: WatchedDevice,
    look: DeviceLook,
    faults: Mapping[FaultWord, bool | None],
    moment: float,
) -> WatchStep:
    """Count the looks in a row for and against each fault."""
    suspected: dict[FaultWord, Run] = {}
    reported: dict[FaultWord, Run | None] = dict(device.reported)
    found, cleared = set(), set()
    for word, faulty in faults.items():
        if word in reported:
            well = reported[word]
            reported[word] = None
            if faulty is False:
                well = Run(moment) if well is None else well.longer()
                reported[word] = well
                if well.lasts(LOOKS_TO_CLEAR, PATIENCE_TO_CLEAR, moment):
                    cleared.add(word)
                    del reported[word]
        elif faulty:
            run = device.suspected.get(word)
            run = Run(moment) if run is None else run.longer()
            patience = PATIENCE_OF_ABSENCE if look.present is False else PATIENCE
            confirmed = word is FaultWord.GONE and look.left_guest
            if confirmed or run.lasts(LOOKS_TO_FIND, patience, moment):
                found.add(word)
                reported[word] = None
            else:
                suspected[word] = run
    return WatchStep(
        attrs.evolve(device, suspected=suspected, reported=reported),
        frozenset(found),
        frozenset(cleared),
    )
