# SPDX-License-Identifier: Apache-2.0
"""The output of ``ibnetdiscover`` (infiniband-diags), of InfiniBand fabrics of up to four tiers.

A section for each switch and channel adapter, a line for each port that is connected
(ibnetdiscover(8); infiniband-diags/ibnetdiscover.c, out_switch_port and out_ca_port)::

    Switch  65 "S-..."   # "MF0;LEAF-01:MQM9701/U1" enhanced port 0 lid 73 lmc 0
    [1] "H-..."[1](guid)   # "node7 mlx5_0" lid 647 4xNDR

An adapter is identified by its node description, "HOST RAIL" or only the host. The output omits
ports that are down. So a cable that one switch lacks, and others of its tier have, is dead.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Final

import attrs

from nova_hpc.fabric.model import wrong_name
from nova_hpc_tools.fabric.exclusions import NOTHING, Exclusions
from nova_hpc_tools.fabric.graph import Cables, Graph, HostPort, build_map_from_graph, speed_of_rate
from nova_hpc_tools.fabric.problems import FabricMapError, FabricReading, ProblemCollector

_HEAD: Final = re.compile(r'(Switch|Ca|Rt)\s+(\d+)\s+"([SHR]-[0-9a-f]+)"\s*#\s*"([^"]*)"')
_LINE: Final = re.compile(
    r'\[(\d+)\](?:\[ext \d+\])?(?:\(([0-9a-f]+)\))?\s*"([SHR]-[0-9a-f]+)"\[(\d+)\]'
    r"(?:\[ext \d+\])?(?:\(([0-9a-f]+)\))?\s*#(.*)"
)
_RATE: Final = re.compile(r"\b(\d+x[A-Z]+\d*)\b(?:\s*\((FDR10)\))?")
#: Headings of ``ibnetdiscover -g``.
_GROUPING: Final = re.compile(r"Chassis \d+(?: \(guid 0x[0-9a-f]+\))?\s*$|Non-Chassis Nodes\s*$")
_KEY: Final = re.compile(r"(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=")
#: "MF0;NAME:MODEL/CHIP", the node description of switches with a management unit.
_SWITCH: Final = re.compile(r"[^;:]*;([^;:]+):[^;:/]*(/.*)?")
#: "HOST RAIL", or only the host's name.
_ADAPTER: Final = re.compile(r"(\S+)(?:\s+(\S+))?")
#: Default node descriptions of adapters and switches.
_NAMELESS: Final = re.compile(
    r"MT\d+\b|.*\b(?:Mellanox Technologies|Infiniband HCA|Voltaire|QLogic)\b|localhost\b|\(none\)"
    r"|(?:0x)?[0-9a-f]{16}$",
    re.I,
)
_AGGREGATION: Final = re.compile(r".*\bAggregation Node\b", re.I)
#: A switch with fewer hosts than this part of its neighbours' median is no leaf. It is above them
#: and has one or two adapters of a service.
_FEW: Final = 0.25


@attrs.frozen
class _End:
    """The other end of a port's cable: GUID, port number, rate and description."""

    guid: str
    port: int
    rate: str | None
    line: int
    #: The node description of the neighbour, as this line contains it.
    said: str = ""


@attrs.define
class _Section:
    kind: str
    guid: str
    said: str
    line: int
    #: Own port -> the other end; None if two lines contradict each other.
    ends: dict[int, _End | None] = attrs.Factory(dict)


def read_ibnetdiscover(
    text: str, name: str, source: str, exclusions: Exclusions = NOTHING
) -> FabricReading:
    """Read the output of ibnetdiscover.

    :raises FabricMapError: it contains no switch.
    """
    collector = ProblemCollector()
    sections = _split_into_sections(text, collector)
    if not any(section.kind == "Switch" for section in sections.values()):
        raise FabricMapError("there is no switch in it: this is no output of ibnetdiscover")
    _compare_ends(sections, collector)
    names = _switch_names(sections, exclusions)
    hosts = _hosts_of_adapters(sections, exclusions, collector)
    graph = _graph_of_sections(sections, names, hosts, exclusions, collector)
    return build_map_from_graph(graph, collector, name, source, exclusions)


def _split_into_sections(text: str, collector: ProblemCollector) -> dict[str, _Section]:
    sections: dict[str, _Section] = {}
    current: _Section | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.isspace():
            current = None
        elif line.startswith("["):
            if current is not None:
                _read_port_line(line, number, current, collector)
            else:
                collector.wrong("a port that belongs to no switch and no adapter", number)
        elif _GROUPING.match(line):
            current = None
        elif not line.startswith("#") and _KEY.match(line) is None:
            head = _HEAD.match(line)
            current = None
            if head is None:
                collector.wrong(f"this makes no sense: {line[:60]!r}", number)
            elif head[3] in sections:
                collector.wrong(
                    f"{head[3]} is there twice, first in line {sections[head[3]].line}", number
                )
                # Its ports are added to the first section's, so that contradictions show.
                current = sections[head[3]]
            else:
                current = _Section(head[1], head[3], head[4], number)
                sections[head[3]] = current
    return sections


