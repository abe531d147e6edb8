# SPDX-License-Identifier: Apache-2.0
"""What ``nova-hpc doctor`` finds: the checks, how bad each is and why it matters. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

#: Where each check is explained, below the documentation's root.
PAGE: Final = "admin/doctor.html"
#: Names in one line.
_NAMES: Final = 4


class Severity(enum.Enum):
    """How bad it is, and the exit status that it makes."""

    WARNING = 1
    ERROR = 3

    @property
    def word(self) -> str:
        """As it is written."""
        return self.name.lower()


@attrs.frozen
class Check:
    """One thing that is looked at."""

    severity: Severity
    #: Why it matters, one sentence.
    why: str


_E, _W = Severity.ERROR, Severity.WARNING

#: Name -> check; the name is also the anchor on the page.
CHECKS: Final[Mapping[str, Check]] = {
    # A node
    "iommu-off": Check(_E, "Without an IOMMU the kernel gives no device to a guest."),
    "iommu-group": Check(_E, "A device in no IOMMU group cannot be given."),
    "numa-unknown": Check(
        _E, "Pinned servers that wish a place for their devices are never scheduled to them."
    ),
    "group-shared": Check(
        _E, "The kernel gives all functions of an IOMMU group together, or none of them."
    ),
    "driver": Check(_E, "A device whose driver does not speak VFIO is withheld from servers."),
    "vfs-declared": Check(_W, "The node has not the virtual functions that were declared."),
    "vfs-none": Check(_W, "One server would get the whole adapter."),
    "hugepages-none": Check(_E, "Servers with hw:mem_page_size find no memory on this node."),
    "hugepages-declared": Check(_W, "The node has not the memory that was declared for servers."),
    "hugepages-uneven": Check(
        _W, "Servers that need the devices of the poorer NUMA node find no memory beside them."
    ),
    "prepare-drift": Check(
        _W, "The next start of the host makes another node of it than servers were promised."
    ),
    "prepare-restart": Check(_W, "What was prepared counts when the host has started with it."),
    "vfs-twice": Check(_W, "Two tools switch virtual functions on; the second one fails."),
    "driver-at-boot": Check(_E, "After the next start the device is withheld from servers."),
    "driver-rule": Check(_E, "Two tools bind the device; which one is the last, nobody says."),
    "iommu-translated": Check(
        _W,
        "Each transfer of the host's own devices, adapters with virtual functions among them, "
        "waits for the IOMMU; guests are kept apart without that.",
    ),
    "aspm-saving": Check(_W, "Idle links sleep: what a device sends first waits microseconds."),
    "cpus-slow": Check(_W, "Servers with dedicated CPUs run at a fraction of their speed."),
    "peer-ports": Check(
        _W, "GPUs and adapters below the switch reach each other through the root complex."
    ),
    "peer-lacking": Check(
        _W, "GPUs and adapters below the switch reach each other otherwise than was wished."
    ),
    "role-none": Check(_W, "It could be for servers, and no server can ask for it."),
    "nvswitch-idle": Check(_W, "The GPUs have no NVLinks; on some boards CUDA does not start."),
    "nvswitch-hook": Check(
        _E, "Who links GPUs without the other's knowledge links those of two tenants."
    ),
    "declared-stand-in": Check(
        _W, "Other hardware that is put there is taken for the device that was meant."
    ),
    "guest-devices": Check(
        _W, "Each server emulates what none needs: interrupts of the host beside its own work."
    ),
    "bar-unassigned": Check(_E, "A guest cannot use a device whose memory has no address."),
    "port-down": Check(_W, "Servers with its virtual functions reach nobody."),
    "cpus-none": Check(_W, "Servers with dedicated CPUs are never scheduled to this node."),
    "cpus-unreadable": Check(_E, "nova-compute does not start with it."),
    "cpus-absent": Check(_E, "nova-compute refuses CPUs that the host does not have."),
    "cpus-overlap": Check(_E, "nova-compute refuses a CPU that is both shared and dedicated."),
    "cpus-split": Check(
        _W, "A thread of the host slows the server that has the other thread of the core."
    ),
    "cpus-away": Check(
        _W, "Devices there are given only to servers whose CPUs are on other NUMA nodes."
    ),
    "link-narrow": Check(_W, "The device has a part of its bandwidth; often it sits badly."),
    "reset-none": Check(_W, "The next server would find the device as the last one left it."),
    "unreadable": Check(_E, "What cannot be read is never offered."),
    "offered-gone": Check(_E, "Nova is told of a device that the node does not have."),
    "offered-never": Check(_E, "It must not be in the hands of a server."),
    "not-offered": Check(_W, "Hardware that nobody can use."),
    "tags-stale": Check(_E, "Servers are placed by where the device was, not by where it is."),
    "managed": Check(
        _W, "libvirt hands it to the host's driver after each server, before it was checked."
    ),
    "entry-hidden": Check(_W, "Nova takes the first entry: its device has no tags, so no place."),
    "nova-refuses": Check(_E, "nova-compute does not start with it."),
    "alias-type": Check(_W, "No server of a flavor that names it gets these devices."),
    "driver-stock": Check(_E, "Tags are ignored: devices are neither checked nor cleaned."),
    "pci-report": Check(_E, "Placement does not know the devices: no server gets one."),
    "libvirt-old": Check(_E, "Such servers are refused on this node."),
    "shim": Check(_E, "nova-compute does not start: Nova does not find the driver."),
    "ledger-open": Check(
        _E, "Who writes the ledger decides which device is clean and who may have it."
    ),
    "ledger-closed": Check(_E, "As long as the ledger cannot be kept, no device is offered."),
    # What other tools find
    "host-validate": Check(_E, "QEMU cannot use the host as servers with devices need it."),
    "option-unknown": Check(_W, "The service ignores it, so it is not as somebody meant it."),
    "not-looked": Check(_W, "Nobody has looked at what it knows."),
    # A controller
    "filter-missing": Check(_E, "Servers of hpc: flavors get any devices, wherever they sit."),
    "filter-unknown": Check(_E, "nova-scheduler does not start: it does not know the filter."),
    "filter-order": Check(_E, "Nova's filters judge candidates before the devices are chosen."),
    "filter-last": Check(_W, "It counts hosts that later filters take away."),
    "filter-lost": Check(
        _E, "A list in a later file hides another team's filter, with what it kept apart."
    ),
    "weigher-missing": Check(_W, "Hosts are not packed: large requests find no room."),
    "weigher-lost": Check(_W, "Hosts are not ranked any more as Nova or another team meant it."),
    "pci-in-placement": Check(_E, "Candidates are made without devices; claims fail on the node."),
    "cache-small": Check(
        _W, "The scheduler forgets hosts before they are asked for again, and is slow."
    ),
    "limit-placement": Check(_W, "Hosts behind the limit are never considered."),
    "alias-twice": Check(_E, "Nova refuses a name with two specifications; every boot fails."),
    "alias-broken": Check(_E, "Nova refuses the alias; every request that names it fails."),
    "group-members": Check(_W, "A cluster of more members is refused by its server group."),
    # Placement
    "candidates-depth": Check(_E, "The whole limit is spent on the first hosts."),
    "limit-candidates": Check(_W, "Hosts behind the limit are never considered."),
    "conflict-retry": Check(
        _W, "On MariaDB and MySQL two schedulers can claim one device at the same moment."
    ),
    # The cloud
    "service-role": Check(_E, "Placement refuses what Nova asks of it: no server is scheduled."),
    "allocation-orphaned": Check(_E, "The device is idle, and no server gets it."),
    "provider-missing": Check(_E, "Servers are never scheduled to the device."),
    "provider-excess": Check(_E, "Servers are scheduled to it, and fail on the node."),
    "node-gone": Check(
        _W, "Requests find candidates on it, which nobody can use and which count for the limit."
    ),
    "alias-nowhere": Check(_W, "No server of a flavor that names it is ever scheduled."),
    "map-contradicts": Check(_W, "Of such hosts the domain is unknown: as if no map had them."),
    "host-no-leaf": Check(_W, "Servers of flavors with hpc:fabric are never scheduled there."),
    "rails-mixed": Check(_W, "Members of one cluster have ports in networks that do not meet."),
    # The fleet
    "aliases-differ": Check(_E, "A flavor's name stands for other devices on another node."),
    "aliases-missing": Check(
        _W, "A flavor is refused, or its servers cannot be resized, where its name is not known."
    ),
    "not-read": Check(_W, "Nobody knows how that node is."),
}


def some(names: Iterable[str]) -> str:
    """The first names of many, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - _NAMES} more" if len(found) > _NAMES else ""
    return f"{', '.join(found[:_NAMES])}{more}"


@attrs.frozen
class Finding:
    """One thing that is wrong."""

    check: str
    #: What was seen, one sentence.
    seen: str
    #: The line and the file, or the command, that makes it right.
    cure: str
    #: Of the fleet: which node.
    node: str | None = None

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return CHECKS[self.check].severity

    @property
    def anchor(self) -> str:
        """Where the documentation explains it."""
        return f"{PAGE}#doctor-{self.check}"


def status(found: Iterable[Finding]) -> int:
    """The exit status: that of the worst; 0: nothing is wrong."""
    return max((each.severity.value for each in found), default=0)
