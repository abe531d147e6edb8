# SPDX-License-Identifier: Apache-2.0
"""Declared virtual functions that are not there: one finding, and no adapter given whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nova_hpc.conf.roles import DEFAULT_ROLES
from nova_hpc.topology import roles, sysfs
from nova_hpc_tools.adopt import at_boot, host
from nova_hpc_tools.site import device_spec, mlxconfig, readiness
from nova_hpc_tools.site.declaration import EVERY, Declaration
from nova_hpc_tools.site.declared_vfs import FirmwareSriov, check_firmware, list_declared_vfs
from nova_hpc_tools.site.kernel_options import KernelOptions
from nova_hpc_tools.site.layout_cures import render_cure
from nova_hpc_tools.wire.node_declaration import DeclaredDevice, NodeWishes
from tests.nodes.describe import DIRECT, Machine, Processor, Root, Vfs
from tests.nodes.parts import XEON, adapter, gpu, numa_nodes, port, switch
from tests.nodes.write import write

TABLE = roles.parse_roles(DEFAULT_ROLES)
PF = "0000:18:00.0"
OFF = "no SR-IOV capability"


def read(folder, total):
    """A node with an adapter whose firmware allows *total* functions; None: it has SR-IOV off."""
    nic = adapter(0, 0x18, vfs=0)
    nic = replace(nic, vfs=None if total is None else Vfs("101e", 0, total))
    below = switch(0x17, nic, gpu("10de:2330", "10de:16c1", 0x19), acs=DIRECT)
    machine = Machine(
        "nosriov",
        numa_nodes(2, 1, 8, 64, {2048: 0, 1048576: 8}),
        (Root(0, 0x15, 0, (port("01.0", 0x16, below),)),),
        Processor(XEON, sibling=16),
    )
    return sysfs.read_sysfs_node(write(machine, folder))


def judge(node, wishes, firmware=None):
    vfs = list_declared_vfs(wishes, TABLE, node)
    whole = frozenset(device.address for device in wishes.whole_pf or ())
    wish = Declaration(vfs=vfs, whole=whole)
    spec = device_spec.build_device_spec(node, TABLE, wish)
    ready = readiness.check_readiness(node, spec, TABLE, wishes, KernelOptions(), {})
    ready += check_firmware(node, TABLE, wishes, firmware or {})
    offered = {address for offer in spec.offers for address in offer.functions}
    return spec, offered, [each for each in ready if "vf" in each.check or each.check == "driver"]


@pytest.mark.parametrize(
    ("total", "has"), [(None, OFF), (0, "room for 0"), (4, "room for 4"), (16, None)]
)
@pytest.mark.parametrize("wish", [{"pf": 8}, {PF: 8}])
def test_one_finding_and_nothing_is_given_whole(tmp_path, total, has, wish):
    """Before: the whole adapter was offered as nic, and doctor had it bound to vfio-pci."""
    node = read(tmp_path / "node", total)
    place = node.functions[[each.vendor_id for each in node.functions].index("15b3")].address
    wishes = NodeWishes(vfs={place if key == PF else key: count for key, count in wish.items()})
    spec, offered, found = judge(node, wishes)
    assert place not in offered
    (said,) = found
    cure = render_cure(said.cure)
    assert place in said.seen
    if has is None:
        assert said.check == "vfs-declared"
        assert f"echo 8 > /sys/bus/pci/devices/{place}/sriov_numvfs" in cure
    else:
        assert said.check == "vfs-firmware"
        assert has in said.seen
        assert f"mlxconfig -d {place} set SRIOV_EN=1 NUM_OF_VFS=8, then" in cure
        assert "cold start" in cure
        assert "sriov_numvfs" not in cure
    assert "driverctl" not in cure
    # The start of the host does not bind it either.
    boot = at_boot.foresee_boot(node, TABLE, wishes, whole=(), left_out=())
    plan = host.plan_host_start(
        boot,
        device_spec.build_device_spec(
            boot.node, TABLE, Declaration(vfs=list_declared_vfs(wishes, TABLE, boot.node))
        ),
        TABLE,
        wishes,
        Declaration(),
        never=(),
        used={},
        iommu=None,
        kernel=KernelOptions(),
    )
    assert place not in {bound.address for bound in plan.vfio}
    assert [each.address for each in plan.adapters] == ([place] if has is None else [])
    assert bool(plan.notes and "Its firmware has to allow" in plan.notes[0]) is (has is not None)
    assert {item.address for item in spec.omitted} >= {place}


def test_what_is_declared_for_a_role_is_not_for_all(tmp_path):
    """Adapters that are given whole, or are left out, have no finding."""
    node = read(tmp_path / "node", None)
    place = next(each.address for each in node.functions if each.vendor_id == "15b3")
    for wishes in (
        NodeWishes(vfs={"pf": 8}, whole_pf=(DeclaredDevice(place),)),
        NodeWishes(vfs={"pf": 8}, whole_pf=(DeclaredDevice(EVERY),)),
        NodeWishes(vfs={"pf": 8}, left_out=(DeclaredDevice(place),)),
        NodeWishes(vfs={"pf": 0}),
        NodeWishes(vfs={"gpu": 8}),
    ):
        _, _, found = judge(node, wishes)
        assert [each.check for each in found if each.check != "driver"] == []
    _, offered, _ = judge(node, NodeWishes(vfs={"pf": 8}, whole_pf=(DeclaredDevice(place),)))
    assert place in offered


def test_an_adapter_that_is_meant_whole_has_no_finding(tmp_path):
    """The cure that doctor gives for an adapter without virtual functions."""
    node = read(tmp_path / "node", 16)
    place = next(each.address for each in node.functions if each.vendor_id == "15b3")
    for whole, checks in ((), ["vfs-none"]), ((place,), []), ((EVERY,), []):
        wishes = NodeWishes(whole_pf=tuple(map(DeclaredDevice, whole)))
        found = [each.check for each in judge(node, wishes)[2] if each.check == "vfs-none"]
        assert found == checks


def test_firmware_that_waits_for_a_cold_start(tmp_path):
    node = read(tmp_path / "node", None)
    place = next(each.address for each in node.functions if each.vendor_id == "15b3")
    for told, waits in ((FirmwareSriov(True, 8), True), (FirmwareSriov(True, 4), False)):
        _, _, (said,) = judge(node, NodeWishes(vfs={"pf": 8}), {place: told})
        assert ("mlxconfig" in render_cure(said.cure)) is not waits
        assert ("after a cold start" in said.seen) is waits


ANSWER = """
Device #1:
----------

