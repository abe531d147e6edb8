# SPDX-License-Identifier: Apache-2.0
"""Peer-to-peer below a switch, with and without ACS redirect."""

import json
import struct

import attrs
import pytest

from nova_hpc.guest_tree import guest_document
from nova_hpc.topology import confspace, peer, peer_registers
from nova_hpc.topology.model import BridgeKind, Node, PciFunction
from nova_hpc.topology.peer import PeerPair, PeerPath, PeerReason
from nova_hpc.topology.peer_wish import PeerWish
from nova_hpc.topology.sysfs import read_sysfs_node
from nova_hpc_guest import compare, show, terms
from nova_hpc_guest import document as told
from nova_hpc_guest.machine import GuestMachine as Guest
from nova_hpc_tools.inventory import text
from nova_hpc_tools.wire import inventory
from tests.unit.topology.builder import Machine, config

REDIRECT = 0x1D  # as the kernel sets it
DIRECT = 0x5D
NOTHING = 0x00


def machine(one, other, ats=(None, None)):
    """A root port, a switch with two ports, and a device at each; two more apart."""
    root, up, down = "0000:10:00.0", "0000:11:00.0", ("0000:12:00.0", "0000:12:01.0")
    functions = [
        PciFunction(root, root="pci0000:10", bridge=BridgeKind.ROOT_PORT, acs_control=REDIRECT),
        PciFunction(up, root="pci0000:10", path=(root,), bridge=BridgeKind.UPSTREAM),
    ]
    for number, control in enumerate((one, other)):
        path = (root, up, down[number])
        functions += [
            PciFunction(
                down[number],
                root="pci0000:10",
                path=path[:2],
                bridge=BridgeKind.DOWNSTREAM,
                acs_control=control,
            ),
            PciFunction(f"0000:1{3 + number}:00.0", root="pci0000:10", path=path, ats=ats[number]),
        ]
    functions.append(PciFunction("0000:20:00.0", root="pci0000:20"))
    return Node(source="test", functions=tuple(functions))


@pytest.mark.parametrize(
    ("ports", "ats", "found"),
    [
        ((NOTHING, NOTHING), (None, None), PeerPath.SWITCH),
        ((REDIRECT, NOTHING), (True, True), PeerPath.ROOT),
        ((NOTHING, REDIRECT), (None, None), PeerPath.ROOT),
        ((DIRECT, DIRECT), (True, True), PeerPath.SWITCH),
        ((DIRECT, DIRECT), (True, False), PeerPath.ROOT),
        ((DIRECT, DIRECT), (True, None), PeerPath.UNKNOWN),
        ((None, NOTHING), (True, True), PeerPath.UNKNOWN),
        ((None, REDIRECT), (True, True), PeerPath.ROOT),
    ],
)
def test_a_switch(ports, ats, found):
    node = machine(*ports, ats)
    one, other = node.function("0000:13:00.0"), node.function("0000:14:00.0")
    assert peer.peer_path_between(node, one, other) is found
    assert peer.peer_path_between(node, other, one) is found
    assert peer.switch_paths_of(node) == {"0000:11:00.0": found}
    functions = json.loads(inventory.write_inventory(node))["functions"]
    said = {each["address"]: each["peer_to_peer"] for each in functions if each["peer_to_peer"]}
    assert said == ({} if found is PeerPath.UNKNOWN else {"0000:11:00.0": found.value})
    drawn = "\n".join(text.draw_node_lines(node))
    assert ("P2P via root^" in drawn) == (found is PeerPath.ROOT)
    assert ("ACS redirect" in drawn) == (found is PeerPath.ROOT)


def test_no_switch_is_shared():
    node = machine(NOTHING, NOTHING)
    one, apart = node.function("0000:13:00.0"), node.function("0000:20:00.0")
    assert peer.peer_path_between(node, one, apart) is PeerPath.NONE
    assert peer.peer_path_between(node, one, one) is PeerPath.UNKNOWN


