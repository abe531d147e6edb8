# SPDX-License-Identifier: Apache-2.0
"""Chooses devices on one host and offers them to the rest of the scheduler."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
from nova import objects
from oslo_config import cfg
from oslo_log import log as logging

from nova_hpc.from_nova import candidates, hosts
from nova_hpc.from_nova.cache import Cache
from nova_hpc.from_nova.hosts import Pattern, View
from nova_hpc.from_nova.profile import CloudProfile
from nova_hpc.from_nova.server import Task
from nova_hpc.placement import between_hosts
from nova_hpc.placement.choose import choose
from nova_hpc.placement.judge import judge
from nova_hpc.placement.model import Answer, DeviceSet, Miss, Request
from nova_hpc.placement.spread import rotate
from scheduler_filters import fit

CONF = cfg.CONF
LOG = logging.getLogger(__name__)

#: So many orders of equal devices there are. More would spread racing
#: schedulers no better, and fewer are found in the cache again.
_TURNS: Final = 64

#: Parts of a score that tell where the devices are: level, NVLink misses,
#: distance and spread. The others tell what is left on the host.
_PLACE: Final = 4

_REDUCED: Final[Cache[Pattern]] = Cache()
_ANSWERS: Final[Cache[Answer]] = Cache()
_TURNED: Final[Cache[DeviceSet]] = Cache()
_JUDGED: Final[Cache[Answer]] = Cache()


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


def place(host: Any, order: Order, view: View) -> Miss | None:
    """Choose devices on one host and offer them; a miss if there are none."""
    template = _template(host, order.task)
    if template is None:
        return Miss(
            operator="Placement offers no allocation candidate with all devices",
            user="the devices are not free in Placement",
        )
    pattern = _reduce(order, view.pattern)
    best = _choose(order, pattern, 1)
    if not best.sets:
        return best.miss or Miss("no device set", "no suitable set of devices is free")
    refusals: list[Miss] = []
    for devices in _alternatives(order, pattern, best):
        taken = _assign(order.task, devices, view.providers)
        candidate = candidates.synthesise(template, order.task.units, taken)
        judged = _check(host, order, view, pattern, devices, candidate)
        if isinstance(judged, Miss):
            refusals.append(judged)
            continue
        # The earlier candidate may be claimed by now: replaced, never changed.
        host.allocation_candidates = [candidate]
        fit.lighten(host)
        # The engine has no say in Nova's NUMA nodes, but the damage is the same.
        score = (*judged.score[:_PLACE], *devices.score[_PLACE:])
        coarse = between_hosts.grain(order.sold.profile)
        host.hpc_choice = Choice(
            order.task.key,
            attrs.evolve(judged, score=score),
            between_hosts.rank(score, order.request.level, coarse),
        )
        LOG.debug(
            "%s, %s: offers %s at level %s (%s)",
            host.host,
            host.nodename,
            [pick.pool for pick in devices.picks],
            judged.level.word,
            devices.reason,
        )
        return None
    return Miss(
        operator=(
            f"{len(refusals)} suitable device sets are free, but Nova refuses each: "
            + "; ".join(dict.fromkeys(miss.operator for miss in refusals))
        ),
        user=refusals[0].user,
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
    return _ANSWERS.get(
        (pattern.number, order.key, limit),
        lambda: choose(order.request, pattern.host, limit, profile=order.sold.profile),
    )


def _alternatives(order: Order, pattern: Pattern, best: Answer) -> Iterator[DeviceSet]:
    """The best set, and more only once it has been rejected."""
    tried = []
    for devices in best.sets:
        turned = _turn(order, pattern, devices)
        tried.append(turned.picks)
        yield turned
    if CONF.hpc.candidates_per_host > 1:
        for devices in _choose(order, pattern, CONF.hpc.candidates_per_host).sets:
            turned = _turn(order, pattern, devices)
            if turned.picks not in tried:
                tried.append(turned.picks)
                yield turned


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
    if view.ambiguous:
        fitted = fit.check(host, order.question.spec, candidate)
    else:
        # Which of the devices of a NUMA node it is makes no difference to Nova.
        numa = pattern.numa
        taken = sorted((pick.want, str(numa[pick.pool])) for pick in devices.picks)
        alike = (view.pools, order.task.matching, tuple(taken))
        fitted = fit.answer(order.question, host, candidate, alike)
    if fitted.refusal:
        return Miss(
            operator=fitted.refusal,
            user="suitable devices are free, but not with enough CPUs and memory pages beside them",
        )
    if dict(fitted.cells) == dict(devices.cells):
        return devices
    judged = _JUDGED.get(
        (pattern.number, order.key, devices.picks, tuple(sorted(fitted.cells.items()))),
        lambda: judge(_fixed(order.request, fitted.cells), pattern.host, _claimed(devices)),
    )
    if judged.sets:
        return judged.sets[0]
    miss = judged.miss or Miss("no reason given", "no reason given")
    return Miss(operator=f"on the NUMA nodes that Nova takes: {miss.operator}", user=miss.user)


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


def _fixed(request: Request, cells: Mapping[int, int]) -> Request:
    """The request on the NUMA nodes that Nova will take."""
    return attrs.evolve(
        request,
        cells=tuple(attrs.evolve(cell, host_node=cells.get(cell.id)) for cell in request.cells),
    )
