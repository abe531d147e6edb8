# SPDX-License-Identifier: Apache-2.0
"""Neutron's direct ports beside the groups: which function of which adapter.

Every port belongs to one group, and must be as close to the group's devices as they are
to each other. Ports are dealt evenly: the numbers of two groups differ by at most one, for
each word of ``hpc:group`` by itself. The request does not assign a port to a group, so the
best of all even dealings counts.

The solver handles groups that are alike (:mod:`nova_hpc.placement.dealing`), so its solution
may take more of one network than there are ports for it. By Hall's theorem it then takes too
much from some set of adapters: more than there are ports that these could serve. That bound
becomes a cap, which every real solution keeps, and the solver runs again. There are at most
as many caps as sets of networks, so the loop ends, and the first answer that holds is the best
one. The solver itself excludes an adapter beside its own functions if both are in one place
(``Item.rival``).

If the exact search would take too long, the greedy answer may break the caps. Then the search
branches over the adapters that give less, the best bounds first.
"""

from __future__ import annotations

import collections
import heapq
import itertools
from collections.abc import Callable
from typing import Final

import attrs

from nova_hpc.placement.dealing import CLOSED, Caps, Dealt
from nova_hpc.placement.model import (
    ChoiceAnswer,
    DeviceMiss,
    DeviceSet,
    FreeHost,
    Request,
    Unmet,
)

#: Chooses for a request without ports.
Plain = Callable[[Request, FreeHost, int], ChoiceAnswer]

#: Maximum of searches for one request on one host.
TRIES: Final = 96


def choose_with_ports(request: Request, host: FreeHost, limit: int, plain: Plain) -> ChoiceAnswer:
    """Choose the best device sets of *host*, each with an adapter's function for every direct port.

    :func:`nova_hpc.placement.dealing` deals the ports to the groups; then a search for a request
    without ports runs.

    :param plain: chooses for a request without ports.
    :returns: as :func:`nova_hpc.placement.choose.choose_device_sets`; the picks name ports by
        :attr:`Ports.key`.
    """
    short = _find_missing_functions(request, host)
    if short is not None:
        return ChoiceAnswer(miss=short)
    dealt = Dealt.of(request)
    solution: ChoiceAnswer | tuple[DeviceSet, Caps] | None
    dealt, solution = _search_with_caps(dealt, host, plain)
    if solution is None:
        solution = _search_best_first(dealt, host, plain)
    if isinstance(solution, ChoiceAnswer):
        return ChoiceAnswer(miss=_blame_ports(request, host, solution.miss, plain))
    best, caps = solution
    sets = [best]
    if limit > 1:
        for more in plain(dealt.request, dealt.host(host, caps), limit).sets:
            real = dealt.real(host, more)
            if isinstance(real, DeviceSet) and real.picks != best.picks:
                sets.append(real)
    return ChoiceAnswer(sets=tuple(sets))


def exchange_with_ports(
    request: Request,
    host: FreeHost,
    devices: DeviceSet,
    turn: Callable[[Request, FreeHost, DeviceSet], DeviceSet],
) -> DeviceSet:
    """Exchange *devices* for equally good ones, as ``[hpc]spread_equal_sets`` does, if the ports
    allow it.

    *devices* itself is returned if ports were dealt unevenly, or if the new set does not suit the
    ports.

    :param turn: exchanges them for a request without ports.
    """
    dealt = Dealt.of(request)
    if dealt.blanks:
        return devices
    turned_set = dealt.real(host, turn(dealt.request, dealt.host(host, {}), devices))
    return turned_set if isinstance(turned_set, DeviceSet) else devices


def _blame_ports(
    request: Request, host: FreeHost, miss: DeviceMiss | None, plain: Plain
) -> DeviceMiss | None:
    """Return the miss, with the ports as its cause if the request can be met without them.

    :param plain: searches for sets without ports.
    """
    if miss is None or miss.unmet not in (Unmet.DEVICES, Unmet.TOGETHER):
        return miss
    if request.wants and not plain(attrs.evolve(request, ports=()), host, 1).sets:
        return miss
    return attrs.evolve(miss, unmet=Unmet.PORTS)


def _search_with_caps(
    dealt: Dealt, host: FreeHost, plain: Plain
) -> tuple[Dealt, ChoiceAnswer | tuple[DeviceSet, Caps] | None]:
    """Search again with one more cap each time, until the answer holds.

    :returns: the request with its caps, and the best set, or why there is none; None if the
        answers break the caps.
    """
    shown = dealt.host(host, {})
    for _ in range(TRIES):
        answer = plain(dealt.request, shown, 1)
        if not answer.sets:
            if not dealt.request.caps:
                return dealt, answer
            return dealt, _answer_no_choice(dealt)
        real = dealt.real(host, answer.sets[0])
        if isinstance(real, DeviceSet):
            return dealt, (real, {})
        cap = dealt.cap(host, real)
        if cap is None or cap in dealt.request.caps:
            return dealt, None
        request = attrs.evolve(dealt.request, caps=(*dealt.request.caps, cap))
        dealt = attrs.evolve(dealt, request=request)
    return dealt, None


