# SPDX-License-Identifier: Apache-2.0
"""Broken sysfs and XML: never an exception, and only what is broken suffers."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from nova_hpc.topology import sysfs
from nova_hpc.topology.model import ADDRESS, InventoryError, Node, address_key
from nova_hpc_tools.inventory import text
from nova_hpc_tools.site import lstopo
from nova_hpc_tools.wire import inventory
from tests.unit.topology import damage
from tests.unit.topology.builder import Machine, config

pytestmark = pytest.mark.long

ROUNDS = 10
READ = ("class", "vendor", "device", "config", "numa_node", "local_cpus", "resource", "driver",
        "reset_method", "current_link_speed", "current_link_width", "sriov_totalvfs", "physfn",
        "iommu_group", "revision", "max_link_width", "infiniband", "net")  # fmt: skip


def check(node: Node) -> None:
    """What holds for every node, however broken its source."""
    addresses = [function.address for function in node.functions]
    assert addresses == sorted(set(addresses), key=address_key)
    ids = [numa.id for numa in node.numa_nodes]
    assert ids == sorted(set(ids))
    cpus = [cpu for numa in node.numa_nodes for cpu in numa.cpus]
    assert len(cpus) == len(set(cpus))
    for function in node.functions:
        assert ADDRESS.fullmatch(function.address)
        assert function.address not in function.path
        assert len(set(function.path)) == len(function.path)
        assert set(function.switches) <= set(function.path)
        for above in function.path:
            bridge = node.function(above)
            assert bridge is not None
        assert function.local_numa_nodes <= set(ids)
        assert function.numa_node is None or function.numa_node in ids
        assert function.unknown is None or function.unknown.isprintable()
        if function.unknown is None:
            assert function.vendor_id is not None
            assert function.product_id is not None
            assert function.class_code is not None
        assert all(bar.size > 0 for bar in function.bars)
        if function.iommu_group is not None:
            assert function.address in node.group_members(function)
    for numa in node.numa_nodes:
        assert frozenset().union(*numa.smt_siblings) == numa.cpus - numa.offline
    assert all(problem.isprintable() for problem in node.problems)
    inventory.write_inventory(node)
    for everything in (False, True):
        for line in text.draw_node_lines(node, everything=everything):
            line.encode()
    "".join(text.draw_node_lines(node, plain=True)).encode("ascii")


def files_of(top: Path) -> list[Path]:
    """All files, links and directories of a capture that a reader may meet."""
    found = []
    for folder, folders, files in os.walk(top):
        found += [Path(folder, name) for name in (*files, *folders)]
    # Most of a capture is caches of CPUs, which nobody reads here.
    return sorted(path for path in found if "cache" not in path.parts and path.name != "sys")


@pytest.mark.parametrize("seed", range(2))
def test_a_damaged_capture_is_read(capture: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(f"{capture.name} {seed}")
    copy = tmp_path / "copy"
    shutil.copytree(capture, copy, symlinks=True)
    paths = files_of(copy)
    # Half of the damage where it matters most.
    vital = [path for path in paths if path.name in READ or ADDRESS.fullmatch(path.name)] or paths
    done = []
    for round_ in range(ROUNDS):
        # Little damage at first: much of it hides what a little does.
        count = 2**round_ // 4 + 1
        done += damage.apply(copy, vital, count, chance)
        done += damage.apply(copy, paths, count, chance)
        try:
            check(sysfs.read_sysfs_node(copy))
        except Exception as error:
            error.add_note("after: " + "; ".join(done[-20:]))
            raise


def test_only_the_broken_function_is_unknown(virtual_node: Path, tmp_path: Path) -> None:
    """Every damage to every essential file of every endpoint, one at a time."""
    before = sysfs.read_sysfs_node(virtual_node)
    copy = tmp_path / "copy"
    shutil.copytree(virtual_node, copy, symlinks=True)
    chance = random.Random(1)
    tried = 0
    for function in before.functions:
        if function.is_bridge or function.virtual_functions or function.physical_function:
            continue
        for name in ("vendor", "class", "numa_node", "local_cpus", "config", "driver", "resource"):
            for break_it in (
                damage.garbage,
                damage.loop,
                damage.folder,
                damage.stray,
                damage.noise,
            ):
                place = (copy / "sys/bus/pci/devices" / function.address).resolve() / name
                kept = place.rename(tmp_path / "kept") if os.path.lexists(place) else None
                break_it(place, chance)
                after = sysfs.read_sysfs_node(copy)
                damage.remove(place)
                if kept is not None:
                    kept.rename(place)
                check(after)
                others = {f.address: f for f in after.functions}
                others.pop(function.address)
                assert others == {f.address: f for f in before.functions if f != function}
                tried += 1
    assert tried >= 100


ESSENTIAL = ("vendor", "device", "class", "numa_node", "local_cpus")


@pytest.mark.parametrize("name", ESSENTIAL)
@pytest.mark.parametrize("kind", ["folder", "loop", "binary", "words", "huge"])
def test_nonsense_makes_the_function_unknown(tmp_path: Path, name: str, kind: str) -> None:
    machine = Machine(tmp_path)
    machine.function("pci0000:17/0000:17:00.0")
    place = machine.function("pci0000:17/0000:17:01.0") / name
    place.unlink()
    if kind == "folder":
        place.mkdir()
    elif kind == "loop":
        place.symlink_to(name)
    else:
        words = {"binary": b"\x00\xffx", "words": b"no number\n", "huge": b"9" * 50}
        place.write_bytes(words[kind])
    good, bad = sysfs.read_sysfs_node(tmp_path).functions
    assert good.unknown is None
    assert bad.unknown is not None
    assert name in bad.unknown


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 12),
    nodes=st.integers(1, 3),
    functions=st.integers(0, 5),
)
def test_a_small_machine_survives(seed: int, count: int, nodes: int, functions: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        machine = Machine(top, nodes=nodes)
        machine.bridge("pci0000:17/0000:17:00.0", 4, (0x18, 0x1F))
        for index in range(functions):
            machine.function(
                f"pci0000:17/0000:17:00.0/0000:18:{index:02x}.0",
                space=config(acs=(0x1F, 0)),
                node=index % nodes,
                driver="vfio-pci",
                group=index,
                absolute=index % 2 == 0,
            )
        done = damage.apply(top, files_of(top), count, random.Random(seed))
        try:
            check(sysfs.read_sysfs_node(top))
        except Exception as error:
            error.add_note("after: " + "; ".join(done))
            raise


def read_xml(data: bytes) -> Node | None:
    """Read XML from memory; None: refused with a message that names the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "machine.xml")
        path.write_bytes(data)
        try:
            node = lstopo.read_lstopo_file(path)
        except InventoryError as error:
            refusal = str(error)
        else:
            check(node)
            return node
    assert "machine.xml" in refusal
    assert "\n" not in refusal
    return None


