# SPDX-License-Identifier: Apache-2.0
"""Compares the accounts of one server: request, scheduler, libvirt and guest. Pure functions.

A device is followed from one account to the next. Placement names a provider, Nova's record names a
function below it, and libvirt's domain names a source address. The guest reports an identity: the
size of a GPU stand-in's memory, or the MAC of a virtual function. The node has the identity of each
of its addresses. No account replaces another one.

The distance of two devices is computed by the same rules on both sides: from the host's inventory,
and from the guest's own sysfs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import attrs

from nova_hpc.topology import function_places
from nova_hpc.topology.cpuset import parse_list
from nova_hpc.topology.model import NumaNode, PciFunction
from nova_hpc_common.level import Distance, Level, Location, common_level, distance_between
from nova_hpc_lab.evidence import Evidence, HostDevice, identity
from nova_hpc_lab.node import GuestReport

_MIB = 1024  # KiB
#: Least part of the flavor's memory that a guest counts: the kernel reserves some before.
_LEAST_MEMORY = 0.75


@attrs.frozen
class Check:
    """One comparison of the accounts of a server, and its outcome."""

    what: str
    #: The disagreement; empty if there is none.
    trouble: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the accounts agree: the check found no trouble."""
        return not self.trouble


def compare(evidence: Evidence) -> tuple[Check, ...]:
    """Compare all accounts of a server, in the order in which a request travels."""
    checks = {
        "the devices are those that the flavor asks for": _asked,
        "Nova's records are what Placement allocated": _allocated,
        "libvirt's domain has exactly the recorded devices": _attached,
        "the guest has exactly these devices, by their identities": _identities,
        "each identity is where the shape put it": _planned,
        "the devices are as close as the flavor asks for": _affinity,
        "the node's stored decision says the same": _decision,
        "every vCPU is pinned next to the devices": _cpus,
        "emulator threads stay off the pinned CPUs": _emulator,
        "the memory is in hugepages next to the devices": _memory,
        "the guest has the CPUs and the memory of the flavor": _size,
        "the guest's drivers hold its virtual functions": _drivers,
        "the guest's own nova-hpc-guest check finds what the cloud promised": _checked,
    }
    return tuple(Check(what, "; ".join(find(evidence))) for what, find in checks.items())


def _asked(evidence: Evidence) -> Iterator[str]:
    got = Counter(
        evidence.node[record.address].role if record.address in evidence.node else "unknown"
        for record in evidence.records
    )
    want = Counter(dict(evidence.asked.devices))
    if got != want:
        yield f"asked for {_counted(want)}, got {_counted(got)}"


def _allocated(evidence: Evidence) -> Iterator[str]:
    recorded = Counter(record.provider for record in evidence.records)
    allocated = Counter({key: count for key, count in evidence.allocation.items() if count})
    if recorded != allocated:
        yield f"Placement has {_counted(allocated)}, Nova has {_counted(recorded)}"
    for record in evidence.records:
        device = evidence.node.get(record.address)
        if device is not None and device.provider != record.provider:
            yield (
                f"{record.address} belongs to {device.provider}, but Nova records it below"
                f" {record.provider}"
            )


def _attached(evidence: Evidence) -> Iterator[str]:
    recorded = Counter(record.address for record in evidence.records)
    attached = Counter(evidence.domain.hostdevs)
    if recorded != attached:
        yield f"Nova has {_counted(recorded)}, the domain has {_counted(attached)}"


def _identities(evidence: Evidence) -> Iterator[str]:
    expected = Counter(
        _identity(evidence, record.address, record.address) for record in evidence.records
    )
    reported = Counter(f"{one.ids} {one.identity}" for one in evidence.guest.devices)
    if expected != reported:
        yield f"expected {_counted(expected)}, the guest reports {_counted(reported)}"
    known = Counter(device.identity for device in evidence.node.values())
    for one, count in known.items():
        # With equal identities, the comparison above would prove nothing.
        if count > 1:
            yield f"{count} devices of the node have the identity {one}"


def _identity(evidence: Evidence, address: str, unknown: str) -> str:
    device = evidence.node.get(address)
    return unknown if device is None else f"{device.ids} {device.identity}"


def _planned(evidence: Evidence) -> Iterator[str]:
    for device in _devices(evidence):
        numa = evidence.planned.get(device.identity)
        if numa is None:
            yield f"the shape has no device with {device.identity}"
        elif numa != device.location.numa:
            yield (
                f"{device.identity} is at NUMA node {device.location.numa}, the shape put it"
                f" at {numa}"
            )


def _affinity(evidence: Evidence) -> Iterator[str]:
    reached = _reached(evidence)
    if reached > evidence.asked.level:
        yield f"asked for {evidence.asked.level.word}, got {reached.word}"


def _decision(evidence: Evidence) -> Iterator[str]:
    decision = evidence.decision
    if decision is None:
        yield "there is none"
        return
    if decision.asked is not evidence.asked.level:
        yield f"it says {decision.asked.word} was asked for, not {evidence.asked.level.word}"
    reached = _reached(evidence)
    if decision.reached is not reached:
        yield f"it says {decision.reached.word} was reached, the node's inventory {reached.word}"


def _reached(evidence: Evidence) -> Level:
    return common_level(device.location for device in _devices(evidence))


