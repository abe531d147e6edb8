# SPDX-License-Identifier: Apache-2.0
"""Measures a guest beside its own host: on the same CPUs and memory, in turns, the other one idle.

Only this is a true pairing of host and guest. The host cannot use the guest's devices, so only CPU,
memory, timer and clock are compared.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final, Protocol

import attrs

from nova_hpc_client.accept.remote_member import RemoteMember
from nova_hpc_guest.accept.baseline import AcceptanceBaseline, build_key
from nova_hpc_guest.accept.diagnosis import Diagnosis, find_causes
from nova_hpc_guest.accept.distribution import list_distributions
from nova_hpc_guest.accept.evidence import BESIDE, FILE, AcceptanceRow, gather_evidence, judge_probe
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.options import BUDGETS, PAIRS
from nova_hpc_guest.accept.probes import PROBE_OF, QUICK, Probe
from nova_hpc_guest.accept.ratio import LEAST_PAIRS, UNDECIDED
from nova_hpc_guest.accept.refusal import Refusal, refuse_emulation
from nova_hpc_guest.accept.result import AcceptanceResult
from nova_hpc_guest.accept.rounds import MOST_ROUNDS, make_experiment, run_series
from nova_hpc_guest.accept.sample import AcceptanceError, Sample
from nova_hpc_guest.compare import GuestFinding
from nova_hpc_tools.accept.host_watch import HostWatch

#: Probes that a host and its guest can both run.
PROBES: Final = ("cpu_one", "cpu_all", "mem_stream", "mem_random", "timer_p99", "clock")
#: The part of a CPU that other processes may use during a probe of the host. Above it, the guest
#: does not count as idle.
_MOST_OTHERS: Final = 0.25


class BusyHostError(AcceptanceError):
    """The guest or another process used the CPUs while the host was measured."""


class SampleSource(Protocol):
    """A machine that is measured: the host or the guest.

    :ivar scale: part of the full work that its probes of CPU and memory do.
    """

    scale: float

    def measure_round(
        self, probes: Sequence[Probe], settings: Mapping[str, str] | None = None
    ) -> Sample:
        """Run each of *probes* once on the machine; return their measured values.

        :param settings: environment of the probes; None for the usual one.
        """


@attrs.frozen
class BesideTerms:
    """The parameters of a comparison of guest and host.

    :ivar only: names of the probes to run.
    :ivar floors: probe -> ratio below which it is slow, instead of the probe's own.
    :ivar findings: problems that were found without any measurement.
    :ivar budget: seconds for all rounds.
    :ivar least: rounds that each probe gets before it is judged.
    """

    only: tuple[str, ...] = PROBES
    floors: Mapping[str, float] = attrs.Factory(dict)
    findings: tuple[GuestFinding, ...] = ()
    budget: float = BUDGETS[QUICK]
    least: int = PAIRS[QUICK]
    clock: Callable[[], float] = time.monotonic

    @property
    def probes(self) -> list[Probe]:
        """The probes to run, in the order of the table of probes."""
        return [probe for name, probe in PROBE_OF.items() if name in self.only]


@attrs.frozen
class _HostAndGuest:
    """Measurement of host and guest in turns; the host is the baseline."""

    host: SampleSource
    guest: SampleSource
    watch: HostWatch | None = None

    def find_baseline(self, _: Probe) -> str | None:
        return BESIDE

    def take_turn(self, probes: Sequence[Probe], turn: int) -> tuple[Sample | None, Sample]:
        """Measure one round of the host and one of the guest, in alternating order (A B, B A).

        So a slow drift does not favour one side.

        :returns: the host's values, None if the host was not quiet; and the guest's.
        """
        if turn % 2 == 0:
            base = measure_quiet_host(self.host, probes)
            return base, self._measure_guest(probes)
        test = self._measure_guest(probes)
        return measure_quiet_host(self.host, probes), test

    def _measure_guest(self, probes: Sequence[Probe]) -> Sample:
        with self.watch.count_turn() if self.watch else contextlib.nullcontext():
            return self.guest.measure_round(probes)


def measure_quiet_host(host: SampleSource, probes: Sequence[Probe]) -> Sample:
    """Measure one round on the host.

    :raises BusyHostError: other processes used its CPUs during the round.
    """
    sample = host.measure_round(probes)
    reading = sample.readings.get("cpu_one")
    taken = reading.others / reading.wall if reading is not None and reading.wall > 0 else 0.0
    if taken > _MOST_OTHERS:
        raise BusyHostError(
            f"others took {taken:.0%} of a CPU while the host was measured: the guest has to be "
            "idle, and nothing else may run on its CPUs"
        )
    return sample


def measure_beside(
    host: RemoteMember,
    guest: RemoteMember,
    terms: BesideTerms,
    progress: Callable[[str], None],
    watch: HostWatch | None = None,
) -> AcceptanceResult:
    """Measure host and guest in turns.

    Both do the smaller of the two parts of work that they choose for themselves, so that their
    rounds are comparable.

    :param progress: called with the present work.
    :param watch: counts the host's work in the guest's turns; None if that stays unknown.
    :raises AcceptanceError: one of them does not answer.
    """
    first = guest.ask_first(busy=True)
    host.scale = guest.scale = min(first.scale, host.ask_first(busy=True).scale)
    refused = refuse_emulation(host.measure_round([PROBE_OF["clock"]]).facts, first.sample.facts)
    findings = (*terms.findings, *first.findings)
    result = _begin_result(first.sample.facts, BESIDE, host.scale, findings)
    if refused is not None:
        return result._replace(refused=refused)
    try:
        series = run_series(
            *(_HostAndGuest(host, guest, watch), terms.probes, terms.floors, terms.least),
            *(terms.budget, progress, terms.clock),
        )
    except BusyHostError as error:
        return result._replace(refused=Refusal("busy", str(error)))

    def again(setting: str, probe: str) -> float | None:
        progress(f"{probe} again with {setting}")
        try:
            return make_experiment(guest, setting, probe)
        except AcceptanceError:
            return None

    diagnosis = Diagnosis((), ())
    if series.rows:
        seen = gather_evidence(
            *(series.rows, series.base, series.test, first.promise, findings, first.links)
        )
        diagnosis = find_causes(seen._replace(host=watch.work if watch else ()), again)
    ended = _end_result(result, series.rows, series.base, series.test, diagnosis)
    unread = sorted(watch.unread) if watch else ()
    notes = [f"the host's {name} in the guest's turns are unknown: unreadable" for name in unread]
    return ended._replace(rounds=series.rounds, short=series.short, notes=(*ended.notes, *notes))


def measure_against_file(
    host: RemoteMember,
    rounds: AcceptanceBaseline,
    terms: BesideTerms,
    progress: Callable[[str], None],
) -> AcceptanceResult:
    """Measure the host, and compare it with rounds of the guest in a file.

    Each round repeats only the probes that are still undecided, after the least number of rounds
    that an interval needs.

    :raises AcceptanceError: the host does not answer, or the file cannot be used.
    """
    test = list(rounds.samples)
    scale = rounds.key.get("scale", 1.0)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale <= 1:
        raise AcceptanceError("the rounds of the guest do not give their part of the work")
    host.scale = float(scale)
    result = _begin_result(test[-1].facts, FILE, host.scale, terms.findings)
    base: list[Sample] = []
    rows: dict[str, AcceptanceRow] = {}
    pending = terms.probes
    begun, longest = terms.clock(), 0.0
    while pending and len(base) < MOST_ROUNDS:
        start = terms.clock()
        if base and start - begun + longest > terms.budget:
            break
        progress(f"round {len(base) + 1}: {', '.join(probe.name for probe in pending)}")
        try:
            base.append(measure_quiet_host(host, pending))
        except BusyHostError as error:
            return result._replace(refused=Refusal("busy", str(error)))
        longest = terms.clock() - start
        refused = refuse_emulation(base[-1].facts, test[-1].facts)
        if refused is not None:
            return result._replace(refused=refused)
        rows = _judge_sides(terms, base, test)
        if len(base) >= LEAST_PAIRS:
            pending = [
                probe
                for probe in pending
                if probe.name in rows and rows[probe.name].verdict == UNDECIDED
            ]
    diagnosis = Diagnosis((), ())
    if rows:
        diagnosis = find_causes(gather_evidence(rows, base, test, None, terms.findings))
    return _end_result(result, rows, base, test, diagnosis)._replace(
        rounds=len(base), short=any(row.verdict == UNDECIDED for row in rows.values())
    )


def _judge_sides(
    terms: BesideTerms, base: Sequence[Sample], test: Sequence[Sample]
) -> dict[str, AcceptanceRow]:
    rows = {}
    for probe in terms.probes:
        old, new = (
            [sample.readings[probe.name] for sample in side if probe.name in sample.readings]
            for side in (base, test)
        )
        if old and new:
            floor = terms.floors.get(probe.name, probe.floor)
            rows[probe.name] = judge_probe(probe, old, new, FILE, floor)
    return rows


def _begin_result(
    facts: GuestFacts, kind: str, scale: float, findings: tuple[GuestFinding, ...]
) -> AcceptanceResult:
    about: dict[str, Any] = {"kind": kind, "host": True, "scale": scale}
    return AcceptanceResult(QUICK, None, facts, baseline=about, findings=findings, partial=True)


def _end_result(
    result: AcceptanceResult,
    rows: Mapping[str, AcceptanceRow],
    base: Sequence[Sample],
    test: Sequence[Sample],
    diagnosis: Diagnosis,
) -> AcceptanceResult:
    missing: dict[str, str] = {}
    failed: dict[str, str] = {}
    for side, samples in (("host", base), ("guest", test)):
        for sample in samples:
            missing.update({name: f"{side}: {why}" for name, why in sample.missing.items()})
            failed.update({name: f"{side}: {why}" for name, why in sample.failed.items()})
    about = dict(result.baseline)
    if base:
        about["key"] = build_key(base[-1].facts, {}, about["scale"])
    notes = list(result.notes)
    others = [
        sample.readings["cpu_one"].others / sample.readings["cpu_one"].wall
        for sample in base
        if "cpu_one" in sample.readings and sample.readings["cpu_one"].wall > 0
    ]
    if others:
        notes.append(f"others took {median(others):.1%} of a CPU while the host was measured")
    return result._replace(
        rows=tuple(rows.values()),
        missing=missing,
        failed=failed,
        diagnosis=diagnosis,
        baseline=about,
        notes=tuple(notes),
        distributions=list_distributions(base, test),
    )
