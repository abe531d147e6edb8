# SPDX-License-Identifier: Apache-2.0
"""The steps that make Nova's host aggregates agree with a map. Pure: this module only plans.

A plan changes only aggregates that have our mark and the name of this map, and in them only the
keys with our prefix. Each step can be repeated, and the plan after any step contains the rest: the
next run completes a run that was cut short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.fabric import aggregates as ours
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace, wrong_name
from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_tools.fabric import map_aggregates

#: Kinds of steps, as in the output.
CREATE: Final = "create"
RENAME: Final = "rename"
METADATA: Final = "set metadata"
REMOVE: Final = "remove host"
ADD: Final = "add host"
DELETE: Final = "delete"


@attrs.frozen
class CloudAggregate:
    """A host aggregate as it is in Nova."""

    id: str
    name: str
    metadata: Mapping[str, str]
    hosts: tuple[str, ...] = ()


@attrs.frozen
class SyncStep:
    """One call to Nova that makes its aggregates more like the map."""

    kind: str
    #: Name of the aggregate after the steps before this one.
    aggregate: str
    #: Its id; None if a step :data:`CREATE` before this one makes it.
    id: str | None = None
    #: The host of :data:`ADD` and :data:`REMOVE`; the new name of :data:`RENAME`.
    value: str | None = None
    #: Key -> value, or None for a key to delete.
    metadata: Mapping[str, str | None] = attrs.field(factory=dict)


@attrs.frozen
class SyncPlan:
    """The calls to Nova for a map, and facts that the operator has to read before."""

    steps: tuple[SyncStep, ...] = ()
    #: Reasons to do no step at all.
    refusals: tuple[str, ...] = ()
    #: Unusual aggregates that no step corrects.
    notes: tuple[str, ...] = ()
    #: Hosts that are only in the map.
    not_in_nova: tuple[str, ...] = ()
    #: Hosts that are only in Nova.
    not_in_map: tuple[str, ...] = ()


def names_in_nova(fabric: FabricMap, hosts: Iterable[str]) -> Mapping[str, str]:
    """Return host of the map -> its name in Nova, without hosts that are not in Nova.

    Nova may have the full name of a host if the map has the first part, or other capitals. A name
    that matches two hosts counts for neither of them.
    """
    nova_hosts = set(hosts)
    short: dict[str, set[str]] = {}
    for host in nova_hosts:
        for name in (host.lower(), host.partition(".")[0].lower()):
            short.setdefault(name, set()).add(host)
    nova_names: dict[str, str] = {}
    for host in fabric.hosts():
        candidates = short.get(host.lower(), set())
        if host in nova_hosts:
            nova_names[host] = host
        elif len(candidates) == 1:
            nova_names[host] = next(iter(candidates))
    counts = Counter(nova_names.values())
    return {
        host: called for host, called in nova_names.items() if host == called or counts[called] == 1
    }


def map_as_in_nova(fabric: FabricMap, hosts: Iterable[str]) -> FabricMap:
    """Return the part of *fabric* whose hosts are in Nova, with Nova's names for them."""
    names = names_in_nova(fabric, hosts)
    places = [
        attrs.evolve(place, host=names[place.host])
        for place in fabric.places
        if place.host in names
    ]
    return attrs.evolve(fabric, places=places)


def map_of_aggregates(
    aggregates: Iterable[CloudAggregate], name: str
) -> tuple[FabricMap, tuple[str, ...]]:
    """Build the map *name* as Nova's aggregates show it, and the problems in their metadata."""
    of_host: dict[str, list[Mapping[str, str]]] = {}
    for aggregate in aggregates:
        if aggregate.metadata.get(ours.MAP_KEY) not in (name, None):
            continue
        for host in aggregate.hosts:
            if any(key.startswith(ours.PREFIX) for key in aggregate.metadata):
                of_host.setdefault(host, []).append(aggregate.metadata)
    places = []
    problems: list[str] = []
    for host, metadata in sorted(of_host.items()):
        wrong = wrong_name(host)
        if wrong is not None:
            problems.append(f"a host in Nova's aggregates: {wrong}")
            continue
        reading = ours.read_aggregate_place(host, metadata)
        problems += reading.problems
        # Aggregates contain the rails of a leaf, not those of a host.
        places.append(attrs.evolve(reading.place, rails=()))
    return FabricMap(places, name=name, source="Nova's aggregates"), tuple(dict.fromkeys(problems))


