# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups from the bits of ACS, and what a change of them would bring together."""

import itertools

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.topology import iommu, peer_wish
from nova_hpc.topology.confspace import ACS_NEEDED
from nova_hpc.topology.model import BridgeKind, Node, PciFunction, address_key
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc.topology.sysfs import read_sysfs_node

MACHINES = ("hgx-h100", "xeon-snc4", "epyc-nps4", "gh200", "mi300x", "two-socket", "a100-bridges")


@pytest.mark.parametrize("name", MACHINES)
def test_as_the_kernel_forms_them(synthetic, name):
    """tests/nodes numbers the groups by its own reading of the kernel's rule."""
    node = read_sysfs_node(synthetic(name))
    found = {frozenset(each) for each in iommu.compute_iommu_groups(node)}
    kernels = {frozenset(each.members) for each in node.iommu_groups}
    assert found == kernels


def test_where_the_kernel_looks_away(synthetic):
    """A switch whose ports do not redirect: groups of their own, and one reach."""
    node = read_sysfs_node(synthetic("a100-bridges"))
    for switch in (each for each in node.functions if each.bridge is BridgeKind.UPSTREAM):
        below = {
            each.address
            for each in node.functions
            if switch.address in each.path and not each.is_bridge
        }
        assert any(below <= each for each in iommu.compute_reach_groups(node))


# -- any machine of one switch ---------------------------------------------------------------

CAPABILITIES = st.sampled_from([None, 0, 0x5F, 0x1D, 0x1F, 0x41])
BITS = (0x01, 0x02, 0x04, 0x08, 0x10, 0x40)


@st.composite
def machines(draw):
    """A root port, a switch with up to three ports, devices with one or two functions."""
    functions = []

    def port(address, path, kind, bridge=True):
        able = draw(CAPABILITIES)
        control = None
        if able is None:
            control = draw(st.sampled_from([None, 0]))  # unread, or without ACS
        else:
            control = sum(bit for bit in BITS if able & bit and draw(st.booleans()))
        functions.append(
            PciFunction(
                address,
                vendor_id=draw(st.sampled_from(["10de", "15b3"])),
                root="pci0000:10",
                path=path,
                bridge=kind,
                acs_capability=able,
                acs_control=control,
            )
        )

    root, up = "0000:10:00.0", "0000:11:00.0"
    port(root, (), BridgeKind.ROOT_PORT)
    port(up, (root,), BridgeKind.UPSTREAM)
    shared = draw(st.booleans())
    for number in range(draw(st.integers(1, 3))):
        down = f"0000:12:00.{number}" if shared else f"0000:12:0{number}.0"
        port(down, (root, up), BridgeKind.DOWNSTREAM)
        for each in range(draw(st.integers(1, 2))):
            port(f"0000:{0x13 + number:x}:00.{each}", (root, up, down), None)
            functions[-1] = attrs.evolve(
                functions[-1],
                class_code=draw(st.sampled_from(["030200", "020700"])),
                switches=(up,),
                ats=draw(st.sampled_from([True, False, None])),
            )
    return Node("test", functions=tuple(sorted(functions, key=lambda f: address_key(f.address))))


def brute(node, controls):
    """Pairs of functions that the kernel's rule puts together, asked pair by pair."""

    def acs(one):
        if one.bridge not in (BridgeKind.ROOT_PORT, BridgeKind.DOWNSTREAM):
            slot = [each for each in node.functions if each.address[:-2] == one.address[:-2]]
            if len(slot) == 1:
                return True
        control = controls.get(one.address, one.acs_control)
        if one.acs_capability is None or control is None:
            return False
        return not (ACS_NEEDED & one.acs_capability & ~control)

    def above(one):
        """The highest bridge that hides what is below it, else itself."""
        for depth, address in enumerate(one.path):
            if not all(acs(node.function(each)) for each in one.path[: depth + 1]):
                deepest = [
                    each
                    for index, each in enumerate(one.path)
                    if not all(acs(node.function(other)) for other in one.path[: index + 1])
                ]
                assert address in deepest
                return node.function(deepest[0])
        return one

    def together(one, other):
        first, second = above(one), above(other)
        if first.address == second.address:
            return True
        same_slot = first.address[:-2] == second.address[:-2]
        return same_slot and not acs(first) and not acs(second)

    return {
        frozenset((one.address, other.address))
        for one, other in itertools.combinations(node.functions, 2)
        if together(one, other)
    }


def pairs_of(groups):
    return {frozenset(pair) for each in groups for pair in itertools.combinations(sorted(each), 2)}


@given(machines(), st.data())
def test_groups_against_brute_force(node, data):
    bridges = [each.address for each in node.functions if each.acs_control is not None]
    chosen = data.draw(st.lists(st.sampled_from(bridges), unique=True)) if bridges else []
    controls = {each: data.draw(st.sampled_from([0, 0x1D, 0x5D])) for each in chosen}
    groups = iommu.compute_iommu_groups(node, controls)
    assert pairs_of(groups) == brute(node, controls)
    assert sorted(itertools.chain(*groups)) == sorted(each.address for each in node.functions)
    # Together by the kernel's rule is together in reach.
    assert pairs_of(groups) <= pairs_of(iommu.compute_reach_groups(node, controls))


@given(machines(), st.sampled_from(PeerWish))
def test_no_wish_ever_brings_together_what_is_apart(node, wish):
    """The kernel's groups before; after all changes nobody reaches into another one."""
    numbers = {}
    for number, group in enumerate(iommu.compute_iommu_groups(node)):
        numbers.update(dict.fromkeys(group, number))
    node = Node(
        "test",
        functions=tuple(
            attrs.evolve(each, iommu_group=numbers[each.address]) for each in node.functions
        ),
    )
    plan = peer_wish.plan_peer_changes(node, wish)
    before = pairs_of(iommu.compute_reach_groups(node))
    after = pairs_of(
        iommu.compute_reach_groups(node, {each.port: each.after for each in plan.changes})
    )
    for pair in after - before:
        devices = [node.function(each) for each in pair]
        assert (
            any(each.is_bridge for each in devices)
            or devices[0].iommu_group == devices[1].iommu_group
        )
    for change in plan.changes:
        able = node.function(change.port).acs_capability or 0
        assert not (change.before ^ change.after) & ~peer_wish.CHANGED
        assert not change.after & ~change.before & ~able
