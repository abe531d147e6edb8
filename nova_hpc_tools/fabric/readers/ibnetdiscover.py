# SPDX-License-Identifier: Apache-2.0
"""The output of ``ibnetdiscover`` (infiniband-diags), of InfiniBand fabrics of up to four tiers.

A section for each switch and channel adapter, a line for each port that is connected
(ibnetdiscover(8); infiniband-diags/ibnetdiscover.c, out_switch_port and out_ca_port)::

    Switch  65 "S-..."   # "MF0;LEAF-01:MQM9701/U1" enhanced port 0 lid 73 lmc 0
    [1] "H-..."[1](guid)   # "node7 mlx5_0" lid 647 4xNDR

An adapter is known by its node description, "HOST RAIL" or the host alone. Ports that are down
are not in the output at all: what all others of a tier have and one lacks is counted as dead.
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
from nova_hpc_tools.fabric.graph import Cables, Graph, Port, build, speed
from nova_hpc_tools.fabric.problems import FabricError, Found, Reading

_HEAD: Final = re.compile(r'(Switch|Ca|Rt)\s+(\d+)\s+"([SHR]-[0-9a-f]+)"\s*#\s*"([^"]*)"')
_LINE: Final = re.compile(
    r'\[(\d+)\](?:\[ext \d+\])?(?:\(([0-9a-f]+)\))?\s*"([SHR]-[0-9a-f]+)"\[(\d+)\]'
    r"(?:\[ext \d+\])?(?:\(([0-9a-f]+)\))?\s*#(.*)"
)
_RATE: Final = re.compile(r"\b(\d+x[A-Z]+\d*)\b(?:\s*\((FDR10)\))?")
#: Headings of ``ibnetdiscover -g``.
_GROUPING: Final = re.compile(r"Chassis \d+(?: \(guid 0x[0-9a-f]+\))?\s*$|Non-Chassis Nodes\s*$")
_KEY: Final = re.compile(r"(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=")
#: "MF0;NAME:MODEL/CHIP" is what switches with a management unit say of themselves.
_SWITCH: Final = re.compile(r"[^;:]*;([^;:]+):[^;:/]*(/.*)?")
#: "HOST RAIL", or the host's name alone.
_ADAPTER: Final = re.compile(r"(\S+)(?:\s+(\S+))?")
#: What adapters and switches are called that nobody has named.
_NAMELESS: Final = re.compile(
    r"MT\d+\b|.*\b(?:Mellanox Technologies|Infiniband HCA|Voltaire|QLogic)\b|localhost\b|\(none\)"
    r"|(?:0x)?[0-9a-f]{16}$",
    re.I,
)
_AGGREGATION: Final = re.compile(r".*\bAggregation Node\b", re.I)
#: A switch with fewer than this part of the usual number of hosts, among others that have
#: hosts, is above them and has a service's adapter or two.
_FEW: Final = 0.25


@attrs.frozen
class _End:
    """Where a port's cable goes to."""

    guid: str
    port: int
    rate: str | None
    line: int
    #: The node description of who is there.
    said: str = ""


@attrs.define
class _Section:
    kind: str
    guid: str
    said: str
    line: int
    #: Own port -> the other end; None: two lines contradict each other.
    ends: dict[int, _End | None] = attrs.Factory(dict)


def read(text: str, name: str, source: str, exclusions: Exclusions = NOTHING) -> Reading:
    """Read the output of ibnetdiscover.
    :raises FabricError: there is no switch in it.
    """
    found = Found()
    sections = _sections(text, found)
    if not any(section.kind == "Switch" for section in sections.values()):
        raise FabricError("there is no switch in it: this is no output of ibnetdiscover")
    _compare_ends(sections, found)
    names = _switch_names(sections, exclusions)
    hosts = _hosts(sections, exclusions, found)
    graph = _graph(sections, names, hosts, exclusions, found)
    return build(graph, found, name, source, exclusions)


