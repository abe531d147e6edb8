# SPDX-License-Identifier: Apache-2.0
"""Members in turns, and pairs of members, judged against the rest. Pure.

Each member's run is compared with the median of what the others gave in the same round, so that
what changes slowly hits both; a link with what all links without this member gave. A fault of
fewer than half of the members cannot hide in the rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import median

from nova_hpc.guest.accept.evidence import FILE, REST, AcceptanceRow, judge_probe
from nova_hpc.guest.accept.probes import Probe
from nova_hpc.guest.accept.ratio import LEAST_PAIRS
from nova_hpc.guest.accept.sample import Reading, Sample

#: What members gave in one round; a member that did not answer is missing.
Round = Mapping[int, Sample]
#: A link: the numbers of its two members, the lower one first.
Link = tuple[int, int]


def order_turn(members: Sequence[int], turn: int) -> list[int]:
    """The order of one round: there, and back the next time (A B C, C B A)."""
    return list(members) if turn % 2 == 0 else list(reversed(members))


def pair_up_members(members: Sequence[int]) -> list[list[Link]]:
    """Rounds in which everybody meets everybody once, and nobody two at a time.

    N-1 rounds for an even number of members, N for an odd one, in each of which one rests
    (the circle method of tournaments, T. P. Kirkman, 1847).
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
    """How often all pairs are measured, so that a member's links can be judged.

    A member has N-1 links, and the rest has (N-1)(N-2)/2 without it.
    """
    fewest = min(members - 1, (members - 1) * (members - 2) // 2)
    return math.ceil(LEAST_PAIRS / fewest) if fewest else 0


def judge_member(
    member: int, rounds: Sequence[Round], probes: Sequence[Probe], floors: Mapping[str, float]
) -> dict[str, AcceptanceRow]:
    """The rows of one member against the rest.

    :param floors: probe -> floor, where it is not the probe's own.
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
    """The rows of one member's links against those without it."""
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
    """The member whose facts stand for the rest: the one that is nearest to the median.

    :param slow: members that are themselves below a floor, which are taken last.
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
    """Whom links that gave nothing are put down to: as few members as account for all of them.

    Of two that account for as many, both are named: with one link alone it may be either.
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
