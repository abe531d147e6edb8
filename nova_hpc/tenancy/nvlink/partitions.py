# SPDX-License-Identifier: Apache-2.0
"""The partitions of an NVLink fabric that a server gets. Pure.

A *partition* is a set of GPUs that the manager of the fabric can link to one
another, and to no other GPU. The manager has a fixed table of them, with their
active state, but without servers. So the service that starts servers has to
activate partitions at the right time, and this module selects them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.topology.model import address_key
from nova_hpc.wire.ledger import SOMEBODY, PartitionTenancy


class NvlinkFabricError(Exception):
    """The fabric cannot be set, or its state is unknown; the text is for operators."""


class NoPartitionError(NvlinkFabricError):
    """No partition has exactly these GPUs: other GPUs are needed, the fabric is healthy."""

    def __init__(self, text: str, user: str) -> None:
        super().__init__(text)
        #: The text for the server's user: counts, no addresses.
        self.user = user


@attrs.frozen
class NvlinkPartition:
    """One partition in the NVLink manager's table: its GPUs, its links, and its activity."""

    id: int
    #: Normalised PCI addresses of its GPUs.
    gpus: frozenset[str]
    active: bool = False
    #: Number of NVLinks of each of its GPUs in it; a single GPU needs none.
    links: int = 0


@attrs.frozen
class PartitionPlan:
    """The partitions to deactivate and to activate before a server starts, and the chosen ones."""

    #: Active partitions without a server that overlap.
    deactivate: tuple[int, ...]
    activate: tuple[int, ...]
    #: The server's partitions, by id.
    chosen: tuple[NvlinkPartition, ...]


def cover_gpus(
    partitions: Iterable[NvlinkPartition], gpus: Collection[str], linked: bool
) -> tuple[NvlinkPartition, ...]:
    """Return the fewest partitions that contain exactly *gpus*, each GPU once.

    That is one partition if the manager has one for them. A server with
    several groups of GPUs may need one for each group.

    An example: the table has a partition of GPUs 0 to 3, one of 0 and 1, one of 2 and 3, and one
    for each GPU. GPUs 0 to 2 are covered by the pair and the single partition of GPU 2. If the
    server's flavor requires NVLinks, there is no covering, since GPU 2 would have none.

    :param linked: whether the server's flavor requires NVLinks: then several GPUs are not
        divided into partitions of one GPU, which have none.
    :raises NoPartitionError: there are none.
    """
    wanted = frozenset(gpus)
    least = 2 if linked and len(wanted) > 1 else 1
    # Of two with the same GPUs take the active one, else the first.
    table: dict[frozenset[str], NvlinkPartition] = {}
    for partition in sorted(partitions, key=lambda entry: (not entry.active, entry.id)):
        if partition.gpus <= wanted and len(partition.gpus) >= least:
            table.setdefault(partition.gpus, partition)
    usable = sorted(table.values(), key=lambda partition: (-len(partition.gpus), partition.id))
    covering = _cover_remaining_gpus(usable, wanted, ())
    if covering is None:
        kind = "linked by NVLink" if least > 1 else "alone"
        raise NoPartitionError(
            f"no NVLink partition has exactly {_list_gpu_addresses(wanted)}, nor have "
            f"several together",
            f"No NVLink partition has exactly the {len(wanted)} GPUs that were claimed, {kind}.",
        )
    return tuple(sorted(covering, key=lambda partition: partition.id))


def _cover_remaining_gpus(
    usable: Sequence[NvlinkPartition], rest: frozenset[str], taken: tuple[NvlinkPartition, ...]
) -> tuple[NvlinkPartition, ...] | None:
    """Cover the GPUs *rest* with the fewest partitions that share no GPU; None if impossible.

    The search branches on the first GPU without a partition; of equal results the first is kept.
    """
    if not rest:
        return taken
    first = min(rest, key=address_key)
    best: tuple[NvlinkPartition, ...] | None = None
    for partition in usable:
        if first in partition.gpus and partition.gpus <= rest:
            covering = _cover_remaining_gpus(usable, rest - partition.gpus, (*taken, partition))
            if covering is not None and (best is None or len(covering) < len(best)):
                best = covering
    return best


