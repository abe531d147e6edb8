"""What the host writes, the guest reads: on random hosts and by hand."""

from __future__ import annotations

import ast
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from nova_hpc.guest import build, command, compare, document, install
from nova_hpc.topology.guest import Abi, Device, Mode, plan
from nova_hpc.topology.level import distance
from nova_hpc.topology.promise import Cell
from tests.unit.guest.worlds import Guest, boot, domain_of, hosts
from tests.unit.topology import nccl_reader
from virt_driver_patches import fwcfg, mirror

CELLS = (Cell(8, 1 << 24, 1048576, 1), Cell(8, 1 << 24, 1048576, 0))
#: The host's node 0 is the guest's cell 1: numbers must not be mixed up.
HOME = {1: 0, 0: 1}
MEMORY = [(8, (1 << 24) - 500000)] * 2


@st.composite
def servers(draw):
    """A host, some of its devices in some order, and the seed of what follows."""
    node = draw(hosts())
    addresses = [function.address for function in node.functions]
    chosen = draw(st.lists(st.sampled_from(addresses), min_size=1, max_size=8, unique=True))
    return node, chosen, draw(st.integers(0, 1 << 30))


def start(folder: str, node, chosen, topology="mirror", roles=None) -> Guest:
    """Build the domain, tell the guest, and start it."""
    xml = domain_of(node, chosen, HOME, topology == "mirror")
    xml = fwcfg.tell(xml, node, topology, CELLS, roles or {})
    return boot(Path(folder), xml, node, MEMORY)


def run(guest: Guest, *arguments: str) -> tuple[int, str, str]:
    """The command on the guest, in this process."""
    import contextlib
    import io

    out, err = io.StringIO(), io.StringIO()
    name, *rest = arguments
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = command.main([name, "--root", str(guest.root), *rest])
    return status, out.getvalue(), err.getvalue()


@given(servers())
def test_a_mirrored_guest_is_as_promised(server):
    node, chosen, _ = server
    with tempfile.TemporaryDirectory() as folder:
        guest = start(folder, node, chosen)
        status, out, err = run(guest, "check")
        assert (status, err) == (0, "")
        assert out.endswith(f"As promised: {len(chosen)} devices, 2 NUMA nodes, topology mirror.\n")
        shown = json.loads(run(guest, "show", "--format", "json")[1])
        for one, other in itertools.permutations(range(len(chosen)), 2):
            places = [node.function(chosen[each]).location for each in (one, other)]
            assert shown["devices"][one]["distances"][other] == distance(*places).name
        for number, address in enumerate(chosen):
            assert shown["devices"][number]["address"] == guest.folders[address].name


@given(servers(), st.sampled_from(list(Mode)))
def test_the_trees_of_the_driver_are_as_promised(server, mode):
    """What the transform of the domain makes is what the guest is told."""
    node, chosen, _ = server
    devices = [Device(each, node.function(each).location) for each in chosen]
    abi = Abi(mode)
    xml = domain_of(node, chosen, HOME, False)
    xml = mirror.apply(xml, plan(devices, HOME, abi), abi)
    xml = fwcfg.tell(xml, node, mode.value, CELLS, {})
    laid_down = [path is not None for _, path in fwcfg.guest_paths(etree.fromstring(xml))]
    assert laid_down == [mode is not Mode.FLAT] * len(chosen)
    with tempfile.TemporaryDirectory() as folder:
        guest = boot(Path(folder), xml, node, MEMORY)
        assert run(guest, "check") == (
            0,
            f"As promised: {len(chosen)} devices, 2 NUMA nodes, topology {mode.value}.\n",
            "",
        )


def remove(guest, victim, dice):
    (guest.root / "sys/bus/pci/devices" / victim.name).unlink()
    return "device"


def unbind(guest, victim, dice):
    (victim / "driver").unlink()
    return "driver"


def rebind(guest, victim, dice):
    (victim / "driver").unlink()
    (victim / "driver").symlink_to("../../../bus/pci/drivers/pci-stub")
    return "driver"


