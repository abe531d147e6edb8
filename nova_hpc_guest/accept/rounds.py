# SPDX-License-Identifier: Apache-2.0
"""Rounds in turns (A B B A) until every probe is decided, or the budget ends.

A *source* gives one round of the baseline and one of this machine. Another machine, a file,
or this machine itself with one thing changed is the baseline.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from ..document import GuestDocument
from .evidence import BESIDE, FILE, AcceptanceRow, judge_probe
from .facts import GuestFacts
from .own_probes import OwnProbes
from .probes import OWN, PROBE_OF, Probe
from .ratio import LEAST_PAIRS, UNDECIDED
from .sample import AcceptanceError, Reading, Sample, read_sample
from .tools import find_last_line, run_tool

#: Pairs after which a probe stays undecided, whatever the budget.
MOST_ROUNDS: Final = 60
_BESIDE_LIMIT: Final = 900.0
#: Payload part of a PCIe link: of 130 bits a symbol carries 128, and below 8 GT/s 8 of 10.
_ENCODING: Final = 128 / 130
_OLD_ENCODING: Final = 0.8
_OLD_SPEED: Final = 5.0
_LEAST_LARGE: Final = 0.3


class MeasuredMachine(Protocol):
    """Interface to the machine to be measured."""

    def measure_round(
        self, probes: Sequence[Probe], settings: Mapping[str, str] | None = None
    ) -> Sample:
        """Run each probe once on the machine; return the readings.

        :param settings: changed settings for this round; None for none.
        """


class RoundSource(Protocol):
    """Interface to the two sides of a comparison: baseline and tested machine."""

    def find_baseline(self, probe: Probe) -> str | None:
        """Return the kind of a probe's baseline; None if the probe is not compared."""

    def take_turn(self, probes: Sequence[Probe], turn: int) -> tuple[Sample | None, Sample]:
        """Measure one round of each side; the baseline's is None if the baseline is a file.

        :param turn: number of the round; the order of the sides alternates.
        """


class Series(NamedTuple):
    """All rounds of both sides, and the results of the probes."""

    rows: dict[str, AcceptanceRow]
    base: list[Sample]
    test: list[Sample]
    rounds: int
    #: The budget ended before everything was decided.
    short: bool


class OwnSource:
    """Source that compares this machine with itself, with one thing changed for each probe."""

    def __init__(
        self, machine: MeasuredMachine, facts: GuestFacts, ceilings: Mapping[str, float]
    ) -> None:
        self._machine = machine
        self._online = len(facts.online)
        self._allowed = len(facts.allowed)
        self._ceilings = ceilings

    def find_baseline(self, probe: Probe) -> str | None:
        """Return the setting that a probe is compared with; None if it cannot be made here."""
        if probe.alone is None or probe.of is not None:
            return None
        if probe.alone.startswith("ceiling=") and probe.alone not in self._ceilings:
            return None
        if probe.alone == "cpu=other" and self._allowed < 2:
            return None
        if probe.alone == "cpus=sum" and self._online < 2:
            return None
        return probe.alone

    def take_turn(self, probes: Sequence[Probe], turn: int) -> tuple[Sample | None, Sample]:
        """Measure this machine with the changed settings and as it is; the order alternates."""
        wanted = list(probes)
        names = {probe.name for probe in wanted}
        if "cpu_all" in names and "cpu_one" not in names:
            wanted.append(PROBE_OF["cpu_one"])
        if turn % 2 == 0:
            changed = self._measure_changed(probes)
            test = self._machine.measure_round(wanted)
        else:
            test = self._machine.measure_round(wanted)
            changed = self._measure_changed(probes)
        readings: dict[str, Reading] = {}
        facts = test.facts
        for sample in changed:
            readings.update(sample.readings)
            if "blas" in sample.readings:
                facts = facts._replace(blas=sample.facts.blas, blas_core=sample.facts.blas_core)
        one = test.readings.get("cpu_one")
        if "cpu_all" in names and one is not None:
            readings["cpu_all"] = one._replace(
                value=one.value * self._online, own=one.own * self._online
            )
        for probe in probes:
            ceiling = self._ceilings.get(probe.alone or "")
            if ceiling is not None:
                readings[probe.name] = Reading(ceiling)
        return Sample(facts, readings, {}), test

    def _measure_changed(self, probes: Sequence[Probe]) -> list[Sample]:
        samples = []
        for probe in probes:
            setting = self.find_baseline(probe)
            if setting is not None and setting != "cpus=sum" and setting not in self._ceilings:
                samples.append(self._machine.measure_round([probe], parse_setting(setting)))
        return samples


