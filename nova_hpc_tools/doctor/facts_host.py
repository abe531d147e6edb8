# SPDX-License-Identifier: Apache-2.0
"""Facts about a host for ``nova-hpc doctor`` that are not in its inventory.

Examples are other tools that set the host up, the mode of the IOMMU, and power saving.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from nova_hpc.topology.files import FileError, FileTree
from nova_hpc.topology.model import Node
from nova_hpc_tools.adopt import host_files
from nova_hpc_tools.doctor.checks_host import Frequency, HostFacts, Rule
from nova_hpc_tools.site import include_files, kernel_options

#: The kernel has no address space for the BAR (IORESOURCE_UNSET, include/linux/ioport.h).
_UNSET: Final = 0x20000000
_RESOURCE: Final = re.compile(r"0x[0-9a-f]+ 0x[0-9a-f]+ (0x[0-9a-f]+)")
_BARS: Final = 6
#: Files that make a host write files of sysfs at boot.
_BOOT: Final = (
    "etc/udev/rules.d/*.rules",
    "etc/systemd/system/*.service",
    "etc/tmpfiles.d/*.conf",
    "etc/rc.local",
    "etc/sysfs.conf",
    "etc/sysfs.d/*.conf",
)
_NUMVFS: Final = "sriov_numvfs"
#: The folders of udev; a file hides files of the same name in later folders.
_RULES: Final = ("etc/udev/rules.d", "run/udev/rules.d", "usr/lib/udev/rules.d")
_OVERRIDE: Final = re.compile(r'ATTR\{driver_override\}\s*=\s*"([\w-]+)"')
#: ``/sys/kernel/iommu_groups/N/type`` (Documentation/ABI/testing/sysfs-kernel-iommu_groups).
_TRANSLATED: Final = ("DMA", "DMA-FQ")
#: Programs that libvirt runs at each start and end of a guest (https://libvirt.org/hooks.html).
_HOOKS: Final = ("etc/libvirt/hooks/qemu", "etc/libvirt/hooks/qemu.d/*")
#: NVIDIA's tool for partitions, its library, and functions of the library.
_PARTITIONS: Final = re.compile(
    r"^[^#\n]*(?:\bfmpm\b|libnvfm|fm(?:Dea|A)ctivateFabricPartition|fabric[-_ ]?partition)",
    re.IGNORECASE | re.MULTILINE,
)
_POLICY: Final = re.compile(r"\[(\w+)\]")


def read_host_facts(
    root: Path | None, node: Node, addresses: Iterable[str], cpus: Iterable[int]
) -> HostFacts:
    """Read the host's facts for the checks; an unreadable file counts as missing.

    :param root: the folder with the host's files; None if unknown.
    :param addresses: the offered functions, and their adapters.
    :param cpus: the dedicated CPUs.
    """
    if root is None:
        return HostFacts()
    tree, offered_addresses = FileTree(root), tuple(addresses)
    prepared = [
        path
        for path in host_files.ALL
        if host_files.is_prepared_file(include_files.read_text_or_empty(root / path))
    ]
    return HostFacts(
        unassigned={
            address: bars
            for address in offered_addresses
            if (bars := tuple(_find_unassigned_bars(tree, address)))
        },
        overrides=dict(_read_driverctl_overrides(root, offered_addresses)),
        numvfs=tuple(_find_numvfs_writers(root, prepared))
        if _has_prepared_numvfs(root, prepared)
        else (),
        not_booted=tuple(_find_missing_boot_words(root)) if host_files.GRUB in prepared else (),
        rules=_find_driver_rules(root, offered_addresses, prepared),
        kernel=kernel_options.read_kernel_options(root, host_files.ALL),
        translated=tuple(_find_translated_functions(tree, node)),
        aspm=_read_aspm_policy(tree),
        frequencies=dict(_read_cpu_frequencies(tree, cpus)),
        partition_hooks=tuple(_find_partition_hooks(root)),
    )


def _find_unassigned_bars(tree: FileTree, address: str) -> Iterator[int]:
    try:
        lines = (tree.text(f"/sys/bus/pci/devices/{address}/resource") or "").splitlines()
    except FileError:
        return
    for index, line in enumerate(lines[:_BARS]):
        match = _RESOURCE.fullmatch(line.strip())
        if match is not None and int(match[1], 16) & _UNSET:
            yield index


def _read_driverctl_overrides(root: Path, addresses: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield PCI address and driver of each binding that driverctl makes at boot.

    driverctl has a file for each device: ``pci-`` and its address.
    """
    for address in addresses:
        driver = include_files.read_text_or_empty(root / f"etc/driverctl.d/pci-{address}").strip()
        if driver:
            yield address, driver


