# SPDX-License-Identifier: Apache-2.0
"""Which partitions of an NVLink fabric a server gets. Pure.

A *partition* is a set of GPUs that the manager of the fabric can link to one
another, and to no other GPU. The manager has a fixed table of them and knows
which are active; it knows nothing of servers. So whoever starts servers has to
say which partition is active when, and this module says which.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.topology.model import address_key
from nova_hpc.wire.ledger import SOMEBODY, Tenancy


class FabricError(Exception):
    """The fabric cannot be set, or nobody knows how it is; the text is for operators."""


class NoPartitionError(FabricError):
    """No partition has exactly these GPUs: other GPUs are needed, the fabric is well."""

    def __init__(self, text: str, user: str) -> None:
        super().__init__(text)
        #: The same for the server's user: counts, no addresses.
        self.user = user


@attrs.frozen
class Partition:
    """One entry of the manager's table."""

    id: int
    #: Normalised PCI addresses of its GPUs.
    gpus: frozenset[str]
    active: bool = False
    #: NVLinks that each of its GPUs has in it; one GPU alone needs none.
    links: int = 0


@attrs.frozen
class Plan:
    """What is to be done before a server starts, in this order."""

    #: Partitions that are active, in the way, and nobody's.
    deactivate: tuple[int, ...]
    activate: tuple[int, ...]
    #: What the server then has, by id.
    chosen: tuple[Partition, ...]


def cover(
    partitions: Iterable[Partition], gpus: Collection[str], linked: bool
) -> tuple[Partition, ...]:
    """The fewest partitions that have exactly *gpus*, each GPU once.

    That is one partition wherever the manager has one for them. A server with
    several groups of GPUs may need one for each group.

    :param linked: the server's flavor requires NVLinks: then several GPUs are not
        divided into partitions of one GPU, which have none.
    :raises NoPartitionError: there are none.
    """
    wanted = frozenset(gpus)
    least = 2 if linked and len(wanted) > 1 else 1
    # Of two with the same GPUs the active one, then the first.
    table: dict[frozenset[str], Partition] = {}
    for one in sorted(partitions, key=lambda one: (not one.active, one.id)):
        if one.gpus <= wanted and len(one.gpus) >= least:
            table.setdefault(one.gpus, one)
    usable = sorted(table.values(), key=lambda one: (-len(one.gpus), one.id))
    found = _cover(usable, wanted, ())
    if found is None:
        kind = "linked by NVLink" if least > 1 else "alone"
        raise NoPartitionError(
            f"no NVLink partition has exactly {_listed(wanted)}, nor have several together",
            f"No NVLink partition has exactly the {len(wanted)} GPUs that were claimed, {kind}.",
        )
    return tuple(sorted(found, key=lambda one: one.id))


def _cover(
    usable: Sequence[Partition], rest: frozenset[str], taken: tuple[Partition, ...]
) -> tuple[Partition, ...] | None:
    """Branch on the first GPU without a partition; of equals the first found stays."""
    if not rest:
        return taken
    first = min(rest, key=address_key)
    best: tuple[Partition, ...] | None = None
    for one in usable:
        if first in one.gpus and one.gpus <= rest:
            found = _cover(usable, rest - one.gpus, (*taken, one))
            if found is not None and (best is None or len(found) < len(best)):
                best = found
    return best


def plan(
    partitions: Sequence[Partition],
    gpus: Collection[str],
    others: Collection[str],
    linked: bool,
    fresh: bool,
) -> Plan:
    """What makes exactly the partitions of *gpus* active.

    :param partitions: the manager's table, as it is now.
    :param others: GPUs that other servers have.
    :param linked: see :func:`cover`.
    :param fresh: the GPUs come from another server, or from nobody: a
        partition of theirs that is active is made anew.
    :raises NoPartitionError: no partition has exactly these GPUs.
    :raises FabricError: an active partition joins them with another server's.
    """
    wanted = frozenset(gpus)
    if wanted & frozenset(others):
        raise FabricError(
            f"{_listed(wanted & frozenset(others))}: another server has them at the same time"
        )
    chosen = cover(partitions, wanted, linked)
    mine = {one.id for one in chosen}
    first = []
    for one in sorted(partitions, key=lambda one: one.id):
        if not one.active or not one.gpus & wanted or (one.id in mine and not fresh):
            continue
        foreign = one.gpus & frozenset(others)
        if foreign:
            raise FabricError(
                f"NVLink partition {one.id} is active and joins {_listed(one.gpus & wanted)} with "
                f"{_listed(foreign)} of another server; it cannot be deactivated now"
            )
        first.append(one.id)
    return Plan(
        deactivate=tuple(first),
        activate=tuple(one.id for one in chosen if fresh or not one.active),
        chosen=chosen,
    )


#: In place of a server where there is none any more: the partition has to be deactivated.
NOBODY: Final = ""

Tenancies = Mapping[int, Tenancy]


def held(tenancies: Tenancies) -> tuple[int, ...]:
    """Partitions that belong to a server, as far as the records tell."""
    return tuple(sorted(key for key, one in tenancies.items() if one.server != NOBODY))


def in_use(tenancies: Tenancies, used: Collection[str]) -> tuple[int, ...]:
    """Those with a GPU that a server has now: they must be active."""
    return tuple(key for key in held(tenancies) if tenancies[key].gpus & frozenset(used))


def adopt(
    partitions: Iterable[Partition], tenancies: Tenancies, used: Collection[str]
) -> dict[int, Tenancy]:
    """*tenancies*, and active partitions of which servers have every GPU.

    Those were made active before anybody kept a record, or the record is lost.
    """
    found = dict(tenancies)
    kept = {gpu for one in tenancies.values() for gpu in one.gpus}
    for one in partitions:
        if one.active and one.gpus <= frozenset(used) and not one.gpus & kept:
            found[one.id] = Tenancy(SOMEBODY, one.gpus)
    return found


def differences(
    partitions: Iterable[Partition], sets: Iterable[frozenset[str]]
) -> tuple[tuple[frozenset[str], ...], tuple[frozenset[str], ...]]:
    """The node's NVLink sets beside the manager's partitions of several GPUs.

    :param sets: GPUs of each set that the scheduler may give.
    :returns: partitions that are no set, and sets that are no partition:
        servers would be refused on these.
    """
    offered = {one.gpus for one in partitions if len(one.gpus) > 1}
    known = set(sets)
    return _ordered(offered - known), _ordered(known - offered)


def _ordered(sets: Iterable[frozenset[str]]) -> tuple[frozenset[str], ...]:
    return tuple(sorted(sets, key=lambda one: (len(one), sorted(map(address_key, one)))))


def _listed(gpus: Iterable[str]) -> str:
    return ", ".join(sorted(gpus, key=address_key))
