# SPDX-License-Identifier: Apache-2.0
"""Shared memory in a guest's domain, and the room that it takes there."""

from __future__ import annotations

import pytest
from lxml import etree

from nova_hpc.guest_tree import windows
from nova_hpc.guest_tree.windows import Span
from nova_hpc.tenancy import guest_domains
from nova_hpc.tenancy.segments.segment_record import SegmentUse
from virt_driver_patches.domain import address_space, segment_device
from virt_driver_patches.domain.guest_domain import GuestDomainXml

GIB = 1 << 30
CPU = "<cpu><numa><cell id='0' cpus='0-1' memory='1048576'/></numa></cpu>"


def domain(more: str = CPU, devices: str = "") -> GuestDomainXml:
    return GuestDomainXml(
        f"<domain type='qemu'><name>n</name><memory>1048576</memory>{more}<os><type machine="
        f"'pc-q35-9.2'>hvm</type></os><devices>{devices}</devices></domain>"
    )


def test_what_is_written() -> None:
    guest = domain()
    segment_device.add_segment_device(guest, "/dev/shm/nova-hpc/x", 8 << 20, 1)
    root = etree.fromstring(guest.text())
    assert [element.tag for element in root] == [
        *("name", "maxMemory", "memory", "cpu", "os", "devices")
    ]
    assert root.find("maxMemory").attrib == {"slots": "1", "unit": "KiB"}
    assert root.findtext("maxMemory") == str((1 << 20) + (8 << 10))
    assert guest_domains.parse_passed_functions(guest.text()).segments == (
        SegmentUse("/dev/shm/nova-hpc/x", 1),
    )
    # One memory for all, aligned as the guest's kernel and large pages of the host want it.
    (device,) = root.findall("devices/memory")
    assert device.attrib == {"model": "nvdimm", "access": "shared"}
    assert (device.findtext("source/alignsize"), device.findtext("target/size")) == ("2048", "8192")
    assert segment_device.has_segment_device(guest)
    assert not segment_device.has_segment_device(domain())


def test_persistent_memory_of_novas_stays() -> None:
    own = (
        "<memory model='nvdimm' access='shared'><source><path>/dev/dax0.0</path></source></memory>"
    )
    guest = domain(f"{CPU}<maxMemory slots='1'>3145728</maxMemory>", own)
    assert not segment_device.has_segment_device(guest)
    segment_device.add_segment_device(guest, "/x", 8 << 20, 0)
    root = etree.fromstring(guest.text())
    (limit,) = root.findall("maxMemory")
    assert (limit.get("slots"), limit.text) == ("2", str(3145728 + (8 << 10)))
    paths = [device.findtext("source/path") for device in root.findall("devices/memory")]
    assert paths == ["/dev/dax0.0", "/x"]


def test_a_guest_without_cells_has_no_place_for_it() -> None:
    guest = domain("")
    before = guest.text()
    with pytest.raises(segment_device.SegmentDeviceError, match="set hw:cpu_policy=dedicated"):
        segment_device.add_segment_device(guest, "/x", 8 << 20, 0)
    assert guest.text() == before


@pytest.mark.parametrize("size", [8 << 20, 64 * GIB, 1024 * GIB])
def test_address_bits_count_it(size: int) -> None:
    guest = domain()
    segment_device.add_segment_device(guest, "/x", size, 0)
    address_space.widen_address_space(guest, Span(512 * GIB, 128 * GIB))
    needed = windows.address_bits_of((1 << 30) + size, windows.window_size_of(Span(512 * GIB)))
    assert etree.fromstring(guest.text()).find("cpu/maxphysaddr").get("bits") == str(needed)
