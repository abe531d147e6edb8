# SPDX-License-Identifier: Apache-2.0
"""What the planner says: the plan with its reason, or the nearest miss. For operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nova_hpc.cluster.plan.model import ANYWHERE, HOST, Gang, Miss, Plan, Policy, Refusal
from nova_hpc.cluster.plan.tree import Spot, counts, natural
from nova_hpc.fabric.model import FabricLevel, Place


def plan(
    gang: Gang,
    found: Sequence[Spot],
    home: Sequence[Place],
    level: FabricLevel | str,
    domain: str,
    hosts: Mapping[str, int],
    proven: bool,
) -> Plan:
    """The answer, from the hosts that were chosen."""
    used = [spot for spot in found if spot.name in hosts]
    places = [*(spot.place for spot in used), *home]
    leaves: dict[str, int] = {}
    for spot in used:
        if spot.place.leaf is not None:
            leaves[spot.place.leaf] = leaves.get(spot.place.leaf, 0) + hosts[spot.name]
    leafless = sum(spot.place.leaf is None for spot in used)
    word = level if isinstance(level, str) else level.word
    reached = isinstance(level, FabricLevel) and level <= gang.level
    return Plan(
        hosts={spot.name: hosts[spot.name] for spot in used},
        level=word,
        domain=domain,
        around=tuple(
            (each, name) for each in FabricLevel if (name := _shared(places, each)) is not None
        ),
        leaves={leaf: leaves[leaf] for leaf in sorted(leaves, key=natural)},
        reached=reached or word == HOST,
        proven=proven,
        why=_why(
            gang, found, word, domain, (len(used), len(leaves), leafless), reached or word == HOST
        ),
    )


def _why(
    gang: Gang,
    found: Sequence[Spot],
    word: str,
    domain: str,
    counted: tuple[int, int, int],
    reached: bool,
) -> str:
    """The sentence.

    :param counted: the hosts, the leaves that they are in, and the hosts whose leaf is unknown.
    """
    hosts, leaves, leafless = counted
    if word == HOST:
        return f"{_many(gang.members, 'member')} on host {domain}"
    where = "which share no domain" if word == ANYWHERE else f"in {shown(word, domain)}"
    text = f"{_many(gang.members, 'member')} on {_many(hosts, 'host')}"
    if word != FabricLevel.LEAF.word:
        parts = [_many(leaves, "leaf")] if leaves else []
        if leafless:
            parts.append(f"{_many(leafless, 'host')} whose leaf is unknown")
        text += f" of {' and '.join(parts)}"
    text += f" {where}"
    if reached:
        return text
    nearest = _largest(found, gang.level)
    if nearest is None:
        return f"{text}: no host with free places has a known {gang.level.word}"
    return f"{text}: {_holds(nearest, gang.members)}"


def refusal(found: Sequence[Spot], gang: Gang, home: Sequence[Place]) -> Refusal:
    """Why there is no plan.

    :param found: the hosts that count for the gang.
    """
    total = sum(spot.free for spot in found)
    nearest = instead = None
    asked = gang.level.word
    if gang.policy is Policy.PREFERRED:
        nearest = Miss(ANYWHERE, "", total)
        reason = f"all hosts together hold {total} of {_many(gang.members, 'member')}"
    elif not all(counts(place, gang) for place in home) or len(_names(home, gang)) > 1:
        names = sorted(each[1] for each in _names(home, gang) if each is not None)
        where = f"in {', '.join(names)}" if len(names) > 1 else f"outside any known {asked}"
        reason = f"members of the gang are already {where}, not all in one {asked}"
    else:
        inside = [spot for spot in found if {spot.enclosing} >= _names(home, gang)]
        nearest = _largest(inside, gang.level)
        reason = (
            f"no host with free places has a known {asked}"
            if nearest is None
            else _holds(nearest, gang.members)
        )
        instead = _larger(found, gang, home)
    if instead is not None:
        reason += f"; {shown(instead.level, instead.domain)} holds {instead.holds}"
    elif gang.policy is Policy.REQUIRED and total < gang.members and nearest is not None:
        reason += f"; all hosts together hold {total}"
    return Refusal(gang.members, nearest, instead, total, reason)


def _names(home: Sequence[Place], gang: Gang) -> set[tuple[FabricLevel, str] | None]:
    return {place.enclosing(gang.level) for place in home}


def _larger(found: Sequence[Spot], gang: Gang, home: Sequence[Place]) -> Miss | None:
    """The tightest domain above the asked level that holds the gang."""
    for level in (each for each in FabricLevel if each > gang.level):
        homes = {place.enclosing(level) for place in home}
        miss = _largest([spot for spot in found if homes <= {spot.place.enclosing(level)}], level)
        if miss is not None and miss.holds >= gang.members:
            return miss
    return None


def _largest(found: Sequence[Spot], level: FabricLevel) -> Miss | None:
    """The domain of a level, or a narrower one whose own is unknown, with most free places.

    The first by name of several.
    """
    free: dict[tuple[FabricLevel, str], int] = {}
    for spot in found:
        enclosing = spot.place.enclosing(level)
        if enclosing is not None:
            free[enclosing] = free.get(enclosing, 0) + spot.free
    if not free:
        return None
    most = min(free, key=lambda each: (-free[each], natural(each[1]), -each[0]))
    return Miss(most[0].word, most[1], free[most])


def _holds(miss: Miss, members: int) -> str:
    return f"{shown(miss.level, miss.domain)} holds {miss.holds} of {members}"


def _shared(places: Sequence[Place], level: FabricLevel) -> str | None:
    """The domain that all of these are in."""
    names = {place.domain(level) for place in places}
    return names.pop() if len(names) == 1 else None


def shown(level: str, domain: str) -> str:
    """A domain, as people read it."""
    if level == ANYWHERE:
        return "all hosts together"
    noun = level if level == HOST else FabricLevel.from_word(level).noun(1)
    return f"{noun} {domain}"


def _many(number: int, word: str) -> str:
    several = "leaves" if word == "leaf" else f"{word}s"
    return f"{number} {word if number == 1 else several}"
