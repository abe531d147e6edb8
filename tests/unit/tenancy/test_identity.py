# SPDX-License-Identifier: Apache-2.0
"""Entries of the ledger follow the hardware, whatever happens to its address."""

from __future__ import annotations

import shutil

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy.identity import move_entries_with_hardware, unique_hardware_of
from nova_hpc.wire.ledger import SOMEBODY, DeviceState, Ledger, LedgerDevice
from tests.unit.tenancy.hygiene_node import GPU, OTHER, PF, VF, make

ONE = "11111111-1111-1111-1111-111111111111"
PLACES = [f"0000:{bus:02x}:00.0" for bus in range(0x40, 0x46)]


def ledger(*boards: str) -> Ledger:
    """A board at each place, with a reason of its own."""
    return Ledger(
        {
            place: LedgerDevice(hardware=board, reason=f"of {board}")
            for place, board in zip(PLACES, boards, strict=False)
        }
    )


boards = st.permutations([f"serial:{number:016x}" for number in range(8)])


@given(boards, st.lists(st.lists(st.integers(0, 7), min_size=0, max_size=6, unique=True)))
def test_what_is_known_is_never_lost_and_never_mixed_up(start, changes):
    """Boards are pulled, put elsewhere and put back, in any order."""
    now = ledger(*start[:6])
    known = {found.hardware for found in now.devices.values()}
    for change in changes:
        seen = {place: f"serial:{board:016x}" for place, board in zip(PLACES, change, strict=False)}
        now = move_entries_with_hardware(now, seen).ledger
        for place, board in seen.items():
            found = now.device(place)
            assert found.hardware == board
            assert found.reason == (f"of {board}" if board in known else "")
        everything = [*now.devices.values(), *now.absent.values()]
        assert {each.hardware for each in everything if each.reason} == known
        assert len([each for each in everything if each.reason]) == len(known)


def test_two_devices_swap_slots():
    now = ledger("serial:a", "serial:b")
    moved = move_entries_with_hardware(now, {PLACES[0]: "serial:b", PLACES[1]: "serial:a"})
    assert moved.ledger.device(PLACES[0]).reason == "of serial:b"
    assert moved.ledger.device(PLACES[1]).reason == "of serial:a"
    assert len(moved.notes) == 2
    assert not any("serial" in note for note in moved.notes)


def test_a_mark_moves_and_its_old_place_is_not_clean_until_proved():
    now = ledger("serial:a", "serial:b")
    marked = attrs.evolve(now.device(PLACES[0]), server=ONE)
    now = now.put({PLACES[0]: marked})
    moved = move_entries_with_hardware(now, {PLACES[0]: "serial:b", PLACES[1]: "serial:a"}).ledger
    assert moved.device(PLACES[1]).server == ONE
    assert moved.device(PLACES[0]).server == SOMEBODY


def test_a_new_board_starts_afresh_and_the_old_one_is_kept():
    moved = move_entries_with_hardware(ledger("serial:a"), {PLACES[0]: "serial:c"})
    assert moved.ledger.device(PLACES[0]) == LedgerDevice(hardware="serial:c")
    assert moved.ledger.absent["serial:a"].reason == "of serial:a"
    back = move_entries_with_hardware(moved.ledger, {PLACES[3]: "serial:a"}).ledger
    assert back.device(PLACES[3]).reason == "of serial:a"
    assert back.absent == {}


@pytest.mark.parametrize("seen", ["serial:a", "vpd:S1"])
def test_numbers_that_repeat_say_nothing(seen):
    """Cheap boards: all have the same number."""
    now = Ledger({place: LedgerDevice(hardware=f"slot:{place}", reason=place) for place in PLACES})
    assert move_entries_with_hardware(
        now, dict.fromkeys(PLACES, seen)
    ) == move_entries_with_hardware(now, {})
    assert unique_hardware_of(dict.fromkeys(PLACES, seen)) == {
        each: f"slot:{each}" for each in PLACES
    }


def test_a_number_that_turns_out_to_repeat():
    """A second board of the same number is put in; the first keeps what is known of it."""
    now = ledger("serial:a")
    seen = {PLACES[0]: "serial:a", PLACES[1]: "serial:a"}
    assert move_entries_with_hardware(now, seen).ledger == now
    # Also when the first is with a server, and not asked.
    assert (
        move_entries_with_hardware(now, {PLACES[1]: "serial:a"}, unsure=[PLACES[0]]).ledger == now
    )
    # Gone, it has moved.
    moved = move_entries_with_hardware(now, {PLACES[1]: "serial:a"}).ledger
    assert list(moved.devices) == [PLACES[1]]


