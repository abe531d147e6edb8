# SPDX-License-Identifier: Apache-2.0
"""A map that somebody writes by hand; the operator guide describes the form.

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

from nova_hpc.fabric.model import TREE, FabricLevel, Link, Switch
from nova_hpc_tools.fabric.exclusions import NOTHING, Exclusions
from nova_hpc_tools.fabric.graph import good_name
from nova_hpc_tools.fabric.hostlist import HostListError, expand
from nova_hpc_tools.fabric.problems import FabricError, Found, Reading
from nova_hpc_tools.fabric.reader_text import Value, text_of
from nova_hpc_tools.fabric.readers.stated_domains import Spoken

#: The key that says what it is; its value is the version.
KEY: Final = "nova_hpc_fabric"
_VERSION: Final = "1"
_LEVELS: Final = {level.word: level for level in FabricLevel}
_MOST_CABLES: Final = 1_000_000


def read(
    document: Value,
    found: Found,
    name: str | None,
    source: str,
    exclusions: Exclusions = NOTHING,
) -> Reading:
    """Read the plain form.

    :param name: of the map; None: what the document says, or "fabric".
    :raises FabricError: it is of another version, or has no list of domains.
    """
    version = text_of(document.get(KEY))
    if version != _VERSION:
        raise FabricError(f"{KEY} is {version!r}; this release of nova-hpc reads {_VERSION}")
    domains = document.get("domains")
    if domains is None or not isinstance(domains.value, list):
        raise FabricError("it has no list 'domains'")
    for key, value in document.items():
        if key not in (KEY, "name", "domains", "links"):
            found.wrong(f"{key!r} is no known key", value.line)
    if name is None:
        name = text_of(document.get("name")) or "fabric"
        if not good_name(name, "the name of the map", found, document.line):
            name = "fabric"
    spoken = Spoken(found, exclusions)
    names: dict[str, FabricLevel] = {}
    for entry in domains.each():
        _entry(entry, spoken, names, found)
    links = list(_links(document.get("links"), found))
    ends = {end for link in links for end in (link.lower, link.upper)}
    switches = [
        Switch(end, names[end], end) if end in names else Switch(end, FabricLevel.CORE)
        for end in ends
    ]
    return spoken.reading(name, source, switches, links)


def _entry(entry: Value, spoken: Spoken, names: dict[str, FabricLevel], found: Found) -> None:
    if not isinstance(entry.value, dict):
        found.wrong(f"a domain is {entry.kind}, not a mapping", entry.line)
        return
    said: dict[FabricLevel, str] = {}
    for key, value in entry.items():
        level = _LEVELS.get(key)
        if level is not None:
            domain = text_of(value)
            if domain is None or not good_name(domain, key, found, value.line):
                if domain is None:
                    found.wrong(f"{key} is {value.kind}, not a name", value.line)
                continue
            said[level] = domain
            if level in TREE:
                names.setdefault(domain, level)
        elif key not in ("hosts", "rails"):
            found.wrong(f"{key!r} is no known key of a domain", value.line)
    if not said:
        found.wrong("the entry names no domain", entry.line)
    rails = [
        rail
        for rail, line in _list(entry.get("rails"), found)
        if good_name(rail, "a rail", found, line)
    ]
    hosts = list(_list(entry.get("hosts"), found))
    if not hosts:
        found.note("the entry names no host", entry.line)
    for host, line in hosts:
        if not good_name(host, "a host", found, line):
            continue
        spoken.host(host)
        spoken.rails(host, rails)
        for level, domain in said.items():
            spoken.put(host, level, domain, line)


def _list(value: Value | None, found: Found) -> Iterator[tuple[str, int]]:
    """The names in a list, or in a text like ``n[1-4],n7``."""
    if value is None:
        return
    for each in value.each() if isinstance(value.value, list) else (value,):
        text = text_of(each)
        if text is None:
            found.wrong(f"{each.kind} is no name", each.line)
            continue
        try:
            names = expand(text)
        except HostListError as error:
            found.wrong(str(error), each.line)
            continue
        for name in names:
            yield name, each.line


def _links(value: Value | None, found: Found) -> Iterator[Link]:
    if value is not None and not isinstance(value.value, list):
        found.wrong(f"'links' is {value.kind}, not a list", value.line)
    seen: dict[tuple[str, str], int] = {}
    for entry in value.each() if value is not None else ():
        lower, upper = text_of(entry.get("lower")), text_of(entry.get("upper"))
        if lower is None or upper is None:
            found.wrong("a link has no 'lower' or no 'upper'", entry.line)
            continue
        if not all(good_name(end, "an end of a link", found, entry.line) for end in (lower, upper)):
            continue
        if (lower, upper) in seen:
            found.wrong(f"the link is there twice, first in line {seen[lower, upper]}", entry.line)
            continue
        seen[lower, upper] = entry.line
        numbers = [_number(entry, key, found) for key in ("count", "dead")]
        rate = text_of(entry.get("rate"))
        if rate is not None and not good_name(rate, "a rate", found, entry.line):
            rate = None
        yield Link(lower, upper, numbers[0], numbers[1], rate)


def _number(entry: Value, key: str, found: Found) -> int:
    value = entry.get(key)
    if value is None:
        return int(key == "count")
    text = text_of(value) or ""
    if not text.isdecimal() or int(text) > _MOST_CABLES:
        found.wrong(f"{key} is {text!r}, not a number of cables", value.line)
        return 0
    return int(text)
