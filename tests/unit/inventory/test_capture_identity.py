# SPDX-License-Identifier: Apache-2.0
"""A number that stands for a serial number names no device, whatever reads the saved node."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import tarfile

import pytest

from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.topology import sysfs
from nova_hpc.topology.files import FileTree
from nova_hpc.wire import capture
from nova_hpc_tools.adopt import declaration_file
from nova_hpc_tools.inventory import node_archive
from nova_hpc_tools.main import main
from nova_hpc_tools.wire import node_declaration
from tests.nodes.catalogue import NODES
from tests.nodes.describe import Bridge, Endpoint
from tests.nodes.write import write
from tests.unit.node_files import declare

#: Three GPUs of one node. The first is swapped for a new one; the second is ruled out.
FIRST, OUT = "0000:17:00.0", "0000:31:00.0"
ADAPTER = "0000:b1:00.0"
SERIAL = "serial:48b02dffff000002"
HEAD = "schema: nova-hpc/node\nversion: 1\n"


def replaced_at(part, address, serial):
    """The same part of a node with another card at the end of bus *address*."""
    if isinstance(part, Bridge):
        below = tuple(
            dataclasses.replace(each, serial=serial)
            if isinstance(each, Endpoint) and f"0000:{part.bus:02x}:{each.at}" == address
            else replaced_at(each, address, serial)
            for each in part.below
        )
        return dataclasses.replace(part, below=below)
    return part


def machine(**serials):
    """The two-socket node, called node17; address -> serial number of another card there."""
    found = dataclasses.replace(NODES["two-socket"], name="node17")
    for address, serial in serials.items():
        roots = tuple(
            dataclasses.replace(
                root, below=tuple(replaced_at(each, address, serial) for each in root.below)
            )
            for root in found.roots
        )
        found = dataclasses.replace(found, roots=roots)
    return found


class Deploy:
    """A machine that deploys: saved nodes come to it and are unpacked there."""

    def __init__(self, folder, capsys):
        self.folder, self.capsys = folder, capsys
        self.kolla = folder / "kolla"
        self.kolla.mkdir()
        (folder / "nova.conf").write_text("[DEFAULT]\n")
        self.count = 0

    def save(self, node, *words):
        """Save and unpack it; the folder."""
        self.count += 1
        root, archive = self.folder / f"root{self.count}", self.folder / f"{self.count}.tar.xz"
        write(node, root)
        assert main(["inventory", "--root", str(root), "--save", str(archive), *words]) == 0
        place = self.folder / f"unpacked{self.count}"
        place.mkdir()
        subprocess.run(["tar", "-xf", archive, "-C", place], check=True)
        self.said = self.capsys.readouterr().out
        return place

    def run(self, command, root, *words):
        config = ["--config-file", str(self.folder / "nova.conf")]
        status = main([command, "--root", str(root), *config, *words])
        captured = self.capsys.readouterr()
        return status, captured.out, captured.err

    def configure(self, root, *words):
        kolla = ["--layout", "kolla", "--write", str(self.kolla), "--part", "compute"]
        return self.run("configure", root, *kolla, *words)

    @property
    def declaration(self):
        return self.kolla / "nova-hpc/node17.yaml"

    def offered(self):
        text = (self.kolla / "nova/node17/nova-compute.conf").read_text()
        return {address for address in (FIRST, OUT) if re.search(rf'"address": "{address}"', text)}


@pytest.fixture
def deploy(tmp_path, capsys):
    return Deploy(tmp_path, capsys)


SWAP = {FIRST: "48b02dfffffff001"}
#: The other card is in the first slot, and a new one in the second.
MOVED = {FIRST: "48b02dffff000002", OUT: "48b02dfffffff002"}


def test_a_ruled_out_device_stays_out_after_another_was_swapped(deploy):
    """The new card has a lower number than the one before: it counts from anew."""
    before = deploy.save(machine(), "--keep-names")
    declare(deploy.declaration, left_out=[OUT])
    status, _, err = deploy.configure(before)
    assert status == 0, err
    assert deploy.offered() == {FIRST}
    assert f"{OUT}: declared by address" in err
    assert "--keep-serials" in err
    assert "hardware:" not in err
    # A card without a serial number of its own: all numbers after it are others.
    after = deploy.save(machine(**{FIRST: None}), "--keep-names")
    status, _, err = deploy.configure(after)
    assert status == 0, err
    assert deploy.offered() == {FIRST}
    assert f"{OUT}: declared by address" in err


def test_with_serial_numbers_a_device_is_followed(deploy):
    saved = deploy.save(machine(), "--keep-names", "--keep-serials")
    assert "serial numbers are kept" in deploy.said
    assert "serial numbers, MACs" not in deploy.said
    declare(deploy.declaration, left_out=[OUT])
    status, _, err = deploy.configure(saved)
    assert (status, "declared by address" in err) == (0, False)
    # The line to write is said.
    device = {"address": OUT, "hardware": SERIAL}
    assert f"{{address: '{OUT}', hardware: '{SERIAL}'}}" in err
    declare(deploy.declaration, left_out=[device])
    status, _, err = deploy.configure(saved)
    assert (status, "declared by" in err) == (0, False)
    assert deploy.offered() == {FIRST}
    moved = deploy.save(machine(**MOVED), "--keep-names", "--keep-serials")
    status, _, err = deploy.configure(moved, "--replace", FIRST)
    assert status == 0, err
    assert f"{SERIAL} is declared at {OUT} and now {FIRST}" in err
    assert deploy.offered() == {OUT}


@pytest.mark.parametrize("command", ["configure", "prepare", "doctor"])
def test_a_declared_serial_number_is_not_guessed(deploy, command):
    """It may be anywhere by now."""
    with_numbers = deploy.save(machine(), "--keep-names", "--keep-serials")
    declare(deploy.declaration, left_out=[{"address": OUT, "hardware": SERIAL}])
    assert deploy.configure(with_numbers)[0] == 0
    before = deploy.declaration.read_text()
    moved = deploy.save(machine(**MOVED), "--keep-names")
    named = ["--declaration", str(deploy.declaration)]
    status, out, err = (
        deploy.configure(moved) if command == "configure" else deploy.run(command, moved, *named)
    )
    assert (status, out) == (2, "")
    assert f"names {SERIAL}" in err
    assert "--keep-names --keep-serials" in err
    assert deploy.declaration.read_text() == before
    # An XML tells no serial numbers either.
    xml = deploy.folder / "node.xml"
    xml.write_text(
        '<topology version="2.0"><object type="Machine" os_index="0" cpuset="0x1">'
        '<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[30-31]">'
        f'<object type="PCIDev" pci_busid="{OUT}" pci_type="0302 [10de:20b7] [10de:1532] a1"/>'
        "</object></object></topology>"
    )
    status = main(["configure", "--xml", str(xml), *named, "--part", "compute"])
    assert status == 2
    assert "--keep-serials" in deploy.capsys.readouterr().err


def of_the_release_before(folder):
    """An archive that does not list the replaced values."""
    (folder / capture.PLACE.lstrip("/")).unlink()
    return folder


def test_an_archive_of_an_earlier_release_names_no_device(deploy):
    old = of_the_release_before(deploy.save(machine(), "--keep-names"))
    found = declaration_file.identify_devices(old, sysfs.read_sysfs_node(old))
    assert {each.partition(":")[0] for each in found.hardware.values()} == {"slot"}
    assert found.replaced == {capture.SERIALS, capture.ADDRESSES}
    declare(deploy.declaration, left_out=[OUT])
    status, _, err = deploy.configure(old)
    assert status == 0
    assert f"{OUT}: declared by address" in err
    assert "hardware" not in err


def test_a_declaration_of_an_earlier_release_goes_by_address_again(deploy):
    """It holds a number that stands for a serial number, as it was written then."""
    deploy.declaration.parent.mkdir()
    deploy.declaration.write_text(
        f"{HEAD}left_out:\n- {{hardware: 'serial:0200000000000003', address: '{OUT}', why: old}}\n"
    )
    numbered = deploy.save(machine(**{FIRST: None}), "--keep-names")
    status, _, err = deploy.configure(numbered)
    assert status == 0, err
    assert deploy.offered() == {FIRST}
    assert f"{OUT}: the declaration had a number for its serial number" in err
    (device,) = node_declaration.read_declaration(deploy.declaration.read_text()).wishes.left_out
    assert (device.address, device.hardware, device.why) == (OUT, None, "old")
    # From the node itself, its own number is said.
    status, _, err = deploy.configure(deploy.save(machine(), "--keep-names", "--keep-serials"))
    assert status == 0, err
    assert f"{{address: '{OUT}', hardware: '{SERIAL}'}}" in err


def test_a_number_alone_is_refused(deploy):
    deploy.declaration.parent.mkdir()
    deploy.declaration.write_text(f"{HEAD}left_out: [{{hardware: 'serial:0200000000000003'}}]\n")
    status, _, err = deploy.configure(deploy.save(machine(), "--keep-names", "--keep-serials"))
    assert status == 2
    assert "names no device" in err


@pytest.mark.parametrize("old", [False, True])
def test_a_replaced_name_is_no_name(deploy, old):
    """``node`` is no host of Kolla-Ansible's inventory, and no node of a declaration."""
    saved = deploy.save(machine(), "--keep-serials" if not old else "--keep-names")
    if old:
        (saved / "proc/sys/kernel/hostname").write_text("node\n")
        of_the_release_before(saved)
    status, _, err = deploy.configure(saved)
    assert status == 2
    assert "--keep-names" in err
    assert list(deploy.kolla.iterdir()) == []
    other = deploy.folder / "all.yaml"
    other.write_text(f"{HEAD}nodes: {{node17: {{left_out: ['{OUT}']}}}}\n")
    status, _, err = deploy.run("doctor", saved, "--declaration", str(other))
    assert status == 2
    assert "names nodes" in err
    assert "--keep-names" in err


