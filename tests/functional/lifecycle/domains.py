# SPDX-License-Identifier: Apache-2.0
"""Domains of Nova's fake libvirt that keep their XML, as those of libvirt do.

The fake reads a few things out of a domain's XML and writes them into a
template of its own when asked for it. The addresses of devices are lost. Here a
domain has what libvirt's have: a definition, a live copy while it runs, a saved
copy after a managed save, and an address for each device in both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import fixtures
from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt

Element = etree._Element

#: Models that an endpoint can be plugged into.
_PORTS = ("pcie-root-port", "pcie-switch-downstream-port")
_SOURCE = ("domain", "bus", "slot", "function")

#: Connection, server's uuid, alias of the device that the guest let go.
Removed = Callable[[Any, str, str], None]


def source_of(device: Element) -> tuple[int, ...] | None:
    """Host address of a passed-through function; None: it is none of the host's."""
    address = device.find("source/address[@bus]")
    if address is None:
        return None
    return tuple(int(address.get(part, "0"), 16) for part in _SOURCE)


def key_of(device: Element) -> tuple[Any, ...]:
    """What tells a device from the others of its domain."""
    target, mac = device.find("target"), device.find("mac")
    if device.tag == "disk":
        return "disk", target.get("dev")
    if device.tag == "interface" and mac is not None:
        return "interface", mac.get("address").lower()
    return device.tag, source_of(device)


class Definition:
    """The XML of one domain, as libvirt completes it."""

    def __init__(self, xml: str) -> None:
        self.root = etree.fromstring(xml)
        self._number_controllers()
        for device in self._endpoints():
            self._place(device, more=True)

    @property
    def devices(self) -> Element:
        return self.root.find("devices")

    def text(self) -> str:
        return etree.tostring(self.root, encoding="unicode")

    def live(self) -> Definition:
        """The copy of a guest that starts: every device gets a name."""
        found = copy.deepcopy(self)
        for device in found.devices:
            found._name(device)
        return found

    def plug(self, device: Element, named: bool) -> None:
        self._place(device)
        self.devices.append(device)
        if named:
            self._name(device)

    def has(self, wanted: Element) -> bool:
        return any(key_of(each) == key_of(wanted) for each in self.devices.findall(wanted.tag))

    def unplug(self, wanted: Element) -> str | None:
        """The name of the device that is gone; None: there is none like it."""
        for device in self.devices.findall(wanted.tag):
            if key_of(device) == key_of(wanted):
                self.devices.remove(device)
                alias = device.find("alias")
                return "" if alias is None else alias.get("name")
        return None

    def _name(self, device: Element) -> None:
        if device.find("alias") is None:
            names = {each.get("name") for each in self.devices.iterfind("*/alias")}
            number = 0
            while f"{device.tag}{number}" in names:
                number += 1
            etree.SubElement(device, "alias", name=f"{device.tag}{number}")

    def _number_controllers(self) -> None:
        """Give each PCI controller a number, and the root's ports an address."""
        known = self.devices.findall("controller[@type='pci']")
        taken = {int(each.get("index")) for each in known if each.get("index")}
        for each in known:
            if each.get("index") is None:
                first = 0 if each.get("model") == "pcie-root" else 1
                free = next(number for number in range(first, 256) if number not in taken)
                taken.add(free)
                each.set("index", str(free))
            if each.get("model") == "pcie-root-port" and each.find("address") is None:
                self._seat(each, 0, self._free_slot())

    def _free_slot(self) -> int:
        used = {slot for bus, slot in self._taken() if bus == 0}
        return next(slot for slot in range(2, 32 * 8) if slot not in used)

    def _taken(self) -> Iterator[tuple[int, int]]:
        for address in self.devices.iterfind("*/address[@type='pci']"):
            yield int(address.get("bus", "0"), 16), int(address.get("slot", "0"), 16)

    def _endpoints(self) -> Iterator[Element]:
        yield from self.devices.findall("hostdev[@type='pci']")
        yield from self.devices.findall("interface")
        for disk in self.devices.findall("disk"):
            if disk.find("target").get("bus") == "virtio":
                yield disk

    def _place(self, device: Element, more: bool = False) -> None:
        """Libvirt takes the first free port for a device that has no address.

        :param more: add a port if none is free, as libvirt does in a definition only.
        """
        disk = device.tag == "disk" and device.find("target").get("bus") != "virtio"
        if disk or device.find("address") is not None:
            return None
        taken = {bus for bus, _ in self._taken()}
        for each in self.devices.iterfind("controller[@type='pci']"):
            if each.get("model") in _PORTS and int(each.get("index")) not in taken:
                self._seat(device, int(each.get("index")), 0)
                return None
        if more:
            etree.SubElement(self.devices, "controller", type="pci", model="pcie-root-port")
            self._number_controllers()
            return self._place(device)
        raise fakelibvirt.make_libvirtError(
            fakelibvirt.libvirtError,
            "internal error: No more available PCI slots",
            error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR,
            error_domain=fakelibvirt.VIR_FROM_QEMU,
        )

    @staticmethod
    def _seat(device: Element, bus: int, slot: int) -> None:
        place = {"bus": f"0x{bus:02x}", "slot": f"0x{slot:02x}", "function": "0x0"}
        etree.SubElement(device, "address", type="pci", domain="0x0000", **place)