def move_home(guest, victim, dice):
    wrong = dice.choice([-1, 1 - int((victim / "numa_node").read_text())])
    (victim / "numa_node").write_text(f"{wrong}\n")
    return "numa"


def swap_ids(guest, victim, dice):
    (victim / "device").write_text("0x0bad\n")
    return "device"


@given(servers(), st.sampled_from([remove, unbind, rebind, move_home, swap_ids]))
def test_what_is_not_as_promised_is_named(server, break_it):
    node, chosen, seed = server
    dice = random.Random(seed)
    victim = dice.randrange(len(chosen))
    with tempfile.TemporaryDirectory() as folder:
        guest = start(folder, node, chosen, roles={chosen[victim]: "broken-one"})
        kind = break_it(guest, guest.folders[chosen[victim]], dice)
        drivers = ("--driver", "10de:2330=nvidia", "--driver", "1002:74a1=nvidia")
        drivers += ("--driver", "15b3:101e=mlx5_core", "--driver", "broken-one=nvidia")
        if node.function(chosen[victim]).class_code == "020700":
            drivers += ("--driver", "broken-one=mlx5_core")
        status, out, _ = run(guest, "check", "--quiet", *drivers)
        assert status == 1
        # A device on another NUMA node is also farther from its neighbours.
        named = [line for line in out.splitlines() if line.startswith(f"WRONG {kind}: ")]
        assert len(named) == 1
        assert named[0].startswith(f"WRONG {kind}: device {victim} (broken-one ")
        found = json.loads(run(guest, "check", "--format", "json", *drivers)[1])
        assert not found["good"]
        assert victim in {each["device"] for each in found["findings"] if each["wrong"]}


@given(servers(), st.booleans())
def test_a_flat_guest_is_known_by_the_order(server, missing):
    node, chosen, seed = server
    with tempfile.TemporaryDirectory() as folder:
        guest = start(folder, node, chosen, "flat")
        assert run(guest, "check")[0] == 0
        shown = json.loads(run(guest, "show", "--format", "json")[1])
        for number, address in enumerate(chosen):
            assert shown["devices"][number]["address"] == guest.folders[address].name
            assert shown["devices"][number]["numa_node"] == -1
        if missing:
            victim = random.Random(seed).randrange(len(chosen))
            remove(guest, guest.folders[chosen[victim]], None)
            status, out, _ = run(guest, "check", "--quiet")
            assert status == 1
            assert f"device {victim} (" in out


@given(servers(), st.sampled_from(["mirror", "flat"]))
def test_nccl_gets_the_hosts_distances_and_the_guests_addresses(server, topology):
    node, chosen, _ = server
    with tempfile.TemporaryDirectory() as folder:
        guest = start(folder, node, chosen, topology)
        assert run(guest, "install")[0] == 0
        seen = nccl_reader.devices(
            nccl_reader.read((guest.root / "run/nova-hpc/nccl-topology.xml").read_text())
        )
        names = {address: guest.folders[address].name for address in chosen}
        assert seen.keys() == set(names.values())
        for one, other in itertools.combinations(chosen, 2):
            real = distance(node.function(one).location, node.function(other).location).name
            kind = nccl_reader.path_type(seen[names[one]], seen[names[other]])
            assert kind == ("PHB" if real == "NODE" else real)
        for address in chosen:
            cell = HOME[node.function(address).numa_node]
            above = seen[names[address]]
            while above.name != "cpu":
                above = above.above
            assert above.values["numaid"] == str(cell)


@given(servers(), st.sampled_from(["mirror", "flat"]))
def test_nothing_of_the_host_is_told(server, topology):
    node, chosen, _ = server
    xml = domain_of(node, chosen, HOME, topology == "mirror")
    domain = etree.fromstring(fwcfg.tell(xml, node, topology, CELLS, {}))
    entries = {entry.get("name"): entry.text for entry in domain.iterfind("sysinfo/entry")}
    assert set(entries) == {document.DOCUMENT, document.NCCL}
    for text in entries.values():
        assert "secret" not in text
        for function in node.functions:
            assert function.address not in text
            assert all(bridge not in text for bridge in function.path)
            assert function.root not in text


