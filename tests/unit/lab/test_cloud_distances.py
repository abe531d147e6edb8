# SPDX-License-Identifier: Apache-2.0
from nova_hpc_common.level import Distance, Location
from nova_hpc_lab import compare
from nova_hpc_lab.evidence import HostDevice
from nova_hpc_lab.node import Shape, parse_report

#: As a guest's own sysfs said it: a switch with two GPUs, and an adapter on the other cell.
REPORT = """\
=== nova-hpc guest report 1 begin ===
kernel 6.12.95+deb12-amd64
cpus 2
memory_kib 473440
cell 0 cpus 0 memory_kib 236720
cell 1 cpus 1 memory_kib 236720
pci 0000:40:00.0 1b36:000c 060400 pcieport 0
path 0000:40:00.0 pci0000:40/0000:40:00.0
pci 0000:41:00.0 104c:8232 060400 pcieport 0
path 0000:41:00.0 pci0000:40/0000:40:00.0/0000:41:00.0
pci 0000:42:00.0 104c:8233 060400 pcieport 0
path 0000:42:00.0 pci0000:40/0000:40:00.0/0000:41:00.0/0000:42:00.0
pci 0000:42:01.0 104c:8233 060400 pcieport 0
path 0000:42:01.0 pci0000:40/0000:40:00.0/0000:41:00.0/0000:42:01.0
pci 0000:43:00.0 1234:1111 038000 - 0
path 0000:43:00.0 pci0000:40/0000:40:00.0/0000:41:00.0/0000:42:00.0/0000:43:00.0
bar 0000:43:00.0 0 16777216
pci 0000:44:00.0 1234:1111 038000 - 0
path 0000:44:00.0 pci0000:40/0000:40:00.0/0000:41:00.0/0000:42:01.0/0000:44:00.0
bar 0000:44:00.0 0 33554432
pci 0000:50:00.0 1b36:000c 060400 pcieport 1
path 0000:50:00.0 pci0000:50/0000:50:00.0
pci 0000:51:00.0 8086:10ca 020000 igbvf 1
path 0000:51:00.0 pci0000:50/0000:50:00.0/0000:51:00.0
mac 0000:51:00.0 52:54:00:01:01:0A
=== nova-hpc guest report 1 end ===
"""
SWITCH = Location(numa=0, root="pci0000:20", switches=("0000:22:00.0",))
PORT = Location(numa=1, root="pci0000:80", switches=("0000:80:00.0",))


def device(address, name, location):
    return HostDevice(
        address=address, ids="", role="", provider=address, location=location, identity=name
    )


GIVEN = [
    device("0000:24:00.0", "BAR of 16 MiB", SWITCH),
    device("0000:25:00.0", "BAR of 32 MiB", SWITCH),
    device("0000:81:10.0", "MAC 52:54:00:01:01:0a", PORT),
]


def test_the_guests_own_sysfs_is_read():
    places = compare.guest_places(parse_report(REPORT))
    assert places == {
        "0000:43:00.0": Location(0, None, "pci0000:40", ("0000:41:00.0",)),
        "0000:44:00.0": Location(0, None, "pci0000:40", ("0000:41:00.0",)),
        "0000:51:00.0": Location(1, None, "pci0000:50", ("0000:50:00.0",)),
    }


def test_every_pair_is_compared():
    found = compare.pairs(GIVEN, parse_report(REPORT))
    assert [pair.host for pair in found] == [Distance.PIX, Distance.SYS, Distance.SYS]
    assert all(pair.host is pair.guest for pair in found)
    assert str(found[0]) == "BAR of 16 MiB - BAR of 32 MiB: host PIX, guest PIX"


def test_a_difference_is_seen():
    report = parse_report(REPORT.replace("igbvf 1", "igbvf -1").replace("42:01.0/", "42:01.0/x/"))
    found = compare.pairs(GIVEN, report)
    assert [pair.guest for pair in found] == [Distance.PIX, Distance.SYS, Distance.SYS]
    flat = REPORT.replace("pci0000:50/", "pci0000:40/").replace("0000:41:00.0/", "")
    found = compare.pairs(GIVEN, parse_report(flat))
    assert Distance.PHB in {pair.guest for pair in found}


def test_the_shape_has_what_the_test_in_the_lab_needs():
    shape = Shape.load("mirror")
    kinds = [type(each).__name__ for _, each in shape.devices()]
    assert (kinds.count("Gpu"), kinds.count("Adapter")) == (6, 2)
