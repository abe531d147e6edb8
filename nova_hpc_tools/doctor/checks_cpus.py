# SPDX-License-Identifier: Apache-2.0
"""Faults of nova-compute's sets of CPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from nova_hpc.topology import cpuset
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc_tools.adopt import readable_node
from nova_hpc_tools.site import configured, settings
from nova_hpc_tools.site.cures import (
    RESTART_COMPUTE,
    WRITE,
    CuredOption,
    DoctorCure,
    OptionPlace,
    place_option,
)
from nova_hpc_tools.site.findings import DoctorFinding

_SHARED, _DEDICATED = settings.CPU_SETS
_RESTART: Final = DoctorCure.of(", and ", RESTART_COMPUTE, ".")
_WRITE: Final = DoctorCure.of(WRITE, _RESTART)


def check_cpu_sets(
    node: Node, cpu_sets: Mapping[str, str], offered: Sequence[PciFunction], nova_switches: bool
) -> Iterator[DoctorFinding]:
    """Find faults in the CPU sets of ``[compute]``.

    :param cpu_sets: option of ``[compute]`` -> its value.
    :param offered: the functions that servers can get.
    :param nova_switches: Nova switches dedicated CPUs off while no server has them.
    """
    unread = readable_node.find_unread_cpus(node, offered)
    if unread is not None:
        text, _, cure = unread.partition(": ")
        yield DoctorFinding(
            "cpus-unread", f"{text[:1].upper()}{text[1:]}.", cure or "See the kernel's log: dmesg"
        )
    sets: dict[str, frozenset[int]] = {}
    for name, text in cpu_sets.items():
        cpus = configured.parse_cpus(text)
        if cpus is None:
            yield DoctorFinding(
                "cpus-unreadable",
                f"[compute]{name} is {text!r}, no set of CPUs.",
                DoctorCure.of("Write ", _place_example(name), _RESTART),
            )
        else:
            sets[name] = cpus
    if offered and _DEDICATED not in cpu_sets:
        yield DoctorFinding("cpus-none", f"[compute]{_DEDICATED} is not set.", _WRITE)
    for name, cpus in sets.items():
        known = node.cpus | node.unplaced_cpus
        if known and node.cpus_unread is None and cpus - known:
            away = cpuset.format_list(cpus - known)
            yield DoctorFinding(
                "cpus-absent",
                f"[compute]{name} has CPUs that the host has not: {away}.",
                DoctorCure.of(f"Take {away} out of ", place_option("compute", name), _RESTART),
            )
        off = cpus & (node.offline_cpus | node.unplaced_cpus)
        if off and (name == _SHARED or not nova_switches):
            away = cpuset.format_list(off)
            yield DoctorFinding(
                "cpus-offline",
                f"[compute]{name} has CPUs that are offline: {away}.",
                DoctorCure.of(
                    "echo 1 > /sys/devices/system/cpu/cpuN/online of each, at boot before "
                    f"nova-compute; or take {away} out of ",
                    place_option("compute", name),
                    _RESTART,
                ),
            )
    shared, dedicated = sets.get(_SHARED, frozenset()), sets.get(_DEDICATED, frozenset())
    if shared & dedicated:
        both = cpuset.format_list(shared & dedicated)
        yield DoctorFinding(
            "cpus-overlap",
            f"CPUs {both} are in [compute]{_SHARED} and in [compute]{_DEDICATED}.",
            DoctorCure.of(f"Take {both} out of one of ", _place_sets("them"), _RESTART),
        )
    else:
        yield from _check_split_cores(node, shared, dedicated)
    yield from _check_distant_cpus(node, offered, dedicated)


def _place_example(name: str) -> OptionPlace:
    option = CuredOption("compute", name, example="1-7,9-15")
    return OptionPlace((option,), called=f"{option.text} in the file that has it")


def _place_sets(called: str) -> OptionPlace:
    options = tuple(CuredOption("compute", name) for name in settings.CPU_SETS)
    return OptionPlace(options, called=called)


def _check_split_cores(
    node: Node, shared: frozenset[int], dedicated: frozenset[int]
) -> Iterator[DoctorFinding]:
    """Find the first core with both dedicated threads and others."""
    for numa in node.numa_nodes:
        for core in numa.smt_siblings:
            if core & dedicated and core - dedicated:
                threads = cpuset.format_list(core)
                other = "shared" if core & shared else "the host's"
                yield DoctorFinding(
                    "cpus-split",
                    f"Of the threads {threads} of one core, "
                    f"{cpuset.format_list(core & dedicated)} are dedicated, the others {other}.",
                    DoctorCure.of(
                        f"Put {threads} into one of ",
                        _place_sets(f"[compute]{_SHARED} and {_DEDICATED}"),
                        _RESTART,
                    ),
                )
                return  # one finding is enough; the next run examines the corrected sets


def _check_distant_cpus(
    node: Node, offered: Sequence[PciFunction], dedicated: frozenset[int]
) -> Iterator[DoctorFinding]:
    """Find NUMA nodes with offered devices and without dedicated CPUs."""
    homes = {function.numa_node for function in offered}
    for numa in node.numa_nodes:
        if dedicated and numa.id in homes and numa.cpus and not numa.cpus & dedicated:
            yield DoctorFinding(
                "cpus-away",
                f"NUMA node {numa.id} has devices, and none of its CPUs is dedicated.",
                DoctorCure.of(
                    f"Add some of {cpuset.format_list(numa.cpus)} to ",
                    place_option("compute", _DEDICATED),
                    _RESTART,
                ),
            )
