# SPDX-License-Identifier: Apache-2.0
"""Slurm's ``topology.conf`` and ``topology.yaml``, trees and blocks (their manual pages)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.fabric.model import FabricLevel
from nova_hpc_tools.fabric.exclusions import NOTHING, Exclusions
from nova_hpc_tools.fabric.graph import Cables, Graph, HostPort, build_map_from_graph
from nova_hpc_tools.fabric.problems import FabricMapError, FabricReading, ProblemCollector
from nova_hpc_tools.fabric.reader_text import LineValue, text_of
from nova_hpc_tools.fabric.readers.stated_domains import Spoken

_WORD: Final = re.compile(r'([A-Za-z]+)\s*=\s*(?:"([^"]*)"|(\S+))')
_KEYS: Final = frozenset(
    {"switchname", "switches", "nodes", "linkspeed", "blockname", "blocksizes"}
)
#: Further keys of ``scontrol show topology``; the line of an aggregated block only repeats facts of
#: its blocks.
_SHOWN_KEYS: Final = frozenset({"level", "blockindex", "blocksize", "aggregatedblock"})


@attrs.frozen
class _TopologyEntry:
    """A switch or a block in Slurm's topology file."""

    name: str
    line: int
    nodes: str | None = None
    below: str | None = None


@attrs.define
class _SlurmTopology:
    switches: list[_TopologyEntry] = attrs.Factory(list)
    blocks: list[_TopologyEntry] = attrs.Factory(list)


def read_conf(
    text: str,
    name: str,
    source: str,
    block_level: FabricLevel = FabricLevel.BLOCK,
    exclusions: Exclusions = NOTHING,
) -> FabricReading:
    """Read Slurm's ``topology.conf``, or the output of ``scontrol show topology``.

    :param block_level: the level of a block of Slurm here; an NVLink domain on machines like NVL72.
    :raises FabricMapError: the text names neither a switch nor a block.
    """
    collector = ProblemCollector()
    parsed = _SlurmTopology()
    for number, line in _logical_lines(text):
        words = {key.lower(): quoted or bare for key, quoted, bare in _WORD.findall(line)}
        rest = _WORD.sub("", line).strip()
        unknown = sorted(words.keys() - _KEYS - _SHOWN_KEYS)
        if rest or unknown:
            collector.wrong(f"this makes no sense: {(rest or unknown[0])[:60]!r}", number)
        if "switchname" in words:
            # scontrol lists all nodes below a switch, also for switches of higher levels.
            nodes = None if "level" in words and "switches" in words else words.get("nodes")
            parsed.switches.append(
                _TopologyEntry(words["switchname"], number, nodes, words.get("switches"))
            )
        elif "blockname" in words:
            parsed.blocks.append(_TopologyEntry(words["blockname"], number, words.get("nodes")))
        elif not words.keys() & {"blocksizes", "aggregatedblock"} and not rest and not unknown:
            collector.wrong("the line names neither a switch nor a block", number)
    return _build_reading(parsed, collector, name, source, block_level, exclusions)


def read_yaml(
    document: LineValue,
    collector: ProblemCollector,
    name: str,
    source: str,
    topology: str | None = None,
    block_level: FabricLevel = FabricLevel.BLOCK,
    exclusions: Exclusions = NOTHING,
) -> FabricReading:
    """Read Slurm's ``topology.yaml``.

    :param topology: name of the topology to read; None for the cluster's default.
    :raises FabricMapError: there is no such topology, or it is neither tree nor block.
    """
    entries = {text_of(entry.get("topology")): entry for entry in document.each()}
    defaults = [
        entry
        for entry in document.each()
        if (text_of(entry.get("cluster_default")) or "").lower() in ("true", "yes", "on")
    ]
    if topology is not None:
        if topology not in entries:
            there = (
                ", ".join(sorted(topology_name for topology_name in entries if topology_name))
                or "none"
            )
            raise FabricMapError(f"it has no topology {topology!r}; it has: {there}")
        chosen = entries[topology]
    elif defaults:
        chosen = defaults[0]
        if len(defaults) > 1:
            collector.wrong(
                "more than one topology is the default; the first one is read", defaults[1].line
            )
    else:
        chosen = next(document.each())
        if len(entries) > 1:
            collector.note(
                "no topology is the cluster's default; the first one is read", chosen.line
            )
    tree, block = chosen.get("tree"), chosen.get("block")
    parsed = _SlurmTopology()
    if tree is not None:
        parsed.switches += _topology_entries(tree.get("switches"), "switch", collector)
    if block is not None:
        parsed.blocks += _topology_entries(block.get("blocks"), "block", collector)
    if tree is None and block is None:
        raise FabricMapError(_explain_other_kind(chosen, entries))
    return _build_reading(parsed, collector, name, source, block_level, exclusions)