def test_a_manifest_says_what_was_replaced(deploy):
    for words, expected in (
        ((), capture.KINDS),
        (("--keep-names",), capture.KINDS - {capture.HOST}),
        (("--keep-serials",), capture.KINDS - {capture.SERIALS}),
        (("--keep-serials", "--keep-names"), {capture.ADDRESSES}),
    ):
        saved = deploy.save(machine(), *words)
        assert capture.replaced_kinds_of(FileTree(saved)) == expected
    # Saved once more, it has no more of its own than before.
    again = deploy.folder / "again.tar.xz"
    anonymous = deploy.save(machine())
    words = ["--save", str(again), "--keep-names", "--keep-serials"]
    assert main(["inventory", "--root", str(anonymous), *words]) == 0
    assert capture.replaced_kinds_of(node_archive.load_node_archive(again)) == capture.KINDS


@pytest.mark.parametrize(
    "text",
    [
        *("", "{}", "[1]", "\0"),
        '{"schema": "nova-hpc/capture", "version": 9}',
        '{"schema": "nova-hpc/capture", "version": 1}',
    ],
)
def test_a_manifest_that_cannot_be_read_replaces_everything(tmp_path, text):
    (tmp_path / capture.PLACE.lstrip("/")).write_text(text)
    assert capture.replaced_kinds_of(FileTree(tmp_path)) == capture.KINDS


