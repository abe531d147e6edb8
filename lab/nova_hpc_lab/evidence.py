# SPDX-License-Identifier: Apache-2.0
"""Evidence about one server: the flavor's request, each part of the cloud, the guest's report."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
from lxml import etree

from nova_hpc.topology.cpuset import parse_list
from nova_hpc.wire.decision import Decision
from nova_hpc_common.level import Level, Location
from nova_hpc_lab import config, node, observe
from nova_hpc_lab.errors import LabError
from nova_hpc_lab.node import python_env
from nova_hpc_lab.node.shape import Disk, Gpu, Shape
from nova_hpc_lab.state import Settings

_MIB: Final = 1 << 20
_REMOTE_LIMIT: Final = 180.0
#: "7f..000 bind:1 file=... N1=256 kernelpagesize_kB=2048"
_PAGES: Final = re.compile(r" N(\d+)=(\d+)")
#: The roles that servers get.
_ROLES: Final = [
    {"role": alias["name"], "vendor_id": alias["vendor_id"], "product_id": alias["product_id"]}
    for alias in config.ALIASES
]


@attrs.frozen
class Asked:
    """The request in a server's flavor: devices, level, CPUs, memory and page size."""

    #: Alias -> number of devices.
    devices: Mapping[str, int]
    level: Level
    vcpus: int
    memory_mib: int
    page_kib: int


@attrs.frozen
class HostDevice:
    """A function of the node that can be given to a server, as the node sees it."""

    address: str
    ids: str
    role: str
    #: Address of its resource provider: the physical function's for a VF.
    provider: str
    location: Location
    #: A text that identifies the device in a guest, for example ``MAC 52:54:00:01:00:00``.
    identity: str


@attrs.frozen
class Record:
    """A PCI device that Nova's database gives to the server, and its provider."""

    address: str
    provider: str


@attrs.frozen
class Domain:
    """The placement of the server in libvirt's domain: devices, CPU pins, memory nodes."""

    hostdevs: tuple[str, ...]
    #: vCPU -> host CPUs.
    pins: Mapping[int, frozenset[int]]
    emulator: frozenset[int]
    #: Host NUMA nodes of its memory if the binding is strict; empty if not.
    memory_nodes: frozenset[int]
    page_kib: int | None


@attrs.frozen
class GuestDevice:
    """A passed-through function as the guest reports it."""

    address: str
    ids: str
    driver: str | None
    identity: str


@attrs.frozen
class Guest:
    """The guest's report of its devices, its size and its own check."""

    devices: tuple[GuestDevice, ...]
    cpus: int
    memory_kib: int
    #: Output of its ``nova-hpc-guest check``, and the exit status; None if it did not run.
    check: tuple[str, ...]
    check_status: int | None


@attrs.frozen
class Evidence:
    """All accounts of one server: request, plan, Placement, Nova, libvirt and guest."""

    asked: Asked
    #: The devices of the shape: identity -> NUMA node.
    planned: Mapping[str, int]
    #: All assignable functions of the node by address.
    node: Mapping[str, HostDevice]
    #: NUMA node -> its CPUs.
    cpus: Mapping[int, frozenset[int]]
    #: Provider address -> number of devices that Placement has allocated.
    allocation: Mapping[str, int]
    records: tuple[Record, ...]
    domain: Domain
    #: NUMA node -> hugepages of ``asked.page_kib`` that the server's QEMU holds there.
    pages: Mapping[int, int]
    guest: Guest
    #: The decision that the node stored when it claimed the devices.
    decision: Decision | None


def remote(machine: node.Node, command: Sequence[str]) -> str:
    """Run *command* in the node; return its output.

    :raises LabError: it cannot be reached, or the command fails.
    """
    try:
        done = subprocess.run(
            machine.ssh_argv(command), capture_output=True, text=True, timeout=_REMOTE_LIMIT
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"node {machine.name} does not answer {command[0]} in time") from None
    if done.returncode:
        raise LabError(
            f"{command[0]} failed in node {machine.name}: {done.stderr.strip() or done.returncode}"
        )
    return done.stdout