def plan_sync(
    fabric: FabricMap, aggregates: Sequence[CloudAggregate], hosts: Iterable[str], salt: str = ""
) -> SyncPlan:
    """Plan the calls that make Nova's *aggregates* represent *fabric*.

    :param aggregates: all aggregates of the cloud.
    :param hosts: names of Nova's compute services.
    :param salt: the map's secret (:data:`nova_hpc.fabric.aggregates.SALT_KEY`) if it has none
        yet; another secret would give all domains other names. "" to set none.
    """
    nova = sorted(set(hosts))
    names = names_in_nova(fabric, nova)
    there = map_as_in_nova(fabric, nova)
    wanted = {aggregate.name: aggregate for aggregate in map_aggregates.aggregates_of(there)}
    sorted_aggregates = _SortedAggregates.of(fabric.name, aggregates, wanted)
    refusals = [
        *sorted_aggregates.refusals,
        *_two_maps(there, wanted, sorted_aggregates, fabric.name),
    ]
    salt = ours.salt_of(aggregate.metadata for aggregate in sorted_aggregates.mine) or salt
    secret = {ours.SALT_KEY: salt} if salt else {}
    if fabric.places and nova and not there.places:
        refusals.append(
            f"Nova has none of the {len(fabric.places)} hosts of the map: is it of another cloud?"
        )
    notes = list(sorted_aggregates.notes)
    changes: list[SyncStep] = []
    removals: dict[str, list[SyncStep]] = {}
    additions: dict[str, list[SyncStep]] = {}
    deletions: list[SyncStep] = []
    kept: dict[str, CloudAggregate] = {}
    # By the name first, which is unique: an operator may have edited the metadata by hand.
    taken = {aggregate.name for aggregate in aggregates}
    for aggregate in sorted_aggregates.mine:
        if aggregate.name in wanted:
            kept[aggregate.name] = aggregate
    for aggregate in sorted_aggregates.mine:
        name = _aggregate_name_of(aggregate)
        if aggregate.name in wanted:
            continue
        if name in wanted and name not in taken:
            kept[name] = aggregate
            taken.add(name)
        else:
            deletions += _plan_aggregate_deletion(aggregate, removals, notes)
    for name, want in wanted.items():
        has = kept.get(name) or sorted_aggregates.begun.get(name)
        id_ = None if has is None else has.id
        if has is None:
            changes.append(SyncStep(CREATE, name))
        elif has.name != name:
            changes.append(SyncStep(RENAME, has.name, id_, name))
        metadata = _metadata_changes(
            {} if has is None else has.metadata, {**dict(want.metadata), **secret}
        )
        if metadata:
            changes.append(SyncStep(METADATA, name, id_, metadata=metadata))
        before = set() if has is None else set(has.hosts)
        for host in sorted(before - set(want.hosts)):
            removals.setdefault(host, []).append(SyncStep(REMOVE, name, id_, host))
        for host in sorted(set(want.hosts) - before):
            additions.setdefault(host, []).append(SyncStep(ADD, name, id_, host))
    notes += [
        f"aggregate {name!r} is empty and has no mark: an interrupted sync created it"
        for name in sorted(sorted_aggregates.begun)
        if name not in wanted
    ]
    for aggregate in (*kept.values(), *sorted_aggregates.begun.values()):
        if "availability_zone" in aggregate.metadata:
            notes.append(
                f"aggregate {aggregate.name!r} has the availability zone "
                f"{aggregate.metadata['availability_zone']!r}, which is not of the map: "
                f"it moves hosts "
                "between zones; take it off"
            )
    moves = [
        step
        for host in sorted(removals.keys() | additions.keys())
        # Removals come first: a host in two leaves is as unknown as a host in none.
        for step in (*removals.get(host, ()), *additions.get(host, ()))
    ]
    mapped = {place.host for place in there.places}
    return SyncPlan(
        steps=() if refusals else (*changes, *moves, *deletions),
        refusals=tuple(refusals),
        notes=tuple(notes),
        not_in_nova=tuple(host for host in fabric.hosts() if host not in names),
        not_in_map=tuple(host for host in nova if host not in mapped),
    )


def check_removals(
    old: FabricMap, new: FabricMap, share: float, accepted: int | None = None
) -> str | None:
    """Explain why *new* may not replace *old*, if too many hosts are lost; None if it may.

    A host is lost if *old* has a domain of it, of any level, and *new* has none of that level. A
    truncated map looks like that, and so does one that was read while switches did not answer.

    :param old: the map of the cloud's current aggregates.
    :param new: the map after the steps.
    :param share: part of the hosts of *old*, from 0 to 1, that may be lost without consent.
    :param accepted: number of lost hosts that the operator accepts; None if not given.
    """
    lost = [place.host for place in old.places if _loses_domain(place, new.place(place.host))]
    if len(lost) <= share * len(old.places) or len(lost) == accepted:
        return None
    accepted_text = "" if accepted is None else f" (--accept-removals is {accepted})"
    return (
        f"by the new map {len(lost)} of {len(old.places)} hosts would lose a domain that Nova "
        f"has now{accepted_text}: {join_first(lost, 5)}; if that is intended, use "
        f"--accept-removals {len(lost)}"
    )


def _loses_domain(old_place: FabricPlace, will_be: FabricPlace | None) -> bool:
    return any(
        old_place.domain(level) is not None and (will_be is None or will_be.domain(level) is None)
        for level in FabricLevel
    )


