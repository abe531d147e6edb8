# SPDX-License-Identifier: Apache-2.0
"""Whether a set of devices that Nova chose satisfies a request.

The compute node checks the devices that Nova has claimed, before a guest starts with
them. It uses the same solver, on a host that contains only the claimed devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.model import (
    ChoiceAnswer,
    DeviceMiss,
    DevicePool,
    DeviceSet,
    FreeHost,
    Ports,
    Request,
    Want,
)
from nova_hpc.placement.solver.domains import locations_by_pool
from nova_hpc.placement.solver.operator_reasons import PLACES
from nova_hpc_common.level import AffinityPolicy, Level, Location, common_level


def judge_claimed_devices(
    request: Request, host: FreeHost, claimed: Mapping[str, Sequence[str]]
) -> ChoiceAnswer:
    """Judge the claimed devices against *request*.

    :param host: the node, with the claimed devices counted as free. Free CPUs
        and pages are not judged again: Nova has claimed them, too.
    :param claimed: Want.key -> DevicePool.id of each of its devices (a pool of
        several functions once for each), and Ports.key -> DevicePool.id of each of its
        functions. Other keys stand for devices that come with the server in
        another way; each must be as close to one of the groups as the request
        demands.
    :returns: one set with exactly these devices and the level that they reach, or
        the reason why they do not satisfy the request.
    """
    pools = {pool.id: pool for pool in host.pools}
    wants: dict[str, Want | Ports] = {want.key: want for want in request.wants}
    wants.update((ports.key, ports) for ports in request.ports)
    for key, want in wants.items():
        got = len(claimed.get(key, ()))
        if got != want.count:
            return _answer_with_miss(f"{got} {want.name} claimed (needs {want.count})")
    claimed_pools, others = [], []
    for key, ids in sorted(claimed.items()):
        for identifier in ids:
            pool = pools.get(identifier)
            if key in wants:
                if pool is None:
                    return _answer_with_miss(
                        f"a claimed {wants[key].name} is not among the devices of the host",
                        f" ({identifier})",
                    )
                asked = request.roles.get(key)
                if asked is not None and pool.role not in (None, asked):
                    return _answer_with_miss(
                        f"a claimed {wants[key].name} has the role {pool.role}, not {asked}",
                        f" ({pool.name})",
                    )
                claimed_pools.append((key, pool))
            else:
                others.append(pool)
    for identifier, pool in sorted(pools.items()):
        taken = sum(1 for _, claimed_pool in claimed_pools if claimed_pool.id == identifier)
        taken += sum(
            1 for other_pool in others if other_pool is not None and other_pool.id == identifier
        )
        if taken > pool.free:
            return _answer_with_miss(
                f"{taken} functions of a device are claimed, which has {pool.free}",
                f" ({pool.name})",
            )
    split = _refuse_split_unit(
        host, [pool for _, pool in claimed_pools] + [p for p in others if p is not None]
    )
    if split is not None:
        return split
    where = locations_by_pool(host)
    only = attrs.evolve(
        host,
        pools=_claimed_pools_of(claimed_pools, where) + _ghost_pools_of(host),
        nvlink=_claimed_nvlink_sets(host, claimed_pools),
        nodes=tuple(attrs.evolve(n, dedicated_cpus=None, pages=None) for n in host.nodes),
    )
    answer = choose_device_sets(request, only)
    if not answer.sets:
        return answer
    best = answer.sets[0]
    picks = tuple(attrs.evolve(pick, pool=pick.pool.partition("\0")[2]) for pick in best.picks)
    best = attrs.evolve(best, picks=picks)
    return _judge_other_devices(request, best, where, [None if p is None else p.id for p in others])


def _answer_with_miss(user: str, detail: str = "") -> ChoiceAnswer:
    return ChoiceAnswer(miss=DeviceMiss(operator=user + detail, user=user))


def _claimed_pools_of(
    claimed_pools: Sequence[tuple[str, DevicePool]], where: Mapping[str, Location]
) -> tuple[DevicePool, ...]:
    """Build a pool for each claimed device, able to serve only the want that claimed it."""
    counts: dict[tuple[str, str], int] = {}
    for key, pool in claimed_pools:
        counts[key, pool.id] = counts.get((key, pool.id), 0) + 1
    by_id = {pool.id: pool for _, pool in claimed_pools}
    return tuple(
        # Units were judged before, so their remaining devices are always complete here.
        attrs.evolve(
            by_id[identifier],
            id=f"{key}\0{identifier}",
            location=where[identifier],
            free=count,
            serves=frozenset({key}),
            unit=None,
        )
        for (key, identifier), count in counts.items()
    )


def _ghost_pools_of(host: FreeHost) -> tuple[DevicePool, ...]:
    """Copy the NVLink devices as pools without devices; they mark wants that are for NVLink."""
    linked = {pool_id for members in host.nvlink for pool_id in members}
    return tuple(
        attrs.evolve(pool, id=f"\0{pool.id}", free=0, unit=None)
        for pool in host.pools
        if pool.id in linked
    )


def _claimed_nvlink_sets(
    host: FreeHost, claimed_pools: Sequence[tuple[str, DevicePool]]
) -> tuple[frozenset[str], ...]:
    """Return the NVLink sets that are all claimed, in the names of :func:`_claimed_pools_of`."""
    claimed = {pool.id: f"{key}\0{pool.id}" for key, pool in claimed_pools if pool.free == 1}
    sets = [
        frozenset(claimed[pool_id] for pool_id in members)
        for members in host.nvlink
        if all(pool_id in claimed for pool_id in members)
    ]
    ghosts = frozenset(pool.id for pool in _ghost_pools_of(host))
    return (*sets, ghosts) if ghosts else tuple(sets)


def _refuse_split_unit(host: FreeHost, claimed_pools: Sequence[DevicePool]) -> ChoiceAnswer | None:
    """Return a refusal if an IOMMU unit is claimed in part; None if none is."""
    touched = {pool.unit for pool in claimed_pools if pool.unit is not None}
    for pool in host.pools:
        if pool.unit in touched and pool.unit is not None:
            taken = sum(1 for claimed_pool in claimed_pools if claimed_pool.id == pool.id)
            if taken < pool.free:
                return _answer_with_miss(
                    "a claimed device shares its IOMMU group with a device that is not claimed",
                    f" ({pool.name} of group {pool.unit})",
                )
    return None


def _judge_other_devices(
    request: Request,
    best: DeviceSet,
    where: Mapping[str, Location],
    others: Sequence[str | None],
) -> ChoiceAnswer:
    """Judge the devices that are in no group, next to the groups.

    Each counts at its tightest level with any group. The widest of these levels is the level of
    the whole set.
    """
    members: dict[int, list[Location]] = {}
    for pick in best.picks:
        members.setdefault(pick.group, []).append(where[pick.pool])
    level = best.level
    for other_id in others:
        reached = Level.HOST
        if other_id is not None:
            reached = min(common_level([*group, where[other_id]]) for group in members.values())
        level = max(level, reached)
    if level == best.level:
        return ChoiceAnswer(sets=(best,))
    if level > request.level and request.policy is AffinityPolicy.REQUIRED:
        return _answer_with_miss(
            f"a device of one of the server's ports is not {PLACES[request.level]} "
            "with a group of the others"
        )
    score = (int(level), *best.score[1:])
    reason = f"{best.reason}; with the devices of the ports {PLACES[level]}"
    return ChoiceAnswer(sets=(attrs.evolve(best, level=level, score=score, reason=reason),))
