# SPDX-License-Identifier: Apache-2.0
"""The log lines of HpcTopologyFilter: by cause, not by host.

A large cloud rejects hundreds of hosts for each server, for a handful of reasons.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, Final

from nova import objects
from oslo_log import log as logging

from nova_hpc.from_nova.hosts import HostView
from nova_hpc.from_nova.log_throttle import LOG_THROTTLE, format_held_back
from nova_hpc.placement.model import DeviceMiss
from nova_hpc.placement.solver.costs import PassWork
from nova_hpc_common.outside.name_lists import join_first

LOG = logging.getLogger(__name__)

#: Maximum of different reasons of one request that get a line at INFO each.
_FEW: Final = 32
#: Hosts that are named in one line.
_NAMED: Final = 8


def log_unusable_devices(views: Mapping[Any, HostView]) -> None:
    """Log the devices that cannot be used, one line for each new reason."""
    places_by_reason: dict[str, list[tuple[str, str]]] = {}
    for host, view in views.items():
        for what, reason in view.faults:
            places_by_reason.setdefault(reason, []).append((host.host, what))
    for reason, places in places_by_reason.items():
        held = LOG_THROTTLE.due(("unusable", reason))
        host, what = places[0]
        others = len(places) - 1
        LOG.log(
            logging.DEBUG if held is None else logging.WARNING,
            "%s: %s is not used: %s%s%s",
            host,
            what,
            reason,
            f"; so are {others} more, on {len({host_name for host_name, _ in places})} hosts"
            * bool(others),
            format_held_back(held or 0),
        )


def log_broken_host(host: Any, where: str, error: Exception) -> None:
    """Log a host that cannot be read or searched, with the traceback (in an exception handler)."""
    held = LOG_THROTTLE.due(("broken", where, str(error)))
    if held is not None:
        LOG.exception(
            "%s, %s: cannot be used for hpc: flavors%s",
            host.host,
            host.nodename,
            format_held_back(held),
        )


def log_unmeasured_hosts(work: PassWork, spec: objects.RequestSpec) -> None:
    """Log hosts that were searched without the damage term, because the pass took too long."""
    if work.unmeasured:
        held = LOG_THROTTLE.due(("unmeasured", spec.flavor.flavorid))
        LOG.log(
            logging.DEBUG if held is None else logging.WARNING,
            "The search for flavor %s has taken all steps of one pass over hosts: %d hosts were "
            "judged without their loss for later servers, and come after the others of their "
            "level%s",
            spec.flavor.flavorid,
            work.unmeasured,
            format_held_back(held or 0),
        )


def log_rejected_hosts(
    misses: Mapping[Any, DeviceMiss],
    views: Mapping[Any, HostView],
    spec: objects.RequestSpec,
    passed: int,
) -> None:
    """Log why hosts are left out, one line for each reason.

    :param passed: hosts that are left; if there are none, no line is held back.
    """
    hosts_by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for host, miss in misses.items():
        hosts_by_reason[_whole_reason_of(miss, views.get(host))].append(
            f"{host.host}, {host.nodename}"
        )
    often = sorted(hosts_by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    for number, (text, names) in enumerate(often):
        held = LOG_THROTTLE.due(("rejects", spec.flavor.flavorid, text)) if passed else 0
        LOG.log(
            logging.DEBUG if held is None or number >= _FEW else logging.INFO,
            "HpcTopologyFilter rejects %s for flavor %s%s: %s",
            join_first(names, _NAMED, "; "),
            spec.flavor.flavorid,
            format_held_back(held or 0),
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


def _whole_reason_of(miss: DeviceMiss, view: HostView | None) -> str:
    text = miss.operator
    if view is not None and view.unusable:
        text += f"; not usable: {join_first(view.unusable, 4, '; ')}"
    if view is not None and view.withheld:
        shown = [f"{address} ({reason})" for address, reason in sorted(view.withheld.items())]
        number = "" if view.counted else f"{len(shown)} "
        text += f"; {number}withheld by the node: {', '.join(shown[:4])}"
    return text
