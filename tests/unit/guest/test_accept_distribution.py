# SPDX-License-Identifier: Apache-2.0
"""Distributions: bins of rounds add up, the judged percentile is in its bin, unknown stays so."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_guest.accept.baseline import build_key, read_baseline, write_baseline
from nova_hpc_guest.accept.distribution import EDGES, fill_bins, list_distributions, merge_counts
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.probes import PROBE_OF
from nova_hpc_guest.accept.readings import HISTOGRAM_US, find_percentile, read_distribution
from nova_hpc_guest.accept.sample import (
    AcceptanceError,
    Reading,
    Sample,
    parse_sample,
    write_sample,
)
from tests.unit.guest.accept_cases import DATA
from tests.unit.guest.accept_world import AcceptWorld
from tests.unit.pictures.faults import list_faults

#: Wakes of one run: how late each was.
WAKES = st.lists(st.integers(0, 2 * HISTOGRAM_US), min_size=1, max_size=400)
#: A tool that writes the document of a file.
_CYCLICTEST = """#!/bin/sh
for word in "$@"; do
    case "$word" in --json=*) /bin/cat "$RATES/wakes.json" > "${word#--json=}"; exit ;; esac
done
echo "cyclictest V 2.40"
"""


def write_document(wakes: list[int]) -> str:
    """What cyclictest writes of these wakes; the late ones are missing from its histogram."""
    histogram = Counter(str(wake) for wake in wakes if wake < HISTOGRAM_US)
    thread = {"histogram": histogram, "cycles": len(wakes), "max": max(wakes)}
    return json.dumps({"thread": {"0": thread}})


def sample(probe: str, counts: dict[int, int], value: float = 9.0) -> Sample:
    return Sample(GuestFacts(), {probe: Reading(value, counts=counts)})


def pass_on(given_sample: Sample) -> Sample:
    return parse_sample(json.loads(write_sample(given_sample)))


# -- adding up -------------------------------------------------------------------------


@given(st.lists(WAKES, min_size=1, max_size=4))
def test_rounds_add_up_to_the_histogram_of_all_their_wakes(rounds: list[list[int]]) -> None:
    samples = [
        pass_on(sample("timer_p99", read_distribution("timer_p99", write_document(wakes))))
        for wakes in rounds
    ]
    every = [min(wake, HISTOGRAM_US) for wakes in rounds for wake in wakes]
    assert merge_counts("timer_p99", samples) == Counter(every)
    (shown,) = list_distributions((), samples)
    limits = (*shown.edges, float("inf"))
    assert list(shown.here) == [
        sum(start <= wake < end for wake in every) for start, end in itertools.pairwise(limits)
    ]
    assert shown.base is None


@given(WAKES)
def test_the_percentile_of_the_counts_is_the_judged_one(wakes: list[int]) -> None:
    text = write_document(wakes)
    counts = read_distribution("timer_p99", text)
    judged = PROBE_OF["timer_p99"].read("", text, 1200.0)
    assert max(find_percentile(counts, 99), 1) == judged
    # Brute force: the latest of a hundred, or later.
    late = sorted((min(wake, HISTOGRAM_US) for wake in wakes), reverse=True)
    assert max(late[-(-len(late) // 100) - 1], 1) == judged
    (shown,) = list_distributions((), [sample("timer_p99", counts)])
    assert shown.percentiles == (
        late[-(-len(late) // 2) - 1],
        late[-(-len(late) // 100) - 1],
        late[0],
    )
    # It is in the bin of the 99th percentile of the bins.
    edges = EDGES["timer_p99"]
    start = find_percentile(dict(zip(edges, fill_bins(counts, edges), strict=True)), 99)
    assert start <= judged
    assert all(edge > judged for edge in edges[edges.index(start) + 1 :])


def test_times_of_all_cpus_add_up() -> None:
    threads = {
        "0": {"cpu": 1, "max": 40, "histogram": {"1": 5, "32": 2}},
        "1": {"cpu": 2, "max": 3, "histogram": {"1": 7, "3": 1}},
    }
    text = json.dumps({"thread": threads})
    assert read_distribution("oslat", text) == {1: 12, 3: 1, 32: 2}
    recorded = read_distribution("oslat", (DATA / "outputs/oslat.json").read_text())
    (shown,) = list_distributions([sample("oslat", recorded)], [sample("oslat", recorded)] * 2)
    assert shown.base == (12744151, 0, 5, 21, 0, 0, 4, 46, 12, 84)
    assert shown.here == tuple(2 * count for count in shown.base)
    assert shown.labels[-2:] == ["24-32", ">=32"]


# -- unknown ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probe", "document"),
    [
        *(("timer_p99", ""), ("oslat", "{}"), ("oslat", '{"thread": {"0": {"histogram": 3}}}')),
        ("timer_p99", '{"thread": {"0": {"histogram": {"20000": 1}, "cycles": 1}}}'),
        # Bins of another width.
        ("oslat", '{"thread": {"0": {"histogram": {"33": 1}}}}'),
        ("clock", write_document([5])),
    ],
)
def test_another_document_has_no_distribution(probe: str, document: str) -> None:
    assert read_distribution(probe, document) == {}


def test_a_side_of_which_a_run_is_unknown_is_unknown() -> None:
    known, unknown = sample("timer_p99", {7: 3}), sample("timer_p99", {})
    (shown,) = list_distributions([known, unknown], [known])
    assert shown.base is None
    assert list_distributions([known], [known, unknown]) == ()
    assert list_distributions([known], [sample("clock", {})]) == ()


def test_a_file_keeps_the_counts_and_its_hash() -> None:
    # Numbers are sorted in another way than their texts.
    rounds = [sample("timer_p99", {9: 2, 10: 1, 100: 4})] * 6
    assert read_baseline(write_baseline(build_key(GuestFacts(), {}), rounds)).samples == tuple(
        rounds
    )


@pytest.mark.parametrize(
    "counts",
    [*({"x": 1}, {"-1": 1}, {"1": -1}, {"1": 1.5}, {"1": True}, {"1": "1"}, {"1": 10**15}), []],
)
def test_counts_of_another_machine_that_are_none(counts: Any) -> None:
    data = json.loads(write_sample(sample("timer_p99", {9: 2})))
    data["probes"]["timer_p99"]["counts"] = counts
    with pytest.raises(AcceptanceError, match="counts"):
        parse_sample(data)


# -- shown -----------------------------------------------------------------------------


def measure(world: AcceptWorld, wakes: list[int], *words: str, only: str = "timer_p99") -> str:
    world.tool("cyclictest", _CYCLICTEST)
    world.rate("wakes.json", write_document(wakes))
    _, out, _ = world.run(*words, only=only)
    return out


GOOD = [3] * 90 + [7] * 10
LATE = [3] * 80 + [700] * 18 + [30_000] * 2


@pytest.fixture
def saved(world: AcceptWorld, tmp_path: Path) -> str:
    place = tmp_path / "baseline.json"
    measure(world, GOOD, "--save-baseline", str(place), only=None)
    return str(place)


def test_a_late_timer_shows_both_sides(world: AcceptWorld, saved: str) -> None:
    out = measure(world, LATE, "--baseline", saved)
    lines = out.splitlines()
    (head,) = (place for place, line in enumerate(lines) if line.startswith("timer_p99, us"))
    shown = lines[head : head + 12]
    assert [line.split() for line in shown[1:4]] == [
        ["0-5", "540", "|####################|", "480", "|##################", "|"],
        ["5-10", "60", "|############", "|", "0", "|", "|"],
        ["10-20", "0", "|", "|", "0", "|", "|"],
    ]
    assert shown[-1].split()[:2] == [">=20000", "0"]
    assert shown[-1].split()[4] == "12"
    assert max(map(len, shown)) <= 100
    assert not lines[head + 12].startswith(" ")


def test_a_level_timer_shows_none_and_documents_have_it(world: AcceptWorld, saved: str) -> None:
    assert "0-5" not in measure(world, GOOD, "--baseline", saved)
    data = json.loads(measure(world, GOOD, "--baseline", saved, "--format", "json"))
    (shown,) = data["distributions"]
    bins = [540, 60, *([0] * 9)]
    assert (shown["probe"], shown["unit"], shown["edges"]) == (
        *("timer_p99", "us"),
        list(EDGES["timer_p99"]),
    )
    assert (shown["here"], shown["baseline"]) == (bins, bins)
    drawn = measure(world, LATE, "--baseline", saved, "--format", "svg")
    assert list_faults(drawn) == []
    picture = ElementTree.fromstring(drawn)
    assert [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")][:4] == [
        *("540", "480", "60", "0"),
    ]
    for bar in picture.iter("{http://www.w3.org/2000/svg}rect"):
        if bar.get("width") == "20":
            assert float(bar.get("y")) + float(bar.get("height")) <= float(picture.get("height"))
            assert float(bar.get("x")) + 20 <= float(picture.get("width"))


def test_a_file_of_an_older_release_still_works(world: AcceptWorld, saved: str) -> None:
    baseline = read_baseline(Path(saved).read_text())
    old = [
        one._replace(readings={name: run._replace(counts={}) for name, run in one.readings.items()})
        for one in baseline.samples
    ]
    Path(saved).write_text(write_baseline(baseline.key, old))
    lines = measure(world, LATE, "--baseline", saved).splitlines()
    assert ["timer_p99,", "us", "here", "(logarithmic)"] in [line.split() for line in lines]
    data = json.loads(measure(world, LATE, "--baseline", saved, "--format", "json"))
    assert data["distributions"][0]["baseline"] is None
    assert data["rows"][0]["verdict"] == "slow"


def test_a_timer_that_is_compared_with_nothing_is_shown_if_named(world: AcceptWorld) -> None:
    assert ">=20000" in measure(world, LATE)
    assert ">=20000" not in measure(world, LATE, only=None)
