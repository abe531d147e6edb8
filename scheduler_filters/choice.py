# SPDX-License-Identifier: Apache-2.0
"""Chooses devices on one host and offers them to the rest of the scheduler."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
from nova import objects
from oslo_config import cfg
from oslo_log import log as logging

from nova_hpc.from_nova import bandwidth, candidates, hosts, port_pools
from nova_hpc.from_nova.cache import Cache
from nova_hpc.from_nova.hosts import HostPattern, HostView
from nova_hpc.from_nova.profile import CloudProfile
from nova_hpc.from_nova.server import ServerTask
from nova_hpc.placement import between_hosts, numa_choice
from nova_hpc.placement.choose import choose_device_sets
from nova_hpc.placement.judge import judge_claimed_devices
from nova_hpc.placement.model import ChoiceAnswer, DeviceMiss, DeviceSet, Nvlink, Request, Unmet
from nova_hpc.placement.solver.costs import PassWork
from nova_hpc.placement.spread import rotate_devices
from nova_hpc_common.level import Location
from scheduler_filters import nova_fit

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

#: Number of orders of equal devices. More orders would not spread racing
#: schedulers better, and would be found in the cache less often.
_TURNS: Final = 64

_CROWDED: Final = DeviceMiss(
    operator="another request group of the flavor or of a port has the device's provider, which "
    "group_policy=isolate forbids",
    user="other resources come from the same devices, which group_policy=isolate forbids",
    unmet=Unmet.DEVICES,
)

_REDUCED: Final[Cache[HostPattern]] = Cache()
_ANSWERS: Final[Cache[ChoiceAnswer]] = Cache()
_TURNED: Final[Cache[DeviceSet]] = Cache()
_JUDGED: Final[Cache[ChoiceAnswer]] = Cache()
_PLACES: Final[Cache[Mapping[str, tuple[str, Location]]]] = Cache()


@attrs.frozen
class HostChoice:
    """The devices that the filter chose on one host, stored on the host state for the weigher."""

    key: tuple[str, ...]
    devices: DeviceSet
    #: Smaller is better, comparable between hosts.
    rank: tuple[int, ...]
    #: The candidate that names the devices.
    candidate: candidates.Candidate
    #: One of Placement's own candidates. A request for several servers filters the same host
    #: state again for every server, and its candidates are then already replaced by ours.
    template: candidates.Candidate


@attrs.frozen
class ServerOrder:
    """The requirements of one server, prepared once for the choice on all hosts."""

    question: nova_fit.FitQuestion
    task: ServerTask
    request: Request
    sold: CloudProfile
    #: This server's choice among several equal device sets.
    turn: int | None
    #: Equal for orders with equal answers.
    key: tuple[object, ...]
    #: Steps for the searches of this pass over hosts.
    work: PassWork = attrs.field(factory=PassWork, eq=False)

    @classmethod
    def of(
        cls, spec: objects.RequestSpec, task: ServerTask, request: Request, sold: CloudProfile
    ) -> ServerOrder:
        """Prepare the requirements of one server; its UUID decides between equal device sets."""
        turn = None
        if CONF.hpc.spread_equal_sets:
            name = str(spec.instance_uuid if "instance_uuid" in spec else "").encode()
            turn = int.from_bytes(hashlib.sha256(name).digest()[:4], "big") % _TURNS
        # Roles decide about the groups through hpc:group.
        groups = tuple(tuple(sorted(group.counts.items())) for group in request.groups)
        key = (task.shape, groups, sold.number)
        return cls(nova_fit.FitQuestion.of(spec), task, request, sold, turn, key)

    def within(self, rooms: nova_fit.Rooms) -> ServerOrder:
        """Return a copy in which each guest cell may use only the listed host nodes."""
        cells = tuple(
            attrs.evolve(cell, nodes=room)
            for cell, room in zip(self.request.cells, rooms, strict=True)
        )
        request = attrs.evolve(self.request, cells=cells)
        return attrs.evolve(self, request=request, key=(*self.key, rooms))


def place_devices_on_host(host: Any, order: ServerOrder, view: HostView) -> HostChoice | DeviceMiss:
    """Choose devices on one host; a miss if there are none. The host's state stays the same.

    The engine chooses the best set. Nova's own functions then show the NUMA nodes that the guest
    would get with it, and the set is judged again on these nodes. Further sets are tried as long
    as one of them could be better than the best set so far.
    """
    template = _find_own_template(host, order.task)
    if template is None:
        return DeviceMiss(
            operator="Placement offers no allocation candidate with all devices",
            user="the devices are not free in Placement",
            unmet=Unmet.DEVICES,
        )
    pattern = _reduce_pattern(order, view.pattern)
    best = _choose_for_order(order, pattern, 1)
    if not best.sets:
        return best.miss or DeviceMiss("no device set", "no suitable set of devices is free")
    offers: list[_JudgedOffer] = []
    refusals: list[DeviceMiss] = []
    for bound, devices in _iterate_sets_in_turn(host, order, pattern, best):
        if devices is not None:
            candidate = _build_candidate(order, view, pattern, devices, template)
            judged: DeviceSet | DeviceMiss = _CROWDED
            if not (
                order.request.apart
                and candidates.find_shared_providers(
                    candidate, order.task.units, order.task.bandwidth
                )
            ):
                judged = _judge_by_nova(host, order, view, pattern, devices, candidate)
            if isinstance(judged, DeviceMiss):
                refusals.append(judged)
            else:
                offers.append(_JudgedOffer(devices, judged, candidate))
        if offers and min(numa_choice.place_of_set(offer.judged) for offer in offers) <= bound:
            break  # no other set is better
    if not offers:
        return _miss_of_refusals(refusals)
    best_offer = min(offers, key=lambda offer: numa_choice.place_of_set(offer.judged))
    LOG.debug(
        "%s, %s: offers %s at level %s (%s)",
        host.host,
        host.nodename,
        [pick.pool for pick in best_offer.devices.picks],
        best_offer.judged.level.word,
        best_offer.devices.reason,
    )
    free = between_hosts.free_room_of(view.pattern.host.nodes)
    return _rank_offer(order, best_offer, free, template)


def put_choice_on_host(host: Any, choice: HostChoice) -> None:
    """Make the chosen candidate the host's only one for the rest of the scheduler."""
    # The earlier candidate may be claimed by now, so it is replaced and never changed.
    host.allocation_candidates = [choice.candidate]
    host.hpc_choice = choice
    nova_fit.lighten_host_state(host)


