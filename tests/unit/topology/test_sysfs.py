# SPDX-License-Identifier: Apache-2.0
"""What the sysfs reader makes of single things that captures seldom have."""

from __future__ import annotations

from pathlib import Path

import pytest

from nova_hpc.topology import sysfs
from nova_hpc.topology.model import (
    Bar,
    BridgeKind,
    Node,
    PcieLink,
    PciFunction,
    RdmaDevice,
    RdmaPort,
    normalise_address,
)
from tests.unit.topology.builder import Machine, config

GPU = "0000:18:00.0"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def get(machine: Machine, address: str) -> PciFunction:
    function = sysfs.read_sysfs_node(machine.root).function(address)
    assert function is not None
    return function


def test_nothing_at_all(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "none"):
        node = sysfs.read_sysfs_node(root)
        assert (node.functions, node.numa_nodes, node.problems) == ((), (), ())


def test_a_file_for_a_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert sysfs.read_sysfs_node(tmp_path / "file").functions == ()


def test_addresses_are_normalised() -> None:
    assert normalise_address("0000:0A:1F.7") == "0000:0a:1f.7"
    assert normalise_address("00010000:00:00.0") == "10000:00:00.0"
    for text in ("00:00.0", "0000:00:20.0", "0000:00:00.8", "0000:00:00.0\n", "x000:00:00.0", ""):
        with pytest.raises(ValueError, match="PCI address"):
            normalise_address(text)


def test_absolute_links_of_a_capture(machine: Machine) -> None:
    machine.bridge("pci0000:17/0000:17:00.0", 4, (0x18, 0x18), absolute=True)
    machine.function(f"pci0000:17/0000:17:00.0/{GPU}", absolute=True, node=1, driver="nvidia")
    gpu = get(machine, GPU)
    assert gpu.path == ("0000:17:00.0",)
    assert (gpu.root, gpu.numa_node, gpu.socket, gpu.driver) == ("pci0000:17", 1, 1, "nvidia")


def test_a_domain_behind_an_endpoint_is_a_tree_of_its_own(machine: Machine) -> None:
    """Intel VMD: a 32-bit domain with its own host bridge below an endpoint."""
    machine.function("pci0000:17/0000:17:05.5")
    inside = "pci0000:17/0000:17:05.5/pci10000:00"
    machine.bridge(f"{inside}/10000:00:02.0", 4, (1, 1))
    machine.function(f"{inside}/10000:00:02.0/10000:01:00.0", files={"class": "0x010802"})
    nvme = get(machine, "10000:01:00.0")
    assert nvme.root == "pci10000:00"
    assert nvme.path == ("10000:00:02.0",)
    addresses = [f.address for f in sysfs.read_sysfs_node(machine.root).functions]
    assert addresses == ["0000:17:05.5", "10000:00:02.0", "10000:01:00.0"]


def test_without_paths_bus_numbers_tell(machine: Machine) -> None:
    """Captures that have directories instead of links in /sys/bus/pci/devices."""
    for address, space in (
        ("0000:17:00.0", config(0x8086, 0x2030, 0x060400, header=1, buses=(0x18, 0x1E), port=4)),
        ("0000:18:00.0", config(0x10B5, 0x9797, 0x060400, header=1, buses=(0x19, 0x1E), port=5)),
        ("0000:19:04.0", config(0x10B5, 0x9797, 0x060400, header=1, buses=(0x1A, 0x1A), port=6)),
        ("0000:1a:00.0", config()),
        ("0001:1a:00.0", config()),
    ):
        machine.file(f"sys/bus/pci/devices/{address}/config", space)
        machine.file(f"sys/bus/pci/devices/{address}/local_cpus", "f\n")
    gpu = get(machine, "0000:1a:00.0")
    assert gpu.path == ("0000:17:00.0", "0000:18:00.0", "0000:19:04.0")
    assert gpu.switches == ("0000:18:00.0",)
    assert gpu.root == "pci0000:17"
    assert (gpu.vendor_id, gpu.product_id, gpu.class_code) == ("10de", "2330", "030200")
    assert gpu.unknown is None
    other = get(machine, "0001:1a:00.0")
    assert (other.path, other.root) == ((), "pci0001:1a")


