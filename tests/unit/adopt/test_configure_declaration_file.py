# SPDX-License-Identifier: Apache-2.0
"""The file of a node's declaration: edited, by hardware, for a kind of nodes, and wrong."""

import json

import pytest

from nova_hpc.topology import sysfs
from nova_hpc_tools.adopt import declaration_file
from nova_hpc_tools.adopt.configure import Configure
from nova_hpc_tools.wire import node_declaration
from tests.unit.node_files import GPU, PF, contents, declare, declared, put, refused, snapshot


def test_the_file_is_commented_and_stays_as_it_was_edited(at_home):
    assert at_home()[0] == 0
    path = at_home.folder / "node.yaml"
    text = path.read_text(encoding="utf-8")
    assert text.count("\n# ") > 20
    assert "# cpus: {housekeeping_cores: 1}" in text
    edited = text.replace(
        "# cpus: {housekeeping_cores: 1}", "cpus: {housekeeping_cores: 0}  # mine"
    )
    path.write_text(edited, encoding="utf-8")
    status, out, _ = at_home()
    assert status == 0
    assert "[compute]cpu_dedicated_set: 1 -> 0-1" in out
    assert at_home.told("cpu_dedicated_set") == ["0-1"]
    assert path.read_text(encoding="utf-8") == edited
    assert at_home()[1] == "Nothing to do.\n"


def write(at_home, body, head="schema: nova-hpc/node\nversion: 1\n"):
    (at_home.folder / "node.yaml").write_text(f"{head}{body}", encoding="utf-8")


def test_hardware_counts_before_its_address(at_home, machine, synthetic, capsys):
    """A card that was plugged in elsewhere is the same card."""
    node = synthetic("hgx-h100")
    seen = declaration_file.identify_devices(node, sysfs.read_sysfs_node(node)).hardware
    serials = {each: said for each, said in seen.items() if said.startswith("serial:")}
    address, serial = sorted(serials.items())[0]
    moved = f"left_out:\n- hardware: {serial}\n  address: 0000:ff:00.0\n  why: moved\n"
    write(at_home, f"{moved}offer_switches: false\n")
    words = ["--root", str(node), "--write", str(at_home.folder), "--dry-run"]
    command = Configure(None, None)
    assert command.run(command.get_parser("nova-hpc configure").parse_args(words)) == 0
    err = capsys.readouterr().err
    assert f"{serial} is declared at 0000:ff:00.0 and now {address}" in err
    assert f"Not offered: {address}" in err


def test_the_hardware_at_an_address_is_said_as_it_is_written(at_home, synthetic, capsys):
    node = synthetic("two-socket")
    read = sysfs.read_sysfs_node(node)
    serials = declaration_file.identify_devices(node, read).hardware
    gpu = next(each.address for each in read.functions if (each.class_code or "")[:4] == "0302")
    command = Configure(None, None)
    words = ["--root", str(node), "--write", str(at_home.folder), "--dry-run"]

    def said(device):
        write(at_home, f"left_out: [{device}]\n")
        assert command.run(command.get_parser("nova-hpc configure").parse_args(words)) == 0
        err = capsys.readouterr().err
        assert f"Not offered: {gpu} (gpu): it is left out" in err
        return [line for line in err.splitlines() if "declared by its address" in line]

    (line,) = said(gpu)
    assert line.endswith(f"{{address: '{gpu}', hardware: '{serials[gpu]}'}}.")
    assert serials[gpu].startswith("serial:")
    assert said(line.partition("slot it is, write ")[2].rstrip(".")) == []