def test_the_ports_of_a_machine_are_read(tmp_path):
    made = Machine(tmp_path)
    place = "pci0000:10/0000:10:00.0"
    made.bridge(place, 4, (0x11, 0x14))
    made.bridge(f"{place}/0000:11:00.0", 5, (0x12, 0x14), acs=None)
    for number, acs in enumerate(((0x5F, 0x1D), (0x5F, 0x00))):
        port = f"{place}/0000:11:00.0/0000:12:0{number}.0"
        made.bridge(port, 6, (0x13 + number, 0x13 + number), acs=acs)
        made.function(f"{port}/0000:1{3 + number}:00.0")
    assert peer.switch_paths_of(read_sysfs_node(tmp_path)) == {"0000:11:00.0": PeerPath.ROOT}


GPU, CARD = "0000:13:00.0", "0000:14:00.0"


def with_card(ports, gpu=(None, None), card=(None, None), vf=(None, None)):
    """The machine with a GPU at one port, and an adapter with one VF at the other."""
    node = machine(*ports)
    ids = {"vendor_id": "10de", "product_id": "2330", "switches": ("0000:11:00.0",)}
    one = attrs.evolve(node.function(GPU), class_code="030200", ats=gpu[0], ats_enabled=gpu[1])
    two = attrs.evolve(node.function(CARD), class_code="020700", ats=card[0], ats_enabled=card[1])
    three = attrs.evolve(
        two, address="0000:14:00.1", physical_function=CARD, ats=vf[0], ats_enabled=vf[1]
    )
    others = [each for each in node.functions if each.address not in (GPU, CARD)]
    made = [attrs.evolve(each, **ids) for each in (one, two, three)]
    return Node(source="test", functions=(*others, *made))


@pytest.mark.parametrize(
    ("ports", "gpu", "vf", "path", "why"),
    [
        ((NOTHING, NOTHING), None, None, "switch", "no-redirect"),
        ((REDIRECT, DIRECT), True, True, "root", "acs-redirect"),
        ((DIRECT, DIRECT), True, False, "root", "no-ats"),
        ((DIRECT, DIRECT), True, True, "switch", "ats"),
        ((DIRECT, NOTHING), True, False, "switch", "ats"),
        ((None, NOTHING), True, True, None, "unreadable"),
        ((DIRECT, DIRECT), None, True, None, "unreadable"),
    ],
)
def test_a_gpu_and_an_adapter(ports, gpu, vf, path, why):
    node = with_card(ports, gpu=(gpu, gpu), card=(vf, vf), vf=(vf, vf))
    (found,) = json.loads(inventory.write_inventory(node))["peer_pairs"]
    both = False if False in (gpu, vf) else None if None in (gpu, vf) else True
    assert found == {
        "gpu": GPU,
        "adapter": CARD,
        "members": [CARD, "0000:14:00.1"],
        "peer_to_peer": path,
        "why": why,
        "ats_enabled": both,
        "as_wished": None,
        "lacks": [],
    }
    claimed = [GPU, "0000:14:00.1", "0000:ff:00.0"]
    assert peer.count_redirected_pairs(node, claimed) == ((1, 1) if path == "root" else None)
    assert peer.count_redirected_pairs(node, [GPU]) is None
    known = () if path is None else ((0, 1, PeerReason(why)),)
    assert peer.peer_reasons_between(node, [*reversed(claimed)]) == known
    assert ("P2P?" in "\n".join(text.draw_node_lines(node))) == (path is None)
    # The same in the document for a guest with the GPU and the VF, without addresses.
    given = [
        guest_document.DocumentDevice(GPU),
        guest_document.DocumentDevice("0000:14:00.1"),
        guest_document.DocumentDevice("0000:10:00.0"),
    ]
    data = guest_document.build_guest_entries(node, "flat", (), given)[terms.DOCUMENT]
    (said,) = json.loads(data)["peer_to_peer"]
    assert said == {"device": 0, "with": [1], "path": path, "why": why}
    read_back = told.parse_guest_document(data)
    assert read_back.peers == (told.Peers(0, (1,), path, why),)
    result = compare.compare_with_machine(read_back, Guest((), (), {}))
    remarks = [each for each in result.findings if each.kind == "peer"]
    assert [each.wrong for each in remarks] == [False] * (path != "switch")
    assert show.build_report_data(read_back, result)["peer_to_peer"] == [said | {"as_wished": None}]
    shown = list(show.format_promise_tree(read_back, result))
    words = {"switch": "stays below it", "root": "through the root complex", None: "not known"}
    assert shown[-1].startswith(f"  0 with 1: {words[path]}: ")


