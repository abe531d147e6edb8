# SPDX-License-Identifier: Apache-2.0
"""What HpcTopologyFilter writes into the log: by cause, not by host.

A large cloud rejects hundreds of hosts for each server, for a handful of reasons.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, Final

from nova import objects
from oslo_log import log as logging

from nova_hpc.from_nova.hosts import View
from nova_hpc.from_nova.log_throttle import SAID, more, some
from nova_hpc.placement.model import Miss
from nova_hpc.placement.solver.costs import Work

LOG = logging.getLogger(__name__)

#: So many different reasons of one request are worth a line at INFO each.
_FEW: Final = 32
#: So many hosts are named in one line.
_NAMED: Final = 8


def unusable(views: Mapping[Any, View]) -> None:
    """Devices that are not used, one line for each reason that is new."""
    found: dict[str, list[tuple[str, str]]] = {}
    for host, view in views.items():
        for what, why in view.faults:
            found.setdefault(why, []).append((host.host, what))
    for why, places in found.items():
        held = SAID.due(("unusable", why))
        host, what = places[0]
        others = len(places) - 1
        LOG.log(
            logging.DEBUG if held is None else logging.WARNING,
            "%s: %s is not used: %s%s%s",
            host,
            what,
            why,
            f"; so are {others} more, on {len({each for each, _ in places})} hosts" * bool(others),
            more(held or 0),
        )


def broken(host: Any, where: str, error: Exception) -> None:
    """A host that cannot be read or asked, with the traceback (in an exception handler)."""
    held = SAID.due(("broken", where, str(error)))
    if held is not None:
        LOG.exception(
            "%s, %s: cannot be used for hpc: flavors%s", host.host, host.nodename, more(held)
        )


def unmeasured(work: Work, spec: objects.RequestSpec) -> None:
    """Hosts that were judged without the damage term, because the pass took too long."""
    if work.unmeasured:
        held = SAID.due(("unmeasured", spec.flavor.flavorid))
        LOG.log(
            logging.DEBUG if held is None else logging.WARNING,
            "The search for flavor %s has taken all steps of one pass over hosts: %d hosts were "
            "judged without what they would lose for later servers, and come after the others of "
            "their level%s",
            spec.flavor.flavorid,
            work.unmeasured,
            more(held or 0),
        )


def rejected(
    misses: Mapping[Any, Miss], views: Mapping[Any, View], spec: objects.RequestSpec, passed: int
) -> None:
    """Why hosts are left out, one line for each reason.

    :param passed: hosts that are left; where there are none, nothing is held back.
    """
    found: dict[str, list[str]] = collections.defaultdict(list)
    for host, miss in misses.items():
        found[_whole(miss, views.get(host))].append(f"{host.host}, {host.nodename}")
    often = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    for number, (text, names) in enumerate(often):
        held = SAID.due(("rejects", spec.flavor.flavorid, text)) if passed else 0
        LOG.log(
            logging.DEBUG if held is None or number >= _FEW else logging.INFO,
            "HpcTopologyFilter rejects %s for flavor %s%s: %s",
            some(names, _NAMED, "; "),
            spec.flavor.flavorid,
            more(held or 0),
            text,
        )
        if len(names) > _NAMED:
            LOG.debug("These hosts are: %s", "; ".join(names))
    if len(often) > _FEW:
        LOG.info(
            "HpcTopologyFilter rejects %d hosts for flavor %s for %d more reasons",
            sum(len(names) for _, names in often[_FEW:]),
            spec.flavor.flavorid,
            len(often) - _FEW,
        )


def _whole(miss: Miss, view: View | None) -> str:
    text = miss.operator
    if view is not None and view.unusable:
        text += f"; not usable: {some(view.unusable, joint='; ')}"
    if view is not None and view.withheld:
        shown = [f"{address} ({why})" for address, why in sorted(view.withheld.items())]
        number = "" if view.counted else f"{len(shown)} "
        text += f"; {number}withheld by the node: {', '.join(shown[:4])}"
    return text
