# SPDX-License-Identifier: Apache-2.0
"""Guests with eight GPUs whose memory is large: their domains, and where these lie."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

from nova_hpc.guest_tree import Abi, TopologyMode, TreeDevice, plan_guest_pci_tree, windows
from nova_hpc.guest_tree.windows import GIB
from nova_hpc.topology.model import Bar
from nova_hpc_common.level import Location
from tests.unit.virt.tree_worlds import UEFI, domain
from virt_driver_patches.domain import pcie_tree
from virt_driver_patches.domain.guest_domain import GuestDomainXml

GOLDEN: Final = Path(__file__).parents[2] / "data/golden/big-bars"
GPUS: Final = 8
#: Beside the large one each of the cards that are sold has one such.
SMALL: Final = 32 << 20


@attrs.frozen
class Guest:
    """One of the guests that are tried."""

    gib: int  # of the largest BAR of each GPU
    mode: TopologyMode
    machine: str  # q35 or pc
    uefi: bool

    @property
    def name(self) -> str:
        return f"{self.gib}-{self.mode.value}-{self.machine}-{'uefi' if self.uefi else 'bios'}"

    def devices(self) -> list[TreeDevice]:
        """Two below each of four switches, as on many boards."""
        bars = (
            Bar(0, 16 << 20),
            Bar(1, self.gib * GIB, prefetchable=True, wide=True),
            Bar(3, SMALL, prefetchable=True, wide=True),
        )
        return [
            TreeDevice(
                address=f"0000:{0x20 + number:02x}:00.0",
                location=Location(
                    numa=0, root="pci0000:10", switches=(f"0000:{0x11 + number // 2:02x}:00.0",)
                ),
                span=windows.span_of_bars(bars),
            )
            for number in range(GPUS)
        ]

    def domain(self) -> str:
        """The domain for software emulation, which has the address bits that are needed."""
        devices, rules = self.devices(), Abi(self.mode)
        machine = "pc-q35-9.2" if self.machine == "q35" else "pc-i440fx-9.2"
        xml = domain(
            [each.address for each in devices],
            cells=1,
            machine=machine,
            loader=UEFI if self.uefi else "",
        ).replace('"kvm"', '"qemu"')
        found = GuestDomainXml(xml)
        if self.mode is TopologyMode.FLAT:
            pcie_tree.make_room(found, devices, rules)
        else:
            pcie_tree.arrange_pcie_tree(found, plan_guest_pci_tree(devices, {0: 0}, rules), rules)
        return found.text()


GUESTS: Final = tuple(
    Guest(gib, mode, machine, uefi)
    for gib in (128, 256, 512)
    for mode, machine, uefi in (
        (TopologyMode.FLAT, "q35", False),
        (TopologyMode.FLAT, "q35", True),
        (TopologyMode.FLAT, "pc", False),
        (TopologyMode.MIRROR, "q35", False),
        (TopologyMode.MIRROR, "q35", True),
    )
)
