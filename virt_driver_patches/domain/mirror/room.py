"""Room for what is plugged later: volumes and interfaces.

Each takes a root port of its own. Libvirt places the devices without an
address in the ports that there are, so there have to be as many as devices,
and some more.
"""

from __future__ import annotations

from typing import Final

from lxml import etree

#: Ports that stay free.
SPARE: Final = 8
#: Their buses are 1, 2, ... and must stay below the expanders' (FIRST_BUS).
_MOST: Final = 56

#: Devices that may take a port. Some do not; then more stay free.
_TAKERS: Final = (
    "devices/disk/target[@bus='virtio']",
    "devices/interface",
    "devices/controller[@type='scsi']",
    "devices/controller[@type='usb']",
    "devices/controller[@type='virtio-serial']",
    "devices/filesystem",
    "devices/input[@bus='virtio']",
    "devices/memballoon",
    "devices/rng",
    "devices/sound",
    "devices/video",
    "devices/vsock",
    "devices/watchdog",
    "devices/hostdev",
    "devices/channel/target[@type='virtio']",
)


def leave(domain: etree._Element, first: int) -> None:
    """Add root ports, and number those that there are.

    Libvirt fills gaps in the numbers of controllers with ports that nobody
    asked for, so that none may be left.

    :param first: number of the first port.
    """
    devices = domain.find("devices")
    ports = devices.findall("controller[@type='pci'][@model='pcie-root-port']")
    ports = [port for port in ports if port.get("index") is None]
    wanted = min(_MOST, _takers(domain) + SPARE)
    place = max(
        (devices.index(element) + 1 for element in devices.findall("controller[@type='pci']")),
        default=0,
    )
    while len(ports) < wanted:
        port = etree.Element("controller", type="pci", model="pcie-root-port")
        devices.insert(place, port)
        ports.append(port)
        place += 1
    for index, port in enumerate(ports, first):
        port.set("index", str(index))


def _takers(domain: etree._Element) -> int:
    """Devices without an address of their own that may take a port."""
    found = [element for path in _TAKERS for element in domain.findall(path)]
    return sum(element.find("address[@type='pci']") is None for element in found)
