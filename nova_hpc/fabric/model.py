# SPDX-License-Identifier: Apache-2.0
"""The fabric as data: the place of each host, and the switches and links between places.

A fabric is a tree of *domains*: the hosts of a leaf are in one block, the hosts of a block are
below one spine, and so on. If a host has several rails, its "leaf" is the set of leaf
switches that it shares with its neighbours. If several spine switches serve the same leaves, they
are one "spine". An NVLink domain is the one exception: it follows the cables of the GPUs, and may
cross a leaf. A sub-domain is a part of it.

An unknown domain is ``None``. An unknown is never equal to anything, not even to another
unknown: a host without a leaf shares its leaf with no other host.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import attrs

#: The longest name of a host or domain, in characters. The names of a domain's providers
#: in Placement (at most 200) and of its aggregate in Nova (at most 255) contain it.
LONGEST_NAME: Final = 128


class FabricLevel(enum.IntEnum):
    """The levels of fabric domains, from an NVLink sub-domain to the core; a smaller level is
    tighter.
    """

    #: A part of an NVLink domain, e.g. a rack of several.
    SUB_DOMAIN = 0
    NVLINK_DOMAIN = 1
    LEAF = 2
    BLOCK = 3
    SPINE = 4
    CORE = 5

    @property
    def word(self) -> str:
        """The word of ``hpc:fabric`` for this level, e.g. ``leaf``."""
        return self.name.lower()

    def noun(self, count: int) -> str:
        """Return the noun for *count* domains of this level, e.g. ``leaves`` for 2."""
        singular = _NOUNS.get(self.word, self.word)
        if count == 1:
            return singular
        return "leaves" if self is FabricLevel.LEAF else f"{singular}s"

    @classmethod
    def from_word(cls, word: str) -> FabricLevel:
        """Parse the word of a level, such as ``leaf``.

        :raises ValueError: the text names the valid words.
        """
        try:
            return _BY_WORD[word]
        except KeyError:
            legal = ", ".join(level.word for level in cls)
            raise ValueError(f"{word!r} is not one of: {legal}") from None


#: Word of a level -> the term in texts for people, if it differs.
_NOUNS: Final = {"nvlink_domain": "NVLink domain", "sub_domain": "sub-domain"}
_BY_WORD: Final = {level.word: level for level in FabricLevel}

#: The levels that follow the cables of the GPUs, tightest first.
OF_NVLINK: Final = (FabricLevel.SUB_DOMAIN, FabricLevel.NVLINK_DOMAIN)
#: The levels of the tree, tightest first: a domain of one level is part of a domain of the next.
TREE: Final = (FabricLevel.LEAF, FabricLevel.BLOCK, FabricLevel.SPINE, FabricLevel.CORE)


def wrong_name(name: object) -> str | None:
    """Explain why *name* cannot name a host or domain; None if it can."""
    if not isinstance(name, str) or not name:
        return f"{name!r} is no name"
    if len(name) > LONGEST_NAME:
        return f"{name[:20]!r}... has {len(name)} characters; at most {LONGEST_NAME} are possible"
    if not name.isprintable() or name != name.strip():
        return f"{name!r} has characters that a name cannot have"
    return None


def _validate_name(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is None and attribute.default is None:
        return
    wrong = wrong_name(value)
    if wrong is not None:
        raise ValueError(f"{attribute.name}: {wrong}")


@attrs.frozen
class Rail:
    """A port of a host on the fabric. A rail is the set of ports with the same name on all
    hosts.
    """

    #: As the host calls it, e.g. ``mlx5_0``.
    name: str = attrs.field(validator=_validate_name)
    #: The leaf switch at the other end; None if unknown.
    switch: str | None = None
    #: Width and speed as ibnetdiscover writes them, e.g. ``4xNDR``; None if unknown.
    rate: str | None = None


@attrs.frozen
class FabricPlace:
    """The domains of the fabric that one host is in; None for an unknown domain."""

    #: As Nova calls the host.
    host: str = attrs.field(validator=_validate_name)
    nvlink_domain: str | None = attrs.field(default=None, validator=_validate_name)
    #: The part of the NVLink domain, e.g. a rack.
    sub_domain: str | None = attrs.field(default=None, validator=_validate_name)
    leaf: str | None = attrs.field(default=None, validator=_validate_name)
    block: str | None = attrs.field(default=None, validator=_validate_name)
    spine: str | None = attrs.field(default=None, validator=_validate_name)
    core: str | None = attrs.field(default=None, validator=_validate_name)
    #: In the order of their names.
    rails: tuple[Rail, ...] = ()

    def domain(self, level: FabricLevel) -> str | None:
        """Return the name of the host's domain of *level*; None if unknown, or if there is none."""
        name: str | None = getattr(self, level.word)
        return name

    def enclosing(self, level: FabricLevel) -> tuple[FabricLevel, str] | None:
        """Return level and name of the domain within which hosts are sure to share one of *level*.

        That is the domain of *level* if it is known, otherwise the next narrower known domain of
        the tree; None if unknown. Hosts of one leaf are below one spine, even if the spine's name
        is unknown.

        Example: leaf l1 and core c1 are known. For a spine the method returns leaf l1, for the core
        it returns c1, and for an NVLink domain it returns None.
        """
        levels = (
            [candidate for candidate in reversed(TREE) if candidate <= level]
            if level in TREE
            else [level]
        )
        for candidate in levels:
            name = self.domain(candidate)
            if name is not None:
                return candidate, name
        return None

    @property
    def path(self) -> tuple[tuple[FabricLevel, str], ...]:
        """The known domains of the switch tree above the host, widest first; no NVLink domain."""
        domains = ((level, self.domain(level)) for level in reversed(TREE))
        return tuple((level, name) for level, name in domains if name is not None)


