# SPDX-License-Identifier: Apache-2.0
"""Reading what flavor, node, libvirt and guest say."""

import pytest

from nova_hpc_common.level import Level
from nova_hpc_lab import evidence, node, report
from nova_hpc_lab.demo import offered, specs, tightest
from nova_hpc_lab.errors import LabError
from nova_hpc_lab.evidence import Asked
from nova_hpc_lab.node import qemu
from nova_hpc_lab.observe import PciRecord, Provider
from nova_hpc_tools.site import identity

DOMAIN = """
<domain type='kvm' id='1'>
  <memoryBacking><hugepages><page size='2048' unit='KiB' nodeset='0'/></hugepages></memoryBacking>
  <cputune>
    <vcpupin vcpu='0' cpuset='2-3'/><vcpupin vcpu='1' cpuset='3'/>
    <emulatorpin cpuset='0,2'/>
  </cputune>
  <numatune><memory mode='strict' nodeset='1'/><memnode cellid='0' mode='strict' nodeset='1'/>
  </numatune>
  <devices>
    <hostdev mode='subsystem' type='pci' managed='no'>
      <source><address domain='0x0000' bus='0x81' slot='0x10' function='0x2'/></source>
      <address type='pci' domain='0x0000' bus='0x05' slot='0x00' function='0x0'/>
    </hostdev>
    <hostdev mode='subsystem' type='usb'><source><vendor id='0x1'/></source></hostdev>
  </devices>
</domain>
"""


def test_a_domain_is_read():
    found = evidence.parse_domain(DOMAIN)
    assert found.hostdevs == ("0000:81:10.2",)
    assert found.pins == {0: {2, 3}, 1: {3}}
    assert found.emulator == {0, 2}
    assert found.memory_nodes == {1}
    assert found.page_kib == 2048


def test_a_domain_without_any_of_it_is_read():
    found = evidence.parse_domain("<domain><devices/></domain>")
    assert found.hostdevs == ()
    assert found.page_kib is None
    assert not found.pins
    assert not found.emulator
    assert not found.memory_nodes


def test_memory_that_is_only_preferred_is_not_strict():
    text = "<domain><numatune><memory mode='preferred' nodeset='1'/></numatune></domain>"
    assert not evidence.parse_domain(text).memory_nodes


def test_what_is_no_domain_is_told():
    with pytest.raises(LabError, match="no XML"):
        evidence.parse_domain("error: no domain")


def test_only_pages_of_the_right_size_count():
    text = (
        "7f00 bind:1 file=/dev/hugepages/x huge anon=200 N1=200 kernelpagesize_kB=2048\n"
        "7f10 bind:1 file=/dev/hugepages/x huge anon=60 N0=4 N1=56 kernelpagesize_kB=2048\n"
        "7f20 default heap anon=900 N0=900 kernelpagesize_kB=4\n"
    )
    assert evidence.parse_numa_maps(text, 2048) == {0: 4, 1: 256}


def test_a_flavor_is_read_back():
    wanted = evidence.asked(specs(Level.ROOT, gpu=1, vf=2), 2, 512)
    assert wanted == Asked({"gpu": 1, "vf": 2}, Level.ROOT, 2, 512, 2048)


def _function(address, ids, **more):
    vendor, product = ids.split(":")
    return {
        "address": address,
        "vendor_id": vendor,
        "product_id": product,
        "numa_node": 1,
        "socket": 1,
        "root": "pci0000:80",
        "switches": ["0000:80:00.0"],
        "bars": [],
        "physical_function": None,
        "virtual_functions": [],
        "os_devices": [],
        **more,
    }


INVENTORY = {
    "functions": [
        _function("0000:80:00.0", "1b36:000c"),
        _function("0000:81:00.0", "1234:1111", bars=[{"size": 32 << 20}, {"size": 4096}]),
        _function(
            "0000:82:00.0",
            "8086:10c9",
            virtual_functions=["0000:82:10.0", "0000:82:10.2"],
            os_devices=["net ens1", "ptp ptp0"],
        ),
        _function("0000:82:10.0", "8086:10ca", physical_function="0000:82:00.0"),
        _function("0000:82:10.2", "8086:10ca", physical_function="0000:82:00.0"),
    ]
}
LINKS = [
    {"ifname": "lo"},
    {
        "ifname": "ens1",
        "vfinfo_list": [
            {"vf": 0, "address": "52:54:00:01:01:00"},
            {"vf": 1, "address": "52:54:00:01:01:01"},
        ],
    },
]


def test_assignable_functions_have_identities():
    found = evidence.devices_of(INVENTORY, LINKS)
    assert {address: (one.role, one.provider, one.identity) for address, one in found.items()} == {
        "0000:81:00.0": ("gpu", "0000:81:00.0", "BAR of 32 MiB"),
        "0000:82:10.0": ("vf", "0000:82:00.0", "MAC 52:54:00:01:01:00"),
        "0000:82:10.2": ("vf", "0000:82:00.0", "MAC 52:54:00:01:01:01"),
    }
    # Of an adapter that is kept for ports, the network is the role.
    kept = evidence.devices_of(INVENTORY, LINKS, {"ens1": "physnet1"})
    assert [one.role for one in kept.values()] == ["gpu", "physnet1", "physnet1"]


