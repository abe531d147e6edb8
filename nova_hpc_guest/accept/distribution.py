# SPDX-License-Identifier: Apache-2.0
"""How a probe's single values are distributed, at the baseline and here: counts in bins. Pure.

A percentile of a run hides rare long delays; the shape shows a few long ones beside many short
ones. Rounds add up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from .probes import PROBE_OF
from .readings import HISTOGRAM_US, OSLAT_US, find_percentile
from .sample import Sample

#: Probe -> the beginnings of its bins, in its unit. The last bin has all longer ones, as the tool's
#: own last one has.
EDGES: Final = {
    "timer_p99": (0, 5, 10, 20, 50, 100, 200, 500, 1000, 5000, HISTOGRAM_US),
    "oslat": (0, 2, 3, 4, 6, 8, 12, 16, 24, OSLAT_US),
}

#: Parts of the values in percent, whose longest one is shown.
PERCENTS: Final = (50, 99, 100)


class Distribution(NamedTuple):
    """The counts of a probe's single values over all rounds."""

    probe: str
    unit: str
    #: Each bin begins at an edge and ends before the next one; the last bin has no end.
    edges: tuple[int, ...]
    #: For each bin.
    here: tuple[int, ...]
    #: None if the baseline does not have them.
    base: tuple[int, ...] | None
    #: Values here for :data:`PERCENTS`; () if unknown.
    percentiles: tuple[int, ...] = ()

    @property
    def summary(self) -> str:
        """Percentiles in one line, as ``timer_p99 3/9/700 us``."""
        ends = (f"{'>=' * (end >= self.edges[-1])}{end}" for end in self.percentiles)
        return f"{self.probe} {'/'.join(ends)} {self.unit}"

    @property
    def labels(self) -> list[str]:
        """Name of each bin, as ``5-10``."""
        pairs = zip(self.edges, self.edges[1:])  # noqa: B905
        return [*(f"{start}-{end}" for start, end in pairs), f">={self.edges[-1]}"]

    @property
    def data(self) -> dict[str, Any]:
        """Content of the result's document."""
        return {
            "probe": self.probe,
            "unit": self.unit,
            "edges": list(self.edges),
            "here": list(self.here),
            "baseline": None if self.base is None else list(self.base),
            **({"percentiles": dict(zip(PERCENTS, self.percentiles))} if self.percentiles else {}),  # noqa: B905
        }

    def find_length(self, count: int, longest: int) -> int:
        """Return the length of a bin's bar: its count's logarithm, so that a single one shows.

        :param longest: length of the longest bar of both sides.
        """
        most = max(*self.here, *(self.base or ()))
        return -(-longest * count.bit_length() // most.bit_length()) if count else 0


def list_distributions(base: Sequence[Sample], test: Sequence[Sample]) -> tuple[Distribution, ...]:
    """Return the distributions of probes whose single values are known of all rounds here."""
    distributions = []
    for probe, edges in EDGES.items():
        here, there = (merge_counts(probe, side) for side in (test, base))
        if here:
            distributions.append(
                Distribution(
                    *(probe, PROBE_OF[probe].unit, edges, fill_bins(here, edges)),
                    fill_bins(there, edges) if there else None,
                    tuple(find_percentile(here, percent) for percent in PERCENTS),
                )
            )
    return tuple(distributions)


def merge_counts(probe: str, samples: Sequence[Sample]) -> Mapping[int, int]:
    """Add up the counts of all runs of a probe; empty if those of any run are unknown."""
    runs = [sample.readings[probe].counts for sample in samples if probe in sample.readings]
    total: Counter[int] = Counter()
    for counts in runs:
        total.update(counts)
    return total if all(runs) else {}


def fill_bins(counts: Mapping[int, int], edges: Sequence[int]) -> tuple[int, ...]:
    """Return how many values each bin has.

    :param counts: value -> how often it was counted.
    :param edges: the beginnings of the bins, the first one 0.
    """
    bins = [0] * len(edges)
    for value, count in counts.items():
        bins[bisect_right(edges, value) - 1] += count
    return tuple(bins)
