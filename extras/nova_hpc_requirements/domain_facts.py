# SPDX-License-Identifier: Apache-2.0
"""Facts of a guest domain from libvirt's own XML: its pins, and its unnecessary devices.

Pure: text in, facts out. The XML comes from the host and contains names from servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
from lxml import etree

from nova_hpc_requirements.verdicts import EvidenceError

_LONGEST: Final = 1 << 22
#: More host CPUs than a host has.
_MOST_CPU: Final = 1 << 16
#: Elements below ``<devices>`` that a server for computing does not need -> their names.
_NEEDLESS: Final = {
    "sound": "a sound card",
    "audio": "an audio backend",
    "redirdev": "a redirected USB device",
    "smartcard": "a smart card reader",
    "parallel": "a parallel port",
    "hub": "a USB hub",
}
_CLIPBOARD: Final = ("com.redhat.spice.0",)


@attrs.frozen
class DomainFacts:
    """The facts about one guest domain that requirements depend on.

    :ivar pins: virtual CPU -> the host's CPUs that it may run on.
    :ivar usb: its USB devices and controllers; () for none.
    :ivar clipboard: devices that can share a clipboard with it.
    :ivar needless: other devices that a server for computing does not need.
    """

    uuid: str
    vcpus: int
    pins: Mapping[int, frozenset[int]] = attrs.field(factory=dict, hash=False)
    hostdevs: int = 0
    usb: tuple[str, ...] = ()
    clipboard: tuple[str, ...] = ()
    needless: tuple[str, ...] = ()


def read_domain_facts(text: str) -> DomainFacts:
    """Read the XML of one domain, as ``virsh dumpxml`` prints it.

    :raises EvidenceError: the text is not a domain, or makes no sense.
    """
    domain = _parse_domain(text)
    devices = domain.find("devices")
    if devices is None:
        raise EvidenceError("the domain's XML has no devices: it is cut")
    try:
        vcpus = int(domain.findtext("vcpu", ""))
        pins = {
            int(pin.get("vcpu", "")): read_cpu_set(pin.get("cpuset", ""))
            for pin in domain.iterfind("cputune/vcpupin")
        }
    except ValueError as error:
        raise EvidenceError(f"the domain's XML has CPUs that make no sense: {error}") from error
    return DomainFacts(
        uuid=(domain.findtext("uuid") or "").strip(),
        vcpus=vcpus,
        pins=pins,
        hostdevs=sum(1 for _ in _iterate_passed(devices)),
        usb=tuple(_list_usb(devices)),
        clipboard=tuple(_list_clipboards(devices)),
        needless=tuple(_list_needless(devices)),
    )


def _parse_domain(text: str) -> etree._Element:
    if len(text) > _LONGEST:
        raise EvidenceError(f"the domain's XML is longer than {_LONGEST} characters")
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    try:
        domain = etree.fromstring(text.encode("utf-8", "replace"), parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        reason = str(error)[:200]
        raise EvidenceError(f"the domain's XML cannot be read: {reason}") from error
    if domain.tag != "domain":
        raise EvidenceError("the XML is none of a domain of libvirt's")
    return domain


def read_cpu_set(text: str) -> frozenset[int]:
    """Parse a set of CPUs in libvirt's form, such as ``0-3,^2``.

    :raises ValueError: they make no sense.
    """
    cpus: set[int] = set()
    without: set[int] = set()
    for part in filter(None, (word.strip() for word in text.split(","))):
        group = without if part.startswith("^") else cpus
        first, dash, last = part.lstrip("^").partition("-")
        low, high = int(first), int(last if dash else first)
        if not 0 <= low <= high < _MOST_CPU:
            raise ValueError(f"CPUs {part!r}")
        group.update(range(low, high + 1))
    return frozenset(cpus - without)


def _iterate_passed(devices: etree._Element) -> list[etree._Element]:
    return [
        *devices.iterfind("hostdev[@type='pci']"),
        *devices.iterfind("interface[@type='hostdev']"),
    ]


def _list_usb(devices: etree._Element) -> list[str]:
    # libvirt adds a controller of its own unless the XML has model none; the XML of a running
    # domain contains it.
    usb = [
        f"a USB controller ({controller.get('model') or 'of the default model'})"
        for controller in devices.iterfind("controller[@type='usb']")
        if controller.get("model") != "none"
    ]
    usb += [
        f"a USB {item.get('type') or 'input'}" for item in devices.iterfind("input[@bus='usb']")
    ]
    usb += ["a USB device of the host" for _ in devices.iterfind("hostdev[@type='usb']")]
    usb += ["a redirected USB device" for _ in devices.iterfind("redirdev")]
    return usb


def _list_clipboards(devices: etree._Element) -> list[str]:
    clipboards = []
    for graphics in devices.iterfind("graphics[@type='spice']"):
        sharing = graphics.find("clipboard")
        if sharing is None or sharing.get("copypaste") != "no":
            clipboards.append("SPICE without <clipboard copypaste='no'/>")
    for channel in devices.iterfind("channel"):
        target = channel.find("target")
        name = "" if target is None else target.get("name", "")
        if channel.get("type") in ("spicevmc", "qemu-vdagent") or name in _CLIPBOARD:
            clipboards.append(f"a channel of type {channel.get('type')}")
    return clipboards


def _list_needless(devices: etree._Element) -> list[str]:
    needless = [
        words
        for tag, words in _NEEDLESS.items()
        for element in devices.iterfind(tag)
        if not (tag == "audio" and element.get("type") == "none")
    ]
    needless += ["a floppy drive" for _ in devices.iterfind("disk[@device='floppy']")]
    # A config drive is a CD-ROM with a source; an empty drive is needless.
    needless += [
        "an empty CD-ROM drive"
        for disk in devices.iterfind("disk[@device='cdrom']")
        if disk.find("source") is None
    ]
    return needless
