# SPDX-License-Identifier: Apache-2.0
"""Choose the best device sets of one host for one request.

Pure and deterministic: the same input gives the same answer, whatever the order of the
pools. The contributor documentation ("How devices are chosen") states the objective in
order, and the bounds of the search.

Nova may reject the best set. Each alternative is the best set that avoids something
an earlier one used: a NUMA node for a guest cell, all domains of one class, or one
domain.

An example. One host, one GPU a pool: gpu0 and gpu1 are below switch *a* and gpu2 is below
switch *b*, all of NUMA node 0; gpu3, gpu4 and gpu5 are below switch *c* of node 1.

* Two GPUs, ``hpc:affinity=switch``: *b* has too few, *a* and *c* have enough. The set is gpu0
  and gpu1. Either set costs the default profile 6, and groups worth 20. The leftovers decide: 2
  beside *a* (gpu2, in its root complex and its node), 3 beside *c* (one GPU, below its switch,
  in its root complex and its node).
* Three, ``switch``: only *c* has them. The answer for ``numa`` is the same three, because a
  tighter level counts before their whole damage.
* One, ``switch``: gpu2, so that no switch loses a pair.
* Four, ``numa``: no set. The miss is "6 gpu free, but at most 3 on one NUMA node (needs 4)".
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterator

import attrs

from nova_hpc.placement import between_hosts, group_isolation, ports
from nova_hpc.placement import profile as profiles
from nova_hpc.placement.model import ChoiceAnswer, DeviceSet, FreeHost, Request
from nova_hpc.placement.profile import Profile
from nova_hpc.placement.solver import greedy, operator_reasons
from nova_hpc.placement.solver.classes import DomainNode
from nova_hpc.placement.solver.costs import SPARE_WORK, PassWork, TooMuchError
from nova_hpc.placement.solver.demand import Demand
from nova_hpc.placement.solver.domains import ALONE, Key, Rank, survey_host
from nova_hpc.placement.solver.problem import SearchProblem
from nova_hpc.placement.solver.solve import Bans, Solver
from nova_hpc.placement.solver.spanning import read_linked_sets

#: Maximum of searches for each requested set.
TRIES = 4

_DOMAINS = (Rank.NUMA, Rank.PIX)


def choose_device_sets(
    request: Request,
    host: FreeHost,
    limit: int = 1,
    profile: Profile = profiles.DEFAULT,
    work: PassWork | None = None,
) -> ChoiceAnswer:
    """Choose the best device sets of *host* for *request*, or explain why there is none.

    :param limit: maximum number of sets. Each is of devices in other
        domains than the ones before. A set with another of two equal
        devices is no alternative (see spread.rotate_devices), and neither is a set of the same
        devices with the guest's cells elsewhere. Sets with the cells on other nodes
        come first, in the order of their scores, and then sets in other domains of
        those nodes.
    :param profile: the expected later servers; damage is measured against it
    :param work: of the pass that this host belongs to: the search takes its steps from
        it, and no damage is measured if none are left
    :raises ValueError: the request contradicts itself (see Demand.of), the host
        does (see survey), or the profile does (see HostProfile.of).
    """
    spare = None
    if work is not None and work.used_up:
        profile, spare = profiles.UNMEASURED, SPARE_WORK
    if request.ports:
        # Each of the searches without ports comes back here. Only the flavor's devices have
        # to be apart, and the reduced host already ensures that.
        host, request = (
            group_isolation.limit_to_one_per_pool(request, host),
            attrs.evolve(request, apart=False),
        )
        return ports.choose_with_ports(
            request, host, limit, functools.partial(choose_device_sets, profile=profile, work=work)
        )
    demand = Demand.of(request)
    host = between_hosts.reduce_host(
        request, group_isolation.limit_to_one_per_pool(request, host), profile
    )
    site = survey_host(demand, host)
    linked = read_linked_sets(request, demand, site, host)
    problem = SearchProblem.of(request, demand, site, profile)
    solver = Solver(problem, linked, spare)
    try:
        device_sets = rank_device_sets(solver, max(limit, 1))
    except TooMuchError:
        solver.truncated, device_sets = True, []
    if work is not None:
        work.left -= solver.budget.spent
    if solver.truncated:
        device_sets = greedy.merge_device_sets(
            device_sets, greedy.solve_greedily(solver, max(limit, 1)), max(limit, 1)
        )
    if not device_sets:
        return ChoiceAnswer(
            miss=group_isolation.explain_isolation(
                request, operator_reasons.nearest_miss_of(request, demand, site, linked)
            )
        )
    return ChoiceAnswer(sets=tuple(device_sets))


def rank_device_sets(solver: Solver, limit: int) -> list[DeviceSet]:
    """Return the best sets, at most *limit*, each on other nodes or in other domains.

    First the best one on each choice of nodes for the guest's cells, then the best one of each
    further topology class, then equals on other devices; each of these in the order of the scores.

    :raises TooMuchError: the exact search would exceed its bound
    """
    best = solver.best()
    if best is None or limit == 1:
        return [] if best is None else [best]
    best_by_places = {_places_of_set(solver, best): best}
    heap: list[tuple[tuple[int, ...], int, Bans, DeviceSet]] = [(best.score, 0, Bans(), best)]
    tried = {Bans()}
    while heap and len(best_by_places) < limit and len(tried) <= TRIES * limit:
        _, _, bans, devices = heapq.heappop(heap)
        for more in _list_further_bans(solver, bans, devices):
            if more in tried or len(tried) > TRIES * limit or len(best_by_places) >= limit:
                continue
            tried.add(more)
            try:
                alternative = solver.best(more)
            except TooMuchError:  # the best set is enough
                return _order_alternatives(solver, list(best_by_places.values()))
            if alternative is not None:
                places = _places_of_set(solver, alternative)
                if places not in best_by_places or alternative.score < best_by_places[places].score:
                    best_by_places[places] = alternative
                heapq.heappush(heap, (alternative.score, len(tried), more, alternative))
    return _order_alternatives(solver, list(best_by_places.values()))


def _order_alternatives(solver: Solver, sets: list[DeviceSet]) -> list[DeviceSet]:
    best = sets[0]  # stays the first, also among equals
    sets.sort(
        key=lambda devices: (
            devices.score,
            devices is not best,
            sorted(devices.cells.items()),
            [pick.pool for pick in devices.picks],
        )
    )
    # Other nodes first: Nova's own check rejects sets because of a node.
    mapped: list[object] = []
    classes: list[object] = []
    turns = []
    for devices in sets:
        shape = (
            tuple(devices.cells.items()),
            devices.score,
            _topology_shape_of(solver.plain(), _count_used_devices(devices)),
        )
        turns.append(0 if devices.cells not in mapped else 1 if shape not in classes else 2)
        mapped.append(devices.cells)
        classes.append(shape)
    pairs = sorted(zip(turns, sets, strict=True), key=lambda pair: pair[0])
    return [devices for _, devices in pairs]


def _count_used_devices(devices: DeviceSet) -> dict[str, int]:
    used: dict[str, int] = {}
    for pick in devices.picks:
        used[pick.pool] = used.get(pick.pool, 0) + 1
    return used


def _places_of_set(solver: Solver, devices: DeviceSet) -> object:
    """Return the key under which two device sets count as the same choice: a sorted tuple.

    Sets with equal keys differ only in equivalent devices (the same position in the PCIe tree), or
    only in the guest's cells. Only devices make an offer different: Nova decides about the cells.
    """
    items = {item.id: item for item in solver.problem.site.items}
    picks = []
    for pick in devices.picks:
        item = items[pick.pool]
        picks.append((pick.want, item.keys[item.rank_to(item)]))
    return tuple(sorted(picks))


def _topology_shape_of(node: DomainNode, used: dict[str, int]) -> tuple[object, ...]:
    """Return the topology class of a choice of devices: equal choices lie in equal domains.

    :param used: pool id -> number of devices that the choice takes.
    """
    taken = sorted(
        (item.kind, item.free, item.aliases, used[item.id])
        for part in node.parts
        for items in part.items
        for item in items
        if item.id in used
    )
    below = sorted((_topology_shape_of(child, used) for child in node.children), key=repr)
    return (node.cls.number, tuple(taken), tuple(below))


def _list_further_bans(solver: Solver, bans: Bans, devices: DeviceSet) -> Iterator[Bans]:
    """Yield the next nodes and devices to avoid in the search, the most different first.

    First each NUMA node of a guest cell. Then, for each touched domain, all domains of its class,
    which makes the search use another class. Last the touched domain itself.
    """
    for node in sorted(devices.cells.values()):
        yield Bans(bans.nodes | {node}, bans.items)
    used = _count_used_devices(devices)
    touched: list[set[str]] = []
    alike: list[set[str]] = []
    domains: dict[Rank, dict[Key, set[str]]] = {rank: {} for rank in _DOMAINS}
    for item in solver.problem.site.items:
        for rank in _DOMAINS:
            if item.keys[rank][0] != ALONE:
                domains[rank].setdefault(item.keys[rank], set()).add(item.id)
    classes = {rank: dict[Key, int]() for rank in _DOMAINS}
    _collect_classes(solver.plain(), classes)
    for rank in _DOMAINS:
        for key, ids in sorted(domains[rank].items()):
            if ids & used.keys():
                touched.append(ids)
                number = classes[rank].get(key)
                alike.append(
                    set().union(
                        *(
                            others
                            for domain_key, others in domains[rank].items()
                            if classes[rank].get(domain_key) == number
                        )
                    )
                )
    for ids in (*alike, *touched):
        yield Bans(bans.nodes, bans.items | ids)


def _collect_classes(node: DomainNode, classes: dict[Rank, dict[Key, int]]) -> None:
    if node.cls.rank in classes:
        classes[node.cls.rank][node.up[node.cls.rank]] = node.cls.number
    for child in node.children:
        _collect_classes(child, classes)
