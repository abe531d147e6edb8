# SPDX-License-Identifier: Apache-2.0
"""The whole way of a domain: Nova's text in, the text for libvirt out, byte for byte.

The files were written by the code that parsed the domain anew for every change. A
server that was started then has this hardware, so nothing here may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nova_hpc.guest_tree import Abi, TopologyMode, TreeDevice, plan_guest_pci_tree, windows
from nova_hpc.guest_tree.guest_document import DocumentCell
from nova_hpc.topology.model import Bar, Node, PciFunction
from tests.unit.virt.test_pcie_tree_golden import same
from tests.unit.virt.tree_worlds import UEFI, domain
from virt_driver_patches.domain import emulator_threads, fwcfg, pcie_tree
from virt_driver_patches.domain.guest_domain import GuestDomainXml

GOLDEN = Path(__file__).parents[3] / "tests/data/golden"
GPU = (Bar(1, 32 << 30, prefetchable=True, wide=True),)
PINNED = """<vcpu>4</vcpu>
  <cputune>
    <vcpupin vcpu="0" cpuset="2"/>
    <vcpupin vcpu="1" cpuset="3"/>
    <emulatorpin cpuset="2-3"/>
    <iothreadpin iothread="1" cpuset="2-3"/>
  </cputune>"""
#: What users may write, as Nova escapes it, a comment and elements of others.
STRANGE = """<metadata>
    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:name>s&lt;/name&gt;&amp;#x0;]]&gt; "'\u00e4\u4e00</nova:name>
    </nova:instance>
  </metadata>
  <!-- kept -->
  <sysinfo type="fwcfg"><entry name="opt/com.example/x">kept</entry></sysinfo>
  <vcpu>4</vcpu>"""
NODE = Node(
    "x",
    functions=tuple(
        PciFunction(
            address,
            vendor_id="10de" if gpu else "15b3",
            product_id="2330" if gpu else "101e",
            class_code="030200" if gpu else "020700",
            numa_node=numa,
            root=f"pci0000:{'80' if numa else '20'}",
            path=switches,
            switches=switches,
            bars=GPU if gpu else (),
        )
        for address, gpu, numa, switches in (
            ("0000:24:00.0", True, 0, ("0000:22:00.0",)),
            ("0000:25:00.0", True, 0, ("0000:22:00.0",)),
            ("0000:26:10.1", False, 0, ("0000:22:00.0",)),
            ("0000:81:00.0", True, 1, ("0000:80:00.0",)),
            ("0000:82:10.0", False, 1, ("0000:80:01.0",)),
        )
    ),
)
EVERY = [function.address for function in NODE.functions]
ROLES = {each.address: "gpu" if each.vendor_id == "10de" else "vf" for each in NODE.functions}


def devices(addresses: list[str]) -> list[TreeDevice]:
    found = [NODE.function(each) for each in addresses]
    return [
        TreeDevice(
            each.address,
            each.location,
            windows.span_of_bars(each.bars),
            clique=each.vendor_id == "10de",
        )
        for each in found
    ]


def whole(xml: str, abi: Abi | None, cells: Mapping[int, int], cpus=(), told: bool = True) -> str:
    """Everything that the driver does to a domain, in its order."""
    guest = GuestDomainXml(xml)
    addresses = [address for address, _ in guest.passed_through()]
    if abi is not None and abi.mode is not TopologyMode.FLAT and addresses:
        pcie_tree.arrange_pcie_tree(guest, plan_guest_pci_tree(devices(addresses), cells, abi), abi)
    emulator_threads.pin_emulator_threads(guest, frozenset(cpus))
    if told and abi is not None:
        said = tuple(DocumentCell(2, 4 << 20, 2048, numa) for numa in cells)
        fwcfg.tell_guest_devices(guest, NODE, abi.mode.value, said, ROLES)
    return guest.text()


BOTH = {0: 0, 1: 1}


@pytest.mark.parametrize(
    ("name", "xml", "abi", "cells", "cpus"),
    [
        ("mirror", domain(EVERY), Abi(TopologyMode.MIRROR, clique=True), BOTH, ()),
        (
            "mirror-pinned-uefi",
            domain(EVERY[:4], loader=UEFI, root_ports=16).replace("<vcpu>4</vcpu>", PINNED),
            Abi(TopologyMode.MIRROR, clique=True),
            BOTH,
            {0, 1, 8},
        ),
        (
            "mirror-ports-strange",
            domain(EVERY[:2], cells=0, ports=EVERY[2:3]).replace("<vcpu>4</vcpu>", STRANGE),
            Abi(TopologyMode.MIRROR),
            {},
            (),
        ),
        (
            "numa-pinned",
            domain(EVERY, cells=1).replace("<vcpu>4</vcpu>", PINNED),
            Abi(TopologyMode.NUMA, clique=True),
            {1: 0},
            {0, 1},
        ),
        (
            "flat-pinned-strange",
            domain(EVERY[::-1], machine="pc").replace("<vcpu>4</vcpu>", STRANGE + PINNED),
            Abi(TopologyMode.FLAT),
            BOTH,
            {0, 1},
        ),
        ("no-record-pinned", domain(EVERY).replace("<vcpu>4</vcpu>", PINNED), None, BOTH, {0}),
    ],
)
def test_the_text_for_libvirt(name, xml, abi, cells, cpus):
    same(GOLDEN / f"whole-v1-{name}.xml", whole(xml, abi, cells, cpus) + "\n")


@pytest.mark.parametrize("abi", [None, Abi(TopologyMode.FLAT), Abi(TopologyMode.MIRROR)])
def test_a_domain_that_needs_no_change_is_novas_own_text(abi):
    xml = "<?xml version='1.0'?>" + domain([], machine="pc").replace("<vcpu>4</vcpu>", STRANGE)
    assert whole(xml, abi, BOTH, {0}) is xml