@attrs.frozen
class _SortedAggregates:
    """Nova's aggregates, sorted by owner: this map, other maps, and foreign ones."""

    #: Aggregates of this map.
    mine: tuple[CloudAggregate, ...]
    #: Aggregates of other maps of ours.
    others: tuple[CloudAggregate, ...]
    #: Name -> aggregate of a run that was cut short before it could mark it.
    begun: Mapping[str, CloudAggregate]
    #: Other aggregates without our mark.
    foreign: tuple[CloudAggregate, ...]
    refusals: tuple[str, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, name: str, aggregates: Iterable[CloudAggregate], wanted: Container[str]
    ) -> _SortedAggregates:
        """Sort *aggregates* for the map *name*, whose aggregates have the names *wanted*."""
        own, others, foreign = [], [], []
        begun: dict[str, CloudAggregate] = {}
        refusals, notes = [], []
        for aggregate in sorted(
            aggregates, key=lambda aggregate: (len(aggregate.id), aggregate.id)
        ):
            version = aggregate.metadata.get(ours.VERSION_KEY)
            if version is None:
                if (
                    aggregate.name.startswith(map_aggregates.NAME_PREFIX)
                    and not aggregate.hosts
                    and not aggregate.metadata.keys() - {"availability_zone"}
                ):
                    begun[aggregate.name] = aggregate
                else:
                    foreign.append(aggregate)
            elif version != ours.VERSION:
                refusals.append(
                    f"aggregate {aggregate.name!r} has {ours.VERSION_KEY}={version!r}; "
                    f"this release of "
                    f"nova-hpc writes {ours.VERSION}: update nova-hpc"
                )
            elif aggregate.metadata.get(ours.MAP_KEY) == name:
                own.append(aggregate)
            elif ours.MAP_KEY in aggregate.metadata:
                others.append(aggregate)
            elif aggregate.name in wanted:
                own.append(aggregate)
            else:
                notes.append(
                    f"aggregate {aggregate.name!r} was edited by hand: it has lost "
                    f"{ours.MAP_KEY}, so its map is unknown; delete it if no map has such a domain"
                )
        return cls(tuple(own), tuple(others), begun, tuple(foreign), tuple(refusals), tuple(notes))


def _two_maps(
    there: FabricMap,
    wanted: Mapping[str, map_aggregates.Aggregate],
    sorted_aggregates: _SortedAggregates,
    name: str,
) -> Iterable[str]:
    mapped = {place.host for place in there.places}
    for aggregate in sorted_aggregates.others:
        other_map = aggregate.metadata[ours.MAP_KEY]
        both = sorted(mapped & set(aggregate.hosts))
        if both:
            yield (
                f"two maps at once: {join_first(both, 5)} are in aggregate "
                f"{aggregate.name!r} of the map "
                f"{other_map!r}, and in this map, {name!r}; take them out of one, or "
                f"give this one the "
                f"name {other_map!r} with --name to replace it"
            )
        elif aggregate.name in wanted:
            yield (
                f"two maps at once: {aggregate.name!r} is an aggregate of the map "
                f"{other_map!r}, and this "
                "map has a domain of the same name: give one of them another name"
            )
    for aggregate in sorted_aggregates.foreign:
        if aggregate.name in wanted:
            yield (
                f"aggregate {aggregate.name!r} is there and has not the mark "
                f"{ours.VERSION_KEY}: it is "
                "not the map's; rename or delete it"
            )


def _aggregate_name_of(aggregate: CloudAggregate) -> str:
    """Return the name of an aggregate of ours by its metadata; else its current name."""
    kind = aggregate.metadata.get(ours.KIND_KEY, "")
    domain = aggregate.metadata.get(f"{ours.PREFIX}{kind}")
    return f"{map_aggregates.NAME_PREFIX}{kind}:{domain}" if domain else aggregate.name


def _metadata_changes(has: Mapping[str, str], wants: Mapping[str, str]) -> dict[str, str | None]:
    changes: dict[str, str | None] = {
        key: None for key in has if key.startswith(ours.PREFIX) and key not in wants
    }
    changes.update({key: value for key, value in wants.items() if has.get(key) != value})
    return dict(sorted(changes.items()))


def _plan_aggregate_deletion(
    aggregate: CloudAggregate, removals: dict[str, list[SyncStep]], notes: list[str]
) -> list[SyncStep]:
    for host in aggregate.hosts:
        removals.setdefault(host, []).append(SyncStep(REMOVE, aggregate.name, aggregate.id, host))
    theirs = sorted(key for key in aggregate.metadata if not key.startswith(ours.PREFIX))
    if not theirs:
        return [SyncStep(DELETE, aggregate.name, aggregate.id)]
    notes.append(
        f"aggregate {aggregate.name!r} is no domain of the map any more; it stays, without "
        f"nova-hpc's keys, because it also has {', '.join(theirs)}"
    )
    gone: dict[str, str | None] = {
        key: None for key in aggregate.metadata if key.startswith(ours.PREFIX)
    }
    return [SyncStep(METADATA, aggregate.name, aggregate.id, metadata=dict(sorted(gone.items())))]
