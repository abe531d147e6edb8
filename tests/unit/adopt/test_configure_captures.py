# SPDX-License-Identifier: Apache-2.0
"""``configure`` run twice, declared or bare, on every capture: the second changes nothing."""

import json
import pathlib
import subprocess

import pytest

from nova_hpc.topology import roles, sysfs
from nova_hpc_tools.adopt.configure import Configure
from nova_hpc_tools.site import lstopo
from tests.nodes.catalogue import NODES
from tests.unit.node_files import declare

ROLES = [{"role": "gpu", "class": "03*"}, {"role": "disk", "class": "0108"}]


@pytest.fixture
def configure(tmp_path, capsys):
    """Run the command on a capture, beside an empty configuration."""
    folder = tmp_path / "nova.conf.d"
    folder.mkdir()
    nova_conf = tmp_path / "nova.conf"
    nova_conf.write_text("[DEFAULT]\nhost = somewhere\n", encoding="ascii")

    def run(source, *words):
        command = Configure(None, None)
        everything = [
            *("--config-file", nova_conf, "--config-dir", folder, "--write", folder),
            *source,
            *words,
        ]
        parser = command.get_parser("nova-hpc configure")
        status = command.run(parser.parse_args(list(map(str, everything))))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    run.folder = folder
    return run


def state(folder):
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def twice(configure, source, wishes=None, words=()):
    # Nodes with NVSwitches need this word.
    declare(configure.folder / "node.yaml", **(wishes or {"offer_switches": False}))
    status, _, err = configure(source, *words)
    assert status == 0, err
    before = state(configure.folder)
    for again in ((), words):
        status, out, err = configure(source, *again)
        assert (status, out) == (0, "Nothing to do.\n"), err
    assert state(configure.folder) == before
    return before


def wishes_of(node):
    """Wishes that mean something on a node: its first device left out, and more."""
    table = roles.parse_roles(list(map(json.dumps, ROLES)))
    first = [each.address for each in node.functions if table.role_of(each, node)][:1]
    return {
        "left_out": first,
        "roles": ROLES,
        "cpus": {"housekeeping_cores": 0},
        "limits": {"hosts": 2000},
        "alias_names": "product",
        "role_options": {"gpu": {"traits": ["CUSTOM_A"]}, "disk": {"identity": "trait"}},
        "whole_pf": ["all"],
        "offer_switches": True,
    }


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("name", NODES)
def test_synthetic_nodes(configure, synthetic, name, bare):
    root = synthetic(name)
    wishes = None if bare else wishes_of(sysfs.read_sysfs_node(root))
    twice(configure, ["--root", root], wishes)


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize(
    "name", ["32em64t-2n8c+dax+nvme+mic+dimms", "40intel64-2g2n4c+pcilocality",
             "64amd64-4s2n4ca2co", "nvidiagpunumanodes"]
)  # fmt: skip
def test_captures_of_real_machines(configure, captures, tmp_path, name, bare):
    folder = tmp_path / "capture"
    folder.mkdir()
    archive = captures / "hwloc" / f"{name}.tar.bz2"
    subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
    root = next(top for top in folder.iterdir() if (top / "sys").is_dir())
    node = sysfs.read_sysfs_node(root)
    if not node.functions:
        status, _, err = configure(["--root", root])
        assert status == 2
        assert "no PCI device found" in err
        assert state(configure.folder) == {}
        return
    twice(configure, ["--root", root], None if bare else wishes_of(node))


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("name", ["nvidiaDGX2.xml", "16intel64-manyVFs.xml"])
def test_xml_of_real_machines(configure, captures, name, bare):
    path = captures / "hwloc" / name
    twice(configure, ["--xml", path], None if bare else wishes_of(lstopo.read_lstopo_file(path)))


def test_nodes_of_several_kinds_are_remembered(configure, synthetic):
    """Aliases that name other nodes' devices stay when those are not named again."""
    root, other = synthetic("hgx-h100"), synthetic("two-socket")
    before = twice(configure, ["--root", root], words=["--also", other])
    assert pathlib.Path(configure.folder, "nova-hpc-common.conf").read_text().count("alias = ") > 2
    assert before
