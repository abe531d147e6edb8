# SPDX-License-Identifier: Apache-2.0
"""Devices that serve nobody, and of which no service says so: found, and cured as it is said."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace

import pytest

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.tenancy.storage import Erasers
from nova_hpc.topology import roles as offer_roles
from nova_hpc.topology import sysfs
from nova_hpc_tools.doctor import facts_host
from nova_hpc_tools.main import main
from nova_hpc_tools.site import device_spec, overlooked, readiness
from nova_hpc_tools.site.layout_cures import render_cure
from nova_hpc_tools.site.storage_findings import find_kept_storage
from tests.nodes.catalogue import NODES
from tests.nodes.reported import REPORTED
from tests.nodes.write import write
from tests.unit.node_files import declare, put

ROLES = offer_roles.parse_roles(DEFAULT_ROLES)
GPUS = ("0000:18:00.0", "0000:3a:00.0", "0000:9a:00.0", "0000:ba:00.0")


def looked(node, backend="none", hooks=(), table=ROLES):
    spec = device_spec.build_device_spec(node, table)
    offered = readiness.offered_functions_of(node, spec)
    found = [*overlooked.find_overlooked_devices(node, table, offered, False)]
    found += find_kept_storage(node, table, spec, [*spec.lines()], Erasers())
    return [*found, *overlooked.find_idle_nvswitches(node, table, offered, backend, hooks)]


@pytest.mark.parametrize("name", sorted(NODES))
def test_a_good_node_has_nothing(name, synthetic):
    """Disks and network of the host are not for servers, and nobody says they could be."""
    found = looked(sysfs.read_sysfs_node(synthetic(name)), "fabric-manager")
    assert found == []


@pytest.fixture
def node(tmp_path, monkeypatch, capsys):
    """Runs a command on a node that somebody reported."""
    home = tmp_path / "home"
    (home / ".nova/nova.conf.d").mkdir(parents=True)
    (home / ".nova/nova.conf").write_text("[DEFAULT]\n")
    monkeypatch.setenv("HOME", str(home))

    def run(root, *words):
        folder, named = home / ".nova/nova.conf.d", home / ".nova/nova.conf.d/node.yaml"
        mine = {
            "configure": ["--write", str(folder), "--part", "compute", "--part", "common"],
            "doctor": ["--declaration", str(named)],
        }
        status = main([words[0], "--root", str(root), *mine[words[0]], *words[1:]])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    run.folder = home / ".nova/nova.conf.d"
    run.conf = home / ".nova/nova.conf"
    return run


def findings(run, root, check):
    status, out, err = run(root, "doctor", "-f", "json")
    assert status in (0, 1, 3), err
    return [each for each in json.loads(out)["findings"] if each["check"] == check]


def offered(run):
    text = (run.folder / "nova-hpc-compute.conf").read_text()
    lines = [line.partition(" = ")[2] for line in text.splitlines() if "device_spec = " in line]
    return {json.loads(line)["address"]: json.loads(line)["hpc_role"] for line in lines}


def test_adapters_of_other_makes_have_their_ready_line(node, tmp_path):
    """Each line works as it is written, and takes nothing away."""
    root = write(REPORTED["otherfabrics"], tmp_path / "node")
    status, _, err = node(root, "configure")
    assert status == 0, err
    before = offered(node)
    assert {*GPUS} == before.keys()
    found = findings(node, root, "role-none")
    products = [re.search(r"[0-9a-f]{4}:[0-9a-f]{4}(?=,)", each["seen"])[0] for each in found]
    assert sorted(products) == ["14e4:1760", "17db:0501", "1dd8:1002", "434e:0001"]
    # Configure says the same.
    assert all(product in err for product in products)
    for each in found:
        command = each["cure"].partition("nova-hpc configure")[2].partition(", and restart")[0]
        words = shlex.split(command)
        status, _, err = node(root, "configure", *words[words.index("--add-device-role") :])
        assert status == 0, err
    assert findings(node, root, "role-none") == []
    after = offered(node)
    assert {each: after[each] for each in before} == before
    assert {"nicvf-14e4", "nicvf-1dd8", "nic-17db", "nic-434e"} <= {*after.values()}
    # Once more changes nothing.
    assert node(root, "configure")[1] == "Nothing to do.\n"
    line = (
        '{"role": "nicvf-14e4", "vendor_id": "14e4", "product_id": "1819", "dev_type": "type-VF"}'
    )
    assert node(root, "configure", "--add-device-role", line)[1] == "Nothing to do.\n"


def test_a_role_is_not_added_to_a_file_of_somebody_else(node, tmp_path):
    root = write(REPORTED["otherfabrics"], tmp_path / "node")
    mine = '{"role": "gpu", "vendor_id": "10de", "class": "0302"}'
    node.conf.write_text(f"[hpc]\ndevice_role = {mine}\n")
    assert node(root, "configure")[0] == 0
    found = findings(node, root, "role-none")
    assert found
    assert all("Add device_role = {" in each["cure"] for each in found)
    status, _, err = node(root, "configure", "--add-device-role", mine.replace("gpu", "card"))
    assert status == 2
    assert "add the line there" in err
    line = re.search(r"device_role = (\{.*?\})", found[0]["cure"])[1]
    node.conf.write_text(f"[hpc]\ndevice_role = {mine}\ndevice_role = {line}\n")
    assert node(root, "configure")[0] == 0
    assert len(findings(node, root, "role-none")) == len(found) - 1


def test_a_disk_for_servers_is_missed_and_a_disk_of_the_host_is_not(tmp_path):
    machine = REPORTED["otherfabrics"]

    def disks(driver):
        last = machine.roots[-1]
        ports = tuple(
            replace(each, below=(replace(each.below[0], driver=driver),)) for each in last.below
        )
        return replace(machine, roots=(*machine.roots[:-1], replace(last, below=ports)))

    for driver, expected in (("nvme", 0), ("vfio-pci", 1), (None, 0)):
        found = looked(sysfs.read_sysfs_node(write(disks(driver), tmp_path / str(driver))))
        said = [each for each in found if "144d:a80a" in each.seen]
        assert len(said) == expected
        if said:
            (said,) = said
            assert said.check == "storage-kept"
            assert "0000:d1:00.0, 0000:d2:00.0 (NVMe 144d:a80a, bound to vfio-pci)" in said.seen
            assert "a reset erases nothing" in said.seen
            cure = render_cure(said.cure)
            assert "driverctl unset-override 0000:d1:00.0; driverctl" in cure
            assert "device_role" not in cure
            assert "add-device-role" not in cure


@pytest.mark.parametrize("name", ["h200", "no-numa"])
def test_nvswitches_that_nobody_runs(name, node, tmp_path):
    root = write(REPORTED[name], tmp_path / "node")
    assert node(root, "configure")[0] == 2
    declare(node.folder / "node.yaml", offer_switches=False)
    assert node(root, "configure")[0] == 0
    (found,) = findings(node, root, "nvswitch-idle")
    assert "4c:00.0" in found["seen"]
    assert "no Fabric Manager runs them" in found["seen"]
    assert "write offer_switches: true into /etc/nova-hpc/node.yaml" in found["cure"]
    declare(node.folder / "node.yaml", offer_switches=True)
    assert node(root, "configure")[0] == 0
    assert findings(node, root, "nvswitch-idle") == []


def test_nvswitches_without_gpus(tmp_path):
    machine = REPORTED["h200"]
    alone = replace(machine, roots=tuple(each for each in machine.roots if each.bus == 0x48))
    node = sysfs.read_sysfs_node(write(alone, tmp_path / "node"))
    for backend in ("none", "fabric-manager"):
        (found,) = looked(node, backend)
        assert "no GPU that they could link" in found.seen


def test_a_numa_node_that_the_firmware_does_not_name(node, tmp_path):
    root = write(REPORTED["no-numa"], tmp_path / "node")
    declare(node.folder / "node.yaml", offer_switches=False)
    status, _, err = node(root, "configure")
    assert status == 0
    assert "the firmware names no NUMA node, and the host has 2." in err
    (found,) = findings(node, root, "numa-unknown")
    assert found["severity"] == "error"
    assert found["seen"].startswith("0000:18:00.1, ")
    assert "/sys/bus/pci/devices/0000:18:00.1/numa_node" in found["cure"]
    # One NUMA node: nobody has to say which.
    machine = REPORTED["no-numa"]
    one = replace(machine, numa=(replace(machine.numa[0], distances=(10,)),))
    (tmp_path / "one").mkdir()
    found = looked(sysfs.read_sysfs_node(write(one, tmp_path / "one")), "fabric-manager")
    assert [each.check for each in found] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#!/bin/bash\n/usr/bin/fmpm -a $id\n", True),
        ("import ctypes\nlib = ctypes.CDLL('libnvfm.so.1')\n", True),
        ("lib.fmActivateFabricPartition(handle, 3)\n", True),
        ("nvidia-fabric-partition --start 3", True),
        ("#!/bin/sh\n# fmpm -a $id\nexit 0\n", False),
        ("#!/bin/sh\nlogger partition of $1 starts\n", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("place", ["qemu", "qemu.d/50-nvlink"])
def test_hooks_of_libvirt(place, text, expected, tmp_path, synthetic):
    put(tmp_path, f"/etc/libvirt/hooks/{place}", text)
    node = sysfs.read_sysfs_node(synthetic("hgx-h100"))
    hooks = facts_host.read_host_facts(tmp_path, node, (), ()).partition_hooks
    assert hooks == ((f"/etc/libvirt/hooks/{place}",) if expected else ())
    for backend, words in (
        ("fabric-manager", "and nova-compute does, too"),
        ("none", "has no record of them"),
    ):
        found = looked(node, backend, hooks)
        if expected:
            assert [each.check for each in found] == ["nvswitch-hook"]
            assert words in found[0].seen
        else:
            assert "nvswitch-hook" not in [each.check for each in found]
    # Where there is nothing to link, a hook may do what it likes.
    assert looked(sysfs.read_sysfs_node(synthetic("two-socket")), "none", hooks) == []