def _answer_no_choice(dealt: Dealt, tried: str = "") -> ChoiceAnswer:
    """Return the answer that no choice of functions for the ports is beside the groups.

    :param tried: the end of the text for operators.
    """
    text = "the adapters' functions that are free for the ports are not beside the groups"
    networks = ", ".join(sorted({ports.network for ports in dealt.ports}))
    operator = f"{text} ({networks}{tried})"
    return ChoiceAnswer(miss=DeviceMiss(operator=operator, user=text, unmet=Unmet.PORTS))


def _search_best_first(
    dealt: Dealt, host: FreeHost, plain: Plain
) -> ChoiceAnswer | tuple[DeviceSet, Caps]:
    """Search best first: the least bound, and among equals the one nearest to a solution.

    An answer that uses some pools too much has one branch for each of them, in which that pool
    gives one function less; for an adapter and its functions there is one for each side. Less is
    never better, so the score of the answer bounds all branches.
    """
    first = plain(dealt.request, dealt.host(host, {}), 1)
    if not first.sets:
        return first
    order = itertools.count()
    seen_caps = {frozenset[tuple[str, int]]()}
    # Bound, minus depth, order, caps, the set if it is already known.
    heap: list[tuple[tuple[int, ...], int, int, dict[str, int], DeviceSet | None]] = [
        (first.sets[0].score, 0, next(order), {}, first.sets[0])
    ]
    tries = 1
    while heap:
        bound, depth, _, caps, devices = heapq.heappop(heap)
        if devices is None:
            if tries >= TRIES:
                heap.append((bound, depth, 0, caps, None))
                break
            tries += 1
            answer = plain(dealt.request, dealt.host(host, caps), 1)
            if not answer.sets:
                continue
            devices = answer.sets[0]
            if devices.score > bound:
                heapq.heappush(heap, (devices.score, depth, next(order), caps, devices))
                continue
        real = dealt.real(host, devices)
        if isinstance(real, DeviceSet):
            return real, caps
        used = collections.Counter(pick.pool for pick in devices.picks)
        for less in real.branches(used):
            more = {**caps, **less}
            name = frozenset(more.items())
            if name not in seen_caps:
                seen_caps.add(name)
                heapq.heappush(heap, (devices.score, depth - 1, next(order), more, None))
    if heap:
        dive_result = _dive_for_solution(dealt, host, plain)
        if dive_result is not None:
            return dive_result
    return _answer_no_choice(dealt, f", after {tries} searches" if heap else "")


def _dive_for_solution(dealt: Dealt, host: FreeHost, plain: Plain) -> tuple[DeviceSet, Caps] | None:
    """Find a solution that holds by taking the excess from all adapters alike; else None."""
    caps: dict[str, int] = {}
    for _ in range(TRIES):
        answer = plain(dealt.request, dealt.host(host, caps), 1)
        if not answer.sets:
            return None
        real = dealt.real(host, answer.sets[0])
        if isinstance(real, DeviceSet):
            return real, caps
        if real.name is None:
            # An adapter or its functions: the side that serves fewer picks is closed.
            used = collections.Counter(pick.pool for pick in answer.sets[0].picks)
            side = min(real.sides, key=lambda pools: sum(used[pool] for pool in pools))
            caps.update(dict.fromkeys(side, CLOSED))
            continue
        left = max(dealt.wanted(host, real.pools), 0)
        for number, pool in enumerate(real.pools):
            caps[pool] = (left + len(real.pools) - 1 - number) // len(real.pools)
    return None


def _find_missing_functions(request: Request, host: FreeHost) -> DeviceMiss | None:
    """Return the miss if the host has too few functions for the ports, whatever their places.

    None if it has enough.
    """
    serves = {pool.id: pool.serves for pool in host.pools}
    keys = {ports.key for ports in request.ports}
    total = sum(ports.count for ports in request.ports)
    functions = [
        pool.id for pool in host.pools if pool.serves & keys for _ in range(min(pool.free, total))
    ]
    lacking = []
    for ports in request.ports:
        have = sum(1 for pool in functions if ports.key in serves[pool])
        if have < ports.count:
            lacking.append((ports, have))
    if not lacking:
        return None
    counts = ", ".join(
        f"{have} functions of adapters free for {ports.count} ports of {ports.network}"
        for ports, have in lacking
    )
    have, need = sum(have for _, have in lacking), sum(ports.count for ports, _ in lacking)
    text = f"{have} functions of adapters free for ports of a network (needs {need})"
    return DeviceMiss(operator=counts, user=text, unmet=Unmet.PORTS)
