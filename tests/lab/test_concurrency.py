# SPDX-License-Identifier: Apache-2.0
"""Several real schedulers race on a real Placement, with a MariaDB of their own.

``python -m benchmarks.concurrency`` runs the large ones.
"""

import attrs
import pytest

from benchmarks.concurrency import __main__ as command
from benchmarks.concurrency.model import VARIANTS, Cloud, Create, given_twice, room
from benchmarks.concurrency.race import Plan, runner


@pytest.fixture(scope="module")
def race():
    """24 devices on three hosts."""
    with runner(Cloud(hosts=3)) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stock", "ours-spread-shuffle"])
def test_no_device_is_given_twice(race, name):
    plan = Plan(race.cloud, workers=2)
    tally, creates = race.run(VARIANTS[name], plan)
    print(f"RESULT: {attrs.asdict(tally)}")
    assert tally.creates == 30
    assert tally.given_twice == 0
    assert tally.broken == 0, [each.text for each in creates]
    assert tally.node_refusals == 0
    assert tally.placed + tally.refused == tally.creates
    assert tally.placed + tally.repeated == tally.devices
    assert tally.filled == tally.devices
    assert command.holds(tally)


def test_counting():
    """What the race is judged by can fail."""
    twice = [Create("a", "placed", devices=("x", "y")), Create("b", "placed", devices=("y",))]
    assert given_twice(twice) == 1
    assert given_twice(twice[:1]) == 0
    apart = [("host1", "switch1"), ("host1", "switch2"), ("host2", "switch1")]
    assert room(apart, 2, together=False)
    assert not room(apart, 2, together=True)
    assert not room(apart, 3, together=False)
