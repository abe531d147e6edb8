"""Chooses devices on one host and offers them to the rest of the scheduler."""

from __future__ import annotations

import collections
import hashlib
from collections.abc import Mapping
from typing import Any

import attrs
from nova import objects
from oslo_config import cfg
from oslo_log import log as logging

from nova_hpc.placement.choose import choose
from nova_hpc.placement.judge import judge
from nova_hpc.placement.model import Answer, DeviceSet, Miss, Request
from scheduler_filters import candidates, fit
from scheduler_filters.reader import View
from scheduler_filters.request import Task

CONF = cfg.CONF
LOG = logging.getLogger(__name__)


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


def place(
    host: Any,
    spec: objects.RequestSpec,
    task: Task,
    request: Request,
    view: View,
) -> Miss | None:
    """Choose devices on one host and offer them; a miss if there are none."""
    template = _template(host, task)
    if template is None:
        return Miss(
            operator="Placement offers no allocation candidate with all devices",
            user="the devices are not free in Placement",
        )
    answer = choose(request, view.host, limit=CONF.hpc.candidates_per_host)
    if not answer.sets:
        return answer.miss or Miss("no device set", "no suitable set of devices is free")
    refusals = []
    for devices in spread(answer, spec):
        taken = _assign(task, devices)
        candidate = candidates.synthesise(template, task.units, taken)
        fitted = fit.check(host, spec, candidate)
        if fitted.refusal:
            refusals.append(fitted.refusal)
            continue
        judged = judge(_fixed(request, fitted.cells), view.host, _claimed(devices))
        if not judged.sets:
            refusals.append(
                judged.miss.operator if judged.miss else "Nova would take other NUMA nodes"
            )
            continue
        # The earlier candidate may be claimed by now: replaced, never changed.
        host.allocation_candidates = [candidate]
        host.hpc_choice = Choice(task.key, attrs.evolve(judged.sets[0], score=devices.score))
        LOG.debug(
            "%s, %s: offers %s at level %s (%s)",
            host.host,
            host.nodename,
            [pool.name for pool in view.host.pools if pool.id in taken.values()],
            judged.sets[0].level.word,
            devices.reason,
        )
        return None
    return Miss(
        operator=(
            f"{len(answer.sets)} suitable device sets are free, but Nova refuses each: "
            + "; ".join(dict.fromkeys(refusals))
        ),
        user="suitable devices are free, but not with enough CPUs and memory pages beside them",
    )


def _template(host: Any, task: Task) -> candidates.Candidate | None:
    kept: Template | None = getattr(host, "hpc_template", None)
    if kept is not None and kept.key == task.key:
        return kept.candidate
    found = candidates.find_template(host.allocation_candidates or (), task.units)
    if found is not None:
        host.hpc_template = Template(task.key, found)
    return found


def spread(answer: Answer, spec: objects.RequestSpec) -> list[DeviceSet]:
    """The sets, best first; equally good ones in an order of the server's own.

    Schedulers that work at the same moment would otherwise all claim the same
    set, and all but one would lose this host.
    """
    sets = list(answer.sets)
    best = sum(each.score == sets[0].score for each in sets)
    name = str(spec.instance_uuid if "instance_uuid" in spec else "").encode()
    turn = int.from_bytes(hashlib.sha256(name).digest()[:4], "big") % best
    return sets[turn:best] + sets[:turn] + sets[best:]


def _assign(task: Task, devices: DeviceSet) -> dict[str, str]:
    """Request group -> provider, for every device of the flavor."""
    taken: dict[str, str] = {}
    for device in task.devices:
        picks = [pick.pool for pick in devices.picks if pick.want == device.want.key]
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
