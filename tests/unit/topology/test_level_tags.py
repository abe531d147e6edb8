# SPDX-License-Identifier: Apache-2.0
"""Levels, distances and the tags of device specifications."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.wire.tags import ALL, TagError, Tags, parse_tags
from nova_hpc_common.level import Distance, Level, Location, common_level, distance_between

PLACES = st.builds(
    Location,
    numa=st.none() | st.integers(0, 3),
    socket=st.none() | st.integers(0, 1),
    root=st.none() | st.sampled_from(["pci0000:17", "pci0000:80"]),
    switches=st.lists(st.sampled_from(["0000:18:00.0", "0000:19:00.0"]), max_size=2).map(tuple),
)
NAMES = st.text(st.characters(codec="ascii", exclude_characters="/,"), min_size=1, max_size=20)


@pytest.mark.parametrize("level", list(Level))
def test_words_read_back(level: Level) -> None:
    assert Level.from_word(level.word) is level


def test_a_wrong_word_names_the_legal_ones() -> None:
    with pytest.raises(ValueError, match="'rack' is not one of: switch, root, numa, socket, host"):
        Level.from_word("rack")


@given(st.lists(PLACES, min_size=2, max_size=5))
def test_the_common_level_is_the_tightest_shared_one(places: list[Location]) -> None:
    found = common_level(places)
    for level in Level:
        domains = {place.domain(level) for place in places}
        if level < found:
            assert len(domains) > 1 or domains == {None}
        if level is found:
            assert len(domains) == 1
            assert None not in domains


@given(PLACES, PLACES)
def test_distance_is_symmetric_and_agrees_with_the_level(one: Location, other: Location) -> None:
    far = distance_between(one, other)
    assert far is distance_between(other, one)
    level = common_level([one, other])
    if far <= Distance.PXB:
        assert level is Level.SWITCH
    if level is Level.SWITCH:
        assert far <= Distance.PHB


def test_unknown_is_never_equal() -> None:
    assert common_level([Location(), Location()]) is Level.HOST
    assert distance_between(Location(), Location()) is Distance.SYS


@given(
    PLACES.filter(lambda place: place.root is not None or not place.switches),
    st.none() | NAMES,
    st.none() | NAMES,
    st.none() | NAMES,
    st.frozensets(NAMES, max_size=3),
)
def test_tags_read_back(
    place: Location,
    role: str | None,
    group: str | None,
    resource_class: str | None,
    traits: frozenset[str],
) -> None:
    tags = Tags(place, role, group, resource_class, traits)
    spec = tags.to_spec()
    assert spec.keys() <= ALL
    assert parse_tags({**spec, "address": "0000:17:00.0"}) == tags


def test_no_tags_are_an_ordinary_device() -> None:
    assert parse_tags({"vendor_id": "10de", "physical_network": None}) is None


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ({"hpc_role": "gpu"}, "hpc_tags is None"),
        ({"hpc_tags": "2"}, "hpc_tags is '2'"),
        ({"hpc_tags": 1}, "not a string"),
        ({"hpc_tags": "1", "hpc_numa": "x"}, "hpc_numa"),
        ({"hpc_tags": "1", "hpc_numa": "-1"}, "hpc_numa"),
        ({"hpc_tags": "1", "hpc_numa": "\u0661"}, "hpc_numa"),
        ({"hpc_tags": "1", "hpc_socket": "99999999"}, "hpc_socket"),
        ({"hpc_tags": "1", "hpc_switch": "0000:17:00.0"}, "needs tag hpc_root"),
        ({"hpc_tags": "1", "hpc_role": "x" * 256}, "hpc_role"),
        ({"hpc_tags": "1", "hpc_role": ["gpu"]}, "hpc_role"),
    ],
)
def test_forged_tags_are_refused(pool: dict[str, object], words: str) -> None:
    with pytest.raises(TagError, match=words):
        parse_tags(pool)


@given(st.dictionaries(st.sampled_from(sorted(ALL)), st.text(max_size=30) | st.integers()))
def test_any_tags_are_read_or_refused(pool: dict[str, object]) -> None:
    try:
        found = parse_tags(pool)
    except TagError:
        return
    assert found is None or isinstance(found, Tags)
