# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc fabric ports``: the inventory of a host's InfiniBand ports, and of several hosts."""

import json
import shutil

import pytest

from nova_hpc.fabric.partitions.port_inventory import parse_inventory
from nova_hpc_tools.fabric.ports_command import ListFabricPorts
from nova_hpc_tools.main import NovaHpc
from tests.nodes import catalogue, write

FIRST = "0x946dae0300a14200"


@pytest.fixture
def ask(capsys):
    def run(*words):
        app = NovaHpc()
        app.command_manager.add_command("fabric ports", ListFabricPorts)
        status = app.run(["fabric", "ports", *map(str, words)])
        return status, *capsys.readouterr()

    return run


@pytest.mark.parametrize("name", ["hgx-h100", "mi300x", "gh200", "a100-bridges"])
def test_the_ports_of_a_node_are_what_neutron_reads(ask, tmp_path, name):
    root = write.write(catalogue.NODES[name], tmp_path)
    status, out, err = ask("--root", root)
    assert (status, err) == (0, "")
    ports = parse_inventory(out).ports
    assert ports
    assert {port.host for port in ports} == {name}
    assert all(len(port.functions) == 8 for port in ports)
    rows = json.loads(ask("--root", root, "-f", "json")[1])
    assert [row["Address"] for row in rows] == [port.address for port in ports]


def test_a_guid_is_the_ports_and_its_functions_lead_to_it(ask, tmp_path):
    root = write.write(catalogue.NODES["a100-bridges"], tmp_path)
    inventory = parse_inventory(ask("--root", root, "--host", "node-7")[1])
    (port,) = inventory.ports
    assert (port.host, port.guid) == ("node-7", int(FIRST, 16))
    assert inventory.find_port("node-7", port.functions[3]) is port
    assert inventory.find_port("node-8", port.functions[3]) is None


def test_a_node_without_adapters_has_an_empty_inventory(ask, tmp_path):
    root = write.write(catalogue.NODES["two-socket"], tmp_path)
    status, out, _ = ask("--root", root)
    assert (status, parse_inventory(out).ports) == (0, ())


@pytest.mark.parametrize("name", ["smi1", "planes_of_mlx5_0"])
def test_the_planes_of_a_port_are_one_port(ask, tmp_path, name):
    """ConnectX-8 on Quantum-X800: a device of type SMI has a port for each of four planes."""
    root = write.write(catalogue.NODES["a100-bridges"], tmp_path)
    before = ask("--root", root)
    (device,) = (root / "sys/devices").glob("pci*/**/0000:42:00.0/infiniband/*")
    planes = device.with_name(name)
    shutil.copytree(device, planes)
    for number in (2, 3, 4):
        shutil.copytree(planes / "ports/1", planes / f"ports/{number}")
    assert len(parse_inventory(before[1]).ports) == 1
    assert ask("--root", root) == before


def test_two_ports_of_one_function_are_still_named_and_left_out(ask, tmp_path):
    root = write.write(catalogue.NODES["a100-bridges"], tmp_path)
    (port,) = (root / "sys/devices").glob("pci*/**/0000:42:00.0/infiniband/*/ports/1")
    shutil.copytree(port, port.with_name("2"))
    gid = port.with_name("2") / "gids/0"
    gid.write_text(gid.read_text().replace("4200", "4201"))
    status, out, err = ask("--root", root)
    assert (status, parse_inventory(out).ports) == (1, ())
    assert "it has 2 ports on one function" in err


def test_an_adapter_of_a_guest_is_named_and_left_out(ask, tmp_path):
    root = write.write(catalogue.NODES["a100-bridges"], tmp_path)
    (folder,) = (root / "sys/devices").glob("pci*/**/0000:42:00.0/infiniband")
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
    link = folder.parent / "driver"
    link.unlink()
    link.symlink_to("/sys/bus/pci/drivers/vfio-pci")
    status, out, err = ask("--root", root)
    assert (status, parse_inventory(out).ports) == (1, ())
    assert err.startswith("Left out: 0000:42:00.0: vfio-pci has it")


def test_a_port_without_a_guid_is_named_and_left_out(ask, tmp_path):
    root = write.write(catalogue.NODES["a100-bridges"], tmp_path)
    (gid,) = (root / "sys/devices").glob("pci*/**/0000:42:00.0/infiniband/*/ports/1/gids/0")
    gid.write_text("fe80:0000:0000:0000:0000:0000:0000:0000\n")
    status, out, err = ask("--root", root)
    assert (status, parse_inventory(out).ports) == (1, ())
    assert "0000:42:00.0: its port has no GUID" in err


def test_ethernet_is_left_out_without_a_word(ask, tmp_path):
    root = write.write(catalogue.NODES["a100-bridges"], tmp_path)
    for layer in (root / "sys/devices").glob("pci*/**/ports/1/link_layer"):
        layer.write_text("Ethernet\n")
    assert ask("--root", root) == (0, "version: 1\nports: []\n", "")


def test_files_of_hosts_are_put_together(ask, tmp_path):
    files = []
    for name in ("hgx-h100", "mi300x"):
        (root := tmp_path / name).mkdir()
        write.write(catalogue.NODES[name], root)
        files.append(tmp_path / f"{name}.yaml")
        status, out, _ = ask("--root", root, "--output", files[-1])
        assert (status, out) == (
            0,
            f"{len(parse_inventory(files[-1].read_text()).ports)} ports of 1 host(s).\n",
        )
    # A host that is given twice is there once.
    status, out, _ = ask("--merge", *files, files[0])
    ports = parse_inventory(out).ports
    assert status == 0
    assert {port.host for port in ports} == {"hgx-h100", "mi300x"}
    assert list(ports) == sorted(ports, key=lambda port: (port.host, port.address))


def test_one_guid_on_two_hosts_is_refused(ask, tmp_path):
    root = write.write(catalogue.NODES["a100-bridges"], tmp_path)
    for host in ("one", "two"):
        ask("--root", root, "--host", host, "--output", tmp_path / host)
    status, out, err = ask("--merge", tmp_path / "one", tmp_path / "two")
    assert (status, out) == (2, "")
    assert f"{FIRST} is the GUID of one 0000:42:00.0 and of two 0000:42:00.0" in err


@pytest.mark.parametrize(
    "text", ["", "version: 2\nports: []\n", "ports: []\n", "version: 1\nports: 7\n", "\0", "- 1\n"]
)
def test_a_file_that_is_none_is_refused(ask, tmp_path, text):
    (tmp_path / "bad").write_text(text)
    status, out, err = ask("--merge", tmp_path / "bad")
    assert (status, out) == (2, "")
    assert "bad" in err
    assert "Traceback" not in err


def test_what_cannot_be_read_is_refused(ask, tmp_path):
    for words in (
        ("--merge", tmp_path / "none"),
        ("--root", tmp_path / "none"),
        ("--merge", tmp_path / "none", "--host", "x"),
    ):
        status, out, err = ask(*words)
        assert (status, out) == (2, "")
        assert err.count("\n") == 1


def test_a_host_without_a_name_needs_one(ask, tmp_path):
    root = write.write(catalogue.NODES["a100-bridges"], tmp_path)
    (root / "proc/sys/kernel/hostname").unlink()
    status, _, err = ask("--root", root)
    assert (status, "give --host" in err) == (2, True)