@pytest.mark.parametrize("ports", [(4, 5, 6), (None, None, None)], ids=["registers", "place"])
def test_two_levels_of_switches(machine: Machine, ports: tuple[int | None, ...]) -> None:
    """The kinds of bridges, from registers or else from how they are stacked."""
    root, up, down = ports
    place = "pci0000:17/0000:17:00.0"
    machine.bridge(place, root, (0x18, 0x1E))
    place += "/0000:18:00.0"
    machine.bridge(place, up, (0x19, 0x1E))
    machine.bridge(f"{place}/0000:19:00.0", down, (0x1A, 0x1D))
    machine.bridge(f"{place}/0000:19:01.0", down, (0x1E, 0x1E))
    machine.bridge(f"{place}/0000:19:00.0/0000:1a:00.0", up, (0x1B, 0x1D))
    machine.bridge(f"{place}/0000:19:00.0/0000:1a:00.0/0000:1b:00.0", down, (0x1C, 0x1C))
    machine.function(f"{place}/0000:19:00.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0")
    machine.function(f"{place}/0000:19:01.0/0000:1e:00.0")
    assert get(machine, "0000:1c:00.0").switches == ("0000:18:00.0", "0000:1a:00.0")
    assert get(machine, "0000:1e:00.0").switches == ("0000:18:00.0",)
    kinds = {
        f.address: f.bridge for f in sysfs.read_sysfs_node(machine.root).functions if f.is_bridge
    }
    assert kinds == {
        "0000:17:00.0": BridgeKind.ROOT_PORT,
        "0000:18:00.0": BridgeKind.UPSTREAM,
        "0000:19:00.0": BridgeKind.DOWNSTREAM,
        "0000:19:01.0": BridgeKind.DOWNSTREAM,
        "0000:1a:00.0": BridgeKind.UPSTREAM,
        "0000:1b:00.0": BridgeKind.DOWNSTREAM,
    }


def test_acs_on_the_path(machine: Machine) -> None:
    isolating, open_ = (0x1F, 0x1D), (0x1F, 0x01)
    for bus, (root, down) in enumerate(
        [(isolating, isolating), (isolating, open_), (open_, isolating), (isolating, None)], 1
    ):
        place = f"pci0000:{bus}0/0000:{bus}0:00.0"
        machine.bridge(place, 4, (bus * 16 + 1, bus * 16 + 3), root)
        place += f"/0000:{bus}1:00.0"
        machine.bridge(place, 5, (bus * 16 + 2, bus * 16 + 3), None)
        place += f"/0000:{bus}2:00.0"
        machine.bridge(place, 6, (bus * 16 + 3, bus * 16 + 3), down)
        machine.function(f"{place}/0000:{bus}3:00.0")
    found = [get(machine, f"0000:{bus}3:00.0").acs_on_path for bus in range(1, 5)]
    assert found == [True, False, False, False]
    # Not known is neither: the extended space of one port cannot be read.
    port = machine.root / "sys/bus/pci/devices/0000:12:00.0/config"
    port.write_bytes(port.read_bytes()[:256])
    assert get(machine, "0000:13:00.0").acs_on_path is None


def test_a_pci_bridge_never_isolates(machine: Machine) -> None:
    machine.bridge("pci0000:17/0000:17:00.0", 4, (0x18, 0x19))
    machine.bridge("pci0000:17/0000:17:00.0/0000:18:00.0", 7, (0x19, 0x19))
    machine.function("pci0000:17/0000:17:00.0/0000:18:00.0/0000:19:00.0")
    assert get(machine, "0000:19:00.0").acs_on_path is False
    assert get(machine, "0000:18:00.0").bridge is BridgeKind.PCI
    # Behind it all devices share a bus, and the root port.
    assert get(machine, "0000:19:00.0").switches == ("0000:17:00.0",)


def test_a_port_without_bus_numbers_is_inactive(machine: Machine) -> None:
    machine.bridge("pci0000:17/0000:17:00.0", 4, (0, 0))
    node = sysfs.read_sysfs_node(machine.root)
    assert node.functions == ()
    assert [f.address for f in node.inactive] == ["0000:17:00.0"]
    assert node.function("0000:17:00.0") is node.inactive[0]
    # A device below it proves that it works, whatever the registers say.
    machine.function(f"pci0000:17/0000:17:00.0/{GPU}")
    node = sysfs.read_sysfs_node(machine.root)
    assert [f.address for f in node.functions] == ["0000:17:00.0", GPU]


