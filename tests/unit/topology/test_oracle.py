# SPDX-License-Identifier: Apache-2.0
"""The inventory of a capture agrees with lstopo's: functions, places, paths.

What is compared is read from lstopo's XML right here, apart from the reader of
the product, which is then held against both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import attrs
import pytest

from nova_hpc.topology import sysfs
from nova_hpc.topology.model import Node, address_key, normalise_address
from nova_hpc_tools.site import lstopo


@attrs.frozen
class Seen:
    """A function as lstopo shows it."""

    path: tuple[str, ...]
    nodes: frozenset[int]
    host_bridge: str
    ids: str


_DONE: dict[tuple[Path, tuple[str, ...]], bytes] = {}


def run_lstopo(capture: Path, output: Path, *options: str) -> Path:
    """Write lstopo's XML of a capture to *output*; it runs once for all tests."""
    if (capture, options) not in _DONE:
        _DONE[capture, options] = _run_lstopo(capture, options)
    output.write_bytes(_DONE[capture, options])
    return output


def _run_lstopo(capture: Path, options: tuple[str, ...]) -> bytes:
    if shutil.which("lstopo-no-graphics") is None:
        pytest.skip("lstopo-no-graphics is not installed (package hwloc-nox)")
    # Variables of the user may move devices about (HWLOC_PCI_LOCALITY).
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HWLOC_")}
    done = subprocess.run(
        # --disallowed: what the cgroup of the recording process allowed is no
        # property of the machine.
        ["lstopo-no-graphics", "--of", "xml", "--filter", "io:all", "--disallowed", *options],
        env={**clean, "HWLOC_FSROOT": str(capture), "HWLOC_THISSYSTEM": "0"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return done.stdout


def bits(text: str) -> frozenset[int]:
    value = 0
    for word in text.split(","):
        value = value << 32 | int(word or "0", 16)
    return frozenset(bit for bit in range(value.bit_length()) if value >> bit & 1)


def seen_by_lstopo(path: Path) -> dict[str, Seen]:
    """Every PCI function in an XML: bridges above, and the NUMA nodes around."""
    found: dict[str, Seen] = {}

    def visit(
        item: ElementTree.Element, nodes: frozenset[int], bridges: tuple[str, ...], host: str
    ) -> None:
        if "nodeset" in item.attrib:
            nodes = bits(item.attrib["nodeset"])
        if item.get("type") in ("Bridge", "PCIDev"):
            if item.get("bridge_type", "").startswith("0"):
                host = item.attrib["bridge_pci"].partition("-")[0].replace("[", "")
            else:
                address = item.attrib["pci_busid"]
                found[address] = Seen(bridges, nodes, host, item.attrib["pci_type"][:16])
                if item.get("type") == "Bridge":
                    bridges = (*bridges, address)
        for child in item.findall("object"):
            visit(child, nodes, bridges, host)

    for item in ElementTree.parse(path).getroot().findall("object"):
        visit(item, frozenset(), (), "")
    return found


def comparable(node: Node) -> dict[str, Seen]:
    """The inventory in the same words."""
    return {
        function.address: Seen(
            function.path,
            function.local_numa_nodes,
            (function.root or "").removeprefix("pci"),
            # lstopo writes zeros for an id or a class that cannot be read.
            f"{(function.class_code or '0000')[:4]} "
            f"[{function.vendor_id or '0000'}:{function.product_id or '0000'}]",
        )
        for function in node.functions
    }


def test_the_inventory_agrees_with_lstopo(capture: Path, tmp_path: Path) -> None:
    node = sysfs.read_sysfs_node(capture)
    expected = seen_by_lstopo(run_lstopo(capture, tmp_path / "machine.xml"))
    ours = comparable(node)
    # Distributions build hwloc for PCI domains of 16 bits, and it then leaves
    # functions in larger ones out.
    for address in ours.keys() - expected.keys():
        assert address_key(address)[0] > 0xFFFF
        del ours[address]
    # A NUMA node without CPUs is the memory of something (a GPU, HBM): hwloc
    # counts it as local to the CPUs that are near, or drops it. It says
    # nothing about where a function is.
    with_cpus = {numa.id for numa in node.numa_nodes if numa.cpus}
    assert ours == {
        address: attrs.evolve(seen, nodes=seen.nodes & with_cpus)
        for address, seen in expected.items()
    }


def test_bridges_without_buses_are_apart(capture: Path, tmp_path: Path) -> None:
    """Every entry of sysfs is a function or such a bridge; lstopo has none of those."""
    node = sysfs.read_sysfs_node(capture)
    folder = capture / "sys/bus/pci/devices"
    entries = (
        {normalise_address(entry.name) for entry in folder.iterdir()} if folder.exists() else set()
    )
    active = {function.address for function in node.functions}
    inactive = {function.address for function in node.inactive}
    assert active | inactive == entries
    assert not active & inactive
    assert not inactive & seen_by_lstopo(run_lstopo(capture, tmp_path / "machine.xml")).keys()


@pytest.mark.parametrize("options", [(), ("--export-xml-flags", "1")], ids=["hwloc2", "hwloc1"])
def test_both_readers_agree(capture: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    """The XML that lstopo makes of a capture reads as the capture does."""
    files = sysfs.read_sysfs_node(capture)
    xml = lstopo.read_lstopo_file(run_lstopo(capture, tmp_path / "machine.xml", *options))
    assert not xml.problems
    for function in xml.functions:
        other = files.function(function.address)
        assert other is not None
        for name in (
            "vendor_id",
            "product_id",
            "root",
            "path",
            "switches",
            "numa_node",
            "local_numa_nodes",
            "socket",
            "location",
        ):
            assert getattr(function, name) == getattr(other, name), (function.address, name)
        if function.link is not None:
            assert other.link is not None
            assert other.link.bandwidth == pytest.approx(function.link.bandwidth, abs=0.01)
    numa = {node.id: node for node in xml.numa_nodes}
    for node in files.numa_nodes:
        if node.cpus and node.id in numa:
            assert numa[node.id].cpus == node.cpus
            assert numa[node.id].memory_kib in (node.memory_kib, None)
            assert {pool.size_kib: pool.total for pool in numa[node.id].hugepages} == {
                pool.size_kib: pool.total for pool in node.hugepages
            }


def test_numa_nodes_agree(capture: Path, tmp_path: Path) -> None:
    """lstopo has the same NUMA nodes, but for those that are a GPU's memory."""
    root = ElementTree.parse(run_lstopo(capture, tmp_path / "machine.xml")).getroot()
    expected = {int(item.attrib["os_index"]) for item in root.iter("object")
                if item.get("type") == "NUMANode"}  # fmt: skip
    node = sysfs.read_sysfs_node(capture)
    assert {numa.id for numa in node.numa_nodes if numa.memory_of is None} == expected
