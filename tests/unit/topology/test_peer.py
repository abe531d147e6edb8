"""Peer-to-peer below a switch, with and without ACS redirect."""

import json

import pytest

from nova_hpc.topology import document, peer, text
from nova_hpc.topology.model import BridgeKind, Function, Node
from nova_hpc.topology.peer import Peer
from nova_hpc.topology.sysfs import read
from tests.unit.topology.builder import Machine

REDIRECT = 0x1D  # as the kernel sets it
DIRECT = 0x5D
NOTHING = 0x00


def machine(one, other, ats=(None, None)):
    """A root port, a switch with two ports, and a device at each; two more apart."""
    root, up, down = "0000:10:00.0", "0000:11:00.0", ("0000:12:00.0", "0000:12:01.0")
    functions = [
        Function(root, root="pci0000:10", bridge=BridgeKind.ROOT_PORT, acs_control=REDIRECT),
        Function(up, root="pci0000:10", path=(root,), bridge=BridgeKind.UPSTREAM),
    ]
    for number, control in enumerate((one, other)):
        path = (root, up, down[number])
        functions += [
            Function(
                down[number],
                root="pci0000:10",
                path=path[:2],
                bridge=BridgeKind.DOWNSTREAM,
                acs_control=control,
            ),
            Function(f"0000:1{3 + number}:00.0", root="pci0000:10", path=path, ats=ats[number]),
        ]
    functions.append(Function("0000:20:00.0", root="pci0000:20"))
    return Node(source="test", functions=tuple(functions))


@pytest.mark.parametrize(
    ("ports", "ats", "found"),
    [
        ((NOTHING, NOTHING), (None, None), Peer.SWITCH),
        ((REDIRECT, NOTHING), (True, True), Peer.ROOT),
        ((NOTHING, REDIRECT), (None, None), Peer.ROOT),
        ((DIRECT, DIRECT), (True, True), Peer.SWITCH),
        ((DIRECT, DIRECT), (True, False), Peer.ROOT),
        ((DIRECT, DIRECT), (True, None), Peer.UNKNOWN),
        ((None, NOTHING), (True, True), Peer.UNKNOWN),
        ((None, REDIRECT), (True, True), Peer.ROOT),
    ],
)
def test_a_switch(ports, ats, found):
    node = machine(*ports, ats)
    one, other = node.function("0000:13:00.0"), node.function("0000:14:00.0")
    assert peer.path(node, one, other) is found
    assert peer.path(node, other, one) is found
    assert peer.switches(node) == {"0000:11:00.0": found}
    functions = json.loads(document.dumps(node))["functions"]
    said = {each["address"]: each["peer_to_peer"] for each in functions if each["peer_to_peer"]}
    assert said == ({} if found is Peer.UNKNOWN else {"0000:11:00.0": found.value})
    drawn = "\n".join(text.lines(node))
    assert ("P2P via root^" in drawn) == (found is Peer.ROOT)
    assert ("ACS redirect" in drawn) == (found is Peer.ROOT)


def test_no_switch_is_shared():
    node = machine(NOTHING, NOTHING)
    one, apart = node.function("0000:13:00.0"), node.function("0000:20:00.0")
    assert peer.path(node, one, apart) is Peer.NONE
    assert peer.path(node, one, one) is Peer.UNKNOWN


def test_the_ports_of_a_machine_are_read(tmp_path):
    made = Machine(tmp_path)
    place = "pci0000:10/0000:10:00.0"
    made.bridge(place, 4, (0x11, 0x14))
    made.bridge(f"{place}/0000:11:00.0", 5, (0x12, 0x14), acs=None)
    for number, acs in enumerate(((0x5F, 0x1D), (0x5F, 0x00))):
        port = f"{place}/0000:11:00.0/0000:12:0{number}.0"
        made.bridge(port, 6, (0x13 + number, 0x13 + number), acs=acs)
        made.function(f"{port}/0000:1{3 + number}:00.0")
    assert peer.switches(read(tmp_path)) == {"0000:11:00.0": Peer.ROOT}
