# SPDX-License-Identifier: Apache-2.0
"""The guest's PCIe tree in its domain: controllers, places, address space, cliques.

It serves ``hpc:guest_topology`` ``mirror`` and ``numa``, and builds the tree of the plan.
The hardware of an existing guest must not change. So every version of the rules stays in this
module, and a server keeps the version that it was started with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lxml import etree

from nova_hpc.guest_tree import (
    Abi,
    Bridge,
    TopologyMode,
    TreeDevice,
    TreePartKind,
    TreePlan,
    windows,
)
from virt_driver_patches.domain import address_space
from virt_driver_patches.domain.guest_domain import ALIAS, QEMU, GuestDomainXml

#: Machine type whose PCIe tree can be arranged.
MACHINE: Final = "q35"
#: Arm's only machine type for guests; trees for it are untested.
ARM: Final = "virt"

_MODELS: Final[Mapping[TreePartKind, str]] = {
    TreePartKind.EXPANDER: "pcie-expander-bus",
    TreePartKind.ROOT_PORT: "pcie-root-port",
    TreePartKind.UPSTREAM: "pcie-switch-upstream-port",
    TreePartKind.DOWNSTREAM: "pcie-switch-downstream-port",
}


class MachineError(ValueError):
    """The domain's machine type has no PCIe; the text names the cure."""


def check_machine(machine: str | None, mode: str) -> None:
    """Refuse any machine type but q35.

    :param machine: ``q35``, ``pc-q35-9.2``, ``pc``, ...; None for QEMU's default.
    :param mode: the value of ``hpc:guest_topology``.
    :raises MachineError: the machine type is not q35.
    """
    words = (machine or "pc").split("-")
    if words[0] == ARM:
        raise MachineError(
            f"hpc:guest_topology={mode} is for guests of x86: this server's machine type is "
            f"{machine}, of Arm; use a flavor with hpc:guest_topology=flat."
        )
    if MACHINE not in words:
        raise MachineError(
            f"hpc:guest_topology={mode} needs the machine type q35, and this server's is "
            f"{machine or 'the default, pc'}: set the image property hw_machine_type=q35."
        )


def arrange_pcie_tree(domain: GuestDomainXml, plan: TreePlan, abi: Abi) -> None:
    """Build the tree of *plan* in *domain*; a plan without bridges changes nothing.

    :param abi: the rules to follow.
    :raises MachineError: the machine type is not q35; nothing has been changed then.
    """
    if plan.bridges:
        check_machine(domain.machine, abi.mode.value)
        _VERSIONS[abi.version](domain, plan, abi)


def makes_room(abi: Abi) -> bool:
    """Whether a guest with these rules gets windows as large as its devices need.

    Flat guests of version 1 keep QEMU's default, whatever their devices.
    """
    return abi.version > 1 or abi.mode is not TopologyMode.FLAT


def make_room(domain: GuestDomainXml, devices: Iterable[TreeDevice], abi: Abi) -> None:
    """Make room for the devices' memory in a flat *domain*, in which libvirt places the devices."""
    if makes_room(abi) and address_space.is_x86(domain.machine):
        address_space.widen_address_space(
            domain, windows.pack_spans(device.span for device in devices)
        )


def _arrange_first_version(domain: GuestDomainXml, plan: TreePlan, abi: Abi) -> None:
    domain.declare_qemu()
    names = _seat_devices(domain, plan)
    _leave_ports(domain, first=len(plan.bridges) + 1)
    address_space.widen_address_space(domain, plan.span)
    if abi.clique:
        _show_cliques(domain, names, plan.cliques)
    etree.indent(domain.edit(), space="  ")


#: Version 2 changes only flat guests.
_VERSIONS: Final = {1: _arrange_first_version, 2: _arrange_first_version}


# -- controllers and places -------------------------------------------------------


def _seat_devices(domain: GuestDomainXml, plan: TreePlan) -> dict[str, str]:
    """Add the controllers and seat the devices.

    :returns: host address -> name of the seated devices.
    """
    devices, elements = domain.devices, dict(domain.passed_through())
    # Before all other devices: libvirt creates parents first, and readers expect this order.
    for place, bridge in enumerate(plan.bridges):
        devices.insert(place, _build_bridge_controller(bridge))
    seated = {}
    for number, seat in enumerate(plan.seats):
        element = elements.get(seat.device.address)
        if element is not None:
            seated[seat.device.address] = _seat_one_device(element, seat.port, f"{ALIAS}{number}")
    return seated


