# SPDX-License-Identifier: Apache-2.0
"""What is wished of peer-to-peer: planned, set in a node's files, read back, refused."""

import json
import os
import struct

import attrs
import pytest

from nova_hpc.tenancy.peer import acs_registers
from nova_hpc.tenancy.peer.acs_registers import PeerError, PeerOutcome
from nova_hpc.tenancy.peer.step import PeerToPeerStep
from nova_hpc.tenancy.step import NodeView
from nova_hpc.topology import confspace, peer, peer_wish
from nova_hpc.topology.peer import PeerPath, PeerReason
from nova_hpc.topology.peer_wish import AcsChange, PeerWish
from nova_hpc.topology.sysfs import read_sysfs_node
from nova_hpc_tools.inventory import peer_text
from nova_hpc_tools.wire import inventory
from tests.nodes.describe import Machine, Processor, Root
from tests.nodes.parts import XEON, adapter, gpu, numa_nodes, port, switch
from tests.nodes.write import write as build

DEVICES = "sys/bus/pci/devices"


PORTS, PAIRS = 4, 4


@pytest.fixture
def small(tmp_path):
    """A leaf of an HGX H100: two GPUs and two adapters below a switch that isolates."""
    leaf = switch(
        0x17,
        adapter(0, 0x18, vfs=2),
        gpu("10de:2330", "10de:16c1", 0x19),
        adapter(1, 0x1A, vfs=2),
        gpu("10de:2330", "10de:16c1", 0x1B),
    )
    cells = numa_nodes(1, 1, 2, 4, {2048: 0})
    roots = (Root(0, 0x15, 0, (port("01.0", 0x16, leaf),)),)
    return build(Machine("small", cells, roots, Processor(XEON, sibling=2)), tmp_path / "node")


def space(root, address):
    return root / os.path.realpath(root / DEVICES / address / "config")


def control(root, address):
    data = space(root, address).read_bytes()
    return struct.unpack_from("<H", data, confspace.acs_control_at(data))[0]


def patch(root, address, offset, value):
    path = space(root, address)
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, offset, value)
    path.write_bytes(data)


def states(root):
    return {(each.path, each.why) for each in peer.find_peer_pairs(read_sysfs_node(root))}


def test_translated_is_set_and_read_back(small):
    assert states(small) == {(PeerPath.ROOT, PeerReason.REDIRECT)}
    groups = read_sysfs_node(small).iommu_groups
    before = {
        each.address: space(small, each.address).read_bytes()
        for each in read_sysfs_node(small).functions
    }
    found = acs_registers.apply_peer_wish(small, PeerWish.TRANSLATED)
    assert len(found.made) == PORTS
    assert (found.failed, found.lacks) == ({}, ())
    assert states(small) == {(PeerPath.SWITCH, PeerReason.ATS)}
    assert read_sysfs_node(small).iommu_groups == groups
    assert all(control(small, each) == 0x5D for each in found.made)
    # Nothing else was touched, in these ports or anywhere.
    for address, data in before.items():
        now = bytearray(space(small, address).read_bytes())
        if address in found.made:
            struct.pack_into("<H", now, confspace.acs_control_at(data), 0x1D)
        assert bytes(now) == data, address
    # Again: nothing to do.
    assert acs_registers.apply_peer_wish(small, PeerWish.TRANSLATED) == PeerOutcome()


def test_direct_would_join_groups_and_is_refused(small):
    node = read_sysfs_node(small)
    plan = peer_wish.plan_peer_changes(node, PeerWish.DIRECT)
    assert plan.changes == ()
    assert set(plan.lacks) == set(peer.find_peer_pairs(node))
    assert all("past the IOMMU" in each for each in plan.texts)
    assert len(plan.texts) == PORTS
    found = acs_registers.apply_peer_wish(small, PeerWish.DIRECT)
    assert (found.made, found.lacks) == ((), plan.texts)
    assert states(small) == {(PeerPath.ROOT, PeerReason.REDIRECT)}


def test_direct_where_one_group_has_it_all(small):
    """The root ports do not isolate, so the kernel has all below each in one group."""
    node = read_sysfs_node(small)
    groups = {}
    for each in node.functions:
        groups[each.address] = each.path[0] if each.path else each.address
    numbers = {name: number for number, name in enumerate(sorted(set(groups.values())))}
    joined = attrs.evolve(
        node,
        functions=tuple(
            attrs.evolve(each, iommu_group=numbers[groups[each.address]]) for each in node.functions
        ),
    )
    plan = peer_wish.plan_peer_changes(joined, PeerWish.DIRECT)
    assert len(plan.changes) == PORTS
    assert plan.lacks == {}
    assert {each.after for each in plan.changes} == {0x1D & ~0x0C}


