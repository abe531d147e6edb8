# SPDX-License-Identifier: Apache-2.0
"""Random calendars: no lease is overbooked, split, or refused although it fits."""

import pytest

from tests.blazar.calendars import Tally, play_calendars


def _check(tally: Tally) -> None:
    assert tally.leases > tally.calendars
    assert tally.started > 0
    assert tally.refused > 0
    assert dict(tally.faults) == {}
    assert tally.overbooked == 0
    assert tally.split == 0
    assert tally.wrongly_refused == 0
    assert tally.begins > 0
    assert tally.wrong_begins == 0
    assert tally.moved_while_running == 0


def test_random_calendars_are_neither_overbooked_nor_split():
    _check(play_calendars(0, 30, ours=True))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_thousand_calendars_are_neither_overbooked_nor_split(first):
    _check(play_calendars(first, 100, ours=True))


def test_stock_flavor_leases_are_overbooked_and_split():
    """The numbers of the operators' page are about this plug-in of Blazar."""
    tally = play_calendars(0, 10, ours=False)

    assert tally.overbooked > 0
    assert tally.split > 0
