# SPDX-License-Identifier: Apache-2.0
"""A node's sysfs in a folder, for its readers and checks: 16 GPUs, 16 adapters, their VFs."""

from __future__ import annotations

from pathlib import Path

from tests.unit.topology.builder import Machine, config

_BOARD = (0x10DE, 0x16C1)
#: Files of the kernel for a GPU and for an adapter's function.
_FILES = {
    "subsystem_vendor": "0x10de",
    "subsystem_device": "0x16c1",
    "revision": "0xa1",
    "reset_method": "flr bus",
    "current_link_speed": "32.0 GT/s PCIe",
    "max_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_width": "16",
    "aer_dev_fatal": "TOTAL_ERR_FATAL 0",
    "aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
    "resource": "\n".join(
        ["0x0000200000000000 0x0000201fffffffff 0x000000000014220c"]
        + [" ".join(["0x0000000000000000"] * 3)] * 12
    ),
}
_ADAPTER = {"vendor": "0x15b3", "device": "0x1021", "class": "0x020700"}


def build(root: Path, gpus: int, adapters: int, functions: int) -> tuple[list[str], list[str]]:
    """Make the tree: two GPUs and two adapters below each switch.

    :param functions: number of virtual functions of each adapter.
    :returns: addresses of the GPUs and of the virtual functions.
    """
    machine = Machine(root)
    machine.file("proc/sys/kernel/random/boot_id", "5f0c0f6e-8b1c-4b64-9f3e-0d1c1d1c1d1c\n")
    cards, virtual = [], []
    for switch in range(max(gpus, adapters) // 2):
        node = switch * 2 * 2 // max(gpus, adapters)
        bus = 0x10 * switch
        root_port = f"pci{switch:04x}:00/{switch:04x}:00:01.0"
        machine.bridge(root_port, 4, (1, 0x40), node=node)
        upstream = f"{root_port}/{switch:04x}:01:00.0"
        machine.bridge(upstream, 5, (2, 0x40), acs=None, node=node)
        for slot in range(4):
            below, bus = f"{upstream}/{switch:04x}:02:{slot:02x}.0", 0x10 + 8 * slot
            machine.bridge(below, 6, (bus, bus + 7), acs=(0x5F, 0x5D), node=node)
            place = f"{below}/{switch:04x}:{bus:02x}:00.0"
            number = 0x100 * switch + 0x20 * slot
            if slot < 2 and switch * 2 + slot < gpus:
                machine.function(
                    place,
                    files=_FILES,
                    space=config(subsystem=_BOARD),
                    node=node,
                    driver="vfio-pci",
                    group=number,
                )
                cards.append(place.rpartition("/")[2])
            elif slot >= 2 and switch * 2 + slot - 2 < adapters:
                _adapter(machine, place, node, number, functions, virtual)
    return cards, virtual


def _adapter(
    machine: Machine, place: str, node: int, number: int, functions: int, virtual: list[str]
) -> None:
    files = {**_FILES, **_ADAPTER, "sriov_totalvfs": str(functions)}
    space = config(0x15B3, 0x1021, 0x020700, subsystem=_BOARD)
    pf = machine.function(
        place, files=files, space=space, node=node, driver="mlx5_core", group=number
    )
    relative = pf.relative_to(machine.root)
    up, _, address = place.rpartition("/")
    for index in range(functions):
        name = f"{address.rpartition(':')[0]}:{(index + 1) >> 3:02x}.{(index + 1) & 7}"
        place_of = f"{up}/{name}"
        machine.function(
            place_of,
            files={**_FILES, **_ADAPTER, "device": "0x1022"},
            # Only the physical function has the ids and the state of the link.
            space=config(0xFFFF, 0xFFFF, 0x020700, subsystem=_BOARD, link=(0, 0, 5, 16)),
            node=node,
            driver="vfio-pci",
            group=number + 1 + index,
        )
        machine.link(f"sys/devices/{place_of}/physfn", f"../{address}")
        machine.link(f"{relative}/virtfn{index}", f"../{name}")
        virtual.append(name)
