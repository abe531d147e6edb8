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
from nova_hpc.from_nova.hosts import Pattern, View
from nova_hpc.from_nova.profile import CloudProfile
from nova_hpc.from_nova.server import Task
from nova_hpc.placement import between_hosts
from nova_hpc.placement import numa_choice as nodes
from nova_hpc.placement.choose import choose
from nova_hpc.placement.judge import judge
from nova_hpc.placement.model import Answer, DeviceSet, Miss, Nvlink, Request, Unmet
from nova_hpc.placement.solver.costs import Work
from nova_hpc.placement.spread import rotate
from nova_hpc.topology.level import Location
from scheduler_filters import nova_fit as fit

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

#: So many orders of equal devices there are. More would spread racing
#: schedulers no better, and fewer are found in the cache again.
_TURNS: Final = 64

_CROWDED: Final = Miss(
    operator="another request group of the flavor or of a port has the device's provider, which "
    "group_policy=isolate forbids",
    user="other resources come from the same devices, which group_policy=isolate forbids",
    unmet=Unmet.DEVICES,
)

_REDUCED: Final[Cache[Pattern]] = Cache()
_ANSWERS: Final[Cache[Answer]] = Cache()
_TURNED: Final[Cache[DeviceSet]] = Cache()
_JUDGED: Final[Cache[Answer]] = Cache()
_PLACES: Final[Cache[Mapping[str, tuple[str, Location]]]] = Cache()


@attrs.frozen
class Template:
    """One of Placement's own candidates, kept on the host state.

    A request for several servers filters the same host state again for every
    server, when its candidates are ours already.
    """

    key: tuple[str, ...]
    candidate: candidates.Candidate


@attrs.frozen
class Choice:
    """What the filter chose on a host; the weigher reads it."""

    key: tuple[str, ...]
    devices: DeviceSet
    #: Smaller is better, comparable between hosts.
    rank: tuple[int, ...]


@attrs.frozen
class Order:
    """One server: what all hosts are asked for."""

    question: fit.Question
    task: Task
    request: Request
    sold: CloudProfile
    #: Which of several equal device sets this server would like.
    turn: int | None
    #: Equal for orders with equal answers.
    key: tuple[object, ...]
    #: What the searches of this pass over hosts may take.
    work: Work = attrs.field(factory=Work, eq=False)

    @classmethod
    def of(
        cls, spec: objects.RequestSpec, task: Task, request: Request, sold: CloudProfile
    ) -> Order:
        """The order of one server, whose turn is decided by its UUID."""
        turn = None
        if CONF.hpc.spread_equal_sets:
            name = str(spec.instance_uuid if "instance_uuid" in spec else "").encode()
            turn = int.from_bytes(hashlib.sha256(name).digest()[:4], "big") % _TURNS
        # By hpc:group, roles decide about the groups.
        groups = tuple(tuple(sorted(group.counts.items())) for group in request.groups)
        key = (task.shape, groups, sold.number)
        return cls(fit.Question.of(spec), task, request, sold, turn, key)

    def within(self, rooms: fit.Rooms) -> Order:
        """The same, with each of the guest's cells on one of these host nodes."""
        cells = tuple(
            attrs.evolve(cell, nodes=found)
            for cell, found in zip(self.request.cells, rooms, strict=True)
        )
        request = attrs.evolve(self.request, cells=cells)
        return attrs.evolve(self, request=request, key=(*self.key, rooms))


def place(host: Any, order: Order, view: View) -> Miss | None:
    """Choose devices on one host and offer them; a miss if there are none."""
    template = _template(host, order.task)
    if template is None:
        return Miss(
            operator="Placement offers no allocation candidate with all devices",
            user="the devices are not free in Placement",
            unmet=Unmet.DEVICES,
        )
    pattern = _reduce(order, view.pattern)
    best = _choose(order, pattern, 1)
    if not best.sets:
        return best.miss or Miss("no device set", "no suitable set of devices is free")
    offers: list[_Offer] = []
    refusals: list[Miss] = []
    for bound, devices in _in_turn(host, order, pattern, best):
        if devices is not None:
            candidate = _candidate(order, view, pattern, devices, template)
            judged: DeviceSet | Miss = _CROWDED
            if not (
                order.request.apart
                and candidates.shared(candidate, order.task.units, order.task.bandwidth)
            ):
                judged = _check(host, order, view, pattern, devices, candidate)
            if isinstance(judged, Miss):
                refusals.append(judged)
            else:
                offers.append(_Offer(devices, judged, candidate))
        if offers and min(nodes.place(offer.judged) for offer in offers) <= bound:
            break  # there is none better
    if not offers:
        return _refused(refusals)
    best_offer = min(offers, key=lambda offer: nodes.place(offer.judged))
    _offer(host, order, best_offer, between_hosts.room(view.pattern.host.nodes))
    return None


