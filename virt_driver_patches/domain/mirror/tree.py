"""The controllers of the tree, and the devices' addresses in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lxml import etree

from nova_hpc.guest_tree import Bridge, Kind, Plan
from nova_hpc.topology.model import AddressError, normalise_address

#: Names that users of libvirt give to devices have to begin so.
ALIAS = "ua-hpc-"

_MODELS: Mapping[Kind, str] = {
    Kind.EXPANDER: "pcie-expander-bus",
    Kind.ROOT_PORT: "pcie-root-port",
    Kind.UPSTREAM: "pcie-switch-upstream-port",
    Kind.DOWNSTREAM: "pcie-switch-downstream-port",
}
_PARTS = ("domain", "bus", "slot", "function")


def hostdevs(domain: etree._Element) -> Iterator[tuple[str, etree._Element]]:
    """Passed-through PCI functions: host address, and the element.

    Devices of aliases are ``hostdev``, those of direct ports may be
    ``interface`` of type hostdev.
    """
    for element in domain.iterfind("devices/*"):
        kinds = {"hostdev": "pci", "interface": "hostdev"}
        if element.get("type") != kinds.get(str(element.tag)):
            continue
        address = element.find("source/address")
        if address is None:
            continue
        try:
            values = [int(address.get(part, "0"), 16) for part in _PARTS]
            yield normalise_address("{:04x}:{:02x}:{:02x}.{:x}".format(*values)), element
        except (ValueError, AddressError):
            continue


def arrange(domain: etree._Element, plan: Plan) -> dict[str, etree._Element]:
    """Add the controllers and seat the devices.

    :returns: host address -> element of the seated devices.
    """
    devices = domain.find("devices")
    found = dict(hostdevs(domain))
    controllers = [_controller(bridge) for bridge in plan.bridges]
    # In front of all others: libvirt makes parents first, and people read so.
    for place, controller in enumerate(controllers):
        devices.insert(place, controller)
    seated = {}
    for number, seat in enumerate(plan.seats):
        element = found.get(seat.device.address)
        if element is not None:
            _seat(element, seat.port, number)
            seated[seat.device.address] = element
    return seated


def pci_address(bus: int, slot: int, function: int, multifunction: bool = False) -> etree._Element:
    """The address of a device in the guest; *bus* is the number of a controller."""
    element = etree.Element(
        "address",
        type="pci",
        domain="0x0000",
        bus=f"0x{bus:02x}",
        slot=f"0x{slot:02x}",
        function=f"0x{function:x}",
    )
    if multifunction and function == 0:
        element.set("multifunction", "on")
    return element


def _controller(bridge: Bridge) -> etree._Element:
    element = etree.Element(
        "controller", type="pci", index=str(bridge.index), model=_MODELS[bridge.kind]
    )
    if bridge.kind is Kind.EXPANDER:
        target = etree.SubElement(element, "target", busNr=str(bridge.bus))
        if bridge.cell is not None:
            etree.SubElement(target, "node").text = str(bridge.cell)
    elif bridge.kind is not Kind.UPSTREAM:
        port = bridge.slot << 3 | bridge.function
        etree.SubElement(element, "target", chassis=str(bridge.index), port=f"0x{port:x}")
    element.append(pci_address(bridge.parent, bridge.slot, bridge.function, bridge.multifunction))
    return element


def _seat(element: etree._Element, port: int, number: int) -> None:
    for tag in ("rom", "alias", "address"):
        for child in element.findall(tag):
            element.remove(child)
    # The firmware would run a device's ROM at every start, for minutes.
    etree.SubElement(element, "rom", bar="off")
    etree.SubElement(element, "alias", name=f"{ALIAS}{number}")
    element.append(pci_address(port, 0, 0))
