# SPDX-License-Identifier: Apache-2.0
"""xGMI hives: as amdgpu says them, as KFD's links say them, and what makes no sense."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.topology import roles, sysfs, xgmi
from nova_hpc.topology.files import FileTree
from nova_hpc_tools.inventory import node_archive
from nova_hpc_tools.site import device_spec, nvlink_sets
from nova_hpc_tools.wire import inventory
from tests.unit.topology.builder import Machine, config

GPUS = [f"0000:{bus:02x}:00.0" for bus in range(0x11, 0x19)]
AMD = {"vendor": "0x1002", "device": "0x74a1", "class": "0x120000"}
ROLES = roles.parse_roles(DEFAULT_ROLES)
KFD = "sys/devices/virtual/kfd/kfd/topology/nodes"


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path)
    for number, each in enumerate(GPUS):
        space = config(0x1002, 0x74A1, 0x120000)
        made.function(f"pci0000:10/{each}", files=AMD, space=space, driver="amdgpu", group=number)
    return made


def hive(machine, number, members, place=0):
    """As amdgpu makes it: a directory at the first, links to it at the others."""
    first = members[place]
    folder = f"sys/devices/pci0000:10/{first}/xgmi_hive_info"
    machine.file(f"{folder}/xgmi_hive_id", f"{number}\n")
    for each in members:
        if each != first:
            machine.link(
                f"sys/devices/pci0000:10/{each}/xgmi_hive_info", f"../{first}/xgmi_hive_info"
            )


def kfd(machine, links, kind="io_links"):
    """A CPU as node 0, and a node for each accelerator."""
    machine.link("sys/class/kfd/kfd", "../../devices/virtual/kfd/kfd")
    machine.file(f"{KFD}/0/properties", "cpu_cores_count 96\nlocation_id 0\ndomain 0\n")
    for number, each in enumerate(GPUS, 1):
        bus = int(each[5:7], 16)
        text = f"simd_count 1216\nlocation_id {bus << 8}\ndomain 0\nunique_id 1234567890123456789\n"
        machine.file(f"{KFD}/{number}/properties", text)
        machine.file(
            f"{KFD}/{number}/io_links/0/properties", f"type 2\nnode_from {number}\nnode_to 0\n"
        )
    for count, (one, two) in enumerate(links, 1):
        path = f"{KFD}/{one + 1}/{kind}/{count}/properties"
        machine.file(path, f"type 11\nnode_from {one + 1}\nnode_to {two + 1}\nweight 15\n")


def hives(root):
    found = {}
    for each in sysfs.read_sysfs_node(root).functions:
        if each.hive is not None:
            found.setdefault(each.hive, set()).add(each.address)
    return found


def test_hives_as_the_driver_says_them(machine):
    hive(machine, 0x10FF_AABB_CCDD_EEFF, GPUS[:4], place=2)
    hive(machine, 7, GPUS[4:])
    node = sysfs.read_sysfs_node(machine.root)
    assert node.problems == ()
    assert hives(machine.root) == {GPUS[0]: set(GPUS[:4]), GPUS[4]: set(GPUS[4:])}
    sets = {each.name: each.devices for each in nvlink_sets.default_nvlink_sets(node, ROLES)}
    assert sets == {
        "hive-0000.11.00.0": frozenset(GPUS[:4]),
        "hive-0000.15.00.0": frozenset(GPUS[4:]),
    }
    tagged = {
        each.provider: each.tags.nvlink
        for each in device_spec.build_device_spec(node, ROLES).offers
    }
    assert tagged == {
        each: f"hive-0000.{'11' if each in GPUS[:4] else '15'}.00.0:4" for each in GPUS
    }
    (first, *_) = json.loads(inventory.write_inventory(node))["functions"]
    assert first["hive"] == GPUS[0]


@pytest.mark.parametrize("kind", ["io_links", "p2p_links"])
def test_links_of_kfd_where_no_driver_says_a_hive(machine, kind):
    kfd(machine, itertools.combinations(range(8), 2), kind)
    assert hives(machine.root) == {GPUS[0]: set(GPUS)}


def test_a_hive_that_is_said_counts_more_than_links(machine):
    kfd(machine, [(0, 4)])
    hive(machine, 5, GPUS[:2])
    assert hives(machine.root) == {GPUS[0]: set(GPUS[:2])}


def test_pcie_links_and_single_members_are_no_hive(machine):
    kfd(machine, [])
    hive(machine, 0, GPUS[:3])  # no hive at all
    hive(machine, 9, GPUS[4:5])
    assert hives(machine.root) == {}
    assert nvlink_sets.default_nvlink_sets(sysfs.read_sysfs_node(machine.root), ROLES) == ()


@pytest.mark.parametrize("text", ["", "x", "-1", "1" * 21, "9" * 20])
def test_a_hive_that_is_no_number(machine, text):
    hive(machine, 5, GPUS[:2])
    machine.file(f"sys/devices/pci0000:10/{GPUS[0]}/xgmi_hive_info/xgmi_hive_id", text)
    node = sysfs.read_sysfs_node(machine.root)
    assert hives(machine.root) == {}
    assert len([each for each in node.problems if "is no number of a hive" in each]) == 2


def test_broken_kfd(machine):
    kfd(machine, [(0, 1), (2, 3)])
    machine.file(f"{KFD}/1/properties", "location_id 99999999999\n")
    machine.file(f"{KFD}/2/io_links/0/properties", b"\xff\xfe")
    machine.file(f"{KFD}/3/io_links/2/properties", "type 11\nnode_from 3\nnode_to 77\n")
    machine.file(f"{KFD}/x/properties", "type 11")
    assert hives(machine.root) == {}
    assert any(
        "io_links/0/properties: not text" in each
        for each in sysfs.read_sysfs_node(machine.root).problems
    )


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=10))
def test_joined_against_brute_force(links):
    pairs = [(GPUS[one], GPUS[two]) for one, two in links if one != two]
    found = {frozenset(each) for each in xgmi._join_linked(pairs)}
    reach = {each: {each} for pair in pairs for each in pair}
    for _ in reach:
        for one, two in pairs:
            both = reach[one] | reach[two]
            for each in both:
                reach[each] = reach[each] | both
    assert found == {frozenset(each) for each in reach.values()}


def test_an_archive_has_the_hives_and_no_serial_number(machine, tmp_path):
    hive(machine, 0x10FF_AABB_CCDD_EEFF, GPUS[:4])
    target = tmp_path / "saved.tar.xz"
    node_archive.save_node_archive(machine.root, target)
    again = node_archive.load_node_archive(target)
    node = sysfs.read_tree(again, "x")
    assert {each.hive for each in node.functions} == {GPUS[0], None}
    text = FileTree.text(again, f"/sys/bus/pci/devices/{GPUS[0]}/xgmi_hive_info/xgmi_hive_id")
    assert int(text) not in (0, 0x10FF_AABB_CCDD_EEFF)


def test_an_archive_of_links_alone(machine, tmp_path):
    kfd(machine, [(0, 1), (1, 2)])
    target = tmp_path / "saved.tar.xz"
    node_archive.save_node_archive(machine.root, target)
    again = node_archive.load_node_archive(target)
    assert {each.hive for each in sysfs.read_tree(again, "x").functions} == {GPUS[0], None}
    text = FileTree.text(again, "/sys/class/kfd/kfd/topology/nodes/1/properties")
    assert "unique_id" not in text