def test_iommu_groups_have_all_members(machine: Machine) -> None:
    machine.function("pci0000:17/0000:17:00.0", group=7)
    machine.function("pci0000:17/0000:17:00.1", group=7)
    machine.link("sys/kernel/iommu_groups/7/devices/NVDA2001:00", "/sys/devices/platform/x")
    node = sysfs.read_sysfs_node(machine.root)
    first = node.functions[0]
    assert node.group_members(first) == ("0000:17:00.0", "0000:17:00.1", "NVDA2001:00")
    # A capture may have only the links of the devices.
    for name in ("0000:17:00.0", "0000:17:00.1", "NVDA2001:00"):
        (machine.root / "sys/kernel/iommu_groups/7/devices" / name).unlink()
    node = sysfs.read_sysfs_node(machine.root)
    assert node.group_members(node.functions[1]) == ("0000:17:00.0", "0000:17:00.1")


def test_a_group_that_is_no_number(machine: Machine) -> None:
    folder = machine.function(f"pci0000:17/{GPU}")
    (folder / "iommu_group").symlink_to("../../../kernel/iommu_groups/x")
    gpu = get(machine, GPU)
    assert gpu.iommu_group is None
    assert gpu.unknown is not None
    assert "iommu_group" in gpu.unknown


def test_virtual_functions(machine: Machine) -> None:
    pf = machine.function("pci0000:17/0000:17:00.0", files={"sriov_totalvfs": "16"})
    for index in (4, 2, 1):
        vf = machine.function(f"pci0000:17/0000:17:01.{index}", space=config(0xFFFF, 0xFFFF))
        (vf / "physfn").symlink_to("../0000:17:00.0")
    (pf / "virtfn0").symlink_to("../0000:17:01.1")
    (pf / "virtfn5").symlink_to("../0000:17:1f.1")  # vanished meanwhile
    function = get(machine, "0000:17:00.0")
    assert function.virtual_functions == ("0000:17:01.1", "0000:17:01.2", "0000:17:01.4")
    assert (function.total_vfs, function.dev_type) == (16, "type-PF")
    virtual = get(machine, "0000:17:01.2")
    assert virtual.physical_function == "0000:17:00.0"
    assert virtual.dev_type == "type-VF"
    assert virtual.unknown is None


def test_links(machine: Machine) -> None:
    files = {
        "current_link_speed": "16.0 GT/s PCIe",
        "current_link_width": "8",
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": "16",
    }
    machine.function("pci0000:17/0000:17:00.0", files=files)
    # 255 and Unknown: the kernel does not know; old kernels wrote "8 GT/s".
    files |= {"current_link_speed": "8 GT/s", "current_link_width": "255"}
    machine.function("pci0000:17/0000:17:01.0", files=files)
    unknown = {"current_link_speed": "Unknown", "current_link_width": "0"}
    machine.function("pci0000:17/0000:17:02.0", files=unknown, space=config(link=(3, 4, 4, 16)))
    first, second, third = sysfs.read_sysfs_node(machine.root).functions
    assert first.link == PcieLink(16.0, 8, 32.0, 16, 15.754)
    assert first.link.narrow
    assert first.link.degraded
    assert second.link == PcieLink(8.0, None, 32.0, 16)
    assert second.link.degraded is True
    assert second.link.narrow is None
    assert third.link == PcieLink(8.0, 4, 16.0, 16, 3.938)


def test_a_link_that_is_unknown_is_not_healthy() -> None:
    assert PcieLink().degraded is None
    assert PcieLink(16.0, 16, 16.0, None).degraded is None
    assert PcieLink(16.0, 16, 16.0, 16).degraded is False


