# SPDX-License-Identifier: Apache-2.0
"""CPUs that Nova's power management has switched off are the node's as before."""

import dataclasses
import shutil

import pytest

from nova_hpc.topology import sysfs
from nova_hpc_tools.main import main
from tests.nodes import states
from tests.nodes.catalogue import NODES
from tests.nodes.write import write
from tests.unit.node_files import snapshot

#: As operators have it: the host's CPUs are on the first NUMA node, all others are Nova's.
CONF = """[DEFAULT]
compute_driver = libvirt.LibvirtDriver
[libvirt]
cpu_power_management = true
[compute]
cpu_shared_set = 0-3,32-35
cpu_dedicated_set = 4-31,36-63
"""
POWER = "[libvirt]\ncpu_power_management = true\n"
HOST = (0, 1, 2, 3, 32, 33, 34, 35)
OFF = [(HOST, True), (HOST, False), ((*HOST, 16, 48), True), ((*HOST, 16), False)]
IDS = ["node 1 off", "node 1 off, captured", "a core of each", "a thread of node 1, captured"]


@pytest.fixture
def node(tmp_path):
    """The node, and a copy whose CPUs are off."""

    class Both:
        on = write(states.plain(), tmp_path / "on")
        conf = tmp_path / "nova.conf"
        folder = tmp_path / "written"

        def off(self, online, as_kernel):
            root = shutil.copytree(self.on, tmp_path / "off", symlinks=True)
            states.switch_cpus_off(root, online, as_kernel)
            return root

        def run(self, command, root, *words, folder=None):
            where = folder or self.folder
            where.mkdir(exist_ok=True)
            named = ["--config-file", self.conf, "--config-dir", where]
            named += ["--declaration", where / "node.yaml"]
            return main(list(map(str, [command, "--root", root, *named, *words])))

        def configure(self, root, folder=None):
            where = folder or self.folder
            return self.run("configure", root, "--write", where, folder=where)

    both = Both()
    both.conf.write_text(CONF)
    return both


def settings_in(folder):
    return {name: text for name, text in snapshot(folder).items() if "undo" not in name}


@pytest.mark.parametrize(("online", "as_kernel"), OFF, ids=IDS)
def test_the_same_node_is_read(node, online, as_kernel):
    on = sysfs.read_sysfs_node(node.on)
    off = sysfs.read_sysfs_node(node.off(online, as_kernel))
    assert [each.cpus for each in off.numa_nodes] == [each.cpus for each in on.numa_nodes]
    assert off.offline_cpus == on.cpus - {*online}
    for function in on.functions:
        now = off.function(function.address)
        assert (now.numa_node, now.unknown) == (function.numa_node, None)
        assert now.local_numa_nodes == function.local_numa_nodes


@pytest.mark.parametrize(("online", "as_kernel"), OFF, ids=IDS)
def test_configure_has_nothing_to_do(node, online, as_kernel, capsys):
    assert node.configure(node.on) == 0
    before = snapshot(node.folder)
    capsys.readouterr()
    assert node.configure(node.off(online, as_kernel)) == 0
    assert "Nothing to do." in capsys.readouterr().out
    assert snapshot(node.folder) == before


@pytest.mark.parametrize(("online", "as_kernel"), OFF[2:], ids=IDS[2:])
def test_the_first_run_writes_the_same(node, online, as_kernel, tmp_path):
    assert node.configure(node.on) == 0
    assert node.configure(node.off(online, as_kernel), tmp_path / "other") == 0
    assert settings_in(tmp_path / "other") == settings_in(node.folder)


def test_a_socket_that_cannot_be_read_stops_the_first_run(node, capsys):
    root = node.off(HOST, True)
    assert node.configure(root) == 2
    assert "echo 1 > /sys/devices/system/cpu/cpu16/online" in capsys.readouterr().err
    assert snapshot(node.folder) == {}
    # The cure: with that CPU alone the kernel says it.
    assert node.configure(node.on) == 0