def test_keep_touches_nothing(small):
    assert acs_registers.apply_peer_wish(small, PeerWish.KEEP) == PeerOutcome()
    assert (
        peer_wish.plan_peer_changes(read_sysfs_node(small), PeerWish.KEEP) == peer_wish.PeerPlan()
    )


def first_pair(root):
    return next(peer.find_peer_pairs(read_sysfs_node(root)))


def no_ats(root, address):
    """As firmware without ATS has it: the capability is of an unknown kind."""
    path = space(root, address)
    data = bytearray(path.read_bytes())
    offset = 0x100
    while struct.unpack_from("<H", data, offset)[0] != 0x0F:
        offset = struct.unpack_from("<I", data, offset)[0] >> 20
    struct.pack_into("<H", data, offset, 0x7777)
    path.write_bytes(data)


def test_firmware_without_ats_is_named_with_the_command(small):
    pair = first_pair(small)
    for each in pair.functions:
        no_ats(small, each)
    found = acs_registers.apply_peer_wish(small, PeerWish.TRANSLATED)
    assert len(found.made) == PORTS
    assert found.lacks == (
        f"{pair.adapter}: its firmware does not offer ATS: mlxconfig -d {pair.adapter} set "
        "ATS_ENABLED=1, and a cold start of the node",
    )
    no_ats(small, pair.gpu)
    assert f"{pair.gpu}: it has no ATS, or its firmware does not offer it" in (
        acs_registers.apply_peer_wish(small, PeerWish.TRANSLATED).lacks
    )


@pytest.mark.parametrize(
    ("able", "does", "words"),
    [
        (0x1F, 0x1D, "the switch has no direct translated peer-to-peer"),
        (0x5F, 0x1F, "the kernel blocks translated requests there"),
    ],
)
def test_ports_that_cannot(small, able, does, words):
    where = peer_wish.plan_peer_changes(read_sysfs_node(small), PeerWish.TRANSLATED).changes[0].port
    at = confspace.acs_control_at(space(small, where).read_bytes())
    patch(small, where, at - 2, able)
    patch(small, where, at, does)
    found = acs_registers.apply_peer_wish(small, PeerWish.TRANSLATED)
    assert len(found.made) == PORTS - 1
    assert [each for each in found.lacks if each.startswith(f"{where}: {words}")]
    assert control(small, where) == does


def test_who_is_not_root_is_told_so(small):
    where = peer_wish.plan_peer_changes(read_sysfs_node(small), PeerWish.TRANSLATED).changes[0].port
    path = space(small, where)
    path.write_bytes(path.read_bytes()[:64])
    found = peer_wish.plan_peer_changes(read_sysfs_node(small), PeerWish.TRANSLATED)
    assert f"{where}: its registers cannot be read; only root can" in found.texts
    assert where not in [each.port for each in found.changes]


def loop(root, address):
    """Capabilities that never end: the last one leads to the first."""
    path = space(root, address)
    data = bytearray(path.read_bytes())
    offset = 0x100
    while struct.unpack_from("<I", data, offset)[0] >> 20:
        offset = struct.unpack_from("<I", data, offset)[0] >> 20
    head = struct.unpack_from("<I", data, offset)[0]
    struct.pack_into("<I", data, offset, head | 0x100 << 20)
    path.write_bytes(data)


def test_lists_of_capabilities_that_loop(small):
    """In every function: what is found is the same, and the search ends."""
    before = read_sysfs_node(small)
    for each in before.functions:
        if each.acs_capability is not None and len(space(small, each.address).read_bytes()) == 4096:
            loop(small, each.address)
    assert read_sysfs_node(small).functions == before.functions
    assert len(acs_registers.apply_peer_wish(small, PeerWish.TRANSLATED).made) == PORTS
    # And where the list leads nowhere before the one that is looked for.
    where = peer_wish.plan_peer_changes(before, PeerWish.TRANSLATED).changes[0].port
    patch(small, where, 0x102, 0x1001)  # the first leads to itself
    assert confspace.acs_control_at(space(small, where).read_bytes()) is None
    with pytest.raises(PeerError, match=r"it has no ACS any more"):
        acs_registers.write_acs_control(small, AcsChange(where, 0x5D, 0x1D))


# -- writing ----------------------------------------------------------------------------------


