# SPDX-License-Identifier: Apache-2.0
"""The guest's tree says of every pair what the host's says."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.guest_tree import Abi, PlanError, TopologyMode, TreeDevice, plan_guest_pci_tree
from nova_hpc_common.level import Distance, Location, distance_between
from tests.unit.virt import tree_reader
from tests.unit.virt.tree_worlds import arranged, domain, hosts
from virt_driver_patches.domain import pcie_tree
from virt_driver_patches.domain.guest_domain import GuestDomainXml

MIRROR = Abi(TopologyMode.MIRROR)
NUMA = Abi(TopologyMode.NUMA)


def cells_of(devices):
    """A guest on just the NUMA nodes of the devices, in descending order."""
    nodes = sorted({device.location.numa for device in devices}, reverse=True)
    return {node: cell for cell, node in enumerate(nodes)}


def guest_of(devices, cells, abi=MIRROR):
    xml = domain([device.address for device in devices], cells=len(cells))
    text = arranged(xml, plan_guest_pci_tree(devices, cells, abi), abi)
    return text, tree_reader.read(text)


def pairs(devices, guest):
    for one, other in itertools.combinations(devices, 2):
        yield (
            distance_between(one.location, other.location),
            distance_between(guest.places[one.address], guest.places[other.address]),
        )


@given(hosts())
def test_every_pair_is_as_far_apart_as_on_the_host(valid, devices):
    cells = cells_of(devices)
    text, guest = guest_of(devices, cells)
    assert guest.places.keys() == {device.address for device in devices}
    for host, seen in pairs(devices, guest):
        assert host is seen
    for device in devices:
        assert guest.places[device.address].numa == cells[device.location.numa]
    valid(text)


@given(hosts())
def test_without_cells_all_but_the_node_is_as_on_the_host(valid, devices):
    """A guest without NUMA cells cannot tell two roots of one node from those of two."""
    text, guest = guest_of(devices, {})
    for host, seen in pairs(devices, guest):
        assert seen is (Distance.SYS if host is Distance.NODE else host)
    assert "<node>" not in text
    valid(text)


@given(hosts())
def test_numa_has_one_root_for_each_cell(valid, devices):
    cells = cells_of(devices)
    text, guest = guest_of(devices, cells, NUMA)
    for one, other in itertools.combinations(devices, 2):
        near = one.location.numa == other.location.numa
        seen = distance_between(guest.places[one.address], guest.places[other.address])
        assert seen is (Distance.PHB if near else Distance.SYS)
    assert len({place.root for place in guest.places.values()}) == len(cells)
    valid(text)


@given(hosts(), st.randoms(use_true_random=False))
def test_the_same_devices_have_the_same_addresses(devices, rng: random.Random):
    cells = cells_of(devices)
    text, guest = guest_of(devices, cells)
    assert guest_of(devices, cells)[0] == text
    # Whatever the order in which Nova lists them, and whatever else the guest has.
    shuffled = rng.sample(devices, len(devices))
    assert guest_of(shuffled, cells)[1].addresses == guest.addresses
    xml = domain([device.address for device in devices], cells=len(cells), root_ports=12)
    more = arranged(xml, plan_guest_pci_tree(devices, cells, MIRROR), MIRROR)
    assert tree_reader.read(more).addresses == guest.addresses


@given(hosts())
def test_the_numbers_are_such_that_libvirt_and_firmware_keep_them(devices):
    made = plan_guest_pci_tree(devices, cells_of(devices), MIRROR)
    _, guest = guest_of(devices, cells_of(devices))
    # Libvirt fills every gap with a port that nobody asked for.
    assert sorted(guest.models) == list(range(min(guest.models), max(guest.models) + 1))
    assert min(guest.models) in (0, 1)
    # A firmware numbers depth first, each expander from its own number on.
    buses = [bridge.bus for bridge in made.bridges]
    assert buses == sorted(set(buses))
    assert buses[0] >= 0x40
    assert buses[-1] <= 0xFF
    for bridge, bus in zip(made.bridges[1:], made.bridges, strict=False):
        assert bridge.parent == 0 or bridge.bus == bus.bus + 1
    # Every seat has a port of its own.
    assert len({seat.port for seat in made.seats}) == len(devices)


def device(address, numa=0, root="pci0000:10", *switches):
    return TreeDevice(address=address, location=Location(numa=numa, root=root, switches=switches))


def test_the_tree_of_one_switch_and_one_port():
    devices = [
        device("0000:12:00.0", 0, "pci0000:10", "0000:11:00.0"),
        device("0000:13:00.0", 0, "pci0000:10", "0000:11:00.0"),
        device("0000:21:00.0", 0, "pci0000:20", "0000:20:01.0"),
    ]
    _, guest = guest_of(devices, {0: 0})
    assert guest.models == {
        1: "pcie-expander-bus",
        2: "pcie-root-port",
        3: "pcie-switch-upstream-port",
        4: "pcie-switch-downstream-port",
        5: "pcie-switch-downstream-port",
        6: "pcie-expander-bus",
        7: "pcie-root-port",
        **dict.fromkeys(range(8, 20), "pcie-root-port"),
    }
    assert guest.addresses == {
        "0000:12:00.0": (4, 0, 0),
        "0000:13:00.0": (5, 0, 0),
        "0000:21:00.0": (7, 0, 0),
    }


def test_a_device_off_the_cells_is_refused_by_mirror_and_left_by_numa():
    devices = [device("0000:12:00.0"), device("0000:92:00.0", 1, "pci0000:90")]
    with pytest.raises(PlanError, match="1 of the server's 2 PCI devices") as refusal:
        plan_guest_pci_tree(devices, {0: 0}, MIRROR)
    assert "0000:92" not in str(refusal.value)
    assert "0000:92:00.0" in refusal.value.operator
    text, guest = guest_of(devices, {0: 0}, NUMA)
    assert guest.addresses.keys() == {"0000:12:00.0"}
    assert text.count("<hostdev") == 2


def test_a_device_of_which_the_node_is_unknown_is_off_the_cells():
    with pytest.raises(PlanError, match="hpc:guest_topology=mirror is not possible"):
        plan_guest_pci_tree([device("0000:12:00.0", None)], {0: 0}, MIRROR)


def test_a_root_that_is_at_two_nodes_is_refused():
    devices = [device("0000:12:00.0", 0), device("0000:13:00.0", 1)]
    with pytest.raises(PlanError, match="near to different NUMA nodes") as refusal:
        plan_guest_pci_tree(devices, {0: 0, 1: 1}, MIRROR)
    assert "pci0000:10" in refusal.value.operator


def test_more_than_a_guest_can_have_is_refused():
    many = [device(f"0000:{n:02x}:00.0", 0, f"pci0000:{n:02x}") for n in range(21)]
    with pytest.raises(PlanError, match="21 PCIe roots, and a guest has at most 20"):
        plan_guest_pci_tree(many, {0: 0}, MIRROR)
    many = [device(f"0000:{n:02x}:00.{f}") for n in range(32) for f in range(8)]
    with pytest.raises(PlanError, match="take 257 PCI buses, and there are 192"):
        plan_guest_pci_tree(many, {0: 0}, MIRROR)


def test_many_functions_of_one_adapter_share_slots(valid):
    functions = [
        device(f"0000:12:{n >> 3:02x}.{n & 7}", 0, "pci0000:10", "0000:10:01.0") for n in range(64)
    ]
    text, guest = guest_of(functions, {0: 0})
    assert {seen for _, seen in pairs(functions, guest)} == {Distance.PIX}
    assert text.count('multifunction="on"') == 8
    valid(text)


def test_flat_and_a_guest_without_devices_stay_as_nova_made_them():
    flat = Abi(TopologyMode.FLAT)
    xml = domain(["0000:12:00.0"])
    assert arranged(xml, plan_guest_pci_tree([device("0000:12:00.0")], {0: 0}, flat), flat) is xml
    xml = domain([])
    assert arranged(xml, plan_guest_pci_tree([], {0: 0}, MIRROR), MIRROR) is xml


def test_direct_ports_are_seated_too(valid):
    devices = [
        device("0000:12:00.0", 0, "pci0000:10", "0000:11:00.0"),
        device("0000:13:00.2", 0, "pci0000:10", "0000:11:00.0"),
    ]
    xml = domain(["0000:12:00.0"], ports=["0000:13:00.2"])
    assert [address for address, _ in GuestDomainXml(xml).passed_through()] == [
        "0000:12:00.0",
        "0000:13:00.2",
    ]
    text = arranged(xml, plan_guest_pci_tree(devices, {0: 0}, MIRROR), MIRROR)
    guest = tree_reader.read(text)
    assert [seen for _, seen in pairs(devices, guest)] == [Distance.PIX]
    valid(text)


@pytest.mark.parametrize("machine", ["virt", "virt-9.2"])
def test_guests_of_arm_are_refused_with_a_cure_that_they_have(machine):
    with pytest.raises(
        pcie_tree.MachineError, match=r"of Arm; use a flavor with .*=flat"
    ) as caught:
        pcie_tree.check_machine(machine, "mirror")
    assert "q35" not in str(caught.value)


@pytest.mark.parametrize("machine", ["pc", "pc-i440fx-9.2", "microvm", "xq35"])
def test_other_machine_types_are_refused(machine):
    devices = [device("0000:12:00.0")]
    with pytest.raises(pcie_tree.MachineError, match="hw_machine_type=q35"):
        arranged(
            domain(["0000:12:00.0"], machine=machine),
            plan_guest_pci_tree(devices, {0: 0}, MIRROR),
            MIRROR,
        )
    for good in ("q35", "pc-q35-9.2", "pc-q35-rhel9.6.0"):
        pcie_tree.check_machine(good, "mirror")
    with pytest.raises(pcie_tree.MachineError, match="the default, pc"):
        pcie_tree.check_machine(None, "mirror")
