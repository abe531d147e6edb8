# SPDX-License-Identifier: Apache-2.0
"""Slurm's ``topology.conf`` and ``topology.yaml``, trees and blocks (their manual pages)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import attrs

from nova_hpc.fabric.model import FabricLevel
from nova_hpc_tools.fabric.exclusions import NOTHING, Exclusions
from nova_hpc_tools.fabric.graph import Cables, Graph, Port, build, good_name
from nova_hpc_tools.fabric.hostlist import HostListError, expand
from nova_hpc_tools.fabric.problems import FabricError, Found, Reading
from nova_hpc_tools.fabric.reader_text import Value, text_of
from nova_hpc_tools.fabric.readers.stated_domains import Spoken

_WORD: Final = re.compile(r'([A-Za-z]+)\s*=\s*(?:"([^"]*)"|(\S+))')
_KEYS: Final = frozenset(
    {"switchname", "switches", "nodes", "linkspeed", "blockname", "blocksizes"}
)
#: What ``scontrol show topology`` says beyond these; a line of an aggregated block says nothing
#: that its blocks do not.
_SHOWN_KEYS: Final = frozenset({"level", "blockindex", "blocksize", "aggregatedblock"})


@attrs.frozen
class _Entry:
    """A switch or a block."""

    name: str
    line: int
    nodes: str | None = None
    below: str | None = None


@attrs.define
class _Said:
    switches: list[_Entry] = attrs.Factory(list)
    blocks: list[_Entry] = attrs.Factory(list)


def read_conf(
    text: str,
    name: str,
    source: str,
    block_level: FabricLevel = FabricLevel.BLOCK,
    exclusions: Exclusions = NOTHING,
) -> Reading:
    """Read ``topology.conf``, or what ``scontrol show topology`` prints.

    :param block_level: what a block of Slurm is here; on machines like NVL72 it is an
        NVLink domain.
    :raises FabricError: it names neither a switch nor a block.
    """
    found = Found()
    said = _Said()
    for number, line in _lines(text):
        words = {key.lower(): one or other for key, one, other in _WORD.findall(line)}
        rest = _WORD.sub("", line).strip()
        unknown = sorted(words.keys() - _KEYS - _SHOWN_KEYS)
        if rest or unknown:
            found.wrong(f"this makes no sense: {(rest or unknown[0])[:60]!r}", number)
        if "switchname" in words:
            # scontrol names all nodes below a switch, at whatever level.
            nodes = None if "level" in words and "switches" in words else words.get("nodes")
            said.switches.append(_Entry(words["switchname"], number, nodes, words.get("switches")))
        elif "blockname" in words:
            said.blocks.append(_Entry(words["blockname"], number, words.get("nodes")))
        elif not words.keys() & {"blocksizes", "aggregatedblock"} and not rest and not unknown:
            found.wrong("the line names neither a switch nor a block", number)
    return _read(said, found, name, source, block_level, exclusions)


def read_yaml(
    document: Value,
    found: Found,
    name: str,
    source: str,
    topology: str | None = None,
    block_level: FabricLevel = FabricLevel.BLOCK,
    exclusions: Exclusions = NOTHING,
) -> Reading:
    """Read ``topology.yaml``.

    :param topology: name of the one of its topologies to read; None: the cluster's default.
    :raises FabricError: there is no such topology, or it is neither tree nor block.
    """
    entries = {text_of(each.get("topology")): each for each in document.each()}
    defaults = [
        each
        for each in document.each()
        if (text_of(each.get("cluster_default")) or "").lower() in ("true", "yes", "on")
    ]
    if topology is not None:
        if topology not in entries:
            there = ", ".join(sorted(each for each in entries if each)) or "none"
            raise FabricError(f"it has no topology {topology!r}; it has: {there}")
        chosen = entries[topology]
    elif defaults:
        chosen = defaults[0]
        if len(defaults) > 1:
            found.wrong(
                "more than one topology is the default; the first one is read", defaults[1].line
            )
    else:
        chosen = next(document.each())
        if len(entries) > 1:
            found.note("no topology is the cluster's default; the first one is read", chosen.line)
    tree, block = chosen.get("tree"), chosen.get("block")
    said = _Said()
    if tree is not None:
        said.switches += _entries(tree.get("switches"), "switch", found)
    if block is not None:
        said.blocks += _entries(block.get("blocks"), "block", found)
    if tree is None and block is None and chosen.get("flat") is not None:
        others = sorted(
            name
            for name, each in entries.items()
            if name and (each.get("tree") is not None or each.get("block") is not None)
        )
        raise FabricError(
            f"line {chosen.line}: the topology {text_of(chosen.get('topology'))!r}, the cluster's "
            "default, is flat and says nothing of switches; "
            + (
                f"name another with --topology: {', '.join(others)}"
                if others
                else "it is the only one"
            )
        )
    if tree is None and block is None:
        raise FabricError(f"line {chosen.line}: the topology is neither a tree nor of blocks")
    return _read(said, found, name, source, block_level, exclusions)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line that says something; a backslash joins two."""
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


