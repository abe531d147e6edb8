# SPDX-License-Identifier: Apache-2.0
"""NUMA nodes that are memory alone: a GPU there is near the CPUs of its module."""

import dataclasses

import pytest

from nova_hpc.topology import sysfs
from tests.nodes import catalogue
from tests.nodes.write import write
from tests.unit.nodes import walk
from tests.unit.topology.builder import Machine

HOPPER = ("0009:01:00.0", "0019:01:00.0")


@pytest.fixture(scope="module")
def superchips(tmp_path_factory):
    """Grace Hopper whose firmware says of each GPU that it is at its own memory."""
    plain = catalogue.NODES["gh200"]
    roots = []
    for root in plain.roots:
        chip, kind = divmod(root.domain, 0x10)
        roots.append(dataclasses.replace(root, numa=2 + 8 * chip) if kind == 9 else root)
    made = dataclasses.replace(plain, roots=tuple(roots))
    return write(made, tmp_path_factory.mktemp("superchips"))


def test_the_gpu_is_near_the_cpus_of_its_module(superchips):
    node = sysfs.read_sysfs_node(superchips)
    assert node.problems == ()
    memory = [each for each in node.numa_nodes if each.memory_of]
    assert [(each.memory_of, each.near) for each in memory] == [
        (HOPPER[0], frozenset({0})),
        (HOPPER[1], frozenset({1})),
    ]
    for chip, address in enumerate(HOPPER):
        gpu = node.function(address)
        assert (gpu.numa_node, gpu.socket, gpu.unknown) == (chip, chip, None)


def test_a_guest_is_placed_there(superchips, tmp_path):
    node = sysfs.read_sysfs_node(superchips)
    spec = walk.device_spec(superchips, tmp_path / "conf", ())
    specs = {"affinity": "numa", "group": "gpu:1,vf:1"}
    answer = walk.ask(walk.host(node, spec), {"gpu": 2, "vf": 2}, 2, specs)
    assert answer.sets, answer.miss
    assert set(HOPPER) <= {address for address, _ in walk.given(node, answer)}


@pytest.mark.parametrize(
    ("table", "near", "said"),
    [
        ("80 120 10", {0}, False),
        ("120 80 10", {1}, False),
        ("80 80 10", {0, 1}, False),
        (None, set(), False),
        ("80 120", set(), True),
        ("80 x 10", set(), True),
        ("", set(), True),
    ],
)
def test_distances(tmp_path, table, near, said):
    made = Machine(tmp_path)
    made.file("sys/devices/system/node/online", "0-2\n")
    made.file("sys/devices/system/node/node2/cpulist", "\n")
    if table is not None:
        made.file("sys/devices/system/node/node2/distance", f"{table}\n")
    files = {"numa_node": "2", "local_cpus": "00"}
    made.function("pci0000:10/0000:10:00.0", files=files, group=1)
    node = sysfs.read_sysfs_node(tmp_path)
    assert node.numa_node(2).near == near
    assert any("is no table" in each for each in node.problems) == said
    gpu = node.function("0000:10:00.0")
    assert gpu.local_numa_nodes == (near or {2})
    assert gpu.numa_node == (min(near or {2}) if len(near) != 2 else None)