def _candidate(
    order: Order,
    view: View,
    pattern: Pattern,
    devices: DeviceSet,
    template: candidates.Candidate,
) -> dict[str, Any]:
    """The candidate that names the devices, and the bandwidth of their ports."""
    task = order.task
    taken = _assign(task, devices, view.providers)
    candidate = candidates.synthesise(template, task.units, taken)
    if not view.bandwidth:
        return candidate
    adapters = port_pools.adapters_of(task.ports, devices, pattern.host)
    chosen = port_pools.bandwidth_of(task.ports, adapters, view.bandwidth)
    return bandwidth.moved(candidate, task.bandwidth, chosen)


@attrs.frozen
class _Offer:
    """A set that Nova would take."""

    devices: DeviceSet
    #: What it is worth on the NUMA nodes that Nova will take.
    judged: DeviceSet
    candidate: Mapping[str, Any]


def _offer(host: Any, order: Order, best: _Offer, free: int) -> None:
    # The earlier candidate may be claimed by now: replaced, never changed.
    host.allocation_candidates = [best.candidate]
    fit.lighten(host)
    # The engine has no say in Nova's NUMA nodes, but the damage is the same.
    score = (*nodes.place(best.judged), *best.devices.score[nodes.PLACE :])
    coarse = between_hosts.grain(order.sold.profile)
    measured = best.devices.measured
    order.work.unmeasured += not measured
    host.hpc_choice = Choice(
        order.task.key,
        attrs.evolve(best.judged, score=score),
        between_hosts.rank(score, order.request.level, coarse, measured, free),
    )
    LOG.debug(
        "%s, %s: offers %s at level %s (%s)",
        host.host,
        host.nodename,
        [pick.pool for pick in best.devices.picks],
        best.judged.level.word,
        best.devices.reason,
    )


def _refused(refusals: Sequence[Miss]) -> Miss:
    return Miss(
        operator=(
            f"{len(refusals)} suitable device sets are free, but Nova refuses each: "
            + "; ".join(dict.fromkeys(miss.operator for miss in refusals))
        ),
        user=refusals[0].user,
        unmet=refusals[0].unmet,
    )


def _reduce(order: Order, pattern: Pattern) -> Pattern:
    """The pattern that *pattern* shares with all whose answers are the same."""
    return _REDUCED.get(
        (pattern.number, order.key),
        lambda: hosts.on_host(
            pattern,
            between_hosts.reduced(order.request, pattern.host, order.sold.profile),
        ),
    )


def _choose(order: Order, pattern: Pattern, limit: int) -> Answer:
    key: tuple[object, ...] = (pattern.number, order.key, limit)
    if order.work.used_up and key not in _ANSWERS:
        key = (*key, "unmeasured")
    return _ANSWERS.get(
        key, lambda: choose(order.request, pattern.host, limit, order.sold.profile, order.work)
    )


def _in_turn(
    host: Any, order: Order, pattern: Pattern, best: Answer
) -> Iterator[tuple[tuple[int, ...], DeviceSet | None]]:
    """The best set, and more only once it has been rejected, or is worth less than it seemed.

    The engine knows free CPUs and pages as numbers. What else Nova asks of a NUMA node
    (shared CPUs, threads, memory, networks) is asked only now, and the best set is
    chosen again from what is left.

    :returns: sets, each with the place that no other set can be better than; None: only
        that place.
    """
    tried: list[object] = []
    bound = nodes.place(best.sets[0])
    for devices in _fresh(order, pattern, best.sets, tried):
        yield bound, devices
    most = max(CONF.hpc.candidates_per_host, 1)
    if not order.question.celled or not host.numa_topology:
        if most > 1:
            for devices in _fresh(order, pattern, _choose(order, pattern, most).sets, tried):
                yield bound, devices
        return
    asked = [order.within(rooms) for rooms in fit.rooms(order.question, host)]
    for limit in (1, most) if most > 1 else (1,):
        found = [(one, each) for one in asked for each in _choose(one, pattern, limit).sets]
        if not found:
            return
        found.sort(key=lambda pair: pair[1].score)
        bound = nodes.place(found[0][1])
        yield bound, None
        for one, devices in found:
            # Nodes that were exchanged may not be alike to Nova: as it is, too.
            for each in (*_fresh(one, pattern, [devices], tried), *_new([devices], tried)):
                yield bound, each


