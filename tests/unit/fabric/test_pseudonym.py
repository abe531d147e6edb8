# SPDX-License-Identifier: Apache-2.0
"""Names of domains that are made for one project."""

from __future__ import annotations

import hashlib
import hmac

import attrs
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.fabric.aggregates import read_aggregate_place
from nova_hpc.fabric.model import FabricMap, FabricPlace, Rail
from nova_hpc.fabric.pseudonym import Names
from nova_hpc_tools.fabric.map_aggregates import aggregates_of

SALT = "00112233445566778899aabbccddeeff"
OTHER_SALT = "ff112233445566778899aabbccddeeff"
PLACE = FabricPlace(
    "node1",
    nvlink_domain="nvl1",
    sub_domain="rack1",
    leaf="leaf1",
    block="block1",
    spine="spine1",
    core="core",
    rails=(Rail("mlx5_0"), Rail("mlx5_1")),
)


def names(salt: str = SALT, map_name: str = "ib", project: str = "p1") -> Names:
    return Names(salt, map_name, project)


def test_a_name_is_what_the_docs_say() -> None:
    """By the standard library alone, so that names stay when this code changes."""
    text = b"p1\0ib\0leaf\0leaf1"
    digest = hmac.new(bytes.fromhex(SALT), text, hashlib.sha256).hexdigest()
    assert names().domains(PLACE)["leaf"] == f"l-{digest[:10]}"


def test_each_level_that_is_known_has_a_name() -> None:
    found = names().domains(PLACE)
    assert list(found) == [
        "core",
        "spine",
        "block",
        "leaf",
        "nvlink_domain",
        "sub_domain",
    ]
    assert [name[:2] for name in found.values()] == ["c-", "s-", "b-", "l-", "n-", "d-"]
    assert names().domains(FabricPlace("node2", spine="spine1")) == {"spine": found["spine"]}
    assert names().domains(FabricPlace("node2")) == {}


def test_who_asks_and_what_for_makes_the_name() -> None:
    """Another project, map, secret, level or domain: another name."""
    same = FabricPlace(
        "node1", spine="x", block="x", leaf="x", core="x", nvlink_domain="x", sub_domain="x"
    )
    found = [
        name.partition("-")[2]
        for each in (names(), names(project="p2"), names(map_name="roce"), names(OTHER_SALT))
        for place in (PLACE, same)
        for name in each.domains(place).values()
    ]
    assert len(found) == len(set(found)) == 48


def test_a_rail_has_one_name_on_all_leaves() -> None:
    other = FabricPlace("node9", leaf="leaf9", rails=(Rail("mlx5_1", "switch7"),))
    found = names().rails(PLACE)
    assert names().rails(other) == {"mlx5_1": found["mlx5_1"]}
    assert len(set(found.values())) == 2


@given(st.lists(st.text("ab", min_size=1, max_size=3), min_size=4, max_size=4, unique=True))
def test_no_letter_moves_from_one_part_to_the_next(texts: list[str]) -> None:
    project, map_name, leaf, other = texts
    one = Names(SALT, map_name, project).domains(FabricPlace("n", leaf=leaf + other))
    assert one != Names(SALT, map_name + leaf, project).domains(FabricPlace("n", leaf=other))
    assert one != Names(SALT, map_name, project + map_name).domains(FabricPlace("n", leaf=leaf))


def test_the_secret_is_in_no_text_of_it() -> None:
    assert SALT not in repr(names())


def test_aggregates_say_map_and_secret() -> None:
    place = attrs.evolve(PLACE, sub_domain=None)
    (leaf, nvlink) = (dict(each.metadata) for each in aggregates_of(FabricMap([place], name="ib")))
    reading = read_aggregate_place("node1", [leaf, nvlink])
    assert (reading.map, reading.salt) == ("ib", "")
    # Two first runs at once; a hand.
    leaf["hpc_fabric:salt"], nvlink["hpc_fabric:salt"] = OTHER_SALT, SALT
    reading = read_aggregate_place("node1", [leaf, nvlink])
    assert (reading.place.leaf, reading.salt, reading.problems) == ("leaf1", SALT, ())
    leaf["hpc_fabric:salt"], nvlink["hpc_fabric:salt"] = "short", ""
    assert read_aggregate_place("node1", [leaf, nvlink]).salt == ""
