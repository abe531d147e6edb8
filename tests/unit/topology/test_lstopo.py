# SPDX-License-Identifier: Apache-2.0
"""The XML of real machines, of every version of hwloc."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nova_hpc.topology.model import BridgeKind, InventoryError, Node, PciFunction
from nova_hpc_common.level import Distance, Level, common_level, distance_between
from nova_hpc_tools.main import main
from nova_hpc_tools.site import lstopo


@pytest.fixture(scope="session")
def dgx2(captures: Path) -> Node:
    return lstopo.read_lstopo_file(captures / "hwloc/nvidiaDGX2.xml")


def gpus(node: Node) -> list[PciFunction]:
    return [f for f in node.functions if (f.vendor_id, f.product_id) == ("10de", "1db8")]


def test_dgx2_devices(dgx2: Node) -> None:
    assert not dgx2.problems
    assert len(gpus(dgx2)) == 16
    assert [f.numa_node for f in gpus(dgx2)] == [0] * 8 + [1] * 8
    assert {f.class_code for f in gpus(dgx2)} == {"030200"}
    switches = [f for f in dgx2.functions if f.product_id == "1ac2"]
    assert len(switches) == 11
    # One NVSwitch of that machine did not answer.
    unknown = [(f.address, f.unknown) for f in dgx2.functions if f.unknown]
    assert unknown == [("0000:66:00.0", "pci_type: no vendor")]


def test_dgx2_places(dgx2: Node) -> None:
    first = gpus(dgx2)[0]
    assert first.address == "0000:34:00.0"
    assert first.path == (
        "0000:2b:00.0",
        "0000:2c:00.0",
        "0000:2d:04.0",
        "0000:32:00.0",
        "0000:33:00.0",
    )
    assert first.switches == ("0000:2c:00.0", "0000:32:00.0")
    assert (first.root, first.socket) == ("pci0000:2b", 0)
    kinds = [dgx2.function(address).bridge for address in first.path]  # type: ignore[union-attr]
    assert kinds == [
        BridgeKind.ROOT_PORT,
        BridgeKind.UPSTREAM,
        BridgeKind.DOWNSTREAM,
        BridgeKind.UPSTREAM,
        BridgeKind.DOWNSTREAM,
    ]


def test_dgx2_distances(dgx2: Node) -> None:
    places = [f.location for f in gpus(dgx2)]
    row = [distance_between(places[0], place) for place in places[1:]]
    assert row == [
        Distance.PIX, *[Distance.PXB] * 2, *[Distance.NODE] * 4, *[Distance.SYS] * 8,
    ]  # fmt: skip
    assert common_level(places[:2]) is Level.SWITCH
    assert common_level(places[:4]) is Level.SWITCH  # the first switch above them all
    assert common_level(places[:8]) is Level.NUMA
    assert common_level(places) is Level.HOST


def test_many_virtual_functions(captures: Path) -> None:
    node = lstopo.read_lstopo_file(captures / "hwloc/16intel64-manyVFs.xml")
    assert not node.problems
    assert not [f.address for f in node.functions if f.unknown]
    nics = [f for f in node.functions if f.product_id == "00cf"]
    assert nics
    assert {f.model for f in nics} == {"VIC Userspace NIC"}
    assert {f.numa_node for f in nics} == {0, 1}
    assert node.function("0000:0b:00.0").os_devices == ("net eth4", "infiniband usnic_0")  # type: ignore[union-attr]


def test_links_have_a_bandwidth_only(dgx2: Node) -> None:
    link = gpus(dgx2)[0].link
    assert link is not None
    assert link.bandwidth == pytest.approx(15.753846)
    assert link.degraded is None


VERSION_1 = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc.dtd">
<topology>
  <object type="Machine" os_index="0" cpuset="0x0000000f" nodeset="0x00000003">
    <object type="NUMANode" os_index="0" cpuset="0x00000003" nodeset="0x00000001"
            local_memory="2147483648">
      <page_type size="4096" count="524288"/>
      <page_type size="2097152" count="7"/>
      <object type="Socket" os_index="4" cpuset="0x00000003" nodeset="0x00000001">
        <object type="Core" os_index="0" cpuset="0x00000003" nodeset="0x00000001">
          <object type="PU" os_index="0" cpuset="0x00000001" nodeset="0x00000001"/>
          <object type="PU" os_index="1" cpuset="0x00000002" nodeset="0x00000001"/>
        </object>
      </object>
      <object type="Bridge" os_index="0" bridge_type="0-1" depth="0" bridge_pci="10000:[00-01]">
        <object type="Bridge" bridge_type="1-1" depth="1" bridge_pci="10000:[01-01]"
                pci_busid="10000:00:01.0" pci_type="0604 [8086:3408] [0000:0000] 13">
          <object type="PCIDev" pci_busid="10000:01:00.0"
                  pci_type="0207 [15b3:1021] [003c:0049] b0" pci_link_speed="2.000000">
            <object type="OSDev" name="mlx5_0" osdev_type="3"/>
          </object>
        </object>
      </object>
    </object>
    <object type="NUMANode" os_index="1" cpuset="0x0000000c" nodeset="0x00000002">
      <object type="PU" os_index="2" cpuset="0x00000004" nodeset="0x00000002"/>
      <object type="PU" os_index="3" cpuset="0x00000008" nodeset="0x00000002"/>
    </object>
  </object>
</topology>
"""


