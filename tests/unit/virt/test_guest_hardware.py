# SPDX-License-Identifier: Apache-2.0
"""What a domain gets besides the tree: memory windows, ROMs, cliques, room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from nova_hpc.guest_tree import (
    Abi,
    AbiError,
    TopologyMode,
    TreeDevice,
    plan_guest_pci_tree,
    windows,
)
from nova_hpc.guest_tree.windows import GIB, Span
from nova_hpc.topology.model import Bar
from nova_hpc.wire import guest_abi
from nova_hpc.wire.guest_abi import GUEST_ABI
from nova_hpc_common.level import Location
from tests.unit.virt.tree_worlds import UEFI, arranged, domain

#: A GPU of 80 GiB: 128 GiB, and 32 MiB beside it.
GPU = (
    Bar(0, 16 << 20),
    Bar(1, 128 * GIB, prefetchable=True, wide=True),
    Bar(3, 32 << 20, prefetchable=True, wide=True),
    Bar(6, 1 << 19),
)
QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"


def gpus(count, bars=GPU, switches=2):
    return [
        TreeDevice(
            address=f"0000:{0x20 + number:02x}:00.0",
            location=Location(
                numa=0,
                root="pci0000:10",
                switches=(f"0000:{0x11 + number * switches // count:02x}:00.0",),
            ),
            span=windows.span_of_bars(bars),
            clique=True,
        )
        for number in range(count)
    ]


def transformed(devices, clique=False, **domain_options):
    rules = Abi(TopologyMode.MIRROR, clique=clique)
    xml = domain([device.address for device in devices], cells=1, **domain_options)
    return etree.fromstring(arranged(xml, plan_guest_pci_tree(devices, {0: 0}, rules), rules))


def test_the_window_of_eight_large_gpus(valid):
    root = transformed(gpus(8), loader=UEFI)
    hole = root.find("devices/controller[@model='pcie-root']/pcihole64")
    assert (hole.get("unit"), hole.text) == ("KiB", str(2 << 30))  # 2 TiB
    line = [each.get("value") for each in root.find(f"{QEMU}commandline")]
    assert line == ["-fw_cfg", "name=opt/ovmf/X-PciMmio64Mb,string=2097152"]
    assert dict(root.find("cpu/maxphysaddr").attrib) == {"mode": "passthrough"}
    valid(etree.tostring(root))


def test_without_uefi_the_firmware_is_told_nothing():
    root = transformed(gpus(8))
    assert root.find(f"{QEMU}commandline") is None
    assert root.find("devices/controller[@model='pcie-root']/pcihole64") is not None


def test_a_flavor_that_says_how_many_bits_there_are_is_believed():
    devices = gpus(8)
    xml = domain([device.address for device in devices], cells=1)
    xml = xml.replace("<cpu ", "<cpu ", 1).replace(
        "<topology", '<maxphysaddr mode="emulate" bits="46"/>\n    <topology'
    )
    rules = Abi(TopologyMode.MIRROR)
    root = etree.fromstring(arranged(xml, plan_guest_pci_tree(devices, {0: 0}, rules), rules))
    (said,) = root.findall("cpu/maxphysaddr")
    assert said.get("bits") == "46"


def test_software_emulation_has_the_bits_that_it_needs(valid):
    devices = gpus(8)
    xml = domain([device.address for device in devices], cells=1).replace('"kvm"', '"qemu"')
    rules = Abi(TopologyMode.MIRROR)
    text = arranged(xml, plan_guest_pci_tree(devices, {0: 0}, rules), rules)
    said = etree.fromstring(text).find("cpu/maxphysaddr")
    assert dict(said.attrib) == {"mode": "emulate", "bits": "42"}
    valid(text)


def test_small_devices_need_no_larger_window():
    root = transformed(gpus(8, bars=(Bar(0, 16 * GIB),)), loader=UEFI, root_ports=3)
    assert root.find("devices/controller[@model='pcie-root']/pcihole64") is None
    assert root.find("cpu/maxphysaddr") is None
    assert root.find(f"{QEMU}commandline") is None


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(20, 40)), max_size=12))
def test_a_window_holds_whatever_order_they_are_placed_in(pieces):
    spans = [Span(1 << size, 1 << max(size, align)) for size, align in pieces]
    packed = windows.pack_spans(spans)
    assert packed.size >= sum(span.size for span in spans)
    assert all(packed.align % span.align == 0 for span in spans)
    # First fit with the largest alignment first, as a firmware does.
    end = 0
    for span in sorted(spans, key=lambda span: -span.align):
        end = -(-end // span.align) * span.align + span.size
    assert packed.size >= end
    size = windows.window_size_of(packed)
    assert size & size - 1 == 0
    assert size >= packed.size
    memory = 64 * GIB
    assert 1 << windows.address_bits_of(memory, size) >= memory + size


def test_roms_are_off_and_the_devices_have_names():
    root = transformed(gpus(2))
    for number, device in enumerate(root.findall("devices/hostdev")):
        assert [rom.get("bar") for rom in device.findall("rom")] == ["off"]
        assert device.find("alias").get("name") == f"ua-hpc-{number}"
        assert device.get("managed") == "no"


def test_cliques_are_those_of_the_hosts_switches(valid):
    root = transformed(gpus(4), clique=True)
    found = {
        device.get("alias"): device.find(f"{QEMU}frontend/{QEMU}property").get("value")
        for device in root.find(f"{QEMU}override")
    }
    assert found == {"ua-hpc-0": "0", "ua-hpc-1": "0", "ua-hpc-2": "1", "ua-hpc-3": "1"}
    valid(etree.tostring(root))
    assert transformed(gpus(4), clique=False).find(f"{QEMU}override") is None
    # Nobody is beside them.
    assert transformed(gpus(2), clique=True).find(f"{QEMU}override") is None


def test_there_are_at_most_sixteen_cliques():
    made = plan_guest_pci_tree(gpus(64, switches=20), {0: 0}, Abi(TopologyMode.MIRROR, clique=True))
    assert set(made.cliques.values()) == set(range(16))


@pytest.mark.parametrize("given_ports", [0, 4, 40])
def test_room_for_what_is_plugged_later(given_ports):
    root = transformed(gpus(2), root_ports=given_ports)
    own = [
        port
        for port in root.findall("devices/controller[@model='pcie-root-port']")
        if port.find("address") is None
    ]
    takers = 4  # disk, USB, video, memory balloon
    assert len(own) == max(given_ports, takers + 8)
    indexes = [int(port.get("index")) for port in own]
    assert indexes == list(range(indexes[0], indexes[0] + len(own)))


def test_strings_of_users_stay_strings():
    """What Nova has escaped is not read as XML, and no entity is resolved."""
    evil = "&lt;/name&gt;&lt;qemu:commandline&gt;../../etc/passwd &amp;amp; ]]&gt;"
    xml = domain(["0000:20:00.0"], cells=1).replace("instance-00000001", evil)
    rules = Abi(TopologyMode.MIRROR)
    devices = gpus(1)
    root = etree.fromstring(arranged(xml, plan_guest_pci_tree(devices, {0: 0}, rules), rules))
    assert root.findtext("name") == "</name><qemu:commandline>../../etc/passwd &amp; ]]>"
    assert root.find(f"{QEMU}commandline") is None
    entity = f'<!DOCTYPE domain [<!ENTITY x SYSTEM "file:///etc/passwd">]>{xml}'.replace(
        "hvm", "hvm&x;"
    )
    assert "root:" not in arranged(entity, plan_guest_pci_tree(devices, {0: 0}, rules), rules)


def test_the_record():
    for mode in TopologyMode:
        for clique in (False, True):
            text = Abi(mode, clique).dumps()
            assert len(text.encode()) <= GUEST_ABI.limit
            assert guest_abi.read_guest_abi(text) == Abi(mode, clique)
    assert Abi(TopologyMode.MIRROR).dumps() == '{"v":2,"mode":"mirror","clique":0}'
    assert guest_abi.read_guest_abi(None) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "1", '{"v":1}', "[" * 255, "x" * 300),
        '{"v":true,"mode":"mirror","clique":0}',
        '{"v":1,"mode":"tree","clique":0}',
        '{"v":"1","mode":"mirror","clique":0}',
    ],
)
def test_a_damaged_record_is_not_acted_on(text):
    with pytest.raises(AbiError, match="is damaged"):
        guest_abi.read_guest_abi(text)


@pytest.mark.parametrize(
    ("tree", "segment"),
    [
        (2, '{"mib":64}'),
        (2, '{"mib":0,"parts":2}'),
        (2, '{"mib":"64","parts":2}'),
        (2, '{"mib":64,"parts":17}'),
        (2, "[]"),
        (3, '{"mib":64,"parts":2}'),
        ("2", '{"mib":64,"parts":2}'),
    ],
)
def test_a_damaged_segment_is_not_acted_on(tree, segment):
    text = f'{{"v":3,"mode":"flat","clique":0,"tree":{tree!r},"segment":{segment}}}'
    with pytest.raises(AbiError, match="is damaged"):
        guest_abi.read_guest_abi(text.replace("'", '"'))


def test_a_newer_record_is_not_acted_on():
    with pytest.raises(AbiError, match="of version 4, and this release of nova-hpc makes 1, 2, 3"):
        guest_abi.read_guest_abi('{"v":4,"mode":"mirror","clique":0,"more":"x"}')
