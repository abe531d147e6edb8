# SPDX-License-Identifier: Apache-2.0
"""Gangs: the time of a plan, and its quality in comparison with other ways to place them.

Quality is compared on paired seeds. Each way gets the same fabric, the same gangs in the
same order, and the same times of departure, and records its own placements.
"""

from __future__ import annotations

import heapq
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from benchmarks import measure
from benchmarks.gangs_rivals import PLACERS, Placer, leaves, links
from nova_hpc.cluster.plan import Gang, GangPolicy
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace

#: Two-sided 95 % quantile of Student's t, by degrees of freedom.
_T: Final = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
_T_MANY: Final = 2.26

#: Numbers of members of the arriving gangs, all equally likely.
_SIZES: Final = (2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)


@attrs.frozen
class Shape:
    """A fabric of equal parts."""

    spines: int
    blocks: int  # below each spine
    leaves: int  # below each block
    hosts: int  # on each leaf

    def build(self) -> FabricMap:
        """The map."""
        return FabricMap(
            places=tuple(
                FabricPlace(
                    host=f"n{spine}-{block}-{leaf}-{host}",
                    leaf=f"l{spine}-{block}-{leaf}",
                    block=f"b{spine}-{block}",
                    spine=f"s{spine}",
                    core="core",
                )
                for spine in range(self.spines)
                for block in range(self.blocks)
                for leaf in range(self.leaves)
                for host in range(self.hosts)
            )
        )


def run(hosts: Sequence[int], samples: int, seeds: int, gangs: int) -> Iterator[measure.Row]:
    """All rows.

    :param hosts: sizes of the fabrics, with 100 hosts a leaf.
    :param gangs: number of arriving gangs for each seed.
    """
    yield from _times(hosts, samples)
    yield from _quality(seeds, gangs)


# --- time ------------------------------------------------------------------------


