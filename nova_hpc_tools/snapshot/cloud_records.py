# SPDX-License-Identifier: Apache-2.0
"""The records of a cloud's devices in Nova's databases and in Placement. Data only."""

from __future__ import annotations

import attrs


@attrs.frozen
class RecordedDevice:
    """A device that Nova gives through Placement, or an adapter whose functions are so given."""

    #: PCI address.
    address: str
    #: UUID of its provider, as the node has recorded it.
    provider: str
    #: How many devices of the provider Nova's records have.
    count: int = 1


@attrs.frozen
class PciProvider:
    """A resource provider of PCI devices in Placement."""

    uuid: str
    #: Name of the node, by the provider's own name; PCI address.
    node: str
    address: str
    resource_class: str = ""
    total: int = 0
    reserved: int = 0


@attrs.frozen
class CyborgProvider:
    """A resource provider that Cyborg has made below a node."""

    node: str
    name: str


@attrs.frozen
class Leftover:
    """An allocation that nobody has a right to."""

    consumer: str
    node: str
    addresses: tuple[str, ...]
    #: The command against it; a part of a sentence.
    cure: str


@attrs.frozen
class RecordedHost:
    """A compute node."""

    #: As Nova's services and its aggregates call it; as Placement does.
    host: str
    node: str
    devices: tuple[RecordedDevice, ...] = ()
    #: Physical networks of its devices for Neutron's ports, as far as some are free.
    networks: frozenset[str] = frozenset()
    #: None of those devices is in use, so these are all its networks.
    idle: bool = True
    #: It runs this project's driver.
    ours: bool = False
    #: It does not, and its devices have tags.
    stock: bool = False
    #: Its leaf; whether the map knows it at all; what makes no sense of it.
    leaf: str | None = None
    placed: bool = False
    contradictions: tuple[str, ...] = ()
    #: Why what it says of itself cannot be read; None: it can.
    unread: str | None = None
    #: It has no PCPU inventory, and Nova asks Placement for nothing else.
    lacks_dedicated_cpus: bool = False


@attrs.frozen
class ServiceAlias:
    """A name under which flavors ask for devices, as this machine's services have it."""

    name: str
    resource_class: str


@attrs.frozen
class CloudRecords:
    """The records of a cloud in Nova and in Placement."""

    hosts: tuple[RecordedHost, ...] = ()
    providers: tuple[PciProvider, ...] = ()
    cyborg: tuple[CyborgProvider, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    aliases: tuple[ServiceAlias, ...] = ()
    #: Of Nova's user in Placement; None: unknown.
    roles: frozenset[str] | None = None
    #: What could not be read, one sentence each.
    problems: tuple[str, ...] = ()
    #: All nodes are there, and all providers.
    complete: bool = True