def identity(bars: Iterable[int], macs: Iterable[str]) -> str:
    """Return the text that identifies a device: its MAC, or the size of its largest BAR.

    It is the same on host and guest.
    """
    for mac in macs:
        return f"MAC {mac.lower()}"
    return f"BAR of {max(bars, default=0) // _MIB} MiB"


def asked(extra_specs: Mapping[str, str], vcpus: int, memory_mib: int) -> Asked:
    """Parse the request in a flavor of the lab."""
    devices = {}
    for term in extra_specs.get("pci_passthrough:alias", "").split(","):
        name, _, count = term.partition(":")
        if name:
            devices[name] = int(count or 1)
    return Asked(
        devices=devices,
        level=Level.from_word(extra_specs.get("hpc:affinity", "host")),
        vcpus=vcpus,
        memory_mib=memory_mib,
        page_kib=int(extra_specs.get("hw:mem_page_size", "4")),
    )


def planned(shape: Shape, index: int) -> dict[str, int]:
    """Return identity -> NUMA node, for every device of node number *index*."""
    found = {}
    for numa, device in shape.devices():
        if isinstance(device, Gpu):
            found[identity([device.bar_bytes], [])] = numa
        elif not isinstance(device, Disk):
            found.update((identity([], [mac]), numa) for mac in device.vf_macs(index))
    return found


def host_devices(
    machine: node.Node,
) -> tuple[dict[str, HostDevice], dict[int, frozenset[int]]]:
    """Read the assignable functions of a node by address, and the CPUs of its NUMA nodes.

    They are read in the node itself, with ``nova-hpc inventory`` and with ``ip``.
    """
    program = f"{python_env.PREFIX}/bin/nova-hpc"
    inventory = json.loads(remote(machine, [program, "inventory", "--format", "json"]))
    links = json.loads(remote(machine, ["ip", "-json", "link", "show"]))
    return devices_of(inventory, links, machine.shape.networks), {
        numa["id"]: frozenset(parse_list(numa["cpus"])) if numa["cpus"] else frozenset()
        for numa in inventory["numa_nodes"]
    }


def devices_of(
    inventory: Mapping[str, Any],
    links: Sequence[Mapping[str, Any]],
    networks: Mapping[str, str] | None = None,
) -> dict[str, HostDevice]:
    """Return address -> assignable function of an inventory, with the MACs from ``ip -json link``.

    :param networks: interface of an adapter that is kept for ports -> its network, which is
        the role of its functions.
    """
    vf_macs = {
        (link["ifname"], vf["vf"]): vf.get("address", "")
        for link in links
        for vf in link.get("vfinfo_list", ())
    }
    roles = {f"{role['vendor_id']}:{role['product_id']}": role["role"] for role in _ROLES}
    functions = {function["address"]: function for function in inventory["functions"]}
    found = {}
    for address, function in functions.items():
        ids = f"{function['vendor_id']}:{function['product_id']}"
        if ids not in roles:
            continue
        parent = function["physical_function"]
        role = roles[ids]
        macs = []
        if parent is not None:
            number = functions[parent]["virtual_functions"].index(address)
            for device in functions[parent]["os_devices"]:
                kind, _, name = device.partition(" ")
                if kind == "net":
                    role = (networks or {}).get(name, role)
                if kind == "net" and vf_macs.get((name, number)):
                    macs.append(vf_macs[name, number])
        found[address] = HostDevice(
            address=address,
            ids=ids,
            role=role,
            provider=parent or address,
            location=Location(
                numa=function["numa_node"],
                socket=function["socket"],
                root=function["root"],
                switches=tuple(function["switches"]),
            ),
            identity=identity([bar["size"] for bar in function["bars"]], macs),
        )
    return found


def domain(machine: node.Node, server: str) -> Domain:
    """Read libvirt's domain of *server* in the node."""
    return parse_domain(remote(machine, ["virsh", "-c", "qemu:///system", "dumpxml", server]))


