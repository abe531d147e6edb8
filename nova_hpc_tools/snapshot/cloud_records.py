# SPDX-License-Identifier: Apache-2.0
"""The records of a cloud's devices in Nova's databases and in Placement. Data only."""

from __future__ import annotations

import attrs


@attrs.frozen
class RecordedDevice:
    """A device in Nova's records that is given through Placement, or an adapter of such
    functions.
    """

    #: PCI address.
    address: str
    #: UUID of its provider in the node's records.
    provider: str
    #: The number of the provider's devices in Nova's records.
    count: int = 1


@attrs.frozen
class PciProvider:
    """A resource provider of PCI devices in Placement, with its amounts."""

    uuid: str
    #: Name of the node and PCI address, both from the provider's own name.
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
    """An allocation in Placement whose consumer has no right to it any more."""

    consumer: str
    node: str
    addresses: tuple[str, ...]
    #: The command that removes it, as a part of a sentence.
    cure: str


@attrs.frozen
class RecordedHost:
    """A compute node in the records of Nova, with its PCI devices and settings."""

    #: Its name in Nova's services and aggregates (host), and in Placement (node).
    host: str
    node: str
    devices: tuple[RecordedDevice, ...] = ()
    #: Physical networks of its free devices for Neutron's ports.
    networks: frozenset[str] = frozenset()
    #: None of these devices is in use, so *networks* is complete.
    idle: bool = True
    #: It runs this project's driver.
    ours: bool = False
    #: It does not run this project's driver, but its devices have tags.
    stock: bool = False
    #: Its leaf in the fabric map; whether the map contains it; contradictions about it in the map.
    leaf: str | None = None
    placed: bool = False
    contradictions: tuple[str, ...] = ()
    #: The reason why its own report cannot be read; None if it can.
    unread: str | None = None
    #: It has no PCPU inventory, although Nova requests only PCPUs from Placement.
    lacks_dedicated_cpus: bool = False


@attrs.frozen
class ServiceAlias:
    """A PCI alias in the settings of this machine's services, with its resource class."""

    name: str
    resource_class: str


@attrs.frozen
class CloudRecords:
    """The records of a cloud in Nova and Placement, for contradictions between them."""

    hosts: tuple[RecordedHost, ...] = ()
    providers: tuple[PciProvider, ...] = ()
    cyborg: tuple[CyborgProvider, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    aliases: tuple[ServiceAlias, ...] = ()
    #: Roles of Nova's user in Placement; None if unknown.
    roles: frozenset[str] | None = None
    #: Parts that could not be read, one sentence each.
    problems: tuple[str, ...] = ()
    #: It contains all nodes and all providers.
    complete: bool = True
