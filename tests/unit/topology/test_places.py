# SPDX-License-Identifier: Apache-2.0
"""Where things sit, where sources disagree or say little: small machines with one answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from nova_hpc.topology import nccl, peer
from nova_hpc.topology.confspace import parse_config_space
from nova_hpc.topology.model import BridgeKind, Node, PciFunction
from nova_hpc.topology.peer import PeerPath
from nova_hpc.topology.sysfs import read_sysfs_node
from nova_hpc_common.level import Distance, Location, distance_between
from nova_hpc_tools.site import lstopo
from tests.unit.topology.builder import Machine, config
from tests.unit.topology.test_peer import NOTHING, machine

NEAR_MEMORY = """<?xml version="1.0" encoding="UTF-8"?>
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f">
    <object type="Package" os_index="0" cpuset="0x0000000f">
      <object type="NUMANode" os_index="0" cpuset="0x0000000f" local_memory="1073741824"/>
      <object type="NUMANode" os_index="1" cpuset="0x0000000f" local_memory="536870912"/>
      <object type="PU" os_index="0" cpuset="0x00000001"/>
      <object type="PU" os_index="1" cpuset="0x00000002"/>
      <object type="PU" os_index="2" cpuset="0x00000004"/>
      <object type="PU" os_index="3" cpuset="0x00000008"/>
    </object>
  </object>
</topology>
"""

#: A domain of its own (VMD) behind a port of the first.
NESTED = """<?xml version="1.0" encoding="UTF-8"?>
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x00000001">
    <object type="NUMANode" os_index="0" cpuset="0x00000001"/>
    <object type="PU" os_index="0" cpuset="0x00000001"/>
    <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[00-02]">
      <object type="Bridge" bridge_type="1-1" depth="1" bridge_pci="0000:[01-02]"
              pci_busid="0000:00:01.0" pci_type="0604 [8086:3408] [0000:0000] 13">
        <object type="Bridge" bridge_type="0-1" depth="2" bridge_pci="10000:[00-01]">
          <object type="PCIDev" pci_busid="10000:00:02.0"
                  pci_type="0108 [8086:0a54] [8086:4702] 00"/>
        </object>
      </object>
    </object>
  </object>
</topology>
"""


def xml(folder: Path, text: str) -> Node:
    (folder / "machine.xml").write_text(text)
    return lstopo.read_lstopo_file(folder / "machine.xml")


def function(node: Node, address: str) -> PciFunction:
    found = node.function(address)
    assert found is not None
    return found


def test_memory_of_a_second_kind_has_no_cpus(tmp_path: Path) -> None:
    """hwloc gives it the CPUs that it is near to; they are another node's."""
    first, second = xml(tmp_path, NEAR_MEMORY).numa_nodes
    assert (first.cpus, second.cpus) == (frozenset(range(4)), frozenset())
    assert second.memory_kib == 512 << 10


def test_a_host_bridge_begins_a_tree(tmp_path: Path) -> None:
    drive = function(xml(tmp_path, NESTED), "10000:00:02.0")
    assert (drive.root, drive.path) == ("pci10000:00", ())


@pytest.mark.parametrize(
    ("mask", "local"),
    [
        ("f", {0}),
        ("ff", {0, 1}),
        # All of one and a part of another: no hardware is wired so.
        ("1f", {0, 1, 2}),
        ("11", {0, 1, 2}),
        # A part of one node alone is that node's.
        ("3", {0}),
    ],
)
def test_parts_of_several_nodes_are_the_whole_machine(
    tmp_path: Path, mask: str, local: set[int]
) -> None:
    made = Machine(tmp_path, nodes=3)
    made.function(
        "pci0000:10/0000:10:00.0", files={"local_cpus": mask, "numa_node": "-1"}, space=config()
    )
    found = function(read_sysfs_node(tmp_path), "0000:10:00.0")
    assert found.local_numa_nodes == local
    assert found.numa_node == (0 if local == {0} else None)


