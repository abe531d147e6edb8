# SPDX-License-Identifier: Apache-2.0
"""The evidence on a machine for the search for causes: rows, facts, and counters.

All of it is data: this module does not measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from ..compare import GuestFinding
from ..document import GuestDocument
from ..machine import GuestFunction
from .facts import GuestFacts
from .probes import PROBE_OF, Probe
from .ratio import LEVEL, SLOW, Ratio, compare_groups, compare_pairs, judge_ratio
from .sample import Reading, Sample

#: A row's baseline is another machine, in turns with this one; runs of a file; or the values of the
#: other members of a cluster.
BESIDE: Final = "beside"
FILE: Final = "file"
REST: Final = "rest"
_OTHERS: Final = (BESIDE, FILE, REST)
_LEAST_SENT: Final = 40_000
_SHARES: Final = ("own", "others", "steal", "waited", "watched", "throttled")
#: Time that a probe lost; a machine that is its own baseline should lose none of it.
_LOST: Final = ("others", "steal", "waited", "throttled")


class AcceptanceRow(NamedTuple):
    """The result of one probe against its baseline: values, ratio with its interval, verdict."""

    probe: str
    unit: str
    higher: bool
    #: :data:`BESIDE`, :data:`FILE`, or the setting that makes the machine its own baseline.
    against: str
    #: Medians.
    base: float
    test: float
    ratio: float
    low: float
    high: float
    confidence: float
    pairs: int
    floor: float
    verdict: str
    #: A run of either side was ended at its limit.
    at_limit: bool = False


class TimeShare(NamedTuple):
    """Part of a probe's time that something took, at the baseline and here; medians."""

    base: float
    test: float

    @property
    def more(self) -> float:
        """The part of the time here, less the part at the baseline; it may be below 0."""
        return self.test - self.base


class LinkFaults(NamedTuple):
    """Links of promised devices that are not as promised, as texts."""

    narrow: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()


class HostWork(NamedTuple):
    """The host's own work on the CPU of one vCPU, in the turns of its guest."""

    #: Number and name of an interrupt -> how often it fired a second.
    interrupts: Mapping[str, float] = {}
    #: Name of a kernel thread -> part of the time that it ran.
    threads: Mapping[str, float] = {}


class Evidence(NamedTuple):
    """Everything on the machine and its baseline that the search for causes uses."""

    rows: Mapping[str, AcceptanceRow]
    base: GuestFacts
    test: GuestFacts
    #: Probe -> kind of time -> its parts.
    shares: Mapping[str, Mapping[str, TimeShare]] = {}
    #: Probe -> interfaces that its bytes left by, at the baseline and here.
    wires: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {}
    #: Probe -> part of its memory in large pages; None for a side that was not looked at.
    large: Mapping[str, tuple[float | None, float | None]] = {}
    #: Probe -> words of its tool about its data path.
    words: Mapping[str, tuple[str, ...]] = {}
    promise: GuestDocument | None = None
    findings: Sequence[GuestFinding] = ()
    links: LinkFaults = LinkFaults()
    #: For each vCPU; empty if unknown, as within a guest.
    host: Sequence[HostWork] = ()

    @property
    def slow(self) -> frozenset[str]:
        """Probes that are surely below their floors."""
        return frozenset(name for name, row in self.rows.items() if row.verdict == SLOW)

    @property
    def level(self) -> frozenset[str]:
        """Probes that are surely above them."""
        return frozenset(name for name, row in self.rows.items() if row.verdict == LEVEL)

    def share(self, probe: str, what: str) -> TimeShare:
        """Return the parts of a probe's time of one kind, at the baseline and here; 0.0 if unknown.

        :param what: name of the kind, such as ``steal``.
        """
        return self.shares.get(probe, {}).get(what, TimeShare(0.0, 0.0))

    def most(self, probes: Iterable[str], what: str) -> float:
        """Return by how much more time of one kind passes here than at the baseline.

        It is the maximum over several probes.
        """
        return max((self.share(probe, what).more for probe in probes), default=0.0)

    def wrong_kinds(self) -> frozenset[str]:
        """Return the kinds of the cloud's promises that are broken on this machine."""
        return frozenset(finding.kind for finding in self.findings if finding.wrong)


