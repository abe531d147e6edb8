# SPDX-License-Identifier: Apache-2.0
"""Which switches are one leaf: the definition of the operator guide, word by word, and cases."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.fabric.model import FabricLevel
from nova_hpc_tools.fabric.exclusions import Exclusions
from nova_hpc_tools.fabric.problems import FabricReading
from nova_hpc_tools.fabric.readers import ibnetdiscover
from nova_hpc_tools.fabric.switch_groups import SwitchGroups, group_switches
from tests.unit.fabric.cabling import Cabling

LEAF, SPINE, CORE = FabricLevel.LEAF, FabricLevel.SPINE, FabricLevel.CORE

Users = Mapping[str, Sequence[str]]


def leaf_of(users: Users) -> dict[str, str | None]:
    """Host -> leaf, by the code under test."""
    groups = group_switches(users)
    choices = {user: groups.choose_domain(ports) for user, ports in users.items()}
    return {user: choice.domain for user, choice in choices.items() if choice is not None}


# --- the same, as the guide says it: no counting ahead, no kinds, every pair looked at ---------


def defined_leaf_of(users: Users) -> dict[str, str | None]:
    on = {
        switch: {user for user, ports in users.items() if switch in ports}
        for switch in {each for ports in users.values() for each in ports}
    }
    rest, layers = set(on), []
    while rest:
        layer = {each for each in rest if not defined_wide(each, rest, on)} or set(rest)
        layers.append(layer)
        rest -= layer
    domain_of: dict[str, str] = {}
    layer_of: dict[str, int] = {}
    for number, layer in enumerate(layers):
        for switch in layer:
            part = {switch}
            while more := {
                each for each in layer - part if any(defined_agree(on[each], on[p]) for p in part)
            }:
                part |= more
            if not all(defined_agree(on[a], on[b]) for a in part for b in part):
                part = {each for each in part if on[each] == on[switch]}
            domain_of[switch] = min(part)
            layer_of[min(part)] = number
    hosts = {
        name: set().union(*(on[each] for each in on if domain_of[each] == name))
        for name in layer_of
    }
    return {
        user: defined_choice(ports, domain_of, layer_of, hosts)
        for user, ports in users.items()
        if ports
    }


def defined_wide(switch: str, among: set[str], on: Mapping[str, set[str]]) -> bool:
    mostly = [s for s in among - {switch} if len(on[s] & on[switch]) > len(on[s]) / 2]
    return any(
        len(on[one] & on[other]) <= min(len(on[one]), len(on[other])) / 2
        for one in mostly
        for other in mostly
        if one != other
    )


def defined_agree(one: set[str], other: set[str]) -> bool:
    return len(one & other) >= len(one | other) / 2


def defined_choice(
    ports: Sequence[str],
    domain_of: Mapping[str, str],
    layer_of: Mapping[str, int],
    hosts: Mapping[str, set[str]],
) -> str | None:
    mine = [domain_of[each] for each in ports]
    gone = set()
    for wide in set(mine):
        for narrow in set(mine) - {wide}:
            both = len(hosts[wide] & hosts[narrow])
            if both <= len(hosts[narrow]) / 2:
                continue
            if layer_of[wide] > layer_of[narrow]:
                if 4 * mine.count(narrow) >= len(mine):
                    gone.add(wide)
            elif both <= len(hosts[wide]) / 2 and 3 * mine.count(narrow) > len(mine):
                gone.add(wide)
    left = [each for each in mine if each not in gone] or mine
    most = max(left.count(each) for each in left)
    best = {each for each in left if left.count(each) == most}
    return best.pop() if len(best) == 1 else None


@st.composite
def random_ports(draw: st.DrawFn) -> dict[str, list[str]]:
    """Leaves of several rails, racks with management, storage above; cables lost and wrong."""
    chance = random.Random(draw(st.integers(0, 1 << 32)))
    rails, storage = draw(st.integers(1, 4)), draw(st.integers(0, 2))
    managed, per_leaf = draw(st.booleans()), draw(st.integers(1, 6))
    users: dict[str, list[str]] = {}
    for leaf in range(draw(st.integers(1, 4))):
        for number in range(per_leaf):
            ports = [f"l{leaf}r{rail}" for rail in range(rails)]
            ports += [f"s{rail}" for rail in range(storage)]
            ports += [f"m{leaf}{number // 2}"] if managed else []
            users[f"h{leaf}{number}"] = ports
    switches = sorted({each for ports in users.values() for each in ports})
    for ports in users.values():
        for port in range(len(ports)):
            if chance.random() < 0.08:
                ports[port] = chance.choice(switches)
        ports[:] = [each for each in ports if chance.random() > 0.1]
    return users


@given(random_ports())
def test_two_hosts_are_in_one_leaf_exactly_when_the_definition_says_so(users):
    assert leaf_of(users) == defined_leaf_of(users)


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("stuvw"), max_size=4)))
def test_the_definition_holds_for_any_cabling(users):
    assert leaf_of(users) == defined_leaf_of(users)


@given(random_ports(), st.randoms(use_true_random=False))
def test_the_order_of_hosts_and_ports_decides_nothing(users, chance):
    mixed = [(user, chance.sample(ports, len(ports))) for user, ports in users.items()]
    chance.shuffle(mixed)
    assert leaf_of(dict(mixed)) == leaf_of(users)


# --- cases ------------------------------------------------------------------------------------


def leaves(users: Users) -> set[tuple[str, ...]]:
    found = leaf_of(users)
    return {
        tuple(sorted(user for user in found if found[user] == leaf))
        for leaf in set(found.values())
        if leaf is not None
    }


def hosts_on(*parts: tuple[str, Sequence[str]]) -> dict[str, list[str]]:
    """Letters of hosts -> switches of each."""
    users: dict[str, list[str]] = {}
    for letters, switches in parts:
        for letter in letters:
            users.setdefault(letter, []).extend(switches)
    return users


@pytest.mark.parametrize(
    ("users", "expected"),
    [
        pytest.param(
            hosts_on(("abc", ["l1"]), ("def", ["l2"]), ("abcdef", ["stor"])),
            {("a", "b", "c"), ("d", "e", "f")},
            id="a storage switch makes no leaf of two",
        ),
        pytest.param(
            hosts_on(("abc", ["l1"]), ("def", ["l2"]), ("abcdef", ["s1", "s2"])),
            {("a", "b", "c"), ("d", "e", "f")},
            id="nor do two storage switches, which have most ports",
        ),
        pytest.param(
            hosts_on(("abcdefghi", ["l1"]), ("j", ["l2"]), ("abcdefghij", ["s1", "s2"])),
            {tuple("abcdefghi"), ("j",)},
            id="nor where nearly all hosts are on one leaf",
        ),
        pytest.param(
            hosts_on(
                ("abcd", [f"l1r{n}" for n in range(8)]),
                ("efgh", [f"l2r{n}" for n in range(8)]),
                ("abcdefgh", ["s1", "s2"]),
                ("ab", ["m1"]),
                ("cd", ["m2"]),
                ("ef", ["m3"]),
                ("gh", ["m4"]),
            ),
            {tuple("abcd"), tuple("efgh")},
            id="eight rails between storage and the management of racks",
        ),
        pytest.param(
            hosts_on(("ab", ["r1", "r2", "r3"]), ("cd", ["r2", "r3"])),
            {tuple("abcd")},
            id="half of a rail is lost",
        ),
        pytest.param(
            hosts_on(("abcd", ["l1"]), ("abcdvwxyz", ["stor"])),
            {tuple("abcd"), tuple("vwxyz")},
            id="servers of storage hang on its switch alone",
        ),
        pytest.param(
            hosts_on(("abcdefgh", ["l1"]), ("defghijk", ["l2"])),
            {tuple("abc"), tuple("ijk")},
            id="leaves that overlap: who is on both is unknown",
        ),
    ],
)
def test_cases(users, expected):
    assert leaves(users) == expected
    assert leaf_of(users) == defined_leaf_of(users)


def test_switches_of_which_some_agree_and_others_do_not_are_named():
    users = hosts_on(("d", ["r1"]), ("bcd", ["r2"]), ("cd", ["r3"]))
    groups = group_switches(users)
    assert isinstance(groups, SwitchGroups)
    assert groups.disagreeing == (("r1", "r2", "r3"),)
    assert leaf_of(users)["d"] is None


# --- through the reader -----------------------------------------------------------------------


def read(cabling: Cabling, **exclusions: str) -> FabricReading:
    patterns = {key: re.compile(text) for key, text in exclusions.items()}
    return ibnetdiscover.read_ibnetdiscover(
        cabling.text(), "fabric", "test", Exclusions(**patterns)
    )


def two_leaves(storage: int = 1) -> Cabling:
    """Leaves of three hosts each, storage switches over all, one spine."""
    fabric = Cabling()
    above = fabric.switch("spine")
    stores = [fabric.switch(f"stor{number}") for number in range(storage)]
    for number in range(2):
        leaf = fabric.switch(f"leaf{number}")
        fabric.connect(leaf, above)
        fabric.connect(leaf, above)
        for host in range(3):
            fabric.connect(fabric.adapter(f"n{number}{host} mlx5_0"), leaf)
            for port, store in enumerate(stores, 8):
                fabric.connect(fabric.adapter(f"n{number}{host} mlx5_{port}"), store)
    for store in stores:
        fabric.connect(store, above)
    return fabric


@pytest.mark.parametrize("storage", [1, 2])
def test_a_storage_network_is_said_to_be_none(storage):
    reading = read(two_leaves(storage))
    assert reading.problems == ()
    assert {*reading.fabric.domains(LEAF).values()} == {
        ("n00", "n01", "n02"),
        ("n10", "n11", "n12"),
    }
    (note,) = reading.notes
    assert "hosts of the leaves leaf0, leaf1, so" in note.text
    # Its cables are its own: none of them is missing because leaves have two.
    assert not any(link.dead for link in reading.fabric.links)


@pytest.mark.parametrize("exclusions", [{"switches": "^stor"}, {"rails": "mlx5_[89]$"}])
def test_what_is_ignored_needs_no_note(exclusions):
    reading = read(two_leaves(2), **exclusions)
    assert (reading.problems, reading.notes) == ((), ())
    assert [len(hosts) for hosts in reading.fabric.domains(LEAF).values()] == [3, 3]
    assert all(len(place.rails) == 1 for place in reading.fabric.places)


def test_switches_back_to_back_are_one_fabric():
    fabric = Cabling()
    one, other = fabric.switch("ibsw1"), fabric.switch("ibsw2")
    for number in range(8):
        fabric.connect(fabric.adapter(f"n{number} mlx5_0"), one if number < 4 else other)
    for _ in range(4):
        fabric.connect(one, other)
    reading = read(fabric)
    assert [len(hosts) for hosts in reading.fabric.domains(LEAF).values()] == [4, 4]
    assert dict(reading.fabric.domains(CORE)) == {"ibsw1": reading.fabric.hosts()}
    assert reading.fabric.domains(SPINE) == {}


def test_groups_of_a_dragonfly_share_a_core_and_no_spine():
    fabric = Cabling()
    tops = []
    for group in range(3):
        spines = [fabric.switch(f"g{group}s{number}") for number in range(2)]
        tops.append(spines)
        for number in range(2):
            leaf = fabric.switch(f"g{group}l{number}")
            for spine in spines:
                fabric.connect(leaf, spine)
            for host in range(2):
                fabric.connect(fabric.adapter(f"n{group}{number}{host} mlx5_0"), leaf)
    for one, other in itertools.combinations(range(3), 2):
        fabric.connect(tops[one][0], tops[other][0])
    reading = read(fabric)
    assert reading.problems == ()
    assert [len(hosts) for hosts in reading.fabric.domains(SPINE).values()] == [4, 4, 4]
    assert [len(hosts) for hosts in reading.fabric.domains(CORE).values()] == [12]


def test_two_fabrics_have_two_cores():
    fabric = Cabling()
    for number in range(2):
        leaf, spine = fabric.switch(f"leaf{number}"), fabric.switch(f"spine{number}")
        fabric.connect(leaf, spine)
        fabric.connect(fabric.adapter(f"n{number} mlx5_0"), leaf)
    assert dict(read(fabric).fabric.domains(CORE)) == {"spine0": ("n0",), "spine1": ("n1",)}