def _fresh(
    order: Order, pattern: Pattern, sets: Iterable[DeviceSet], tried: list[object]
) -> Iterator[DeviceSet]:
    """Each set in the server's own turn, unless it was tried before."""
    return _new((_turn(order, pattern, devices) for devices in sets), tried)


def _new(sets: Iterable[DeviceSet], tried: list[object]) -> Iterator[DeviceSet]:
    for devices in sets:
        # Where the cells go with them is Nova's to say: the same devices are the same offer.
        mine = sorted((pick.want, pick.pool) for pick in devices.picks)
        if mine not in tried:
            tried.append(mine)
            yield devices


def _turn(order: Order, pattern: Pattern, devices: DeviceSet) -> DeviceSet:
    """Other devices that are exactly as good, in the server's own order.

    Schedulers that work at the same moment would otherwise all claim the same
    set, and all but one would lose this host.
    """
    turn = order.turn
    if turn is None:
        return devices
    return _TURNED.get(
        (pattern.number, order.key, devices.picks, turn),
        lambda: rotate(order.request, pattern.host, devices, turn),
    )


def _check(
    host: Any,
    order: Order,
    view: View,
    pattern: Pattern,
    devices: DeviceSet,
    candidate: Mapping[str, Any],
) -> DeviceSet | Miss:
    """What the set is worth on the NUMA nodes that Nova will take."""
    if order.question.is_certain(view.ambiguous):
        return devices
    if view.ambiguous or order.task.ports:
        adapters = port_pools.adapters_of(order.task.ports, devices, pattern.host)
        fitted = fit.check(host, order.question.spec, candidate, adapters)
    else:
        # Which of alike devices it is makes no difference, to Nova or to the cells.
        alike = (view.pools, order.key, _shape(order, pattern, devices))
        fitted = fit.answer(order.question, host, candidate, alike)
    if fitted.refusal:
        return Miss(
            operator=fitted.refusal,
            user="suitable devices are free, but not with enough CPUs and memory pages beside them",
            unmet=Unmet.BESIDE,
        )
    if dict(fitted.cells) == dict(devices.cells):
        return devices
    judged = _JUDGED.get(
        (pattern.number, order.key, devices.picks, tuple(sorted(fitted.cells.items()))),
        lambda: judge(nodes.fixed(order.request, fitted.cells), pattern.host, _claimed(devices)),
    )
    if judged.sets:
        return judged.sets[0]
    miss = judged.miss or Miss("no reason given", "no reason given")
    operator = f"on the NUMA nodes that Nova takes: {miss.operator}"
    return Miss(operator=operator, user=miss.user, unmet=Unmet.BESIDE)


def _shape(order: Order, pattern: Pattern, devices: DeviceSet) -> Hashable:
    """Equal for sets of alike devices in alike places: which are together, and where."""
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
        # Without a root nothing is together.
        root = location.root or f"none {number}"
        roots.setdefault((numa, root), []).append(tuple(sorted(wants)))
    return tuple(sorted((numa, tuple(sorted(each, key=str))) for (numa, _), each in roots.items()))


def _template(host: Any, task: Task) -> candidates.Candidate | None:
    kept: Template | None = getattr(host, "hpc_template", None)
    if kept is not None and kept.key == task.key:
        return kept.candidate
    found = candidates.find_template(host.allocation_candidates or (), task.units)
    if found is not None:
        host.hpc_template = Template(task.key, found)
    return found


def _assign(task: Task, devices: DeviceSet, providers: Mapping[str, str]) -> dict[str, str]:
    """Request group -> provider, for every device of the flavor."""
    taken: dict[str, str] = {}
    for device in task.devices:
        picks = [providers[pick.pool] for pick in devices.picks if pick.want == device.want.key]
        if len(picks) != len(device.units):
            raise ValueError(
                f"{len(picks)} devices were chosen where {len(device.units)} were asked for"
            )
        taken.update((unit.group, pool) for unit, pool in zip(device.units, picks, strict=True))
    return taken


def _claimed(devices: DeviceSet) -> Mapping[str, list[str]]:
    claimed: dict[str, list[str]] = collections.defaultdict(list)
    for pick in devices.picks:
        claimed[pick.want].append(pick.pool)
    return claimed
