# SPDX-License-Identifier: Apache-2.0
"""Who is measured when, and against what: by brute force, and on simulated members."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_hpc_client.accept import turns
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.probes import PROBE_OF
from nova_hpc_guest.accept.ratio import LEAST_PAIRS
from nova_hpc_guest.accept.sample import Reading, Sample

CPU = [PROBE_OF["cpu_one"]]
NET = [PROBE_OF["net_bw"]]


@given(st.lists(st.integers(1, 500), unique=True, min_size=2, max_size=24))
def test_everybody_meets_everybody_once(members: list[int]) -> None:
    rounds = turns.pair_up_members(members)
    assert len(rounds) == len(members) - 1 + len(members) % 2
    for links in rounds:
        busy = [number for link in links for number in link]
        assert len(busy) == len(set(busy))
    met = sorted(link for links in rounds for link in links)
    assert met == sorted(tuple(sorted(pair)) for pair in itertools.combinations(members, 2))


def test_one_member_meets_nobody() -> None:
    assert turns.pair_up_members([7]) == []


def test_rounds_go_there_and_back() -> None:
    assert turns.order_turn([1, 2, 3], 0) == [1, 2, 3]
    assert turns.order_turn([1, 2, 3], 1) == [3, 2, 1]


@pytest.mark.parametrize("members", range(2, 40))
def test_passes_are_enough_and_no_more(members: int) -> None:
    passes = turns.count_passes(members)
    links = list(itertools.combinations(range(members), 2))
    own = sum(0 in link for link in links)
    others = len(links) - own
    if members == 2:
        assert passes == 0
    else:
        assert min(own, others) * passes >= LEAST_PAIRS
        assert min(own, others) * (passes - 1) < LEAST_PAIRS


def take_rounds(rates: dict[int, float], count: int, seed: int = 1) -> list[dict[int, Sample]]:
    """Rounds of members with these rates; noise of each run and drift of each round."""
    dice = random.Random(seed)
    rounds = []
    for _ in range(count):
        drift = dice.uniform(0.5, 1.5)
        rounds.append(
            {
                number: Sample(
                    GuestFacts(model=str(number)),
                    {"cpu_one": Reading(rate * drift * dice.gauss(1, 0.005))},
                )
                for number, rate in rates.items()
            }
        )
    return rounds


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.integers(0, 1 << 20), st.sampled_from([0.3, 0.5, 0.8]))
def test_the_slow_one_is_found_and_nobody_else(members: int, seed: int, rate: float) -> None:
    bad = seed % members + 1
    rates = {number: 1000.0 * (rate if number == bad else 1) for number in range(1, members + 1)}
    rounds = take_rounds(rates, 6, seed)
    verdicts = {
        number: turns.judge_member(number, rounds, CPU, {})["cpu_one"].verdict for number in rates
    }
    assert verdicts == {number: "slow" if number == bad else "level" for number in rates}
    # Whose facts stand for the rest: any but the slow one's.
    if members > 2:
        for number in rates:
            assert turns.choose_reference(number, rounds, CPU, {bad}) not in (bad, number)


def test_one_that_is_faster_makes_nobody_slow() -> None:
    rounds = take_rounds({1: 1000.0, 2: 1000.0, 3: 1000.0, 4: 1500.0}, 6)
    for number in range(1, 5):
        assert turns.judge_member(number, rounds, CPU, {})["cpu_one"].verdict == "level"


def test_a_floor_of_ones_own() -> None:
    rounds = take_rounds({1: 900.0, 2: 1000.0, 3: 1000.0}, 6)
    for floor, verdict in ((0.95, "slow"), (0.8, "level")):
        row = turns.judge_member(1, rounds, CPU, {"cpu_one": floor})["cpu_one"]
        assert (row.verdict, row.floor, row.against) == (verdict, floor, "rest")


def test_a_round_without_the_others_says_nothing() -> None:
    rounds = take_rounds({1: 1000.0}, 6)
    assert turns.judge_member(1, rounds, CPU, {}) == {}
    assert turns.judge_member(2, rounds, CPU, {}) == {}
    assert turns.choose_reference(1, rounds, CPU, set()) is None


@pytest.mark.parametrize("members", range(3, 9))
def test_the_member_whose_links_are_slow_is_found(members: int) -> None:
    dice = random.Random(members)
    links = {
        link: [
            Sample(
                GuestFacts(),
                {"net_bw": Reading((400 if 2 in link else 1000) * dice.gauss(1, 0.01))},
            )
            for _ in range(turns.count_passes(members))
        ]
        for link in itertools.combinations(range(1, members + 1), 2)
    }
    rows = {
        number: turns.judge_links(number, links, NET, {})["net_bw"]
        for number in range(1, members + 1)
    }
    assert [number for number, row in rows.items() if row.verdict == "slow"] == [2]
    assert rows[2].ratio == pytest.approx(0.4, rel=0.05)


def test_one_link_alone_is_compared_with_nothing() -> None:
    links = {(1, 2): [Sample(GuestFacts(), {"net_bw": Reading(1.0)})] * 6}
    assert turns.judge_links(1, links, NET, {}) == {}


@pytest.mark.parametrize(
    ("failed", "blamed"),
    [
        ([], set()),
        ([(1, 2)], {1, 2}),
        ([(1, 2), (2, 3)], {2}),
        ([(1, 2), (2, 3), (2, 4), (3, 4)], {2, 3, 4}),
        ([(1, 2), (1, 3), (1, 4), (2, 3), (2, 4)], {1, 2}),
    ],
)
def test_as_few_as_account_for_it_are_blamed(failed: list[turns.Link], blamed: set[int]) -> None:
    answer = turns.blame_members(dict.fromkeys(failed, "no route"))
    assert set(answer) == blamed
    assert all("no route" in reason for reason in answer.values())


@given(
    st.dictionaries(
        st.tuples(st.integers(1, 9), st.integers(1, 9)).filter(lambda link: link[0] < link[1]),
        st.just("why"),
    )
)
def test_blame_accounts_for_every_link(failed: dict[turns.Link, str]) -> None:
    blamed = turns.blame_members(failed)
    assert all(set(link) & set(blamed) for link in failed)
