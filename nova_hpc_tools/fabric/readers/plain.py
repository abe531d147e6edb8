# SPDX-License-Identifier: Apache-2.0
"""A map that an operator writes by hand; the operator guide describes the form.

::

    nova_hpc_fabric: 1
    name: hall-a
    domains:
      - {core: c1, spine: s1, leaf: l1, hosts: "n[01-16]", rails: [mlx5_0, mlx5_1]}
      - {nvlink_domain: v1, hosts: "n[01-08]"}
    links:
      - {lower: l1, upper: s1, count: 16, dead: 1, rate: 4xNDR}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nova_hpc.fabric.model import TREE, FabricLevel, FabricLink, FabricSwitch
from nova_hpc_tools.fabric.exclusions import NOTHING, Exclusions
from nova_hpc_tools.fabric.problems import FabricMapError, FabricReading, ProblemCollector
from nova_hpc_tools.fabric.reader_text import LineValue, text_of
from nova_hpc_tools.fabric.readers.stated_domains import Spoken

#: The key that marks the form; its value is the version.
KEY: Final = "nova_hpc_fabric"
_VERSION: Final = "1"
_LEVELS: Final = {level.word: level for level in FabricLevel}
_MOST_CABLES: Final = 1_000_000


def read_plain_map(
    document: LineValue,
    collector: ProblemCollector,
    name: str | None,
    source: str,
    exclusions: Exclusions = NOTHING,
) -> FabricReading:
    """Read a map in nova-hpc's plain YAML form.

    :param name: of the map; None for the name in the document, or "fabric".
    :raises FabricMapError: the document has another version, or no list of domains.
    """
    version = text_of(document.get(KEY))
    if version != _VERSION:
        raise FabricMapError(f"{KEY} is {version!r}; this release of nova-hpc reads {_VERSION}")
    domains = document.get("domains")
    if domains is None or not isinstance(domains.value, list):
        raise FabricMapError("it has no list 'domains'")
    for key, value in document.items():
        if key not in (KEY, "name", "domains", "links"):
            collector.wrong(f"{key!r} is no known key", value.line)
    if name is None:
        name = text_of(document.get("name")) or "fabric"
        if not collector.good_name(name, "the name of the map", document.line):
            name = "fabric"
    spoken = Spoken(collector, exclusions)
    names: dict[str, FabricLevel] = {}
    for entry in domains.each():
        _read_domain_entry(entry, spoken, names, collector)
    links = list(_read_links(document.get("links"), collector))
    ends = {end for link in links for end in (link.lower, link.upper)}
    switches = [
        FabricSwitch(end, names[end], end) if end in names else FabricSwitch(end, FabricLevel.CORE)
        for end in ends
    ]
    return spoken.reading(name, source, switches, links)


def _read_domain_entry(
    entry: LineValue, spoken: Spoken, names: dict[str, FabricLevel], collector: ProblemCollector
) -> None:
    if not isinstance(entry.value, dict):
        collector.wrong(f"a domain is {entry.kind}, not a mapping", entry.line)
        return
    domains: dict[FabricLevel, str] = {}
    for key, value in entry.items():
        level = _LEVELS.get(key)
        if level is not None:
            domain = text_of(value)
            if domain is None or not collector.good_name(domain, key, value.line):
                if domain is None:
                    collector.wrong(f"{key} is {value.kind}, not a name", value.line)
                continue
            domains[level] = domain
            if level in TREE:
                names.setdefault(domain, level)
        elif key not in ("hosts", "rails"):
            collector.wrong(f"{key!r} is no known key of a domain", value.line)
    if not domains:
        collector.wrong("the entry names no domain", entry.line)
    rails = [rail for rail, _ in _names_in_value(entry.get("rails"), "a rail", collector)]
    hosts = list(_names_in_value(entry.get("hosts"), "a host", collector))
    if not hosts:
        collector.note("the entry names no host", entry.line)
    for host, line in hosts:
        spoken.host(host)
        spoken.rails(host, rails)
        for level, domain in domains.items():
            spoken.put(host, level, domain, line)


def _names_in_value(
    value: LineValue | None, what: str, collector: ProblemCollector
) -> Iterator[tuple[str, int]]:
    """Yield the names in a list, or in a text like ``n[1-4],n7``, each with its line number."""
    if value is None:
        return
    for item in value.each() if isinstance(value.value, list) else (value,):
        text = text_of(item)
        if text is None:
            collector.wrong(f"{item.kind} is no name", item.line)
            continue
        for name in collector.good_names(text, what, item.line):
            yield name, item.line


def _read_links(value: LineValue | None, collector: ProblemCollector) -> Iterator[FabricLink]:
    if value is not None and not isinstance(value.value, list):
        collector.wrong(f"'links' is {value.kind}, not a list", value.line)
    seen: dict[tuple[str, str], int] = {}
    for entry in value.each() if value is not None else ():
        lower, upper = text_of(entry.get("lower")), text_of(entry.get("upper"))
        if lower is None or upper is None:
            collector.wrong("a link has no 'lower' or no 'upper'", entry.line)
            continue
        if not all(
            collector.good_name(end, "an end of a link", entry.line) for end in (lower, upper)
        ):
            continue
        if (lower, upper) in seen:
            collector.wrong(
                f"the link is there twice, first in line {seen[lower, upper]}", entry.line
            )
            continue
        seen[lower, upper] = entry.line
        numbers = [_cable_count_of(entry, key, collector) for key in ("count", "dead")]
        rate = text_of(entry.get("rate"))
        if rate is not None and not collector.good_name(rate, "a rate", entry.line):
            rate = None
        yield FabricLink(lower, upper, numbers[0], numbers[1], rate)


def _cable_count_of(entry: LineValue, key: str, collector: ProblemCollector) -> int:
    value = entry.get(key)
    if value is None:
        return int(key == "count")
    text = text_of(value) or ""
    if not text.isdecimal() or int(text) > _MOST_CABLES:
        collector.wrong(f"{key} is {text!r}, not a number of cables", value.line)
        return 0
    return int(text)