def test_bars(machine: Machine) -> None:
    lines = ["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 13
    lines[0] = "0x000000009c000000 0x000000009cffffff 0x0000000000040200"
    lines[1] = "0x0000380000000000 0x0000381fffffffff 0x000000000014220c"
    lines[5] = "0x0000000000003000 0x000000000000307f 0x0000000000040101"
    machine.function(f"pci0000:17/{GPU}", files={"resource": "\n".join(lines)})
    assert get(machine, GPU).bars == (
        Bar(0, 16 << 20),
        Bar(1, 128 << 30, prefetchable=True, wide=True),
        Bar(5, 128, io=True),
    )


def test_reset_methods_are_unknown_on_old_kernels(machine: Machine) -> None:
    machine.function("pci0000:17/0000:17:00.0")
    assert get(machine, "0000:17:00.0").reset_methods is None
    machine.function("pci0000:17/0000:17:01.0", files={"reset_method": "flr bus"})
    assert get(machine, "0000:17:01.0").reset_methods == ("flr", "bus")
    # Now the kernel is known to list them, and has none for the other.
    assert get(machine, "0000:17:00.0").reset_methods == ()


def test_rdma_guids(machine: Machine) -> None:
    folder = f"pci0000:17/{GPU}"
    machine.function(folder, files={"class": "0x020700", "vendor": "0x15b3", "device": "0x1021"})
    device = f"sys/devices/{folder}/infiniband/mlx5_0"
    machine.file(f"{device}/node_guid", "0002:c903:0041:2d20\n")
    for port, layer, gid in (
        (1, "InfiniBand", "fe80:0000:0000:0000:0002:c903:0041:2d21"),
        (2, "Ethernet", "fe80:0000:0000:0000:ac1f:6bff:fe00:0001"),
        (3, "InfiniBand", "fe80:0000:0000:0000:0000:0000:0000:0000"),
    ):
        machine.file(f"{device}/ports/{port}/link_layer", layer)
        machine.file(f"{device}/ports/{port}/state", "4: ACTIVE")
        machine.file(f"{device}/ports/{port}/rate", "400 Gb/sec (4X NDR)")
        machine.file(f"{device}/ports/{port}/gids/0", gid)
    (found,) = get(machine, GPU).rdma
    rate = "400 Gb/sec (4X NDR)"
    assert found == RdmaDevice(
        "mlx5_0",
        "0002:c903:0041:2d20",
        (
            RdmaPort(1, "0002:c903:0041:2d21", "InfiniBand", "ACTIVE", rate),
            RdmaPort(2, None, "Ethernet", "ACTIVE", rate),
            RdmaPort(3, None, "InfiniBand", "ACTIVE", rate),
        ),
    )
    assert get(machine, GPU).os_devices == ("infiniband mlx5_0",)


def test_a_device_that_fell_off_the_bus(machine: Machine) -> None:
    machine.function(f"pci0000:17/{GPU}", space=b"\xff" * 4096)
    assert get(machine, GPU).unknown == "config: all ones, so the device does not answer"


@pytest.mark.parametrize(
    ("files", "nodes", "reason"),
    [
        ({"numa_node": "-1", "local_cpus": "ff"}, {0, 1}, None),
        ({"numa_node": "1", "local_cpus": "f0"}, {1}, None),
        # A part of one node is that node; parts of several are nonsense, and
        # then it is near to nothing in particular.
        ({"numa_node": "-1", "local_cpus": "10"}, {1}, None),
        ({"numa_node": "-1", "local_cpus": "18"}, {0, 1}, None),
        # Offline CPUs belong to no node.
        ({"numa_node": "0", "local_cpus": "fff0f"}, {0}, None),
        ({"numa_node": "0", "local_cpus": "f0"}, {1}, "numa_node is 0, but local_cpus are"),
        ({"numa_node": "5", "local_cpus": "f0"}, {1}, "numa_node is 5, and there is no such"),
        ({"numa_node": "-2", "local_cpus": "f0"}, {1}, "numa_node: '-2' is no possible value"),
        ({"numa_node": "1", "local_cpus": "0"}, {1}, None),
    ],
)
def test_locality(
    machine: Machine, files: dict[str, str], nodes: set[int], reason: str | None
) -> None:
    machine.function(f"pci0000:17/{GPU}", files=files)
    gpu = get(machine, GPU)
    assert gpu.local_numa_nodes == nodes
    assert gpu.numa_node == (next(iter(nodes)) if len(nodes) == 1 else None)
    assert (gpu.unknown or "").startswith(reason or "")
    assert (gpu.unknown is None) == (reason is None)


def test_locality_without_files(machine: Machine, tmp_path: Path) -> None:
    folder = machine.function(f"pci0000:17/{GPU}", node=1)
    (folder / "local_cpus").unlink()
    assert get(machine, GPU).numa_node == 1
    (folder / "numa_node").unlink()
    gpu = get(machine, GPU)
    assert gpu.local_numa_nodes == frozenset()
    assert gpu.unknown == "NUMA node: neither local_cpus nor numa_node contains it"
    machine.file(f"sys/devices/pci0000:17/{GPU}/local_cpulist", "0-3")
    assert get(machine, GPU).numa_node == 0
    # On a machine with one node there is nothing to say.
    small = Machine(tmp_path / "small", nodes=1)
    folder = small.function(f"pci0000:17/{GPU}", files={"numa_node": "-1"})
    (folder / "local_cpus").unlink()
    assert get(small, GPU).numa_node == 0


def test_a_device_at_a_node_without_cpus(machine: Machine) -> None:
    machine.file("sys/devices/system/node/online", "0-2")
    machine.file("sys/devices/system/node/node2/cpulist", "\n")
    machine.function(f"pci0000:17/{GPU}", files={"numa_node": "2", "local_cpus": "0"})
    gpu = get(machine, GPU)
    assert (gpu.numa_node, gpu.socket, gpu.unknown) == (2, None, None)


def test_names_that_are_no_addresses_are_told(machine: Machine) -> None:
    machine.function(f"pci0000:17/{GPU}")
    machine.link("sys/bus/pci/devices/nonsense", "x")
    machine.link(f"sys/bus/pci/devices/0000{GPU}", "x")
    node = sysfs.read_sysfs_node(machine.root)
    assert [f.address for f in node.functions] == [GPU]
    assert len(node.problems) == 2


def test_a_dangling_entry_is_an_unknown_function(machine: Machine) -> None:
    machine.link(f"sys/bus/pci/devices/{GPU}", f"../../../devices/pci0000:17/{GPU}")
    gpu = get(machine, GPU)
    assert gpu.unknown is not None
    assert "its directory is missing" in gpu.unknown


def numa(node: Node) -> list[tuple[int, list[int]]]:
    return [(item.id, sorted(item.cpus)) for item in node.numa_nodes]


def test_numa_nodes(machine: Machine) -> None:
    node = sysfs.read_sysfs_node(machine.root)
    first = node.numa_nodes[0]
    assert numa(node) == [(0, [0, 1, 2, 3]), (1, [4, 5, 6, 7])]
    assert first.smt_siblings == (frozenset({0, 1}), frozenset({2, 3}))
    assert (first.socket, first.memory_kib) == (0, 1048576)
    assert [(p.size_kib, p.total, p.free) for p in first.hugepages] == [
        (2048, 512, 500),
        (1048576, 2, 2),
    ]


def test_offline_nodes_do_not_count_and_offline_cpus_do(machine: Machine) -> None:
    machine.file("sys/devices/system/cpu/online", "0-2,4-7")
    machine.file("sys/devices/system/node/online", "0")
    node = sysfs.read_sysfs_node(machine.root)
    assert numa(node) == [(0, [0, 1, 2, 3])]
    assert node.offline_cpus == {3}
    assert node.numa_nodes[0].smt_siblings == (frozenset({0, 1}), frozenset({2}))
    # CPUs that no node has are no servers', and nobody wonders where they are.
    assert node.problems == (
        "CPUs 4-7 are online, but on no NUMA node that is; servers cannot use them",
    )


def test_online_files_of_single_cpus(machine: Machine) -> None:
    (machine.root / "sys/devices/system/cpu/online").unlink()
    machine.file("sys/devices/system/cpu/cpu5/online", "0\n")
    node = sysfs.read_sysfs_node(machine.root)
    assert numa(node)[1] == (1, [4, 5, 6, 7])
    assert node.offline_cpus == {5}


def test_a_kernel_without_numa_is_one_node(tmp_path: Path) -> None:
    machine = Machine(tmp_path, nodes=1)
    for path in sorted((tmp_path / "sys/devices/system/node").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    machine.file("proc/meminfo", "MemTotal: 4096 kB\nHugepagesize: 2048 kB\nHugePages_Total: 3\n")
    node = sysfs.read_sysfs_node(tmp_path)
    assert numa(node) == [(0, [0, 1, 2, 3])]
    assert node.numa_nodes[0].memory_kib == 4096
    assert [(p.size_kib, p.total, p.free) for p in node.numa_nodes[0].hugepages] == [
        (2048, 3, None)
    ]


def test_no_cpus_in_sysfs_either(tmp_path: Path) -> None:
    Machine(tmp_path / "x").file("../y/proc/cpuinfo", "processor\t: 0\n\nprocessor\t: 1\n")
    assert numa(sysfs.read_sysfs_node(tmp_path / "y")) == [(0, [0, 1])]


def test_overlapping_nodes_are_a_firmware_error(machine: Machine) -> None:
    machine.file("sys/devices/system/node/node1/cpulist", "3-7")
    node = sysfs.read_sysfs_node(machine.root)
    assert numa(node) == [(0, [0, 1, 2, 3])]
    assert "shares CPUs with node 0" in node.problems[0]


def test_impossible_hugepages_are_told(machine: Machine) -> None:
    pool = "sys/devices/system/node/node0/hugepages/hugepages-2048kB"
    machine.file(f"{pool}/free_hugepages", "513")
    node = sysfs.read_sysfs_node(machine.root)
    assert node.numa_nodes[0].hugepages[0].free is None
    assert "513 of 512 pages free is impossible" in node.problems[0]