def _sections(text: str, found: Found) -> dict[str, _Section]:
    sections: dict[str, _Section] = {}
    current: _Section | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.isspace():
            current = None
        elif line.startswith("["):
            if current is not None:
                _port(line, number, current, found)
            else:
                found.wrong("a port that belongs to no switch and no adapter", number)
        elif _GROUPING.match(line):
            current = None
        elif not line.startswith("#") and _KEY.match(line) is None:
            head = _HEAD.match(line)
            current = None
            if head is None:
                found.wrong(f"this makes no sense: {line[:60]!r}", number)
            elif head[3] in sections:
                found.wrong(
                    f"{head[3]} is there twice, first in line {sections[head[3]].line}", number
                )
                # Its ports are read as the first one's, so that they can contradict it.
                current = sections[head[3]]
            else:
                current = _Section(head[1], head[3], head[4], number)
                sections[head[3]] = current
    return sections


def _port(line: str, number: int, section: _Section, found: Found) -> None:
    match = _LINE.match(line)
    if match is None:
        found.wrong(f"this is no line of a port: {line[:60]!r}", number)
        return
    said, _, rest = match[6].rpartition('"')
    rate = _RATE.search(rest)
    if rate is None:
        found.note("the port says no rate", number)
    speed_said = None if rate is None else rate[1]
    if rate is not None and rate[2]:
        speed_said = rate[1].replace("QDR", rate[2])
    own = int(match[1])
    end = _End(match[3], int(match[4]), speed_said, number, said.rpartition('"')[2])
    if own not in section.ends:
        section.ends[own] = end
        return
    before = section.ends[own]
    if before is not None and (before.guid, before.port) == (end.guid, end.port):
        found.wrong(
            f"port {own} of {section.guid} is there twice, first in line {before.line}", number
        )
    else:
        other = "" if before is None else f" and to {before.guid} in line {before.line}"
        found.wrong(
            f"port {own} of {section.guid} goes to {end.guid}{other}: neither is believed", number
        )
        section.ends[own] = None


def _compare_ends(sections: dict[str, _Section], found: Found) -> None:
    """Look at each cable from both ends; what one end alone knows is believed, and told."""
    adapters = any(section.kind == "Ca" for section in sections.values())
    for section in sections.values():
        for own, end in list(section.ends.items()):
            if end is None:
                continue
            other = sections.get(end.guid)
            if other is None:
                if adapters or end.guid.startswith("S"):
                    found.wrong(
                        f"{end.guid}, at the other end of this port, has no section", end.line
                    )
                continue
            if end.port not in other.ends:
                found.wrong(f"{end.guid} does not know of this cable at port {end.port}", end.line)
                continue
            back = other.ends[end.port]
            if back is not None and (back.guid, back.port) != (section.guid, own):
                found.wrong(
                    f"{end.guid} says in line {back.line} that its port {end.port} goes to "
                    f"{back.guid}, port {back.port}: neither is believed",
                    end.line,
                )
                section.ends[own] = None
                other.ends[end.port] = None
            elif back is not None and end.rate is None:
                section.ends[own] = attrs.evolve(end, rate=back.rate)


def _switch_names(sections: dict[str, _Section], exclusions: Exclusions) -> dict[str, str]:
    """GUID -> the name, which no other has; the GUID where nobody has named the switch."""
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
    short = {guid: one for guid, one in short.items() if not exclusions.is_placeholder(one)}
    names = {}
    shorts, longs = Counter(short.values()), Counter(long.values())
    for guid, section in sections.items():
        if section.kind != "Switch":
            continue
        one, other = short.get(guid, ""), long.get(guid, "")
        if shorts[one] == 1 and not wrong_name(one):
            names[guid] = one
        elif longs[other] == 1 and not wrong_name(other):
            names[guid] = other
        else:
            names[guid] = guid
    return names