# -- by hand -------------------------------------------------------------------


@pytest.fixture
def guest(tmp_path):
    """Two GPUs below one switch on cell 0, an adapter on cell 1."""
    from nova_hpc.topology.model import Function, Link, Node, NumaNode
    from tests.unit.guest.worlds import ADAPTER, GPU

    below = {
        "root": "pci0000:17",
        "path": ("0000:17:00.0", "0000:18:00.0", "0000:19:00.0"),
        "switches": ("0000:18:00.0",),
        "numa_node": 1,
        "link": Link(max_speed=32.0, max_width=16),
    }
    node = Node(
        "x",
        hostname="secret-host",
        numa_nodes=(NumaNode(0), NumaNode(1)),
        functions=(
            Function("0000:1a:00.0", **GPU, **below),
            Function("0000:1b:00.0", **GPU, **below),
            Function("0000:98:00.0", **ADAPTER, numa_node=0, root="pci0000:97"),
        ),
    )
    chosen = ["0000:1a:00.0", "0000:1b:00.0", "0000:98:00.0"]
    roles = {"0000:1a:00.0": "gpu", "0000:1b:00.0": "gpu", "0000:98:00.0": "vf"}
    from attrs import evolve

    first, second, adapter = node.functions
    second = evolve(second, path=("0000:17:00.0", "0000:18:00.0", "0000:19:01.0"))
    adapter = evolve(adapter, path=("0000:97:00.0",), switches=("0000:97:00.0",))
    node = evolve(node, functions=(first, second, adapter))
    return start(str(tmp_path), node, chosen, roles=roles)


def test_show(guest):
    status, out, err = run(guest, "show")
    assert (status, err) == (0, "")
    assert (
        out
        == """\
topology mirror, 3 devices
NUMA node 0: 8 CPUs, 16 GiB, pages of 1 GiB
  root 0
    switch 0
      device 0 (gpu 10de:2330): 0000:23:00.0 nvidia
      device 1 (gpu 10de:2330): 0000:24:00.0 nvidia
NUMA node 1: 8 CPUs, 16 GiB, pages of 1 GiB
  root 1
    device 2 (vf 15b3:101e): 0000:31:00.0 mlx5_core

        0    1    2
   0    -  PIX  SYS
   1  PIX    -  SYS
   2  SYS  SYS    -
"""
    )


def gpu_of(guest: Guest) -> Path:
    return guest.folders["0000:1a:00.0"]


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        (
            "current_link_width",
            "8",
            "WRONG link: device 0 (gpu 10de:2330): the link has 8 lanes of 16",
        ),
        (
            "max_link_speed",
            "16.0 GT/s PCIe",
            "WRONG link: device 0 (gpu 10de:2330): the link makes 16 GT/s at most, not 32",
        ),
        (
            "numa_node",
            "rubbish",
            "WRONG numa: device 0 (gpu 10de:2330): NUMA node not known instead of 0",
        ),
    ],
)
def test_links_and_nodes(guest, path, text, line):
    (gpu_of(guest) / path).write_text(text)
    status, out, _ = run(guest, "check")
    assert status == 1
    assert line in out.splitlines()


def test_an_idle_device_is_no_fault(guest):
    (gpu_of(guest) / "current_link_speed").write_text("2.5 GT/s PCIe\n")
    status, out, _ = run(guest, "check")
    assert status == 0
    assert out.startswith("note link: device 0 (gpu 10de:2330): the link makes 2.5 of 32 GT/s now")
    assert run(guest, "check", "--quiet") == (0, "", "")


def test_another_tree(guest):
    """The device moved to a port of its own: the same ids, another place."""
    text = guest.root / f"sys/firmware/qemu_fw_cfg/by_name/{document.DOCUMENT}/raw"
    found = json.loads(text.read_text())
    found["devices"][0]["switches"] = [7]
    text.write_text(json.dumps(found))
    status, out, _ = run(guest, "check", "--quiet")
    assert status == 1
    assert out == (
        "WRONG tree: device 0 (gpu 10de:2330): PIX to device 1 (gpu 10de:2330) instead of PHB\n"
    )
    assert run(guest, "check", "--skip", "tree")[0] == 0


