# SPDX-License-Identifier: Apache-2.0
"""The general cure of each check; a finding of ``nova-hpc doctor`` has its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nova_hpc_tools.site import settings
from nova_hpc_tools.site.cures import (
    CONTROLLERS,
    ENTRY_REMOVAL,
    NOVA,
    PREPARE,
    RESTART_ALONE,
    RESTART_COMPUTE,
    RESTART_PLACEMENT,
    RESTART_SCHEDULER,
    AliasCopy,
    AliasSource,
    CommandRun,
    CuredCommand,
    CuredOption,
    CuredService,
    DoctorCure,
    OptionPlace,
    ServiceRestart,
    place_option,
    read_cure,
)

_CONFIGURE: Final = "nova-hpc configure --write"
_WRITE: Final = CommandRun(CuredCommand.CONFIGURE_NODE, called=_CONFIGURE)
_RESTART: Final = DoctorCure.of(", and ", RESTART_COMPUTE, ".")
_NODE: Final = DoctorCure.of(
    "Run ",
    CommandRun(CuredCommand.CONFIGURE_NODE, called=f"{_CONFIGURE} on the node"),
    _RESTART,
)
_SCHEDULER: Final = DoctorCure.of(", and ", RESTART_SCHEDULER, ".")
_CONTROLLER: Final = DoctorCure.of(
    "Run ",
    CommandRun(CuredCommand.CONFIGURE_CONTROLLER, called=f"{_CONFIGURE} with --part controller"),
    _SCHEDULER,
)
_PLACEMENT: Final = DoctorCure.of(
    "Run ",
    CommandRun(CuredCommand.CONFIGURE_PLACEMENT, called=f"{_CONFIGURE} with --part placement"),
    ", and ",
    RESTART_PLACEMENT,
    ".",
)
_PREPARE: Final = DoctorCure.of("Run ", PREPARE, ", and restart the host when no server is on it.")
_SETS: Final = DoctorCure.of(
    "Correct ",
    OptionPlace(
        tuple(CuredOption("compute", name) for name in settings.CPU_SETS),
        called="the sets of [compute] in the file that has them",
    ),
    _RESTART,
)
_MEMORY: Final = DoctorCure.of(
    "Correct ",
    OptionPlace(
        (
            CuredOption("hpc", "shared_memory_mb"),
            CuredOption("DEFAULT", "reserved_host_memory_mb"),
        ),
        called="the options of shared memory in nova.conf",
    ),
    _RESTART,
)
_PLACE_NVLINK: Final = place_option("hpc", "nvlink_backend")
_NOVAS: Final = ServiceRestart(NOVA, (), called="Nova's services")
_SERVICES: Final = ServiceRestart(NOVA, (), called="the services")


def _place_list(name: str, called: str = "") -> OptionPlace:
    return place_option("filter_scheduler", name, None, CuredService.SCHEDULER, called=called)


#: Check of :data:`nova_hpc_tools.site.findings.CHECKS` -> its general cure.
CURES: Final[Mapping[str, DoctorCure]] = {
    "iommu-off": DoctorCure.of(
        "Switch the IOMMU on in the firmware, run ", PREPARE, " and restart."
    ),
    "iommu-group": read_cure(
        "Switch the IOMMU on for all devices, in the firmware and for the kernel."
    ),
    "numa-unknown": read_cure("Update the firmware, or switch on its report of device places."),
    "group-shared": read_cure(
        "Bind the other functions of the group to vfio-pci, or move the card."
    ),
    "driver": _PREPARE,
    "vfs-declared": DoctorCure.of("Run ", PREPARE, ", or change the number in the declaration."),
    "vfs-firmware": read_cure(
        "Run mlxconfig -d ADDRESS set SRIOV_EN=1 NUM_OF_VFS=N, then switch the host off and on."
    ),
    "vfs-none": DoctorCure.of("Declare a number of virtual functions, and run ", PREPARE, "."),
    "vgpu-type": read_cure("Write a type into nvidia/current_vgpu_type at boot."),
    "vgpu-unlike": read_cure("Set one type for all devices of an alias, or give them roles."),
    "hugepages-none": DoctorCure.of("Declare huge pages, and run ", PREPARE, "."),
    "hugepages-declared": DoctorCure.of("Run ", PREPARE, ", or change the declaration."),
    "hugepages-uneven": read_cure("Reserve pages on each NUMA node with devices, at boot."),
    "prepare-drift": _PREPARE,
    "prepare-restart": read_cure("Run update-grub, and restart the host when no server is on it."),
    "vfs-twice": read_cure(
        "Leave virtual functions to the declaration, and take them out of the other file."
    ),
    "driver-at-boot": read_cure(
        "Run driverctl set-override with the driver that the finding names."
    ),
    "driver-rule": read_cure(
        "Take the line out of the udev rule, reload udev, and set driverctl's override."
    ),
    "iommu-translated": DoctorCure.of(
        "Add iommu=pt to the kernel's command line; ", CommandRun(CuredCommand.PREPARE), " does it."
    ),
    "aspm-saving": read_cure(
        "Set the policy of pcie_aspm to performance, now and on the command line."
    ),
    "cpus-slow": read_cure("Set the governor performance for dedicated CPUs, at each start."),
    "peer-ports": DoctorCure.of(
        RESTART_ALONE, ", which sets the port; its log says why it could not."
    ),
    "peer-lacking": DoctorCure.of(
        "Change the setting in the finding, or ", place_option("hpc", "peer_to_peer"), "."
    ),
    "role-none": DoctorCure.of(
        "Add a role with ",
        CommandRun(
            CuredCommand.CONFIGURE_NODE,
            "--add-device-role ROLE",
            called="nova-hpc configure --add-device-role",
        ),
        ", or leave the device out.",
    ),
    "storage-kept": DoctorCure.of(
        "Leave it to the host; or have it erased between servers, with the check nvme in a stage "
        "of its role: ",
        place_option("hpc", "clean_stage"),
        ".",
    ),
    "nvswitch-idle": DoctorCure.of(
        "Start the manager of the NVSwitches, and set ", _PLACE_NVLINK, "."
    ),
    "nvswitch-hook": DoctorCure.of(
        "Let one tool alone switch partitions: ", _PLACE_NVLINK, ", or the other."
    ),
    "declared-stand-in": DoctorCure.of(
        "Run ",
        _WRITE,
        " on the node itself, or with --root on its inventory saved with --keep-serials.",
    ),
    "guest-devices": DoctorCure.of("Set the options that the finding names", _RESTART),
    "bar-unassigned": read_cure(
        "Switch Above 4G Decoding on in the firmware, with a larger MMIO window."
    ),
    "port-down": read_cure("Look at the cable, the switch and the subnet manager."),
    "cpus-none": _NODE,
    "cpus-unreadable": _SETS,
    "cpus-absent": _SETS,
    "driver-ids": read_cure(
        "Take the id out of vfio-pci's option ids, make the initramfs or GRUB's file again, and "
        "restart the host when no server is on it."
    ),
    "entry-unmatched": DoctorCure.of(
        "Correct the entry, or take it out of ",
        place_option("pci", "device_spec", called="the file that has it"),
        _RESTART,
    ),
    "provider-cyborg": read_cure(
        "Leave each device to one of the two: left_out in the declaration, or out of Cyborg."
    ),
    "cpus-offline": read_cure(
        "Set the CPUs online at boot before nova-compute, or take them out of the set."
    ),
    "cpus-unread": read_cure("Set one CPU of the NUMA node online, and run the command again."),
    "cpus-overlap": _SETS,
    "cpus-split": _SETS,
    "cpus-not-isolated": _PREPARE,
    "cpus-interrupted": read_cure(
        "Write the host's CPUs into smp_affinity_list of the interrupt, at each start."
    ),
    "cpus-kernel-threads": read_cure(
        "Move the thread to the host's CPUs with taskset, at each start."
    ),
    "cpus-ticking": read_cure("See which dependency keeps the tick: the trace event tick_stop."),
    "irqbalance-unbanned": read_cure(
        "Take the ban list out of irqbalance's settings, so that it leaves isolated CPUs alone."
    ),
    "halt-polling": read_cure("Set halt_poll_ns of the module kvm to 200000, now and at boot."),
    "numa-balancing": DoctorCure.of("Run ", PREPARE, ", or set kernel.numa_balancing to 0."),
    "cpus-away": _SETS,
    "shared-reserved": _MEMORY,
    "shared-tmpfs": read_cure(
        "Give the directory a tmpfs that is large enough, now and in /etc/fstab."
    ),
    "shared-absent": _MEMORY,
    "shared-cpus": DoctorCure.of("Set ", place_option("compute", "cpu_dedicated_set"), _RESTART),
    "link-narrow": read_cure("Reseat the card, and compare LnkSta and LnkCap of lspci."),
    "reset-none": read_cure(
        "Write the device into left_out of the declaration, and configure the node."
    ),
    "unreadable": read_cure("Look at lspci and the kernel's log: the device does not answer."),
    "offered-gone": DoctorCure.of("Plug the device in again, or run ", _WRITE, " with --replace."),
    "offered-never": DoctorCure.of("Run ", _WRITE, " with --replace", _RESTART),
    "not-offered": _NODE,
    "tags-stale": _NODE,
    "managed": _NODE,
    "entry-hidden": ENTRY_REMOVAL,
    "nova-refuses": DoctorCure.of("Correct the entry that the finding quotes", _RESTART),
    "alias-type": read_cure(
        "Write the device_type that the finding names into the alias, everywhere."
    ),
    "nova-hints": read_cure(
        "Install Nova 32.2.1, 33.0.2 or later of its series, and restart its services."
    ),
    "driver-stock": DoctorCure.of(
        "Set ", place_option("DEFAULT", "compute_driver", settings.DRIVER), _RESTART
    ),
    "pci-report": _NODE,
    "libvirt-old": DoctorCure.of("Install a libvirt that is new enough, and ", RESTART_ALONE, "."),
    "shim": read_cure("Run nova-hpc install-shim."),
    "ledger-open": read_cure("Take the right to write away from other users: chmod o-w."),
    "ledger-closed": DoctorCure.of(
        "Give the folder to the user of nova-compute, and ", RESTART_ALONE, "."
    ),
    "host-validate": read_cure("Follow the advice of virt-host-validate."),
    "option-unknown": read_cure("Correct the name of the option, or take it out of its file."),
    "not-looked": DoctorCure.of(
        "Make that answer which the finding names, and run ",
        CommandRun(CuredCommand.DOCTOR),
        " again.",
    ),
    "filter-missing": _CONTROLLER,
    "filter-unknown": _CONTROLLER,
    "filter-order": DoctorCure.of("Put HpcTopologyFilter before those filters", _SCHEDULER),
    "filter-last": DoctorCure.of("Put HpcFabricFilter behind all others", _SCHEDULER),
    "filter-lost": DoctorCure.of(
        "Add the filter to ",
        _place_list("enabled_filters", "the last file that has enabled_filters"),
        ".",
    ),
    "weigher-missing": _CONTROLLER,
    "weigher-lost": DoctorCure.of(
        "Add the weigher to ",
        _place_list("weight_classes", "the last file that has weight_classes"),
        ".",
    ),
    "pci-in-placement": DoctorCure.of(
        "Set ",
        place_option("filter_scheduler", "pci_in_placement", "true", *CONTROLLERS),
        " on all controllers.",
    ),
    "cache-small": _CONTROLLER,
    "limit-placement": _CONTROLLER,
    "alias-twice": DoctorCure.of("Remove one of the two lines, and ", _NOVAS, "."),
    "alias-broken": DoctorCure.of(
        "Correct ",
        place_option("pci", "alias", None, *NOVA, called="the alias in the file that has it"),
        ", and ",
        _NOVAS,
        ".",
    ),
    "group-members": DoctorCure.of(
        "Raise ",
        place_option("quota", "server_group_members", None, CuredService.API),
        ", and ",
        ServiceRestart((CuredService.API,)),
        ".",
    ),
    "candidates-depth": _PLACEMENT,
    "limit-candidates": DoctorCure.of(
        "Raise ",
        place_option("placement", settings.PLACEMENT_LIMIT, None, CuredService.PLACEMENT),
        ", and ",
        ServiceRestart((CuredService.PLACEMENT,), called="Placement"),
        ".",
    ),
    "conflict-retry": _PLACEMENT,
    "service-role": read_cure("Give Nova's user the role service in Placement's project."),
    "allocation-orphaned": read_cure(
        "Delete the allocation with the command that the finding names."
    ),
    "provider-missing": DoctorCure.of(
        ServiceRestart((CuredService.COMPUTE,), (), False, "nova-compute of the node"),
        ", and read its log.",
    ),
    "provider-excess": read_cure(
        "Reserve the device in Placement with the command of the finding."
    ),
    "node-gone": read_cure("Delete the providers that the finding names, devices first."),
    "alias-nowhere": DoctorCure.of(
        AliasCopy(AliasSource.OFFERING_NODE, general=True), ", or remove it."
    ),
    "map-contradicts": read_cure("Run nova-hpc fabric sync with the map of the whole fabric."),
    "host-no-leaf": read_cure("Run nova-hpc fabric sync with a map that has all hosts."),
    "rails-mixed": DoctorCure.of(
        "Correct physical_network of the odd nodes, and ",
        ServiceRestart((CuredService.COMPUTE,), (), called="nova-compute there"),
        ".",
    ),
    "aliases-differ": DoctorCure.of(
        AliasCopy(AliasSource.ONE_NODE, general=True), ", and ", _SERVICES, "."
    ),
    "aliases-missing": DoctorCure.of(
        AliasCopy(AliasSource.OTHER_NODES, general=True), ", and ", _SERVICES, "."
    ),
    "not-read": DoctorCure.of(
        "Run ",
        CommandRun(CuredCommand.DOCTOR),
        " there again, with the release of the other nodes.",
    ),
}
