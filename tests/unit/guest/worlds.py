# SPDX-License-Identifier: Apache-2.0
"""Random hosts, the domains of their guests, and the guests' sysfs.

The guest side is made from the domain alone, as firmware and kernel would:
buses are numbered depth first, and nothing is shared with the code under test.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import attrs
from hypothesis import strategies as st
from lxml import etree

from nova_hpc.topology.model import Node, NumaNode, PcieLink, PciFunction

GPU = {"vendor_id": "10de", "product_id": "2330", "class_code": "030200"}
OTHER_GPU = {"vendor_id": "1002", "product_id": "74a1", "class_code": "030200"}
ADAPTER = {"vendor_id": "15b3", "product_id": "101e", "class_code": "020700"}
KINDS = (GPU, OTHER_GPU, ADAPTER)
LINKS = (None, PcieLink(max_speed=32.0, max_width=16), PcieLink(max_speed=16.0, max_width=8))


@st.composite
def hosts(draw: st.DrawFn, nodes: int = 2) -> Node:
    """A host: roots with root ports; below each devices, or a switch with more."""
    functions: list[PciFunction] = []
    buses = itertools.count(1)

    def device(above: PciFunction | None, place: dict[str, object]) -> None:
        bus = next(buses)
        count = draw(st.sampled_from([1, 1, 1, 2]))
        for function in range(count):
            functions.append(
                PciFunction(
                    f"0000:{bus:02x}:00.{function}",
                    link=draw(st.sampled_from(LINKS)),
                    **draw(st.sampled_from(KINDS)),
                    **place,
                )
            )

    def below(place: dict[str, object], depth: int) -> None:
        """What is behind a port whose own address ends place["path"]."""
        if depth == 2 or draw(st.booleans()):
            leaf = dict(place)
            leaf["switches"] = place["switches"] or place["path"][:1]
            device(None, leaf)
            return
        upstream = f"0000:{next(buses):02x}:00.0"
        above = {
            **place,
            "path": (*place["path"], upstream),
            "switches": (*place["switches"], upstream),
        }
        bus = next(buses)
        for slot in range(draw(st.integers(1, 2))):
            port = f"0000:{bus:02x}:{slot:02x}.0"
            below({**above, "path": (*above["path"], port)}, depth + 1)

    for root in range(draw(st.integers(1, 3))):
        numa = draw(st.integers(0, nodes - 1))
        for slot in range(draw(st.integers(1, 2))):
            port = f"0000:{0xF0 + root:02x}:{slot:02x}.0"
            place = {"root": f"pci0000:{0xF0 + root:02x}", "numa_node": numa}
            below({**place, "path": (port,), "switches": ()}, 0)
    numa_nodes = tuple(
        NumaNode(number, cpus=frozenset(range(number * 8, number * 8 + 8)))
        for number in range(nodes)
    )
    functions.sort(key=lambda function: function.address)
    return Node("random", hostname="secret-host", numa_nodes=numa_nodes, functions=tuple(functions))


# -- the domain ------------------------------------------------------------------


def domain_of(node: Node, chosen: list[str], cells: dict[int, int], mirror: bool) -> str:
    """A domain with *chosen* passed through: mirrored, or without addresses."""
    domain = etree.Element("domain", type="kvm")
    etree.SubElement(etree.SubElement(domain, "os"), "type", machine="q35").text = "hvm"
    devices = etree.SubElement(domain, "devices")
    index = itertools.count(0)
    made: dict[object, int] = {}

    def controller(model: str, **address: int) -> int:
        number = next(index)
        element = etree.SubElement(
            devices, "controller", type="pci", index=str(number), model=model
        )
        if address:
            put(element, **address)
        return number

    def put(element: etree._Element, bus: int, slot: int, function: int = 0) -> None:
        etree.SubElement(
            element,
            "address",
            type="pci",
            domain="0x0000",
            bus=f"0x{bus:02x}",
            slot=f"0x{slot:02x}",
            function=f"0x{function:x}",
        )

    controller("pcie-root")
    slots: dict[int, itertools.count[int]] = {}

    def on(bus: int) -> dict[str, int]:
        return {"bus": bus, "slot": next(slots.setdefault(bus, itertools.count(0)))}

    slots[0] = itertools.count(3)
    # As round as can be; a deep tree takes more than 16 buses.
    numbers: dict[str | None, int] = {}
    free = 32
    for function in map(node.function, chosen):
        if function.root not in numbers:
            mine = {
                each
                for one in map(node.function, chosen)
                if one.root == function.root
                for each in one.path
            }
            numbers[function.root] = free
            free += 16 * (1 + (1 + len(mine)) // 16)
    for address in chosen:
        function = node.function(address)
        hostdev = etree.SubElement(devices, "hostdev", mode="subsystem", type="pci", managed="no")
        source = etree.SubElement(hostdev, "source")
        domain_part, bus, slot = address.split(":")
        put_source = etree.SubElement(source, "address")
        put_source.set("domain", f"0x{domain_part}")
        put_source.set("bus", f"0x{bus}")
        put_source.set("slot", f"0x{slot[:2]}")
        put_source.set("function", f"0x{slot[3:]}")
        if not mirror:
            continue
        if function.root not in made:
            made[function.root] = controller("pcie-expander-bus", **on(0))
            expander = devices.findall("controller")[-1]
            target = etree.SubElement(expander, "target", busNr=str(numbers[function.root]))
            etree.SubElement(target, "node").text = str(cells[function.numa_node])
        bus_index = made[function.root]
        for depth, bridge in enumerate(function.path):
            if bridge not in made:
                model = (
                    ("pcie-root-port", "pcie-switch-upstream-port")[depth]
                    if depth < 2
                    else (
                        "pcie-switch-upstream-port" if depth % 2 else "pcie-switch-downstream-port"
                    )
                )
                made[bridge] = controller(model, **on(bus_index))
            bus_index = made[bridge]
        put(hostdev, bus=bus_index, slot=0, function=int(address[-1]))
    return etree.tostring(domain, encoding="unicode")


# -- the guest -------------------------------------------------------------------


@attrs.define
class Guest:
    """A directory that looks like ``/`` of the guest that runs a domain."""

    root: Path
    #: Host address -> directory of the function below /sys/devices.
    folders: dict[str, Path] = attrs.Factory(dict)

    def file(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def boot(root: Path, xml: str, node: Node, cells: list[tuple[int, int]]) -> Guest:
    """Do what libvirt, firmware and the kernel do with a domain.

    :param cells: CPUs and memory in KiB of each NUMA node of the guest.
    """
    guest = Guest(root)
    domain = etree.fromstring(xml)
    for entry in domain.iterfind("sysinfo[@type='fwcfg']/entry"):
        guest.file(f"sys/firmware/qemu_fw_cfg/by_name/{entry.get('name')}/raw", entry.text)
    for number, (cpus, memory) in enumerate(cells):
        folder = f"sys/devices/system/node/node{number}"
        guest.file(f"{folder}/cpulist", f"{number * cpus}-{number * cpus + cpus - 1}\n")
        guest.file(f"{folder}/meminfo", f"Node {number} MemTotal:  {memory} kB\n")
    for size in (2048, 1048576):
        guest.file(f"sys/kernel/mm/hugepages/hugepages-{size}kB/nr_hugepages", "4\n")
    children: dict[int, list[tuple[int, int, etree._Element]]] = {}
    loose = []
    for element in domain.find("devices"):
        address = element.find("address[@type='pci']")
        if address is not None:
            bus, slot, function = (int(address.get(key), 16) for key in ("bus", "slot", "function"))
            children.setdefault(bus, []).append((slot, function, element))
        elif element.tag == "hostdev":
            loose.append(element)
    last_bus = 0

    def descend(index: int, bus: int, where: str, numa: int) -> None:
        nonlocal last_bus
        for slot, number, element in sorted(children.get(index, []), key=lambda item: item[:2]):
            here = f"{where}/0000:{bus:02x}:{slot:02x}.{number}"
            if element.tag == "hostdev":
                write(element, here, numa)
            elif element.get("index") and element.get("model") != "pcie-expander-bus":
                function_files(here, "1b36", "000c", "060400", numa, "pcieport")
                last_bus = max(last_bus, bus) + 1
                descend(int(element.get("index")), last_bus, here, numa)

    def write(element: etree._Element, here: str, numa: int) -> None:
        source = element.find("source/address")
        parts = [int(source.get(key), 16) for key in ("domain", "bus", "slot", "function")]
        host = "{:04x}:{:02x}:{:02x}.{:x}".format(*parts)
        real = node.function(host)
        driver = {"03": "nvidia", "01": "nvme"}.get(real.class_code[:2], "mlx5_core")
        function_files(here, real.vendor_id, real.product_id, real.class_code, numa, driver)
        guest.folders[host] = root / here
        if real.link is not None:
            guest.file(f"{here}/max_link_speed", f"{real.link.max_speed:.1f} GT/s PCIe\n")
            guest.file(f"{here}/current_link_speed", f"{real.link.max_speed:.1f} GT/s PCIe\n")
            guest.file(f"{here}/current_link_width", f"{real.link.max_width}\n")

    def function_files(
        here: str, vendor: str, product: str, kind: str, numa: int, driver: str
    ) -> None:
        guest.file(f"{here}/vendor", f"0x{vendor}\n")
        guest.file(f"{here}/device", f"0x{product}\n")
        guest.file(f"{here}/class", f"0x{kind}\n")
        guest.file(f"{here}/numa_node", f"{numa}\n")
        (root / here / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
        link = root / "sys/bus/pci/devices" / here.rpartition("/")[2]
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../../{here.removeprefix('sys/')}")

    # libvirt gives a root port of its own to each device without an address.
    for slot, element in enumerate(loose):
        index = 1000 + slot
        port = etree.Element("controller", model="pcie-root-port", index=str(index))
        children.setdefault(0, []).append((slot // 8 + 1, slot % 8, port))
        children[index] = [(0, 0, element)]
    function_files("sys/devices/pci0000:00/0000:00:00.0", "8086", "29c0", "060000", -1, "none")
    function_files("sys/devices/pci0000:00/0000:00:1f.0", "1af4", "1041", "020000", -1, "virtio")
    descend(0, 0, "sys/devices/pci0000:00", -1)
    for expander in domain.iterfind("devices/controller[@model='pcie-expander-bus']"):
        number = int(expander.find("target").get("busNr"))
        last_bus = number
        home = int(expander.findtext("target/node"))
        descend(int(expander.get("index")), number, f"sys/devices/pci0000:{number:02x}", home)
    return guest
