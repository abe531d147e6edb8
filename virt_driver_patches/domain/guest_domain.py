# SPDX-License-Identifier: Apache-2.0
"""The domain of a guest: Nova's XML, parsed once, changed in one pass, written once.

Each change is a function on a :class:`GuestDomainXml`: the PCIe tree
(:mod:`~virt_driver_patches.domain.pcie_tree`), the CPUs of the emulator
(:mod:`~virt_driver_patches.domain.emulator_threads`) and the guest's documents
(:mod:`~virt_driver_patches.domain.fwcfg`, the last, because they contain the devices' places).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lxml import etree

from nova_hpc.topology.model import AddressError, normalise_address

#: Namespace of the elements that libvirt passes to QEMU unchanged.
QEMU: Final = "http://libvirt.org/schemas/domain/qemu/1.0"
#: Prefix of the names of devices that this project has placed. Libvirt keeps names that
#: users give only if they start with ``ua-``.
ALIAS: Final = "ua-hpc-"

#: Elements of passed-through functions: of aliases, and (as Nova writes them) of direct ports.
_PASSED: Final = {"hostdev": "pci", "interface": "hostdev"}
#: Controllers that are a root complex of the guest.
_ROOTS: Final = ("pcie-root", "pci-root")
_EXPANDERS: Final = ("pcie-expander-bus", "pci-expander-bus")


class GuestDomainXml:
    """One ``<domain>``.

    :param xml: the domain from Nova or libvirt.
    :raises lxml.etree.XMLSyntaxError: it is not XML.
    """

    def __init__(self, xml: str) -> None:
        self._given = xml
        self._changed = False
        # It contains strings of users. Nova escapes them, and needs no entity.
        self._root: etree._Element = etree.fromstring(
            xml, etree.XMLParser(resolve_entities=False, huge_tree=False)
        )

    @property
    def root(self) -> etree._Element:
        """The ``<domain>`` element, to be read and not to be changed."""
        return self._root

    def edit(self) -> etree._Element:
        """Return the ``<domain>`` for changes; :meth:`text` serialises it from now on."""
        self._changed = True
        return self._root

    def text(self) -> str:
        """Return the domain for libvirt; the original text if nothing has changed."""
        return str(etree.tostring(self._root, encoding="unicode")) if self._changed else self._given

    def declare_qemu(self) -> None:
        """Declare QEMU's namespace at the root element, where libvirt expects it."""
        old = self.edit()
        names: dict[Any, str] = {prefix: uri for prefix, uri in old.nsmap.items() if uri != QEMU}
        names["qemu"] = QEMU
        attributes = {str(name): str(value) for name, value in old.attrib.items()}
        self._root = etree.Element(old.tag, attributes, nsmap=names)
        self._root.text = old.text
        self._root.extend(list(old))

    @property
    def devices(self) -> etree._Element:
        """The ``<devices>``.

        :raises ValueError: there are none; Nova and libvirt always write them.
        """
        element = self._root.find("devices")
        if element is None:
            raise ValueError("the domain has no <devices>")
        return element

    @property
    def machine(self) -> str | None:
        """The machine type, for example ``pc-q35-9.2``; None for QEMU's default."""
        kind = self._root.find("os/type")
        return None if kind is None else kind.get("machine")

    def passed_through(self) -> list[tuple[str, etree._Element]]:
        """Return the passed-through PCI functions in the domain's order: host address, element.

        A function with an invalid address is left out: libvirt will refuse it.
        """
        functions = []
        for element in self._root.iterfind("devices/*"):
            if element.get("type") != _PASSED.get(str(element.tag)):
                continue
            source = element.find("source/address")
            if source is None:
                continue
            try:
                parts = _parse_number_attributes(
                    source, ("domain", "bus", "slot", "function"), missing="0"
                )
                address = normalise_address("{:04x}:{:02x}:{:02x}.{:x}".format(*parts))
            except (ValueError, AddressError):
                continue
            functions.append((address, element))
        return functions

    def macs(self) -> dict[str, str]:
        """Map the PCI address of a device passed through as an interface to its MAC address."""
        macs = {}
        for address, device in self.passed_through():
            mac = device.find("mac")
            if mac is not None and mac.get("address"):
                macs[address] = str(mac.get("address")).lower()
        return macs

    def placed(self) -> dict[str, etree._Element]:
        """Map host address to XML element, of the PCI functions with this project's alias."""
        return {
            address: element
            for address, element in self.passed_through()
            if _has_our_alias(element)
        }

    def paths(self) -> list[tuple[str, tuple[str, ...] | None]]:
        """Return the passed-through functions: host address, and path in the guest.

        The path is the bus of the root, then device.function of each step down; None
        if it is not fixed. Interfaces come first: libvirt assigns addresses to functions
        without one in this order.
        """
        controllers = {
            controller.get("index"): controller
            for controller in self._root.iterfind("devices/controller[@type='pci']")
        }
        functions = sorted(
            self.passed_through(), key=lambda function: function[1].tag != "interface"
        )
        return [(address, _guest_path_of(element, controllers)) for address, element in functions]


def _has_our_alias(element: etree._Element) -> bool:
    alias = element.find("alias")
    return alias is not None and (alias.get("name") or "").startswith(ALIAS)


def _guest_path_of(
    device: etree._Element, controllers: Mapping[str | None, etree._Element]
) -> tuple[str, ...] | None:
    """Return the path of one function, by following its controllers up to a root.

    None if an address or a bus number is missing or not valid, or if controllers form a loop.
    """
    steps: list[str] = []
    place = device.find("address[@type='pci']")
    while place is not None and len(steps) <= len(controllers) + 1:
        try:
            bus, slot, function = _parse_number_attributes(place, ("bus", "slot", "function"))
        except ValueError:
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
            is_bus_number = number.isdecimal() and number.isascii() and int(number) < 256
            return (f"{int(number):02x}", *reversed(steps)) if is_bus_number else None
        place = controller.find("address[@type='pci']")
    return None


def _parse_number_attributes(
    element: etree._Element, keys: Sequence[str], missing: str = ""
) -> list[int]:
    """Return attributes as numbers, in libvirt's notation, ``0x17``; a missing function is 0.

    :param missing: value of any other missing attribute.
    :raises ValueError: an attribute is not a number.
    """
    return [int(element.get(key, "0" if key == "function" else missing), 0) for key in keys]