def _has_prepared_numvfs(root: Path, prepared: Iterable[str]) -> bool:
    return any(_NUMVFS in include_files.read_text_or_empty(root / path) for path in prepared)


def _find_numvfs_writers(root: Path, prepared: Iterable[str]) -> Iterator[str]:
    prepared_paths = {root / path for path in prepared}
    for pattern in _BOOT:
        for path in sorted(root.glob(pattern)):
            if path not in prepared_paths and _NUMVFS in include_files.read_text_or_empty(path):
                yield f"/{path.relative_to(root)}"


def _find_missing_boot_words(root: Path) -> Iterator[str]:
    """Yield words of the prepared command line that the running kernel's command line lacks."""
    booted_words = kernel_options.split_command_line(
        include_files.read_text_or_empty(root / "proc/cmdline")
    )
    match = re.search(
        r'"\$GRUB_CMDLINE_LINUX ([^"]*)"', include_files.read_text_or_empty(root / host_files.GRUB)
    )
    if booted_words and match is not None:
        yield from (word for word in match[1].split() if word not in booted_words)


def _find_driver_rules(
    root: Path, addresses: Iterable[str], prepared: Iterable[str]
) -> dict[str, tuple[Rule, ...]]:
    """Return address -> udev rules of others that name this offered device and give it a driver."""
    prepared_paths, seen = {root / path for path in prepared}, set()
    rules_by_address: dict[str, list[Rule]] = {}
    for folder in _RULES:
        for path in sorted((root / folder).glob("*.rules")):
            if path in prepared_paths or path.name in seen:
                continue
            seen.add(path.name)
            for line in include_files.read_text_or_empty(path).replace("\\\n", " ").splitlines():
                match = _OVERRIDE.search(line)
                if line.lstrip().startswith("#") or match is None:
                    continue
                for address in addresses:
                    if f'"{address}"' in line:
                        rule = Rule(f"/{path.relative_to(root)}", match[1])
                        rules_by_address.setdefault(address, []).append(rule)
    return {address: tuple(rules) for address, rules in rules_by_address.items()}


def _find_partition_hooks(root: Path) -> Iterator[str]:
    for pattern in _HOOKS:
        for path in sorted(root.glob(pattern)):
            if path.is_file() and _PARTITIONS.search(include_files.read_text_or_empty(path)):
                yield f"/{path.relative_to(root)}"


def _find_translated_functions(tree: FileTree, node: Node) -> Iterator[str]:
    for function in node.functions:
        if function.driver is None or function.is_bridge or function.iommu_group is None:
            continue
        if function.on_vfio:
            continue
        if (
            _read_sysfs_line(tree, f"/sys/kernel/iommu_groups/{function.iommu_group}/type")
            in _TRANSLATED
        ):
            yield function.address


def _read_aspm_policy(tree: FileTree) -> str | None:
    match = _POLICY.search(_read_sysfs_line(tree, "/sys/module/pcie_aspm/parameters/policy"))
    return None if match is None else match[1]


def _read_cpu_frequencies(tree: FileTree, cpus: Iterable[int]) -> Iterator[tuple[int, Frequency]]:
    for cpu in sorted(cpus):
        folder = f"/sys/devices/system/cpu/cpu{cpu}/cpufreq"
        driver = _read_sysfs_line(tree, f"{folder}/scaling_driver")
        governor = _read_sysfs_line(tree, f"{folder}/scaling_governor")
        if driver and governor:
            yield cpu, Frequency(driver, governor)


def _read_sysfs_line(tree: FileTree, path: str) -> str:
    """Read the text of a small file; "" if it does not exist or cannot be read."""
    try:
        return (tree.text(path) or "").strip()
    except FileError:
        return ""
