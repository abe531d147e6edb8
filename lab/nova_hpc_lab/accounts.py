"""Accounts of one server: what was asked, what each part of the cloud says, the guest's own."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from nova_hpc.topology.level import Level, Location
from nova_hpc.wire.decision import Decision


@attrs.frozen
class Asked:
    """What the flavor says."""

    #: Alias -> number of devices.
    devices: Mapping[str, int]
    level: Level
    vcpus: int
    memory_mib: int
    page_kib: int


@attrs.frozen
class HostDevice:
    """A function of the node that can be given to a server, as the node sees it."""

    address: str
    ids: str
    role: str
    #: Address of its resource provider: the physical function's for a VF.
    provider: str
    location: Location
    #: By which a guest can tell which one it got, e.g. ``MAC 52:54:00:01:00:00``.
    identity: str


@attrs.frozen
class Record:
    """A device that Nova's database gives to the server."""

    address: str
    provider: str


@attrs.frozen
class Domain:
    """What libvirt's domain says."""

    hostdevs: tuple[str, ...]
    #: vCPU -> host CPUs.
    pins: Mapping[int, frozenset[int]]
    emulator: frozenset[int]
    #: Host NUMA nodes of its memory, where that is strict.
    memory_nodes: frozenset[int]
    page_kib: int | None


@attrs.frozen
class GuestDevice:
    """A passed-through function as the guest reports it."""

    address: str
    ids: str
    driver: str | None
    identity: str


@attrs.frozen
class Guest:
    """What the guest reports of itself."""

    devices: tuple[GuestDevice, ...]
    cpus: int
    memory_kib: int
    #: What its ``nova-hpc-guest check`` printed, and its exit status; None: it did not run.
    check: tuple[str, ...]
    check_status: int | None


@attrs.frozen
class Evidence:
    """Everything that is known of one server, from each account."""

    asked: Asked
    #: What the shape promises: identity -> NUMA node.
    planned: Mapping[str, int]
    #: All assignable functions of the node by address.
    node: Mapping[str, HostDevice]
    #: NUMA node -> its CPUs.
    cpus: Mapping[int, frozenset[int]]
    #: Provider address -> number of devices that Placement has allocated.
    allocation: Mapping[str, int]
    records: tuple[Record, ...]
    domain: Domain
    #: NUMA node -> hugepages of ``asked.page_kib`` that the server's QEMU holds there.
    pages: Mapping[int, int]
    guest: Guest
    #: What the node stored when it claimed the devices.
    decision: Decision | None
