# SPDX-License-Identifier: Apache-2.0
"""Flat guests get room for the memory of their devices, as the others do.

The domains are golden; tests/lab/test_firmware.py boots what they say.
"""

from __future__ import annotations

import pytest
from lxml import etree

from nova_hpc.guest_tree import Abi, TopologyMode, TreeDevice
from nova_hpc_common.level import Location
from tests.unit.virt.big_bars import GOLDEN, GUESTS, Guest
from tests.unit.virt.test_pcie_tree_golden import same
from tests.unit.virt.tree_worlds import domain
from virt_driver_patches.domain import pcie_tree
from virt_driver_patches.domain.guest_domain import GuestDomainXml

QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"
#: GiB of a BAR -> GiB of the window, and address bits with 8 GiB of memory.
ROOM = {128: (2048, 42), 256: (4096, 43), 512: (8192, 44)}


@pytest.mark.parametrize("guest", GUESTS, ids=lambda guest: guest.name)
def test_the_domain(valid, guest: Guest) -> None:
    text = guest.domain()
    valid(text)
    root = etree.fromstring(text)
    window, bits = ROOM[guest.gib]
    model = "pcie-root" if guest.machine == "q35" else "pci-root"
    hole = root.find(f"devices/controller[@model='{model}']/pcihole64")
    assert int(hole.text) >> 20 == window
    assert root.find("cpu/maxphysaddr").get("bits") == str(bits)
    told = [each.get("value") for each in root.iterfind(f"{QEMU}commandline/{QEMU}arg")]
    assert told == (
        ["-fw_cfg", f"name=opt/ovmf/X-PciMmio64Mb,string={window << 10}"] if guest.uefi else []
    )
    same(GOLDEN / f"{guest.name}.xml", text + "\n")


@pytest.mark.parametrize(
    ("version", "machine", "devices"),
    [
        # As it was made when the server was started: its hardware must not change.
        (1, "pc-q35-9.2", GUESTS[0].devices()),
        # Nobody knows how to widen that.
        (2, "virt", GUESTS[0].devices()),
        # Room enough; and a device of which nothing is known.
        (2, "pc-q35-9.2", [TreeDevice("0000:20:00.0", Location())]),
        (2, "pc-q35-9.2", []),
    ],
)
def test_a_flat_guest_that_stays_as_it_is(version, machine, devices) -> None:
    xml = domain([each.address for each in devices], machine=machine)
    found = GuestDomainXml(xml)
    pcie_tree.make_room(found, devices, Abi(TopologyMode.FLAT, version=version))
    assert found.text() is xml
