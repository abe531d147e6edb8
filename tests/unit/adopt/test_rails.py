# SPDX-License-Identifier: Apache-2.0
"""``rails`` of the declaration: one physical network for each rail, and the roles as they are."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from nova_hpc.topology import sysfs
from nova_hpc.topology.roles import parse_roles
from nova_hpc_tools.adopt.rails import locate_rails
from nova_hpc_tools.main import main
from nova_hpc_tools.wire.node_declaration import read_declaration, write_declaration
from tests.nodes import catalogue, write
from tests.unit.node_files import GPU, PF, VF, declared, refused

EXAMPLE = Path(__file__).parents[3] / "etc/examples/hgx-rails-node.yaml"
RAILS = {"physical_network": "ibrail{n}", "adapters": [PF]}


def by_role(at_home):
    entries = map(json.loads, at_home.told("device_spec"))
    return {entry["hpc_role"]: entry for entry in entries}


@pytest.fixture
def hgx(tmp_path, capsys):
    """``configure`` on an HGX H100 with the example as its declaration."""
    root = tmp_path / "hgx"
    root.mkdir()
    write.write(catalogue.NODES["hgx-h100"], root)
    folder = tmp_path / "nova.conf.d"
    folder.mkdir()
    shutil.copy(EXAMPLE, folder / "node.yaml")

    def run(*words):
        mine = ["--root", root, "--declaration", folder / "node.yaml", "--write", folder]
        status = main(["configure", *map(str, [*mine, *words])])
        return status, *capsys.readouterr()

    run.root, run.folder = root, folder
    return run


def entries_of(folder):
    text = (folder / "nova-hpc-compute.conf").read_text()
    return [json.loads(line) for line in re.findall(r"^device_spec = (.*)$", text, re.MULTILINE)]


def test_the_example_has_eight_rails_each_beside_its_gpu(hgx):
    status, _, err = hgx()
    assert status == 0, err
    entries = entries_of(hgx.folder)
    node = sysfs.read_sysfs_node(hgx.root)
    gpus = sorted(e["hpc_switch"] for e in entries if e["hpc_role"] == "gpu")
    ports = {e["physical_network"]: e for e in entries if "physical_network" in e}
    assert sorted(ports) == [f"ibrail{number}" for number in range(8)]
    # Every rail has the functions of its adapter alone, beside a GPU.
    assert sorted(entry["hpc_switch"] for entry in ports.values()) == gpus
    wanted = yaml.safe_load(EXAMPLE.read_text())["rails"]["adapters"]
    for number, address in enumerate(wanted):
        entry = ports[f"ibrail{number}"]
        assert (entry["hpc_role"], entry["address"]) == ("vf", address)
        assert node.function(address).switches[0] == entry["hpc_switch"]
    # Devices of ports are not in Placement, and the default roles are not replaced.
    assert not [entry for entry in ports.values() if "resource_class" in entry]
    text = "".join(path.read_text() for path in hgx.folder.glob("*.conf"))
    assert "device_role" not in text
    before = {path.name: path.read_text() for path in hgx.folder.iterdir()}
    assert hgx()[:2] == (0, "Nothing to do.\n")
    assert {path.name: path.read_text() for path in hgx.folder.iterdir()} == before


def test_the_lines_for_neutron_have_one_range_each(hgx):
    err = hgx()[2]
    (ranges,) = re.findall(r"network_vlan_ranges = (\S+)", err)
    (fabrics,) = re.findall(r"\[hpc_partitions\]physical_networks = (\S+)", err)
    assert fabrics == ",".join(f"ibrail{number}:main" for number in range(8))
    parts = [part.split(":") for part in ranges.split(",")]
    assert [name for name, *_ in parts] == [f"ibrail{number}" for number in range(8)]
    bounds = [int(number) for _, *pair in parts for number in pair]
    # No two ranges have one P_Key, and all are P_Keys of networks.
    assert bounds == sorted(set(bounds))
    assert (bounds[0], bounds[-1] <= 4094) == (256, True)


@pytest.mark.parametrize("name", ["ibp24s0", "mlx5_0", "946d:ae03:00a1:1800", "0x946dae0300a11800"])
def test_an_adapter_has_several_names(hgx, name):
    document = yaml.safe_load(EXAMPLE.read_text())
    document["rails"]["adapters"][0] = name
    (hgx.folder / "node.yaml").write_text(yaml.safe_dump(document))
    status, _, err = hgx()
    assert status == 0, err
    ports = {e.get("physical_network"): e for e in entries_of(hgx.folder)}
    assert ports["ibrail0"]["address"] == "0000:18:00.0"


def test_two_adapters_of_one_rail(hgx):
    document = yaml.safe_load(EXAMPLE.read_text())
    flat = document["rails"]["adapters"]
    document["rails"]["adapters"] = [flat[:4], flat[4:]]
    (hgx.folder / "node.yaml").write_text(yaml.safe_dump(document))
    status, _, err = hgx()
    assert status == 0, err
    networks = [e["physical_network"] for e in entries_of(hgx.folder) if "physical_network" in e]
    assert networks == ["ibrail0"] * 4 + ["ibrail1"] * 4


def test_the_file_is_written_as_it_was_read():
    read = read_declaration(EXAMPLE.read_text())
    assert read_declaration(write_declaration(read)) == read
    assert "'0000:18:00.0'" in write_declaration(read)


def test_untagged_entries_of_an_earlier_page(at_home):
    """The page told operators to write such an entry, which hides ours."""
    entry = {"address": "0000:19:00.*", "physical_network": "ibrail0"}
    at_home.nova(f"[pci]\ndevice_spec = {json.dumps(entry)}\n")
    at_home.declare(rails=RAILS)
    status, _, err = at_home("--replace", GPU)
    assert status == 2
    assert f"Nova takes this entry for {VF}, and not the one with tags" in err
    at_home.nova("")
    status, _, err = at_home()
    assert status == 0, err
    vf = by_role(at_home)["vf"]
    assert (vf["physical_network"], vf["hpc_numa"]) == ("ibrail0", "0")
    assert at_home()[:2] == (0, "Nothing to do.\n")


def test_a_rail_that_changes_is_a_loss(at_home):
    at_home.declare(rails=RAILS)
    assert at_home()[0] == 0
    at_home.declare(rails={**RAILS, "physical_network": "other{n}"})
    refused(at_home(), f"{PF}: physical_network is ibrail0 and would be other0")


def test_an_adapter_that_a_guest_has_keeps_its_rail(at_home, machine):
    """A server has the whole port: its interface is not there meanwhile."""
    (machine / "sys/devices/pci0000:17/0000:19:00.0/net/ib0").mkdir(parents=True)
    at_home.declare(rails={**RAILS, "adapters": ["ib0"]})
    assert at_home()[0] == 0
    assert by_role(at_home)["vf"]["physical_network"] == "ibrail0"
    shutil.rmtree(machine / "sys/devices/pci0000:17/0000:19:00.0/net")
    status, out, err = at_home()
    assert (status, out) == (0, "Nothing to do.\n")
    assert "no adapter is called ib0 now" in err


def test_an_adapter_that_is_not_there_leaves_the_others(at_home):
    at_home.declare(rails={**RAILS, "adapters": ["0000:77:00.0", PF]})
    status, _, err = at_home()
    assert status == 0
    assert "0000:77:00.0 of rail 0 (ibrail0) is no function of this node now" in err
    assert by_role(at_home)["vf"]["physical_network"] == "ibrail1"


@pytest.mark.parametrize(
    ("rails", "text"),
    [
        ({"physical_network": "ibrail{n}", "adapters": ["ib9"]}, "no adapter of this node is call"),
        ({"physical_network": "ibrail{n}", "adapters": [VF]}, f"name its adapter, {PF}"),
        ({"physical_network": "ibrail", "adapters": [PF, "0000:1a:00.0"]}, "write {n} for"),
        ({"physical_network": "ib rail", "adapters": [PF]}, "'ib rail' is no name of a network"),
        ({"physical_network": "r{n}", "adapters": [PF, PF]}, f"{PF} is named twice"),
        ({"physical_network": "r{n}", "adapters": []}, "name one for each rail"),
        ({"physical_network": "r{n}", "adapters": [PF, []]}, "name one for each rail"),
        ({"physical_network": "r{n}", "adapters": ["a b"]}, "is no PCI address, interface"),
        ({"physical_network": "r{n}", "adapters": PF}, "adapters"),
        ({"physical_network": "r{n}"}, "adapters"),
        ({"adapters": [PF]}, "physical_network"),
        ({"physical_network": "r{n}", "adapters": [PF], "order": 1}, "order"),
        ([PF], "rails"),
    ],
)
def test_bad_rails_are_refused_by_name(at_home, rails, text):
    at_home.folder.mkdir(exist_ok=True)
    head = {"schema": "nova-hpc/node", "version": 1}
    (at_home.folder / "node.yaml").write_text(yaml.safe_dump({**head, "rails": rails}))
    status, out, err = at_home()
    assert (status, out) == (2, "")
    assert text in err
    assert "rails" in err
    assert not list(at_home.folder.glob("*.conf"))


def test_an_adapter_on_two_rails_under_two_names_is_refused(at_home, machine):
    (machine / "sys/devices/pci0000:17/0000:19:00.0/net/ib0").mkdir(parents=True)
    at_home.declare(rails={**RAILS, "adapters": [PF, "ib0"]})
    status, _, err = at_home()
    assert status == 2
    assert f"{PF} (ib0) is on ibrail0 and ibrail1" in err


def test_an_adapter_without_a_role_is_refused(at_home):
    at_home.declare(rails=RAILS, roles=[{"role": "gpu", "vendor_id": "10de"}])
    status, _, err = at_home()
    assert status == 2
    assert "has no role: add an entry to roles" in err


def test_rails_of_one_node_replace_those_of_all(at_home, machine):
    (machine / "proc/sys/kernel").mkdir(parents=True)
    (machine / "proc/sys/kernel/hostname").write_text("node17\n")
    own = {"node17": {"rails": {**RAILS, "physical_network": "own{n}"}}}
    at_home.declare(rails={**RAILS, "adapters": ["0000:77:00.0"]}, nodes=own)
    assert at_home()[0] == 0
    assert by_role(at_home)["vf"]["physical_network"] == "own0"


def test_all_functions_of_an_adapter_are_on_its_rail(at_home, machine):
    """``prepare`` plans for functions that are not there yet; they are for ports, so unbound."""
    at_home.declare(rails=RAILS)
    assert at_home()[0] == 0
    wishes = declared(at_home).wishes
    node = sysfs.read_sysfs_node(machine)
    located = locate_rails(wishes.rails, node, parse_roles(['{"role": "x", "vendor_id": "*"}']), ())
    assert located.networks == {PF: "ibrail0", VF: "ibrail0"}