def _cpus(evidence: Evidence) -> Iterator[str]:
    pins = evidence.domain.pins
    if set(pins) != set(range(evidence.asked.vcpus)):
        yield f"{len(pins)} of {evidence.asked.vcpus} vCPUs are pinned"
    near = frozenset(
        cpu for numa in _numa_nodes(evidence) for cpu in evidence.cpus.get(numa, frozenset())
    )
    used: set[int] = set()
    for vcpu, cpus in sorted(pins.items()):
        if len(cpus) != 1:
            yield f"vCPU {vcpu} may run on {len(cpus)} CPUs"
        if not cpus <= near:
            yield f"vCPU {vcpu} is on {_listed(cpus)}, near the devices are {_listed(near)}"
        if used & cpus:
            yield f"vCPU {vcpu} shares its CPU with another"
        used |= cpus


def _emulator(evidence: Evidence) -> Iterator[str]:
    pinned = frozenset(cpu for cpus in evidence.domain.pins.values() for cpu in cpus)
    if not evidence.domain.emulator:
        yield "they may run anywhere"
    elif shared := evidence.domain.emulator & pinned:
        yield f"they share {_listed(shared)}"


def _memory(evidence: Evidence) -> Iterator[str]:
    asked, domain = evidence.asked, evidence.domain
    near = _numa_nodes(evidence)
    if domain.page_kib != asked.page_kib:
        yield f"the domain has pages of {domain.page_kib} KiB, asked were {asked.page_kib} KiB"
    if domain.memory_nodes != near:
        yield (
            f"the domain's memory is at NUMA nodes {_listed(domain.memory_nodes)}, the devices"
            f" at {_listed(near)}"
        )
    need = asked.memory_mib * _MIB // asked.page_kib
    held = sum(count for numa, count in evidence.pages.items() if numa in near)
    stray = sum(count for numa, count in evidence.pages.items() if numa not in near)
    # Passthrough pins all of a guest's memory, so every page is allocated.
    if held < need or stray:
        yield f"QEMU holds {held} pages near the devices and {stray} elsewhere, needed are {need}"


def _size(evidence: Evidence) -> Iterator[str]:
    asked, guest = evidence.asked, evidence.guest
    if guest.cpus != asked.vcpus:
        yield f"{guest.cpus} CPUs, asked were {asked.vcpus}"
    most = asked.memory_mib * _MIB
    if not _LEAST_MEMORY * most <= guest.memory_kib <= most:
        yield f"{guest.memory_kib // _MIB} MiB, asked were {asked.memory_mib}"


def _drivers(evidence: Evidence) -> Iterator[str]:
    for device in evidence.guest.devices:
        if device.identity.startswith("MAC ") and device.driver is None:
            yield f"{device.address} has no driver"


def _checked(evidence: Evidence) -> Iterator[str]:
    status = evidence.guest.check_status
    if status is None:
        yield "it did not run"
    elif status:
        yield f"exit status {status}: {'; '.join(evidence.guest.check) or 'no output'}"


def _devices(evidence: Evidence) -> list[HostDevice]:
    return [
        evidence.node[record.address]
        for record in evidence.records
        if record.address in evidence.node
    ]


def _numa_nodes(evidence: Evidence) -> frozenset[int]:
    places = (device.location.numa for device in _devices(evidence))
    return frozenset(numa for numa in places if numa is not None)


def _counted(items: Counter[str]) -> str:
    return ", ".join(f"{count} x {item}" for item, count in sorted(items.items())) or "nothing"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers))) or "none"


@attrs.frozen
class Pair:
    """Two devices, by their identities, and their distance on the host and in the guest."""

    one: str
    other: str
    host: Distance
    guest: Distance

    def __str__(self) -> str:
        return f"{self.one} - {self.other}: host {self.host.name}, guest {self.guest.name}"


def guest_places(report: GuestReport) -> dict[str, Location]:
    """Return address -> place, for every function of a guest except bridges."""
    nodes = [
        NumaNode(id=cell.number, cpus=parse_list(cell.cpus) if cell.cpus else frozenset())
        for cell in report.cells
    ]
    raws = [
        function_places.Raw(
            function=PciFunction(
                address=function.address,
                class_code=function.device_class,
                root=function.path[0] if function.path else None,
            ),
            above=function.path[1:-1],
            is_bridge=function.device_class.startswith(function_places.BRIDGE_CLASS),
            # In a guest, a negative number means no cell, even if there is only one cell.
            numa_node=None if function.numa_node < 0 else function.numa_node,
        )
        for function in report.functions
    ]
    found, _ = function_places.place_functions(raws, nodes, {})
    told = {each.address: each.numa_node >= 0 for each in report.functions}
    return {
        function.address: attrs.evolve(
            function.location, numa=function.numa_node if told[function.address] else None
        )
        for function in found
        if not function.is_bridge
    }


def pairs(given: Iterable[HostDevice], report: GuestReport) -> list[Pair]:
    """List every pair of the server's devices, with its distance on the host and in the guest.

    :param given: the server's devices on the host.
    :raises KeyError: the guest does not report one of them.
    """
    places = guest_places(report)
    seen: Mapping[str, Location] = {
        identity(function.bars, function.macs): places[function.address]
        for function in report.functions
        if function.address in places
    }
    return [
        Pair(
            one=one.identity,
            other=other.identity,
            host=distance_between(one.location, other.location),
            guest=distance_between(seen[one.identity], seen[other.identity]),
        )
        for one, other in itertools.combinations(
            sorted(given, key=lambda device: device.address), 2
        )
    ]
