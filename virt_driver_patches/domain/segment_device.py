# SPDX-License-Identifier: Apache-2.0
"""A segment of shared memory in a guest's domain: an NVDIMM that several guests map.

Libvirt does not write the file's pages to disk, and QEMU maps them shared. The guest finds the
label of a device-dax in it, and maps the rest with 2 MiB pages, cached.
"""

from __future__ import annotations

from lxml import etree

from nova_hpc.placement.segment_shape import PAGE
from nova_hpc.tenancy.segments.segment_record import DEVICE_NAME
from virt_driver_patches.domain import address_space
from virt_driver_patches.domain.guest_domain import GuestDomainXml


class SegmentDeviceError(Exception):
    """Raised if a segment cannot be added to the domain; the message names the cure."""


def add_segment_device(domain: GuestDomainXml, path: str, size: int, part: int) -> None:
    """Give the guest the file at *path* as memory, on its first cell.

    :param size: size of the file, in bytes.
    :param part: the guest's own part of it.
    :raises SegmentDeviceError: the guest has no NUMA cell that could hold it.
    """
    if domain.root.find("cpu/numa/cell") is None:
        raise SegmentDeviceError(
            "memory can be shared by guests with NUMA cells alone: set hw:cpu_policy=dedicated in "
            "the flavor"
        )
    root = domain.edit()
    _raise_memory_limit(root, size >> 10)
    device = etree.SubElement(domain.devices, "memory", model="nvdimm", access="shared")
    source = etree.SubElement(device, "source")
    etree.SubElement(source, "path").text = path
    # The guest's kernel accepts only this alignment; it also lets the host map large pages.
    etree.SubElement(source, "alignsize", unit="KiB").text = str(PAGE >> 10)
    target = etree.SubElement(device, "target")
    etree.SubElement(target, "size", unit="KiB").text = str(size >> 10)
    etree.SubElement(target, "node").text = "0"
    etree.SubElement(device, "alias", name=f"{DEVICE_NAME}{part}")


def _raise_memory_limit(root: etree._Element, kib: int) -> None:
    """Make room for one more device. Nova sets a limit only for persistent memory."""
    limit = root.find("maxMemory")
    most = address_space.most_memory_of(root) >> 10
    slots = 0
    if limit is None:
        limit = etree.Element("maxMemory")
        memory = root.find("memory")
        root.insert(0 if memory is None else list(root).index(memory), limit)
    else:
        slots = int(limit.get("slots", "0"))
    limit.set("slots", str(slots + 1))
    limit.set("unit", "KiB")
    limit.text = str(most + kib)


def has_segment_device(domain: GuestDomainXml) -> bool:
    """Return whether the domain has an NVDIMM for a segment, which its alias shows."""
    aliases = domain.root.iterfind("devices/memory/alias")
    return any((alias.get("name") or "").startswith(DEVICE_NAME) for alias in aliases)
