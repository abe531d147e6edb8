# SPDX-License-Identifier: Apache-2.0
"""The libvirt domain of a service VM. Pure.

Its memory is ordinary memory of the host (hugepages are left to servers). Its
CPUs are not dedicated to any server. It has no disk, no network and no graphics. It has a
kernel, an initial RAM file system, a serial console, and the devices. Each device is behind a
root port of its own on a known slot, so the program in the guest can identify it.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import attrs
from lxml import etree

from nova_hpc.topology.cpuset import format_list
from nova_hpc.topology.model import address_key

#: Prefix of its domains' names; Nova uses another (``instance-``).
PREFIX: Final = "nova-hpc-clean-"
NAMESPACE: Final = "urn:nova-hpc:service-vm:1"
#: Slot of the first root port on bus 0 of the guest.
FIRST_SLOT: Final = 0x10
#: The most devices of one service VM, because so many slots are left.
MOST_DEVICES: Final = 15
#: Arguments of the kernel that the check inside reads.
NONCE: Final = "nova_hpc.nonce"
CHECKS: Final = "nova_hpc.checks"
PINS: Final = "nova_hpc.pins"
#: Length of a command line that every kernel accepts (COMMAND_LINE_SIZE of x86).
_MOST_WORDS: Final = 2000
_LINE: Final = "console=ttyS0 panic=-1 quiet loglevel=3"


@attrs.frozen
class ServiceVmMachine:
    """The parts of a service VM's machine; see the options ``[hpc]clean_vm_*``."""

    kernel: str
    initrd: str
    memory_mib: int = 512
    vcpus: int = 1
    arguments: str = ""
    machine: str = "q35"
    domain_type: str = "kvm"
    emulator: str = ""


def new_uuid() -> str:
    """Return the UUID of a new domain outside Nova."""
    return str(uuid.uuid4())


def service_vm_name_of(vm: str) -> str:
    """Return its name, for people who see it in ``virsh list``."""
    return f"{PREFIX}{vm[:8]}"


def is_service_vm(xml: str, vm: str) -> bool:
    """Whether a domain is a service VM of this project with the UUID *vm*."""
    try:
        parser = etree.XMLParser(resolve_entities=False, no_network=True)
        root = etree.fromstring(xml.encode(), parser)
    except (etree.XMLSyntaxError, ValueError):
        return False
    same = (root.findtext("uuid") or "").lower() == vm.lower()
    return same and root.find(f"metadata/{{{NAMESPACE}}}service-vm") is not None


def build_service_domain(
    vm: str,
    machine: ServiceVmMachine,
    devices: Sequence[str],
    cpus: Collection[int],
    nonce: str,
    checks: Sequence[str],
    pins: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Build the domain's XML.

    :param devices: normalised addresses on the host, :data:`MOST_DEVICES` at most.
    :param cpus: CPUs of the host for the whole domain.
    :param checks: names of the checks; every device has to pass all of them.
    :param pins: number of the device -> values that an operator has pinned.
    :raises ValueError: these exceed the limits of one service VM.
    """
    if len(devices) > MOST_DEVICES:
        raise ValueError(
            f"{len(devices)} devices share an IOMMU group, and a service VM takes {MOST_DEVICES}"
        )
    words = [_LINE, machine.arguments, f"{NONCE}={nonce}", f"{CHECKS}={','.join(checks)}"]
    if any((pins or {}).values()):
        packed = base64.urlsafe_b64encode(json.dumps(pins).encode()).decode()
        words.append(f"{PINS}={packed}")
    line = " ".join(word for word in words if word)
    if len(line) > _MOST_WORDS:
        raise ValueError(f"the kernel's arguments of a service VM are longer than {_MOST_WORDS}")
    root = etree.Element("domain", type=machine.domain_type)
    _add_text_element(root, "uuid", vm)
    _add_text_element(root, "name", service_vm_name_of(vm))
    _add_text_element(root, "title", "nova-hpc cleans PCI devices between two servers")
    etree.SubElement(
        etree.SubElement(root, "metadata"),
        f"{{{NAMESPACE}}}service-vm",
        nsmap={"nova-hpc": NAMESPACE},
    ).text = " ".join(devices)
    _add_text_element(root, "memory", str(machine.memory_mib), unit="MiB")
    _add_text_element(
        root, "vcpu", str(machine.vcpus), placement="static", cpuset=format_list(cpus)
    )
    # QEMU's own threads also stay off the servers' CPUs.
    _add_sub_element(etree.SubElement(root, "cputune"), "emulatorpin", cpuset=format_list(cpus))
    os_ = etree.SubElement(root, "os")
    _add_text_element(os_, "type", "hvm", machine=machine.machine)
    _add_text_element(os_, "kernel", machine.kernel)
    _add_text_element(os_, "initrd", machine.initrd)
    _add_text_element(os_, "cmdline", line)
    features = etree.SubElement(root, "features")
    for feature in ("acpi", "apic"):
        _add_sub_element(features, feature)
    _add_sub_element(features, "pvspinlock", state="off")
    if machine.domain_type == "kvm":
        _add_sub_element(root, "cpu", mode="host-passthrough")
    for event in ("on_poweroff", "on_reboot", "on_crash"):
        _add_text_element(root, event, "destroy")
    inside = etree.SubElement(root, "devices")
    if machine.emulator:
        _add_text_element(inside, "emulator", machine.emulator)
    _add_sub_element(inside, "controller", type="usb", model="none")
    _add_sub_element(inside, "controller", type="pci", index="0", model="pcie-root")
    for number, address in enumerate(devices):
        _add_host_device(inside, number, address)
    _add_sub_element(etree.SubElement(inside, "serial", type="pty"), "target", port="0")
    _add_sub_element(
        etree.SubElement(inside, "console", type="pty"), "target", type="serial", port="0"
    )
    _add_sub_element(inside, "memballoon", model="none")
    return etree.tostring(root, pretty_print=True, encoding="unicode")


def _add_host_device(inside: etree._Element, number: int, address: str) -> None:
    """Add one device behind a root port of its own; the port's slot identifies the device."""
    bus = number + 1
    port = etree.SubElement(
        inside, "controller", type="pci", index=str(bus), model="pcie-root-port"
    )
    _add_sub_element(port, "target", chassis=str(bus), port=hex(bus))
    slot = hex(FIRST_SLOT + number)
    _add_sub_element(port, "address", type="pci", domain="0", bus="0", slot=slot, function="0")
    # The device is already bound to vfio-pci, and stays so.
    device = etree.SubElement(inside, "hostdev", mode="subsystem", type="pci", managed="no")
    domain, host_bus, host_slot, function = address_key(address)
    _add_sub_element(
        etree.SubElement(device, "source"),
        "address",
        domain=hex(domain),
        bus=hex(host_bus),
        slot=hex(host_slot),
        function=hex(function),
    )
    # Do not run an option ROM that a tenant may have written.
    _add_sub_element(device, "rom", bar="off")
    _add_sub_element(
        device, "address", type="pci", domain="0", bus=hex(bus), slot="0", function="0"
    )


def _add_text_element(parent: etree._Element, tag: str, text: str, **attributes: str) -> None:
    etree.SubElement(parent, tag, attributes).text = text


def _add_sub_element(parent: etree._Element, tag: str, **attributes: str) -> None:
    etree.SubElement(parent, tag, attributes)
