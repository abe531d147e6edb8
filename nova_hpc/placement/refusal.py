# SPDX-License-Identifier: Apache-2.0
"""What the user of a refused server reads: the wish that is not met, and what may help.

Nova's scheduler keeps the reason from users on purpose ("we don't want to give away too
much information about our actual environment", scheduler/manager.py:538-540 of release
34). These sentences repeat what the flavor asks for and name the wish that no host
meets; how much there is, and where, is not in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nova_hpc.placement.apart import GROUP_POLICY
from nova_hpc.placement.flavor import (
    AFFINITY,
    AFFINITY_POLICY,
    GROUP,
    GUEST_TOPOLOGY,
    NUMA_POLICY,
    NVLINK,
    goes_with,
    numa_policies,
)
from nova_hpc.placement.model import Miss, Policy, Request, Unmet, Want
from nova_hpc.placement.solver.reasons import PLACES
from nova_hpc.topology.level import Level

#: The next level that differs for most hosts.
_WIDER: Final = {
    Level.SWITCH: Level.NUMA,
    Level.ROOT: Level.NUMA,
    Level.NUMA: Level.SOCKET,
    Level.SOCKET: Level.HOST,
}


#: Where no host may be asked for devices.
UNUSABLE: Final = "No host with such devices can be used at this moment; ask the cloud's operator"


def nearest(misses: Iterable[Miss]) -> Unmet:
    """The wish that the host which came nearest does not meet."""
    return max((miss.unmet for miss in misses), default=Unmet.OTHER)


def sentence(request: Request, unmet: Unmet, all_asked: bool = True) -> str:
    """E.g. ``No host has 4 gpu under one switch; hpc:affinity numa may help``.

    :param all_asked: False: there are hosts that cannot be used, whatever they have.
    """
    if unmet is Unmet.OTHER:
        return UNUSABLE
    usable = "" if all_asked else " that can be used"
    cure = f"{' or '.join(_help(request, unmet))} may help"
    if unmet is Unmet.KNOWN:
        devices = _devices(request.wants)
        return f"No host with {devices} free{usable} says on which NUMA node they are; {cure}"
    return f"No host{usable} has {_wish(request, unmet)}; {cure}"


def unplaced(wants: Iterable[Want]) -> str:
    """What is said where Placement knows no host with all that the flavor asks for."""
    return (
        f"No host has {_devices(wants)} free together with the CPUs, memory and disk of "
        "the flavor; fewer devices may help"
    )


def _wish(request: Request, unmet: Unmet) -> str:
    if unmet is Unmet.DEVICES:
        return f"{_devices(request.wants)} free"
    names = {want.key: want.name for want in request.wants}
    counts: dict[str, int] = {}
    for key, count in request.groups[0].counts.items():
        counts[names[key]] = counts.get(names[key], 0) + count
    # A flavor without devices has groups of ports alone.
    text = " and ".join(f"{count} {name}" for name, count in counts.items()) or "room"
    several = len(request.groups) > 1
    if several:
        text = f"{len(request.groups)} groups of {text}"
    level = request.level if request.policy is Policy.REQUIRED else Level.HOST
    if request.on_cells:
        level = min(level, Level.NUMA)
    text += f", each {PLACES[level]}" if several else f" {PLACES[level]}"
    if unmet is Unmet.PORTS:
        text += " with an adapter's function for each of its ports"
    if unmet is Unmet.NVLINK:
        text += f", {'each ' if several else ''}a whole NVLink set"
    if unmet is Unmet.BESIDE:
        pages = " pages" if any(cell.page_kib for cell in request.cells) else ""
        text += f"{',' if several else ''} beside free CPUs and memory{pages}"
    return text


def _devices(wants: Iterable[Want]) -> str:
    totals: dict[str, int] = {}
    for want in wants:
        totals[want.name] = totals.get(want.name, 0) + want.count
    return " and ".join(f"{count} {name}" for name, count in totals.items())


def _help(request: Request, unmet: Unmet) -> list[str]:
    """What a user can ask for instead, the least change first."""
    if unmet is Unmet.DEVICES:
        return ["fewer devices", *([f"{GROUP_POLICY} none"] if request.apart else [])]
    found = [f"{GROUP_POLICY} none"] if request.apart else []
    if unmet is Unmet.KNOWN:
        # A wider level is not met either, as long as nobody says where the devices are.
        return [_preferred(request), *found]
    if unmet is Unmet.NVLINK:
        found.append(f"{NVLINK} preferred")
    if request.policy is Policy.REQUIRED and request.level in _WIDER:
        wider = _WIDER[request.level]
        found.append(_changed(request, f"{AFFINITY} {wider.word}", wider, request.policy))
        found.append(_preferred(request))
    elif request.on_cells:
        found.append(f"{NUMA_POLICY} preferred")
    if unmet is Unmet.TOGETHER and len(request.groups) == 1 and request.groups[0].size > 1:
        found.append(f"smaller groups ({GROUP})")
    if unmet is Unmet.BESIDE:
        found.append("fewer CPUs")
    return found[:3] or ["fewer devices"]


def _preferred(request: Request) -> str:
    return _changed(request, f"{AFFINITY_POLICY} preferred", request.level, Policy.PREFERRED)


def _changed(request: Request, change: str, level: Level, policy: Policy) -> str:
    """The change, with those of other keys without which the flavor would be refused."""
    more = []
    effective = request.numa_policy
    if effective is not None and not goes_with(level, policy, effective, bool(request.cells)):
        more.append(f"{NUMA_POLICY} {numa_policies(level, policy)[0][0]}")
    off_cells = policy is Policy.PREFERRED or level > Level.NUMA
    if request.mirror and request.cells and off_cells:
        more.append(f"{GUEST_TOPOLOGY} numa")
    return f"{change} with {' and '.join(more)}" if more else change
