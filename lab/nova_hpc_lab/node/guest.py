# SPDX-License-Identifier: Apache-2.0
"""The tenant's guest: a Debian kernel, and an initramfs that reports its devices and CPUs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_guest.build import single_file
from nova_hpc_lab.node import cache
from nova_hpc_lab.node.image import GUEST_MODULES, find_image
from nova_hpc_lab.node.initramfs import add_modules, add_tree, base_archive
from nova_hpc_lab.state import Paths

#: Kernel command line for Glance's ``os_command_line`` property.
COMMAND_LINE: Final = (
    "quiet loglevel=4 tsc=reliable no_timer_check nokaslr nohz=off highres=off nopvspin"
    " console=ttyS0"
)

_INSIDE: Final = Path(__file__).parent / "inside"
_REPORT: Final = re.compile(
    r"=== nova-hpc guest report (\d+) begin ===\n(.*?)\n=== nova-hpc guest report \1 end ===",
    re.DOTALL,
)


@attrs.frozen
class GuestFunction:
    """One PCI function as the guest sees it."""

    address: str  #: "0000:00:05.0"
    ids: str  #: "8086:10ca"
    device_class: str  #: six hex digits, "020000"
    driver: str | None
    numa_node: int  #: -1 if the guest has no information
    bars: tuple[int, ...]  #: sizes in bytes of the existing BARs
    macs: tuple[str, ...]  #: of the network devices of this function
    #: Its path below /sys/devices: its root complex, the bridges above it, and itself.
    path: tuple[str, ...] = ()


@attrs.frozen
class GuestCell:
    """One NUMA cell as the guest sees it."""

    number: int
    cpus: str  #: "0-1"
    memory_kib: int


@attrs.frozen
class GuestReport:
    """The latest complete report in a guest's console."""

    functions: tuple[GuestFunction, ...]
    cells: tuple[GuestCell, ...]
    cpus: int  #: online
    memory_kib: int  #: MemTotal
    kernel: str
    #: Output of its ``nova-hpc-guest check``, and the exit status; None if the guest does not have
    #: the command.
    check: tuple[str, ...] = ()
    check_status: int | None = None

    @property
    def macs(self) -> frozenset[str]:
        """MAC addresses of all adapters, lower case."""
        return frozenset(mac for function in self.functions for mac in function.macs)


def guest_image(paths: Paths) -> tuple[Path, Path]:
    """Return the paths of kernel and initramfs that servers boot (``kernel_id``, ``ramdisk_id``).

    Both are made from the node's image, so ``prepare_image`` has to be called first. They are
    cached and checked like the image.

    :raises LabError: the image of the node does not exist yet.
    """
    image = find_image(paths)
    script = (_INSIDE / "guest-init.sh").read_bytes()
    command = single_file()
    name = f"guest-{cache.key_of(image.folder.name, script, command, *GUEST_MODULES)}"

    def make(target: Path) -> None:
        archive = base_archive(image.busybox)
        add_modules(archive, image.modules, GUEST_MODULES)
        add_tree(archive, image.guest_python)
        archive.file("usr/local/bin/nova-hpc-guest", command, 0o755)
        archive.file("init", script, 0o755)
        (target / "initramfs.gz").write_bytes(archive.pack())

    folder = paths.cache / "node"
    made = cache.entry(folder, name, make)
    cache.remove_others(folder, "guest-", name)
    return image.kernel, made / "initramfs.gz"


def parse_report(console: str) -> GuestReport | None:
    """Parse the last complete report in the text of a guest's console; None without one.

    Broken or incomplete reports are ignored.
    """
    found = _REPORT.findall(console.replace("\r", ""))
    for _, body in reversed(found):
        try:
            return _read(body)
        except (ValueError, IndexError, KeyError):
            continue
    return None


def _read(body: str) -> GuestReport:
    single: dict[str, str] = {}
    functions: dict[str, GuestFunction] = {}
    bars: dict[str, list[int]] = {}
    macs: dict[str, list[str]] = {}
    paths: dict[str, tuple[str, ...]] = {}
    cells = []
    check = []
    for line in body.splitlines():
        key, _, rest = line.partition(" ")
        words = rest.split()
        if key == "pci":
            address, ids, device_class, driver, numa = words
            functions[address] = GuestFunction(
                address=address,
                ids=ids,
                device_class=device_class,
                driver=None if driver == "-" else driver,
                numa_node=int(numa),
                bars=(),
                macs=(),
            )
        elif key == "path":
            paths[words[0]] = tuple(words[1].split("/"))
        elif key == "bar":
            bars.setdefault(words[0], []).append(int(words[2]))
        elif key == "mac":
            macs.setdefault(words[0], []).append(words[1].lower())
        elif key == "cell":
            cells.append(GuestCell(int(words[0]), words[2], int(words[4])))
        elif key == "check":
            check.append(rest)
        elif key in ("kernel", "cpus", "memory_kib", "check_status"):
            single[key] = rest
    functions = {
        address: attrs.evolve(function, path=paths.get(address, ()))
        for address, function in functions.items()
    }
    return _report(single, functions, bars, macs, cells, check)


def _report(
    single: Mapping[str, str],
    functions: Mapping[str, GuestFunction],
    bars: Mapping[str, list[int]],
    macs: Mapping[str, list[str]],
    cells: list[GuestCell],
    check: list[str],
) -> GuestReport:
    return GuestReport(
        functions=tuple(
            attrs.evolve(
                function,
                bars=tuple(bars.get(address, ())),
                macs=tuple(macs.get(address, ())),
            )
            for address, function in sorted(functions.items())
        ),
        cells=tuple(cells),
        cpus=int(single["cpus"]),
        memory_kib=int(single["memory_kib"]),
        kernel=single["kernel"],
        check=tuple(check),
        check_status=int(single["check_status"]) if "check_status" in single else None,
    )
