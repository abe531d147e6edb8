# SPDX-License-Identifier: Apache-2.0
"""The guest domains of a node, with the PCI devices and shared memory of each.

All of libvirt's domains are read: also those that are not servers of Nova,
that are shut off or that are saved, because each of them may be started at any
time. An unreadable domain counts as unknown, which is never the same as empty.

This module does not import libvirt. Its callers pass their connection's domains, which are
``virDomain`` of libvirt-python, or objects with the same methods.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
from lxml import etree

from nova_hpc.tenancy.segments import segment_record
from nova_hpc.tenancy.segments.segment_record import SegmentUse
from nova_hpc.topology import block_devices
from nova_hpc.topology.files import FileTree
from nova_hpc.topology.model import AddressError, normalise_address

#: ``VIR_CONNECT_LIST_DOMAINS_ACTIVE | VIR_CONNECT_LIST_DOMAINS_INACTIVE``.
LIST_ALL: Final = 3
#: ``VIR_DOMAIN_XML_INACTIVE``: the definition for the domain's next start.
_NEXT: Final = 2

#: ``virDomainState`` of libvirt.
_PAUSED: Final = (3, 7)
_SHUT_OFF: Final = 5

_LONGEST_NAME: Final = 100
#: The devices below ``<devices>`` that QEMU accesses through VFIO -> their type.
_PASSED: Final = {"hostdev": "pci", "interface": "hostdev"}


class DomainCondition(enum.Enum):
    """The condition of a domain; the value is the text for operators."""

    RUNNING = "running"
    PAUSED = "paused"
    SAVED = "saved"
    SHUT_OFF = "shut off"
    UNKNOWN = "in an unknown state"


@attrs.frozen
class PassedFunctions:
    """The host's PCI functions in one form of a domain, by normalised address, and its files."""

    #: Functions of aliases, and the NVMe disks that QEMU drives itself.
    hostdevs: frozenset[str] = frozenset()
    #: Functions of direct ports.
    interfaces: frozenset[str] = frozenset()
    #: Why it may have others, too; None if the list is complete.
    problem: str | None = None
    #: Files of the host that the domain maps as memory.
    segments: tuple[SegmentUse, ...] = ()
    #: Paths of the files and block devices of the host that are its disks.
    disks: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        """All known PCI functions of the guest domain."""
        return self.hostdevs | self.interfaces


@attrs.frozen
class NodeGuestDomain:
    """One guest domain of libvirt, with the PCI devices it has now and after its next start."""

    uuid: str
    name: str
    condition: DomainCondition
    #: Devices of the running guest; empty while it is shut off or saved.
    live: PassedFunctions = PassedFunctions()
    #: Devices of its next start.
    following: PassedFunctions = PassedFunctions()
    #: The host's PCI functions behind its present and future block devices.
    behind_disks: frozenset[str] = frozenset()

    @property
    def addresses(self) -> frozenset[str]:
        """All functions that it has or will have."""
        return self.live.all | self.following.all | self.behind_disks

    @property
    def problem(self) -> str | None:
        """The reason why it may have other devices, too; None if the list is complete."""
        return self.live.problem or self.following.problem

    def __str__(self) -> str:
        return f"guest domain {self.name} ({self.condition.value})"


@attrs.frozen
class NodeGuestDomains:
    """All guest domains of a node at one moment, or the problem of reading them."""

    domains: tuple[NodeGuestDomain, ...] = ()
    #: Why there may be other domains; None if the list is complete.
    problem: str | None = None

    def having(self, address: str) -> NodeGuestDomain | None:
        """Return the domain that has a device; a running domain comes first."""
        holding_domains = [domain for domain in self.domains if address in domain.addresses]
        holding_domains.sort(key=lambda domain: address not in domain.live.all)
        return holding_domains[0] if holding_domains else None

    def of(self, uuid: str) -> NodeGuestDomain | None:
        """Return the guest domain of the server with *uuid*; None if it has none."""
        return next((domain for domain in self.domains if domain.uuid == uuid), None)

    @property
    def unknown(self) -> str | None:
        """The reason why any device may be in a domain; None if the domains are complete."""
        if self.problem is not None:
            return self.problem
        for domain in self.domains:
            if domain.problem is not None:
                return f"{domain} cannot be read: {domain.problem}"
        return None


class DomainHandle(Protocol):
    """Interface with the methods of libvirt's ``virDomain`` that this module uses."""

    def name(self) -> str:
        """Return the domain's name."""

    def UUIDString(self) -> str:
        """Return the domain's UUID as text."""

    def info(self) -> Any:
        """Return the domain's information; the first item is its state."""

    def hasManagedSaveImage(self, flags: int) -> int:
        """Return 1 if the domain's memory is saved in a file of libvirt, 0 if not."""

    def XMLDesc(self, flags: int) -> str:
        """Return the domain's XML text."""


