# SPDX-License-Identifier: Apache-2.0
"""What the first write takes away, and the operator's decision."""

import pytest

from nova_hpc.fabric.partitions.backends.base import AuditState
from nova_hpc.fabric.partitions.first_write import (
    audit_first_write,
    list_table_losses,
    parse_accepted_losses,
    render_accepted_losses,
)
from nova_hpc.fabric.partitions.keys import Membership
from nova_hpc.fabric.partitions.own_partitions import OwnPartitions, parse_own_partitions
from nova_hpc.fabric.partitions.partition_file import PartitionLayout, render_body, render_file
from nova_hpc.fabric.partitions.port_tables import EndPort, FabricPorts, PortTables

SITE = "Default=0x7fff, ipoib : ALL=limited, SELF=full ;\na=2 : 0xa=full ;\n"
AGENTS = render_file(render_body(PartitionLayout(), OwnPartitions()), 3)
MANAGER, A, B, SWITCH = 0x1, 0xA, 0xB, 0x5
LOSS_A = "port 0x000000000000000a: 0x8002"
LOSS_B = "port 0x000000000000000b: 0x0002"


def fabric(silent=0):
    kinds = {MANAGER: "ca", A: "ca", B: "ca", SWITCH: "switch"}
    ports = {guid: EndPort(guid, kind, 1, 1) for guid, kind in kinds.items()}
    return FabricPorts(ports, MANAGER, silent=silent)


def tables(**of):
    """Entries of the own table of each port beside 0x7fff."""
    plain = {MANAGER: {0xFFFF}, A: {0x7FFF}, B: {0x7FFF}, SWITCH: {0x7FFF}}
    guids = {"manager": MANAGER, "a": A, "b": B, "switch": SWITCH}
    found = plain | {guids[name]: entries for name, entries in of.items()}
    return {
        guid: PortTables(None if entries is None else frozenset(entries), None)
        for guid, entries in found.items()
    }


def losses(own="", silent=0, networks=None, **of):
    layout = PartitionLayout(networks or {})
    found = parse_own_partitions(own)
    return list(list_table_losses(fabric(silent), tables(**of), found, layout))


def test_a_fabric_without_keys_loses_nothing():
    assert losses() == []
    # opensm's allow_both_pkeys.
    assert losses(manager={0x7FFF, 0xFFFF}) == []


@pytest.mark.parametrize(
    ("of", "own", "named"),
    [
        ({"a": {0x7FFF, 0x8002}}, "", [LOSS_A]),
        ({"a": {0x7FFF, 0x8002}}, "a=2 : 0xa=full ;", []),
        ({"a": {0x7FFF, 0x8002}}, "a=2 : 0xa ;", [f"{LOSS_A} becomes 0x0002"]),
        ({"a": {0x7FFF, 0x0002}}, "a=2 : 0xa=full ;", []),
        ({"a": {0x7FFF, 0x8002}, "b": {0x7FFF, 2}}, "a=2 : 0xa=full ;", [LOSS_B]),
        ({"a": {0x7FFF, 0x8002, 0x8003}}, "", [LOSS_A, LOSS_A.replace("8002", "8003")]),
        ({"a": {0xFFFF}}, "", ["port 0x000000000000000a: 0xffff becomes 0x7fff"]),
        ({"a": {0xFFFF}}, "Default=0x7fff : 0xa=full ;", []),
        ({"switch": {0x7FFF, 9}}, "a=9 : ALL_CAS ;", ["port 0x0000000000000005: 0x0009"]),
        ({"switch": {0x7FFF, 9}}, "a=9 : ALL_SWITCHES ;", []),
        ({"manager": {0xFFFF, 0x8009}}, "a=9 : SELF=full ;", []),
        ({"a": None}, "", ["port 0x000000000000000a: its P_Key table could not be read"]),
    ],
)
def test_each_port_that_would_lose_a_key_is_named(of, own, named):
    assert losses(own, **of) == named


def test_what_networks_have_is_no_loss():
    networks = {0x101: {A: Membership.FULL, B: Membership.LIMITED}}
    assert losses(networks=networks, a={0x7FFF, 0x8101}, b={0x7FFF, 0x0101}) == []
    named = losses(networks=networks, a={0x7FFF, 0x8101, 0x8002}, b={0x7FFF, 0x8101})
    assert named == [LOSS_A, "port 0x000000000000000b: 0x8101 becomes 0x0101"]


def test_ports_that_do_not_answer_are_unknown():
    assert losses(silent=2) == ["2 ports are up and do not answer: their P_Keys are unknown"]


def test_all_losses_wait_for_the_operator():
    row = audit_first_write([LOSS_A, LOSS_B], [])
    assert (row.state, row.needed) == (AuditState.NOT_MET, True)
    assert row.found == f"would be lost: {LOSS_A}; {LOSS_B}"
    assert "--accept-losses" in row.cure


def test_a_longer_list_is_not_covered():
    decision = render_accepted_losses(SITE, [LOSS_A])
    accepted = parse_accepted_losses(decision, SITE)
    assert audit_first_write([LOSS_A], accepted).state is AuditState.MET
    row = audit_first_write([LOSS_A, LOSS_B], accepted)
    assert (row.state, row.found) == (AuditState.NOT_MET, f"would be lost: {LOSS_B}")
    # Of a port that went off the fabric nothing is lost.
    assert audit_first_write([], accepted).state is AuditState.MET


@pytest.mark.parametrize(
    "decision",
    [None, "", "# nova-hpc accepted losses, version 2", LOSS_A, "\n", "# other\nport\n"],
)
def test_a_broken_decision_is_none(decision):
    assert parse_accepted_losses(decision, SITE) == frozenset()


def test_a_decision_is_about_one_file():
    decision = render_accepted_losses(SITE, [LOSS_A])
    for other in (None, "", f"{SITE}\n", AGENTS):
        assert parse_accepted_losses(decision, other) == frozenset()
    for end in range(len(decision)):
        assert parse_accepted_losses(decision[:end], SITE) == frozenset()
    assert parse_accepted_losses(render_accepted_losses("\udcff", ["a"]), "\udcff") == {"a"}
