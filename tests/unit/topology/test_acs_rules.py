# SPDX-License-Identifier: Apache-2.0
"""Single rules of ACS isolation and of peer redirect, each in a machine that shows it alone.

The tests beside this one compare whole machines; what they have in all of their machines
at once, they cannot tell apart.
"""

from __future__ import annotations

import pytest

from nova_hpc.topology import iommu, peer, peer_registers, peer_wish
from nova_hpc.topology.model import BridgeKind, Node, PciFunction
from nova_hpc.topology.peer import PeerPath, PeerReason
from nova_hpc.topology.peer_wish import AcsChange, PeerWish

#: Validation, request and completion redirect, upstream forwarding.
ISOLATES = 0x1D
DIRECT = 0x40
ABLE = 0x5F
ROOT, UP = "0000:10:00.0", "0000:11:00.0"
GPU, CARD = "030200", "020700"


def bridge(address, kind, *path, control=ISOLATES, able=ABLE, **more):
    if kind is BridgeKind.UPSTREAM:
        control = able = None  # it has none, and needs none
    return PciFunction(
        address,
        root="pci0000:10",
        path=path,
        bridge=kind,
        acs_capability=able,
        acs_control=control,
        **more,
    )


def port(number, control=ISOLATES, **more):
    return bridge(
        f"0000:12:{number:02x}.0", BridgeKind.DOWNSTREAM, ROOT, UP, control=control, **more
    )


def device(address, kind, *path, **more):
    switches = tuple(each for each in path[::-1] if each in (UP, "0000:21:00.0"))
    ids = {"vendor_id": "10de", "class_code": kind, "switches": switches}
    return PciFunction(address, root="pci0000:10", path=path, **{**ids, **more})


def below(number, kind, **more):
    """What is at a port of the switch."""
    return device(f"0000:{0x30 + number:x}:00.0", kind, ROOT, UP, f"0000:12:{number:02x}.0", **more)


def node(*functions, inactive=()):
    head = (bridge(ROOT, BridgeKind.ROOT_PORT), bridge(UP, BridgeKind.UPSTREAM, ROOT))
    given = {each.address for each in functions}
    head = tuple(each for each in head if each.address not in given)
    return Node("test", functions=(*head, *functions), inactive=inactive)


def together(found, *addresses):
    """Whether one group has all of them."""
    return any(set(addresses) <= each for each in found)


# -- redirect of peers -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("control", "why"),
    [
        (0x04, PeerReason.REDIRECT),  # requests alone
        (0x08, PeerReason.REDIRECT),  # completions alone
        (0x13, PeerReason.FREE),  # validation, blocking and forwarding redirect nothing
        (0x04 | DIRECT, PeerReason.ATS),
        (DIRECT, PeerReason.FREE),
    ],
)
def test_each_bit_of_redirect(control, why):
    ats = {"ats": True, "ats_enabled": True}
    made = node(port(0, control), port(1, 0), below(0, GPU, **ats), below(1, CARD, **ats))
    (pair,) = peer.find_peer_pairs(made)
    assert pair.why is why
    assert pair.path is peer.peer_path_by_reason(why)
    assert peer.switch_paths_of(made) == {UP: peer.peer_path_by_reason(why)}


def test_what_shares_no_switch_is_not_counted():
    apart = device("0000:40:00.0", CARD)
    made = node(port(0), port(1), below(0, GPU), below(1, CARD), apart)
    addresses = [each.address for each in made.functions if not each.is_bridge]
    assert peer.count_redirected_pairs(made, addresses) == (1, 1)


def test_a_device_at_no_port_of_the_switch():
    """As the management endpoint of the switch itself: its port is not known."""
    inside = device("0000:12:1f.0", CARD, ROOT, UP)
    made = node(port(0), below(0, GPU), inside)
    assert peer.judge_peer_path(made, made.function("0000:30:00.0"), inside) == (
        PeerPath.UNKNOWN,
        PeerReason.UNREADABLE,
    )


def test_a_switch_with_devices_at_one_port_has_no_peers():
    assert peer.switch_paths_of(node(port(0), port(1), below(0, GPU))) == {}


def test_the_device_speaks_for_a_port_and_not_a_switch_above_it():
    """Two switches in a row: of the outer one's ports, one has the inner switch first."""
    inner, down = "0000:21:00.0", "0000:22:00.0"
    way = (ROOT, UP, "0000:12:00.0")
    ats = {"ats": True, "ats_enabled": True}
    made = node(
        port(0, ISOLATES | DIRECT),
        port(1, ISOLATES | DIRECT),
        bridge(inner, BridgeKind.UPSTREAM, *way),
        bridge(down, BridgeKind.DOWNSTREAM, *way, inner),
        device("0000:23:00.0", GPU, *way, inner, down, **ats),
        below(1, CARD, **ats),
    )
    assert peer.switch_paths_of(made) == {UP: PeerPath.SWITCH}


def test_a_device_that_answers_with_ones_says_nothing():
    """What was known of it before stays."""
    made = node(port(0), port(1), below(0, GPU, ats=True), below(1, CARD, ats=True))
    silent = dict.fromkeys(("0000:12:00.0", "0000:30:00.0"), b"\xff" * 4096)
    assert peer_registers.with_registers(made, silent) == made


# -- what is wished ---------------------------------------------------------------------


def test_a_port_that_redirects_nothing_is_left_alone():
    """Devices without ATS lack nothing there, and no bit is set."""
    ats = {"ats": False, "ats_enabled": False}
    made = node(port(0, 0), port(1, 0x13), below(0, GPU, **ats), below(1, CARD, **ats))
    assert peer_wish.plan_peer_changes(made, PeerWish.TRANSLATED) == peer_wish.PeerPlan()
    assert peer_wish.plan_peer_changes(made, PeerWish.DIRECT) == peer_wish.PeerPlan()