def judge_probe(
    probe: Probe,
    base: Sequence[Reading],
    test: Sequence[Reading],
    against: str,
    floor: float,
) -> AcceptanceRow:
    """Compare the runs of one probe.

    :param base: runs of the baseline, in turns with *test* unless they are of a file.
    """
    old, new = [run.value for run in base], [run.value for run in test]
    if against == FILE:
        ratio: Ratio = compare_groups(old, new, probe.higher)
    else:
        ratio = compare_pairs(old, new, probe.higher)
    return AcceptanceRow(
        *(probe.name, probe.unit, probe.higher, against, median(old), median(new)),
        *(ratio.ratio, ratio.low, ratio.high, ratio.confidence, ratio.pairs, floor),
        judge_ratio(ratio, floor),
        any(run.at_limit for run in (*base, *test)),
    )


def gather_evidence(
    rows: Mapping[str, AcceptanceRow],
    base: Sequence[Sample],
    test: Sequence[Sample],
    promise: GuestDocument | None = None,
    findings: Sequence[GuestFinding] = (),
    links: LinkFaults | None = None,
) -> Evidence:
    """Gather the evidence of two series of samples, except their values.

    :param rows: probe -> its result.
    :param base: one sample for each of *test*, or as many as a file has.
    :param promise: the cloud's document about the machine; None if there is none.
    """
    names = [name for name in rows if name in PROBE_OF]
    shares, wires, large, words = {}, {}, {}, {}
    for name in names:
        old = [sample.readings[name] for sample in base if name in sample.readings]
        new = [sample.readings[name] for sample in test if name in sample.readings]
        own = rows[name].against not in _OTHERS
        cpus = (
            _count_cpus(name, base[-1].facts if base else None),
            _count_cpus(name, test[-1].facts),
        )
        shares[name] = {
            what: TimeShare(
                0.0 if own and what in _LOST else _take_share(old, what, cpus[0]),
                _take_share(new, what, cpus[1]),
            )
            for what in _SHARES
        }
        wires[name] = (_list_wires(old), _list_wires(new))
        large[name] = (_take_large(old), _take_large(new))
        words[name] = tuple(sorted({word for run in new for word in run.words}))
    return Evidence(
        rows=rows,
        base=_merge_facts(base) if base else test[-1].facts,
        test=_merge_facts(test),
        shares=shares,
        wires=wires,
        large=large,
        words=words,
        promise=promise,
        findings=findings,
        links=links or LinkFaults(),
    )


def find_link_faults(promise: GuestDocument, places: Mapping[int, GuestFunction]) -> LinkFaults:
    """Compare the links of the devices that are there.

    An idle device may lower its speed without breaking a promise: under load it must not.
    """
    narrow, slow = [], []
    for device in promise.devices:
        function = places.get(device.number)
        if function is None:
            continue
        if device.width and function.width and function.width < device.width:
            narrow.append(f"{device.name}: {function.width} lanes of {device.width}")
        if device.speed and function.speed and function.speed < device.speed:
            slow.append(f"{device.name}: {function.speed:g} of {device.speed:g} GT/s")
    return LinkFaults(tuple(narrow), tuple(slow))


def _merge_facts(samples: Sequence[Sample]) -> GuestFacts:
    """Return the facts of the last sample, with the BLAS of the last that measured it."""
    last = samples[-1].facts
    of_blas = next((one.facts for one in reversed(samples) if "blas" in one.readings), last)
    return last._replace(blas=of_blas.blas, blas_core=of_blas.blas_core)


def _count_cpus(probe: str, facts: GuestFacts | None) -> int:
    if facts is None or PROBE_OF[probe].cpus == "one":
        return 1
    return max(1, len(facts.allowed))


def _take_share(runs: Sequence[Reading], what: str, cpus: int) -> float:
    """Return the median part of the wall time that one kind of time takes in several runs.

    Of counters that add up CPUs, it is the part of all of them.
    """
    divisor = cpus if what in ("others", "steal") else 1
    parts = [getattr(run, what) / run.wall / divisor for run in runs if run.wall > 0]
    return median(parts) if parts else 0.0


def _take_large(runs: Sequence[Reading]) -> float | None:
    parts = [run.large_pages for run in runs if run.large_pages is not None]
    return median(parts) if parts else None


def _list_wires(runs: Sequence[Reading]) -> frozenset[str]:
    """Return interfaces that carried the probe in most of its runs: others send now and then."""
    counts: dict[str, int] = {}
    for run in runs:
        for name, amount in run.sent.items():
            if amount > _LEAST_SENT:
                counts[name] = counts.get(name, 0) + 1
    return frozenset(name for name, count in counts.items() if 2 * count > len(runs))
