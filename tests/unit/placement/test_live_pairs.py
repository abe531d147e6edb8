# SPDX-License-Identifier: Apache-2.0
"""The devices of a server that moves while it runs, against Nova's way of replacing them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.placement.live_pairs import PairsError, is_in_order, pair_devices

A, B, C, D = (f"0000:4{number}:00.0" for number in range(4))
PLACES = tuple(f"0000:{bus:02x}:00.0" for bus in range(8))


def replace(guest: list[str], pairs: dict[str, str]) -> list[str]:
    """What Nova does with the addresses in a guest's domain."""
    guest = list(guest)
    for old, new in pairs.items():
        guest[guest.index(old)] = new
    return guest


@st.composite
def moves(draw):
    """Devices of two requests here and there, in as many groups as each request has devices."""
    count = draw(st.integers(1, 4))
    former = draw(st.permutations(PLACES))[: 2 * count]
    new = draw(st.permutations(PLACES))[: 2 * count]
    return count, former, new


@given(moves(), st.booleans())
def test_the_guest_gets_what_is_paired(move, grouped) -> None:
    count, former, new = move
    old = {"0": former[:count], "1": former[count:]}
    wanted = {"0": new[:count], "1": new[count:]}
    groups = {each: index % count if grouped else 0 for index, each in enumerate(new)}
    try:
        pairs = pair_devices(old, wanted, groups)
    except PairsError:
        return
    assert replace(former, pairs) == [pairs[each] for each in former]
    for key, addresses in old.items():
        assert {pairs[each] for each in addresses} == set(wanted[key])
    if grouped:
        # The first of one request is in the group of the first of the other.
        ordered = [
            [groups[pairs[each]] for each in sorted(addresses)] for addresses in old.values()
        ]
        assert ordered[0] == ordered[1]


@given(st.permutations(PLACES), st.permutations(PLACES))
def test_one_request_can_always_be_paired(former, new) -> None:
    old, wanted = {"0": former[:5]}, {"0": new[:5]}
    pairs = pair_devices(old, wanted, dict.fromkeys(new, 0))
    assert set(replace(former[:5], pairs)) == set(new[:5])


def test_a_chain_begins_at_its_end() -> None:
    pairs = pair_devices({"0": [A], "1": [B]}, {"0": [B], "1": [C]}, {})
    assert list(pairs.items()) == [(B, C), (A, B)]


def test_an_exchange_of_kinds_has_no_order() -> None:
    with pytest.raises(PairsError, match="exchange their addresses"):
        pair_devices({"0": [A], "1": [B]}, {"0": [B], "1": [A]}, {})


@pytest.mark.parametrize("new", [{"0": [C]}, {"0": [C, D], "1": []}, {}])
def test_devices_are_missing(new) -> None:
    with pytest.raises(PairsError, match="not as many"):
        pair_devices({"0": [A, B]}, new, {})


def test_groups_follow_the_first_request() -> None:
    devices = {"0": [A, B], "1": [C, D]}
    assert is_in_order(devices, {A: 5, B: 2, C: 5, D: 2})
    assert not is_in_order(devices, {A: 5, B: 2, C: 2, D: 5})
    assert is_in_order(devices, {})