XML = b"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f" nodeset="0x00000003" gp_index="1">
    <info name="HostName" value="node1"/>
    <object type="Package" os_index="0" cpuset="0x00000003" nodeset="0x00000001" gp_index="2">
      <object type="NUMANode" os_index="0" cpuset="0x00000003" nodeset="0x00000001" gp_index="3"
              local_memory="1073741824"><page_type size="4096" count="262144"/>
        <page_type size="2097152" count="12"/></object>
      <object type="Core" os_index="0" cpuset="0x00000003" nodeset="0x00000001" gp_index="4">
        <object type="PU" os_index="0" cpuset="0x00000001" nodeset="0x00000001" gp_index="5"/>
        <object type="PU" os_index="1" cpuset="0x00000002" nodeset="0x00000001" gp_index="6"/>
      </object>
      <object type="Bridge" gp_index="7" bridge_type="0-1" depth="0" bridge_pci="0000:[17-19]">
        <object type="Bridge" gp_index="8" bridge_type="1-1" depth="1" bridge_pci="0000:[18-19]"
                pci_busid="0000:17:00.0" pci_type="0604 [8086:2030] [0000:0000] 04"
                pci_link_speed="15.753846">
          <object type="PCIDev" gp_index="9" pci_busid="0000:18:00.0"
                  pci_type="0302 [10de:1db8] [10de:131d] a1" pci_link_speed="15.753846">
            <object type="OSDev" gp_index="10" name="card0" osdev_type="1"/>
          </object>
        </object>
      </object>
    </object>
  </object>
