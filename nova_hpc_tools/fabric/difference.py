# SPDX-License-Identifier: Apache-2.0
"""What differs between two maps, and what that means for clusters that run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.fabric.model import OF_NVLINK, FabricLevel, FabricMap

#: Kinds of differences, in the order in which they are told.
NEW_HOST: Final = "new host"
GONE_HOST: Final = "gone host"
MOVED: Final = "moved"
NEW_DOMAIN: Final = "new domain"
GONE_DOMAIN: Final = "gone domain"
CABLES: Final = "cables"


@attrs.frozen
class Difference:
    """One thing that is not as it was."""

    kind: str
    #: Host, domain or "LOWER - UPPER" of a link.
    name: str
    level: FabricLevel | None
    old: str | None
    new: str | None


@attrs.frozen
class Spread:
    """A cluster whose members are further from each other, or nearer, by the new map."""

    cluster: str
    level: FabricLevel
    #: Domains of *level* before and now; members whose domain is unknown are one more each.
    before: int
    now: int

    def __str__(self) -> str:
        word = self.level.noun(self.now)
        return f"cluster {self.cluster} now spans {self.now} {word} (before: {self.before})"


def compare(old: FabricMap, new: FabricMap, cables: bool = True) -> tuple[Difference, ...]:
    """What differs, sorted by kind and name.

    :param cables: also the links; aggregates of Nova say nothing of them.
    """
    found = [*_hosts(old, new), *_domains(old, new)]
    if cables:
        found += _cables(old, new)
    return tuple(found)


def spreads(
    clusters: Mapping[str, Iterable[str]], old: FabricMap, new: FabricMap
) -> tuple[Spread, ...]:
    """The clusters that span more or fewer domains by *new* than by *old*, by name and level.

    :param clusters: name -> the hosts of its members.
    """
    found = []
    for cluster in sorted(clusters):
        hosts = sorted(set(clusters[cluster]))
        for level in FabricLevel:
            if not (old.domains(level) or new.domains(level)):
                continue
            before, now = _count(hosts, old, level), _count(hosts, new, level)
            if before != now:
                found.append(Spread(cluster, level, before, now))
    return tuple(found)


def _count(hosts: Iterable[str], fabric: FabricMap, level: FabricLevel) -> int:
    known: set[str] = set()
    unknown = 0
    for host in hosts:
        place = fabric.place(host)
        name = None if place is None else place.domain(level)
        if name is None:
            unknown += 1
        else:
            known.add(name)
    return len(known) + unknown


def _hosts(old: FabricMap, new: FabricMap) -> Iterator[Difference]:
    before, now = set(old.hosts()), set(new.hosts())
    for host in sorted(now - before):
        yield Difference(NEW_HOST, host, None, None, _said(new, host))
    for host in sorted(before - now):
        yield Difference(GONE_HOST, host, None, _said(old, host), None)
    for host in sorted(before & now):
        was, is_now = old.place(host), new.place(host)
        for level in FabricLevel:
            one = was.domain(level) if was else None
            other = is_now.domain(level) if is_now else None
            if one != other:
                yield Difference(MOVED, host, level, one, other)


def _domains(old: FabricMap, new: FabricMap) -> Iterator[Difference]:
    for level in FabricLevel:
        before, now = old.domains(level), new.domains(level)
        for name in sorted(now.keys() - before.keys()):
            yield Difference(NEW_DOMAIN, name, level, None, f"{len(now[name])} hosts")
        for name in sorted(before.keys() - now.keys()):
            yield Difference(GONE_DOMAIN, name, level, f"{len(before[name])} hosts", None)


def _cables(old: FabricMap, new: FabricMap) -> Iterator[Difference]:
    before = {(link.lower, link.upper): link for link in old.links}
    now = {(link.lower, link.upper): link for link in new.links}
    for pair in sorted(before.keys() | now.keys()):
        one, other = before.get(pair), now.get(pair)
        said = [None if link is None else _link(link.count, link.rate) for link in (one, other)]
        if said[0] != said[1]:
            yield Difference(CABLES, " - ".join(pair), None, said[0], said[1])


def _link(count: int, rate: str | None) -> str:
    return f"{count} up" + (f", {rate}" if rate else "")


def _said(fabric: FabricMap, host: str) -> str:
    words = [f"{level.word} {name}" for level, name in fabric.path(host)]
    place = fabric.place(host)
    for level in reversed(OF_NVLINK):
        domain = None if place is None else place.domain(level)
        if domain is not None:
            words.append(f"{level.word} {domain}")
    return ", ".join(words) or "nobody knows where"