def test_what_is_not_ours_is_never_written(small):
    change = peer_wish.plan_peer_changes(read_sysfs_node(small), PeerWish.TRANSLATED).changes[0]
    for after in (0x1C, 0x5F, 0x00):
        with pytest.raises(PeerError, match=r"changes bits that are not ours"):
            acs_registers.write_acs_control(small, attrs.evolve(change, after=after))
    with pytest.raises(PeerError, match=r"has changed in the meantime"):
        acs_registers.write_acs_control(small, attrs.evolve(change, before=0x5D, after=0x1D))
    with pytest.raises(PeerError, match=r"it is gone"):
        acs_registers.write_acs_control(small, attrs.evolve(change, port="0000:ff:00.0"))
    assert control(small, change.port) == 0x1D


def test_a_register_that_does_not_take_it(small, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: len(data))
    found = acs_registers.apply_peer_wish(small, PeerWish.TRANSLATED)
    assert found.made == ()
    assert len(found.failed) == PORTS
    assert all("reads back as 0x001d, not 0x005d" in each for each in found.failed.values())


def test_a_kernel_that_forbids_it(small, monkeypatch):
    def deny(handle, data, offset):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pwrite", deny)
    found = acs_registers.apply_peer_wish(small, PeerWish.TRANSLATED)
    assert all("cannot be written: [Errno 1]" in each for each in found.failed.values())


# -- the step ----------------------------------------------------------------------------------


def test_the_step_sets_says_and_sets_again(small):
    step = PeerToPeerStep(small, PeerWish.TRANSLATED)
    view = NodeView(read_sysfs_node(small))
    notes = step.begin(view)
    assert len(notes) == PORTS
    assert all("is set as [hpc]peer_to_peer wishes" in each for each in notes)
    assert step.begin(NodeView(read_sysfs_node(small))) == ()
    assert step.withhold(NodeView(read_sysfs_node(small)), None).notes == ()
    where = notes[0].split()[2]
    at = confspace.acs_control_at(space(small, where).read_bytes())
    patch(small, where, at, 0x1D)  # a reset of the switch
    found = step.withhold(NodeView(read_sysfs_node(small)), None)
    assert (found.findings, len(found.notes)) == ({}, 1)
    assert control(small, where) == 0x5D


def test_the_step_survives_its_helper(small):
    def gone(root, wish):
        raise ConnectionError("the daemon has ended")

    (note,) = PeerToPeerStep(small, PeerWish.TRANSLATED, gone).begin(
        NodeView(read_sysfs_node(small))
    )
    assert "is not made: ConnectionError: the daemon has ended" in note


def test_a_node_without_pairs_is_left_alone(synthetic):
    step = PeerToPeerStep(synthetic("bare"), PeerWish.TRANSLATED, lambda root, wish: 1 / 0)
    view = NodeView(read_sysfs_node(synthetic("bare")))
    assert step.begin(view) == ()
    assert step.withhold(view, None).notes == ()


# -- what people see ---------------------------------------------------------------------------


def test_the_inventory_says_it_of_each_pair(small):
    pair = first_pair(small)
    for each in pair.functions:
        no_ats(small, each)
    before = json.loads(inventory.write_inventory(read_sysfs_node(small), PeerWish.TRANSLATED))
    assert before["peer_wish"] == "translated"
    assert not any(each["as_wished"] for each in before["peer_pairs"])
    acs_registers.apply_peer_wish(small, PeerWish.TRANSLATED)
    after = json.loads(inventory.write_inventory(read_sysfs_node(small), PeerWish.TRANSLATED))[
        "peer_pairs"
    ]
    slow = [each for each in after if not each["as_wished"]]
    assert {each["adapter"] for each in slow} == {pair.adapter}
    assert "mlxconfig" in slow[0]["lacks"][0]["text"]
    drawn = list(peer_text.format_peer_lines(read_sysfs_node(small), PeerWish.TRANSLATED))
    assert drawn[0].endswith("([hpc]peer_to_peer = translated)")
    (line,) = [each for each in drawn if "not as wished" in each]
    assert line.startswith(f"  {len(slow)} pairs: {pair.gpu} with {pair.adapter} and 2 virtual ")
    assert "virtual functions: through the root" in line
    # Without a wish nothing is missed.
    assert all(
        each["as_wished"] is None
        for each in json.loads(inventory.write_inventory(read_sysfs_node(small)))["peer_pairs"]
    )
    assert not [
        each for each in peer_text.format_peer_lines(read_sysfs_node(small)) if "wished" in each
    ]