Device type:    ConnectX7
Name:           MCX75310AAS-NEA_Ax
Device:         0000:18:00.0

Configurations:                                      Next Boot
        SRIOV_EN                                    True(1)
        NUM_OF_VFS                                  8
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (ANSWER, FirmwareSriov(True, 8)),
        (ANSWER.replace("True(1)", "False(0)"), FirmwareSriov(False, 8)),
        # With the columns of "-e": default, current, next boot.
        (
            ANSWER.replace("True(1)", "False(0)  False(0)  True(1)").replace("  8", "  0  0  8"),
            FirmwareSriov(True, 8),
        ),
        (ANSWER.replace("NUM_OF_VFS", "OTHER"), None),
        (ANSWER.replace("  8", "  Array[0..7]"), None),
        (ANSWER + ANSWER, None),
        ("-E- Failed to open the device", None),
        ("", None),
    ],
)
def test_the_answer_of_mlxconfig(text, told):
    assert mlxconfig.parse_sriov_answer(text) == told


def test_mlxconfig_is_asked_and_sets_nothing(tmp_path, monkeypatch):
    program = tmp_path / "mlxconfig"
    log = tmp_path / "log"
    program.write_text(f"#!/bin/sh\necho \"$@\" >> {log}\ncat <<'END'\n{ANSWER}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert mlxconfig.read_firmware_sriov(tmp_path, [PF]) == {}
    root = tmp_path / "elsewhere"
    root.symlink_to("/")
    assert mlxconfig.read_firmware_sriov(root, [PF]) == {PF: FirmwareSriov(True, 8)}
    assert log.read_text() == f"-d {PF} query SRIOV_EN NUM_OF_VFS\n"
    program.write_text("#!/bin/sh\nexit 3\n")
    assert mlxconfig.read_firmware_sriov(root, [PF]) == {}