def test_identities_of_every_sample_are_unique_and_on_their_numa_node():
    for name in node.sample_names():
        shape = node.Shape.load(name)
        promised = evidence.planned(shape, 1)
        count = sum(
            len(device.vf_macs(1)) if hasattr(device, "vfs") else 1 for _, device in shape.devices()
        )
        assert len(promised) == count
        macs = {identity for identity in promised if identity.startswith("MAC ")}
        assert not macs & set(evidence.planned(shape, 2))


def test_the_tightest_level_that_can_be_given_is_asked_for():
    devices = evidence.devices_of(INVENTORY, LINKS)
    assert tightest(devices.values(), ("gpu", "vf")) is Level.SWITCH
    assert tightest([], ("gpu", "vf")) is None
    free = offered(
        devices,
        [
            Provider("hpc1", "0000:81:00.0", "CUSTOM_X", total=1, used=0),
            Provider("hpc1", "0000:82:00.0", "CUSTOM_Y", total=2, used=2),
            Provider("hpc1", "0000:83:00.0", "CUSTOM_X", total=1, used=0, reserved=1),
        ],
    )
    assert [one.address for one in free] == ["0000:81:00.0"]


def test_a_device_that_is_reserved_is_shown_as_withheld():
    """The node keeps its provider, so that nobody's traits and allocations are lost."""
    providers = [
        Provider("hpc1", "0000:81:00.0", "CUSTOM_X", total=1, used=0, reserved=1),
        Provider("hpc1", "0000:82:00.0", "CUSTOM_Y", total=4, used=1, reserved=2),
        Provider("hpc1", "0000:83:00.0", "CUSTOM_X", total=1, used=1, reserved=1),
        Provider("hpc1", "0000:84:00.0", "CUSTOM_X", total=1, used=0, reserved=1),
        Provider("hpc2", "0000:81:00.0", "CUSTOM_X", total=1, used=0),
    ]
    withheld = {"hpc1": {"0000:81:00.0": "it is hot", "0000:82:00.1": "it is cold"}}
    found = report._devices(providers, withheld, {"hpc1": "up", "hpc2": "up"})
    assert [(one.address, one.used, one.total, one.withheld) for one in found["hpc1"]] == [
        ("0000:82:00.0", 1, 2, ""),
        ("0000:83:00.0", 1, 1, ""),
        ("0000:81:00.0", 0, 0, "it is hot"),
        ("0000:82:00.1", 0, 0, "it is cold"),
        ("0000:84:00.0", 0, 0, "it is reserved in Placement"),
    ]
    assert [(one.total, one.withheld) for one in found["hpc2"]] == [(1, "")]


def test_a_device_is_shown_by_its_role():
    """A role is what flavors name; its resource class is behind it."""
    gpu = identity.product_class(*qemu.GPU_IDS)
    providers = [
        Provider("hpc1", "0000:81:00.0", gpu, total=1, used=0),
        Provider("hpc1", "0000:82:00.0", "CUSTOM_HPC_VF", total=4, used=1),
        Provider("hpc1", "0000:83:00.0", "CUSTOM_Y", total=1, used=0),
        Provider("hpc1", "0000:84:00.0", gpu, total=1, used=0, reserved=1),
    ]
    withheld = {"hpc1": {"0000:84:00.0": "it is hot", "0000:85:00.0": "it is cold"}}
    found = report._devices(providers, withheld, {"hpc1": "up"})["hpc1"]
    assert [device.role for device in found] == ["gpu", "vf", "", "gpu", ""]
    status = node.NodeStatus("hpc1", node.State.UP)
    table = report._node(report.NodeReport(status, "up", found))
    assert [column.header for column in table.columns][:2] == ["Device", "Role"]
    assert [list(column.cells) for column in table.columns][1] == ["gpu", "vf", "-", "gpu", "-"]


def test_a_vf_is_counted_at_its_physical_function():
    vf = PciRecord("0000:82:10.0", "0000:82:00.0", "8086:10ca", "type-VF", 1, "allocated")
    gpu = PciRecord("0000:81:00.0", None, "1234:1111", "type-PCI", 1, "allocated")
    assert (vf.provider, gpu.provider) == ("0000:82:00.0", "0000:81:00.0")


def test_a_guest_report_is_read_by_identities():
    console = (
        "=== nova-hpc guest report 1 begin ===\nkernel 6.12\ncpus 1\nmemory_kib 470000\n"
        "pci 0000:00:00.0 8086:29c0 060000 - 0\n"
        "pci 0000:05:00.0 1234:1111 038000 - -1\nbar 0000:05:00.0 0 33554432\n"
        "pci 0000:06:00.0 8086:10ca 020000 igbvf -1\nbar 0000:06:00.0 0 16384\n"
        "mac 0000:06:00.0 52:54:00:01:01:00\n=== nova-hpc guest report 1 end ===\n"
    )
    report = node.parse_report(console)
    assert report is not None
    found = evidence.guest(report)
    assert [(one.ids, one.identity) for one in found.devices] == [
        ("1234:1111", "BAR of 32 MiB"),
        ("8086:10ca", "MAC 52:54:00:01:01:00"),
    ]
