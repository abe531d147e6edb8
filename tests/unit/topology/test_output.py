# SPDX-License-Identifier: Apache-2.0
"""The tree, the JSON document, and the command."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from nova_hpc.topology import sysfs
from nova_hpc.topology.model import HugePages, Node, PcieLink
from nova_hpc_tools.inventory import standing, text
from nova_hpc_tools.inventory.command import Inventory
from nova_hpc_tools.site import lstopo
from nova_hpc_tools.wire import inventory
from tests.unit.topology.builder import Machine

TREE = """\
virtual1
├─ NUMA node 0 · socket 0 · CPUs 0-1 (1 core) · 1006 MiB
│  └─ pci0000:20
│     └─ 0000:20:00.0 Root port 1b36:000c · 2.5 GT/s x1
│        └─ 0000:21:00.0 Switch 104c:8232 · 2.5 GT/s x1
│           ├─ 0000:23:00.0 Display 1234:1111 · 2.5 GT/s x1 · vfio-pci · group 11
│           └─ 0000:24:00.0 Ethernet 8086:10c9 · 2.5 GT/s x1 · igb · group 12* · \
VF x2 vfio-pci* · eth1
├─ NUMA node 1 · socket 1 · CPUs 2 (1 core) · 967.8 MiB · 24 pages of 2 MiB, 24 free
│  └─ pci0000:80
│     ├─ 0000:80:00.0 Root port 1b36:000c · 2.5 GT/s x1
│     │  └─ 0000:81:00.0 Display 1234:1111 · 2.5 GT/s x1 · vfio-pci · group 7
│     └─ 0000:80:01.0 Root port 1b36:000c · 2.5 GT/s x1
│        └─ 0000:82:00.0 Ethernet 8086:10c9 · 2.5 GT/s x1 · igb · group 8 · VF x2 vfio-pci · eth0
└─ near to no single NUMA node
   └─ pci0000:00 · 5 chipset functions
      └─ 0000:00:1f.2 SATA 8086:2922 · group 3*

*  IOMMU group shared with other devices: one guest gets all of it, or no guest
"""
#: What the command draws below it.
PAIRS = """
Peer-to-peer of GPUs and adapters below one switch
  0000:23:00.0 with 0000:24:00.0 and 2 virtual functions: below the switch (ACS redirects nothing)
