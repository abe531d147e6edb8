# SPDX-License-Identifier: Apache-2.0
"""Devices are taken out of a guest, all or none, and come back to their places.

Nova takes passed-through devices off a guest before its memory is saved (at a
suspend, and at a snapshot of a guest that is not snapshot alive), and gives
them back without an address (``_detach_pci_devices`` and ``_attach_pci_devices`` of
nova/virt/libvirt/driver.py, 32 to 34; no bug is known to be filed): libvirt would put
them anywhere. The definition of the guest still has them where they were.
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

#: Seconds between looks at a guest that lets go of devices.
_PAUSE = 1.0


class NotLetGo(exception.PciDeviceDetachFailed):
    """A guest was asked for devices and has not answered: QEMU keeps the requests."""

    def __init__(self, left: int, total: int, limit: float) -> None:
        super().__init__(
            dev=f"{left} of {total} devices",
            reason=f"the guest did not let go of them within {limit:.0f} s; has it booted?",
        )
        #: How many it still has.
        self.left = left


class PlacedDevice:
    """A device to attach, as Nova's ``Guest.attach_device`` wants it."""

    def __init__(self, element: etree._Element) -> None:
        self._element = element

    def to_xml(self) -> str:
        """The device as libvirt reads it."""
        return str(etree.tostring(self._element, encoding="unicode", with_tail=False))


def read_inactive_domain(guest: Any) -> GuestDomainXml:
    """The domain as libvirt will start it the next time.

    :param guest: Nova's ``Guest``.
    """
    return GuestDomainXml(guest.get_xml_desc(dump_inactive=True))


def check_suspend(domain: GuestDomainXml) -> None:
    """Refuse a suspend after which the guest's hardware would be another.

    :param domain: the guest's definition.
    :raises ClaimRefused: for the server's user.
    """
    placed = domain.placed()
    # Nova takes ports out of the definition too, and makes them afresh
    # (_detach_direct_passthrough_ports of nova/virt/libvirt/driver.py, 32 to 34).
    if any(element.tag == "interface" for element in placed.values()):
        raise ClaimRefused(
            "A server whose direct (SR-IOV) ports have their place in its PCIe tree cannot be "
            "suspended, or snapshot cold: detach the ports, or stop the server instead."
        )
    # What libvirt overrides, it does at the start of a guest only.
    if placed and domain.root.find(f"{{{QEMU}}}override") is not None:
        raise ClaimRefused(
            "A server whose GPUs have GPUDirect cliques cannot be suspended, or snapshot cold: "
            "stop the server instead."
        )


def _source_of(config: Any) -> str | None:
    """Host address of a device that Nova would attach; None: it is none of the host's."""
    try:
        domain = GuestDomainXml(f"<domain><devices>{config.to_xml()}</devices></domain>")
    except (etree.XMLSyntaxError, AttributeError):
        return None
    return next((address for address, _ in domain.passed_through()), None)


class PlacingGuest:
    """Nova's guest, except that passed-through devices are attached to their places."""

    def __init__(self, guest: Any, placed: Mapping[str, etree._Element]) -> None:
        self._guest = guest
        self._placed = placed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guest, name)

    def attach_device(self, config: Any, *args: Any, **kwargs: Any) -> None:
        """Attach a device; one of the host's that has no place is refused.

        :raises nova.exception.PciDeviceNotFound: the definition does not have it.
        """
        address = _source_of(config)
        if address is not None and address not in self._placed:
            raise exception.PciDeviceNotFound(node_id="this guest's definition", address=address)
        placed_config = config if address is None else PlacedDevice(self._placed[address])
        self._guest.attach_device(placed_config, *args, **kwargs)


def wrap_placing_guest(guest: Any) -> Any:
    """*guest*, or a :class:`PlacingGuest` where its definition has places of this project's."""
    placed = read_inactive_domain(guest).placed()
    return PlacingGuest(guest, placed) if placed else guest


def detach_all_or_none(guest: Any, devices: Mapping[str, Any], limit: float) -> None:
    """Take *devices* out of a running guest: all of them, or none.

    Nova gives a guest as long as libvirt waits, which is five seconds; but a
    guest that handles hot plugging itself, as it does below PCIe expanders,
    lets go five seconds after the request at the earliest.

    :param guest: Nova's ``Guest``.
    :param devices: host address -> device, as Nova's ``Guest.detach_device`` wants it.
    :param limit: seconds that the guest has for all of them together.
    :raises NotLetGo: it did not let go of one; those that it let go of are given back.
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
    """Host addresses of the devices that the running guest has."""
    return {address for address, _ in GuestDomainXml(guest.get_xml_desc()).passed_through()}


def give_devices_back(guest: Any, addresses: Iterable[str]) -> set[str]:
    """Attach devices to a running guest where its definition has them. Never raises.

    Libvirt keeps an address in the guest for every device of a definition, also for one
    that has no place of this project's.

    :returns: host addresses of those that are back.
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
