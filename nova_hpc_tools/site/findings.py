# SPDX-License-Identifier: Apache-2.0
"""The findings of ``nova-hpc doctor``: the checks, their severity and why they matter. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from nova_hpc_common.outside.name_lists import join_first
from nova_hpc_tools.site.cures import DoctorCure, read_cure

#: The page that explains each check, below the documentation's root.
PAGE: Final = "admin/doctor.html"
#: Most names in one line.
_NAMES: Final = 4


class Severity(enum.Enum):
    """The severity of a finding. Its value is the exit status of ``doctor``."""

    #: Right for some sites: a good installation may have it.
    NOTE = 0
    WARNING = 1
    ERROR = 3

    @property
    def word(self) -> str:
        """The severity in lower case, for output."""
        return self.name.lower()


@attrs.frozen
class DoctorCheck:
    """A check of ``doctor``: its severity, and the harm of its fault."""

    severity: Severity
    #: Why it matters, one sentence.
    why: str


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

#: Name -> check; the name is also the anchor on the page.
CHECKS: Final[Mapping[str, DoctorCheck]] = {
    # A node
    "iommu-off": DoctorCheck(_E, "Without an IOMMU the kernel gives no device to a guest."),
    "iommu-group": DoctorCheck(_E, "A device in no IOMMU group cannot be given."),
    "numa-unknown": DoctorCheck(
        _E, "Pinned servers that wish a place for their devices are never scheduled to them."
    ),
    "group-shared": DoctorCheck(
        _E, "The kernel gives all functions of an IOMMU group together, or none of them."
    ),
    "driver": DoctorCheck(
        _E, "A device whose driver does not speak VFIO is withheld from servers."
    ),
    "vfs-declared": DoctorCheck(_W, "The node has not the virtual functions that were declared."),
    "vfs-firmware": DoctorCheck(
        _E, "Neither the declared virtual functions nor the adapter can be given."
    ),
    "vfs-none": DoctorCheck(_W, "One server would get the whole adapter."),
    "vgpu-type": DoctorCheck(_W, "No guest starts with a virtual function without a vGPU type."),
    "vgpu-unlike": DoctorCheck(_W, "Servers of one flavor get GPUs of unlike size."),
    "hugepages-none": DoctorCheck(_E, "Servers with hw:mem_page_size find no memory on this node."),
    "hugepages-declared": DoctorCheck(
        _W, "The node has not the memory that was declared for servers."
    ),
    "hugepages-uneven": DoctorCheck(
        _W, "Servers that need the devices of the poorer NUMA node find no memory beside them."
    ),
    "prepare-drift": DoctorCheck(
        _W, "The next start of the host makes another node of it than servers were promised."
    ),
    "prepare-restart": DoctorCheck(
        _W, "The prepared settings take effect at the next boot of the host."
    ),
    "vfs-twice": DoctorCheck(_W, "Two tools switch virtual functions on; the second one fails."),
    "driver-at-boot": DoctorCheck(_E, "After the next start the device is withheld from servers."),
    "driver-rule": DoctorCheck(
        _E, "Two tools bind the device, and the order in which they run is unknown."
    ),
    "iommu-translated": DoctorCheck(
        _W,
        "Each transfer of the host's own devices, adapters with virtual functions among them, "
        "waits for the IOMMU; guests are kept apart without that.",
    ),
    "aspm-saving": DoctorCheck(
        _W, "Idle links sleep: the first transfer of a device waits microseconds."
    ),
    "cpus-slow": DoctorCheck(_W, "Servers with dedicated CPUs run at a fraction of their speed."),
    "peer-ports": DoctorCheck(
        _W, "GPUs and adapters below the switch reach each other through the root complex."
    ),
    "peer-lacking": DoctorCheck(
        _W, "GPUs and adapters below the switch reach each other otherwise than configured."
    ),
    "role-none": DoctorCheck(_W, "It could be given to servers, and no server can request it."),
    "storage-kept": DoctorCheck(
        _W, "A server would read the data of the one before: a reset of a disk erases nothing."
    ),
    "nvswitch-idle": DoctorCheck(
        _W, "The GPUs have no NVLinks; on some boards CUDA does not start."
    ),
    "nvswitch-hook": DoctorCheck(
        _E, "Two programs manage the NVLinks, so one may link the GPUs of two tenants."
    ),
    "declared-stand-in": DoctorCheck(
        _W, "Other hardware that is put there is taken for the device that was meant."
    ),
    "guest-devices": DoctorCheck(
        _N, "Each server emulates unneeded devices: interrupts on the host beside its own work."
    ),
    "bar-unassigned": DoctorCheck(_E, "A guest cannot use a device whose memory has no address."),
    "port-down": DoctorCheck(_W, "Servers with its virtual functions have no network."),
    "cpus-none": DoctorCheck(_W, "Servers with dedicated CPUs are never scheduled to this node."),
    "cpus-unreadable": DoctorCheck(_E, "nova-compute does not start with it."),
    "cpus-absent": DoctorCheck(_E, "nova-compute refuses CPUs that the host does not have."),
    "driver-ids": DoctorCheck(
        _E, "At the next start the host loses a device, or servers lose virtual functions."
    ),
    "entry-unmatched": DoctorCheck(
        _W, "Nova offers nothing by it: the device is gone, elsewhere, or mistyped."
    ),
    "provider-cyborg": DoctorCheck(
        _W, "Two services that count one device give it to two servers."
    ),
    "cpus-offline": DoctorCheck(
        _E, "nova-compute refuses CPUs that are offline and that it does not switch itself."
    ),
    "cpus-unread": DoctorCheck(
        _W, "Settings of NUMA nodes whose CPUs are unknown are not written."
    ),
    "cpus-overlap": DoctorCheck(
        _E, "nova-compute refuses a CPU that is both shared and dedicated."
    ),
    "cpus-split": DoctorCheck(
        _W, "A thread of the host slows the server that has the other thread of the core."
    ),
    "cpus-not-isolated": DoctorCheck(
        _W, "The host's own work goes on on CPUs that the declaration makes quiet."
    ),
    "cpus-interrupted": DoctorCheck(
        _W, "Each interrupt takes the CPU from a vCPU, and other members of its job wait for it."
    ),
    "cpus-kernel-threads": DoctorCheck(
        _W, "Each run takes the CPU from a vCPU, and other members of its job wait for it."
    ),
    "cpus-ticking": DoctorCheck(
        _W, "The kernel interrupts the vCPU hundreds of times a second, for no other thread."
    ),
    "irqbalance-unbanned": DoctorCheck(
        _W, "Interrupts of the host's devices come to CPUs of servers, now or later."
    ),
    "halt-polling": DoctorCheck(
        _N, "A vCPU that waits for a message gives its CPU up at once, and wakes later."
    ),
    "numa-balancing": DoctorCheck(
        _N, "The kernel looks whether memory of servers should move, which costs page faults."
    ),
    "cpus-away": DoctorCheck(
        _W, "Devices there are given only to servers whose CPUs are on other NUMA nodes."
    ),
    "shared-reserved": DoctorCheck(_E, "Nova gives the same memory to servers a second time."),
    "shared-tmpfs": DoctorCheck(_E, "Servers get less memory to share than the node promises."),
    "shared-absent": DoctorCheck(_W, "Memory that no server can get; a number may be mistyped."),
    "shared-cpus": DoctorCheck(
        _W, "Only servers with dedicated CPUs share memory, so no server gets any here."
    ),
    "link-narrow": DoctorCheck(_W, "The device has a part of its bandwidth; often it sits badly."),
    "reset-none": DoctorCheck(_W, "The next server would find the device as the last one left it."),
    "unreadable": DoctorCheck(_E, "An unreadable device is never offered."),
    "offered-gone": DoctorCheck(_E, "Nova's options name a device that the node does not have."),
    "offered-never": DoctorCheck(_E, "It must not be in the hands of a server."),
    "not-offered": DoctorCheck(_W, "Hardware that no server can use."),
    "tags-stale": DoctorCheck(
        _E, "Servers are placed by where the device was, not by where it is."
    ),
    "managed": DoctorCheck(
        _W, "libvirt hands it to the host's driver after each server, before it was checked."
    ),
    "entry-hidden": DoctorCheck(
        _W, "Nova takes the first entry: its device has no tags, so no place."
    ),
    "nova-refuses": DoctorCheck(_E, "nova-compute does not start with it."),
    "alias-type": DoctorCheck(_W, "No server of a flavor that names it gets these devices."),
    "nova-hints": DoctorCheck(
        _E, "A user's hint skips filters: no device is claimed, so two servers may have it."
    ),
    "driver-stock": DoctorCheck(_E, "Tags are ignored: devices are neither checked nor cleaned."),
    "pci-report": DoctorCheck(_E, "Placement does not have the devices: no server gets one."),
    "libvirt-old": DoctorCheck(_E, "Such servers are refused on this node."),
    "shim": DoctorCheck(_E, "nova-compute does not start: Nova does not find the driver."),
    "ledger-open": DoctorCheck(
        _E, "Any writer of the ledger decides which device is clean and which server has it."
    ),
    "ledger-closed": DoctorCheck(_E, "As long as the ledger cannot be kept, no device is offered."),
    # Findings of other tools
    "host-validate": DoctorCheck(_E, "QEMU cannot use the host as servers with devices need it."),
    "option-unknown": DoctorCheck(_W, "The service ignores it, so the setting has no effect."),
    "not-looked": DoctorCheck(_W, "Its records were not checked."),
    # A controller
    "filter-missing": DoctorCheck(
        _E, "Servers of hpc: flavors get any devices, wherever they sit."
    ),
    "filter-unknown": DoctorCheck(_E, "nova-scheduler does not start: it cannot find the filter."),
    "filter-order": DoctorCheck(
        _E, "Nova's filters judge candidates before the devices are chosen."
    ),
    "filter-last": DoctorCheck(_W, "It counts hosts that later filters take away."),
    "filter-lost": DoctorCheck(
        _E, "A list in a later file hides another team's filter, with its rules."
    ),
    "weigher-missing": DoctorCheck(_W, "Hosts are not packed: large requests find no room."),
    "weigher-lost": DoctorCheck(
        _W, "Hosts are not ranked any more as Nova or another team meant it."
    ),
    "pci-in-placement": DoctorCheck(
        _E, "Candidates are made without devices; claims fail on the node."
    ),
    "cache-small": DoctorCheck(
        _W, "The scheduler forgets hosts before it needs them again, and is slow."
    ),
    "limit-placement": DoctorCheck(
        _W, "The scheduler requests each device, and hosts behind the limit are not seen."
    ),
    "alias-twice": DoctorCheck(
        _E, "Nova refuses a name with two specifications; every boot fails."
    ),
    "alias-broken": DoctorCheck(_E, "Nova refuses the alias; every request that names it fails."),
    "group-members": DoctorCheck(_W, "A cluster of more members is refused by its server group."),
    # Placement
    "candidates-depth": DoctorCheck(_E, "The whole limit is spent on the first hosts."),
    "limit-candidates": DoctorCheck(
        _W, "Hosts may be missing in an answer without a warning; such hosts are not seen."
    ),
    "conflict-retry": DoctorCheck(
        _W, "On MariaDB and MySQL two schedulers can claim one device at the same moment."
    ),
    # The cloud
    "service-role": DoctorCheck(_E, "Placement refuses Nova's requests: no server is scheduled."),
    "allocation-orphaned": DoctorCheck(_E, "The device is idle, and no server gets it."),
    "provider-missing": DoctorCheck(_E, "Servers are never scheduled to the device."),
    "provider-excess": DoctorCheck(_E, "Servers are scheduled to it, and fail on the node."),
    "node-gone": DoctorCheck(
        _W, "Requests find candidates on it, which no server can use and which count for the limit."
    ),
    "alias-nowhere": DoctorCheck(_W, "No server of a flavor that names it is ever scheduled."),
    "map-contradicts": DoctorCheck(
        _W, "Of such hosts the domain is unknown: as if no map had them."
    ),
    "host-no-leaf": DoctorCheck(
        _W, "Servers of flavors with hpc:fabric are never scheduled there."
    ),
    "rails-mixed": DoctorCheck(
        _W, "Members of one cluster have ports in networks that do not meet."
    ),
    # The fleet
    "aliases-differ": DoctorCheck(_E, "A flavor's name stands for other devices on another node."),
    "aliases-missing": DoctorCheck(
        _W, "A flavor is refused, or its servers cannot be resized, where its name is not known."
    ),
    "not-read": DoctorCheck(_W, "Nothing is known of that node, which cannot be read."),
}


def join_first_few(names: Iterable[str]) -> str:
    """Join the first names of a list, and the number of the others, as text."""
    return join_first(list(names), _NAMES)


@attrs.frozen
class DoctorFinding:
    """A fault that a check of ``doctor`` has found, with its cure."""

    check: str
    #: The fault, one sentence.
    seen: str
    #: The line and the file, or the command, that fixes it; a text if it is the same in each
    #: layout.
    cure: DoctorCure = attrs.field(converter=read_cure)
    #: The node, in a report of the fleet.
    node: str | None = None

    @property
    def severity(self) -> Severity:
        """The severity of the check that found the fault."""
        return CHECKS[self.check].severity

    @property
    def anchor(self) -> str:
        """The address of the documentation that explains the check."""
        return f"{PAGE}#doctor-{self.check}"


def exit_status_of(findings: Iterable[DoctorFinding]) -> int:
    """Return the exit status of the worst finding; 0 without findings."""
    return max((finding.severity.value for finding in findings), default=0)