def _read_port_line(line: str, number: int, section: _Section, collector: ProblemCollector) -> None:
    match = _LINE.match(line)
    if match is None:
        collector.wrong(f"this is no line of a port: {line[:60]!r}", number)
        return
    description, _, rest = match[6].rpartition('"')
    rate = _RATE.search(rest)
    if rate is None:
        collector.note("the port has no rate", number)
    speed_said = None if rate is None else rate[1]
    if rate is not None and rate[2]:
        speed_said = rate[1].replace("QDR", rate[2])
    own = int(match[1])
    end = _End(match[3], int(match[4]), speed_said, number, description.rpartition('"')[2])
    if own not in section.ends:
        section.ends[own] = end
        return
    before = section.ends[own]
    if before is not None and (before.guid, before.port) == (end.guid, end.port):
        collector.wrong(
            f"port {own} of {section.guid} is there twice, first in line {before.line}", number
        )
    else:
        previous_end = "" if before is None else f" and to {before.guid} in line {before.line}"
        collector.wrong(
            f"port {own} of {section.guid} goes to {end.guid}{previous_end}: neither is believed",
            number,
        )
        section.ends[own] = None


def _compare_ends(sections: dict[str, _Section], collector: ProblemCollector) -> None:
    """Compare both ends of each cable; a cable at only one end counts, and is a problem."""
    adapters = any(section.kind == "Ca" for section in sections.values())
    for section in sections.values():
        for own, end in list(section.ends.items()):
            if end is None:
                continue
            neighbour = sections.get(end.guid)
            if neighbour is None:
                if adapters or end.guid.startswith("S"):
                    collector.wrong(
                        f"{end.guid}, at the other end of this port, has no section", end.line
                    )
                continue
            if end.port not in neighbour.ends:
                collector.wrong(
                    f"{end.guid} does not report this cable at port {end.port}", end.line
                )
                continue
            back = neighbour.ends[end.port]
            if back is not None and (back.guid, back.port) != (section.guid, own):
                collector.wrong(
                    f"{end.guid} reports in line {back.line} that its port {end.port} goes to "
                    f"{back.guid}, port {back.port}: both lines are ignored",
                    end.line,
                )
                section.ends[own] = None
                neighbour.ends[end.port] = None
            elif back is not None and end.rate is None:
                section.ends[own] = attrs.evolve(end, rate=back.rate)


def _switch_names(sections: dict[str, _Section], exclusions: Exclusions) -> dict[str, str]:
    """Return GUID of a switch -> a unique name; the GUID itself if the switch has none."""
    short: dict[str, str] = {}
    long: dict[str, str] = {}
    for guid, section in sections.items():
        if section.kind != "Switch":
            continue
        match = _SWITCH.fullmatch(section.said)
        if match is not None:
            short[guid] = match[1].strip()
            long[guid] = match[1].strip() + (match[2] or "")
        elif not _NAMELESS.match(section.said):
            short[guid] = long[guid] = section.said.strip()
    short = {guid: name for guid, name in short.items() if not exclusions.is_placeholder(name)}
    names = {}
    shorts, longs = Counter(short.values()), Counter(long.values())
    for guid, section in sections.items():
        if section.kind != "Switch":
            continue
        short_name, long_name = short.get(guid, ""), long.get(guid, "")
        if shorts[short_name] == 1 and not wrong_name(short_name):
            names[guid] = short_name
        elif longs[long_name] == 1 and not wrong_name(long_name):
            names[guid] = long_name
        else:
            names[guid] = guid
    return names


def _hosts_of_adapters(
    sections: dict[str, _Section], exclusions: Exclusions, collector: ProblemCollector
) -> dict[str, tuple[str, str | None]]:
    """Map GUID of an adapter -> host and rail; rail None if the description has no rail.

    Hosts with a repeated rail are left out: two hosts may have the same name.
    """
    adapters: dict[str, tuple[str, int]] = {}
    for section in sections.values():
        if section.kind == "Ca":
            adapters[section.guid] = (section.said, section.line)
    for section in sections.values():
        for end in section.ends.values():
            # A line of the switch describes an adapter that has no section of its own.
            if end is not None and end.guid.startswith("H"):
                adapters.setdefault(end.guid, (end.said, end.line))
    hosts: dict[str, tuple[str, str | None]] = {}
    first: dict[tuple[str, str], int] = {}
    twice: set[str] = set()
    named = nameless = 0
    for guid, (description, line) in adapters.items():
        if _AGGREGATION.match(description):
            continue
        match = _ADAPTER.fullmatch(description.strip())
        if match is None or _is_nameless(description, match[1], match[2], exclusions):
            collector.note(f"adapter {guid} names no host: {description[:60]!r}", line)
            nameless += 1
            continue
        host, rail = match.groups()
        named += 1
        if exclusions.leaves_out_host(host):
            continue
        if rail is None:
            hosts[guid] = (host, None)
            continue
        before = first.setdefault((host, rail), line)
        if before != line:
            collector.wrong(
                f"{rail} of host {host!r} is there twice, first in line {before}: two hosts may "
                "have one name, and where it is, is unknown",
                line,
            )
            twice.add(host)
        hosts[guid] = (host, rail)
    if nameless and nameless >= named:
        collector.wrong(
            f"{nameless} of {named + nameless} adapters name no host, so the places of most ports "
            "are unknown: rdma-ndd sets the description of a host's adapters (has it failed?)"
        )
    return {guid: where for guid, where in hosts.items() if where[0] not in twice}