def _build_candidate(
    order: ServerOrder,
    view: HostView,
    pattern: HostPattern,
    devices: DeviceSet,
    template: candidates.Candidate,
) -> dict[str, Any]:
    """Build the allocation candidate that names the devices, and the bandwidth of their ports."""
    task = order.task
    taken = _assign_providers(task, devices, view.providers)
    candidate = candidates.synthesise_candidate(template, task.units, taken)
    if not view.bandwidth:
        return candidate
    adapters = port_pools.chosen_adapters_of(task.ports, devices, pattern.host)
    chosen = port_pools.bandwidth_providers_of(task.ports, adapters, view.bandwidth)
    return bandwidth.move_port_bandwidth(candidate, task.bandwidth, chosen)


@attrs.frozen
class _JudgedOffer:
    """A device set that Nova's own checks would accept, with its score and allocation candidate."""

    devices: DeviceSet
    #: The set as it is measured on the NUMA nodes that Nova will take.
    judged: DeviceSet
    candidate: Mapping[str, Any]


def _rank_offer(
    order: ServerOrder, best: _JudgedOffer, free: int, template: candidates.Candidate
) -> HostChoice:
    # The engine does not decide about Nova's NUMA nodes, but the damage is the same.
    score = (*numa_choice.place_of_set(best.judged), *best.devices.score[numa_choice.PLACE :])
    coarse = between_hosts.damage_grain_of(order.sold.profile)
    measured = best.devices.measured
    order.work.unmeasured += not measured
    rank = between_hosts.rank_device_set(score, order.request.level, coarse, measured, free)
    devices = attrs.evolve(best.judged, score=score)
    return HostChoice(order.task.key, devices, rank, best.candidate, template)


def _miss_of_refusals(refusals: Sequence[DeviceMiss]) -> DeviceMiss:
    return DeviceMiss(
        operator=(
            f"{len(refusals)} suitable device sets are free, but Nova refuses each: "
            + "; ".join(dict.fromkeys(miss.operator for miss in refusals))
        ),
        user=refusals[0].user,
        unmet=refusals[0].unmet,
    )