def test_what_could_not_be_told_apart_before_is_what_was_there():
    """Its serial number can be read now."""
    now = ledger(f"slot:{PLACES[0]}", "serial:b/fn1")
    seen = {PLACES[0]: "serial:a/vf+1", PLACES[1]: "serial:b/fn1"}
    moved = move_entries_with_hardware(now, seen)
    assert moved.notes == ()
    assert [found.hardware for found in moved.ledger.devices.values()] == [*seen.values()]
    assert [found.reason for found in moved.ledger.devices.values()] == [
        f"of slot:{PLACES[0]}",
        "of serial:b/fn1",
    ]


# -- with real files -----------------------------------------------------------------


def sweep(node, *addresses):
    return node.step().sweep(node.candidates(*addresses), frozenset)


def test_virtual_functions_follow_their_adapter(tmp_path):
    other, its = "0000:44:00.0", "0000:44:00.1"
    node = make(tmp_path, PF, other)
    node.config(PF, serial=0xA)
    node.config(other, serial=0xB)
    for pf, vf in ((PF, VF), (other, its)):
        node.write(pf, "sriov_totalvfs", "4")
        node.add(vf, physfn=pf)
    assert sweep(node, VF, its) == {}
    assert node.ledger.device(VF).hardware == f"serial:{0xA:016x}/vf+1"
    node.file.quarantine({VF: "its queue hangs"})
    node.config(PF, serial=0xB)
    node.config(other, serial=0xA)
    node.boot("second")
    sweep(node, VF, its)
    assert node.ledger.quarantined == {its: "its queue hangs"}


def test_boards_with_the_same_number_keep_their_places(tmp_path):
    node = make(tmp_path)
    for each in (GPU, OTHER):
        node.config(each, serial=0xA)
    assert sweep(node, GPU, OTHER) == {}
    node.file.quarantine({GPU: "bad"})
    for boot in ("second", "third"):
        node.boot(boot)
        sweep(node, GPU, OTHER)
        assert node.ledger.quarantined == {GPU: "bad"}
        assert node.ledger.device(GPU).hardware == f"slot:{GPU}"


@pytest.mark.parametrize("serial", [0, (1 << 64) - 1, None])
def test_no_number_is_the_slot(tmp_path, serial):
    node = make(tmp_path)
    node.config(GPU, serial=serial)
    assert sweep(node, GPU) == {}
    assert node.ledger.device(GPU).hardware == f"slot:{GPU}"


def test_a_reading_that_lies_once_moves_nothing(tmp_path, monkeypatch):
    node = make(tmp_path)
    node.config(GPU, serial=0xA)
    assert sweep(node, GPU, OTHER) == {}
    node.file.quarantine({GPU: "bad"})
    node.config(GPU, serial=0xC)
    step = node.step()
    looks = []

    def read(addresses):
        looks.append(addresses)
        if len(looks) > 1:
            node.config(GPU, serial=0xA)
        return {each: (node.devices / each / "config").read_bytes() for each in addresses}

    reading = attrs.evolve(step.records, read_config=read)
    attrs.evolve(step, records=reading).sweep(node.candidates(GPU, OTHER), frozenset)
    assert node.ledger.quarantined == {GPU: "bad"}
    assert node.ledger.absent == {}


def test_a_device_that_goes_silent_is_no_other_hardware(tmp_path):
    node = make(tmp_path)
    node.config(GPU, serial=0xA)
    assert sweep(node, GPU) == {}
    (node.devices / GPU / "config").write_bytes(b"\xff" * 4096)
    assert "does not answer" in sweep(node, GPU)[GPU]
    assert node.ledger.device(GPU).hardware == f"serial:{0xA:016x}"
    assert node.ledger.device(GPU).state is DeviceState.SUSPECT


def test_a_board_that_comes_back_elsewhere_has_its_quarantine(tmp_path):
    node = make(tmp_path)
    node.config(GPU, serial=0xA)
    node.config(OTHER, serial=0xB)
    assert sweep(node, GPU, OTHER) == {}
    node.file.quarantine({GPU: "bad"})
    # Pulled, and another one put in its place.
    node.config(GPU, serial=0xC)
    node.boot("second")
    assert sweep(node, GPU, OTHER) == {}
    assert node.ledger.quarantined == {}
    assert [found.reason for found in node.ledger.absent.values()] == ["bad"]
    shutil.rmtree(node.devices / GPU)
    node.add("0000:49:00.0", serial=0xA)
    node.boot("third")
    sweep(node, OTHER, "0000:49:00.0")
    assert node.ledger.quarantined == {"0000:49:00.0": "bad"}
