# SPDX-License-Identifier: Apache-2.0
"""Where the hosts of a request are on the fabric, and how many of its servers fit there."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from nova import objects
from oslo_config import cfg
from oslo_log import log as logging

from nova_hpc import conf as hpc_conf
from nova_hpc.cluster.group_domain.domain_choice import Ground, Seat
from nova_hpc.cluster.group_domain.membership import Offer
from nova_hpc.cluster.group_domain.model import Domain, Size
from nova_hpc.fabric import aggregates
from nova_hpc.fabric.model import FabricLevel, Place
from nova_hpc.from_nova import fabric_fit
from nova_hpc.from_nova.log_throttle import SAID, more, some
from nova_hpc.placement.flavor import Fabric

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

hpc_conf.register(CONF)

HINT: Final = "hpc_members"
#: Digits of the longest number that is read.
_DIGITS: Final = 9


class HintError(ValueError):
    """The hint is no number of members; the text is for the user."""


def announced(spec: objects.RequestSpec) -> int | None:
    """How many members the user has announced; None: nothing.

    Nova checks no hints: a list of whatever the API's JSON had arrives.

    :raises HintError: it is not one number from 1 to ``[hpc]fabric_max_members``.
    """
    hints = spec.scheduler_hints if "scheduler_hints" in spec else None
    if not hints or HINT not in hints:
        return None
    value: Any = hints[HINT]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    most = CONF.hpc.fabric_max_members
    good = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _DIGITS
    if not good or not 1 <= int(value) <= most:
        raise HintError(f"The scheduler hint {HINT} must be one number from 1 to {most}")
    return int(value)


@attrs.frozen
class Spot:
    """A host that can take the server."""

    #: Nova's host state.
    host: Any
    seat: Seat

    @property
    def domains(self) -> Mapping[FabricLevel, Domain]:
        """Level -> its domain; the tightest first."""
        return self.seat.domains

    @property
    def fit(self) -> int:
        """How many such servers fit now; at least 1."""
        return self.seat.fit


@attrs.frozen
class View:
    """The hosts of one request."""

    spots: tuple[Spot, ...]
    size: Size
    ground: Ground = attrs.field(init=False, eq=False)

    @ground.default
    def _ground(self) -> Ground:
        return Ground(tuple(spot.seat for spot in self.spots))

    def offer(self, wish: Fabric) -> Offer:
        """What these hosts offer to a group with this wish."""
        return Offer(
            ground=self.ground,
            level=FabricLevel.from_word(wish.level),
            size=self.size,
            seen={spot.host.uuid: frozenset(spot.host.instances or ()) for spot in self.spots},
        )

    def within(self, domain: str) -> tuple[Spot, ...]:
        """The hosts in the domain with this UUID."""
        return tuple(spot for spot in self.spots if spot.seat.is_in(domain))


def wider(level: FabricLevel) -> list[FabricLevel]:
    """*level* and those above it."""
    return [each for each in FabricLevel if each >= level]


def look(hosts: Sequence[Any], spec: objects.RequestSpec) -> View:
    """Where *hosts* are, and what fits; what cannot be read is unknown, with a line in the log."""
    problems: dict[str, list[str]] = collections.defaultdict(list)
    spots = [_spot(host, spec, problems) for host in hosts]
    for text, names in problems.items():
        held = SAID.due(("fabric", text))
        if held is not None:
            LOG.warning(
                "Where hosts are on the fabric is not clear (%s)%s: %s",
                some(sorted(names)),
                more(held),
                text,
            )
    return View(tuple(spots), fabric_fit.size(spec, hosts))


def _spot(host: Any, spec: objects.RequestSpec, problems: dict[str, list[str]]) -> Spot:
    name = str(host.host)
    fit = fabric_fit.fit(host, spec)
    try:
        metadata = [dict(each.metadata or {}) for each in host.aggregates or ()]
        reading = aggregates.read_place(name, metadata)
        for text in reading.problems:
            problems[text.replace(repr(name), "it")].append(name)
        return Spot(host, Seat(reading.place, reading.map, fit))
    except Exception as error:
        # Whatever stands in an aggregate, the scheduler goes on.
        problems[f"{type(error).__name__}: {error}"].append(name)
    return Spot(host, Seat(_nowhere(name), fit=fit))


def _nowhere(name: str) -> Place:
    try:
        return Place(name)
    except ValueError:
        return Place("?")


# --- what was seen before -------------------------------------------------------

#: Host -> where it was when it was looked at last: hosts that are full are in no request, and
#: members may be on them. Replaced value by value, so threads cannot tear it.
_ATLAS: Final[dict[str, Seat]] = {}
_MOST: Final = 100_000


def remember(view: View) -> None:
    """Keep where the hosts of a request are."""
    if len(_ATLAS) > _MOST:
        _ATLAS.clear()
    for spot in view.spots:
        _ATLAS[str(spot.host.host)] = attrs.evolve(spot.seat, fit=0)


def seat_of(host: str) -> Seat | None:
    """Where a host is that was seen before, without its free places; None: it was not."""
    return _ATLAS.get(host)


def around(domain: str) -> Mapping[FabricLevel, Domain]:
    """The domains that the one with this UUID lies in, as far as its hosts were seen."""
    for seat in list(_ATLAS.values()):
        found = seat.domains
        levels = [level for level, each in found.items() if each.uuid == domain]
        if levels:
            return {level: each for level, each in found.items() if level >= levels[0]}
    return {}
