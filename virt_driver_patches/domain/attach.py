# SPDX-License-Identifier: Apache-2.0
"""Removes devices from a guest, all or none, and gives them back at their places.

Nova detaches passed-through devices from a guest before it saves the guest's memory (at a
suspend, and at a snapshot of a guest that is not snapshot live). It attaches
them again without an address (``_detach_pci_devices`` and ``_attach_pci_devices`` of
nova/virt/libvirt/driver.py, 32 to 34; no bug is known to be filed), so libvirt would
choose any place. The definition of the guest still contains their addresses.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from lxml import etree
from nova import exception
from oslo_log import log as logging

from virt_driver_patches.domain.guest_domain import QEMU, GuestDomainXml
from virt_driver_patches.errors import ClaimRefused

LOG = logging.getLogger(__name__)

#: Seconds between two checks of a guest that has to release devices.
_PAUSE = 1.0


class NotLetGo(exception.PciDeviceDetachFailed):
    """A guest has not answered the requests to release devices; QEMU keeps the requests."""

    def __init__(self, left: int, total: int, limit: float) -> None:
        super().__init__(
            dev=f"{left} of {total} devices",
            reason=f"the guest did not let go of them within {limit:.0f} s; has it booted?",
        )
        #: Number of devices that the guest still has.
        self.left = left


class PlacedDevice:
    """Wrap a device's XML element, so that Nova's ``Guest.attach_device`` can attach it."""

    def __init__(self, element: etree._Element) -> None:
        self._element = element

    def to_xml(self) -> str:
        """Return the device as XML for libvirt."""
        return str(etree.tostring(self._element, encoding="unicode", with_tail=False))


def read_inactive_domain(guest: Any) -> GuestDomainXml:
    """Return the domain with which libvirt will start the guest the next time.

    :param guest: Nova's ``Guest``.
    """
    return GuestDomainXml(guest.get_xml_desc(dump_inactive=True))


def check_suspend(domain: GuestDomainXml) -> None:
    """Refuse a suspend that would change the guest's hardware.

    :param domain: the guest's definition.
    :raises ClaimRefused: with a text for the server's user.
    """
    placed = domain.placed()
    # Nova also removes ports from the definition, and creates them again
    # (_detach_direct_passthrough_ports of nova/virt/libvirt/driver.py, 32 to 34).
    if any(element.tag == "interface" for element in placed.values()):
        raise ClaimRefused(
            "A server whose direct (SR-IOV) ports have their place in its PCIe tree cannot be "
            "suspended, or snapshot cold: detach the ports, or stop the server instead."
        )
    # Libvirt applies <qemu:override> only when it starts a guest.
    if placed and domain.root.find(f"{{{QEMU}}}override") is not None:
        raise ClaimRefused(
            "A server whose GPUs have GPUDirect cliques cannot be suspended, or snapshot cold: "
            "stop the server instead."
        )


def _source_of(config: Any) -> str | None:
    """Return the host address of a device to attach; None if it is not a PCI device."""
    try:
        domain = GuestDomainXml(f"<domain><devices>{config.to_xml()}</devices></domain>")
    except (etree.XMLSyntaxError, AttributeError):
        return None
    return next((address for address, _ in domain.passed_through()), None)


class PlacingGuest:
    """Wrap Nova's ``Guest``; attach each PCI device at the guest address in the stored domain."""

    def __init__(self, guest: Any, placed: Mapping[str, etree._Element]) -> None:
        self._guest = guest
        self._placed = placed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guest, name)

    def attach_device(self, config: Any, *args: Any, **kwargs: Any) -> None:
        """Attach a device; refuse a PCI device of the host that has no place.

        :raises nova.exception.PciDeviceNotFound: the definition lacks the device.
        """
        address = _source_of(config)
        if address is not None and address not in self._placed:
            raise exception.PciDeviceNotFound(node_id="this guest's definition", address=address)
        placed_config = config if address is None else PlacedDevice(self._placed[address])
        self._guest.attach_device(placed_config, *args, **kwargs)


def wrap_placing_guest(guest: Any) -> Any:
    """Return *guest*, or a :class:`PlacingGuest` if this project has placed its devices."""
    placed = read_inactive_domain(guest).placed()
    return PlacingGuest(guest, placed) if placed else guest


def detach_all_or_none(guest: Any, devices: Mapping[str, Any], limit: float) -> None:
    """Detach *devices* from a running guest: all of them, or none.

    Nova waits five seconds, as long as libvirt does. But a
    guest that handles hot plugging itself, as it does below PCIe expanders,
    releases a device no earlier than five seconds after the request.

    :param guest: Nova's ``Guest``.
    :param devices: host address -> device, as Nova's ``Guest.detach_device`` takes it.
    :param limit: seconds that the guest has for all devices together.
    :raises NotLetGo: the guest kept a device; the released ones are attached again.
    """
    devices = {
        address: devices[address] for address in devices.keys() & list_attached_addresses(guest)
    }
    for config in devices.values():
        guest.detach_device(config, live=True)
    deadline = time.monotonic() + limit
    while left := devices.keys() & list_attached_addresses(guest):
        if time.monotonic() >= deadline:
            give_devices_back(guest, devices.keys() - left)
            raise NotLetGo(len(left), len(devices), limit)
        time.sleep(_PAUSE)


def list_attached_addresses(guest: Any) -> set[str]:
    """Return the PCI addresses on the host of the devices that the running guest has."""
    return {address for address, _ in GuestDomainXml(guest.get_xml_desc()).passed_through()}


def give_devices_back(guest: Any, addresses: Iterable[str]) -> set[str]:
    """Attach devices to a running guest at the places of its definition. Never raises.

    Libvirt stores an address in the guest for every device of a definition, also if
    this project has not placed it.

    :returns: host addresses of the devices that are attached again.
    """
    back = set()
    places = dict(read_inactive_domain(guest).passed_through())
    for address in sorted(addresses):
        try:
            guest.attach_device(PlacedDevice(places[address]), live=True)
            back.add(address)
        except Exception:
            LOG.exception("PCI device %s could not be given back to its guest", address)
    return back