class BesideSource:
    """Source that compares with another machine, measured by a command that prints a sample."""

    def __init__(
        self,
        machine: MeasuredMachine,
        command: str,
        environment: Mapping[str, str],
        scale: float = 1.0,
        own: Sequence[OwnProbes] = (),
    ) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise AcceptanceError(f"--beside {command!a}: {error}") from error
        if not self._words:
            raise AcceptanceError("--beside is empty")
        self._machine = machine
        self._environment = environment
        self._more = ["--scale", f"{scale:g}", *(word for file in own for word in file.words)]
        self._limit = _BESIDE_LIMIT + sum(probe.limit for file in own for probe in file.probes)

    def find_baseline(self, _: Probe) -> str | None:
        """Return :data:`BESIDE` for every probe: the other machine is the baseline."""
        return BESIDE

    def take_turn(self, probes: Sequence[Probe], turn: int) -> tuple[Sample | None, Sample]:
        """Measure both machines; the order alternates with the number of the turn."""
        if turn % 2 == 0:
            base = self.ask_other(probes)
            return base, self._machine.measure_round(probes)
        test = self._machine.measure_round(probes)
        return self.ask_other(probes), test

    def ask_other(self, probes: Sequence[Probe]) -> Sample:
        """Measure one round on the other machine by its command.

        :raises AcceptanceError: it did not answer, or with something else than a sample.
        """
        names = ",".join(probe.name for probe in probes)
        done = run_tool(
            [*self._words, "--only", names, *self._more], self._environment, self._limit
        )
        # Skip output of ssh and shells before the sample.
        text = next((line for line in done.output.splitlines() if line.startswith("{")), "")
        # A sample without a value has a status of failure, and its reasons.
        if done.problem is not None and not text:
            last = find_last_line(done.output)
            raise AcceptanceError(f"the machine beside: {done.problem}: {last!a}")
        return read_sample(text)


class FileSource:
    """Source that compares with runs in a baseline file."""

    def __init__(self, machine: MeasuredMachine, samples: Sequence[Sample]) -> None:
        self._machine = machine
        self.samples = samples

    def find_baseline(self, probe: Probe) -> str | None:
        """Return :data:`FILE` if the file has enough runs of the probe; else None."""
        count = sum(probe.name in sample.readings for sample in self.samples)
        return FILE if count >= LEAST_PAIRS else None

    def take_turn(self, probes: Sequence[Probe], turn: int) -> tuple[Sample | None, Sample]:
        """Measure this machine; the baseline's side is None."""
        return None, self._machine.measure_round(probes)


