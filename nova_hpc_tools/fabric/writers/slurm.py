# SPDX-License-Identifier: Apache-2.0
"""A map as Slurm reads it: ``topology.conf`` of a tree or of blocks, and ``topology.yaml``.

The releases were tested: 22.05 loads only trees. 24.11 also loads blocks, and ends if one of them
is smaller than the base size. 26.05 loads such a block, too, and ``topology.yaml``. For a release
between two of these the stricter one counts.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import attrs
import yaml

from nova_hpc.fabric.model import TREE, FabricLevel, FabricMap
from nova_hpc_common.output.hostlist import compress_hostlist
from nova_hpc_common.outside.host_names import explain_wrong_host
from nova_hpc_common.outside.text import printable_text
from nova_hpc_tools.fabric.map_outline import outline_map
from nova_hpc_tools.fabric.problems import FabricMapError

#: (year, month) of a release.
Release = tuple[int, int]
#: The first release that has blocks.
FIRST_BLOCKS: Final[Release] = (23, 11)
#: The first release that was seen to read ``topology.yaml``.
FIRST_YAML: Final[Release] = (26, 5)
_SMALL_BLOCKS: Final[Release] = (26, 5)
_RELEASE: Final = re.compile(r"(\d{2})\.(\d{2})(?:[.-].*)?")
#: Words that Slurm does not accept as a name (slurm.conf(5)).
_WORDS: Final = ("all", "default")
#: The most characters of a name: as many as a host's can have on Linux (HOST_NAME_MAX).
_LONGEST: Final = 64
_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9_.-]")


@attrs.frozen
class TreeSwitch:
    """A switch in Slurm's tree topology."""

    name: str
    level: FabricLevel
    #: Hosts right below it.
    hosts: tuple[str, ...] = ()
    #: Names of the switches right below it.
    below: tuple[str, ...] = ()


def parse_release(text: str) -> Release:
    """Parse a release of Slurm such as ``24.11`` or ``24.11.5``.

    :raises ValueError: *text* has another form.
    """
    match = _RELEASE.fullmatch(text)
    if match is None or not 1 <= int(match[2]) <= 12:
        raise ValueError(f"{text!r} is no release of Slurm like 24.11")
    return int(match[1]), int(match[2])


def format_slurm_tree(fabric: FabricMap) -> str:
    """Format ``topology.conf`` for ``TopologyPlugin=topology/tree``, of any release of Slurm.

    :raises FabricMapError: Slurm does not accept the name of a host.
    """
    lines = [_head_comment(fabric)]
    for entry in tree_switches_of(fabric):
        words = [f"SwitchName={entry.name}"]
        if entry.hosts:
            words.append(f"Nodes={compress_hostlist(entry.hosts)}")
        if entry.below:
            words.append(f"Switches={compress_hostlist(entry.below)}")
        lines.append(" ".join(words))
    return "".join(f"{line}\n" for line in lines)


def format_slurm_blocks(
    fabric: FabricMap, release: Release, level: FabricLevel | None = None
) -> str:
    """Format ``topology.conf`` for ``TopologyPlugin=topology/block``.

    :param level: level of a block; None for that of :func:`block_level`.
    :raises FabricMapError: *release* has no blocks, or the map has none.
    """
    if release < FIRST_BLOCKS:
        raise FabricMapError(
            f"Slurm {format_release(release)} has no blocks (they came with "
            f"{format_release(FIRST_BLOCKS)}): "
            "write slurm-tree"
        )
    named_blocks = _named_blocks_of(fabric, level)
    lines = [_head_comment(fabric)]
    lines += [f"BlockName={name} Nodes={compress_hostlist(hosts)}" for name, hosts in named_blocks]
    lines.append(f"BlockSizes={','.join(map(str, _block_sizes_of(named_blocks, release)))}")
    return "".join(f"{line}\n" for line in lines)


def format_topology_yaml(
    fabric: FabricMap, release: Release, level: FabricLevel | None = None
) -> str:
    """Format ``topology.yaml``: topology ``tree``, and ``block`` if there are blocks.

    :raises FabricMapError: *release* does not read this file.
    """
    if release < FIRST_YAML:
        raise FabricMapError(
            f"Slurm {format_release(release)} does not read topology.yaml: write "
            f"slurm-tree or slurm-block, "
            f"or name --slurm-version {format_release(FIRST_YAML)} or later"
        )
    switches: list[dict[str, str]] = []
    for entry in tree_switches_of(fabric):
        switch = {"switch": entry.name}
        if entry.hosts:
            switch["nodes"] = compress_hostlist(entry.hosts)
        if entry.below:
            switch["children"] = compress_hostlist(entry.below)
        switches.append(switch)
    topologies: list[dict[str, object]] = [
        {"topology": "tree", "cluster_default": True, "tree": {"switches": switches}}
    ]
    if level is not None or block_level(fabric) is not None:
        named_blocks = _named_blocks_of(fabric, level)
        topologies.append(
            {
                "topology": "block",
                "cluster_default": False,
                "block": {
                    "block_sizes": _block_sizes_of(named_blocks, release),
                    "blocks": [
                        {"block": name, "nodes": compress_hostlist(hosts)}
                        for name, hosts in named_blocks
                    ],
                },
            }
        )
    text = yaml.safe_dump(topologies, sort_keys=False, explicit_start=True, width=1_000_000)
    return f"{_head_comment(fabric)}\n{text}"


