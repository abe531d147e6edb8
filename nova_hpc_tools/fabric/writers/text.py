# SPDX-License-Identifier: Apache-2.0
"""A map as a text tree, for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from nova_hpc.fabric.model import OF_NVLINK, TREE, FabricLevel, FabricMap
from nova_hpc_common.output.hostlist import compress_hostlist
from nova_hpc_tools.fabric.graph import speed_of_rate
from nova_hpc_tools.fabric.map_outline import outline_map


@attrs.define
class _FabricBranch:
    level: FabricLevel
    name: str
    hosts: list[str] = attrs.Factory(list)
    below: dict[tuple[FabricLevel, str], _FabricBranch] = attrs.Factory(dict)

    def count(self) -> int:
        return len(self.hosts) + sum(branch.count() for branch in self.below.values())


def draw_fabric_tree(fabric: FabricMap) -> Iterator[str]:
    """Yield the lines of *fabric* drawn as a text tree."""
    yield f"fabric {fabric.name}: {', '.join(summarise_fabric(fabric))}"
    switches: dict[tuple[FabricLevel, str], int] = {}
    for switch in fabric.switches:
        if switch.domain is not None:
            key = (switch.level, switch.domain)
            switches[key] = switches.get(key, 0) + 1
    top: dict[tuple[FabricLevel, str], _FabricBranch] = {}
    for host, path in outline_map(fabric).items():
        _add_host(top, host, path)
    for branch in _branches_in_order(top):
        yield from _draw_branch(branch, switches, "", "")
    for level in reversed(OF_NVLINK):
        for name, hosts in fabric.domains(level).items():
            yield (
                f"{level.noun(1)} {name}: {_format_host_count(len(hosts))}: "
                f"{compress_hostlist(hosts)}"
            )
    strangers = [place.host for place in fabric.places if not place.path]
    if strangers:
        yield (
            f"in no known domain: {_format_host_count(len(strangers))}: "
            f"{compress_hostlist(strangers)}"
        )
    for link in fabric.links:
        if link.dead:
            usual = link.dead + link.count
            yield f"cables missing: {link.lower} - {link.upper}: {link.dead} of {usual}"
    fastest = max((speed_of_rate(link.rate) or 0 for link in fabric.links), default=0)
    for link in fabric.links:
        if link.rate is not None and (speed_of_rate(link.rate) or fastest) < fastest:
            yield f"slow cable: {link.lower} - {link.upper}: {link.rate}"


def summarise_fabric(fabric: FabricMap) -> list[str]:
    """Return the numbers of hosts and domains as phrases, such as ``["121 hosts", "8 leaves"]``."""
    phrases = [_format_host_count(len(fabric.places))]
    for level in FabricLevel:
        count = len(fabric.domains(level))
        if count:
            phrases.append(f"{count} {level.noun(count)}")
    if fabric.switches:
        phrases.append(f"{len(fabric.switches)} switches")
    if fabric.links:
        phrases.append(f"{sum(link.count for link in fabric.links)} cables between them")
        dead = sum(link.dead for link in fabric.links)
        if dead:
            phrases.append(f"{dead} missing")
    return phrases


def _add_host(
    top: dict[tuple[FabricLevel, str], _FabricBranch],
    host: str,
    path: Iterable[tuple[FabricLevel, str]],
) -> None:
    at = top
    branch = None
    for level, name in path:
        branch = at.setdefault((level, name), _FabricBranch(level, name))
        at = branch.below
    if branch is not None:
        branch.hosts.append(host)


def _branches_in_order(
    branches: dict[tuple[FabricLevel, str], _FabricBranch],
) -> list[_FabricBranch]:
    return sorted(branches.values(), key=lambda branch: (-TREE.index(branch.level), branch.name))


def _draw_branch(
    branch: _FabricBranch, switches: dict[tuple[FabricLevel, str], int], first: str, rest: str
) -> Iterator[str]:
    of = switches.get((branch.level, branch.name), 0)
    several = f" ({of} switches)" if of > 1 else ""
    host_text = f": {compress_hostlist(branch.hosts)}" if branch.hosts else ""
    yield (
        f"{first}{branch.level.word} {branch.name}{several}: "
        f"{_format_host_count(branch.count())}{host_text}"
    )
    below = _branches_in_order(branch.below)
    for number, child in enumerate(below):
        last = number == len(below) - 1
        yield from _draw_branch(
            child, switches, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
        )


def _format_host_count(count: int) -> str:
    return f"{count} host" if count == 1 else f"{count} hosts"