def plan_partitions(
    partitions: Sequence[NvlinkPartition],
    gpus: Collection[str],
    others: Collection[str],
    linked: bool,
    fresh: bool,
) -> PartitionPlan:
    """Plan the changes that make exactly the partitions of *gpus* active.

    :param partitions: the manager's present table.
    :param others: GPUs that other servers have.
    :param linked: see :func:`cover_gpus`.
    :param fresh: whether the GPUs are new to the server: then its partition is
        activated again even if it is active.
    :raises NoPartitionError: no partition has exactly these GPUs.
    :raises NvlinkFabricError: an active partition joins them with another server's.
    """
    wanted = frozenset(gpus)
    if wanted & frozenset(others):
        raise NvlinkFabricError(
            f"{_list_gpu_addresses(wanted & frozenset(others))}: another server has them "
            f"at the same time"
        )
    chosen = cover_gpus(partitions, wanted, linked)
    chosen_ids = {partition.id for partition in chosen}
    first = []
    for partition in sorted(partitions, key=lambda entry: entry.id):
        if (
            not partition.active
            or not partition.gpus & wanted
            or (partition.id in chosen_ids and not fresh)
        ):
            continue
        foreign = partition.gpus & frozenset(others)
        if foreign:
            raise NvlinkFabricError(
                f"NVLink partition {partition.id} is active and joins "
                f"{_list_gpu_addresses(partition.gpus & wanted)} with "
                f"{_list_gpu_addresses(foreign)} of another server; it cannot be deactivated now"
            )
        first.append(partition.id)
    return PartitionPlan(
        deactivate=tuple(first),
        activate=tuple(partition.id for partition in chosen if fresh or not partition.active),
        chosen=chosen,
    )


#: In place of a server that has ended: the partition has to be deactivated.
NOBODY: Final = ""

Tenancies = Mapping[int, PartitionTenancy]


def list_held_partitions(tenancies: Tenancies) -> tuple[int, ...]:
    """Return the partitions that belong to a server according to the records."""
    return tuple(sorted(key for key, tenancy in tenancies.items() if tenancy.server != NOBODY))


def list_needed_partitions(tenancies: Tenancies, used: Collection[str]) -> tuple[int, ...]:
    """Return the partitions with a GPU that a server has now: they must be active."""
    return tuple(
        key for key in list_held_partitions(tenancies) if tenancies[key].gpus & frozenset(used)
    )


def adopt_active_partitions(
    partitions: Iterable[NvlinkPartition], tenancies: Tenancies, used: Collection[str]
) -> dict[int, PartitionTenancy]:
    """Return *tenancies* with the active partitions whose GPUs all belong to servers.

    These were activated before there was a record, or the record is lost.
    """
    adopted = dict(tenancies)
    kept = {gpu for tenancy in tenancies.values() for gpu in tenancy.gpus}
    for partition in partitions:
        if partition.active and partition.gpus <= frozenset(used) and not partition.gpus & kept:
            adopted[partition.id] = PartitionTenancy(SOMEBODY, partition.gpus)
    return adopted


def compare_with_nvlink_sets(
    partitions: Iterable[NvlinkPartition], sets: Iterable[frozenset[str]]
) -> tuple[tuple[frozenset[str], ...], tuple[frozenset[str], ...]]:
    """Compare the node's NVLink sets with the manager's partitions of several GPUs.

    :param sets: GPUs of each set that the scheduler may give.
    :returns: partitions without a set, and sets without a partition:
        the node would refuse servers on the latter.
    """
    offered = {partition.gpus for partition in partitions if len(partition.gpus) > 1}
    node_sets = set(sets)
    return _order_gpu_sets(offered - node_sets), _order_gpu_sets(node_sets - offered)


def _order_gpu_sets(sets: Iterable[frozenset[str]]) -> tuple[frozenset[str], ...]:
    return tuple(sorted(sets, key=lambda gpus: (len(gpus), sorted(map(address_key, gpus)))))


def _list_gpu_addresses(gpus: Iterable[str]) -> str:
    return ", ".join(sorted(gpus, key=address_key))