def test_nodes_and_pages(guest):
    node = guest.root / "sys/devices/system/node/node1"
    (node / "cpulist").write_text("8-11\n")
    (node / "meminfo").write_text("Node 1 MemTotal: 4000000 kB\n")
    (guest.root / "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages").unlink()
    (guest.root / "sys/kernel/mm/hugepages/hugepages-1048576kB").rmdir()
    status, out, _ = run(guest, "check", "--quiet", "--hugepages", "2M=5")
    assert status == 1
    assert out.splitlines() == [
        "WRONG cells: NUMA node 1 has 4 CPUs instead of 8",
        "WRONG cells: NUMA node 1 has 3906 MiB of 16384",
        "WRONG hugepages: the memory lies in the host's pages of 1048576 KiB, and this kernel "
        "offers no pages of that size",
        "WRONG hugepages: 4 pages of 2048 KiB in the pool, 5 asked for",
    ]
    assert run(guest, "check", "--skip", "cells,hugepages")[0] == 0
    (node / "cpulist").unlink()
    assert "1 NUMA nodes with CPUs instead of 2" in run(guest, "check")[1]


def test_install_and_what_it_leaves(guest):
    (guest.root / "etc").mkdir()
    (guest.root / "etc/nccl.conf").write_text("NCCL_DEBUG=WARN")
    status, out, _ = run(guest, "install", "--profile")
    assert status == 0
    assert "added NCCL_TOPO_FILE to /etc/nccl.conf" in out
    assert (guest.root / "etc/nccl.conf").read_text() == (
        "NCCL_DEBUG=WARN\nNCCL_TOPO_FILE=/run/nova-hpc/nccl-topology.xml\n"
    )
    environment = guest.root / "run/nova-hpc/environment"
    assert environment.read_text() == "NCCL_TOPO_FILE=/run/nova-hpc/nccl-topology.xml\n"
    profile = guest.root / "etc/profile.d/nova-hpc.sh"
    subprocess.run(["sh", "-n", profile], check=True)
    # A second time nothing changes, and nothing is said.
    assert run(guest, "install", "--profile") == (0, "", "")
    # Those who are not root have a copy.
    fw_cfg = guest.root / "sys/firmware/qemu_fw_cfg"
    fw_cfg.rename(guest.root / "elsewhere")
    assert run(guest, "check")[0] == 0
    # Booted without a document: the old topology must not stay.
    (guest.root / "run/nova-hpc/guest.json").unlink()
    assert run(guest, "install", "--if-present") == (0, "", "")
    assert list((guest.root / "run/nova-hpc").iterdir()) == []


def test_install_leaves_the_choice_of_others(guest):
    (guest.root / "etc").mkdir()
    (guest.root / "etc/nccl.conf").write_text("NCCL_TOPO_FILE=/opt/mine.xml\n")
    status, out, _ = run(guest, "install")
    assert status == 0
    assert "/etc/nccl.conf names another NCCL_TOPO_FILE already" in out
    assert (guest.root / "etc/nccl.conf").read_text() == "NCCL_TOPO_FILE=/opt/mine.xml\n"


def test_install_does_not_follow_a_link(guest, tmp_path):
    (guest.root / "etc").mkdir()
    other = tmp_path / "other"
    other.write_text("mine\n")
    (guest.root / "etc/nccl.conf").symlink_to(other)
    status, _, err = run(guest, "install")
    assert status == 2
    assert err == ("nova-hpc-guest: /etc/nccl.conf: a symbolic link; it is not overwritten\n")
    assert other.read_text() == "mine\n"


def test_a_device_that_is_not_there_is_not_in_the_topology(guest):
    remove(guest, gpu_of(guest), None)
    status, out, _ = run(guest, "install")
    assert status == 0
    assert "device 0 is not in /run/nova-hpc/nccl-topology.xml" in out
    text = (guest.root / "run/nova-hpc/nccl-topology.xml").read_text()
    assert nccl_reader.devices(nccl_reader.read(text)).keys() == {"0000:24:00.0", "0000:31:00.0"}


