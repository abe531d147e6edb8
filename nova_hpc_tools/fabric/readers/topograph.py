# SPDX-License-Identifier: Apache-2.0
"""Reader of topograph's output (https://github.com/NVIDIA/topograph): graphs and models.

The engine ``graph`` writes JSON with one entry for each instance: its switches, the nearest
first, and labels, of which one is the NVLink domain (docs/engines/graph.md; up to 0.5 it was
the attribute ``nvlink``). A model is the YAML of its simulation providers
(pkg/models/model.go): switches with their switches, and blocks of nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from nova_hpc.fabric.model import FabricLevel
from nova_hpc_tools.fabric.exclusions import NOTHING, Exclusions
from nova_hpc_tools.fabric.graph import Cables, Graph, HostPort, build_map_from_graph
from nova_hpc_tools.fabric.problems import FabricMapError, FabricReading, ProblemCollector
from nova_hpc_tools.fabric.reader_text import LineValue, text_of

#: Keys of the label, attribute or annotation that is the NVLink domain.
_DOMAINS: Final = (
    "accelerator.topograph.run/domain",
    "accelerator.topology.test/domain",
    "network.topology.nvidia.com/accelerator",
    "nvlink",
)
#: Keys of the label of a sub-domain, a part of an NVLink domain (since 1.0).
_SUB_DOMAINS: Final = ("accelerator.topograph.run/sub-domain",)


def read_graph(
    document: LineValue,
    collector: ProblemCollector,
    name: str,
    source: str,
    exclusions: Exclusions = NOTHING,
) -> FabricReading:
    """Read the JSON of topograph's engine ``graph``.

    :raises FabricMapError: it has no list of instances.
    """
    instances = document.get("instances")
    if instances is None or not isinstance(instances.value, list):
        raise FabricMapError("it has no list 'instances'")
    first: dict[str, tuple[int, tuple[str, ...], str | None, str | None]] = {}
    apart: set[str] = set()
    for instance in instances.each():
        host = text_of(instance.get("id"))
        if host is None:
            collector.wrong("an instance has no id", instance.line)
            continue
        if not collector.good_name(host, "the id of an instance", instance.line):
            continue
        domain = _read_domain_label(instance, _DOMAINS, "a domain", collector)
        part = _read_domain_label(instance, _SUB_DOMAINS, "a sub-domain", collector)
        entry = (instance.line, tuple(_read_layers(instance, host, collector)), domain, part)
        before = first.setdefault(host, entry)
        if before != entry:
            same = before[1:] == entry[1:]
            collector.wrong(
                f"instance {host!r} is there twice, first in line {before[0]}"
                + ("" if same else ": where it is, is unknown"),
                instance.line,
            )
            if not same:
                apart.add(host)
    ports: list[HostPort] = []
    cables: dict[tuple[str, str], Cables] = {}
    nvlink: dict[str, str] = {}
    sub_domains: dict[str, str] = {}
    for host, (line, layers, domain, part) in first.items():
        if host in apart:
            continue
        if layers:
            ports.append(HostPort(host, layers[0], line=line))
        for lower, upper in itertools.pairwise(layers):
            cables.setdefault((lower, upper), Cables(lower, upper, line=line))
        if domain is not None:
            nvlink[host] = domain
            if part is not None:
                sub_domains[host] = part
        elif part is not None:
            collector.wrong(f"instance {host!r} has a sub-domain and no domain", line)
    graph = Graph(
        tuple(ports),
        tuple(cables.values()),
        nvlink=nvlink,
        sub_domains=sub_domains,
        hosts=tuple(first),
    )
    return build_map_from_graph(graph, collector, name, source, exclusions)


def read_model(
    document: LineValue,
    collector: ProblemCollector,
    name: str,
    source: str,
    exclusions: Exclusions = NOTHING,
) -> FabricReading:
    """Read a model file of topograph.

    :raises FabricMapError: it has neither switches nor blocks.
    """
    switches, blocks = document.get("switches"), document.get("blocks")
    if blocks is None:
        blocks = document.get("capacity_blocks")
    if (switches is None or not isinstance(switches.value, dict)) and (
        blocks is None or not isinstance(blocks.value, list)
    ):
        raise FabricMapError("it has neither 'switches' nor 'blocks'")
    cables: list[Cables] = []
    for upper, entry in switches.items() if switches else ():
        if not collector.good_name(upper, "a switch", entry.line):
            continue
        below = entry.get("switches")
        if below is not None and not isinstance(below.value, list):
            collector.wrong(f"'switches' of {upper!r} is {below.kind}, not a list", below.line)
            continue
        for child in below.each() if below else ():
            lower = text_of(child)
            if collector.good_name(lower, f"a switch below {upper!r}", child.line):
                cables.append(Cables(str(lower), upper, line=child.line))
    cabled_switches = {cable.lower for cable in cables} | {cable.upper for cable in cables}
    ports: list[HostPort] = []
    nvlink: dict[str, dict[str, int]] = {}
    sub_domains: dict[str, dict[str, int]] = {}
    hosts: list[str] = []
    for block in blocks.each() if blocks else ():
        switch = text_of(block.get("switch"))
        domain = _read_domain_label(block, _DOMAINS, "an NVLink domain", collector)
        part = _read_domain_label(block, _SUB_DOMAINS, "a sub-domain", collector)
        if switch is not None and not collector.good_name(
            switch, "the switch of a block", block.line
        ):
            switch = None
        if (
            switch is not None
            and switches is not None
            and switch not in cabled_switches | set(switches.value)
        ):
            collector.wrong(f"no switch {switch!r} is defined", block.line)
        for host, line in _read_nodes(block, collector):
            hosts.append(host)
            if switch is not None:
                ports.append(HostPort(host, switch, line=line))
            if domain is not None:
                nvlink.setdefault(host, {}).setdefault(domain, line)
            if part is not None:
                sub_domains.setdefault(host, {}).setdefault(part, line)
    graph = Graph(
        _drop_repeated_ports(ports),
        tuple(cables),
        nvlink=_one_each(nvlink, FabricLevel.NVLINK_DOMAIN, collector),
        sub_domains=_one_each(sub_domains, FabricLevel.SUB_DOMAIN, collector),
        hosts=tuple(hosts),
    )
    return build_map_from_graph(graph, collector, name, source, exclusions)


def _read_layers(instance: LineValue, host: str, collector: ProblemCollector) -> Iterator[str]:
    layers = instance.get("network_layers")
    if layers is None:
        return
    if not isinstance(layers.value, list):
        collector.wrong(f"'network_layers' of {host!r} is {layers.kind}, not a list", layers.line)
    seen: set[str] = set()
    for layer in layers.each():
        switch = text_of(layer)
        if not switch:
            collector.wrong(f"instance {host!r} has a layer without a name", layer.line)
            return  # the layers above it have no switch below
        if not collector.good_name(switch, f"a layer of {host!r}", layer.line):
            return
        if switch in seen:
            collector.wrong(f"instance {host!r} has the layer {switch!r} twice", layer.line)
            return
        seen.add(switch)
        yield switch


def _read_nodes(block: LineValue, collector: ProblemCollector) -> Iterator[tuple[str, int]]:
    nodes = block.get("nodes")
    if nodes is None:
        collector.note("a block has no nodes", block.line)
        return
    if not isinstance(nodes.value, list):
        collector.wrong(f"'nodes' is {nodes.kind}, not a list", nodes.line)
    for item in nodes.each():
        for host in collector.good_names(text_of(item) or "", "a node", item.line):
            yield host, item.line


def _read_domain_label(
    entry: LineValue, keys: Iterable[str], what: str, collector: ProblemCollector
) -> str | None:
    """Return the first of the labels *keys* that an entry has; None if none, or a bad name."""
    groups = [entry.get(name) for name in ("labels", "annotations", "attributes")]
    labels = [text_of(values.get(key)) for values in groups if values for key in keys]
    # Old models have the domain as a key of the entry itself.
    labels += [text_of(entry.get(key)) for key in keys if key == _DOMAINS[-1]]
    domain = next(filter(None, labels), None)
    if domain is not None and not collector.good_name(domain, what, entry.line):
        return None
    return domain


def _one_each(
    domains: dict[str, dict[str, int]], level: FabricLevel, collector: ProblemCollector
) -> dict[str, str]:
    """Return host -> its domain; a host with two domains is a problem, and is missing."""
    for host, domain_lines in domains.items():
        if len(domain_lines) > 1:
            names = ", ".join(sorted(domain_lines))
            collector.wrong(
                f"host {host!r} is in more than one {level.noun(1)}: {names}",
                max(domain_lines.values()),
            )
    return {
        host: next(iter(domain_lines))
        for host, domain_lines in domains.items()
        if len(domain_lines) == 1
    }


def _drop_repeated_ports(ports: list[HostPort]) -> tuple[HostPort, ...]:
    """Return each pair of host and switch once, with its first port: a second one adds nothing."""
    return tuple({(port.host, port.switch): port for port in reversed(ports)}.values())
