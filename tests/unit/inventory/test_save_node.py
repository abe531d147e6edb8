# SPDX-License-Identifier: Apache-2.0
"""A node saved for a report reads as the node does, and names neither it nor its hardware."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nova_hpc.topology import sysfs
from nova_hpc.topology.files import FileTree
from nova_hpc.topology.model import Node
from nova_hpc_tools.inventory import nccl_node, node_archive
from nova_hpc_tools.inventory.record import RecordingTree, ReplayTree
from nova_hpc_tools.main import main
from nova_hpc_tools.wire import inventory
from tests.nodes.catalogue import NODES
from tests.nodes.describe import Endpoint, Machine, Numa, Processor, Rdma, Root, every
from tests.nodes.parts import adapter, gpu, port
from tests.nodes.write import write
from tests.unit.inventory.saved_nodes import read, save
from tests.unit.topology import damage

GUID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}")
MAC = re.compile(r"(?<=x)[0-9a-f]{12}(?![0-9a-f])")
OWN = Path(__file__).parents[2] / "data/topology/virtual-node.tar.xz"


def same_but_names(live: Node, saved: Node, keep_names: bool = False) -> dict[str, str]:
    """Hold two nodes against each other.

    :returns: every GUID and MAC of the first with that of the second, one to one.
    """
    names: dict[str, str] = {}

    def compare(one: object, other: object, where: str) -> None:
        assert type(one) is type(other), where
        if isinstance(one, dict):
            assert isinstance(other, dict)
            assert one.keys() == other.keys(), where
            for key in one:
                compare(one[key], other[key], f"{where}/{key}")
        elif isinstance(one, list):
            assert isinstance(other, list)
            assert len(one) == len(other), where
            for number, pair in enumerate(zip(one, other, strict=True)):
                compare(*pair, f"{where}/{number}")
        elif isinstance(one, str):
            assert isinstance(other, str)
            for pattern in (GUID, MAC):
                for mine, theirs in zip(pattern.findall(one), pattern.findall(other), strict=True):
                    assert names.setdefault(mine, theirs) == theirs
                one, other = pattern.sub("*", one), pattern.sub("*", other)
            assert one == other, where
        else:
            assert one == other, where

    found = [inventory.build_inventory(node) for node in (live, saved)]
    for document in found:
        document.pop("source")
    if not keep_names and found[0]["hostname"] is not None:
        assert found[1]["hostname"] == "node"
        found[0]["hostname"] = "node"
    compare(*found, "")
    assert len(set(names.values())) == len(names)
    return names


def notations(raw: bytes) -> set[bytes]:
    """Every way in which the bytes may be written."""
    found = set()
    for order in (raw, raw[::-1]):
        digits = order.hex()
        found |= {order, digits.encode()}
        for size in (2, 4):
            parts = [digits[at : at + size] for at in range(0, len(digits), size)]
            found |= {mark.join(parts).encode() for mark in (":", "-", ".", " ", "_")}
    return found | {each.upper() for each in found if each.isascii()}


def names_none(data: bytes, identities: set[bytes], hosts: set[str] = frozenset()) -> None:
    for raw in identities:
        for each in notations(raw):
            assert each not in data, each
    for host in hosts:
        assert host.encode() not in data, host


def identities_of(machine: Machine) -> set[bytes]:
    """Serial numbers, MACs and GUIDs of a description."""
    found = set()
    for root in machine.roots:
        for part in every(root.below):
            if not isinstance(part, Endpoint):
                continue
            texts = [part.serial or "", *part.net.values(), part.rdma.guid if part.rdma else ""]
            raws = [bytes.fromhex(re.sub("[:-]", "", text)) for text in texts]
            found |= {raw[-8:] for raw in raws if raw}
    return found


@pytest.mark.parametrize("name", sorted(NODES))
def test_a_saved_node_reads_as_the_node(name, synthetic, tmp_path):
    root = synthetic(name)
    data = save(root, tmp_path / "node.tar.xz")
    live, saved = sysfs.read_sysfs_node(root), read(tmp_path / "node.tar.xz")
    mapped = same_but_names(live, saved)
    guids = {device.node_guid for function in live.functions for device in function.rdma}
    assert mapped.keys() >= guids
    assert not mapped.keys() & set(mapped.values())
    identities = identities_of(NODES[name])
    assert identities
    names_none(data, identities, {name} - {"vmd"})  # which is a driver's name as well
    archive = node_archive.load_node_archive(tmp_path / "node.tar.xz")
    assert (
        nccl_node.read_nccl_processor(archive)
        == nccl_node.read_nccl_processor(FileTree(root))
        is not None
    )


def test_a_real_capture(capture_of_ours, tmp_path, capsys):
    data = save(capture_of_ours, tmp_path / "node.tar.xz")
    assert "the host is called 'node'" in capsys.readouterr().out
    same_but_names(sysfs.read_sysfs_node(capture_of_ours), read(tmp_path / "node.tar.xz"))
    assert b"virtual1" not in data
    kept = save(capture_of_ours, tmp_path / "kept.tar.xz", "--keep-names")
    assert b"virtual1" in kept
    same_but_names(
        sysfs.read_sysfs_node(capture_of_ours), read(tmp_path / "kept.tar.xz"), keep_names=True
    )


@pytest.fixture(scope="session")
def capture_of_ours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ours")
    subprocess.run(["tar", "-xf", OWN, "-C", folder], check=True)
    return folder


def test_captures_of_real_machines(captures, tmp_path):
    """Links there are absolute, files padded, much is left out."""
    archives = sorted((captures / "hwloc").glob("*.tar.bz2"))
    assert archives
    for archive in archives:
        folder = tmp_path / archive.stem
        folder.mkdir()
        subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
        root = next(top for top in folder.iterdir() if (top / "sys").is_dir())
        save(root, tmp_path / "node.tar.xz")
        same_but_names(sysfs.read_sysfs_node(root), read(tmp_path / "node.tar.xz"))


H100 = gpu("10de:2330", "10de:16c1", 1)


def distinct(size: int) -> st.SearchStrategy[bytes]:
    """Bytes that are not found everywhere by chance."""
    telling = st.binary(min_size=size, max_size=size)
    # Hypothesis also draws what our own modules have: b"nova-hpc" is in every document.
    return telling.filter(lambda raw: len(set(raw) - {0, 0xFF, 0x02}) > 3 and raw != b"nova-hpc")


#: That tell the GUID of an adapter.
GUID_FILES = {"infiniband/{}/node_guid", "infiniband/{}/ports/1/gids/0"}


@st.composite
def machines(draw):
    """A node whose identities are arbitrary, and where else they are written down."""
    guid, serial, mac = draw(distinct(8)), draw(distinct(8)), draw(distinct(6))
    card = adapter(0, 0x17)
    name = draw(st.sampled_from(["ib0", f"enx{mac.hex()}", f"ibx{guid.hex()}"]))
    digits = guid.hex()
    card = dataclasses.replace(
        card,
        serial=serial.hex(),
        net={name: mac.hex(":")},
        rdma=Rdma(
            draw(st.sampled_from(["mlx5_0", f"rocex{guid.hex()}"])),
            ":".join(digits[at : at + 4] for at in range(0, 16, 4)),
            layer=draw(st.sampled_from(["InfiniBand", "Ethernet"])),
            prefix=draw(st.sampled_from(["fe80:0000:0000:0000", "fec0:dead:beef:1234"])),
        ),
    )
    # Never x: the kernel writes 0x00000 in files that are kept.
    host = draw(st.from_regex(r"[g-wyz][a-z0-9]{5,9}(-[0-9]{1,3})?(\.in\.org)?", fullmatch=True))
    machine = Machine(
        host,
        (Numa(0, "0-3", 4, 0, (10,)),),
        (Root(0, 0x16, 0, (port("01.0", 0x17, card), port("02.0", 0x18, H100))),),
        Processor({"vendor_id": "GenuineIntel", "Serial": serial.hex(), "flags": host}),
    )
    spread = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["numa_node", "class", "resource", "reset_method", "vendor",
                                 "infiniband/{}/ports/1/state", "infiniband/{}/node_guid",
                                 "infiniband/{}/ports/1/gids/0"]),
                st.sampled_from([*sorted(notations(guid) | notations(mac) | notations(serial)),
                                 host.encode(), f"x {host} y".encode()]),
            ),
            max_size=3,
        )
        # Where no file of its own tells it, nobody can know that another one has it.
        .filter(lambda drawn: not {name for name, _ in drawn} > GUID_FILES)
    )  # fmt: skip
    return machine, {guid, serial, mac}, spread


@settings(
    max_examples=max(20, settings.default.max_examples // 4),
    suppress_health_check=[HealthCheck.too_slow],
)
@pytest.mark.long
@given(machines())
def test_nothing_of_it_can_be_found(drawn):
    machine, identities, spread = drawn
    with tempfile.TemporaryDirectory() as folder:
        root = write(machine, Path(folder, "root"))
        device = root / "sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0"
        card = next((device / "infiniband").iterdir()).name
        for name, text in spread:
            (device / name.format(card)).write_bytes(text + b"\n")
        archive = Path(folder, "node.tar.xz")
        data = save(root, archive)
        saved = read(archive)
    short = machine.name.partition(".")[0]
    names_none(data, identities, {machine.name, short})
    names_none(inventory.write_inventory(saved).encode(), identities, {machine.name, short})
    assert [function.address for function in saved.functions] == [
        "0000:16:01.0", "0000:16:02.0", "0000:17:00.0",
        *(f"0000:17:00.{number}" for number in range(1, 8)), "0000:17:01.0", "0000:18:00.0",
    ]  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.long
@given(
    host=st.from_regex(r"[qz][ghjkz]{3}[0-9]{1,2}(\.in\.org)?", fullmatch=True),
    before=st.sampled_from(["", "en", "ib0_", "x"]),
    after=st.sampled_from(["", "0", "ib0", "-r1", "_"]),
    upper=st.booleans(),
)
def test_the_name_of_the_host_is_in_no_name_that_people_give(host, before, after, upper):
    """Interfaces and RDMA devices are called by the host, and so are CPUs of some hypervisors."""
    short = host.partition(".")[0]
    called = f"{before}{short.upper() if upper else short}{after}"
    card = dataclasses.replace(
        adapter(0, 0x17),
        net={called: "94:6d:ae:00:17:01"},
        rdma=Rdma(called, "946d:ae03:00a1:1701"),
    )
    words = {"vendor_id": "GenuineIntel", "model name": f"Xeon of {called} {host}"}
    roots = (Root(0, 0x16, 0, (port("01.0", 0x17, card),)),)
    machine = Machine(host, (Numa(0, "0-3", 4, 0, (10,)),), roots, Processor(words))
    with tempfile.TemporaryDirectory() as folder:
        root = write(machine, Path(folder, "root"))
        archive = Path(folder, "node.tar.xz")
        data = save(root, archive)
        saved, live = read(archive), sysfs.read_sysfs_node(root)
    assert short.encode() not in data.lower()
    assert b"Xeon of " in data
    ((one,), (other,)) = (node.function("0000:17:00.0").rdma for node in (live, saved))
    assert other.ports[0].state == one.ports[0].state
    assert len(saved.function("0000:17:00.0").os_devices) == len(
        live.function("0000:17:00.0").os_devices
    )


def test_nothing_is_written_that_would_tell(synthetic, tmp_path, monkeypatch, capsys):
    """Whatever the replacing forgets, the last look finds."""
    target = tmp_path / "node.tar.xz"
    words = ["inventory", "--root", str(synthetic("hgx-h100")), "--save", str(target)]
    with monkeypatch.context() as patched:
        # A notation of which nobody has thought.
        whole = node_archive._anonymise_file

        def forgetful(path, data, *more):
            return data if path.endswith("node_guid") else whole(path, data, *more)

        patched.setattr(node_archive, "_anonymise_file", forgetful)
        assert main(words) == 2
    err = capsys.readouterr().err
    assert "node_guid would reveal a value that has to be replaced, so nothing was written" in err
    assert not target.exists()
    assert main(words) == 0
    # A saved node saved again: its numbers stay what they are, and tell nothing.
    folder = tmp_path / "unpacked"
    folder.mkdir()
    subprocess.run(["tar", "-xf", target, "-C", folder], check=True)
    assert main(["inventory", "--root", str(folder), "--save", str(tmp_path / "2.tar.xz")]) == 0


def test_a_guid_that_the_kernel_would_not_write_is_told_by_none(tmp_path):
    guid = bytes.fromhex("0a4a363dcee82989")
    digits = "0a4a:363d:cee8:2989"
    card = dataclasses.replace(adapter(0, 0x17), rdma=Rdma("mlx5_0", digits))
    roots = (Root(0, 0x16, 0, (port("01.0", 0x17, card),)),)
    numa = (Numa(0, "0-3", 4, 0, (10,)),)
    root = write(Machine("g00000", numa, roots, Processor({})), tmp_path / "root")
    device = root / "sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/infiniband/mlx5_0"
    # The only file that has it, in a notation that nobody reads.
    (device / "node_guid").unlink()
    (device / "ports/1/gids/0").write_bytes(guid.hex(" ").upper().encode() + b"\n")
    names_none(save(root, tmp_path / "node.tar.xz"), {guid})
    assert read(tmp_path / "node.tar.xz").function("0000:17:00.0").unknown is not None


def test_a_guid_is_known_though_another_file_of_its_port_is_broken(tmp_path):
    """Written down elsewhere, too: it is told by none."""
    guid, other = bytes.fromhex("d442d0274fdce288"), bytes.fromhex("0a4a363dcee82989")
    digits = [":".join(each.hex()[at : at + 4] for at in range(0, 16, 4)) for each in (guid, other)]
    card = dataclasses.replace(adapter(0, 0x17), rdma=Rdma("mlx5_0", digits[0]))
    roots = (Root(0, 0x16, 0, (port("01.0", 0x17, card),)),)
    numa = (Numa(0, "0-3", 4, 0, (10,)),)
    root = write(Machine("g00000", numa, roots, Processor({})), tmp_path / "root")
    device = root / "sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0"
    (device / "infiniband/mlx5_0/ports/1/state").write_bytes(b"\0\1\xda\n")
    (device / "infiniband/mlx5_0/node_guid").write_text(f"{digits[1]}\n")
    (device / "numa_node").write_bytes(guid.hex(" ").upper().encode() + b"\n")
    (device / "class").write_bytes(other.hex().encode() + b"\n")
    names_none(save(root, tmp_path / "node.tar.xz"), {guid, other})


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["two-socket", "ours"])
def test_a_broken_node_is_saved_as_it_is(name, seed, synthetic, capture_of_ours, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(capture_of_ours if name == "ours" else synthetic(name), root, symlinks=True)
    chance = random.Random(f"{name} {seed}")
    paths = sorted(
        Path(folder, one) for folder, folders, files in os.walk(root) for one in (*files, *folders)
    )
    vital = [path for path in paths if "/pci" in str(path)]
    for _ in range(3):
        done = damage.apply(root, vital, 40, chance) + damage.apply(root, paths, 20, chance)
        save(root, tmp_path / "node.tar.xz")
        try:
            same_but_names(sysfs.read_sysfs_node(root), read(tmp_path / "node.tar.xz"))
        except AssertionError as error:
            error.add_note("after: " + "; ".join(done))
            raise


def test_a_record_is_of_one_reading_and_reads_the_same(synthetic):
    recorder = RecordingTree(synthetic("hgx-h100"))
    node = sysfs.read_tree(recorder, "x")
    assert sysfs.read_tree(ReplayTree(recorder.record()), "x") == node
    assert node == sysfs.read_tree(FileTree(synthetic("hgx-h100")), "x")


def test_only_what_is_read_is_saved(synthetic, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(synthetic("two-socket"), root, symlinks=True)
    device = root / "sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0"
    (device / "vpd").write_bytes(b"SECRET")
    (device / "serial_number").write_text("SECRET")
    (root / "etc").mkdir()
    (root / "etc/secret").write_text("SECRET")
    (tmp_path / "outside").write_text("SECRET")
    (device / "revision").unlink()
    (device / "revision").symlink_to("../" * 20 + str(tmp_path).lstrip("/") + "/outside")
    assert b"SECRET" not in save(root, tmp_path / "node.tar.xz")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--root", "/no/such", "--save", "{tmp}/x"], "neither CPUs nor PCI functions"),
        (["--save", "/no/such/folder/x"], "No such file or directory"),
        (["--save", "{tmp}"], "--save {tmp}"),
        (["--xml", "x", "--save", "{tmp}/x"], "--save reads sysfs"),
        (["--from", "/no/such"], "No such file or directory"),
        (["--from", "{tmp}"], "Is a directory"),
    ],
)
def test_what_cannot_be_done_is_told(options, words, tmp_path, capsys):
    given = [option.format(tmp=tmp_path) for option in options]
    assert main(["inventory", *given]) == 2
    assert words.format(tmp=tmp_path) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
