# SPDX-License-Identifier: Apache-2.0
"""Faults in the start and the operation of a host. Pure.

The checks examine address space, tools that conflict, a restart that is due, the IOMMU's mode, and
power saving.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.topology import cpuset, vfio
from nova_hpc.topology.model import Node, PciFunction
from nova_hpc_tools.site import kernel_options, kernel_words
from nova_hpc_tools.site.cures import PREPARE, DoctorCure
from nova_hpc_tools.site.findings import DoctorFinding, join_first_few
from nova_hpc_tools.site.kernel_options import KernelOptions

_ACTIVE: Final = "ACTIVE"
#: Policies of drivers/pci/pcie/aspm.c that switch link states on, even if the firmware left
#: these off.
_SAVING: Final = ("powersave", "powersupersave")
_POWERSAVE: Final = "powersave"
#: Drivers that choose the frequency themselves: their "powersave" follows the load, and the
#: "powersave" of all others is the lowest frequency
#: (Documentation/admin-guide/pm/intel_pstate.rst, amd-pstate.rst and cpufreq.rst).
_CHOOSES: Final = ("intel_pstate", "amd-pstate-epp")


@attrs.frozen
class Frequency:
    """The driver and the governor that control a CPU's frequency, by their names in sysfs."""

    driver: str
    governor: str


@attrs.frozen
class Rule:
    """A udev rule that binds a device to a driver."""

    file: str
    driver: str


@attrs.frozen
class HostFacts:
    """The facts about a host that its files contain, for the checks."""

    #: Address -> numbers of the BARs that have no address.
    unassigned: Mapping[str, tuple[int, ...]] = attrs.field(factory=dict, hash=False)
    #: Address -> the driver that driverctl gives the device at boot.
    overrides: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Files of others that switch virtual functions on, if ``nova-hpc prepare`` does it, too.
    numvfs: tuple[str, ...] = ()
    #: Prepared words that are missing on the running kernel's command line.
    not_booted: tuple[str, ...] = ()
    #: Address -> rules of others that bind an offered device.
    rules: Mapping[str, tuple[Rule, ...]] = attrs.field(factory=dict, hash=False)
    #: Options of the kernel and its modules, and features of the running kernel.
    kernel: KernelOptions = attrs.field(factory=KernelOptions, hash=False)
    #: Functions of the host's drivers whose DMA the IOMMU translates.
    translated: tuple[str, ...] = ()
    #: The kernel's policy of PCIe link states.
    aspm: str | None = None
    #: Dedicated CPU -> its driver and governor, if they are known.
    frequencies: Mapping[int, Frequency] = attrs.field(factory=dict, hash=False)
    #: Hooks of libvirt that start NVLink partitions.
    partition_hooks: tuple[str, ...] = ()
    #: ``[libvirt]cpu_power_management`` by governors: Nova slows CPUs that no server has.
    nova_slows: bool = False


def check_host(
    host: HostFacts, node: Node, offered: Iterable[PciFunction]
) -> Iterator[DoctorFinding]:
    """Find faults of a host.

    :param offered: the functions that servers can get.
    """
    functions = tuple(offered)
    for address, bars in host.unassigned.items():
        yield DoctorFinding(
            "bar-unassigned",
            f"{address}: the kernel has no address for BAR {', '.join(map(str, bars))}.",
            "Switch Above 4G Decoding on in the firmware, and make its MMIO window larger; the "
            f"kernel's log shows which is missing: dmesg | grep {address}",
        )
    for address, driver in host.overrides.items():
        if not _suits_guests(node, address, driver):
            yield DoctorFinding(
                "driver-at-boot",
                f"{address}: driverctl binds it to {driver} at the next start.",
                f"driverctl set-override {address} {_guest_driver_of(node, address)}",
            )
    for address, rules in host.rules.items():
        for rule in rules:
            if _suits_guests(node, address, rule.driver):
                continue
            yield DoctorFinding(
                "driver-rule",
                f"{address}: {rule.file} binds it to {rule.driver} when it appears.",
                f"Take the line with {address} out of {rule.file}; then udevadm control --reload "
                f"&& driverctl set-override {address} {_guest_driver_of(node, address)}",
            )
    if host.numvfs:
        yield DoctorFinding(
            "vfs-twice",
            f"Virtual functions are switched on by nova-hpc prepare and by "
            f"{', '.join(host.numvfs)}.",
            f"Take sriov_numvfs out of {host.numvfs[0]}; the declaration has the number.",
        )
    if host.not_booted:
        yield DoctorFinding(
            "prepare-restart",
            f"The kernel was started without {' '.join(host.not_booted)}.",
            "Run update-grub and restart the host when no server is on it.",
        )
    yield from _check_translation(host)
    yield from _check_power_saving(host)
    yield from _check_port_states(node, functions)


