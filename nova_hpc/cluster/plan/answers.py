# SPDX-License-Identifier: Apache-2.0
"""The planner's answers: the plan with its reason, or the nearest miss. For operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nova_hpc.cluster.plan.model import (
    ANYWHERE,
    HOST,
    Gang,
    GangMiss,
    GangPlan,
    GangPolicy,
    GangRefusal,
)
from nova_hpc.cluster.plan.tree import FreeSpot, may_belong_to_gang, natural_sort_key
from nova_hpc.fabric.model import FabricLevel, FabricPlace


def build_gang_plan(
    gang: Gang,
    free_spots: Sequence[FreeSpot],
    home: Sequence[FabricPlace],
    level: FabricLevel | str,
    domain: str,
    hosts: Mapping[str, int],
    proven: bool,
) -> GangPlan:
    """Build the plan for a gang, with its explanation, from the chosen hosts and their counts.

    :param hosts: host -> number of new members on it.
    :param proven: whether the search was complete, so that no better plan exists.
    """
    used = [spot for spot in free_spots if spot.name in hosts]
    places = [*(spot.place for spot in used), *home]
    leaves: dict[str, int] = {}
    for spot in used:
        if spot.place.leaf is not None:
            leaves[spot.place.leaf] = leaves.get(spot.place.leaf, 0) + hosts[spot.name]
    leafless = sum(spot.place.leaf is None for spot in used)
    word = level if isinstance(level, str) else level.word
    reached = isinstance(level, FabricLevel) and level <= gang.level
    return GangPlan(
        hosts={spot.name: hosts[spot.name] for spot in used},
        level=word,
        domain=domain,
        around=tuple(
            (around_level, name)
            for around_level in FabricLevel
            if (name := _shared_domain_of(places, around_level)) is not None
        ),
        leaves={leaf: leaves[leaf] for leaf in sorted(leaves, key=natural_sort_key)},
        reached=reached or word == HOST,
        proven=proven,
        why=_explain_plan(
            gang,
            free_spots,
            word,
            domain,
            (len(used), len(leaves), leafless),
            reached or word == HOST,
        ),
    )


def _explain_plan(
    gang: Gang,
    free_spots: Sequence[FreeSpot],
    word: str,
    domain: str,
    counted: tuple[int, int, int],
    reached: bool,
) -> str:
    """Return the sentence that shows an operator on how many hosts and leaves the members are.

    :param counted: the numbers of hosts, of their leaves, and of hosts whose leaf is unknown.
    """
    hosts, leaves, leafless = counted
    if word == HOST:
        return f"{_format_count(gang.members, 'member')} on host {domain}"
    where = "which share no domain" if word == ANYWHERE else f"in {describe_domain(word, domain)}"
    text = f"{_format_count(gang.members, 'member')} on {_format_count(hosts, 'host')}"
    if word != FabricLevel.LEAF.word:
        parts = [_format_count(leaves, "leaf")] if leaves else []
        if leafless:
            parts.append(f"{_format_count(leafless, 'host')} whose leaf is unknown")
        text += f" of {' and '.join(parts)}"
    text += f" {where}"
    if reached:
        return text
    nearest = _find_largest_domain(free_spots, gang.level)
    if nearest is None:
        return f"{text}: no host with free places has a known {gang.level.word}"
    return f"{text}: {_format_holding(nearest, gang.members)}"


def build_gang_refusal(
    free_spots: Sequence[FreeSpot], gang: Gang, home: Sequence[FabricPlace]
) -> GangRefusal:
    """Build the refusal of a gang, with the reason why there is no plan and the nearest miss.

    :param free_spots: the hosts that count for the gang.
    """
    total = sum(spot.free for spot in free_spots)
    nearest = instead = None
    asked = gang.level.word
    if gang.policy is GangPolicy.PREFERRED:
        nearest = GangMiss(ANYWHERE, "", total)
        reason = f"all hosts together hold {total} of {_format_count(gang.members, 'member')}"
    elif (
        not all(may_belong_to_gang(place, gang) for place in home)
        or len(_home_domains_of(home, gang)) > 1
    ):
        names = sorted(domain[1] for domain in _home_domains_of(home, gang) if domain is not None)
        where = f"in {', '.join(names)}" if len(names) > 1 else f"outside any known {asked}"
        reason = f"members of the gang are already {where}, not all in one {asked}"
    else:
        inside = [spot for spot in free_spots if {spot.enclosing} >= _home_domains_of(home, gang)]
        nearest = _find_largest_domain(inside, gang.level)
        reason = (
            f"no host with free places has a known {asked}"
            if nearest is None
            else _format_holding(nearest, gang.members)
        )
        instead = _find_larger_domain(free_spots, gang, home)
    if instead is not None:
        reason += f"; {describe_domain(instead.level, instead.domain)} holds {instead.holds}"
    elif gang.policy is GangPolicy.REQUIRED and total < gang.members and nearest is not None:
        reason += f"; all hosts together hold {total}"
    return GangRefusal(gang.members, nearest, instead, total, reason)


def _home_domains_of(
    home: Sequence[FabricPlace], gang: Gang
) -> set[tuple[FabricLevel, str] | None]:
    return {place.enclosing(gang.level) for place in home}


def _find_larger_domain(
    free_spots: Sequence[FreeSpot], gang: Gang, home: Sequence[FabricPlace]
) -> GangMiss | None:
    """Find the tightest domain above the requested level that holds the gang; None if none does."""
    for level in (wider for wider in FabricLevel if wider > gang.level):
        homes = {place.enclosing(level) for place in home}
        miss = _find_largest_domain(
            [spot for spot in free_spots if homes <= {spot.place.enclosing(level)}], level
        )
        if miss is not None and miss.holds >= gang.members:
            return miss
    return None


def _find_largest_domain(free_spots: Sequence[FreeSpot], level: FabricLevel) -> GangMiss | None:
    """Find the domain with most free places at a level, or a narrower one if its own is unknown.

    Among several it is the first by name. None without free hosts.
    """
    free: dict[tuple[FabricLevel, str], int] = {}
    for spot in free_spots:
        enclosing = spot.place.enclosing(level)
        if enclosing is not None:
            free[enclosing] = free.get(enclosing, 0) + spot.free
    if not free:
        return None
    most = min(free, key=lambda domain: (-free[domain], natural_sort_key(domain[1]), -domain[0]))
    return GangMiss(most[0].word, most[1], free[most])


def _format_holding(miss: GangMiss, members: int) -> str:
    return f"{describe_domain(miss.level, miss.domain)} holds {miss.holds} of {members}"


def _shared_domain_of(places: Sequence[FabricPlace], level: FabricLevel) -> str | None:
    """Return the name of the domain of *level* that contains these places; None if several do."""
    names = {place.domain(level) for place in places}
    return names.pop() if len(names) == 1 else None


def describe_domain(level: str, domain: str) -> str:
    """Return the name of a domain for people, such as ``leaf l1``."""
    if level == ANYWHERE:
        return "all hosts together"
    noun = level if level == HOST else FabricLevel.from_word(level).noun(1)
    return f"{noun} {domain}"


def _format_count(number: int, word: str) -> str:
    several = "leaves" if word == "leaf" else f"{word}s"
    return f"{number} {word if number == 1 else several}"