def run_series(
    source: RoundSource,
    probes: Sequence[Probe],
    floors: Mapping[str, float],
    least: int,
    budget: float,
    progress: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Series:
    """Take turns until all is decided.

    A probe stays pending until it has *least* pairs and its verdict is clear. The rounds stop early
    if another round, as long as the last one, would exceed the budget.

    :param floors: probe -> floor, for floors other than the probe's own.
    :param least: pairs that each probe gets before it is judged.
    :param budget: seconds.
    """
    start = clock()
    base: list[Sample] = list(source.samples) if isinstance(source, FileSource) else []
    test: list[Sample] = []
    rows: dict[str, AcceptanceRow] = {}
    pending = [probe for probe in probes if probe.most is None or probe.most > 0]
    turn, longest, short = 0, 0.0, False
    while pending and turn < MOST_ROUNDS:
        began = clock()
        if turn and began - start + longest > budget:
            short = True
            break
        progress(f"round {turn + 1}: {', '.join(probe.name for probe in pending)}")
        old, new = source.take_turn(pending, turn)
        longest = clock() - began
        if old is not None:
            base.append(old)
        test.append(new)
        failed = {*new.failed, *(old.failed if old is not None else ())}
        turn += 1
        rows = judge_series(source, probes, base, test, floors)
        pending = [
            probe
            for probe in pending
            if (probe.most is None or turn < probe.most)
            and (turn < least or _is_open(probe, rows))
            # A wrong pattern is reported after one run, not after an hour.
            and not (probe.tier == OWN and probe.name in failed)
        ]
    return Series(rows, base, test, turn, short or any(map(_is_undecided, rows.values())))


def judge_series(
    source: RoundSource,
    probes: Sequence[Probe],
    base: Sequence[Sample],
    test: Sequence[Sample],
    floors: Mapping[str, float],
) -> dict[str, AcceptanceRow]:
    """Judge the probes by the rounds so far; return probe -> result.

    :param floors: probe -> ratio below which it is slow.
    """
    rows = {}
    for probe in probes:
        against = source.find_baseline(probe)
        if against is None or (probe.most is not None and probe.most < LEAST_PAIRS):
            continue
        old, new = pair_readings(probe.name, base, test, against)
        if old and new:
            floor = floors.get(probe.name)
            if floor is None:
                alone = against not in (BESIDE, FILE) and probe.alone_floor is not None
                floor = probe.alone_floor if alone else probe.floor
            rows[probe.name] = judge_probe(probe, old, new, against, floor or probe.floor)
    return rows


def pair_readings(
    name: str, base: Sequence[Sample], test: Sequence[Sample], against: str
) -> tuple[list[Reading], list[Reading]]:
    """Return the readings of a probe of both sides, in pairs; unpaired readings are left out.

    Readings of a baseline file are not paired.
    """
    if against == FILE:
        sides: Any = ([sample.readings.get(name) for sample in side] for side in (base, test))
        old, new = ([reading for reading in side if reading is not None] for side in sides)
        return old, new
    pairs = [
        (first.readings[name], second.readings[name])
        for first, second in zip(base, test)  # noqa: B905
        if name in first.readings and name in second.readings
    ]
    return [first for first, _ in pairs], [second for _, second in pairs]


def find_ceilings(promise: GuestDocument | None, rates: Mapping[str, float]) -> dict[str, float]:
    """Return setting -> the maximum of the links: PCIe in GB/s by the promise, RDMA in Gbit/s.

    :param rates: RDMA device -> Gbit/s.
    """
    ceilings = {}
    links = [
        (device.speed, device.width)
        for device in (() if promise is None else promise.devices)
        if device.vendor_id in ("10de", "1002") and device.speed and device.width
    ]
    if links:
        ceilings["ceiling=pcie"] = min(
            speed * width / 8 * (_OLD_ENCODING if speed <= _OLD_SPEED else _ENCODING)
            for speed, width in links
        )
    first = next(iter(rates.values()), 0.0)
    if first > 0:
        ceilings["ceiling=rdma"] = first
    return ceilings


def parse_setting(text: str) -> dict[str, str]:
    """Parse a setting such as ``pages=large`` into {name: value}."""
    name, _, value = text.partition("=")
    return {name: value}


def make_experiment(
    machine: MeasuredMachine, setting: str, probe: str, times: int = 3
) -> float | None:
    """Return the median of fresh runs of one probe with one thing changed; None without a value.

    :param setting: the change, such as ``pages=large``.
    """
    if setting == "cpus=half":
        halves = [
            make_experiment(machine, f"cpus={which}", probe, times) for which in ("even", "first")
        ]
        return max((value for value in halves if value is not None), default=None)
    values = []
    for _ in range(times):
        sample = machine.measure_round([PROBE_OF[probe]], parse_setting(setting))
        reading = sample.readings.get(probe)
        if reading is not None and _has_changed(setting, reading, sample.facts):
            values.append(reading.value)
    return sorted(values)[len(values) // 2] if values else None


def _has_changed(setting: str, reading: Reading, facts: GuestFacts) -> bool:
    """Whether a setting took effect; otherwise the run proves nothing about the cause."""
    if setting == "pages=large":
        return reading.large_pages is not None and reading.large_pages > _LEAST_LARGE
    if setting == "blas=default":
        return facts.blas not in (None, "reference")
    if setting == "cpu=other":
        return len(facts.allowed) > 1
    return True


def _is_open(probe: Probe, rows: Mapping[str, AcceptanceRow]) -> bool:
    row = rows.get(probe.name)
    return row is not None and _is_undecided(row)


def _is_undecided(row: AcceptanceRow) -> bool:
    return row.verdict == UNDECIDED
