# SPDX-License-Identifier: Apache-2.0
"""A machine with NVMe disks below the switches of its GPUs: who gets a disk, and which one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.topology import sysfs
from nova_hpc_common.level import Distance, Level
from tests.nodes.catalogue import NODES
from tests.nodes.describe import DIRECT, Machine, Root
from tests.nodes.parts import adapter, gpu, nvme, port, switch
from tests.nodes.write import write
from tests.unit.nodes import walk
from tests.unit.nodes.walk import command

GROUP = {"affinity": "switch", "group": "gpu:1,vf:1,nvme:1"}
COUNTS = {"gpu": 1, "vf": 1, "nvme": 1}
#: Disks below the first three of four switches; the third has no adapter.
DISKS = ("0000:18:00.0", "0000:3a:00.0", "0000:9a:00.0")
#: What erases a disk, beside the role.
ERASE = {
    "service-vm": ["clean_stage = nvme:service-vm", "clean_checks = nvme:nvme"],
    "host": ["clean_stage = nvme:host", "clean_checks = nvme:nvme", "clean_drivers = nvme:nvme"],
}


def machine(driver: str = "vfio-pci") -> Machine:
    """Like DGX H100, whose data disks are below the switches of the GPUs."""

    def disk(number: int) -> object:
        return replace(nvme(number), driver=driver, devices={})

    def root(bus: int, numa: int, *below: object) -> Root:
        card = gpu("10de:2330", "10de:16c1", bus + 6)
        leaf = switch(bus + 2, *below, card, acs=DIRECT)
        return Root(0, bus, numa, (port("01.0", bus + 1, leaf),))

    return replace(
        NODES["hgx-h100"],
        name="disks",
        roots=(
            root(0x15, 0, disk(1), adapter(0, 0x19)),
            root(0x37, 0, disk(2), adapter(1, 0x3B)),
            root(0x97, 1, disk(3)),
            root(0xB7, 1, adapter(2, 0xBA)),
            Root(0, 0xD0, 1, (port("01.0", 0xD1, replace(nvme(9), devices={"nvme": "nvme9"})),)),
        ),
    )


@pytest.fixture
def found(tmp_path):
    """The node, and the host that its entries make with these options of ``[hpc]``."""

    def of(*options, **pattern):
        root = write(machine(), tmp_path / "disks")
        role = {"role": "nvme", "vendor_id": "144d", "class": "0108"} | pattern
        lines = [f"device_role = {each}" for each in (*DEFAULT_ROLES, json.dumps(role))]
        config = tmp_path / "conf"
        config.write_text("\n".join(["[hpc]", *lines, *options, ""]))
        spec = command("--root", root, "--show", "device-spec", "--config-file", config)
        node = sysfs.read_sysfs_node(root)
        return node, walk.host(node, spec)

    return of


@pytest.mark.parametrize("way", sorted(ERASE))
def test_one_switch_has_all_three(found, way, tmp_path):
    node, host = found(*ERASE[way])
    # The disk that the kernel of the host uses has a role, too; the declaration leaves it out.
    assert set(DISKS) <= {pool.id for pool in host.pools if pool.role == "nvme"}
    answer = walk.ask(host, COUNTS, 1, GROUP)
    best = answer.sets[0]
    assert (best.level, best.distance) == (Level.SWITCH, Distance.PIX)
    given = walk.given(node, answer)
    assert sorted(role for _, role in given) == ["gpu", "nvme", "vf"]
    places = {node.function(address).location for address, _ in given}
    assert len(places) == 1
    # The guest sees the disk in the same way as the GPU.
    text, names = walk.nccl_file(tmp_path, node, given, answer)
    assert len(names) == 3
    assert "0x010802" not in text


def test_two_groups_take_the_two_switches_that_have_all_three(found):
    node, host = found(*ERASE["host"])
    double = {role: 2 * count for role, count in COUNTS.items()}
    given = walk.given(node, walk.ask(host, double, 1, GROUP))
    assert sorted(address for address, role in given if role == "nvme") == list(DISKS[:2])
    three = walk.ask(host, dict.fromkeys(COUNTS, 3), 1, {**GROUP, "affinity": "host"})
    assert three.sets
    refused = walk.ask(host, dict.fromkeys(COUNTS, 3), 2, GROUP)
    assert not refused.sets
    assert "1 nvme" in refused.miss.operator


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("clean_stage = nvme:service-vm",),
        ("clean_stage = nvme:host", "clean_checks = nvme:nvme"),
        ("clean_stage = gpu:service-vm", "clean_checks = nvme:nvme"),
        (*ERASE["host"], "clean_devices = false"),
    ],
)
def test_without_an_erase_no_disk_is_there_to_be_chosen(found, options):
    _, host = found(*options)
    assert not [pool for pool in host.pools if pool.role == "nvme" or pool.id in DISKS]
    answer = walk.ask(host, COUNTS, 1, GROUP)
    assert not answer.sets
    assert "nvme" in answer.miss.user
