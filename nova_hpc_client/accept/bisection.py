# SPDX-License-Identifier: Apache-2.0
"""Finds the member, or the link between two, that slows a program over all members. Pure.

The search yields the sets of members that it needs to be measured, and gets their figures. Sets of
one size are compared, because a figure may depend on the size.

For example, member 7 of 1 to 8 is slow. The halves 1-4 and 5-8 are compared: the latter is slow, so
1-4 are good. Its halves are padded with good ones: 5, 6, 1, 2 is level with 1-4 and 7, 8, 1, 2 is
slow; then 7, 1, 2, 3 is slow and 8, 1, 2, 3 is not. At last each two of 7, 1, 2, 3 are measured.
The three links of 7 are slow and no other is, so member 7 is named. If only one link were slow, the
link would be named, and with any other pattern nothing is: two faults never give a wrong name.

If both halves are level and slower together, the link is between them. One run for each link across
them finds the slowest; then each two of its ends and of two more members are measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from nova_hpc_client.accept.turns import Link, pair_up_members
from nova_hpc_guest.accept.ratio import LEVEL, SLOW, UNDECIDED, compare_pairs, judge_ratio

#: Numbers of members over which one run of the program goes.
MemberSet = tuple[int, ...]
#: Set -> its figures, one for each turn.
Figures = Mapping[MemberSet, Sequence[float]]
#: Members of whom each two are measured before one of them is named.
_WITNESSES: Final = 4
#: One link of so many may be better than the one with which all links are compared.
_BEST: Final = 8
#: The floor of all members beside their halves is lower by this part: more members wait more.
_SCALING: Final = 0.8
_SEVERAL: Final = "not located: several members or links are slow"
#: Kinds of questions: sets of one size are compared with each other, links with the best of them;
#: or one run of each is enough, and sets without a common member may run at the same time.
SETS: Final = "sets"
LINKS: Final = "links"
ONCE: Final = "once"


class Question(NamedTuple):
    """Sets of members that are measured in turns, until :func:`is_open` is false."""

    sets: tuple[MemberSet, ...]
    kind: str = SETS


class FaultLocation(NamedTuple):
    """The place of the fault that slows a program over all members."""

    #: ``level`` without a fault, ``slow`` if the place is known, otherwise ``undecided``.
    verdict: str
    #: Why it is undecided.
    reason: str = ""
    #: The slow member, or the two ends of the slow link; () for neither.
    members: MemberSet = ()
    #: More turns may decide it.
    open: bool = False


class FigureTerms(NamedTuple):
    """How figures are compared: *higher* is better; below *floor* a ratio is slow."""

    higher: bool
    floor: float

    def compare(self, base: Sequence[float], test: Sequence[float]) -> str:
        """Judge the ratio of *test* to *base*: ``slow``, ``level`` or ``undecided``."""
        return judge_ratio(compare_pairs(base, test, self.higher), self.floor)


_OPEN: Final = FaultLocation(UNDECIDED, "not located: runs differ too much", open=True)
Search = Generator[Question, Figures, FaultLocation]


def search_members(members: Sequence[int], terms: FigureTerms) -> Search:
    """Search at least three members; return the location of the fault.

    The first question has the set of all members.
    """
    everyone = tuple(sorted(members))
    if len(everyone) <= _WITNESSES:
        return (yield from _compare_links(everyone, terms, (everyone,)))
    half = len(everyone) // 2
    halves = everyone[:half], everyone[half : 2 * half]
    figures = yield Question((everyone, *halves))
    place = _find_slow(figures, halves, terms)
    if place is None:
        return _OPEN
    if not place:
        scaled = terms._replace(floor=terms.floor * _SCALING)
        whole = scaled.compare(figures[halves[0]], figures[everyone])
        if whole != SLOW:
            return _OPEN if whole == UNDECIDED else FaultLocation(LEVEL)
        return (yield from _search_links(everyone, halves, terms))
    (suspects,) = place
    good = halves[0] if suspects is halves[1] else halves[1]
    while len(suspects) > 1:
        middle = (len(suspects) + 1) // 2
        sides = suspects[:middle], suspects[middle:]
        padded = [(*side, *good[: half - len(side)]) for side in sides]
        figures = yield Question((*padded, good))
        place = _find_slow(figures, (*padded, good), terms)
        if place is None:
            return _OPEN
        if not place:
            # Members of both sides are slow together, and not apart.
            return (yield from _search_links(suspects, sides, terms, good))
        if len(place) > 1 or place[0] not in padded:
            return FaultLocation(UNDECIDED, _SEVERAL)
        suspects = sides[padded.index(place[0])]
    return (yield from _confirm(suspects, (*good, *everyone), terms))


def _find_slow(
    figures: Figures, sets: Sequence[MemberSet], terms: FigureTerms
) -> tuple[MemberSet, ...] | None:
    """Return the sets that are slower than another one; None if some are undecided."""
    slow = []
    for tested in sets:
        verdicts = {
            terms.compare(figures[base], figures[tested]) for base in sets if base != tested
        }
        if SLOW in verdicts:
            slow.append(tested)
        elif UNDECIDED in verdicts:
            return None
    return tuple(slow)


def _search_links(
    members: Sequence[int],
    halves: Sequence[Sequence[int]],
    terms: FigureTerms,
    others: Sequence[int] = (),
) -> Search:
    """Find the slowest link that is in neither half by one run of each, and confirm it."""
    inside = [set(half) for half in halves]
    links = tuple(
        link
        for links in pair_up_members(sorted(members))
        for link in links
        if not any(half.issuperset(link) for half in inside)
    )
    figures = yield Question(links, ONCE)
    sign = 1 if terms.higher else -1
    worst = min(links, key=lambda link: sign * figures[link][0])
    return (yield from _confirm(worst, (*others, *members), terms))


def _confirm(suspects: Sequence[int], others: Sequence[int], terms: FigureTerms) -> Search:
    some = tuple(dict.fromkeys((*suspects, *others)))[:_WITNESSES]
    location = yield from _compare_links(tuple(sorted(some)), terms)
    if location.verdict == LEVEL:
        return FaultLocation(UNDECIDED, "not located: no member and no link is slow by itself")
    return location


def _compare_links(
    members: MemberSet, terms: FigureTerms, more: tuple[MemberSet, ...] = ()
) -> Search:
    links = tuple(itertools.combinations(members, 2))
    figures = yield Question((*more, *links), LINKS)
    return locate_fault({link: figures[link] for link in links}, terms)


def locate_fault(figures: Mapping[Link, Sequence[float]], terms: FigureTerms) -> FaultLocation:
    """Locate a fault by all links between some members, each measured in the same turns.

    A link is slow beside one of the best links, turn by turn. That link is chosen by all turns: the
    best run of each turn would be a lucky one, beside which equal links look slower than they are.
    A member is named if all of its links are slow and no other one is.
    """
    if not all(figures.values()):
        return _OPEN
    ranked = sorted(figures, key=lambda link: median(figures[link]), reverse=terms.higher)
    best = figures[ranked[len(ranked) // _BEST]]
    verdicts = {link: terms.compare(best, runs) for link, runs in figures.items()}
    slow = {link for link, verdict in verdicts.items() if verdict == SLOW}
    if UNDECIDED in verdicts.values():
        return _OPEN
    if not slow:
        return FaultLocation(LEVEL)
    for number in sorted({number for link in slow for number in link}):
        if len(slow) > 1 and slow == {link for link in figures if number in link}:
            return FaultLocation(SLOW, members=(number,))
    if len(slow) == 1:
        return FaultLocation(SLOW, members=slow.pop())
    return FaultLocation(UNDECIDED, _SEVERAL)


def is_open(question: Question, figures: Figures, terms: FigureTerms) -> bool:
    """Whether more turns may decide the comparisons of a question."""
    if question.kind == LINKS:
        links = {(pair[0], pair[1]): figures[pair] for pair in question.sets if len(pair) == 2}
        return locate_fault(links, terms).open
    return question.kind == SETS and any(
        terms.compare(figures[base], figures[test]) == UNDECIDED
        for test in question.sets
        for base in question.sets
        if test != base and len(test) == len(base)
    )