@pytest.mark.parametrize(
    ("wish", "ports", "ats", "as_wished"),
    [
        (PeerWish.KEEP, (REDIRECT, REDIRECT), True, None),
        (PeerWish.TRANSLATED, (REDIRECT, REDIRECT), True, False),
        (PeerWish.TRANSLATED, (DIRECT, DIRECT), False, False),
        (PeerWish.TRANSLATED, (DIRECT, DIRECT), True, True),
        (PeerWish.TRANSLATED, (None, None), None, None),
        (PeerWish.DIRECT, (DIRECT, DIRECT), True, False),
        (PeerWish.DIRECT, (NOTHING, NOTHING), False, True),
    ],
)
def test_the_guest_is_told_what_the_operator_wishes(wish, ports, ats, as_wished):
    node = with_card(ports, gpu=(ats, ats), card=(ats, ats))
    given = [guest_document.DocumentDevice(GPU), guest_document.DocumentDevice(CARD)]
    data = guest_document.build_guest_entries(node, "flat", (), given, wish=wish)[terms.DOCUMENT]
    found = json.loads(data)
    # Nothing is said where nothing is wished: a document of a cloud without it is the same.
    assert found.get("peer_wish") == (None if wish is PeerWish.KEEP else wish.value)
    assert found["peer_to_peer"][0].get("as_wished") == as_wished
    read_back = told.parse_guest_document(data)
    assert (read_back.peer_wish, read_back.peers[0].as_wished) == (wish.value, as_wished)
    result = compare.compare_with_machine(read_back, Guest((), (), {}))
    head, line = list(show.format_promise_tree(read_back, result))[-2:]
    assert head == "peer-to-peer below one switch" + (
        "" if wish is PeerWish.KEEP else f", wished: {wish.value}"
    )
    assert line.endswith(", not as wished") == (as_wished is False)
    shown = show.build_report_data(read_back, result)
    assert (shown["peer_wish"], shown["peer_to_peer"][0]["as_wished"]) == (wish.value, as_wished)
    (pair,) = json.loads(inventory.write_inventory(node, wish))["peer_pairs"][:1]
    assert pair["as_wished"] == as_wished  # host and guest say the same


def test_a_wish_of_a_later_cloud_or_nonsense():
    node = with_card((NOTHING, NOTHING))
    given = [guest_document.DocumentDevice(GPU), guest_document.DocumentDevice(CARD)]
    text = guest_document.build_guest_entries(node, "flat", (), given, wish=PeerWish.DIRECT)[
        terms.DOCUMENT
    ]
    found = json.loads(text)
    later = told.parse_guest_document(json.dumps(found | {"peer_wish": "magic"}).encode())
    assert later.peer_wish is None
    result = compare.compare_with_machine(later, Guest((), (), {}))
    assert "peer-to-peer below one switch, wished: not known" in show.format_promise_tree(
        later, result
    )
    for wrong in (None, 1, True, [], "x" * 65, ""):
        with pytest.raises(told.DocumentError, match="peer_wish"):
            told.parse_guest_document(json.dumps(found | {"peer_wish": wrong}).encode())
    found["peer_to_peer"][0]["as_wished"] = 1
    with pytest.raises(told.DocumentError, match="as_wished"):
        told.parse_guest_document(json.dumps(found).encode())