def parse_domain(text: str) -> Domain:
    """Read a domain's XML.

    :raises LabError: the text is not XML.
    """
    try:
        root = etree.fromstring(text.encode(), etree.XMLParser(resolve_entities=False))
    except etree.XMLSyntaxError as err:
        raise LabError(f"libvirt's domain is no XML: {err}") from err
    hostdevs = []
    for source in root.findall("./devices/hostdev[@type='pci']/source/address"):
        parts = [int(source.get(name, "0"), 16) for name in ("domain", "bus", "slot", "function")]
        hostdevs.append("{:04x}:{:02x}:{:02x}.{:x}".format(*parts))
    pins = {
        int(pin.get("vcpu", "-1")): frozenset(parse_list(pin.get("cpuset", "")))
        for pin in root.findall("./cputune/vcpupin")
    }
    emulator = root.find("./cputune/emulatorpin")
    memory = root.find("./numatune/memory[@mode='strict']")
    page = root.find("./memoryBacking/hugepages/page")
    unit = {"KiB": 1, "k": 1, "MiB": 1024, "M": 1024, "GiB": 1 << 20, "G": 1 << 20}
    return Domain(
        hostdevs=tuple(hostdevs),
        pins=pins,
        emulator=frozenset()
        if emulator is None
        else frozenset(parse_list(emulator.get("cpuset", ""))),
        memory_nodes=frozenset()
        if memory is None
        else frozenset(parse_list(memory.get("nodeset", ""))),
        page_kib=None
        if page is None
        else int(page.get("size", "0")) * unit.get(page.get("unit", "KiB"), 1),
    )


def pages(machine: node.Node, instance_name: str, page_kib: int) -> dict[int, int]:
    """Return NUMA node -> hugepages that the QEMU process of a server holds."""
    script = f'cat "/proc/$(cat /run/libvirt/qemu/{instance_name}.pid)/numa_maps"'
    return parse_numa_maps(remote(machine, ["sh", "-c", script]), page_kib)


def parse_numa_maps(text: str, page_kib: int) -> dict[int, int]:
    """Sum up the lines of ``/proc/PID/numa_maps`` with pages of *page_kib*."""
    found: dict[int, int] = {}
    for line in text.splitlines():
        if not line.endswith(f"kernelpagesize_kB={page_kib}"):
            continue
        for numa, count in _PAGES.findall(line):
            found[int(numa)] = found.get(int(numa), 0) + int(count)
    return found


def guest(report: node.GuestReport) -> Guest:
    """Return the passed-through devices and the size in a guest's report."""
    ids = {f"{role['vendor_id']}:{role['product_id']}" for role in _ROLES}
    return Guest(
        devices=tuple(
            GuestDevice(
                address=function.address,
                ids=function.ids,
                driver=function.driver,
                identity=identity(function.bars, function.macs),
            )
            for function in report.functions
            if function.ids in ids
        ),
        cpus=report.cpus,
        memory_kib=report.memory_kib,
        check=report.check,
        check_status=report.check_status,
    )


def collect(
    settings: Settings,
    cloud: Any,
    machine: node.Node,
    server: Any,
    wanted: Asked,
    report: node.GuestReport,
) -> Evidence:
    """Collect all accounts of *server* (a record of openstacksdk), which runs on *machine*."""
    devices, cpus = host_devices(machine)
    allocated: dict[str, int] = {}
    for name, resources in observe.allocation(cloud, server.id).items():
        host, _, address = name.rpartition("_")
        if host == machine.name:
            allocated[address] = sum(resources.values())
    records = observe.pci_records(settings, server.id)
    return Evidence(
        asked=wanted,
        planned=planned(machine.shape, machine.index),
        node=devices,
        cpus=cpus,
        allocation=allocated,
        records=tuple(Record(one.address, one.provider) for one in records),
        domain=domain(machine, server.id),
        pages=pages(machine, _domain_file(machine, server), wanted.page_kib),
        guest=guest(report),
        decision=observe.stored_decision(settings, server.id),
    )


def _domain_file(machine: node.Node, server: Any) -> str:
    name = remote(machine, ["virsh", "-c", "qemu:///system", "domname", server.id]).strip()
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise LabError(f"libvirt calls the server {name!r}")
    return name