def _is_nameless(description: str, host: str, rail: str | None, exclusions: Exclusions) -> bool:
    """Whether a node description does not contain a usable host name."""
    return (
        _NAMELESS.match(description.strip()) is not None
        or wrong_name(host) is not None
        or (rail is not None and wrong_name(rail) is not None)
        or exclusions.is_placeholder(host)
    )


def _ports_of_adapters(
    sections: dict[str, _Section], names: dict[str, str], hosts: dict[str, tuple[str, str | None]]
) -> list[HostPort]:
    """List the adapters' cables to switches, by their own lines and the switches'."""
    port_ends: dict[tuple[str, int], tuple[str, _End]] = {}
    for guid in hosts:
        section = sections.get(guid)
        for own, end in ({} if section is None else section.ends).items():
            if end is not None and end.guid in names:
                port_ends[guid, own] = (end.guid, end)
    for guid in names:
        for end in sections[guid].ends.values():
            if end is not None and end.guid in hosts:
                own_section = sections.get(end.guid)
                if own_section is None or end.port not in own_section.ends:
                    port_ends.setdefault((end.guid, end.port), (guid, end))
    several = Counter(guid for guid, _ in port_ends)
    ports = []
    for (guid, own), (switch, end) in port_ends.items():
        host, rail = hosts[guid]
        called = rail if rail is None or several[guid] == 1 else f"{rail}/{own}"
        ports.append(HostPort(host, names[switch], called, end.rate, end.line))
    return ports


def _graph_of_sections(
    sections: dict[str, _Section],
    names: dict[str, str],
    hosts: dict[str, tuple[str, str | None]],
    exclusions: Exclusions,
    collector: ProblemCollector,
) -> Graph:
    ports = _ports_of_adapters(sections, names, hosts)
    # Excluded ports and switches do not count for the choice of leaves, either.
    attached = Counter(
        port.switch
        for port in ports
        if not exclusions.leaves_out_switch(port.switch)
        and not exclusions.leaves_out_rail(port.rail)
    )
    cables: dict[tuple[str, str], list[tuple[str | None, int]]] = {}
    for guid in names:
        for own, end in sections[guid].ends.items():
            if end is None or end.guid not in names or end.guid == guid:
                continue
            back = sections[end.guid].ends.get(end.port)
            if back is not None and (back.guid, back.port) == (guid, own) and end.guid < guid:
                continue  # of the two lines of a cable only one counts
            pair = (names[guid], names[end.guid])
            cables.setdefault((min(pair), max(pair)), []).append((end.rate, end.line))
    counted = [pair for pair in cables if not any(map(exclusions.leaves_out_switch, pair))]
    heights = _heights_of_switches(attached, counted, collector)
    merged = []
    beside = []
    for (first, second), cable_ends in cables.items():
        if heights.get(first) == heights.get(second):
            beside.append((first, second))
            continue
        lower, upper = sorted((first, second), key=lambda switch: heights.get(switch, 99))
        rates = sorted(
            {rate for rate, _ in cable_ends if rate}, key=lambda rate: speed_of_rate(rate) or 0
        )
        merged.append(
            Cables(
                lower,
                upper,
                len(cable_ends),
                rates[0] if rates else None,
                min(at for _, at in cable_ends),
            )
        )
    return Graph(
        ports=tuple(ports),
        cables=tuple(merged),
        beside=tuple(beside),
        switches={name: guid[2:] for guid, name in names.items()},
        hosts=tuple({host for host, _ in hosts.values()}),
        has_rails=True,
        discovered=True,
    )


def _heights_of_switches(
    attached: Counter[str], pairs: Iterable[tuple[str, str]], collector: ProblemCollector
) -> dict[str, int]:
    """Switch -> its height above the hosts, 0 for leaves; unconnected switches are missing."""
    beside: dict[str, set[str]] = {}
    for first, neighbour in pairs:
        beside.setdefault(first, set()).add(neighbour)
        beside.setdefault(neighbour, set()).add(first)
    leaves = set(attached)
    for switch in sorted(attached):
        others = [
            attached[neighbour] for neighbour in beside.get(switch, ()) if neighbour in attached
        ]
        if others and attached[switch] < _FEW * statistics.median(others):
            leaves.discard(switch)
            count = attached[switch]
            collector.note(
                f"switch {switch} has {count} host{'s' if count > 1 else ''} and is above switches "
                "with many: it is taken for no leaf (if they are no compute nodes: --ignore)"
            )
    heights = dict.fromkeys(leaves, 0)
    border = sorted(leaves)
    while border:
        following = []
        for switch in border:
            for neighbour in sorted(beside.get(switch, ())):
                if neighbour not in heights:
                    heights[neighbour] = heights[switch] + 1
                    following.append(neighbour)
        border = following
    return heights