class FaithfulDomains(fixtures.Fixture):
    """Let the domains of Nova's fake libvirt keep their XML.

    :param removed: called when a running guest has let a device go.
    """

    def __init__(self, removed: Removed) -> None:
        super().__init__()
        self._removed = removed
        #: The guests do not answer, or not for some devices: these go when the guest is
        #: reset, as QEMU does it.
        self.busy: bool | Callable[[Element], bool] = False

    def reset(self, domain: Any) -> None:
        """The guest resets itself: QEMU completes every unplug that it was asked for."""
        asked, domain.hpc_asked = domain.hpc_asked, []
        for xml in asked:
            self._gone(domain, xml)

    def _gone(self, domain: Any, xml: str) -> None:
        alias = domain.hpc_live.unplug(etree.fromstring(xml))
        if alias is not None:
            domain.detachDevice(xml)
            self._removed(domain._connection, domain.UUIDString(), alias)

    def _setUp(self) -> None:
        for name in (
            "__init__",
            "createWithFlags",
            "destroy",
            "shutdown",
            "managedSave",
            "managedSaveRemove",
            "attachDeviceFlags",
            "detachDeviceFlags",
            "XMLDesc",
        ):
            plain = getattr(fakelibvirt.Domain, name)
            self._patch("Domain", name, getattr(self, name.strip("_")), plain)
        self._patch("Connection", "defineXML", self.define_xml, fakelibvirt.Connection.defineXML)
        self._patch("Connection", "_undefine", self.undefine, fakelibvirt.Connection._undefine)

    def _patch(self, owner: str, name: str, ours: Any, plain: Any) -> None:
        def method(this: Any, *args: Any, **keywords: Any) -> Any:
            return ours(plain, this, *args, **keywords)

        path = f"nova.tests.fixtures.libvirt.{owner}.{name}"
        self.useFixture(fixtures.MonkeyPatch(path, method))

    # -- domains ------------------------------------------------------------

    def init(self, plain: Any, domain: Any, connection: Any, xml: Any, *rest: Any, **kw: Any):
        text = xml if isinstance(xml, str) else xml.decode()
        domain.hpc_definition = Definition(text)
        domain.hpc_live = domain.hpc_saved = None
        domain.hpc_asked = []
        plain(domain, connection, xml, *rest, **kw)
        # Before release 34 each domain of the fake has a job without an end.
        domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_NONE

    def createWithFlags(self, plain: Any, domain: Any, flags: int) -> None:
        saved, domain.hpc_saved = domain.hpc_saved, None
        domain.hpc_live = saved or domain.hpc_definition.live()
        plain(domain, flags)
        if flags & fakelibvirt.VIR_DOMAIN_START_PAUSED:
            domain._state = fakelibvirt.VIR_DOMAIN_PAUSED

    def destroy(self, plain: Any, domain: Any) -> None:
        domain.hpc_live, domain.hpc_asked = None, []
        plain(domain)

    def shutdown(self, plain: Any, domain: Any) -> None:
        domain.hpc_live, domain.hpc_asked = None, []
        plain(domain)
        domain._state = fakelibvirt.VIR_DOMAIN_SHUTOFF

    def managedSave(self, plain: Any, domain: Any, flags: int) -> None:
        if [each for each in domain.hpc_live.devices if source_of(each) is not None]:
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError,
                "Requested operation is not valid: cannot migrate a domain with <hostdev>",
                error_code=fakelibvirt.VIR_ERR_OPERATION_INVALID,
                error_domain=fakelibvirt.VIR_FROM_QEMU,
            )
        domain.hpc_saved, domain.hpc_live = domain.hpc_live, None
        plain(domain, flags)
        domain._state = fakelibvirt.VIR_DOMAIN_SHUTOFF

    def managedSaveRemove(self, plain: Any, domain: Any, flags: int = 0) -> None:
        domain.hpc_saved = None
        plain(domain, flags)

    def _targets(self, domain: Any, flags: int) -> list[Definition]:
        """What a change goes to: libvirt's "current" is the live guest, if there is one."""
        found = []
        running = domain.hpc_live is not None
        if flags & fakelibvirt.VIR_DOMAIN_AFFECT_LIVE or (not flags and running):
            if not running:
                raise fakelibvirt.make_libvirtError(
                    fakelibvirt.libvirtError,
                    "Requested operation is not valid: domain is not running",
                    error_code=fakelibvirt.VIR_ERR_OPERATION_INVALID,
                    error_domain=fakelibvirt.VIR_FROM_QEMU,
                )
            found.append(domain.hpc_live)
        if flags & fakelibvirt.VIR_DOMAIN_AFFECT_CONFIG or (not flags and not running):
            found.append(domain.hpc_definition)
        return found

    def attachDeviceFlags(self, plain: Any, domain: Any, xml: str, flags: int) -> None:
        for target in self._targets(domain, flags):
            target.plug(etree.fromstring(xml), named=target is domain.hpc_live)
        domain.attachDevice(xml)

    def detachDeviceFlags(self, plain: Any, domain: Any, xml: str, flags: int) -> None:
        device = etree.fromstring(xml)
        for target in self._targets(domain, flags):
            busy = self.busy(device) if callable(self.busy) else self.busy
            if busy and target is domain.hpc_live and target.has(device):
                domain.hpc_asked.append(xml)
                continue
            alias = target.unplug(device)
            if alias is None:
                raise fakelibvirt.make_libvirtError(
                    fakelibvirt.libvirtError,
                    "device not found: no matching device",
                    error_code=fakelibvirt.VIR_ERR_DEVICE_MISSING,
                    error_domain=fakelibvirt.VIR_FROM_QEMU,
                )
            if target is domain.hpc_live:
                domain.detachDevice(xml)
                self._removed(domain._connection, domain.UUIDString(), alias)

    def XMLDesc(self, plain: Any, domain: Any, flags: int) -> str:
        if domain.hpc_live is None or flags & fakelibvirt.VIR_DOMAIN_XML_INACTIVE:
            return domain.hpc_definition.text()
        return domain.hpc_live.text()

    # -- connections -----------------------------------------------------------

    def define_xml(self, plain: Any, connection: Any, xml: Any) -> Any:
        """A guest that runs goes on; its new definition is for the next start."""
        text = xml if isinstance(xml, str) else xml.decode()
        name = etree.fromstring(text).findtext("name")
        before = connection._vms.get(name)
        domain = plain(connection, xml)
        if before is not None:
            domain.hpc_live, domain.hpc_saved = before.hpc_live, before.hpc_saved
            domain.hpc_asked = before.hpc_asked
            domain._state, domain._id = before._state, before._id
            domain._has_saved_state = before._has_saved_state
            for number, running in connection._running_vms.items():
                if running is before:
                    connection._running_vms[number] = domain
        return domain

    def undefine(self, plain: Any, connection: Any, domain: Any) -> None:
        """A guest that runs goes on without a definition."""
        if domain.hpc_live is None:
            plain(connection, domain)