"""


def run(*args: str | Path, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    """Run the command as a program."""
    script = (
        "import sys\n"
        "from nova_hpc_tools.inventory.command import Inventory\n"
        "command = Inventory(None, None)\n"
        "args = command.get_parser('nova-hpc inventory').parse_args(sys.argv[1:])\n"
        "sys.exit(command.run(args))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        encoding=encoding,
        check=False,
    )


def test_the_tree_of_a_real_node(virtual_node: Path) -> None:
    assert "\n".join(text.draw_node_lines(sysfs.read_sysfs_node(virtual_node))) + "\n" == TREE


def test_everything_is_drawn_on_demand(virtual_node: Path) -> None:
    node = sysfs.read_sysfs_node(virtual_node)
    drawn = "\n".join(text.draw_node_lines(node, everything=True))
    for function in node.functions:
        assert f"─ {function.address} " in drawn
    assert "chipset" not in drawn


def test_plain_trees_are_ascii(virtual_node: Path) -> None:
    drawn = "\n".join(text.draw_node_lines(sysfs.read_sysfs_node(virtual_node), plain=True))
    assert drawn.isascii()
    assert "|     `- 0000:20:00.0 Root port 1b36:000c, 2.5 GT/s x1" in drawn


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        (PcieLink(16.0, 8, 16.0, 16), "16 GT/s x8 of 16 GT/s x16!"),
        (PcieLink(2.5, 16, 16.0, 16), "2.5 GT/s x16 of 16 GT/s x16~"),
        (PcieLink(16.0, 16, 16.0, 16), "16 GT/s x16 ·"),
        (PcieLink(None, 4, None, 4), "· x4 ·"),
        (PcieLink(8.0, None, 8.0, 16), "8 GT/s x? ·"),
        (PcieLink(bandwidth=15.753846), "15.8 GB/s ·"),
    ],
)
def test_links_in_the_tree(virtual_node: Path, link: PcieLink, shown: str) -> None:
    node = sysfs.read_sysfs_node(virtual_node)
    functions = [
        attrs.evolve(f, link=link) if f.address == "0000:23:00.0" else f for f in node.functions
    ]
    drawn = list(text.draw_node_lines(attrs.evolve(node, functions=tuple(functions))))
    (line,) = [line for line in drawn if "0000:23:00.0" in line]
    assert shown in line
    for mark in "!~":
        assert any(entry.startswith(mark) for entry in drawn) == (mark in shown)


def test_what_is_unknown_is_shown(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    folder = machine.function("pci0000:17/0000:17:00.0", node=1)
    (folder / "vendor").write_bytes(b"\xff")
    (tmp_path / "sys/devices/system/node/node0/meminfo").unlink()
    (tmp_path / "sys/devices/system/node/node0/meminfo").mkdir()
    drawn = "\n".join(text.draw_node_lines(sysfs.read_sysfs_node(tmp_path)))
    assert "????:2330 · UNKNOWN: vendor: not text; vendor: not known" in drawn
    assert "problem: /sys/devices/system/node/node0/meminfo: not a file" in drawn


def test_a_device_at_another_node_than_its_root_says_so(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.function("pci0000:17/0000:17:00.0", node=0)
    machine.function("pci0000:17/0000:17:01.0", node=1)
    drawn = list(text.draw_node_lines(sysfs.read_sysfs_node(tmp_path)))
    assert [line.endswith("near to NUMA node 1") for line in drawn if "0000:17:0" in line] == [
        False,
        True,
    ]


def test_memory_of_a_synthetic_gpu(synthetic: Callable[[str], Path]) -> None:
    drawn = "\n".join(text.draw_node_lines(sysfs.read_sysfs_node(synthetic("gh200"))))
    assert "NUMA node 2 · memory of 0009:01:00.0 · 96 GiB" in drawn
    assert "NUMA node 3 · no CPUs · 0 KiB" in drawn


def test_memory_of_a_gpu(captures: Path, unpack: object) -> None:
    folder = unpack(captures / "hwloc/nvidiagpunumanodes.tar.bz2")  # type: ignore[operator]
    drawn = "\n".join(text.draw_node_lines(sysfs.read_sysfs_node(folder)))
    assert "NUMA node 255 · memory of 0004:05:00.0 · 15 GiB" in drawn


def test_many_problems_are_cut_short(virtual_node: Path) -> None:
    node = attrs.evolve(sysfs.read_sysfs_node(virtual_node), problems=tuple(map(str, range(50))))
    drawn = list(text.draw_node_lines(node))
    assert drawn[-1] == "problem: and 30 more; the JSON has them all"


def test_the_document_has_everything(virtual_node: Path) -> None:
    node = sysfs.read_sysfs_node(virtual_node)
    found = json.loads(inventory.write_inventory(node))
    assert (found["schema"], found["version"]) == ("nova-hpc/inventory", 1)
    assert [f["address"] for f in found["functions"]] == [f.address for f in node.functions]
    vf = next(f for f in found["functions"] if f["address"] == "0000:82:10.0")
    assert vf["physical_function"] == "0000:82:00.0"
    assert vf["dev_type"] == "type-VF"
    assert vf["path"] == ["0000:80:01.0"]
    assert vf["local_numa_nodes"] == [1]
    assert vf["bridge"] is None
    port = next(f for f in found["functions"] if f["address"] == "0000:80:01.0")
    assert port["bridge"] == "root-port"
    assert found["numa_nodes"][1]["hugepages"][0] == attrs.asdict(HugePages(2048, 24, 24))
    assert found["numa_nodes"][0]["smt_siblings"] == ["0-1"]
    assert {"id": 13, "members": ["0000:82:10.0"]} in found["iommu_groups"]


def keys(value: object) -> set[str]:
    """Every key of a document, at any depth."""
    if isinstance(value, list):
        return set().union(*map(keys, value))
    if isinstance(value, dict):
        return set(value) | keys(list(value.values()))
    return set()


def test_the_document_is_described() -> None:
    """The guide names every key that is written, and no other."""
    guide = Path(__file__).parents[3] / "docs/source/contributor/inventory-schema.rst"
    described = set(re.findall(r"^   \* - ``(\w+)``$", guide.read_text(), re.MULTILINE))
    written: set[str] = set()
    for kind in (Node, *attrs_of("PciFunction", "NumaNode", "HugePages", "PcieLink", "Bar",
                                 "RdmaDevice", "RdmaPort", "IommuGroup")):  # fmt: skip
        written |= {field.name for field in attrs.fields(kind) if not field.name.startswith("_")}
    written -= {"inactive", "silent"}  # what is silent is unknown
    written |= {"schema", "version", "inactive_bridges", "dev_type", "degraded"}
    written |= {"peer_to_peer", "peer_pairs", "gpu", "adapter", "why"}
    written |= {"peer_wish", "as_wished", "lacks"}
    assert described == written


def attrs_of(*names: str) -> list[type]:
    from nova_hpc.topology import model

    return [getattr(model, name) for name in names]


def test_documents_of_captures_have_only_described_keys(capture: Path) -> None:
    guide = Path(__file__).parents[3] / "docs/source/contributor/inventory-schema.rst"
    described = set(re.findall(r"^   \* - ``(\w+)``$", guide.read_text(), re.MULTILINE))
    assert keys(inventory.build_inventory(sysfs.read_sysfs_node(capture))) <= described


def test_the_command_draws(virtual_node: Path) -> None:
    done = run("--root", virtual_node)
    assert (done.returncode, done.stdout, done.stderr) == (0, TREE + PAIRS, "")
    plain = run("--root", virtual_node, encoding="ascii")
    assert plain.returncode == 0
    assert "`- 0000:24:00.0 Ethernet" in plain.stdout


def test_colours_on_a_terminal_only(virtual_node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    command = Inventory(None, None)
    args = command.get_parser("x").parse_args(["--root", str(virtual_node)])
    with os.fdopen(slave, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert command.run(args) == 0
    data = b""
    # The terminal hands out what was written in pieces, and fails at the end.
    with contextlib.suppress(OSError):
        while piece := os.read(master, 1 << 16):
            data += piece
    os.close(master)
    shown = data.decode()
    assert "\x1b[" in shown
    bare = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r\n", "\n")
    assert bare == TREE + PAIRS


def test_the_command_writes_json(virtual_node: Path) -> None:
    done = run("--root", virtual_node, "--format", "json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["hostname"] == "virtual1"


def test_the_command_reads_xml(captures: Path) -> None:
    path = captures / "hwloc/nvidiaDGX2.xml"
    done = run("--xml", path, "--format", "json")
    node = lstopo.read_lstopo_file(path)
    judged = standing.judge_functions(node, standing.make_default_settings(node))
    servers = {
        address: inventory.ServersPart(each.role, each.offer.value, each.reason)
        for address, each in judged.items()
    }
    assert json.loads(done.stdout) == inventory.build_inventory(node, servers=servers)


def test_the_command_writes_device_specs(virtual_node: Path, tmp_path: Path) -> None:
    config = tmp_path / "nova.conf"
    config.write_text(
        "[hpc]\n"
        'device_role = {"role": "gpu", "vendor_id": "1234", "product_id": "1111"}\n'
        'device_role = {"role": "vf", "vendor_id": "8086", "product_id": "10ca"}\n'
    )
    done = run("--root", virtual_node, "--show", "device-spec", "--config-file", config)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    specs = [json.loads(line.removeprefix("device_spec = ")) for line in lines]
    assert {spec["hpc_role"] for spec in specs} == {"gpu", "vf"}
    assert {spec["hpc_numa"] for spec in specs} == {"0", "1"}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--root", "/no/such/place"), "--root /no/such/place: no such directory"),
        (("--root", "{tmp}"), "neither CPUs nor PCI functions"),
        (("--root", "{tmp}/file.xml"), "no such directory"),
        (("--xml", "/no/such.xml"), "/no/such.xml: no such file"),
        (("--xml", "{tmp}"), "no such file"),
        (("--xml", "{tmp}/file.xml"), "file.xml: not well-formed XML"),
        (("--root", "{node}", "--show", "device-spec", "--config-file", "{tmp}/no.conf"),
         "device_role cannot be used"),
        (("--root", "{node}", "--show", "device-spec", "--config-file", "{tmp}/bad.conf"),
         "device_role cannot be used"),
        (("--root", "{node}", "--format", "xml"), "invalid choice: 'xml'"),
        (("--root", "{node}", "--xml", "x"), "not allowed with argument"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_status_2(
    virtual_node: Path, tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    (tmp_path / "file.xml").write_bytes(b"<topology><object\xff")
    (tmp_path / "bad.conf").write_text("[hpc]\ndevice_role = {not json\n")
    given = [arg.format(tmp=tmp_path, node=virtual_node) for arg in args]
    done = run(*given)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("nova-hpc inventory:")
    assert words in last


def test_a_root_whose_name_is_no_text(virtual_node: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe")
    Path(odd).mkdir()
    Path(odd, "sys").symlink_to(virtual_node / "sys")
    Machine(Path(odd, "machine"))
    for options in ((), ("--format", "json")):
        done = run("--root", odd + "/machine", *options)
        assert (done.returncode, done.stderr) == (0, "")
        assert "xff" in done.stdout


def test_a_reader_that_goes_away_is_no_success(virtual_node: Path) -> None:
    script = (
        f"{sys.executable} -c 'import sys\n"
        "from nova_hpc_tools.inventory.command import Inventory\n"
        "command = Inventory(None, None)\n"
        f'args = command.get_parser("x").parse_args(["--root", "{virtual_node}", "--all"])\n'
        "sys.exit(command.run(args))' | true; exit ${PIPESTATUS[0]}"
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr


def test_this_machine_can_be_read() -> None:
    """Whatever it is: no error, and the CPUs that Python sees are there."""
    node = sysfs.read_sysfs_node(Path("/"))
    assert node.cpus >= os.sched_getaffinity(0)
    assert run().returncode == 0
