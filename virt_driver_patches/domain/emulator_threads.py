# SPDX-License-Identifier: Apache-2.0
"""Emulator and I/O threads leave the CPUs that are pinned to vCPUs.

Nova pins these threads to all CPUs of the guest's own cells, and so to the CPUs of its
vCPUs, unless the flavor sets ``hw:emulator_threads_policy`` (``_get_guest_numa_config``
and ``_get_numa_config_emulator_threads`` of nova/virt/libvirt/driver.py, 32 to 34).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from nova_hpc.topology.cpuset import format_list
from virt_driver_patches.domain.guest_domain import GuestDomainXml


def choose_housekeeping_cpus(
    online: Collection[int],
    dedicated: Collection[int],
    shared: Collection[int],
    cells: Mapping[int, Collection[int]],
    nodes: Iterable[int],
) -> frozenset[int]:
    """Return the host CPUs for the emulator threads of a guest with pinned vCPUs.

    :param online: CPUs that are online.
    :param dedicated: ``[compute]cpu_dedicated_set``; never used.
    :param shared: ``[compute]cpu_shared_set``; if not empty, only these, as
        Nova does for ``hw:emulator_threads_policy=share``.
    :param cells: host NUMA node -> its CPUs.
    :param nodes: the NUMA nodes of the guest; their CPUs are preferred.
    :returns: empty if the host has none to spare.
    """
    if not dedicated:
        return frozenset()  # any CPU may be pinned then
    spare = (set(shared) or set(online)) & set(online) - set(dedicated)
    near = {cpu for node in nodes for cpu in cells.get(node, ())}
    return frozenset(spare & near or spare)


def pin_emulator_threads(domain: GuestDomainXml, cpus: frozenset[int]) -> None:
    """Pin emulator and I/O threads to *cpus* if any vCPU has a CPU of its own.

    Only ``cputune/emulatorpin`` and ``cputune/iothreadpin`` change. A
    domain without pinned vCPUs is not changed, nor any domain if *cpus* is empty.
    """
    vcpus = domain.root.findall("cputune/vcpupin")
    if not cpus or not any(vcpu.get("cpuset", "").isdigit() for vcpu in vcpus):
        return
    for tag in ("emulatorpin", "iothreadpin"):
        for element in domain.edit().iterfind(f"cputune/{tag}"):
            element.set("cpuset", format_list(cpus))