@pytest.mark.parametrize(("online", "as_kernel"), OFF, ids=IDS)
def test_prepare_makes_the_same_hugepages(node, online, as_kernel, capsys):
    node.folder.mkdir()
    (node.folder / "node.yaml").write_text(
        "schema: nova-hpc/node\nversion: 1\nhugepages: {1G: 100}\n"
    )
    printed = []
    for root in (node.on, node.off(online, as_kernel)):
        assert node.run("prepare", root, "--boot-loader", "grub") == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "node1/hugepages" in printed[1]


@pytest.mark.parametrize(("online", "as_kernel"), OFF, ids=IDS)
def test_the_doctor_is_silent(node, online, as_kernel, capsys):
    assert node.configure(node.on) == 0
    said = []
    for root in (node.on, node.off(online, as_kernel)):
        capsys.readouterr()
        node.run("doctor", root, "-f", "json")
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert "cpu" not in said[1]


def test_without_power_management_nova_refuses_them(node, capsys):
    assert node.configure(node.on) == 0
    node.conf.write_text(CONF.replace("true", "false"))
    node.run("doctor", node.off(HOST, True), "-f", "json")
    out = capsys.readouterr().out
    assert "cpus-offline" in out
    assert "4-31,36-63" in out


@pytest.mark.parametrize("wanted", [1, 2])
def test_sets_of_ours_stay(node, wanted, capsys):
    """The cores of CPUs that are off are unknown: sets are kept, or nothing is written."""
    node.conf.write_text(POWER)
    node.folder.mkdir()
    declaration = node.folder / "node.yaml"
    text = "schema: nova-hpc/node\nversion: 1\ncpus: {{housekeeping_cores: {}}}\n"
    declaration.write_text(text.format(1))
    assert node.configure(node.on) == 0
    declaration.write_text(text.format(wanted))
    before = snapshot(node.folder)
    capsys.readouterr()
    status = node.configure(node.off((0, 16, 32, 48), True))
    out, err = capsys.readouterr()
    if wanted == 1:
        assert (status, "Nothing to do." in out) == (0, True)
    else:
        assert (status, "cannot be made" in err) == (2, True)
    assert snapshot(node.folder) == before


def test_cpus_that_are_off_for_good_are_in_no_set(node):
    node.conf.write_text("")
    assert node.configure(node.off([*range(31), *range(32, 63)], True)) == 0
    text = snapshot(node.folder)["nova-hpc-compute.conf"]
    assert "cpu_shared_set = 0,16,32,48\n" in text
    assert "cpu_dedicated_set = 1-15,17-30,33-47,49-62\n" in text


def test_present_cpus_that_cannot_be_read(node, capsys):
    present = node.on / "sys/devices/system/cpu/present"
    present.mkdir()
    assert node.configure(node.on) == 2
    assert "which CPUs are present" in capsys.readouterr().err
    assert snapshot(node.folder) == {}
    assert node.run("prepare", node.on) == 2


def test_a_capture_that_does_not_place_them(tmp_path, capsys):
    """No links, and no device on the NUMA node whose CPUs are all off."""
    machine = states.plain()
    root = write(dataclasses.replace(machine, roots=machine.roots[:1]), tmp_path / "one")
    states.switch_cpus_off(root, HOST, as_kernel=False)
    folder = tmp_path / "written"
    folder.mkdir()
    assert main(["configure", "--root", str(root), "--write", str(folder)]) == 2
    assert "are offline, and the kernel does not report" in capsys.readouterr().err
    assert snapshot(folder) == {}


@pytest.mark.parametrize("name", sorted(NODES))
def test_every_node_of_the_catalogue(name, tmp_path):
    root = write(NODES[name], tmp_path / "node")
    on = sysfs.read_sysfs_node(root)
    first = min(on.numa_nodes, key=lambda each: (not each.cpus, each.id))
    states.switch_cpus_off(root, first.cpus)
    off = sysfs.read_sysfs_node(root)
    assert [each.cpus for each in off.numa_nodes] == [each.cpus for each in on.numa_nodes]
    for function in on.functions:
        now = off.function(function.address)
        assert (now.numa_node, now.unknown) == (function.numa_node, function.unknown)