def read_guest_domains(
    listing: Callable[[], Iterable[DomainHandle]],
    gone: Callable[[Exception], bool],
    root: Path = Path("/"),
) -> NodeGuestDomains:
    """Read all domains. Never raises.

    :param listing: lists all domains, as ``listAllDomains(LIST_ALL)`` does.
    :param gone: returns whether an error means that the domain no longer exists.
    :param root: the folder that contains ``sys`` and ``dev``.
    """
    tree = FileTree(root)
    try:
        handles = list(listing())
    except Exception as error:
        return unknown_guest_domains(f"{type(error).__name__}: {error}")
    return NodeGuestDomains(
        tuple(domain for handle in handles if (domain := _read_guest_domain(handle, gone, tree)))
    )


def unknown_guest_domains(reason: str) -> NodeGuestDomains:
    """Return the result for the case that no domain can be read."""
    return NodeGuestDomains(
        problem=f"libvirt does not say which guest domains there are ({reason})"
    )


def _read_guest_domain(
    handle: DomainHandle, gone: Callable[[Exception], bool], tree: FileTree
) -> NodeGuestDomain | None:
    """Read one domain; return None if it has ended."""
    uuid, name = "", "without a name"
    try:
        uuid = str(handle.UUIDString()).lower()
        name = _printable_domain_text(str(handle.name())) or name
        state = handle.info()[0]
        if state != _SHUT_OFF:
            condition = DomainCondition.PAUSED if state in _PAUSED else DomainCondition.RUNNING
            live = parse_passed_functions(handle.XMLDesc(0))
        else:
            saved = handle.hasManagedSaveImage(0)
            condition = DomainCondition.SAVED if saved else DomainCondition.SHUT_OFF
            live = PassedFunctions()
        following = parse_passed_functions(handle.XMLDesc(_NEXT))
        behind_disks = frozenset[str]().union(
            *(block_devices.functions_of_path(tree, path) for path in live.disks | following.disks)
        )
        return NodeGuestDomain(uuid, name, condition, live, following, behind_disks)
    except Exception as error:
        if gone(error):
            return None
        unreadable = PassedFunctions(
            problem=_printable_domain_text(f"{type(error).__name__}: {error}")
        )
        return NodeGuestDomain(uuid, name, DomainCondition.UNKNOWN, unreadable, unreadable)


def parse_passed_functions(xml: str) -> PassedFunctions:
    """Return the PCI functions in a domain's XML. Never raises: ``problem`` names an error."""
    try:
        parser = etree.XMLParser(resolve_entities=False, no_network=True, huge_tree=False)
        root = etree.fromstring(xml.encode(), parser)
    except (etree.XMLSyntaxError, ValueError, AttributeError) as error:
        return PassedFunctions(problem=_printable_domain_text(f"its XML is broken: {error}"))
    if root.tag != "domain":
        return PassedFunctions(problem="its XML is none of a domain")
    addresses: dict[str, set[str]] = {"hostdev": set(), "interface": set()}
    problem = None
    for kind, source in _passed_sources(root):
        try:
            addresses[kind].add(_parse_source_address(source))
        except (AddressError, ValueError) as error:
            problem = _printable_domain_text(
                f"the address of a passed-through device cannot be read: {error}"
            )
    return PassedFunctions(
        *(frozenset(addresses["hostdev"]), frozenset(addresses["interface"]), problem),
        segments=segment_record.read_segment_uses(root),
        disks=frozenset(
            path
            for source in root.iterfind("devices/disk//source")
            if (path := source.get("dev") or source.get("file") or "").startswith("/")
        ),
    )


def _passed_sources(root: Any) -> Iterator[tuple[str, Any]]:
    for kind, type_ in _PASSED.items():
        for element in root.iterfind(f"devices/{kind}[@type='{type_}']"):
            yield kind, element.find("source/address")
    # QEMU itself drives such a disk, or its backing device, through VFIO.
    for element in root.iterfind("devices/disk//source[@type='pci']"):
        yield "hostdev", element.find("address")


def _parse_source_address(source: Any) -> str:
    """Parse an address like libvirt: hexadecimal or decimal numbers; a missing one is 0.

    :raises ValueError: there is no address, or a part is not a number.
    :raises AddressError: the numbers are out of range for a PCI address.
    """
    if source is None:
        raise ValueError("there is none")
    parts = [int(source.get(key, "0"), 0) for key in ("domain", "bus", "slot", "function")]
    return normalise_address("{:04x}:{:02x}:{:02x}.{:x}".format(*parts))


def _printable_domain_text(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)[
        :_LONGEST_NAME
    ]
