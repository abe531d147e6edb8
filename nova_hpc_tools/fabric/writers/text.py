# SPDX-License-Identifier: Apache-2.0
"""A map as a text tree, for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from nova_hpc.fabric.model import OF_NVLINK, TREE, FabricLevel, FabricMap
from nova_hpc_tools.fabric.graph import speed
from nova_hpc_tools.fabric.hostlist import compress


@attrs.define
class _Branch:
    level: FabricLevel
    name: str
    hosts: list[str] = attrs.Factory(list)
    below: dict[tuple[FabricLevel, str], _Branch] = attrs.Factory(dict)

    def count(self) -> int:
        return len(self.hosts) + sum(each.count() for each in self.below.values())


def lines(fabric: FabricMap) -> Iterator[str]:
    """Draw *fabric* line by line."""
    yield f"fabric {fabric.name}: {', '.join(summary(fabric))}"
    switches: dict[tuple[FabricLevel, str], int] = {}
    for switch in fabric.switches:
        if switch.domain is not None:
            key = (switch.level, switch.domain)
            switches[key] = switches.get(key, 0) + 1
    top: dict[tuple[FabricLevel, str], _Branch] = {}
    for host, path in fabric.outline().items():
        _put(top, host, path)
    for branch in _in_order(top):
        yield from _draw(branch, switches, "", "")
    for level in reversed(OF_NVLINK):
        for name, hosts in fabric.domains(level).items():
            yield f"{level.noun(1)} {name}: {_hosts(len(hosts))}: {compress(hosts)}"
    strangers = [place.host for place in fabric.places if not place.path]
    if strangers:
        yield f"in no known domain: {_hosts(len(strangers))}: {compress(strangers)}"
    for link in fabric.links:
        if link.dead:
            usual = link.dead + link.count
            yield f"cables missing: {link.lower} - {link.upper}: {link.dead} of {usual}"
    fastest = max((speed(link.rate) or 0 for link in fabric.links), default=0)
    for link in fabric.links:
        if link.rate is not None and (speed(link.rate) or fastest) < fastest:
            yield f"slow cable: {link.lower} - {link.upper}: {link.rate}"


def summary(fabric: FabricMap) -> list[str]:
    """How much there is of what, e.g. ``["121 hosts", "8 leaves"]``."""
    found = [_hosts(len(fabric.places))]
    for level in FabricLevel:
        count = len(fabric.domains(level))
        if count:
            found.append(f"{count} {level.noun(count)}")
    if fabric.switches:
        found.append(f"{len(fabric.switches)} switches")
    if fabric.links:
        found.append(f"{sum(link.count for link in fabric.links)} cables between them")
        dead = sum(link.dead for link in fabric.links)
        if dead:
            found.append(f"{dead} missing")
    return found


def _put(
    top: dict[tuple[FabricLevel, str], _Branch],
    host: str,
    path: Iterable[tuple[FabricLevel, str]],
) -> None:
    at = top
    branch = None
    for level, name in path:
        branch = at.setdefault((level, name), _Branch(level, name))
        at = branch.below
    if branch is not None:
        branch.hosts.append(host)


def _in_order(branches: dict[tuple[FabricLevel, str], _Branch]) -> list[_Branch]:
    return sorted(branches.values(), key=lambda each: (-TREE.index(each.level), each.name))


def _draw(
    branch: _Branch, switches: dict[tuple[FabricLevel, str], int], first: str, rest: str
) -> Iterator[str]:
    of = switches.get((branch.level, branch.name), 0)
    several = f" ({of} switches)" if of > 1 else ""
    said = f": {compress(branch.hosts)}" if branch.hosts else ""
    yield f"{first}{branch.level.word} {branch.name}{several}: {_hosts(branch.count())}{said}"
    below = _in_order(branch.below)
    for number, each in enumerate(below):
        last = number == len(below) - 1
        yield from _draw(
            each, switches, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
        )


def _hosts(count: int) -> str:
    return f"{count} host" if count == 1 else f"{count} hosts"
