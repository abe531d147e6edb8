# SPDX-License-Identifier: Apache-2.0
"""The places of a request's hosts on the fabric, and how many of its servers fit there."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from nova import objects
from oslo_config import cfg
from oslo_log import log as logging

from nova_hpc import conf as hpc_conf
from nova_hpc.cluster.group_domain.domain_choice import FabricSeat, Ground
from nova_hpc.cluster.group_domain.membership import JoinOffer
from nova_hpc.cluster.group_domain.model import GroupDomain, Size
from nova_hpc.fabric import aggregates
from nova_hpc.fabric.model import FabricLevel, FabricPlace
from nova_hpc.from_nova import fabric_fit
from nova_hpc.from_nova.log_throttle import LOG_THROTTLE, format_held_back
from nova_hpc.placement.flavor import Fabric
from nova_hpc_common.outside.name_lists import join_first

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

hpc_conf.register_all_options(CONF)

HINT: Final = "hpc_members"
#: Digits of the longest number that is read.
_DIGITS: Final = 9


class HintError(ValueError):
    """The scheduler hint ``hpc_members`` is not a number of members. The text is for the user."""


def announced_members_of(spec: objects.RequestSpec) -> int | None:
    """Return the number of members in the scheduler hint ``hpc_members``; None without the hint.

    Nova does not check hints: the value is a list of anything that was in the API's JSON.

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
class FabricSpot:
    """A host that passed the filters, with its place on the fabric."""

    #: Nova's host state.
    host: Any
    seat: FabricSeat

    @property
    def domains(self) -> Mapping[FabricLevel, GroupDomain]:
        """Level -> the host's domain of that level; the tightest first."""
        return self.seat.domains

    @property
    def fit(self) -> int:
        """The number of servers of the request that fit on this host now.

        At least 1, because the host has passed all filters.
        """
        return self.seat.fit


@attrs.frozen
class FabricView:
    """The hosts of one scheduling request, with their places on the fabric."""

    spots: tuple[FabricSpot, ...]
    size: Size
    ground: Ground = attrs.field(init=False, eq=False)

    @ground.default
    def _ground(self) -> Ground:
        return Ground(tuple(spot.seat for spot in self.spots))

    def offer(self, wish: Fabric) -> JoinOffer:
        """Build the offer of these hosts to a server group with the requirement *wish*."""
        return JoinOffer(
            ground=self.ground,
            level=FabricLevel.from_word(wish.level),
            size=self.size,
            seen={spot.host.uuid: frozenset(spot.host.instances or ()) for spot in self.spots},
        )

    def within(self, domain: str) -> tuple[FabricSpot, ...]:
        """Return the hosts inside the domain with the UUID *domain*."""
        return tuple(spot for spot in self.spots if spot.seat.is_in(domain))


def levels_at_or_above(level: FabricLevel) -> list[FabricLevel]:
    """Return *level* and all wider fabric levels, tightest first."""
    return [fabric_level for fabric_level in FabricLevel if fabric_level >= level]


def locate_hosts(hosts: Sequence[Any], spec: objects.RequestSpec) -> FabricView:
    """Find the domains of *hosts* in the fabric, and how many of the request's servers fit.

    An unreadable place counts as unknown, and is logged.
    """
    problems: dict[str, list[str]] = collections.defaultdict(list)
    spots = [_locate_host(host, spec, problems) for host in hosts]
    for text, names in problems.items():
        held = LOG_THROTTLE.due(("fabric", text))
        if held is not None:
            LOG.warning(
                "Where hosts are on the fabric is not clear (%s)%s: %s",
                join_first(sorted(names), 4),
                format_held_back(held),
                text,
            )
    return FabricView(tuple(spots), fabric_fit.size_of_request(spec, hosts))


def _locate_host(
    host: Any, spec: objects.RequestSpec, problems: dict[str, list[str]]
) -> FabricSpot:
    name = str(host.host)
    fit = fabric_fit.count_fitting_servers(host, spec)
    try:
        metadata = [dict(aggregate.metadata or {}) for aggregate in host.aggregates or ()]
        reading = aggregates.read_aggregate_place(name, metadata)
        for text in reading.problems:
            problems[text.replace(repr(name), "it")].append(name)
        return FabricSpot(host, FabricSeat(reading.place, reading.map, fit))
    except Exception as error:
        # Any content of an aggregate must not stop the scheduler.
        problems[f"{type(error).__name__}: {error}"].append(name)
    return FabricSpot(host, FabricSeat(_unknown_place_of(name), fit=fit))


def _unknown_place_of(name: str) -> FabricPlace:
    try:
        return FabricPlace(name)
    except ValueError:
        return FabricPlace("?")


# --- seats seen before ----------------------------------------------------------

#: Host -> its last known place. Full hosts are in no request, but members may be on them.
#: Replaced value by value, so threads cannot tear it.
_ATLAS: Final[dict[str, FabricSeat]] = {}
_MOST: Final = 100_000


def remember_seats(view: FabricView) -> None:
    """Cache the fabric domains of the hosts of a request, for later moves of servers."""
    if len(_ATLAS) > _MOST:
        _ATLAS.clear()
    for spot in view.spots:
        _ATLAS[str(spot.host.host)] = attrs.evolve(spot.seat, fit=0)


def seat_of(host: str) -> FabricSeat | None:
    """Return the cached place of *host* on the fabric; None if no request has seen the host.

    Its number of fitting servers is 0.
    """
    return _ATLAS.get(host)


def enclosing_domains_of(domain: str) -> Mapping[FabricLevel, GroupDomain]:
    """Return level -> the domain with this UUID and those around it; {} if no host was seen."""
    for seat in list(_ATLAS.values()):
        domains = seat.domains
        levels = [level for level, enclosing in domains.items() if enclosing.uuid == domain]
        if levels:
            return {level: enclosing for level, enclosing in domains.items() if level >= levels[0]}
    return {}
