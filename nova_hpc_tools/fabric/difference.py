# SPDX-License-Identifier: Apache-2.0
"""Differences between two maps, and their effect on running clusters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.fabric.model import OF_NVLINK, FabricLevel, FabricMap

#: Kinds of differences, in the order of the output.
NEW_HOST: Final = "new host"
GONE_HOST: Final = "gone host"
MOVED: Final = "moved"
NEW_DOMAIN: Final = "new domain"
GONE_DOMAIN: Final = "gone domain"
CABLES: Final = "cables"


@attrs.frozen
class FabricDifference:
    """A host, domain or link that differs between two fabric maps, with its old and new value."""

    kind: str
    #: Host, domain or "LOWER - UPPER" of a link.
    name: str
    level: FabricLevel | None
    old: str | None
    new: str | None


@attrs.frozen
class ClusterSpread:
    """A cluster that spans more or fewer domains by the new map than by the old one."""

    cluster: str
    level: FabricLevel
    #: Domains of *level* before and now; each host whose domain is unknown counts as one more.
    before: int
    now: int

    def __str__(self) -> str:
        word = self.level.noun(self.now)
        return f"cluster {self.cluster} now spans {self.now} {word} (before: {self.before})"


def compare_fabric_maps(
    old: FabricMap, new: FabricMap, cables: bool = True
) -> tuple[FabricDifference, ...]:
    """Compare two maps of one fabric; return the differences, sorted by kind and name.

    :param cables: also compare the links; Nova's aggregates do not contain them.
    """
    differences = [*_host_differences(old, new), *_domain_differences(old, new)]
    if cables:
        differences += _cable_differences(old, new)
    return tuple(differences)


def spread_changes_of(
    clusters: Mapping[str, Iterable[str]], old: FabricMap, new: FabricMap
) -> tuple[ClusterSpread, ...]:
    """Find the clusters that span more or fewer domains by *new* than by *old*, by name and level.

    :param clusters: name -> the hosts of its members.
    """
    changes = []
    for cluster in sorted(clusters):
        hosts = sorted(set(clusters[cluster]))
        for level in FabricLevel:
            if not (old.domains(level) or new.domains(level)):
                continue
            before, current = _count_domains(hosts, old, level), _count_domains(hosts, new, level)
            if before != current:
                changes.append(ClusterSpread(cluster, level, before, current))
    return tuple(changes)


def _count_domains(hosts: Iterable[str], fabric: FabricMap, level: FabricLevel) -> int:
    names: set[str] = set()
    unknown = 0
    for host in hosts:
        place = fabric.place(host)
        name = None if place is None else place.domain(level)
        if name is None:
            unknown += 1
        else:
            names.add(name)
    return len(names) + unknown


def _host_differences(old: FabricMap, new: FabricMap) -> Iterator[FabricDifference]:
    before, current_hosts = set(old.hosts()), set(new.hosts())
    for host in sorted(current_hosts - before):
        yield FabricDifference(NEW_HOST, host, None, None, _describe_place(new, host))
    for host in sorted(before - current_hosts):
        yield FabricDifference(GONE_HOST, host, None, _describe_place(old, host), None)
    for host in sorted(before & current_hosts):
        old_place, is_now = old.place(host), new.place(host)
        for level in FabricLevel:
            old_domain = old_place.domain(level) if old_place else None
            new_domain = is_now.domain(level) if is_now else None
            if old_domain != new_domain:
                yield FabricDifference(MOVED, host, level, old_domain, new_domain)


def _domain_differences(old: FabricMap, new: FabricMap) -> Iterator[FabricDifference]:
    for level in FabricLevel:
        before, current_domains = old.domains(level), new.domains(level)
        for name in sorted(current_domains.keys() - before.keys()):
            yield FabricDifference(
                NEW_DOMAIN, name, level, None, f"{len(current_domains[name])} hosts"
            )
        for name in sorted(before.keys() - current_domains.keys()):
            yield FabricDifference(GONE_DOMAIN, name, level, f"{len(before[name])} hosts", None)


def _cable_differences(old: FabricMap, new: FabricMap) -> Iterator[FabricDifference]:
    before = {(link.lower, link.upper): link for link in old.links}
    current_links = {(link.lower, link.upper): link for link in new.links}
    for pair in sorted(before.keys() | current_links.keys()):
        old_link, new_link = before.get(pair), current_links.get(pair)
        texts = [
            None if link is None else _describe_link(link.count, link.rate)
            for link in (old_link, new_link)
        ]
        if texts[0] != texts[1]:
            yield FabricDifference(CABLES, " - ".join(pair), None, texts[0], texts[1])


def _describe_link(count: int, rate: str | None) -> str:
    return f"{count} up" + (f", {rate}" if rate else "")


def _describe_place(fabric: FabricMap, host: str) -> str:
    words = [f"{level.word} {name}" for level, name in fabric.path(host)]
    place = fabric.place(host)
    for level in reversed(OF_NVLINK):
        domain = None if place is None else place.domain(level)
        if domain is not None:
            words.append(f"{level.word} {domain}")
    return ", ".join(words) or "place unknown"