@attrs.frozen
class FabricSwitch:
    """One switch of the fabric. Several switches form one domain if hosts have several rails."""

    name: str
    level: FabricLevel
    #: The domain of *level* that it serves; None if it serves no host.
    domain: str | None = None
    #: Its GUID, as 16 hexadecimal digits; None if the source has none.
    guid: str | None = None


@attrs.frozen
class FabricLink:
    """All cables between two switches: their number, the dead ones and their rate."""

    #: Name of the switch that is nearer to the hosts.
    lower: str
    upper: str
    #: How many cables are up.
    count: int = 1
    #: Number of cables that the source lists and that are down.
    dead: int = 0
    #: Rate of the slowest cable that is up, e.g. ``4xNDR``; None if unknown.
    rate: str | None = None


def _by_host(self: FabricMap) -> Mapping[str, FabricPlace]:
    return MappingProxyType({place.host: place for place in self.places})


def _by_level(self: FabricMap) -> Mapping[FabricLevel, Mapping[str, tuple[str, ...]]]:
    by_level: dict[FabricLevel, dict[str, list[str]]] = {level: {} for level in FabricLevel}
    for place in self.places:
        for level in FabricLevel:
            name = place.domain(level)
            if name is not None:
                by_level[level].setdefault(name, []).append(place.host)
    return MappingProxyType(
        {
            level: MappingProxyType({name: tuple(of[name]) for name in sorted(of)})
            for level, of in by_level.items()
        }
    )


def _sorted_places(places: Iterable[FabricPlace]) -> tuple[FabricPlace, ...]:
    return tuple(sorted(places, key=lambda place: place.host))


def _sorted_switches(switches: Iterable[FabricSwitch]) -> tuple[FabricSwitch, ...]:
    return tuple(sorted(switches, key=lambda switch: switch.name))


def _sorted_links(links: Iterable[FabricLink]) -> tuple[FabricLink, ...]:
    return tuple(sorted(links, key=lambda link: (link.lower, link.upper)))


@attrs.frozen(cache_hash=True)
class FabricMap:
    """The places of all hosts. Maps with equal content are equal, whatever their source.

    :raises ValueError: a host occurs twice.
    """

    #: In the order of the hosts' names.
    places: tuple[FabricPlace, ...] = attrs.field(default=(), converter=_sorted_places)
    #: Switches and the links between them, if the source lists them.
    switches: tuple[FabricSwitch, ...] = attrs.field(default=(), converter=_sorted_switches)
    links: tuple[FabricLink, ...] = attrs.field(default=(), converter=_sorted_links)
    #: Name of this map: a cloud with two fabrics has two maps of different names.
    name: str = attrs.field(default="fabric", validator=_validate_name)
    #: The map's origin, a text for people.
    source: str = attrs.field(default="", eq=False)
    _of_host: Mapping[str, FabricPlace] = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(_by_host, takes_self=True)
    )
    _of_level: Mapping[FabricLevel, Mapping[str, tuple[str, ...]]] = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(_by_level, takes_self=True)
    )

    def __attrs_post_init__(self) -> None:
        for place, next_one in zip(self.places, self.places[1:], strict=False):
            if place.host == next_one.host:
                raise ValueError(f"host {place.host!r} is in the map twice")

    def hosts(self) -> tuple[str, ...]:
        """Return the names of all hosts of the map, sorted."""
        return tuple(self._of_host)

    def place(self, host: str) -> FabricPlace | None:
        """Return the domains that *host* is in; None if the map does not contain the host."""
        return self._of_host.get(host)

    def domains(self, level: FabricLevel) -> Mapping[str, tuple[str, ...]]:
        """Return domain name -> names of its hosts, for all domains of *level*; sorted by name."""
        return self._of_level[level]

    def path(self, host: str) -> tuple[tuple[FabricLevel, str], ...]:
        """Return level and name of the known switch domains above *host*, widest first.

        () for an unknown host.
        """
        place = self.place(host)
        return () if place is None else place.path

    def contradictions(self) -> tuple[str, ...]:
        """Find domains that are part of two wider domains, so that the levels do not nest.

        :returns: one sentence for each such domain.
        """
        sentences = []
        for levels in (OF_NVLINK, TREE):
            for level, above in itertools.combinations(levels, 2):
                for name, hosts in self.domains(level).items():
                    names = {self._of_host[host].domain(above) for host in hosts}
                    if len(names) > 1:
                        text = ", ".join(
                            sorted(
                                repr(above_name) if above_name else "none" for above_name in names
                            )
                        )
                        sentences.append(
                            f"{level.noun(1)} {name!r} lies in more than one {above.noun(1)}: "
                            f"{text}"
                        )
        return tuple(sentences)