# -- broken guests ---------------------------------------------------------------


def fw_cfg_of(guest: Guest) -> Path:
    return guest.root / f"sys/firmware/qemu_fw_cfg/by_name/{document.DOCUMENT}/raw"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("[" * 100000, "is not JSON"),
        ("[]", "is not a document of schema"),
        ('{"schema": "nova-hpc/guest", "version": 2}', "has version 2"),
        ('{"schema": "nova-hpc/guest", "version": 1}', "topology is None"),
        (
            '{"schema":"nova-hpc/guest","version":1,"topology":"flat","cells":3,"devices":[]}',
            "cells is no list",
        ),
        (
            '{"schema":"nova-hpc/guest","version":1,"topology":"flat","cells":[],"devices":[1]}',
            "no object",
        ),
    ],
)
def test_a_document_that_makes_no_sense(guest, text, words):
    fw_cfg_of(guest).write_text(text)
    for name in ("show", "check", "install"):
        status, out, err = run(guest, name)
        assert (status, out) == (2, "")
        assert err.startswith("nova-hpc-guest: ")
        assert err.count("\n") == 1
        assert words in err


def test_no_document(guest):
    fw_cfg_of(guest).unlink()
    status, out, err = run(guest, "check")
    assert (status, out) == (2, "")
    assert "was given no opt/org.nova-hpc/guest.json" in err
    assert run(guest, "install")[0] == 2
    assert run(guest, "install", "--if-present") == (0, "", "")


def test_bad_options(guest):
    for arguments in (
        ["check", "--driver", "gpu"],
        ["check", "--hugepages", "1T=1"],
        ["check", "--skip", "device"],
        ["show", "--root", "/no/such/place"],
        [],
    ):
        with pytest.raises(SystemExit) as stop:
            command.main(arguments)
        assert stop.value.code == 2


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(servers(), st.data())
def test_any_change_of_a_document_is_read_or_refused(server, data):
    node, chosen, _ = server
    xml = fwcfg.tell(domain_of(node, chosen, HOME, True), node, "mirror", CELLS, {})
    domain = etree.fromstring(xml)
    (entry,) = (each for each in domain.iterfind("sysinfo/entry") if "json" in each.get("name"))
    found = json.loads(entry.text)
    part = data.draw(st.sampled_from([found, *found["devices"], *found["cells"]]))
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(VALUES)
    try:
        parsed = document.parse(json.dumps(found).encode())
    except document.DocumentError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        compare.compare(parsed, compare.Machine((), (), {}))


@given(servers(), st.data())
def test_a_broken_sysfs_is_answered(server, data):
    node, chosen, _ = server
    with tempfile.TemporaryDirectory() as folder:
        guest = start(folder, node, chosen)
        files = sorted(path for path in (guest.root / "sys").rglob("*") if not path.is_dir())
        for _ in range(data.draw(st.integers(1, 4))):
            victim = data.draw(st.sampled_from(files))
            if not victim.is_symlink() and not victim.is_file():
                continue  # it was the victim before
            victim.unlink()
            kind = data.draw(st.sampled_from(["gone", "bytes", "pipe", "folder", "loop"]))
            if kind == "bytes":
                victim.write_bytes(data.draw(st.binary(max_size=20)))
            elif kind == "pipe":
                os.mkfifo(victim)
            elif kind == "folder":
                victim.mkdir()
            elif kind == "loop":
                victim.symlink_to(victim)
        for arguments in (["show"], ["check", "--format", "json"], ["install"]):
            status, _, err = run(guest, *arguments)
            assert status in (0, 1, 2)
            assert "Traceback" not in err
            assert "this machine cannot be read" not in err  # the last resort


# -- packed ----------------------------------------------------------------------