def _reduce_pattern(order: ServerOrder, pattern: HostPattern) -> HostPattern:
    """Return the pattern that *pattern* shares with all patterns that have the same answers.

    A pattern is a host without its name; the reduced one has less detail.
    """
    return _REDUCED.get(
        (pattern.number, order.key),
        lambda: hosts.pattern_on_host(
            pattern,
            between_hosts.reduce_host(order.request, pattern.host, order.sold.profile),
        ),
    )


def _choose_for_order(order: ServerOrder, pattern: HostPattern, limit: int) -> ChoiceAnswer:
    key: tuple[object, ...] = (pattern.number, order.key, limit)
    if order.work.used_up and key not in _ANSWERS:
        key = (*key, "unmeasured")
    return _ANSWERS.get(
        key,
        lambda: choose_device_sets(
            order.request, pattern.host, limit, order.sold.profile, order.work
        ),
    )


def _iterate_sets_in_turn(
    host: Any, order: ServerOrder, pattern: HostPattern, best: ChoiceAnswer
) -> Iterator[tuple[tuple[int, ...], DeviceSet | None]]:
    """Yield the best set, and further ones only if it was rejected or is worth less than expected.

    The engine has free CPUs and pages as numbers. Nova's other conditions for a NUMA node (shared
    CPUs, threads, memory, networks) are checked only now, and the best set is chosen again from the
    remaining nodes.

    :returns: sets, each with a place that no other set can improve on; None instead of a set:
        only that place.
    """
    tried: list[object] = []
    bound = numa_choice.place_of_set(best.sets[0])
    for devices in _untried_in_turn(order, pattern, best.sets, tried):
        yield bound, devices
    most = max(CONF.hpc.candidates_per_host, 1)
    if not order.question.celled or not host.numa_topology:
        if most > 1:
            for devices in _untried_in_turn(
                order, pattern, _choose_for_order(order, pattern, most).sets, tried
            ):
                yield bound, devices
        return
    asked = [order.within(rooms) for rooms in nova_fit.find_cell_rooms(order.question, host)]
    for limit in (1, most) if most > 1 else (1,):
        pairs = [
            (narrowed, devices)
            for narrowed in asked
            for devices in _choose_for_order(narrowed, pattern, limit).sets
        ]
        if not pairs:
            return
        pairs.sort(key=lambda pair: pair[1].score)
        bound = numa_choice.place_of_set(pairs[0][1])
        yield bound, None
        for narrowed, devices in pairs:
            # Nova may distinguish nodes that were exchanged, so the set itself comes, too.
            for turned in (
                *_untried_in_turn(narrowed, pattern, [devices], tried),
                *_skip_tried_sets([devices], tried),
            ):
                yield bound, turned


def _untried_in_turn(
    order: ServerOrder, pattern: HostPattern, sets: Iterable[DeviceSet], tried: list[object]
) -> Iterator[DeviceSet]:
    """Yield equally good exchanges of the sets in the server's own turn, unless tried before."""
    return _skip_tried_sets((_turn_devices(order, pattern, devices) for devices in sets), tried)


def _skip_tried_sets(sets: Iterable[DeviceSet], tried: list[object]) -> Iterator[DeviceSet]:
    for devices in sets:
        # Nova decides about the cells, so the same devices are the same offer.
        wanted_pools = sorted((pick.want, pick.pool) for pick in devices.picks)
        if wanted_pools not in tried:
            tried.append(wanted_pools)
            yield devices


def _turn_devices(order: ServerOrder, pattern: HostPattern, devices: DeviceSet) -> DeviceSet:
    """Exchange the devices for others that are exactly as good, in the server's own order.

    Schedulers that work at the same moment would otherwise all claim the same set, and all but one
    would lose this host.
    """
    turn = order.turn
    if turn is None:
        return devices
    return _TURNED.get(
        (pattern.number, order.key, devices.picks, turn),
        lambda: rotate_devices(order.request, pattern.host, devices, turn),
    )


