# SPDX-License-Identifier: Apache-2.0
import itertools
import os
import re
from pathlib import Path

import attrs
import pytest
from hypothesis import given

from nova_hpc.topology import nccl
from nova_hpc.topology.cpuset import parse_mask
from nova_hpc.topology.files import FileTree
from nova_hpc.topology.model import BridgeKind, Node, PcieLink, PciFunction
from nova_hpc_common.level import Distance, distance_between
from nova_hpc_tools.inventory import nccl_node
from nova_hpc_tools.main import main
from nova_hpc_tools.site import lstopo
from tests.unit.guest.worlds import hosts
from tests.unit.topology import nccl_reader
from tests.unit.topology.nccl_reader import (
    Element,
    RefusedError,
    devices,
    expected_path,
    path_type,
    read,
)

#: NCCL knows no host bridges, so it cannot tell these two apart.
SAME = {Distance.NODE: "PHB"}


def azure() -> list[Path | None]:
    folder = os.environ.get("NOVA_HPC_TEST_DATA")
    return [*sorted(Path(folder, "nccl").glob("*.xml"))] if folder else [None]


def written(path: Path | None) -> Element:
    if path is None:
        pytest.skip("NOVA_HPC_TEST_DATA names no folder of captures")
    return read(path.read_text())


@pytest.mark.parametrize("path", azure(), ids=lambda path: path.name if path else "none")
def test_the_reader_reads_what_vendors_ship(path):
    system = written(path)
    assert len(devices(system)) == 16
    pairs = itertools.combinations(devices(system).values(), 2)
    assert {path_type(*pair) for pair in pairs} == (
        {"PIX", "PHB", "SYS"} if "ndv5" in path.name else {"PIX", "SYS"}
    )


@pytest.mark.parametrize("path", azure(), ids=lambda path: path.name if path else "none")
def test_what_vendors_ship_is_written_the_same(path):
    system = written(path)
    found, switches, cells, processor = [], {}, {}, None
    for cpu in system.below:
        numa = int(cpu.values["numaid"])
        cells[numa] = parse_mask(cpu.values["affinity"])
        processor = nccl.Processor(
            cpu.values["arch"],
            cpu.values["vendor"],
            int(cpu.values["familyid"]),
            int(cpu.values["modelid"]),
        )
        for bridge in cpu.below:
            names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
            ids = tuple(bridge.values[name][2:] for name in names if name in bridge.values)
            busid = bridge.values["busid"]
            switches[busid] = nccl.NcclSwitch(busid, ids, link_of(bridge))
            found += [
                nccl.NcclDevice(
                    leaf.values["busid"],
                    leaf.values["class"][2:],
                    numa,
                    (busid,),
                    link_of(leaf),
                )
                for leaf in bridge.below
            ]
    again = read(nccl.write_nccl_file(found, switches, cells, processor))
    assert plain(again) == plain(system)


def link_of(element: Element) -> PcieLink:
    speed = float(element.values["link_speed"].split()[0])
    return PcieLink(max_speed=speed, max_width=int(element.values["link_width"]))


def plain(element: Element) -> tuple[object, ...]:
    """What the element says, however long its masks and numbers are written."""
    values = dict(element.values)
    if "affinity" in values:
        values["affinity"] = sorted(parse_mask(values["affinity"]))
    if "link_speed" in values:
        values["link_speed"] = nccl_reader.SPEEDS[values["link_speed"]]
    return element.name, values, [plain(child) for child in element.below]


@given(hosts())
def test_nccl_sees_the_distances_of_the_inventory(host):
    seen = devices(read(nccl_node.from_node(host)))
    chosen = [each for each in host.functions if each.class_code in ("030200", "020700")]
    assert seen.keys() == {each.address for each in chosen if not each.physical_function}
    for one, other in itertools.combinations(seen, 2):
        assert path_type(seen[one], seen[other]) == expected_path(host, one, other)


def test_the_dgx2():
    folder = os.environ.get("NOVA_HPC_TEST_DATA")
    if folder is None:
        pytest.skip("NOVA_HPC_TEST_DATA names no folder of captures")
    node = lstopo.read_lstopo_file(Path(folder, "hwloc/nvidiaDGX2.xml"))
    seen = devices(read(nccl_node.from_node(node)))
    counts = {}
    for one, other in itertools.combinations(seen, 2):
        real = distance_between(node.function(one).location, node.function(other).location)
        kind = path_type(seen[one], seen[other])
        assert kind == SAME.get(real, real.name)
        counts[kind] = counts.get(kind, 0) + 1
    assert counts == {"PIX": 8, "PXB": 16, "PHB": 32, "SYS": 64}


GPU = PciFunction(
    "0000:03:00.0",
    vendor_id="10de",
    class_code="030200",
    numa_node=0,
    root="pci0000:00",
    path=("0000:00:01.0",),
    switches=("0000:00:01.0",),
)


def test_a_link_is_as_good_as_its_worse_end():
    port = PciFunction(
        "0000:00:01.0",
        class_code="060400",
        root="pci0000:00",
        link=PcieLink(max_speed=16.0, max_width=8),
    )
    gpu = attrs.evolve(GPU, link=PcieLink(max_speed=32.0, max_width=16, speed=2.5, width=8))
    (leaf,) = devices(read(nccl_node.from_node(Node("x", functions=(port, gpu))))).values()
    assert leaf.values["link_speed"] == "16.0 GT/s PCIe"
    assert leaf.values["link_width"] == "8"
    # Nothing is made up where nothing is known.
    (leaf,) = devices(read(nccl_node.from_node(Node("x", functions=(GPU,))))).values()
    assert leaf.values == {"busid": "0000:03:00.0", "class": "0x030200"}