def test_the_single_file_needs_nothing_but_python(guest, tmp_path):
    target = tmp_path / "nova-hpc-guest"
    assert build.main([str(target)]) == 0
    assert target.read_bytes() == build.single_file()
    for arguments, status in ((["check"], 0), (["show"], 0), (["install"], 0)):
        done = subprocess.run(
            # No site-packages, no environment, nothing of this checkout.
            [sys.executable, "-I", "-S", target, *arguments, "--root", guest.root],
            capture_output=True,
            text=True,
            cwd="/",
            env={},
        )
        assert (done.returncode, done.stderr) == (status, "")
    executed = subprocess.run([target, "check", "--root", guest.root, "--quiet"], cwd="/")
    assert executed.returncode == 0
    # Neither a document nor the copy that install made.
    fw_cfg_of(guest).unlink()
    (guest.root / "run/nova-hpc/guest.json").unlink()
    assert subprocess.run([target, "check", "--root", guest.root], cwd="/").returncode == 2


def test_it_is_for_old_pythons():
    for module in Path(build.__file__).parent.glob("*.py"):
        ast.parse(module.read_text(), feature_version=(3, 8))
        assert "removeprefix" not in module.read_text()
        assert "removesuffix" not in module.read_text()
    assert {f"{name}.py" for name in build._MODULES} == {
        module.name for module in Path(build.__file__).parent.glob("*.py")
    } - {"build.py"}


def test_the_user_data(tmp_path):
    import base64
    import gzip

    target = tmp_path / "user-data"
    assert build.main([str(target), "--cloud-config"]) == 0
    text = target.read_text()
    assert text.startswith("#cloud-config\n")
    found = yaml.safe_load(text)
    files = {
        each["path"]: gzip.decompress(base64.b64decode(each["content"]))
        for each in found["write_files"]
    }
    assert files[build.COMMAND] == build.single_file()
    assert f"ExecStart={build.COMMAND} install".encode() in files[build.UNIT]
    assert len(base64.b64encode(text.encode())) < 65536  # Nova's limit
    assert zipfile.is_zipfile(__import__("io").BytesIO(files[build.COMMAND]))
    # Twice the same: a user's data must not change by itself.
    assert build.cloud_config() == text


def test_the_file_cannot_be_written(tmp_path, capsys):
    assert build.main([str(tmp_path / "no" / "where")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_fill_leaves_what_is_no_placeholder():
    text = '<pci busid="ffff:ff:01.0">\n  <pci busid="device-1" class="0x03"/>\n</pci>\n'
    assert install.fill(text, {}) == ('<pci busid="ffff:ff:01.0">\n</pci>\n', [1])


# -- the user guide ----------------------------------------------------------------

GUIDE = Path(build.__file__).parents[2] / "docs/source/user/guest.rst"


def block(after: str) -> str:
    """The literal block that follows a line of the guide, without its indentation."""
    lines = GUIDE.read_text().partition(after)[2].splitlines()
    start = next(
        index
        for index, line in enumerate(lines)
        if line.startswith("   ") and not lines[index - 1].startswith("..")
    )
    found = itertools.takewhile(lambda line: not line or line.startswith("   "), lines[start:])
    return "\n".join(line[3:] for line in found).strip("\n") + "\n"


def test_the_guide_shows_what_the_command_prints(guest):
    assert block("in the words of NCCL and ``nvidia-smi topo``::") == run(guest, "show")[1]


def test_the_script_of_the_guide_names_the_nearest_adapter(guest, tmp_path):
    folder = guest.folders["0000:98:00.0"]
    (folder / "infiniband/mlx5_3").mkdir(parents=True)
    (folder / "net/ib0").mkdir(parents=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "real").write_bytes(build.single_file())
    (tools / "nova-hpc-guest").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{tools}/real" "$@" --root "{guest.root}"\n'
    )
    (tools / "nova-hpc-guest").chmod(0o755)
    done = subprocess.run(
        [
            "sh",
            "-euc",
            block("distances and the names of the adapters.") + 'echo "$UCX_NET_DEVICES"',
        ],
        env={"PATH": f"{tools}:{os.environ['PATH']}", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("mlx5_3:1\n", "")