def _build_bridge_controller(bridge: Bridge) -> etree._Element:
    """Build the controller of one bridge; its chassis is its index, unique in the guest."""
    element = etree.Element(
        "controller", type="pci", index=str(bridge.index), model=_MODELS[bridge.kind]
    )
    if bridge.kind is TreePartKind.EXPANDER:
        target = etree.SubElement(element, "target", busNr=str(bridge.bus))
        if bridge.cell is not None:
            etree.SubElement(target, "node").text = str(bridge.cell)
    elif bridge.kind is not TreePartKind.UPSTREAM:
        port = bridge.slot << 3 | bridge.function
        etree.SubElement(element, "target", chassis=str(bridge.index), port=f"0x{port:x}")
    address = _set_guest_address(element, bridge.parent, bridge.slot, bridge.function)
    if bridge.multifunction and bridge.function == 0:
        address.set("multifunction", "on")
    return element


def _seat_one_device(element: etree._Element, port: int, name: str) -> str:
    for tag in ("rom", "alias", "address"):
        for child in element.findall(tag):
            element.remove(child)
    # The firmware would run a device's ROM at every start, which takes minutes.
    etree.SubElement(element, "rom", bar="off")
    etree.SubElement(element, "alias", name=name)
    _set_guest_address(element, port, 0, 0)
    return name


def _set_guest_address(
    element: etree._Element, bus: int, slot: int, function: int
) -> etree._Element:
    """Add a guest PCI address below *element*, and return it; *bus* is a controller's number."""
    return etree.SubElement(
        element,
        "address",
        type="pci",
        domain="0x0000",
        bus=f"0x{bus:02x}",
        slot=f"0x{slot:02x}",
        function=f"0x{function:x}",
    )


# -- ports for devices that are plugged later -------------------------------------

#: Ports that stay free.
_SPARE: Final = 8
#: Their buses are 1, 2, ... and must stay below those of the expanders (FIRST_BUS).
_MOST: Final = 56

#: Devices that may take a port. If some do not, more ports stay free.
_TAKERS: Final = (
    "disk/target[@bus='virtio']",
    "interface",
    "controller[@type='scsi']",
    "controller[@type='usb']",
    "controller[@type='virtio-serial']",
    "filesystem",
    "input[@bus='virtio']",
    "memballoon",
    "rng",
    "sound",
    "video",
    "vsock",
    "watchdog",
    "hostdev",
    "channel/target[@type='virtio']",
)


def _leave_ports(domain: GuestDomainXml, first: int) -> None:
    """Add root ports for volumes and interfaces, and number the existing ones.

    Each device takes a root port of its own. Libvirt places devices without an address
    in the existing ports, so there must be at least one per device, and a few
    to spare. It also fills gaps in the numbers of controllers with extra ports,
    so the numbers must have no gap.

    :param first: number of the first port.
    """
    devices = domain.devices
    ports = devices.findall("controller[@type='pci'][@model='pcie-root-port']")
    # Nova's own ports ([libvirt]num_pcie_ports) have no number.
    ports = [port for port in ports if port.get("index") is None]
    takers = [element for path in _TAKERS for element in devices.findall(path)]
    needed = sum(element.find("address[@type='pci']") is None for element in takers)
    place = max(
        (devices.index(element) + 1 for element in devices.findall("controller[@type='pci']")),
        default=0,
    )
    while len(ports) < min(_MOST, needed + _SPARE):
        port = etree.Element("controller", type="pci", model="pcie-root-port")
        devices.insert(place, port)
        ports.append(port)
        place += 1
    for index, port in enumerate(ports, first):
        port.set("index", str(index))


# -- GPUDirect cliques -------------------------------------------------------------


def _show_cliques(
    domain: GuestDomainXml, names: Mapping[str, str], cliques: Mapping[str, int]
) -> None:
    """Set the clique of each GPU.

    In a virtual machine NVIDIA's driver does not rely on the PCIe tree that the guest
    shows. The clique of a GPU tells the driver which GPUs it can reach directly.

    :param names: host address -> name of a seated device.
    :param cliques: host address -> clique, 0 to 15.
    """
    override = domain.root.find(f"{{{QEMU}}}override")
    for address, clique in cliques.items():
        if address not in names:
            continue
        if override is None:
            override = etree.SubElement(domain.root, f"{{{QEMU}}}override")
        device = etree.SubElement(override, f"{{{QEMU}}}device", alias=names[address])
        etree.SubElement(
            etree.SubElement(device, f"{{{QEMU}}}frontend"),
            f"{{{QEMU}}}property",
            name="x-nv-gpudirect-clique",
            type="unsigned",
            value=str(clique),
        )
