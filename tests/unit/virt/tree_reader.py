# SPDX-License-Identifier: Apache-2.0
"""Reads where devices sit in a guest from its domain alone.

Written apart from the code that makes domains: it follows the addresses
upwards as QEMU would connect them, and calls things what the host's inventory
calls them.
"""

from __future__ import annotations

import attrs
from lxml import etree

from nova_hpc_common.level import Location


@attrs.frozen
class Guest:
    """What a domain says of its PCIe tree."""

    #: Host address -> place in the guest, for devices below an expander.
    places: dict[str, Location]
    #: Host address -> (controller, slot, function) in the guest.
    addresses: dict[str, tuple[int, int, int]]
    #: Index -> model of each PCI controller.
    models: dict[int, str]


def number(text: str | None) -> int:
    return int(text or "0", 0)


def where(element: etree._Element) -> tuple[int, int, int] | None:
    for child in element:
        if child.tag == "address" and child.get("type") == "pci":
            return (
                number(child.get("bus")),
                number(child.get("slot")),
                number(child.get("function")),
            )
    return None


def read(xml: str) -> Guest:
    """Read one domain."""
    domain = etree.fromstring(xml)
    controllers = {
        int(each.get("index")): each
        for each in domain.find("devices")
        if each.tag == "controller" and each.get("type") == "pci" and each.get("index")
    }
    taken = set()
    for each in domain.find("devices"):
        place = where(each)
        assert place is None or place not in taken, f"two devices at {place}"
        taken.add(place)
    addresses, places = {}, {}
    for device in domain.find("devices"):
        source = device.find("source/address")
        if source is None or device.tag not in ("hostdev", "interface"):
            continue
        parts = [number(source.get(key)) for key in ("domain", "bus", "slot", "function")]
        host = "{:04x}:{:02x}:{:02x}.{:x}".format(*parts)
        place = where(device)
        if place is None:
            continue
        addresses[host] = place
        path = []
        bus = place[0]
        while bus:
            path.insert(0, controllers[bus])
            above = where(controllers[bus])
            assert above is not None
            assert above[0] < bus, "libvirt wants parents first"
            bus = above[0]
        places[host] = _location(path)
    models = {index: each.get("model") for index, each in controllers.items()}
    return Guest(places, addresses, models)


def _location(path: list[etree._Element]) -> Location:
    expander, *ports = path
    assert expander.get("model") == "pcie-expander-bus"
    # Root port, then upstream and downstream port of each switch.
    assert [port.get("model") for port in ports] == [
        "pcie-root-port",
        *(["pcie-switch-upstream-port", "pcie-switch-downstream-port"] * (len(ports) // 2)),
    ]
    switches = [port.get("index") for port in ports[1::2]]
    node = expander.find("target/node")
    return Location(
        numa=None if node is None else int(node.text),
        root=expander.get("index"),
        switches=tuple(switches or [ports[0].get("index")]),
    )
