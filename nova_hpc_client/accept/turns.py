# SPDX-License-Identifier: Apache-2.0
"""Judges members, measured in turns or in pairs, against the other members. Pure.

Each member's run is compared with the median of the others' runs in the same round, so a slow
drift affects both. A member's links are compared with all links without it. A fault of fewer than
half of the members cannot hide in the median.

For example, members 1 to 4 reach 10, 10, 10 and 5 in a round. Member 4 has the ratio 5/10, and
each of the others has 10/10, because the median of the rest is still 10.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import median

from nova_hpc_guest.accept.evidence import FILE, REST, AcceptanceRow, judge_probe
from nova_hpc_guest.accept.probes import Probe
from nova_hpc_guest.accept.ratio import LEAST_PAIRS
from nova_hpc_guest.accept.sample import Reading, Sample

#: Number of a member -> its sample in one round; a member that did not answer is missing.
Round = Mapping[int, Sample]
#: A link: the numbers of its two members, the lower one first.
Link = tuple[int, int]


def order_turn(members: Sequence[int], turn: int) -> list[int]:
    """Return the order of measuring members in round *turn*: A B C, then C B A, and so on."""
    return list(members) if turn % 2 == 0 else list(reversed(members))


def pair_up_members(members: Sequence[int]) -> list[list[Link]]:
    """Return rounds in which each pair of members meets once, each member in at most one pair.

    An even number N of members needs N-1 rounds. An odd number needs N rounds, and one member rests
    in each (the circle method of tournaments, T. P. Kirkman, 1847).
    """
    seats: list[int | None] = [*members]
    if len(seats) % 2:
        seats.append(None)
    rounds = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        rounds.append(
            [
                (min(first, second), max(first, second))
                for first, second in pairs
                if first is not None and second is not None
            ]
        )
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return [links for links in rounds if links]


def count_passes(members: int) -> int:
    """Return the number of passes over all pairs that are needed to judge a member's links.

    A member has N-1 links, and the others have (N-1)(N-2)/2 links without it. Each side needs at
    least ``LEAST_PAIRS`` runs. 0 for two members, because the rest has no link then.
    """
    fewest = min(members - 1, (members - 1) * (members - 2) // 2)
    return math.ceil(LEAST_PAIRS / fewest) if fewest else 0


def judge_member(
    member: int, rounds: Sequence[Round], probes: Sequence[Probe], floors: Mapping[str, float]
) -> dict[str, AcceptanceRow]:
    """Compare one member with the median of the others, probe by probe.

    :param floors: probe -> floor, if it is not the probe's own.
    :returns: name of a probe -> its row, for the probes that the member and others have run.
    """
    rows = {}
    for probe in probes:
        base: list[Reading] = []
        test: list[Reading] = []
        for samples in rounds:
            readings = {
                number: sample.readings[probe.name]
                for number, sample in samples.items()
                if probe.name in sample.readings
            }
            own = readings.pop(member, None)
            if own is not None and readings:
                rest = median(reading.value for reading in readings.values())
                base.append(Reading(rest))
                test.append(own)
        if test:
            floor = floors.get(probe.name, probe.floor)
            rows[probe.name] = judge_probe(probe, base, test, REST, floor)
    return rows


def judge_links(
    member: int,
    links: Mapping[Link, Sequence[Sample]],
    probes: Sequence[Probe],
    floors: Mapping[str, float],
) -> dict[str, AcceptanceRow]:
    """Compare one member's links with the links of the other members, probe by probe.

    :param links: link -> the samples of its passes.
    :param floors: probe -> floor, if it is not the probe's own.
    """
    rows = {}
    for probe in probes:
        with_it: list[Reading] = []
        without: list[Reading] = []
        for link, samples in links.items():
            side = with_it if member in link else without
            side += [
                sample.readings[probe.name] for sample in samples if probe.name in sample.readings
            ]
        if with_it and without:
            floor = floors.get(probe.name, probe.floor)
            row = judge_probe(probe, without, with_it, FILE, floor)
            rows[probe.name] = row._replace(against=REST)
    return rows


def choose_reference(
    member: int, rounds: Sequence[Round], probes: Sequence[Probe], slow: Collection[int]
) -> int | None:
    """Choose the member whose facts represent the others: the one closest to the median.

    :param slow: members that are below a floor themselves, which are used last.
    """
    distances: dict[int, list[float]] = {}
    for probe in probes:
        values: dict[int, list[float]] = {}
        for samples in rounds:
            for number, sample in samples.items():
                if probe.name in sample.readings and number != member:
                    values.setdefault(number, []).append(sample.readings[probe.name].value)
        if not values:
            continue
        middles = {number: median(readings) for number, readings in values.items()}
        middle = median(middles.values())
        for number, value in middles.items():
            distances.setdefault(number, []).append(abs(math.log(value / middle)))
    ranked = sorted(distances, key=lambda number: (number in slow, median(distances[number])))
    return ranked[0] if ranked else None


def blame_members(failed: Mapping[Link, str]) -> dict[int, str]:
    """Choose the members to blame for failed links: few members that explain all failures.

    The member with the most failed links is blamed first, then the rest is counted again. Members
    with equally many are all blamed: a single failed link may be the fault of either end.

    :param failed: link -> reason of its failure.
    :returns: number of a blamed member -> a sentence with the reason.
    """
    left = dict(failed)
    blamed: dict[int, str] = {}
    while left:
        counts: dict[int, int] = {}
        for link in left:
            for number in link:
                counts[number] = counts.get(number, 0) + 1
        most = max(counts.values())
        for number in sorted(number for number, count in counts.items() if count == most):
            reasons = [reason for link, reason in sorted(left.items()) if number in link]
            if reasons:
                blamed[number] = f"{len(reasons)} of its links gave nothing: {reasons[0]}"
        left = {link: why for link, why in left.items() if not set(link) & blamed.keys()}
    return blamed
