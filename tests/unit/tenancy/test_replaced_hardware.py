# SPDX-License-Identifier: Apache-2.0
"""Hardware that took the place of a server's is cleaned before the server starts again."""

from __future__ import annotations

import json

import attrs
import pytest

from nova_hpc.tenancy.guest_domains import (
    DomainCondition,
    NodeGuestDomain,
    NodeGuestDomains,
    PassedFunctions,
)
from nova_hpc.tenancy.health_states import HealthRules
from nova_hpc.tenancy.identity import move_entries_with_hardware
from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.tenancy.step import DeviceTenant, NodeView, RefusedError
from nova_hpc.topology import sysfs
from nova_hpc.wire.ledger import SOMEBODY, DeviceState, Ledger, LedgerDevice, read_ledger
from tests.unit.tenancy.hygiene_node import GPU, OTHER, make, record, sweep

ONE = "11111111-1111-1111-1111-111111111111"
TWO = "22222222-2222-2222-2222-222222222222"
THIRD = "0000:44:00.0"


# -- the entry ------------------------------------------------------------------------


def held(**servers):
    """A ledger with a card at each place: its number, and the server that has it."""
    places = {"a": GPU, "b": OTHER}
    return Ledger(
        {
            places[card]: LedgerDevice(hardware=f"serial:{card}", server=server)
            for card, server in servers.items()
        }
    )


def follow(ledger, seen):
    return move_entries_with_hardware(ledger, seen).ledger


def test_a_new_card_at_the_place_of_a_server():
    moved = follow(held(a=ONE), {GPU: "serial:c"})
    assert moved.device(GPU) == LedgerDevice(hardware="serial:c", server=SOMEBODY, replaced=True)
    assert not moved.absent["serial:a"].replaced
    # What comes back may have been elsewhere meanwhile.
    assert follow(moved, {GPU: "serial:a"}).device(GPU).replaced
    # And so for what takes the place of a card that was replaced and cleaned.
    clean = moved.put({GPU: attrs.evolve(moved.device(GPU), server=None, proof="")})
    assert follow(clean, {GPU: "serial:d"}).device(GPU).replaced


def test_a_new_card_at_a_free_place():
    assert not follow(held(a=None), {GPU: "serial:c"}).device(GPU).replaced


@pytest.mark.parametrize(("one", "two", "replaced"), [(ONE, TWO, True), (ONE, ONE, False)])
def test_two_cards_change_places(one, two, replaced):
    moved = follow(held(a=one, b=two), {GPU: "serial:b", OTHER: "serial:a"})
    assert [moved.device(each).replaced for each in (GPU, OTHER)] == [replaced, replaced]
    assert [moved.device(each).server for each in (GPU, OTHER)] == [two, one]


def test_servers_that_are_not_known_are_never_the_same():
    moved = follow(held(a=SOMEBODY, b=SOMEBODY), {GPU: "serial:b", OTHER: "serial:a"})
    assert moved.device(GPU).replaced
    assert moved.device(OTHER).replaced


def test_a_card_that_only_moved_to_another_slot():
    """Its server keeps the place, not the card: whatever comes there next it has not had."""
    moved = follow(held(a=ONE), {THIRD: "serial:a"})
    assert moved.device(THIRD).server == ONE
    assert not moved.device(THIRD).replaced
    assert moved.device(GPU) == LedgerDevice(replaced=True)
    assert moved.marked == {THIRD: ONE}
    later = follow(moved, {THIRD: "serial:a", GPU: "serial:c"})
    assert later.device(GPU) == LedgerDevice(hardware="serial:c", replaced=True)
    # Of a place that no server held nothing is left.
    assert GPU not in follow(held(a=None), {THIRD: "serial:a"}).devices


@pytest.mark.parametrize(
    ("recorded", "seen", "replaced"),
    [
        (f"slot:{GPU}", f"slot:{GPU}", False),
        (None, f"slot:{GPU}", False),
        (None, "serial:a", False),  # it was never asked
        ("serial:a", "serial:a", False),
        ("serial:a", f"slot:{GPU}", True),
        (f"slot:{GPU}", "serial:a", True),
    ],
)
def test_hardware_without_a_number(recorded, seen, replaced):
    ledger = Ledger({GPU: LedgerDevice(hardware=recorded, server=ONE)})
    assert follow(ledger, {GPU: seen}).device(GPU).replaced is replaced
    free = Ledger({GPU: LedgerDevice(hardware=recorded, reason="kept")})
    assert not follow(free, {GPU: seen}).device(GPU).replaced