def test_the_ledger_takes_no_number_for_hardware(deploy):
    """Not with a manifest, and not without one."""
    saved = deploy.save(machine())
    node = sysfs.read_sysfs_node(saved)
    for _ in range(2):
        tree = FileTree(saved)
        for each in node.functions:
            look = baseline.take_snapshot(tree, each, None)
            assert look.serial is None
            assert baseline.hardware_name_of(tree, each, look) == f"slot:{each.address}"
        (saved / capture.PLACE.lstrip("/")).unlink(missing_ok=True)
    live = write(machine(), deploy.folder / "live")
    function = sysfs.read_sysfs_node(live).function(OUT)
    assert (
        baseline.serial_of(function, baseline.take_snapshot(FileTree(live), function, None))
        == SERIAL
    )


def test_only_serial_numbers_are_kept(deploy):
    """GUIDs and MACs are replaced all the same."""
    root = write(machine(), deploy.folder / "root")
    archive = deploy.folder / "node.tar.xz"
    assert main(["inventory", "--root", str(root), "--save", str(archive), "--keep-serials"]) == 0
    with tarfile.open(archive) as opened:
        data = b"".join(
            opened.extractfile(each).read() for each in opened.getmembers() if each.isreg()
        )
    assert bytes.fromhex("48b02dffff000002")[::-1] in data
    guids = {
        device.node_guid for each in sysfs.read_sysfs_node(root).functions for device in each.rdma
    }
    assert guids
    assert not any(each.encode() in data for each in guids)


def test_a_device_that_does_not_say_what_it_is_any_more_is_told(deploy):
    """As whoever reads a node without root's rights finds every device."""
    declare(deploy.declaration, left_out=[{"address": OUT, "hardware": SERIAL}])
    assert deploy.configure(deploy.save(machine(), "--keep-names", "--keep-serials"))[0] == 0
    silent = deploy.save(machine(**{OUT: None}), "--keep-names", "--keep-serials")
    status, _, err = deploy.configure(silent)
    assert status == 0, err
    assert f"{OUT} does not show whether it is {SERIAL}" in err
    assert deploy.offered() == {FIRST}