def test_a_virtual_function_has_the_link_of_its_physical_function():
    card = attrs.evolve(GPU, class_code="020700", link=PcieLink(max_speed=16.0, max_width=16))
    function = attrs.evolve(card, address="0000:03:00.1", physical_function=card.address, link=None)
    node = Node("x", functions=(card, function))
    assert nccl.best_link(node, function) == PcieLink(max_speed=16.0, max_width=16)
    # ... and is not in the file of the host, whose NCCL uses the adapter itself.
    assert list(devices(read(nccl_node.from_node(node)))) == [card.address]
    alone = Node("x", functions=(function,))
    assert nccl.best_link(alone, function) is None
    assert nccl.best_link(alone, attrs.evolve(card, physical_function=card.address)) is None


def test_devices_near_to_no_node_are_where_nccl_puts_them():
    far = attrs.evolve(GPU, numa_node=None)
    (cpu,) = read(nccl_node.from_node(Node("x", functions=(far,)))).below
    assert cpu.values == {"numaid": "-1"}


def test_more_than_nccl_can_read_is_refused():
    cards = [nccl.NcclDevice(f"0000:{bus:02x}:00.0", "030200", 0) for bus in range(100)]
    read(nccl.write_nccl_file(cards[:80], {}, {}))
    with pytest.raises(nccl.NcclError, match="100 GPUs and adapters make 302 elements"):
        nccl.write_nccl_file(cards, {}, {})


def test_an_accelerator_of_amd_is_a_gpu_to_rccl():
    """MI300X are no display controllers; RCCL takes version 2 of the file alone."""
    switch = PciFunction(
        "0000:02:00.0",
        class_code="060400",
        root="pci0000:00",
        path=("0000:00:01.0",),
        bridge=BridgeKind.UPSTREAM,
    )
    path = ("0000:00:01.0", "0000:02:00.0", "0000:03:00.0")
    gpu = attrs.evolve(
        GPU,
        vendor_id="1002",
        class_code="120000",
        address="0000:04:00.0",
        path=path,
        switches=(switch.address,),
    )
    card = attrs.evolve(gpu, address="0000:05:00.0", vendor_id="15b3", class_code="020700")
    vga = PciFunction("0000:06:00.0", vendor_id="1a03", class_code="030000", numa_node=0)
    node = Node("x", functions=(switch, gpu, card, vga))
    text = nccl_node.from_node(node)
    assert text.startswith('<system version="2">\n')
    seen = devices(read(text))
    assert path_type(seen[gpu.address], seen[card.address]) == "PIX"
    # NCCL's own GPUs decide where there are both.
    green = attrs.evolve(GPU, address="0000:07:00.0")
    both = nccl_node.from_node(attrs.evolve(node, functions=(*node.functions, green)))
    assert both.startswith('<system version="1">\n')


def test_a_root_port_is_no_switch():
    """NCCL climbs two bridges at a time: it never sees what two functions of a card share."""
    card = attrs.evolve(GPU, address="0000:03:00.1", class_code="020700")
    seen = devices(read(nccl_node.from_node(Node("x", functions=(GPU, card)))))
    assert path_type(seen[GPU.address], seen[card.address]) == "PHB"


@pytest.mark.parametrize(("cpus", "named"), [(896, True), (897, False)])
def test_a_mask_that_is_too_long_is_left_out(cpus, named):
    text = nccl.write_nccl_file(
        [nccl.NcclDevice("0000:03:00.0", "030200", 0)], {}, {0: range(cpus)}
    )
    (cpu,) = read(text).below
    assert ("affinity" in cpu.values) is named


INTEL = (
    "processor : 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name : x\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (INTEL, nccl.Processor("x86_64", "GenuineIntel", 6, 143)),
        (INTEL.replace("143", "what"), None),
        (INTEL.replace("GenuineIntel", '"><x/>'), None),
        ("processor : 0\nCPU implementer : 0x41\n", nccl.Processor("arm64")),
        ("cpu\t\t: POWER9, altivec\n", nccl.Processor("ppc64")),
        ("", None),
        ("\udcff", None),
    ],
)
def test_the_processor(tmp_path, text, expected):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert nccl_node.read_nccl_processor(FileTree(tmp_path)) == expected


def test_no_processor(tmp_path):
    assert nccl_node.read_nccl_processor(FileTree(tmp_path)) is None


def test_the_command_writes_a_file_for_nccl(virtual_node, capsys):
    assert main(["inventory", "--root", str(virtual_node), "--show", "nccl"]) == 0
    system = read(capsys.readouterr().out)
    assert len(devices(system)) > 3
    assert {cpu.values["numaid"] for cpu in system.below} == {"0", "1"}


@pytest.mark.parametrize(
    "text",
    [
        '<?xml version="1.0"?><system version="1"></system>',
        '<system version="1"><cpu numaid="0"><pci  busid="0" class="0x03"/></cpu></system>',
        '<system version="1">\t<cpu numaid="0"></cpu></system>',
        '<system version="3"></system>',
        f'<system version="1"><cpu numaid="0" affinity="{"f" * 254}"></cpu></system>',
        f'<system version="1">{"""<cpu numaid="0"/>""" * 255}</system>',
        '<system version="1"><cpu numaid="0"></system>',
        f'<system version="1"><cpu numaid="{"0" * 300}"></cpu></system>',
    ],
)
def test_the_reader_is_as_strict_as_nccl(text):
    with pytest.raises(RefusedError):
        read(text)


def test_the_file_has_no_declaration_and_plain_blanks():
    text = nccl_node.from_node(Node("x", functions=(GPU,)))
    assert text.startswith('<system version="1">\n')
    assert not re.search(r"[&\t]|  +\w+=| />", text)