def test_a_stage_that_is_due_is_not_due_of_the_server():
    stage = {"phase": "due", "server": ONE, "since": 1.0}
    ledger = Ledger(held(a=ONE).devices, absent={"serial:c": LedgerDevice(stage=stage)})
    assert follow(ledger, {GPU: "serial:c"}).device(GPU).stage == {**stage, "server": SOMEBODY}


def test_the_text_of_a_ledger():
    ledger = Ledger({GPU: LedgerDevice(hardware="serial:a", replaced=True), OTHER: LedgerDevice()})
    assert read_ledger(ledger.dumps()) == ledger
    body = json.loads(ledger.dumps())
    assert body["devices"][GPU]["replaced"] is True
    assert "replaced" not in body["devices"][OTHER]
    body["devices"][GPU]["replaced"] = "damaged"
    assert read_ledger(json.dumps(body)).device(GPU).replaced
    # As it was written before there was such a key.
    del body["devices"][GPU]["replaced"]
    assert not read_ledger(json.dumps(body)).device(GPU).replaced


# -- a server starts again ----------------------------------------------------------


def domain_of(server, *addresses, live):
    passed = PassedFunctions(frozenset(addresses))
    condition = DomainCondition.RUNNING if live else DomainCondition.SHUT_OFF
    nothing = PassedFunctions()
    return NodeGuestDomains(
        (NodeGuestDomain(server, "instance-1", condition, passed if live else nothing, passed),)
    )


def start_again(node, live=False, step=None, **more):
    """The check before the server that has the GPU starts again; the notes."""
    seen = NodeView(sysfs.read_sysfs_node(node.root), {GPU: "gpu", OTHER: "gpu"})
    owners = node.owners(GPU, domains=domain_of(ONE, GPU, live=live))
    tenant = DeviceTenant(ONE, (GPU,), owners=owners)
    return (step or node.step(**more)).before_restart(tenant, seen)


def replace_card(node, serial=0xC):
    node.config(GPU, serial=serial)
    node.boot("second")


@pytest.fixture
def node(tmp_path):
    """A node whose server ONE has the GPU, and is stopped."""
    node = make(tmp_path)
    node.config(GPU, serial=0xA)
    node.config(OTHER, serial=0xB)
    assert sweep(node) == {}
    assert node.step().give(ONE, node.candidates(GPU)) == {}
    node.forget(GPU)
    node.forget(OTHER)
    return node


@pytest.mark.parametrize("updated", [True, False], ids=["updated", "host-boot"])
def test_a_replaced_card_is_cleaned_before_the_start(node, updated):
    """Also before the first update, when servers come back with their host."""
    replace_card(node)
    if updated:
        assert sweep(node, GPU) == {}
        assert record(node).replaced
        assert not node.resets(GPU)
    start_again(node)
    assert node.resets(GPU)
    assert record(node).server == ONE
    assert record(node).hardware == f"serial:{0xC:016x}"
    assert not record(node).replaced
    assert record(node).baseline is not None
    # Once: it is the server's now.
    node.forget(GPU)
    assert sweep(node, GPU) == {}
    start_again(node)
    assert not node.resets(GPU)


def test_the_replacement_is_said_in_the_log(node):
    replace_card(node)
    (note,) = start_again(node)
    assert note.startswith(f"PCI device {GPU} is other hardware than before: it is new")


@pytest.mark.parametrize("boot", ["first", "second"])
def test_a_card_that_stayed_is_left_as_it_is(node, boot):
    node.boot(boot)
    before = record(node)
    assert start_again(node) == ()
    assert not node.resets(GPU)
    assert record(node) == before


def test_cards_without_a_number_are_left_as_they_are(tmp_path):
    """Nothing tells one from another, and their servers start all the same."""
    node = make(tmp_path)
    assert sweep(node) == {}
    node.step().give(ONE, node.candidates(GPU))
    node.forget(GPU)
    replace_card(node, serial=None)
    start_again(node)
    sweep(node, GPU)
    start_again(node)
    assert not node.resets(GPU)
    assert record(node).server == ONE


def test_a_number_that_is_not_read_any_more_is_not_the_same_card(node):
    replace_card(node, serial=0)
    start_again(node)
    assert node.resets(GPU)
    assert record(node).server == ONE
    # Once, and not at every start.
    node.forget(GPU)
    sweep(node, GPU)
    start_again(node)
    assert not node.resets(GPU)
    assert not record(node).replaced