@pytest.mark.parametrize(
    ("control", "isolates"),
    [(0x1D, True), (0x1C, False), (0x19, False), (0x15, False), (0x0D, False)],
)
def test_a_port_isolates_with_all_that_the_kernel_asks_for(control: int, isolates: bool) -> None:
    """Source validation, request and completion redirect, upstream forwarding: all four."""
    space = config(header=1, port=6, acs=(0x1F, control))
    assert parse_config_space(space).acs_isolates is isolates
    # What a port does not have cannot be switched, and is not asked for.
    assert parse_config_space(config(header=1, port=6, acs=(control, control))).acs_isolates is True


@pytest.mark.parametrize(
    ("code", "speed", "rate"),
    [(1, 2.5, 4.0), (3, 8.0, 15.754), (4, 16.0, 31.508), (5, 32.0, 63.015), (6, 64.0, 121.0)],
)
def test_speeds_of_links(code: int, speed: float, rate: float) -> None:
    """The sixth generation doubles the fifth, and codes its symbols in another way."""
    link = parse_config_space(config(link=(code, 16, 6, 16))).link
    assert link is not None
    assert (link.speed, link.max_speed, link.bandwidth) == (speed, 64.0, rate)


@pytest.mark.parametrize("control", [0x04, 0x08, 0x0C])
def test_redirected_requests_or_completions_leave_the_switch(control: int) -> None:
    """A write's request goes up by one bit, the answer of a read by the other."""
    node = machine(control, NOTHING)
    one, other = function(node, "0000:13:00.0"), function(node, "0000:14:00.0")
    assert peer.peer_path_between(node, one, other) is PeerPath.ROOT


def test_a_redirect_below_an_inner_switch() -> None:
    """The ports of the innermost switch that two devices share decide."""
    above = ("0000:10:00.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0")
    kinds = (
        BridgeKind.ROOT_PORT, BridgeKind.UPSTREAM, BridgeKind.DOWNSTREAM, BridgeKind.UPSTREAM,
    )  # fmt: skip
    functions = [
        PciFunction(address, root="pci0000:10", path=above[:depth], bridge=kind, acs_control=0)
        for depth, (address, kind) in enumerate(zip(above, kinds, strict=True))
    ]
    for number, control in enumerate((0x04, 0)):
        port = f"0000:14:0{number}.0"
        functions += [
            PciFunction(
                port,
                root="pci0000:10",
                path=above,
                bridge=BridgeKind.DOWNSTREAM,
                acs_control=control,
            ),
            PciFunction(f"0000:1{5 + number}:00.0", root="pci0000:10", path=(*above, port)),
        ]
    node = Node(source="test", functions=tuple(functions))
    one, other = function(node, "0000:15:00.0"), function(node, "0000:16:00.0")
    assert peer.peer_path_between(node, one, other) is PeerPath.ROOT


@pytest.mark.parametrize(
    ("one", "other", "found"),
    [
        (("a",), ("a",), Distance.PIX),
        (("a", "b"), ("a", "b"), Distance.PIX),
        (("a", "b"), ("a",), Distance.PXB),
        (("a", "b"), ("a", "c"), Distance.PXB),
        (("a",), ("b",), Distance.PHB),
        (("a", "b"), ("c", "b"), Distance.PHB),
        ((), (), Distance.PHB),
    ],
)
def test_distances_below_one_root(
    one: tuple[str, ...], other: tuple[str, ...], found: Distance
) -> None:
    places = [Location(numa=0, socket=0, root="r", switches=each) for each in (one, other)]
    assert distance_between(*places) is found


def test_a_capability_that_would_end_beyond_the_space_is_none() -> None:
    data = bytearray(config(header=1, port=None, acs=None))
    data[6], data[0x34] = 0x10, 0xF0
    data[0xF0:0xF4] = bytes((0x10, 0, 4 << 4 | 2, 0))  # PCI Express, a root port
    found = parse_config_space(bytes(data))
    assert (found.express, found.port) == (False, None)


def test_a_root_port_is_a_switch_to_nccl_only_if_it_is_shared() -> None:
    port, up = "0000:10:00.0", "0000:11:00.0"
    alone = PciFunction("0000:12:00.0", path=(port,), switches=(port,))
    second = PciFunction("0000:12:00.1", path=(port,), switches=(port,))
    below = PciFunction("0000:13:00.0", path=(port, up), switches=(up,))
    assert nccl.shared_points([alone]) == frozenset()
    assert nccl.shared_points([alone, second]) == {port}
    assert nccl.shared_points([below]) == {up}