def _guest_driver_of(node: Node, address: str) -> str:
    function = node.function(address)
    return vfio.GENERIC if function is None else function.guest_driver


def _suits_guests(node: Node, address: str, driver: str) -> bool:
    """Whether a function that is bound to *driver* at boot can be given to guests."""
    return driver in (vfio.GENERIC, _guest_driver_of(node, address))


def _check_translation(host: HostFacts) -> Iterator[DoctorFinding]:
    """Find a host that translates the DMA of its own devices.

    It is no fault if the command line has passthrough: then single devices need translation.
    """
    running = [option for option in host.kernel.options if option.place == kernel_options.RUNNING]
    if not host.translated or not running or kernel_words.leaves_dma_untranslated(running):
        return
    if kernel_words.leaves_dma_untranslated(map(kernel_options.parse_word, host.not_booted)):
        return  # the restart that is due switches translation off
    if kernel_words.find_exclusion(kernel_words.PASSTHROUGH, host.kernel) is not None:
        return
    yield DoctorFinding(
        "iommu-translated",
        "The IOMMU translates the memory accesses of the host's own devices: "
        f"{join_first_few(host.translated)}.",
        DoctorCure.of(
            PREPARE,
            ", run its commands, and restart the host when no server is on it. By hand: "
            f"{kernel_words.PASSTHROUGH} (Arm: {kernel_words.ARM_PASSTHROUGH}) on the kernel's "
            "command line.",
        ),
    )


def _check_power_saving(host: HostFacts) -> Iterator[DoctorFinding]:
    """Find a policy that saves link power, and dedicated CPUs at their lowest frequency.

    Slow CPUs are no fault if Nova sets the governor of CPUs that no server has.
    """
    if host.aspm in _SAVING and not kernel_words.find_exclusion(
        kernel_words.FAST_LINKS, host.kernel
    ):
        yield DoctorFinding(
            "aspm-saving",
            f"The kernel's policy of PCIe link states is {host.aspm}.",
            "echo performance > /sys/module/pcie_aspm/parameters/policy, and take "
            f"pcie_aspm.policy={host.aspm} from the kernel's command line, or add "
            f"{kernel_words.FAST_LINKS} to it.",
        )
    slow = {
        cpu: frequency.driver
        for cpu, frequency in host.frequencies.items()
        if frequency.governor == _POWERSAVE and frequency.driver not in _CHOOSES
    }
    if slow and not host.nova_slows:
        cpus = cpuset.format_list(slow)
        yield DoctorFinding(
            "cpus-slow",
            f"Dedicated CPUs {cpus} run at their lowest frequency: governor {_POWERSAVE} of "
            f"{', '.join(sorted(set(slow.values())))}.",
            f"cpupower -c {cpus} frequency-set -g performance, and the same at each start.",
        )


def _check_port_states(node: Node, offered: Iterable[PciFunction]) -> Iterator[DoctorFinding]:
    """Find adapters with offered virtual functions and a port that is not up."""
    parents = {function.physical_function for function in offered} - {None}
    for function in node.functions:
        if function.address not in parents:
            continue
        for device in function.rdma:
            for port in device.ports:
                if port.state not in (None, _ACTIVE):
                    yield DoctorFinding(
                        "port-down",
                        f"{function.address}: port {port.number} of {device.name} is {port.state}.",
                        f"See the cable, the switch and the subnet manager: ibstat {device.name}",
                    )