def _hosts(
    sections: dict[str, _Section], exclusions: Exclusions, found: Found
) -> dict[str, tuple[str, str | None]]:
    """GUID of an adapter -> host and rail; None: the description has the host alone."""
    adapters: dict[str, tuple[str, int]] = {}
    for section in sections.values():
        if section.kind == "Ca":
            adapters[section.guid] = (section.said, section.line)
    for section in sections.values():
        for end in section.ends.values():
            # Without a section of its own an adapter is still named by the switch.
            if end is not None and end.guid.startswith("H"):
                adapters.setdefault(end.guid, (end.said, end.line))
    hosts: dict[str, tuple[str, str | None]] = {}
    first: dict[tuple[str, str], int] = {}
    twice: set[str] = set()
    named = nameless = 0
    for guid, (said, line) in adapters.items():
        if _AGGREGATION.match(said):
            continue
        match = _ADAPTER.fullmatch(said.strip())
        if match is None or _is_nameless(said, match[1], match[2], exclusions):
            found.note(f"adapter {guid} says no host: {said[:60]!r}", line)
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
            found.wrong(
                f"{rail} of host {host!r} is there twice, first in line {before}: two hosts may "
                "have one name, and where it is, is unknown",
                line,
            )
            twice.add(host)
        hosts[guid] = (host, rail)
    if nameless and nameless >= named:
        found.wrong(
            f"{nameless} of {named + nameless} adapters say no host, so where most ports are is "
            "not known: rdma-ndd sets the description of a host's adapters (has it failed?)"
        )
    return {guid: where for guid, where in hosts.items() if where[0] not in twice}


def _is_nameless(said: str, host: str, rail: str | None, exclusions: Exclusions) -> bool:
    """Whether a node description names no host."""
    return (
        _NAMELESS.match(said.strip()) is not None
        or wrong_name(host) is not None
        or (rail is not None and wrong_name(rail) is not None)
        or exclusions.is_placeholder(host)
    )


def _ports(
    sections: dict[str, _Section],
    names: dict[str, str],
    hosts: dict[str, tuple[str, str | None]],
) -> list[Port]:
    """The adapters' cables, from their own lines and from those of the switches."""
    found: dict[tuple[str, int], tuple[str, _End]] = {}
    for guid in hosts:
        section = sections.get(guid)
        for own, end in ({} if section is None else section.ends).items():
            if end is not None and end.guid in names:
                found[guid, own] = (end.guid, end)
    for guid in names:
        for end in sections[guid].ends.values():
            if end is not None and end.guid in hosts:
                own_section = sections.get(end.guid)
                if own_section is None or end.port not in own_section.ends:
                    found.setdefault((end.guid, end.port), (guid, end))
    several = Counter(guid for guid, _ in found)
    ports = []
    for (guid, own), (switch, end) in found.items():
        host, rail = hosts[guid]
        called = rail if rail is None or several[guid] == 1 else f"{rail}/{own}"
        ports.append(Port(host, names[switch], called, end.rate, end.line))
    return ports


def _graph(
    sections: dict[str, _Section],
    names: dict[str, str],
    hosts: dict[str, tuple[str, str | None]],
    exclusions: Exclusions,
    found: Found,
) -> Graph:
    ports = _ports(sections, names, hosts)
    # What is left out does not decide which switches are leaves, either.
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
    heights = _heights(attached, counted, found)
    merged = []
    beside = []
    for (one, other), each in cables.items():
        if heights.get(one) == heights.get(other):
            beside.append((one, other))
            continue
        lower, upper = sorted((one, other), key=lambda switch: heights.get(switch, 99))
        rates = sorted({rate for rate, _ in each if rate}, key=lambda rate: speed(rate) or 0)
        merged.append(
            Cables(lower, upper, len(each), rates[0] if rates else None, min(at for _, at in each))
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


def _heights(
    attached: Counter[str], pairs: Iterable[tuple[str, str]], found: Found
) -> dict[str, int]:
    """Switch -> how far it is above the hosts."""
    beside: dict[str, set[str]] = {}
    for one, other in pairs:
        beside.setdefault(one, set()).add(other)
        beside.setdefault(other, set()).add(one)
    leaves = set(attached)
    for switch in sorted(attached):
        others = [attached[each] for each in beside.get(switch, ()) if each in attached]
        if others and attached[switch] < _FEW * statistics.median(others):
            leaves.discard(switch)
            count = attached[switch]
            found.note(
                f"switch {switch} has {count} host{'s' if count > 1 else ''} and is above switches "
                "with many: it is taken for no leaf (if they are no compute nodes: --ignore)"
            )
    heights = dict.fromkeys(leaves, 0)
    border = sorted(leaves)
    while border:
        following = []
        for switch in border:
            for other in sorted(beside.get(switch, ())):
                if other not in heights:
                    heights[other] = heights[switch] + 1
                    following.append(other)
        border = following
    return heights
