# SPDX-License-Identifier: Apache-2.0
"""A real (virtual) machine: SR-IOV, IOMMU groups, ACS, reset methods, offline CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from nova_hpc.topology import sysfs
from nova_hpc.topology.model import Bar, BridgeKind, HugePages, Node, PciFunction
from nova_hpc_common.level import Distance, Level, common_level, distance_between

DISPLAY, ADAPTER, VF = "0000:23:00.0", "0000:24:00.0", "0000:24:10.0"
DISPLAY_1, ADAPTER_1, VF_1, OTHER_VF_1 = (
    "0000:81:00.0", "0000:82:00.0", "0000:82:10.0", "0000:82:10.2",
)  # fmt: skip


@pytest.fixture(scope="module")
def node(virtual_node: Path) -> Node:
    return sysfs.read_sysfs_node(virtual_node)


def get(node: Node, address: str) -> PciFunction:
    function = node.function(address)
    assert function is not None
    return function


def test_nothing_is_unknown(node: Node) -> None:
    assert not node.problems
    assert [f.address for f in node.functions if f.unknown] == []
    assert node.hostname == "virtual1"


def test_numa_nodes(node: Node) -> None:
    first, second = node.numa_nodes
    assert (first.id, first.socket, first.cpus) == (0, 0, frozenset({0, 1}))
    assert first.smt_siblings == (frozenset({0, 1}),)
    # CPU 3 is offline, and the capture has no link from it to its NUMA node.
    assert node.unplaced_cpus == {3}
    assert (second.id, second.socket, second.cpus) == (1, 1, frozenset({2}))
    assert HugePages(2048, 24, 24) in second.hugepages
    assert HugePages(2048, 0, 0) in first.hugepages
    assert HugePages(2048, 24, 24) in node.hugepages


def test_the_switch(node: Node) -> None:
    kinds = {f.address: f.bridge for f in node.functions if f.is_bridge}
    assert kinds == {
        "0000:20:00.0": BridgeKind.ROOT_PORT,
        "0000:21:00.0": BridgeKind.UPSTREAM,
        "0000:22:00.0": BridgeKind.DOWNSTREAM,
        "0000:22:01.0": BridgeKind.DOWNSTREAM,
        "0000:80:00.0": BridgeKind.ROOT_PORT,
        "0000:80:01.0": BridgeKind.ROOT_PORT,
        "0000:80:02.0": BridgeKind.ROOT_PORT,
    }
    display = get(node, DISPLAY)
    assert display.path == ("0000:20:00.0", "0000:21:00.0", "0000:22:00.0")
    assert display.switches == ("0000:21:00.0",)
    assert (display.root, display.numa_node, display.socket) == ("pci0000:20", 0, 0)
    # Without a switch the root port is the point that devices share.
    assert get(node, VF_1).switches == ("0000:80:01.0",)


@pytest.mark.parametrize(
    ("one", "other", "level", "path"),
    [
        (DISPLAY, VF, Level.SWITCH, Distance.PIX),
        (ADAPTER_1, VF_1, Level.SWITCH, Distance.PIX),
        (DISPLAY_1, VF_1, Level.ROOT, Distance.PHB),
        (DISPLAY, VF_1, Level.HOST, Distance.SYS),
    ],
)
def test_places(node: Node, one: str, other: str, level: Level, path: Distance) -> None:
    places = [get(node, one).location, get(node, other).location]
    assert common_level(places) is level
    assert distance_between(*places) is path


def test_virtual_functions(node: Node) -> None:
    adapter = get(node, ADAPTER_1)
    assert adapter.virtual_functions == (VF_1, OTHER_VF_1)
    assert adapter.total_vfs == 7
    assert adapter.dev_type == "type-PF"
    assert get(node, VF_1).physical_function == ADAPTER_1
    assert get(node, VF_1).dev_type == "type-VF"
    # Its own configuration space says ffff:ffff.
    assert (get(node, VF_1).vendor_id, get(node, VF_1).product_id) == ("8086", "10ca")
    assert get(node, DISPLAY).dev_type == "type-PCI"


def test_iommu_groups_follow_acs(node: Node) -> None:
    """The root ports isolate, the emulated switch does not."""
    shared = get(node, VF)
    assert node.group_members(shared) == ("0000:22:01.0", ADAPTER, VF, "0000:24:10.2")
    assert shared.acs_on_path is False
    alone = get(node, VF_1)
    assert node.group_members(alone) == (VF_1,)
    assert alone.acs_on_path is True
    assert get(node, "0000:80:01.0").acs_isolates is True
    assert get(node, "0000:22:00.0").acs_isolates is False
    assert get(node, "0000:22:00.0").acs_control == 0
    assert sum(len(group.members) for group in node.iommu_groups) == len(node.functions)


def test_drivers_resets_and_devices(node: Node) -> None:
    assert get(node, VF).driver == "vfio-pci"
    assert get(node, ADAPTER).driver == "igb"
    assert get(node, "0000:00:00.0").driver is None
    assert get(node, ADAPTER).reset_methods == ("flr", "pm", "bus")
    # The kernel leaves the file out where it has no method.
    assert get(node, "0000:00:00.0").reset_methods == ()
    assert get(node, ADAPTER).os_devices == ("net eth1",)


def test_bars(node: Node) -> None:
    bars = get(node, DISPLAY).bars
    assert bars[0] == Bar(index=0, size=16 << 20, prefetchable=True)
    adapter = get(node, ADAPTER)
    assert {bar.index for bar in adapter.bars} >= {7, 10}  # the BARs of its VFs
