"""Pure transforms of the domain that Nova has written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from lxml import etree

from nova_hpc.topology.cpuset import format_list


def housekeeping(
    online: Collection[int],
    dedicated: Collection[int],
    shared: Collection[int],
    cells: Mapping[int, Collection[int]],
    nodes: Iterable[int],
) -> frozenset[int]:
    """The host CPUs for the emulator threads of a guest with pinned vCPUs.

    :param online: CPUs that are online.
    :param dedicated: ``[compute]cpu_dedicated_set``; never used.
    :param shared: ``[compute]cpu_shared_set``; if not empty, only these, as
        Nova does for ``hw:emulator_threads_policy=share``.
    :param cells: host NUMA node -> its CPUs.
    :param nodes: the NUMA nodes of the guest; their CPUs are preferred.
    :returns: empty when the host has none to spare.
    """
    if not dedicated:
        return frozenset()  # any CPU may be pinned then
    spare = (set(shared) or set(online)) & set(online) - set(dedicated)
    near = {cpu for node in nodes for cpu in cells.get(node, ())}
    return frozenset(spare & near or spare)


def keep_emulator_off(xml: str, cpus: Collection[int]) -> str:
    """Pin emulator and I/O threads to *cpus*, where any vCPU has a CPU of its own.

    Only ``cputune/emulatorpin`` and ``cputune/iothreadpin`` are changed; a
    domain without pinned vCPUs, and any with an empty *cpus*, stays as it is.
    """
    root = etree.fromstring(xml)
    pins = root.findall("cputune/vcpupin")
    if not cpus or not any(pin.get("cpuset", "").isdigit() for pin in pins):
        return xml
    text = format_list(cpus)
    for element in root.iterfind("cputune/emulatorpin"):
        element.set("cpuset", text)
    for element in root.iterfind("cputune/iothreadpin"):
        element.set("cpuset", text)
    return str(etree.tostring(root, encoding="unicode"))
