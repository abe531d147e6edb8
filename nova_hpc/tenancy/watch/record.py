# SPDX-License-Identifier: Apache-2.0
"""The memory of a device's watch, which the ledger keeps over a restart of nova-compute.

The key ``watch`` of a device in the ledger::

    {"server": "<uuid>", "boot": "<uuid>", "width": 16, "speed": 32.0, "ids": "de10...",
     "firmware": "28.39.1002", "ports": ["mlx5_0/1"], "counters": {"fatal": 0, "nonfatal": 3},
     "faults": {"link": {"since": 1767225600.0, "reported": true}}}

Writer and readers: nova-compute, and ``nova-hpc device list`` and ``show`` for the faults. A
damaged one is no fault: the watch of the device begins again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from nova_hpc.tenancy.watch.rules import NODE_WORDS, DeviceBest, WatchedDevice
from nova_hpc.tenancy.watch.trail import CounterTrail
from nova_hpc.wire.values import require_count, require_finite, require_type, require_type_or_none
from nova_hpc_common.wire.server_faults import FaultWord


@attrs.frozen
class RecordedFault:
    """A fault of a device in use."""

    #: When it was found, Unix time in seconds.
    since: float
    #: Whether the server has its tag and its instance action.
    reported: bool = False


@attrs.frozen
class WatchRecord:
    """The record of one device and its server."""

    server: str
    #: The boot of the host that the counters belong to; None if unknown.
    boot: str | None = None
    best: DeviceBest = attrs.field(factory=DeviceBest)
    #: Counter -> the value that its growth is counted from.
    counters: Mapping[str, int] = attrs.field(factory=dict, hash=False)
    faults: Mapping[FaultWord, RecordedFault] = attrs.field(factory=dict, hash=False)

    def dumps(self) -> dict[str, Any]:
        """As an object for JSON."""
        body: dict[str, Any] = {"server": self.server}
        values = {
            "boot": self.boot,
            **attrs.asdict(self.best),
            "ports": sorted(self.best.ports),
            "counters": dict(self.counters),
            "faults": {word.value: attrs.asdict(fault) for word, fault in self.faults.items()},
        }
        return body | {key: value for key, value in values.items() if value not in (None, [], {})}

    def text(self, moment_text: Any) -> str:
        """The faults for operators, the worst first; "" if there are none.

        :param moment_text: writes a Unix time.
        """
        return "; ".join(
            f"fault {word.value} since {moment_text(self.faults[word].since)}"
            + ("" if self.faults[word].reported else ", not reported to its owner yet")
            for word in FaultWord
            if word in self.faults
        )


def record_of(
    device: WatchedDevice, boot: str | None, faults: Mapping[FaultWord, RecordedFault]
) -> WatchRecord:
    """Return the record of a device's present state."""
    floors = {name: trail.floor for name, trail in device.trails.items()}
    return WatchRecord(device.server, boot, device.best, floors, faults)


def watched_device_of(record: WatchRecord, boot: str | None, moment: float) -> WatchedDevice:
    """Return the state that a restarted service goes on with.

    After a restart of the host the counters begin again, and so did the guest.
    """
    same = record.boot is not None and record.boot == boot
    best = record.best if same else attrs.evolve(record.best, ids=None, firmware=None)
    return WatchedDevice(
        server=record.server,
        best=best,
        trails={name: CounterTrail.begun(moment, floor) for name, floor in record.counters.items()}
        if same
        else {},
        reported=dict.fromkeys(record.faults),
    )


def load_record(body: Mapping[str, Any] | None) -> WatchRecord | None:
    """Return the record; None if there is none, or if it is damaged.

    Words of a later release are left out.
    """
    if body is None:
        return None
    words = {word.value: word for word in NODE_WORDS}
    try:
        return WatchRecord(
            server=require_type(body["server"], str),
            boot=require_type_or_none(body.get("boot"), str),
            best=DeviceBest(
                width=require_type_or_none(body.get("width"), int),
                speed=None if body.get("speed") is None else require_finite(body["speed"]),
                ids=require_type_or_none(body.get("ids"), str),
                firmware=require_type_or_none(body.get("firmware"), str),
                ports=frozenset(require_type(name, str) for name in body.get("ports", [])),
            ),
            counters={
                name: require_count(value) for name, value in body.get("counters", {}).items()
            },
            faults={
                words[name]: RecordedFault(
                    require_finite(fault["since"]), fault.get("reported", False) is True
                )
                for name, fault in body.get("faults", {}).items()
                if name in words
            },
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