def test_registers_that_come_from_elsewhere(tmp_path):
    """As of a privileged helper: what a reading without them says then is the same."""
    made = Machine(tmp_path)
    place = "pci0000:10/0000:10:00.0"
    made.bridge(place, 4, (0x11, 0x14))
    made.bridge(f"{place}/0000:11:00.0", 5, (0x12, 0x14), acs=None)
    express = config(0x10DE, 0x2330, 0x030200)
    for number, class_code in enumerate((0x030200, 0x020700)):
        port = f"{place}/0000:11:00.0/0000:12:0{number}.0"
        made.bridge(port, 6, (0x13 + number, 0x13 + number), acs=(0x5F, REDIRECT))
        made.function(
            f"{port}/0000:1{3 + number}:00.0",
            files={"class": f"0x{class_code:06x}"},
            space=express,
        )
    full = read_sysfs_node(tmp_path)
    blind = attrs.evolve(
        full,
        functions=tuple(
            attrs.evolve(each, acs_capability=None, acs_control=None, ats=None, ats_enabled=None)
            for each in full.functions
        ),
    )
    devices = ["0000:13:00.0", "0000:14:00.0"]
    assert peer.peer_reasons_between(blind, devices) == ()
    assert peer.peer_reasons_between(full, devices) == ((0, 1, PeerReason.REDIRECT),)
    lacking = peer_registers.find_unread_functions(blind, [*devices, "0000:ff:00.0"])
    assert lacking == ("0000:12:00.0", "0000:12:01.0", *devices)
    spaces = {
        each: (tmp_path / "sys/bus/pci/devices" / each / "config").read_bytes() for each in lacking
    }
    again = peer_registers.with_registers(blind, spaces)
    assert peer.peer_reasons_between(again, devices) == peer.peer_reasons_between(full, devices)
    assert peer_registers.find_unread_functions(again, devices) == ()
    # Ports that say nothing are asked for no more than once by anybody, and change nothing.
    silent = peer_registers.with_registers(blind, dict.fromkeys(lacking, b"\xff" * 4096))
    assert silent == blind
    assert peer_registers.find_unread_functions(full, devices[:1]) == ()


def test_functions_of_one_adapter_that_differ():
    node = with_card((DIRECT, DIRECT), (True, True), (True, True), (True, False))
    assert list(peer.find_peer_pairs(node)) == [
        PeerPair(GPU, CARD, (CARD,), PeerPath.SWITCH, PeerReason.ATS, True),
        PeerPair(GPU, CARD, ("0000:14:00.1",), PeerPath.SWITCH, PeerReason.ATS, False),
    ]


def test_a_document_that_says_nothing_of_it_or_nonsense():
    node = with_card((NOTHING, NOTHING))
    given = [guest_document.DocumentDevice(GPU), guest_document.DocumentDevice(CARD)]
    found = json.loads(guest_document.build_guest_entries(node, "flat", (), given)[terms.DOCUMENT])
    said = found.pop("peer_to_peer")[0]
    assert told.parse_guest_document(json.dumps(found).encode()).peers == ()
    found["peer_to_peer"] = [said | {"why": "of-a-later-cloud"}]
    assert told.parse_guest_document(json.dumps(found).encode()).peers[0].why is None
    for wrong in ({"device": 2}, {"with": [7]}, {"with": 1}, {"path": "moon"}, {"why": 1}):
        found["peer_to_peer"] = [said | wrong]
        with pytest.raises(told.DocumentError, match="peer_to_peer 0"):
            told.parse_guest_document(json.dumps(found).encode())


@pytest.mark.parametrize(("control", "enabled"), [(0x8000, True), (0x0001, False)])
def test_ats_is_read(control, enabled):
    data = bytearray(4096)
    struct.pack_into("<HHHH", data, 0, 0x15B3, 0x101E, 0, 0x10)
    data[0x34] = 0x40
    data[0x40:0x44] = bytes((0x10, 0, 2, 0))  # PCI Express
    struct.pack_into("<IHH", data, 0x100, 0x0001_000F, 0, control)
    assert confspace.parse_config_space(bytes(data)).ats is True
    assert confspace.parse_config_space(bytes(data)).ats_enabled is enabled
    assert confspace.parse_config_space(bytes(data[:256])).ats_enabled is None
    data[0x100] = 0
    assert confspace.parse_config_space(bytes(data)).ats_enabled is False