def test_one_file_for_a_kind_of_nodes(at_home, machine):
    put(machine, "/proc/sys/kernel/hostname", "gpu7")
    write(
        at_home,
        "for: [gpu-*, gpu7]\ncpus: {housekeeping_cores: 1}\n"
        f"nodes:\n  gpu7:\n    cpus: {{housekeeping_cores: 0}}\n    left_out: [{PF}]\n",
    )
    assert at_home()[0] == 0
    assert at_home.told("cpu_dedicated_set") == ["0-1"]
    assert not any(PF in each for each in at_home.told("device_spec"))
    # What a run adds is the node's own, where it has a part of its own.
    more = '{"role": "disk", "class": "0108"}'
    assert at_home("--add-device-role", more)[0] == 0
    found = declared(at_home)
    assert found.wishes.roles is None
    assert found.nodes["gpu7"].roles[-1] == json.loads(more)
    put(machine, "/proc/sys/kernel/hostname", "gpu8")
    refused(at_home(), "is for gpu-*, gpu7, and this node is gpu8")
    put(machine, "/proc/sys/kernel/hostname", "gpu-8")
    for path in at_home.folder.glob("*.conf"):
        path.unlink()
    assert at_home()[0] == 0
    assert PF in "".join(at_home.told("device_spec"))
    assert at_home.told("cpu_dedicated_set") == ["1"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("cpus: {housekeeping_cores: one}\n", 'cpus: housekeeping_cores is "one", not a whole'),
        ("cpu: {}\n", "cpu is no known field of this version"),
        (
            "cpus: {cores: 1}\n",
            "cpus: cores is no known field of this version; there are housekeeping_cores",
        ),
        ("left_out: 0000:18:00.0\n", 'left_out is "0000:18:00.0", not a list'),
        ("left_out: [18:00]\n", 'left_out: "18:00" is not a PCI address'),
        ("left_out: [{why: x}]\n", "left_out: an entry names neither address nor hardware"),
        ("left_out: [0000:18:00.0]\noffer_in_use: [0000:18:00.0]\n", "both name 0000:18:00.0"),
        ("cpus: {housekeeping_cores: -1}\n", "cpus: housekeeping_cores is -1; it must be 0 to"),
        ("limits: {hosts: 0}\n", "limits: hosts is 0; it must be 1 to"),
        ("limits: {hosts: many}\n", 'limits: hosts is "many", not a whole number'),
        ("whole_pf: [19:00.0]\n", 'whole_pf: "19:00.0" is not a PCI address'),
        ("whole_pf: [0000:18:00.0]\n", "whole_pf: 0000:18:00.0 is no physical function"),
        ("roles: [{role: gpu}]\n", 'roles, entry 1, \'{"role": "gpu"}\': it would match every'),
        ("roles: [{role: gpu, serial: x}]\n", "unknown key 'serial'"),
        ("nodes: {a: {roles: [{role: a, class: x}]}}\n", "nodes: a: roles, entry 1, "),
        ("nvlink_sets: ['x']\n", "nvlink_sets, entry 1, 'x': not JSON"),
        (
            'nvlink_sets: [\'{"name": "a", "devices": ["0000:18:00.0", "0000:fe:00.0"]}\']\n',
            "nvlink_sets 'a': this node has no device 0000:fe:00.0",
        ),
        (
            "role_options: {fpga: {traits: [CUSTOM_X]}}\n",
            "role_options: there is no role 'fpga'; the roles are nvswitch, gpu, vf",
        ),
        ("vfs: {pff: 2}\n", "vfs: there is no role 'pff'; the roles are"),
        ("role_options: {gpu: {traits: [x]}}\n", "role_options: gpu: traits: 'x' is no trait"),
        (
            "role_options: {gpu: {resource_class: h100}}\n",
            "role_options: gpu: resource_class: 'h100' is no resource class: write CUSTOM_",
        ),
        (
            "role_options: {vf: {physical_network: a b}}\n",
            "role_options: vf: physical_network: 'a b' is no name of a network",
        ),
        (
            "role_options: {vf: {one_time_use: true}}\n",
            "role_options: vf: one_time_use: Nova does not allow it for virtual functions",
        ),
        ("role_options: {gpu: {identity: name}}\n", 'identity is "name", none of'),
        ("hugepages: {4X: 1}\n", 'hugepages: "4X" is no size of pages'),
        ("alias_names: short\n", 'alias_names is "short", not auto or product'),
        ("nodes: [a]\n", 'nodes is ["a"], not an object'),
        ("nodes: {a: {limits: {host: 1}}}\n", "nodes: a: limits: host is no known field"),
        ("limits: {hosts: 1}\nlimits: {hosts: 2}\n", "limits is given twice"),
        ("limits: &a {hosts: 1}\ncpus: *a\n", "references (*) are not allowed"),
        ("limits: [\n", "is not YAML: line 4: "),
        ("offer_switches: 1\n", "offer_switches is 1, not true or false"),
    ],
)
def test_bad_declarations(at_home, body, why):
    write(at_home, body)
    status, out, err = at_home()
    assert (status, out) == (2, "")
    assert err.startswith(f"nova-hpc configure: {at_home.folder / 'node.yaml'}: ")
    assert err.count("\n") == 1
    assert why in err
    assert contents(at_home.folder) == {}


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("schema: nova-hpc/node\nversion: 2\n", "update nova-hpc"),
        ("schema: nova-hpc/node\n", "has version null"),
        ("version: 1\n", "it is no node declaration"),
        ("schema: nova-hpc/snapshot\nversion: 1\n", "it is no node declaration"),
        ("- 1\n", "is no YAML mapping"),
        ("", "is no YAML mapping"),
    ],
)
def test_other_files(at_home, head, why):
    write(at_home, "", head)
    before = snapshot(at_home.folder)
    status, _, err = at_home()
    assert status == 2
    assert why in err
    assert str(at_home.folder / "node.yaml") in err
    assert snapshot(at_home.folder) == before


def test_ids_and_addresses_are_texts_however_they_are_written():
    text = (
        "schema: nova-hpc/node\nversion: 1\n"
        "left_out: [0000:18:00.0, {address: 0000:19:00.1}]\n"
        "roles: [{role: gpu, product_id: 2330, class: 0302, vendor_id: 12e0}]\n"
    )
    found = node_declaration.read_declaration(text).wishes
    assert [each.address for each in found.left_out] == ["0000:18:00.0", "0000:19:00.1"]
    assert found.roles == (
        {"role": "gpu", "product_id": "2330", "class": "0302", "vendor_id": "12e0"},
    )
    again = node_declaration.write_declaration(node_declaration.read_declaration(text))
    assert node_declaration.read_declaration(again).wishes == found


def test_two_declarations_that_disagree(at_home):
    at_home.nova('[hpc]\ndevice_role = {"role": "gpu", "class": "0302"}\n')
    at_home.declare(roles=[{"role": "accelerator", "class": "0302"}])
    refused(at_home(), "two declarations disagree")
    at_home.declare(roles=[{"role": "gpu", "class": "0302"}])
    assert at_home()[0] == 0


def test_a_declaration_by_name(at_home, tmp_path):
    path = tmp_path / "kinds" / "a.yaml"
    refused(at_home("--declaration", path, write=False), f"{path} is not there")
    declare(path, left_out=[GPU])
    assert at_home("--declaration", path)[0] == 0
    assert not (at_home.folder / "node.yaml").exists()
    assert at_home("--declaration", path)[1] == "Nothing to do.\n"
    assert at_home("--declaration", path, write=False)[1].count(GPU) == 0
