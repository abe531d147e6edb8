"""What the guest is told, put into its domain as entries of fw_cfg.

Pure: everything that is said follows from the finished domain (which device
sits where in the guest) and a reading of the node (where it sits on the host).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lxml import etree

from nova_hpc.guest.document import PREFIX
from nova_hpc.guest_tree import guest_document
from nova_hpc.topology.model import AddressError, Node, normalise_address
from nova_hpc.topology.nccl import Processor

#: Controllers that are a root of their own in the guest.
_ROOTS: Final = ("pcie-root", "pci-root")
#: An argument of QEMU has at most 128 KiB, and commas in it are written twice.
_LONGEST: Final = 90_000
_EXPANDERS: Final = ("pcie-expander-bus", "pci-expander-bus")


def tell(
    xml: str,
    node: Node,
    topology: str,
    cells: Sequence[guest_document.Cell],
    roles: Mapping[str, str],
    processor: Processor | None = None,
) -> str:
    """Tell the guest of a domain about its devices; a domain without any stays as it is.

    The one call for the driver, after everything else has been changed.

    :param xml: the finished domain.
    :param node: a reading of the host with the claimed devices.
    :param topology: ``hpc:guest_topology``: mirror, numa or flat.
    :param roles: host address of a device -> its role, where it has one.
    :param processor: the host's, where the guest has the same.
    """
    domain = etree.fromstring(xml, etree.XMLParser(resolve_entities=False))
    given = [
        guest_document.Given(address, path, roles.get(address))
        for address, path in guest_paths(domain)
    ]
    if not given:
        return xml
    # Nova lists host devices in any order: where they have places, those count.
    if all(each.path is not None for each in given):
        given.sort(key=lambda each: each.path or ())
    add_documents(domain, guest_document.documents(node, topology, cells, given, processor))
    return str(etree.tostring(domain, encoding="unicode"))


def cells_of(topology: Any) -> tuple[guest_document.Cell, ...]:
    """The cells of Nova's InstanceNUMATopology after its claim; None: no cells."""
    return tuple(
        guest_document.Cell(
            cpus=len((cell.cpuset or set()) | (cell.pcpuset or set())),
            memory_kib=cell.memory * 1024,
            page_kib=cell.pagesize if cell.pagesize and cell.pagesize > 0 else None,
            host_node=cell.id,
        )
        for cell in (topology.cells if topology is not None else ())
    )


def add_documents(domain: etree._Element, documents: Mapping[str, bytes]) -> None:
    """Put *documents* (name -> ASCII text) into fw_cfg; those of the same name go.

    :param domain: the ``<domain>``, changed in place.
    :raises ValueError: a name or a text that must not be there.
    """
    for name, text in documents.items():
        # libvirt takes opt/ only; QEMU's names have 55 characters.
        if not name.startswith(PREFIX) or len(name) > 55 or not name.isascii():
            raise ValueError(f"{name!r} is no name for an entry of fw_cfg")
        if b"\0" in text or not text.isascii() or len(text) > _LONGEST:
            raise ValueError(f"{name}: no ASCII text of at most {_LONGEST} characters")
    found = domain.find("sysinfo[@type='fwcfg']")
    sysinfo = etree.SubElement(domain, "sysinfo", type="fwcfg") if found is None else found
    for entry in sysinfo.findall("entry"):
        if entry.get("name") in documents:
            sysinfo.remove(entry)
    for name, text in sorted(documents.items()):
        # libvirt quotes nothing for QEMU: no comma and no quotation mark may be in it.
        etree.SubElement(sysinfo, "entry", name=name).text = base64.b64encode(text).decode("ascii")


def guest_paths(domain: etree._Element) -> list[tuple[str, tuple[str, ...] | None]]:
    """The passed-through devices: host address, and path in the guest where it is laid down.

    In the order in which libvirt gives addresses to those without one: those of
    interfaces first.
    """
    controllers = {
        controller.get("index"): controller
        for controller in domain.iterfind("devices/controller[@type='pci']")
    }
    found: list[tuple[str, tuple[str, ...] | None]] = []
    for kind in ("interface[@type='hostdev']", "hostdev[@type='pci']"):
        for device in domain.iterfind(f"devices/{kind}"):
            source = device.find("source/address")
            try:
                parts = _numbers(source, ("domain", "bus", "slot", "function"))
                address = normalise_address("{:04x}:{:02x}:{:02x}.{:x}".format(*parts))
            except (TypeError, ValueError, AddressError):
                continue  # libvirt will refuse it
            found.append((address, _path(device, controllers)))
    return found


def _path(
    device: etree._Element, controllers: Mapping[str | None, etree._Element]
) -> tuple[str, ...] | None:
    """Bus of the root, then device.function of each step down to *device*."""
    steps: list[str] = []
    place = device.find("address[@type='pci']")
    while len(steps) <= len(controllers) + 1:
        try:
            bus, slot, function = _numbers(place, ("bus", "slot", "function"))
        except (TypeError, ValueError):
            return None
        steps.append(f"{slot:02x}.{function:x}")
        controller = controllers.get(str(bus))
        model = controller.get("model") if controller is not None else None
        if model in _ROOTS or (controller is None and bus == 0):
            return ("00", *reversed(steps))
        if controller is None:
            return None
        if model in _EXPANDERS:
            target = controller.find("target")
            number = (target.get("busNr") if target is not None else None) or ""
            known = number.isdecimal() and number.isascii() and int(number) < 256
            return (f"{int(number):02x}", *reversed(steps)) if known else None
        place = controller.find("address[@type='pci']")
    return None


def _numbers(element: etree._Element | None, keys: Sequence[str]) -> list[int]:
    """Attributes as libvirt writes them, ``0x17``; a missing function is 0."""
    if element is None:
        raise ValueError("no address")
    return [int(element.get(key, "0" if key in ("function", "domain") else ""), 0) for key in keys]