def _judge_by_nova(
    host: Any,
    order: ServerOrder,
    view: HostView,
    pattern: HostPattern,
    devices: DeviceSet,
    candidate: Mapping[str, Any],
) -> DeviceSet | DeviceMiss:
    """Judge the set on the NUMA nodes that Nova will take.

    Nova's answer is kept for sets of equal devices on hosts with equal pools. It is not kept for
    servers with ports, or if Nova cannot distinguish some pools.

    :returns: the set with its place on these nodes, or the reason against it.
    """
    if order.question.is_certain(view.ambiguous):
        return devices
    if view.ambiguous or order.task.ports:
        adapters = port_pools.chosen_adapters_of(order.task.ports, devices, pattern.host)
        fitted = nova_fit.check_nova_fit(host, order.question.spec, candidate, adapters)
    else:
        # Equal devices make no difference, for Nova or for the cells.
        alike = (view.pools, order.key, _shape_of_set(order, pattern, devices))
        fitted = nova_fit.recall_nova_fit(order.question, host, candidate, alike)
    if fitted.refusal:
        return DeviceMiss(
            operator=fitted.refusal,
            user="suitable devices are free, but not with enough CPUs and memory pages beside them",
            unmet=Unmet.BESIDE,
        )
    if dict(fitted.cells) == dict(devices.cells):
        return devices
    judged = _JUDGED.get(
        (pattern.number, order.key, devices.picks, tuple(sorted(fitted.cells.items()))),
        lambda: judge_claimed_devices(
            numa_choice.fix_request_cells(order.request, fitted.cells),
            pattern.host,
            _claimed_by_want(devices),
        ),
    )
    if judged.sets:
        return judged.sets[0]
    miss = judged.miss or DeviceMiss("no reason given", "no reason given")
    operator = f"on the NUMA nodes that Nova takes: {miss.operator}"
    return DeviceMiss(operator=operator, user=miss.user, unmet=Unmet.BESIDE)


def _shape_of_set(order: ServerOrder, pattern: HostPattern, devices: DeviceSet) -> Hashable:
    """Return a key that is equal for sets of equal devices in equal places."""
    if order.request.nvlink is not Nvlink.NONE:
        return pattern.devices, devices.picks
    places = _PLACES.get(
        pattern.number,
        lambda: {
            pool.id: (str((pattern.numa[pool.id], pool.location.numa)), pool.location)
            for pool in pattern.host.pools
        },
    )
    below: dict[tuple[str, Location], list[str]] = {}
    for pick in devices.picks:
        below.setdefault(places[pick.pool], []).append(pick.want)
    roots: dict[tuple[str, str], list[Hashable]] = {}
    for number, ((numa, location), wants) in enumerate(below.items()):
        # Without a root complex, devices are not together.
        root = location.root or f"none {number}"
        roots.setdefault((numa, root), []).append(tuple(sorted(wants)))
    return tuple(
        sorted(
            (numa, tuple(sorted(wants_of_root, key=str)))
            for (numa, _), wants_of_root in roots.items()
        )
    )


def _find_own_template(host: Any, task: ServerTask) -> candidates.Candidate | None:
    """Return Placement's own candidate for this request; a host state with a choice keeps it.

    None if no candidate names all devices.
    """
    kept: HostChoice | None = getattr(host, "hpc_choice", None)
    if kept is not None and kept.key == task.key:
        return kept.template
    return candidates.find_template(host.allocation_candidates or (), task.units)


def _assign_providers(
    task: ServerTask, devices: DeviceSet, providers: Mapping[str, str]
) -> dict[str, str]:
    """Map the request group of every device of the flavor to the provider that it is taken from.

    :param providers: pool -> its provider in Placement.
    :raises ValueError: the chosen set has not as many devices as the flavor requests.
    """
    taken: dict[str, str] = {}
    for device in task.devices:
        picks = [providers[pick.pool] for pick in devices.picks if pick.want == device.want.key]
        if len(picks) != len(device.units):
            raise ValueError(
                f"{len(picks)} devices were chosen instead of the requested {len(device.units)}"
            )
        taken.update((unit.group, pool) for unit, pool in zip(device.units, picks, strict=True))
    return taken


def _claimed_by_want(devices: DeviceSet) -> Mapping[str, list[str]]:
    claimed: dict[str, list[str]] = collections.defaultdict(list)
    for pick in devices.picks:
        claimed[pick.want].append(pick.pool)
    return claimed