def _times(hosts: Sequence[int], samples: int) -> Iterator[measure.Row]:
    for number in hosts:
        per_spine = max(1, number // 1000)
        fabric = Shape(per_spine, 2, 5, number // (10 * per_spine)).build()
        for members in sorted({min(16, number // 4), min(128, number // 4), number // 10}):
            yield from _time(fabric, number, members, samples)


def _time(fabric: FabricMap, hosts: int, members: int, samples: int) -> Iterator[measure.Row]:
    rng = random.Random(hosts + members)
    gang = Gang(members, FabricLevel.LEAF, GangPolicy.PREFERRED)
    states = [_busy(fabric, rng) for _ in range(samples + 1)]

    def timed(place: Placer) -> Iterator[float]:
        for state in states:
            # Processor time: a plan never waits, and a busy machine changes this time little.
            begin = time.process_time()
            place(fabric, state, gang)
            yield time.process_time() - begin

    sides = {name: timed(place) for name, place in PLACERS.items()}
    found = measure.interleave({name: side.__next__ for name, side in sides.items()}, samples)
    large = members == 1000 and hosts == 10000
    for name, values in found.items():
        yield measure.row(
            "Gangs: processor time of a plan",
            f"{name}: {members} members, {hosts} hosts, {len(fabric.domains(FabricLevel.LEAF))} "
            "leaves",
            "s",
            values,
            "below 1 s" if large and name == "planner" else "",
            1.0 if large and name == "planner" else None,
        )


def _busy(fabric: FabricMap, rng: random.Random) -> dict[str, int]:
    """Host -> free places, at most four; the share of free places differs between leaves."""
    state = {}
    for members in fabric.domains(FabricLevel.LEAF).values():
        share = rng.uniform(0.2, 0.9)
        for host in members:
            state[host] = sum(rng.random() < share for _ in range(4))
    return state


# --- quality -----------------------------------------------------------------------


@attrs.frozen
class _Outcome:
    """The outcome of one way for one seed."""

    #: Means over the gangs that were placed in every way: see :func:`_mean`.
    leaves: Sequence[int | None]
    links: Sequence[int | None]
    #: Per cent of the members that got a place.
    placed: float
    #: Per cent of the gangs that got a domain as small as in an empty fabric.
    near: float


def _quality(seeds: int, gangs: int) -> Iterator[measure.Row]:
    shape = Shape(spines=4, blocks=2, leaves=4, hosts=16)
    fabric = shape.build()
    # The level of a gang with policy "required": the smallest domain that could ever hold it.
    for policy in GangPolicy:
        values: dict[str, dict[str, list[float]]] = {}
        for seed in range(seeds):
            outcomes = {
                name: _play(fabric, shape, place, policy, seed, gangs)
                for name, place in PLACERS.items()
            }
            for name, outcome in outcomes.items():
                figures = {
                    "leaves a gang": _mean(outcome.leaves, outcomes, "leaves"),
                    "spine links a gang crosses": _mean(outcome.links, outcomes, "links"),
                    "members placed": outcome.placed,
                    "gangs in the smallest domain": outcome.near,
                }
                for what, value in figures.items():
                    values.setdefault(what, {}).setdefault(name, []).append(value)
        yield from _rows(policy, values)


def _rows(
    policy: GangPolicy, values: Mapping[str, Mapping[str, Sequence[float]]]
) -> Iterator[measure.Row]:
    for what, sides in values.items():
        unit = "%" if what in ("members placed", "gangs in the smallest domain") else ""
        for name, found in sides.items():
            note = "" if name == "planner" else _difference(sides["planner"], found)
            yield measure.row(
                f"Gangs: quality, {policy.value}", f"{what}: {name}", unit, found, note=note
            )


def _difference(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """The planner's difference from another way, with the interval of the mean."""
    pairs = [one - other for one, other in zip(ours, theirs, strict=True)]
    if len(pairs) < 2:
        return ""
    half = _T.get(len(pairs) - 1, _T_MANY) * statistics.stdev(pairs) / len(pairs) ** 0.5
    mean = statistics.mean(pairs)
    return f"planner {mean:+.3g} (95 %: {mean - half:+.3g} to {mean + half:+.3g})"


def _mean(mine: Sequence[int | None], outcomes: Mapping[str, _Outcome], figure: str) -> float:
    """The mean over the gangs that all ways have placed."""
    everybody = zip(*(getattr(each, figure) for each in outcomes.values()), strict=True)
    both = [
        value
        for value, sides in zip(mine, everybody, strict=True)
        if value is not None and None not in sides
    ]
    return statistics.mean(both) if both else 0.0


def _play(
    fabric: FabricMap, shape: Shape, place: Placer, policy: GangPolicy, seed: int, gangs: int
) -> _Outcome:
    """Let gangs come and go, with a demand of about nine tenths of the places."""
    rng = random.Random(seed)
    free = dict.fromkeys(fabric.hosts(), 1)
    stay = 0.95 * len(free) / statistics.mean(_SIZES)
    going: list[tuple[float, int, Mapping[str, int]]] = []
    used: list[int | None] = []
    crossed: list[int | None] = []
    asked = refused = near = 0
    for number in range(gangs):
        members, until = rng.choice(_SIZES), number + rng.expovariate(1 / stay)
        while going and going[0][0] <= number:
            for host, some in heapq.heappop(going)[2].items():
                free[host] += some
        smallest = _smallest(shape, members)
        level = smallest if policy is GangPolicy.REQUIRED else FabricLevel.LEAF
        hosts = place(fabric, free, Gang(members, level, policy))
        asked += members
        if hosts is None:
            refused += members
            used.append(None)
            crossed.append(None)
            continue
        for host, some in hosts.items():
            free[host] -= some
        heapq.heappush(going, (until, number, hosts))
        names = {fabric.place(host).domain(smallest) for host in hosts}  # type: ignore[union-attr]
        near += len(names) == 1
        used.append(leaves(fabric, hosts))
        crossed.append(links(fabric, hosts))
    return _Outcome(used, crossed, 100 - 100 * refused / asked, 100 * near / gangs)


def _smallest(shape: Shape, members: int) -> FabricLevel:
    """The level of the smallest domain of an empty fabric that holds *members*."""
    if members <= shape.hosts:
        return FabricLevel.LEAF
    if members <= shape.hosts * shape.leaves:
        return FabricLevel.BLOCK
    return FabricLevel.SPINE