</topology>
"""


def test_the_example_reads() -> None:
    node = read_xml(XML)
    assert node is not None
    assert node.hostname == "node1"
    assert not node.problems
    gpu = node.function("0000:18:00.0")
    assert gpu is not None
    assert (gpu.numa_node, gpu.socket, gpu.root, gpu.path) == (
        0,
        0,
        "pci0000:17",
        ("0000:17:00.0",),
    )
    assert gpu.os_devices == ("gpu card0",)
    assert node.hugepages[0].total == 12


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_damaged_xml_is_read_or_refused(data: st.DataObject) -> None:
    broken = bytearray(XML)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(broken)))
        size = data.draw(st.integers(0, 40))
        broken[place : place + size] = data.draw(st.binary(max_size=20))
    read_xml(bytes(broken))


WORDS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12),
    st.sampled_from(["-1", "99999999999999999999", "0x", "0xf...f", ",", "0000:00:00.0", "0-1",
                     "1-1", "PCIDev", "Bridge", "NUMANode", "Machine", "0000:[ff-00]",
                     "f" * 9000, "0604 [8086:2030] [0000:0000] 04"]),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_xml_with_other_words_is_read(data: st.DataObject) -> None:
    root = etree.fromstring(XML)
    items = [item for item in root.iter() if item.attrib]
    for _ in range(data.draw(st.integers(1, 5))):
        item = data.draw(st.sampled_from(items))
        name = data.draw(st.sampled_from(sorted(item.attrib)))
        if data.draw(st.booleans()):
            try:
                item.set(name, data.draw(WORDS))
            except ValueError:
                continue  # no XML can hold it
        else:
            del item.attrib[name]
            items = [item for item in root.iter() if item.attrib]
    assert read_xml(etree.tostring(root)) is not None


OUTSIDE = b'<!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/passwd">]>'


def entity_bomb(use: str) -> bytes:
    levels = "".join(f'<!ENTITY e{level} "{f"&e{level - 1};" * 10}">' for level in range(1, 10))
    return (
        f'<?xml version="1.0"?><!DOCTYPE topology [<!ENTITY e0 "x">{levels}]>'
        f'<topology version="2.0"><object type="Machine" {use}</object></topology>'
    ).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not xml",
        b"\x00" * 100,
        b"<html><body/></html>",
        b'<topology version="2.0"/>',
        entity_bomb('name="&e9;">'),
        entity_bomb(">&e9;"),
        OUTSIDE + b'<topology><object type="&x;"/></topology>',
        OUTSIDE + b"<topology><object>&x;</object></topology>",
        b"<topology>" + b"<object>" * 5000 + b"</object>" * 5000 + b"</topology>",
        b'<topology><object type="Machine"',
        b'<?xml version="1.0" encoding="nonsense"?><topology><object/></topology>',
    ],
)
def test_what_is_no_topology_is_refused(data: bytes) -> None:
    assert read_xml(data) is None


def test_no_file_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.xml", tmp_path, Path("/dev/null")):
        with pytest.raises(InventoryError, match="no such file"):
            lstopo.read_lstopo_file(path)
    large = tmp_path / "large.xml"
    with large.open("wb") as handle:
        handle.truncate(lstopo.LARGEST + 1)
    with pytest.raises(InventoryError, match="larger than"):
        lstopo.read_lstopo_file(large)