def block_level(fabric: FabricMap) -> FabricLevel | None:
    """Choose the level of Slurm's blocks: NVLink domains, else blocks, else leaves, else None."""
    for level in (FabricLevel.NVLINK_DOMAIN, FabricLevel.BLOCK, FabricLevel.LEAF):
        if fabric.domains(level):
            return level
    return None


def tree_switches_of(fabric: FabricMap) -> list[TreeSwitch]:
    """List the switches of Slurm's tree, each after the switches below it.

    A switch of Slurm has hosts or switches, not both. So hosts of unknown leaf get an extra switch
    below their lowest known domain if that domain has switches. Hosts without any domain are below
    no switch.
    """
    hosts: dict[tuple[FabricLevel, str], list[str]] = {}
    below: dict[tuple[FabricLevel, str], set[tuple[FabricLevel, str]]] = {}
    for host, outline in outline_map(fabric).items():
        _check_slurm_host(host)
        path = outline[::-1]
        if not path:
            continue
        hosts.setdefault(path[0], []).append(host)
        for lower, upper in itertools.pairwise(path):
            below.setdefault(upper, set()).add(lower)
    names = _slurm_names_of([*hosts, *below])
    tree_switches: list[TreeSwitch] = []
    extra: dict[tuple[FabricLevel, str], str] = {}
    for key in sorted(hosts, key=lambda key: (key[0], key[1])):
        if key in below:
            extra[key] = _shorten_to_slurm(f"{names[key]}.hosts")
            tree_switches.append(TreeSwitch(extra[key], FabricLevel.LEAF, tuple(hosts[key])))
        else:
            tree_switches.append(TreeSwitch(names[key], key[0], tuple(hosts[key])))
    for level in TREE:
        for key in sorted(domain for domain in below if domain[0] is level):
            children = [names[child] for child in below[key]]
            children += [extra[key]] if key in extra else []
            tree_switches.append(TreeSwitch(names[key], level, (), tuple(sorted(children))))
    return tree_switches


def format_release(release: Release) -> str:
    """Format a release as Slurm writes it, such as ``24.11``."""
    return f"{release[0]:02d}.{release[1]:02d}"


def _named_blocks_of(
    fabric: FabricMap, level: FabricLevel | None
) -> list[tuple[str, tuple[str, ...]]]:
    level = block_level(fabric) if level is None else level
    domains = {} if level is None else fabric.domains(level)
    if level is None or not domains:
        raise FabricMapError(
            f"the map has no {'blocks' if level is None else f'domain of level {level.word}'}: "
            "name another one with --block-level, or write slurm-tree"
        )
    for hosts in domains.values():
        for host in hosts:
            _check_slurm_host(host)
    names = _slurm_names_of([(level, name) for name in domains])
    return [(names[level, name], hosts) for name, hosts in domains.items()]


def _block_sizes_of(blocks: Iterable[tuple[str, tuple[str, ...]]], release: Release) -> list[int]:
    """Return the base size and its doublings, up to the size of all blocks together, in hosts."""
    counts = [len(hosts) for _, hosts in blocks]
    # The base is the smallest block if the release refuses smaller ones. Otherwise it is the
    # usual size, so that a broken host does not change the sizes.
    usual = max(Counter(counts).items(), key=lambda pair: (pair[1], pair[0]))[0]
    base = usual if release >= _SMALL_BLOCKS else min(counts)
    sizes = [base]
    while 2 * sizes[-1] <= base * len(counts):
        sizes.append(2 * sizes[-1])
    return sizes


def _slurm_names_of(keys: Iterable[tuple[FabricLevel, str]]) -> dict[tuple[FabricLevel, str], str]:
    """Return domain -> a unique name that Slurm accepts."""
    names: dict[tuple[FabricLevel, str], str] = {}
    taken: set[str] = set()
    for key in sorted(set(keys)):
        level, name = key
        for candidate in map(_shorten_to_slurm, _candidate_names(_FORBIDDEN.sub("_", name), level)):
            if candidate not in taken:
                names[key] = candidate
                taken.add(candidate)
                break
    return names


def _candidate_names(name: str, level: FabricLevel) -> Iterator[str]:
    if name[0].isalnum() and name.lower() not in _WORDS:
        yield name
    else:
        name = f"{level.word}.{name}"
        yield name
    yield f"{name}.{level.word}"
    number = 2
    while True:
        yield f"{name}.{level.word}.{number}"
        number += 1


def _shorten_to_slurm(name: str) -> str:
    """Return *name* if it is short enough for Slurm; else its start and hash of the whole name."""
    if len(name) <= _LONGEST:
        return name
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST - len(mark) - 1]}.{mark}"


def _check_slurm_host(host: str) -> None:
    # Operators have such hosts (underscores, only digits), and Slurm reads them as plain names.
    plain = host.replace("_", "n")
    wrong = None if plain.isascii() and plain.isdecimal() else explain_wrong_host(plain)
    if wrong is None and host.lower() in _WORDS:
        wrong = "it is a word of Slurm's own"
    if wrong is None and len(host) > _LONGEST:
        wrong = f"it has {len(host)} characters; Slurm takes {_LONGEST}"
    if wrong is not None:
        raise FabricMapError(f"host {host!r}: no node of Slurm can have this name: {wrong}")


def _head_comment(fabric: FabricMap) -> str:
    source = f", from {printable_text(fabric.source)}" if fabric.source else ""
    return f"# The fabric map {fabric.name!r}{source}; written by nova-hpc fabric export."
