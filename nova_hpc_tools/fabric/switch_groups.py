# SPDX-License-Identifier: Apache-2.0
"""The switches of one tier that are one domain, and the domains wider than others. Pure.

Hosts with several rails are on as many leaf switches, and a pod has several spine switches
over the same leaves: such switches are one domain. A network for storage or management has
switches of its own in the same tier, which serve the hosts of several leaves: those are no
leaf. Only the users of a switch distinguish the two cases. *Users* are hosts for leaf switches
and domains of the tier below for all others.

1. **Wide switches are set apart.** A switch is wide if each of two others has more than half of
   its users on it, and these two share at most half of the users of the smaller one. The same
   step then divides the wide switches, until none of the rest is wide: the rails of a leaf are
   wide above the management switches of its racks, and a storage switch is wide above those rails.
2. **Switches agree** when at least half of all users of either are users of both.
3. **Switches that agree are one domain**, if all of them agree with each other. Otherwise
   only switches with exactly the same users are one, and that is a contradiction.

A domain *gives way* to another one for a user that is on both, if it has more than half of the
other's users. It must also be wide above the other, or have at least twice as many users. See
:meth:`SwitchGroups.choose_domain`.

Example: rails r1, r2 serve hosts a to c, rails r3, r4 hosts d to f, and s serves all six. r1
and r3 share nothing and both lie in s, so s is wide. r1 agrees with r2 and r3 with r4: domains
r1 and r3. Host a has two ports on r1 and one on s; s gives way, so a is in r1, and s has no host.
If c has lost its cable to r2, r1 and r2 still agree: two of three users are on both.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Final

import attrs

#: Part of all users of two switches that has to be on both for them to agree.
_AGREE: Final = Fraction(1, 2)
#: Part of a user's ports that a narrower domain needs so that a wide one gives way to it. A
#: smaller part is a stray cable: a management port beside eight rails.
_LEAST_BESIDE_WIDE: Final = Fraction(1, 4)
#: The narrower domain needs more than this part if the wider one is only larger. In that case,
#: two rails of three of a host that has lost one are as likely as one rail and two storage ports.
_MORE_BESIDE_LARGER: Final = Fraction(1, 3)


@attrs.frozen
class DomainChoice:
    """The domain chosen for a user of switches, and the domains of its other ports."""

    #: None if two domains have the same number of ports.
    domain: str | None
    #: Domains that gave way -> the narrower one.
    gave_way: Mapping[str, str] = attrs.field(factory=dict)
    #: Domains with fewer ports.
    outvoted: tuple[str, ...] = ()
    #: The domains that share the highest number of ports.
    tied: tuple[str, ...] = ()


@attrs.frozen
class SwitchGroups:
    """The switches of one tier, grouped into domains.

    A user is a host, or a domain of the tier below.

    :ivar domain_of: switch -> name of its domain, the first of its switches by name.
    :ivar users_of: domain -> its users.
    :ivar height_of: domain -> its layer by rule 1; 0 if it is not wide.
    :ivar disagreeing: sets of switches in which some pairs agree and others do not.
    """

    domain_of: Mapping[str, str]
    users_of: Mapping[str, frozenset[str]]
    height_of: Mapping[str, int]
    disagreeing: tuple[tuple[str, ...], ...] = ()

    def choose_domain(self, switches: Collection[str]) -> DomainChoice | None:
        """Choose the domain of a user with ports on *switches* (one entry per port); None without
        ports.

        A wide domain gives way to a narrower one that has a quarter of the user's ports. A domain
        that is only larger gives way to one that has more than a third. Of the remaining domains
        the user belongs to the one with most ports.
        """
        votes = Counter(self.domain_of[switch] for switch in switches)
        if not votes:
            return None
        ports = len(switches)
        gave_way: dict[str, str] = {}
        for wider, narrower in itertools.permutations(sorted(votes), 2):
            part = Fraction(votes[narrower], ports)
            if self.is_wide_above(wider, narrower):
                if part >= _LEAST_BESIDE_WIDE:
                    gave_way.setdefault(wider, narrower)
            elif self.is_larger_than(wider, narrower) and part > _MORE_BESIDE_LARGER:
                gave_way.setdefault(wider, narrower)
        left = {domain: count for domain, count in votes.items() if domain not in gave_way}
        # If the domains give way to each other in a ring, none is narrower and all count.
        left, gave_way = (left, gave_way) if left else (dict(votes), {})
        most = max(left.values())
        best = sorted(domain for domain, count in left.items() if count == most)
        if len(best) > 1:
            return DomainChoice(None, gave_way, tied=tuple(best))
        outvoted = tuple(sorted(domain for domain in left if domain != best[0]))
        return DomainChoice(best[0], gave_way, outvoted)

    def is_wide_above(self, wider: str, narrower: str) -> bool:
        """Whether *wider* spans several domains, of which *narrower* is one."""
        inside = self.users_of[narrower]
        return self.height_of[wider] > self.height_of[narrower] and (
            2 * len(inside & self.users_of[wider]) > len(inside)
        )

    def is_larger_than(self, wider: str, narrower: str) -> bool:
        """Whether *wider* has most users of *narrower*, and at least as many others."""
        inside, around = self.users_of[narrower], self.users_of[wider]
        both = len(inside & around)
        return 2 * both > len(inside) and 2 * both <= len(around)


def group_switches(users: Mapping[str, Iterable[str]]) -> SwitchGroups:
    """Group the switches of one tier into domains by the users that they share.

    :param users: user -> the switches that it has ports on.
    """
    used: dict[str, set[str]] = {}
    for user, switches in users.items():
        for switch in switches:
            used.setdefault(switch, set()).add(user)
    # Switches with exactly the same users form one kind, so few kinds remain to be compared.
    switches_of: dict[frozenset[str], list[str]] = {}
    for switch, those in used.items():
        switches_of.setdefault(frozenset(those), []).append(switch)
    kinds = _Kinds(tuple(switches_of))
    domain_of: dict[str, str] = {}
    users_of: dict[str, frozenset[str]] = {}
    height_of: dict[str, int] = {}
    disagreeing = []
    for height, layer in enumerate(kinds.layers()):
        for cluster in kinds.clusters(layer):
            parts: Iterable[tuple[int, ...]] = [cluster]
            if not kinds.all_agree(cluster):
                names = [name for number in cluster for name in switches_of[kinds.sets[number]]]
                disagreeing.append(tuple(sorted(names)))
                parts = [(number,) for number in cluster]
            for part in parts:
                names = sorted(name for number in part for name in switches_of[kinds.sets[number]])
                domain_of.update(dict.fromkeys(names, names[0]))
                users_of[names[0]] = frozenset().union(*(kinds.sets[number] for number in part))
                height_of[names[0]] = height
    return SwitchGroups(domain_of, users_of, height_of, tuple(sorted(disagreeing)))


def separate_switches(users: Mapping[str, Iterable[str]]) -> SwitchGroups:
    """Make each switch a domain of its own, for sources in which a host has one switch.

    No domain is wide or larger here: most ports decide, and one port on each of two is a tie.

    :param users: as in :func:`group_switches`.
    """
    users_of: dict[str, set[str]] = {}
    for user, switches in users.items():
        for switch in switches:
            users_of.setdefault(switch, set()).add(user)
    return SwitchGroups(
        domain_of={switch: switch for switch in users_of},
        users_of=dict.fromkeys(users_of, frozenset()),
        height_of=dict.fromkeys(users_of, 0),
    )


@attrs.frozen
class _Kinds:
    """Sets of users, by number, with the number of users that two sets share."""

    sets: tuple[frozenset[str], ...]
    #: (smaller number, larger number) -> count of shared users; pairs without any are missing.
    _shared: Counter[tuple[int, int]] = attrs.field(init=False)
    #: Number -> the numbers with which it shares a user.
    _beside: Mapping[int, frozenset[int]] = attrs.field(init=False)

    @_shared.default
    def _count_shared(self) -> Counter[tuple[int, int]]:
        of_user: dict[str, list[int]] = {}
        for number, user_set in enumerate(self.sets):
            for user in user_set:
                of_user.setdefault(user, []).append(number)
        shared: Counter[tuple[int, int]] = Counter()
        for numbers in of_user.values():
            shared.update(itertools.combinations(numbers, 2))
        return shared

    @_beside.default
    def _collect_beside(self) -> Mapping[int, frozenset[int]]:
        beside: dict[int, set[int]] = {number: set() for number in range(len(self.sets))}
        for smaller, larger in self._shared:
            beside[smaller].add(larger)
            beside[larger].add(smaller)
        return {number: frozenset(those) for number, those in beside.items()}

    def count_shared(self, first: int, second: int) -> int:
        """Return the number of users (hosts or lower domains) that two kinds of switches share."""
        return self._shared[min(first, second), max(first, second)]

    def agree(self, first: int, second: int) -> bool:
        """Whether at least half of all users of the two are users of both."""
        both = self.count_shared(first, second)
        return both >= _AGREE * (len(self.sets[first]) + len(self.sets[second]) - both)

    def all_agree(self, numbers: Iterable[int]) -> bool:
        """Return whether all pairs of these kinds of switches serve nearly the same users."""
        return all(itertools.starmap(self.agree, itertools.combinations(numbers, 2)))

    def layers(self) -> Iterator[frozenset[int]]:
        """Yield the kinds that are not wide, then those not wide among the rest, and so on.

        A kind is the set of switches with the same users; it is wide if it spans several others.
        """
        rest = frozenset(range(len(self.sets)))
        while rest:
            wide = frozenset(number for number in rest if self._is_wide(number, rest))
            # If all are wide above others, none is narrower than the rest: they are one layer.
            layer = rest - wide or rest
            yield layer
            rest -= layer

    def _is_wide(self, number: int, among: frozenset[int]) -> bool:
        inside = sorted(
            (
                candidate
                for candidate in self._beside[number] & among
                if 2 * self.count_shared(candidate, number) > len(self.sets[candidate])
            ),
            key=lambda candidate: len(self.sets[candidate]),
        )
        # The smallest sets come first, as two of them are most likely to share few users.
        return any(
            2 * self.count_shared(first, second)
            <= min(len(self.sets[first]), len(self.sets[second]))
            for first, second in itertools.combinations(inside, 2)
        )

    def clusters(self, layer: frozenset[int]) -> Iterator[tuple[int, ...]]:
        """Yield the kinds of *layer* that agreement connects, in the order of their numbers."""
        left = set(layer)
        while left:
            cluster = [min(left)]
            left.discard(cluster[0])
            for number in cluster:  # grows while it is walked
                for candidate in sorted(self._beside[number] & left):
                    if self.agree(number, candidate):
                        left.discard(candidate)
                        cluster.append(candidate)
            yield tuple(sorted(cluster))
