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
from nova_hpc.placement.flavor import AFFINITY, AFFINITY_POLICY, GROUP, NUMA_POLICY, NVLINK
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


def nearest(misses: Iterable[Miss]) -> Unmet:
    """The wish that the host which came nearest does not meet."""
    return max((miss.unmet for miss in misses), default=Unmet.OTHER)


def sentence(request: Request, unmet: Unmet) -> str:
    """E.g. ``No host has 4 gpu under one switch; hpc:affinity numa may help``."""
    if unmet is Unmet.OTHER:
        return "No host with such devices can be used at this moment; ask the cloud's operator"
    return f"No host has {_wish(request, unmet)}; {' or '.join(_help(request, unmet))} may help"


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
    if unmet is Unmet.NVLINK:
        found.append(f"{NVLINK} preferred")
    if request.policy is Policy.REQUIRED and request.level in _WIDER:
        found.append(f"{AFFINITY} {_WIDER[request.level].word}")
        found.append(f"{AFFINITY_POLICY} preferred")
    elif request.on_cells:
        found.append(f"{NUMA_POLICY} preferred")
    if unmet is Unmet.TOGETHER and len(request.groups) == 1 and request.groups[0].size > 1:
        found.append(f"smaller groups ({GROUP})")
    if unmet is Unmet.BESIDE:
        found.append("fewer CPUs")
    return found[:3] or ["fewer devices"]