def test_direct_takes_the_redirect_alone_away():
    before = ISOLATES | DIRECT
    made = node(port(0, before), port(1, before), below(0, GPU), below(1, CARD))
    assert peer_wish.plan_peer_changes(made, PeerWish.DIRECT).changes == (
        AcsChange("0000:12:00.0", before, before & ~0x0C),
        AcsChange("0000:12:01.0", before, before & ~0x0C),
    )


def test_ports_that_cannot_be_told_apart_are_said():
    """A GPU and an adapter that are functions of one device."""
    way = (ROOT, UP, "0000:12:00.0")
    one, two = device("0000:30:00.0", GPU, *way), device("0000:30:00.1", CARD, *way)
    found = peer_wish.plan_peer_changes(node(port(0), one, two), PeerWish.TRANSLATED)
    assert found.changes == ()
    (lacks,) = found.lacks.values()
    assert [(each.address, each.what, each.unread) for each in lacks] == [
        ("0000:30:00.0", "the ports above it cannot be distinguished", True)
    ]


@pytest.mark.parametrize(("count", "others"), [(4, False), (5, True)])
def test_four_are_named_and_more_are_others(count, others):
    functions = []
    for number in range(count):
        kind = GPU if number == 0 else CARD
        functions += [port(number), below(number, kind, iommu_group=number)]
    texts = peer_wish.plan_peer_changes(node(*functions), PeerWish.DIRECT).texts
    assert texts
    assert all(("and others" in each) is others for each in texts)
    named = ", ".join(f"0000:{0x30 + number:x}:00.0" for number in range(4))
    assert all(named in each for each in texts)


# -- isolation ----------------------------------------------------------------------------


def test_a_switch_is_judged_by_its_own_ports():
    """A port of a switch further down that does not isolate joins what is below that alone."""
    inner = "0000:21:00.0"
    way = (ROOT, UP, "0000:12:00.0")
    inside = [f"0000:22:0{number}.0" for number in range(2)]
    made = node(
        port(0),
        port(1),
        bridge(inner, BridgeKind.UPSTREAM, *way),
        *(bridge(each, BridgeKind.DOWNSTREAM, *way, inner, control=0) for each in inside),
        device("0000:23:00.0", GPU, *way, inner, inside[0]),
        device("0000:24:00.0", CARD, *way, inner, inside[1]),
        below(1, CARD),
    )
    found = iommu.compute_reach_groups(made)
    assert together(found, "0000:23:00.0", "0000:24:00.0")
    assert not together(found, "0000:23:00.0", "0000:31:00.0")


def test_only_what_a_change_touches_is_lost_by_it():
    """What the kernel keeps apart elsewhere by a quirk is no reason against another port."""
    quirk = ("0000:52:00.0", "0000:52:01.0")
    way = ("0000:50:00.0", "0000:51:00.0")
    made = node(
        port(0),
        port(1),
        below(0, GPU, iommu_group=1),
        below(1, CARD, iommu_group=2),
        bridge(way[0], BridgeKind.ROOT_PORT),
        bridge(way[1], BridgeKind.UPSTREAM, way[0]),
        *(bridge(each, BridgeKind.DOWNSTREAM, *way, control=0) for each in quirk),
        device("0000:53:00.0", GPU, *way, quirk[0], iommu_group=3),
        device("0000:54:00.0", CARD, *way, quirk[1], iommu_group=4),
    )
    assert iommu.find_joined_devices(made, {"0000:12:00.0": ISOLATES | DIRECT}) == ()
    assert iommu.find_joined_devices(made, {"0000:12:00.0": 0}) == ("0000:30:00.0", "0000:31:00.0")
    assert iommu.find_joined_devices(made, {quirk[0]: DIRECT}) == ("0000:53:00.0", "0000:54:00.0")


def test_a_bridge_in_another_group_is_no_loss():
    ports = (port(0, iommu_group=1), port(1, iommu_group=2))
    devices = (below(0, GPU, iommu_group=3), below(1, CARD, iommu_group=3))
    made = node(*ports, *devices)
    assert iommu.find_joined_devices(made, {"0000:12:00.0": 0}) == ()


def test_an_inactive_function_is_in_its_slot_all_the_same():
    """A switch whose upstream port is one of two functions, without ACS: it hides nothing."""
    idle = bridge("0000:11:00.1", BridgeKind.ROOT_PORT, ROOT, control=None, able=None)
    functions = (port(0), port(1), below(0, GPU), below(1, CARD))
    assert not together(
        iommu.compute_iommu_groups(node(*functions)), "0000:30:00.0", "0000:31:00.0"
    )
    found = iommu.compute_iommu_groups(node(*functions, inactive=(idle,)))
    assert together(found, "0000:30:00.0", "0000:31:00.0")


def test_a_bridge_that_is_not_known_isolates_nothing():
    """A capture may have been thinned."""
    way = ("0000:0f:00.0", ROOT)
    made = node(bridge(ROOT, BridgeKind.ROOT_PORT, way[0]), device("0000:30:00.0", GPU, *way))
    assert together(iommu.compute_iommu_groups(made), ROOT, "0000:30:00.0")


def test_behind_a_bridge_to_conventional_pci_all_are_one():
    """Whatever it says, and though it is alone in its slot."""
    pci = "0000:13:00.0"
    way = (ROOT, pci)
    made = node(
        bridge(pci, BridgeKind.PCI, ROOT),
        device("0000:14:01.0", GPU, *way),
        device("0000:14:02.0", CARD, *way),
    )
    assert together(iommu.compute_iommu_groups(made), pci, "0000:14:01.0", "0000:14:02.0")
