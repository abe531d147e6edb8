# SPDX-License-Identifier: Apache-2.0
"""The files for the plan of :mod:`nova_hpc_tools.adopt.host`. Pure.

The files, and the reason for each:

``/etc/udev/rules.d``
    A device gets its ``driver_override`` when it appears, before udev loads a driver for it.
    Virtual functions are switched on when the adapter's interface appears. Its driver is
    bound then (on ``add`` of the PCI function it is not), and no program has brought the
    interface up yet. An igb that is up pings virtual functions before their table exists
    (igb_ping_all_vfs, a NULL pointer up to Linux 6.12 at least).
    Each rule names vendor and product: other hardware may be at the address.
``initramfs``
    The same for devices whose driver is loaded before the root file system is mounted.
``/etc/modules-load.d``
    The VFIO drivers, which bind devices with their override as soon as they are loaded.
``/etc/tmpfiles.d``, the kernel's command line
    Hugepages: at boot, while memory is in one piece; then the number of each NUMA node.
``/etc/systemd/system.conf.d``
    Services run on the host's CPUs (:mod:`nova_hpc_tools.adopt.quiet_host`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

import attrs

from nova_hpc_tools.adopt import quiet_host
from nova_hpc_tools.adopt.host import BoundFunction, HostStart, SplitAdapter

#: First line of every file; in a script the second, after the interpreter.
MARKER: Final = "# Written by nova-hpc prepare. Do not edit: run it again instead."

UDEV: Final = "etc/udev/rules.d/65-nova-hpc.rules"
MODULES: Final = "etc/modules-load.d/nova-hpc.conf"
SYSCTL: Final = "etc/sysctl.d/60-nova-hpc.conf"
TMPFILES: Final = "etc/tmpfiles.d/nova-hpc.conf"
GRUB: Final = "etc/default/grub.d/nova-hpc.cfg"
HOOK: Final = "etc/initramfs-tools/hooks/nova-hpc"
SCRIPT: Final = "etc/initramfs-tools/scripts/init-top/nova-hpc"
DRACUT: Final = "etc/dracut.conf.d/nova-hpc.conf"
SYSTEMD: Final = "etc/systemd/system.conf.d/nova-hpc.conf"
#: Every file that a plan may need; the ones that the present plan does not need are removed.
ALL: Final = (UDEV, MODULES, SYSCTL, TMPFILES, GRUB, HOOK, SCRIPT, DRACUT, SYSTEMD)

#: The module by which VFIO reaches the IOMMU.
_IOMMU: Final = "vfio_iommu_type1"

BOOT_LOADERS: Final = ("grub", "grubby", "none")
INITRAMFS: Final = ("initramfs-tools", "dracut", "none")


@attrs.frozen
class File:
    """A file that ``prepare`` writes, with its path below the root of the host."""

    path: str
    text: str
    mode: int = 0o644


def build_host_files(host: HostStart, boot_loader: str, initramfs: str) -> tuple[File, ...]:
    """Build all files that ``prepare`` writes, in the order of :data:`ALL`.

    :param boot_loader: one of :data:`BOOT_LOADERS`: ``grub`` reads ``/etc/default/grub.d``,
        ``grubby`` needs a command.
    :param initramfs: one of :data:`INITRAMFS`.
    """
    if not host.needed:
        return ()
    quiet, files = host.quiet, []
    if host.has_devices:
        files = [
            File(UDEV, _join_lines(_udev_rules(host))),
            File(MODULES, _join_lines((*host.drivers, _IOMMU))),
        ]
    more = quiet_host.quiet_sysctl_lines() if quiet else ()
    files.append(File(SYSCTL, _join_lines((*_SYSCTL, *more))))
    if host.pages or quiet:
        files.append(File(TMPFILES, _join_lines(_tmpfiles_lines(host))))
    if boot_loader == "grub" and host.kernel_line:
        line = " ".join(host.kernel_line)
        files.append(File(GRUB, _join_lines((f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {line}"',))))
    if initramfs == "initramfs-tools" and host.has_devices:
        files.append(File(HOOK, _join_lines(_initramfs_hook(host), "#!/bin/sh"), 0o755))
        files.append(File(SCRIPT, _join_lines(_initramfs_script(host), "#!/bin/sh"), 0o755))
    elif initramfs == "dracut" and host.has_devices:
        files.append(File(DRACUT, _join_lines(_dracut_lines(host))))
    if quiet:
        files.append(File(SYSTEMD, _join_lines(quiet_host.quiet_systemd_lines(quiet))))
    return tuple(files)


def commands_after_writing(
    host: HostStart, changed: frozenset[str], boot_loader: str, initramfs: str
) -> list[str]:
    """List the commands to run after the files are written, so that the next boot uses them.

    :param changed: paths that were written or removed.
    """
    commands = []
    if boot_loader == "grub" and GRUB in changed:
        commands.append("update-grub")
    if boot_loader == "grubby" and host.kernel_line and changed:
        words = shlex.quote(" ".join(host.kernel_line))
        commands.append(f"grubby --update-kernel=ALL --args={words}")
    if initramfs == "initramfs-tools" and changed & {UDEV, MODULES, HOOK, SCRIPT}:
        commands.append("update-initramfs -u -k all")
    if initramfs == "dracut" and changed & {UDEV, MODULES, DRACUT}:
        commands.append("dracut --force --regenerate-all")
    return commands


def is_prepared_file(text: str) -> bool:
    """Whether this command wrote a file with this *text*."""
    return MARKER in text.splitlines()[:2]


def _join_lines(lines: tuple[str, ...] | Iterator[str], interpreter: str = "") -> str:
    head = [interpreter] if interpreter else []
    return "".join(f"{line}\n" for line in (*head, MARKER, *lines))


# --- udev -------------------------------------------------------------------------------


def _udev_rules(host: HostStart) -> Iterator[str]:
    if host.vfio:
        yield "# Devices for servers: no driver of the host takes them."
    for bound in host.vfio:
        yield from _binding_rules(bound)
    for adapter in host.adapters:
        yield from _adapter_rules(adapter)


def _match_ids(ids: tuple[str, str], key: str = "ATTR", folder: str = "") -> str:
    vendor, product = ids
    return f'{key}{{{folder}vendor}}=="0x{vendor}", {key}{{{folder}device}}=="0x{product}"'


def _binding_rules(bound: BoundFunction, *parent: str) -> Iterator[str]:
    match = ", ".join(
        ('SUBSYSTEM=="pci"', f'KERNEL=="{bound.address}"', *parent, _match_ids(bound.ids))
    )
    # If vfio-pci is loaded already, nothing else would bind the device to it.
    yield f'ACTION=="add", {match}, ATTR{{driver_override}}="{bound.driver}", {_PROBE}'
    # A driver that was loaded for another device may have been faster.
    yield (
        f'ACTION=="bind", {match}, DRIVER!="{bound.driver}", '
        f'ATTR{{driver_override}}="{bound.driver}", ATTR{{driver/unbind}}="$kernel", {_PROBE}'
    )


def _adapter_rules(adapter: SplitAdapter) -> Iterator[str]:
    yield (
        f"# {adapter.address}: {adapter.vfs} virtual functions, before its interface is brought up."
    )
    for match, ids, where in (
        # udev matches KERNELS and ATTRS at one and the same parent.
        (
            f'ACTION=="add", SUBSYSTEM=="net|infiniband", KERNELS=="{adapter.address}"',
            _match_ids(adapter.ids, "ATTRS"),
            "device/",
        ),
        # An adapter without an interface, or one that appeared before udev started.
        (
            f'ACTION=="add|bind", SUBSYSTEM=="pci", KERNEL=="{adapter.address}", DRIVER=="?*"',
            _match_ids(adapter.ids),
            "",
        ),
    ):
        sets = [match, ids]
        if adapter.driver is not None:
            # Only if all are for guests: a virtual function of the host needs its driver.
            sets.append(f'ATTR{{{where}sriov_drivers_autoprobe}}="0"')
        sets.append(f'ATTR{{{where}sriov_numvfs}}="{adapter.vfs}"')
        yield ", ".join(sets)
    parent_match = (
        f'ATTR{{physfn/uevent}}=="*PCI_SLOT_NAME={adapter.address}*", '
        f"{_match_ids(adapter.ids, folder='physfn/')}"
    )
    if adapter.driver is not None:
        yield (
            f'ACTION=="add", SUBSYSTEM=="pci", {parent_match}, '
            f'ATTR{{driver_override}}="{adapter.driver}", {_PROBE}'
        )
    if adapter.bound:
        yield f"# {len(adapter.bound)} of them are for servers; the others keep the host's driver."
    for bound in adapter.bound:
        yield from _binding_rules(bound, parent_match)


#: udev finds the bus as [subsystem/pci] and the event's device as $kernel.
_PROBE: Final = 'ATTR{[subsystem/pci]drivers_probe}="$kernel"'


# --- memory -----------------------------------------------------------------------------

_SYSCTL: Final = (
    "# The memory of servers is where their CPUs are; looking whether it should move costs them",
    "# page faults.",
    "kernel.numa_balancing = 0",
)


def _tmpfiles_lines(host: HostStart) -> Iterator[str]:
    if host.pages:
        yield "# Hugepages of each NUMA node; the kernel's command line reserves them all together."
    for pool in host.pages:
        yield (
            f"w /sys/devices/system/node/node{pool.numa_node}/hugepages/"
            f"hugepages-{pool.size_kib}kB/nr_hugepages - - - - {pool.count}"
        )
    if host.quiet:
        yield from quiet_host.quiet_tmpfiles_lines(host.quiet)


# --- the initramfs ----------------------------------------------------------------------


def _initramfs_hook(host: HostStart) -> Iterator[str]:
    yield 'case "$1" in prereqs) exit 0 ;; esac'
    yield ". /usr/share/initramfs-tools/hook-functions"
    yield f"manual_add_modules {' '.join((*host.drivers, _IOMMU))}"


def _dracut_lines(host: HostStart) -> Iterator[str]:
    yield f'add_drivers+=" {" ".join((*host.drivers, _IOMMU))} "'
    yield f'install_items+=" /{UDEV} /{MODULES} "'


def _initramfs_script(host: HostStart) -> Iterator[str]:
    yield "# Before udev of the initramfs loads any driver."
    yield 'case "$1" in prereqs) exit 0 ;; esac'
    yield "override() {"
    yield "    cd /sys/bus/pci/devices/$1 2>/dev/null || return"
    yield "    read -r vendor <vendor && read -r device <device || return"
    yield '    [ "$vendor $device" = "$2 $3" ] && echo "$4" >driver_override'
    yield "}"
    for bound in host.vfio:
        vendor, product = bound.ids
        yield f"override {bound.address} 0x{vendor} 0x{product} {bound.driver}"
    for driver in host.drivers:
        yield f"modprobe -q -b {driver}"
    yield "exit 0"