def _entries(values: Value | None, key: str, found: Found) -> Iterator[_Entry]:
    for each in values.each() if values is not None else ():
        name = text_of(each.get(key))
        if name is None:
            found.wrong(f"an entry has no {key!r}", each.line)
            continue
        yield _Entry(name, each.line, text_of(each.get("nodes")), text_of(each.get("children")))


def _read(
    said: _Said,
    found: Found,
    name: str,
    source: str,
    block_level: FabricLevel,
    exclusions: Exclusions,
) -> Reading:
    if not said.switches and not said.blocks:
        raise FabricError("it names neither a switch nor a block")
    said.switches = list(_first(said.switches, "switch", found))
    said.blocks = list(_first(said.blocks, "block", found))
    if said.switches and said.blocks:
        found.wrong("it has switches and blocks; the switches are read", said.blocks[0].line)
    if not said.switches:
        spoken = Spoken(found, exclusions)
        for block in said.blocks:
            for host in _names(block.nodes, "a node", block.line, found):
                spoken.put(host, block_level, block.name, block.line)
        return spoken.reading(name, source)
    defined = {entry.name for entry in said.switches}
    ports: dict[tuple[str, str], Port] = {}
    cables: list[Cables] = []
    for entry in said.switches:
        for host in _names(entry.nodes, "a node", entry.line, found):
            if (host, entry.name) in ports:
                found.note(f"node {host!r} is named twice", entry.line)
            ports[host, entry.name] = Port(host, entry.name, line=entry.line)
        for lower in _names(entry.below, "a switch", entry.line, found):
            if lower not in defined:
                found.wrong(f"switch {lower!r} is defined nowhere", entry.line)
            else:
                cables.append(Cables(lower, entry.name, line=entry.line))
    switches: dict[str, str | None] = dict.fromkeys(sorted(defined))
    graph = Graph(tuple(ports.values()), tuple(cables), switches)
    return build(graph, found, name, source, exclusions)


def _first(entries: list[_Entry], kind: str, found: Found) -> Iterator[_Entry]:
    """Each name once; one that is there twice contradicts itself, and the first counts."""
    seen: dict[str, int] = {}
    for entry in entries:
        if not good_name(entry.name, f"a {kind}", found, entry.line):
            continue
        if entry.name in seen:
            found.wrong(
                f"{kind} {entry.name!r} is there twice, first in line {seen[entry.name]}, which "
                "counts",
                entry.line,
            )
            continue
        seen[entry.name] = entry.line
        yield entry


def _names(text: str | None, what: str, line: int, found: Found) -> Iterator[str]:
    if not text:
        return
    try:
        names = expand(text)
    except HostListError as error:
        found.wrong(str(error), line)
        return
    if "ALL" in names:
        found.wrong(f"{what} ALL stands for what only Slurm knows: write the names", line)
    for name in names:
        if name != "ALL" and good_name(name, what, found, line):
            yield name