def test_hwloc_1(tmp_path: Path) -> None:
    """NUMA nodes around cores, sockets by their old name, no programming interface."""
    (tmp_path / "old.xml").write_text(VERSION_1)
    node = lstopo.read_lstopo_file(tmp_path / "old.xml")
    assert not node.problems
    first, second = node.numa_nodes
    assert (first.socket, first.cpus, first.memory_kib) == (4, frozenset({0, 1}), 2 << 20)
    assert first.smt_siblings == (frozenset({0, 1}),)
    assert [(p.size_kib, p.total) for p in first.hugepages] == [(2048, 7)]
    assert second.smt_siblings == (frozenset({2}), frozenset({3}))
    adapter = node.function("10000:01:00.0")
    assert adapter is not None
    assert (adapter.root, adapter.path) == ("pci10000:00", ("10000:00:01.0",))
    assert (adapter.numa_node, adapter.socket) == (0, 4)
    assert adapter.class_code == "0207"
    assert adapter.os_devices == ("infiniband mlx5_0",)


DEVICE = '<object type="PCIDev" pci_busid="{}" pci_type="0302 [10de:20b7] [10de:1532] a1"/>'
HEAD = (
    '<topology version="2.0"><object type="Machine" os_index="0" cpuset="0x1">{}'
    '<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[00-ff]">{}</object></object>'
    "</topology>"
)


def addresses(count):
    return (f"{n >> 16:04x}:{n >> 8 & 255:02x}:{n >> 3 & 31:02x}.{n & 7}" for n in range(count))


CORE = '<object type="Core" os_index="{}" cpuset="' + ",".join(["0xffffffff"] * 400) + '"/>'
LARGE = {
    "PCI functions": HEAD.format("", "".join(map(DEVICE.format, addresses(44_000)))),
    "NUMA nodes": HEAD.format(
        "".join(f'<object type="NUMANode" os_index="{n}" cpuset="0x1"/>' for n in range(90_000)),
        DEVICE.format("0000:00:01.0"),
    ),
    "CPUs in its masks": HEAD.format(
        "".join(map(CORE.format, range(1_100))), DEVICE.format("0000:00:01.0")
    ),
    "objects": HEAD.format('<object type="Group"/>' * 230_000, DEVICE.format("0000:00:01.0")),
}


@pytest.mark.parametrize("what", sorted(LARGE))
def test_five_megabytes_are_refused_by_what_is_too_much(what, tmp_path):
    """Before, 44,000 functions kept ``configure`` busy for hours; masks took a GiB."""
    path = tmp_path / "node.xml"
    path.write_text(LARGE[what])
    assert path.stat().st_size > 4_000_000
    begin = time.process_time()
    with pytest.raises(InventoryError, match=rf"more than \d+ {what}, so not the XML of a node"):
        lstopo.read_lstopo_file(path)
    assert time.process_time() - begin < 20


@pytest.mark.long
def test_the_largest_node_that_is_read_is_configured_in_time(tmp_path, capsys):
    path = tmp_path / "node.xml"
    text = "".join(map(DEVICE.format, addresses(lstopo.MOST_FUNCTIONS)))
    path.write_text(HEAD.format("", text))
    begin = time.process_time()
    assert main(["configure", "--xml", str(path), "--part", "compute"]) == 0
    assert time.process_time() - begin < 60
    assert capsys.readouterr().out.count("device_spec = ") == lstopo.MOST_FUNCTIONS


def test_of_many_problems_the_first_are_told(tmp_path):
    path = tmp_path / "node.xml"
    path.write_text(HEAD.format("", DEVICE.format("0000:00:01.0") * 3000))
    node = lstopo.read_lstopo_file(path)
    assert len(node.problems) == 21
    assert node.problems[-1] == "and 2979 more problems like these"
