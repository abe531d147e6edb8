"""Devices that come back to a guest come back to their places.

Nova takes passed-through devices off a guest before its memory is saved (at a
suspend, and at a snapshot of a guest that is not snapshot alive), and gives
them back without an address: libvirt would put them anywhere. The definition
of the guest still has them where they were.
"""

from __future__ import annotations

from typing import Any

from lxml import etree
from nova import exception

from virt_driver_patches.errors import ClaimRefused
from virt_driver_patches.mirror import tree as mirror_tree
from virt_driver_patches.mirror.clique import QEMU


class Placed:
    """A device to attach, as Nova's ``Guest.attach_device`` wants it."""

    def __init__(self, element: etree._Element) -> None:
        self._element = element

    def to_xml(self) -> str:
        """The device as libvirt reads it."""
        return str(etree.tostring(self._element, encoding="unicode", with_tail=False))


def places(xml: str) -> dict[str, Placed]:
    """Host address -> device, for those that have a place of this project's.

    :param xml: the guest's definition.
    """
    found = {}
    for address, element in mirror_tree.hostdevs(etree.fromstring(xml)):
        if _is_ours(element):
            found[address] = Placed(element)
    return found


def check_suspend(xml: str) -> None:
    """Refuse a suspend after which the guest's hardware would be another.

    :param xml: the guest's definition.
    :raises ClaimRefused: for the server's user.
    """
    domain = etree.fromstring(xml)
    # Nova takes ports out of the definition too, and makes them afresh.
    for _, element in mirror_tree.hostdevs(domain):
        if element.tag == "interface" and _is_ours(element):
            raise ClaimRefused(
                "A server whose direct (SR-IOV) ports have their place in its PCIe tree cannot be "
                "suspended, or snapshot cold: detach the ports, or stop the server instead."
            )
    # What libvirt overrides, it does at the start of a guest only.
    if places(xml) and domain.find(f"{{{QEMU}}}override") is not None:
        raise ClaimRefused(
            "A server whose GPUs have GPUDirect cliques cannot be suspended, or snapshot cold: "
            "stop the server instead."
        )


def _is_ours(element: etree._Element) -> bool:
    alias = element.find("alias")
    return alias is not None and (alias.get("name") or "").startswith(mirror_tree.ALIAS)


def source_of(config: Any) -> str | None:
    """Host address of a device that Nova would attach; None: it is none of the host's."""
    try:
        element = etree.fromstring(f"<domain><devices>{config.to_xml()}</devices></domain>")
    except (etree.XMLSyntaxError, AttributeError):
        return None
    return next((address for address, _ in mirror_tree.hostdevs(element)), None)


class Placing:
    """Nova's guest, except that passed-through devices are attached to their places."""

    def __init__(self, guest: Any, known: dict[str, Placed]) -> None:
        self._guest = guest
        self._known = known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guest, name)

    def attach_device(self, config: Any, *args: Any, **kwargs: Any) -> None:
        """Attach a device; one of the host's that has no place is refused.

        :raises nova.exception.PciDeviceNotFound: the definition does not have it.
        """
        address = source_of(config)
        if address is not None and address not in self._known:
            raise exception.PciDeviceNotFound(node_id="this guest's definition", address=address)
        found = config if address is None else self._known[address]
        self._guest.attach_device(found, *args, **kwargs)


def placing(guest: Any) -> Any:
    """*guest*, or a :class:`Placing` where its definition has places of this project's."""
    known = places(guest.get_xml_desc(dump_inactive=True))
    return Placing(guest, known) if known else guest