def test_a_guest_that_runs_is_not_disturbed(node):
    """What a running guest has it had when it was started, whatever is read of it now."""
    replace_card(node)
    sweep(node, GPU)
    start_again(node, live=True)
    assert not node.resets(GPU)
    assert record(node).replaced
    start_again(node)
    assert node.resets(GPU)


def test_a_server_that_was_there_first_keeps_what_it_has(tmp_path):
    """No mark says who has it, and its number is read for the first time."""
    node = make(tmp_path)
    node.config(GPU, serial=0xA)
    start_again(node)
    sweep(node, GPU)
    start_again(node)
    assert not node.resets(GPU)
    assert record(node).server == ONE


def test_a_replaced_card_that_cannot_be_cleaned(node):
    replace_card(node)
    (node.devices / GPU / "reset").unlink()
    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            start_again(node)
        (reason,) = caught.value.reasons
        assert reason.startswith(f"PCI device {GPU} is other hardware than the server had")
        assert f"nova-hpc device release {GPU}" in reason
        assert "1 of the server's 1 PCI devices" in caught.value.user
        assert GPU not in caught.value.user
        assert record(node).state is DeviceState.QUARANTINED
        assert record(node).replaced
        sweep(node, GPU)
    # What the reason says helps, although the server's guest is still defined.
    node.write(GPU, "reset", "")
    device = node.candidates(GPU)[GPU]
    step = node.step()
    with pytest.raises(LedgerError, match="is not touched"):
        step.release(device, node.owners(domains=domain_of(ONE, GPU, live=True)))
    assert step.release(device, node.owners(domains=domain_of(ONE, GPU, live=False))) is None
    start_again(node)
    assert record(node).server == ONE
    assert not record(node).replaced


def test_a_replaced_card_that_is_not_well_yet_is_tried_again_by_a_start(node):
    replace_card(node)
    node.config(GPU, serial=0xC, bar=0)
    sweep(node, GPU)
    step = node.step(rules=HealthRules(suspect_retry=60.0))
    for _ in range(2):  # the second try may come at once
        with pytest.raises(RefusedError, match="not clean yet"):
            start_again(node, step=step)
        assert record(node).state is DeviceState.SUSPECT
    node.config(GPU, serial=0xC)
    with pytest.raises(RefusedError) as caught:
        start_again(node, step=step)
    assert "suspect" in caught.value.reasons[0]
    node.later(1000.0)
    start_again(node, step=step)
    assert record(node).state is DeviceState.OFFERED
    assert record(node).server == ONE


def test_a_card_that_differs_is_the_servers_when_an_operator_accepts_it(node):
    """It reports no number, and is not as the card of the place was."""
    replace_card(node, serial=None)
    with pytest.raises(RefusedError) as caught:
        start_again(node)
    assert "differs" in caught.value.reasons[0] or "capabilities" in caught.value.reasons[0]
    device = node.candidates(GPU)[GPU]
    node.step().accept(device, node.owners(domains=domain_of(ONE, GPU, live=False)))
    assert record(node).replaced
    start_again(node)
    assert record(node).server == ONE
    node.forget(GPU)
    sweep(node, GPU)
    start_again(node)
    assert not node.resets(GPU)


def test_what_cannot_be_written_down_is_refused(node, monkeypatch):
    def fail(self, edit):
        raise LedgerError("the disk is full")

    monkeypatch.setattr(type(node.file), "change", fail)
    # A server that keeps its card is not refused for it.
    assert "the disk is full" in start_again(node)[0]
    replace_card(node)
    with pytest.raises(RefusedError, match="cannot keep records"):
        start_again(node)


def test_a_place_that_its_server_has_left_is_a_place_as_any(node):
    replace_card(node)
    sweep(node, GPU)
    assert record(node).replaced
    assert sweep(node) == {}
    assert node.resets(GPU)
    assert not record(node).replaced
    assert record(node).server is None


def test_a_card_that_was_away_is_cleaned_although_the_server_had_it(node):
    """It may have been in another node meanwhile."""
    replace_card(node)
    start_again(node)
    node.config(GPU, serial=0xA)
    node.boot("third")
    node.forget(GPU)
    sweep(node, GPU)
    assert record(node).server == ONE
    start_again(node)
    assert node.resets(GPU)


def test_cards_that_change_places_are_cleaned_of_each_other(node):
    node.step().give(TWO, node.candidates(OTHER))
    node.config(GPU, serial=0xB)
    node.config(OTHER, serial=0xA)
    node.boot("second")
    node.forget(OTHER)
    start_again(node)
    assert node.resets(GPU)
    assert record(node).server == ONE
    assert record(node, OTHER).replaced
    assert not node.resets(OTHER)
