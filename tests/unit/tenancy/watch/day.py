# SPDX-License-Identifier: Apache-2.0
"""A day of a node: what its devices go through, look by look, and the faults that are put in."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import attrs

from nova_hpc.tenancy.watch.look import FATAL, NONFATAL, DeviceLook
from nova_hpc.tenancy.watch.rules import ServerCondition
from nova_hpc_common.wire.server_faults import FaultWord

DAY: Final = 86400.0
#: Seconds between two looks, and while a device is suspected.
INTERVAL: Final = 15.0
QUICK: Final = 4.0
#: Seconds around an injected fault in which nothing else happens to its device.
_QUIET: Final = 300.0


@attrs.frozen
class Span:
    """Something that happens to one device for a while."""

    kind: str
    begin: float
    end: float

    def holds(self, moment: float) -> bool:
        return self.begin <= moment < self.end


@attrs.frozen
class Injected:
    """A real fault."""

    word: FaultWord
    kind: str
    begin: float
    end: float


#: Kind of a real fault -> its word, and how it shows.
_REAL: Final = {
    "vanished": FaultWord.GONE,
    "silent": FaultWord.GONE,
    "narrow": FaultWord.LINK,
    "slow adapter": FaultWord.LINK,
    "fatal": FaultWord.ERRORS,
    "burst": FaultWord.ERRORS,
    "port": FaultWord.PORT,
    "firmware": FaultWord.FIRMWARE,
}


class Device:
    """One device: a GPU that lowers its link's speed, or a function of an adapter."""

    def __init__(self, seed: int, adapter: bool, kind: str) -> None:
        self.random = random.Random(seed)
        self.adapter = adapter
        begin = self.random.uniform(3600.0, DAY - 3 * 3600.0)
        # A firmware that goes back would be one more change, so it stays.
        end = DAY if kind == "firmware" else begin + self.random.uniform(900, 5400)
        self.injected = Injected(_REAL[kind], kind, begin, end)
        self.spans = list(self._harmless())
        self.nonfatal = sorted(self._lonely_errors())

    def _busy(self, begin: float, end: float) -> bool:
        real = self.injected
        return any(begin < edge + _QUIET and end > edge - _QUIET for edge in (real.begin, real.end))

    def _harmless(self) -> Iterator[Span]:
        """What happens on a healthy node, often."""
        for kind, count, least, most in (
            ("guest reset", 40, 1.0, 9.0),  # registers read as ones
            ("nova reboot", 12, 20.0, 90.0),  # a task of Nova, and errors of the reset
            ("snapshot", 8, 30.0, 600.0),  # a task that leaves the guest alone
            ("retrained", 60, 0.5, 8.0),  # fewer lanes for a moment
            ("asleep", 20, 30.0, 1800.0),
            ("unreadable", 30, 1.0, 60.0),
            ("port flap", 30, 1.0, 9.0),
        ):
            for _ in range(count):
                begin = self.random.uniform(0.0, DAY)
                end = begin + self.random.uniform(least, most)
                if not self._busy(begin, end):
                    yield Span(kind, begin, end)

    def _lonely_errors(self) -> Iterator[float]:
        """Nonfatal errors that are tolerated: one in more than an hour."""
        moment = self.random.uniform(0.0, 9000.0)
        while moment < DAY:
            if abs(moment - self.injected.begin) > 3700.0 or self.injected.kind != "burst":
                yield moment
            moment += self.random.uniform(3700.0, 9000.0)

    def look(self, moment: float) -> tuple[ServerCondition, DeviceLook]:
        """The device at a moment."""
        kinds = {span.kind for span in self.spans if span.holds(moment)}
        real = self.injected.kind if self.injected.begin <= moment < self.injected.end else ""
        standing = ServerCondition.SETTLED
        if "nova reboot" in kinds:
            standing = ServerCondition.RESTART
        elif "snapshot" in kinds:
            standing = ServerCondition.BUSY
        counters = {
            FATAL: int(self.injected.kind == "fatal" and moment >= self.injected.begin),
            NONFATAL: sum(error <= moment for error in self.nonfatal)
            + 5 * (self.injected.kind == "burst" and moment >= self.injected.begin)
            + 9 * sum(span.kind == "nova reboot" and span.begin + 5 <= moment
                      for span in self.spans),
        }  # fmt: skip
        if real == "vanished":
            return standing, DeviceLook(present=False)
        if "unreadable" in kinds and not real:
            return standing, DeviceLook()
        if real == "silent" or kinds & {"guest reset", "nova reboot"}:
            return standing, DeviceLook(present=True, silent=True, counters=counters)
        if "asleep" in kinds and not real:
            return standing, DeviceLook(present=True, asleep=True, counters=counters)
        narrow = real == "narrow" or "retrained" in kinds
        ports = {"mlx5_0/1": not (real == "port" or "port flap" in kinds)} if self.adapter else {}
        speed = None
        if self.adapter:  # the reader gives no speed of a GPU
            speed = 16.0 if real == "slow adapter" or "retrained" in kinds else 32.0
        firmware = "28.40" if real == "firmware" else "28.39"
        return standing, DeviceLook(
            present=True,
            silent=False,
            ids="de1030231020",
            firmware=firmware if self.adapter else None,
            width=self.random.choice((4, 8)) if narrow else 16,
            speed=speed,
            counters=counters,
            ports=ports,
        )


def devices(seed: int) -> list[Device]:
    """Eight devices, each with a real fault of its own kind."""
    kinds = sorted(_REAL)
    return [
        Device(1000 * seed + number, kind in ("port", "firmware", "slow adapter"), kind)
        for number, kind in enumerate(kinds)
    ]
