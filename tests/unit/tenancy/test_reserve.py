# SPDX-License-Identifier: Apache-2.0
"""What is reserved of a provider: ours and the operator's, whatever happens in between."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.tenancy import reserve
from nova_hpc.tenancy.reserve import PlacedProvider
from nova_hpc.wire.reservation import ReservedProvider

UUID, CLASS = "5f0d2f5a-8a58-4f0e-8a51-0c1f7f3f1d11", "CUSTOM_GPU"


def found(total: int = 4, reserved: int = 0, used: int = 0) -> PlacedProvider:
    return PlacedProvider(UUID, CLASS, total, reserved, used)


def known(total: int = 4, ours: int = 0, operators: int = 0, **more: object) -> ReservedProvider:
    return ReservedProvider(UUID, CLASS, total, ours, operators, **more)


def test_what_was_reserved_before_anything_was_known_is_an_operators() -> None:
    then = reserve.decide_reservation(None, found(reserved=2), withheld=1, total=4)
    assert (then.ours, then.operators, then.reserved) == (1, 2, 2)


def test_the_greater_one_is_reserved() -> None:
    assert known(ours=1, operators=3).reserved == 3
    assert known(ours=3, operators=1).reserved == 3
    assert known(total=2, ours=3).reserved == 2


def test_the_last_word_of_an_operator_counts() -> None:
    before = known(ours=1)
    for said in (0, 2, 4):
        then = reserve.decide_reservation(before, found(reserved=said), withheld=1, total=4)
        assert (then.ours, then.operators) == (1, said)
        assert then.reserved == max(1, said)


def test_a_change_that_has_not_arrived_is_no_operators_word() -> None:
    """Placement could not be reached after the change was written down."""
    for before, withheld in ((known(), 1), (known(ours=1), 0), (known(ours=2, operators=1), 0)):
        there = before.reserved
        then = reserve.decide_reservation(before, found(reserved=there), withheld, 4)
        assert then.earlier == there
        again = reserve.decide_reservation(then, found(reserved=there), withheld, 4)
        assert again == then
        arrived = reserve.decide_reservation(then, found(reserved=then.reserved), withheld, 4)
        assert arrived == attrs.evolve(then, earlier=None)


def test_nova_takes_it_away_with_another_total() -> None:
    before = known(total=4, ours=1, operators=2)
    then = reserve.decide_reservation(before, found(total=3, reserved=0), withheld=1, total=3)
    assert (then.ours, then.operators, then.reserved) == (1, 2, 2)


def test_another_provider_of_the_same_device_is_another() -> None:
    before = attrs.evolve(known(operators=2), uuid="other")
    for there in (found(), found(total=3)):
        assert reserve.decide_reservation(before, there, 0, there.total).operators == 0


def test_nothing_is_remembered_of_what_nobody_reserves() -> None:
    assert reserve.is_reservation_over(known())
    for more in ({"ours": 1}, {"operators": 1}, {"earlier": 1}, {"gone": 1.0}):
        assert not reserve.is_reservation_over(known(**more))


PATIENCE = 7 * 24 * 3600.0


@pytest.mark.parametrize(
    ("gone", "used", "now", "stays"),
    [
        (None, 0, 0.0, True),
        (1000.0, 0, 1000.0 + PATIENCE - 1, True),
        (1000.0, 0, 1000.0 + PATIENCE, False),
        (1000.0, 1, 1000.0 + 9 * PATIENCE, True),
        # A clock that was put back.
        (1000.0, 0, 10.0, True),
    ],
)
def test_how_long_the_provider_of_a_vanished_device_stays(gone, used, now, stays) -> None:
    assert reserve.does_provider_stay(known(gone=gone), used, now, PATIENCE) is stays


#: One pass: what the node withholds, whether Placement is reached, what an operator says
#: afterwards (None: nothing), and whether Nova alone changes the total in between.
PASSES = st.tuples(
    st.integers(0, 4), st.booleans(), st.none() | st.integers(0, 4), st.sampled_from((3, 4))
)


@given(st.lists(PASSES, max_size=12))
def test_the_operators_word_survives_any_history(passes) -> None:
    """Held against an operator who remembers it; a word that changes nothing is not heard."""
    record, there, wish = None, 0, 0
    held = PlacedProvider(UUID, CLASS, 4)
    for withheld, reached, word, total in passes:
        held = attrs.evolve(held, reserved=there)
        then = reserve.decide_reservation(record, held, withheld, total)
        assert then.reserved == min(total, max(withheld, wish))
        record = None if reserve.is_reservation_over(then) else then
        if reached:
            there, held = then.reserved, attrs.evolve(held, total=total)
            # An operator acts on what is written, and only a word that changes it is one.
            if word is not None and word <= total and word not in (there, then.earlier):
                there = wish = word