def _explain_other_kind(chosen: LineValue, entries: Mapping[str | None, LineValue]) -> str:
    """Explain why a topology without switches cannot be read, and which others can.

    :param entries: all topologies of the file by name.
    """
    kinds = [key for key, _ in chosen.items() if key not in ("topology", "cluster_default")]
    others = sorted(
        name
        for name, entry in entries.items()
        if name and (entry.get("tree") is not None or entry.get("block") is not None)
    )
    cure = f"name another with --topology: {', '.join(others)}" if others else "no other has any"
    return (
        f"line {chosen.line}: the topology {text_of(chosen.get('topology'))!r} is "
        f"{kinds[0] if kinds else 'empty'}, and a map is made of a tree or of blocks; {cure}"
    )


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line with content; a backslash joins two lines."""
    start, held = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        start = start or number
        held += line.split("#", 1)[0].rstrip()
        if held.endswith("\\"):
            held = held[:-1] + " "
            continue
        if held.strip():
            yield start, held.strip()
        start, held = 0, ""
    if held.strip():
        yield start, held.strip()


def _topology_entries(
    values: LineValue | None, key: str, collector: ProblemCollector
) -> Iterator[_TopologyEntry]:
    for entry in values.each() if values is not None else ():
        name = text_of(entry.get(key))
        if name is None:
            collector.wrong(f"an entry has no {key!r}", entry.line)
            continue
        yield _TopologyEntry(
            name, entry.line, text_of(entry.get("nodes")), text_of(entry.get("children"))
        )


def _build_reading(
    parsed: _SlurmTopology,
    collector: ProblemCollector,
    name: str,
    source: str,
    block_level: FabricLevel,
    exclusions: Exclusions,
) -> FabricReading:
    if not parsed.switches and not parsed.blocks:
        raise FabricMapError("it names neither a switch nor a block")
    parsed.switches = list(_drop_repeated_entries(parsed.switches, "switch", collector))
    parsed.blocks = list(_drop_repeated_entries(parsed.blocks, "block", collector))
    if parsed.switches and parsed.blocks:
        collector.wrong("it has switches and blocks; the switches are read", parsed.blocks[0].line)
    if not parsed.switches:
        spoken = Spoken(collector, exclusions)
        for block in parsed.blocks:
            for host in _expand_names(block.nodes, "a node", block.line, collector):
                spoken.put(host, block_level, block.name, block.line)
        return spoken.reading(name, source)
    defined = {entry.name for entry in parsed.switches}
    ports: dict[tuple[str, str], HostPort] = {}
    cables: list[Cables] = []
    for entry in parsed.switches:
        for host in _expand_names(entry.nodes, "a node", entry.line, collector):
            if (host, entry.name) in ports:
                collector.note(f"node {host!r} is named twice", entry.line)
            ports[host, entry.name] = HostPort(host, entry.name, line=entry.line)
        for lower in _expand_names(entry.below, "a switch", entry.line, collector):
            if lower not in defined:
                collector.wrong(f"switch {lower!r} is defined nowhere", entry.line)
            else:
                cables.append(Cables(lower, entry.name, line=entry.line))
    switches: dict[str, str | None] = dict.fromkeys(sorted(defined))
    graph = Graph(tuple(ports.values()), tuple(cables), switches)
    return build_map_from_graph(graph, collector, name, source, exclusions)


def _drop_repeated_entries(
    entries: list[_TopologyEntry], kind: str, collector: ProblemCollector
) -> Iterator[_TopologyEntry]:
    """Yield each name once; a repeated name is a problem, and its first entry counts."""
    seen: dict[str, int] = {}
    for entry in entries:
        if not collector.good_name(entry.name, f"a {kind}", entry.line):
            continue
        if entry.name in seen:
            collector.wrong(
                f"{kind} {entry.name!r} is there twice, first in line {seen[entry.name]}, which "
                "counts",
                entry.line,
            )
            continue
        seen[entry.name] = entry.line
        yield entry


def _expand_names(text: str | None, what: str, line: int, collector: ProblemCollector) -> list[str]:
    names = collector.good_names(text, what, line) if text else []
    if "ALL" in names:
        collector.wrong(f"{what} ALL stands for a list that only Slurm has: write the names", line)
    return [name for name in names if name != "ALL"]
