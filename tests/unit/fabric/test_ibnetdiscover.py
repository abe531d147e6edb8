# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.fabric.model import FabricLevel, FabricLink
from nova_hpc_tools.fabric.exclusions import Exclusions
from nova_hpc_tools.fabric.problems import FabricMapError, FabricReading
from nova_hpc_tools.fabric.readers import ibnetdiscover
from tests.unit.fabric.cabling import Cabling, groups, rail_optimised

LEAF, SPINE, CORE = FabricLevel.LEAF, FabricLevel.SPINE, FabricLevel.CORE


def read(text: str, ignore: str | None = None) -> FabricReading:
    exclusions = Exclusions(hosts=re.compile(ignore) if ignore else None)
    return ibnetdiscover.read_ibnetdiscover(text, "fabric", "test", exclusions)


def said(reading: FabricReading) -> list[str]:
    return [str(problem) for problem in reading.problems]


def test_the_capture_of_an_ndr_fabric(captures):
    text = (captures / "fabric/ibnetdiscover-ndr.out").read_text(encoding="utf-8")
    reading = read(text)
    fabric = reading.fabric
    # Eight units of four rails, of which the first lost one of its leaf switches.
    assert [len(hosts) for hosts in fabric.domains(LEAF).values()] == [
        10,
        11,
        18,
        17,
        18,
        15,
        16,
        16,
    ]
    units = {host.split("-dgx-")[1][:2] for host in fabric.domains(LEAF)["A09-P1-IBLEAF-01-04"]}
    assert units == {"04"}
    assert len(fabric.domains(SPINE)) == 1
    assert len(fabric.switches) == 40
    # Each cable has a line at both ends.
    switches = set(re.findall(r'^Switch\s+\d+ "(\S+)"', text, re.M))
    ends = 0
    inside = ""
    for line in text.splitlines():
        if head := re.match(r'(?:Switch|Ca)\s+\d+ "(\S+)"', line):
            inside = head[1]
        elif (port := re.match(r'\[\d+\](?:\(\w+\))?\s+"(\S+?)"', line)) and inside in switches:
            ends += port[1] in switches
    assert 2 * sum(link.count for link in fabric.links) == ends
    place = fabric.place("a08-p1-dgx-04-c01")
    assert place is not None
    assert [(rail.name, rail.switch) for rail in place.rails] == [
        ("mlx5_0", "A09-P1-IBLEAF-01-04"),
        ("mlx5_1", "A09-P1-IBLEAF-02-04"),
        ("mlx5_4", "A09-P1-IBLEAF-03-04"),
        ("mlx5_5", "A09-P1-IBLEAF-04-04"),
    ]
    assert FabricLink("A09-P1-IBLEAF-01-01", "A10-P1-IBSPINE-04", 1, 1, "4xNDR") in fabric.links
    assert FabricLink("A09-P1-IBLEAF-01-02", "A10-P1-IBSPINE-01", 0, 2) in fabric.links
    assert reading.problems == ()
    # Adapters that nobody has named belong to no host.
    assert sum("names no host" in note.text for note in reading.notes) == 72


@given(
    st.integers(1, 4), st.integers(2, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3)
)
def test_the_units_of_a_sound_fabric_are_its_leaves(units, hosts, rails, spines, cables):
    cabling, truth = rail_optimised(units, hosts, rails, spines, cables)
    reading = read(cabling.text())
    assert reading.problems == ()
    assert set(reading.fabric.domains(LEAF).values()) == groups(truth)
    assert [len(each) for each in reading.fabric.domains(SPINE).values()] == [len(truth)]
    assert not any(link.dead for link in reading.fabric.links)
    assert all(link.count == cables for link in reading.fabric.links)
    assert len(reading.fabric.links) == units * rails * spines


@given(st.data())
def test_a_few_lost_cables_change_no_domain_and_are_counted(data):
    cabling, truth = rail_optimised(3, 4, 3, 3)
    uplinks = sorted(
        end for end, other in cabling.ends.items() if {end[0][0], other[0][0]} == {"S"}
    )
    ports = sorted(end for end in cabling.ends if end[0].startswith("H"))
    lost = data.draw(st.lists(st.sampled_from(uplinks), unique=True, max_size=4))
    hosts = data.draw(st.lists(st.sampled_from(ports), unique=True, max_size=2))
    dead = 0
    for end in lost:
        if end in cabling.ends:  # its other end may have been drawn, too
            cabling.cut(end)
            dead += 1
    for end in hosts:
        cabling.cut(end)
    reading = read(cabling.text())
    assert reading.problems == ()
    assert set(reading.fabric.domains(LEAF).values()) == groups(truth)
    assert sum(link.dead for link in reading.fabric.links) == dead
    assert sum(link.count for link in reading.fabric.links) == 3 * 3 * 3 * 2 - dead


def test_a_cable_in_the_wrong_unit_is_named_and_moves_nobody():
    cabling, truth = rail_optimised(2, 4, 4, 2)
    names = {said: guid for guid, (_, said) in cabling.nodes.items()}
    cabling.cut((names["node0001 mlx5_2"], 1))
    cabling.connect(names["node0001 mlx5_2"], names["MF0;LEAF-02-01:MQM9701/U1"])
    reading = read(cabling.text())
    assert set(reading.fabric.domains(LEAF).values()) == groups(truth)
    (note,) = reading.notes
    assert note.line is not None
    assert "port mlx5_2 of host 'node0001' goes to LEAF-02-01" in note.text


def test_three_tiers_are_leaf_spine_and_core():
    fabric = Cabling()
    core = fabric.switch("CORE")
    for pod in range(2):
        spines = [fabric.switch(f"SPINE-{pod}{number}") for number in range(2)]
        for spine in spines:
            fabric.connect(spine, core)
        for leaf_number in range(2):
            leaf = fabric.switch(f"LEAF-{pod}{leaf_number}")
            for spine in spines:
                fabric.connect(leaf, spine)
            for host in range(2):
                fabric.connect(fabric.adapter(f"n{pod}{leaf_number}{host} mlx5_0"), leaf)
    reading = read(fabric.text())
    assert reading.problems == ()
    assert reading.fabric.path("n011") == ((CORE, "CORE"), (SPINE, "SPINE-00"), (LEAF, "LEAF-01"))
    assert len(reading.fabric.domains(SPINE)) == 2


def test_a_manager_on_a_spine_makes_it_no_leaf():
    cabling, truth = rail_optimised(2, 8, 1, 2)
    spine = next(guid for guid, (_, said) in cabling.nodes.items() if "SPINE-00" in said)
    cabling.connect(cabling.adapter("ufm mlx5_0"), spine)
    reading = read(cabling.text())
    assert set(reading.fabric.domains(LEAF).values()) == groups(truth)
    assert reading.fabric.path("ufm") == ((CORE, "SPINE-00"), (SPINE, "SPINE-00"))
    assert any("taken for no leaf" in note.text for note in reading.notes)
    ignored = read(cabling.text(), ignore="^ufm$")
    assert ignored.fabric.place("ufm") is None
    assert ignored.notes == ()


def test_a_slow_cable_is_the_rate_of_its_link():
    cabling, _ = rail_optimised(2, 2, 1, 1, cables=1)
    leaf = next(guid for guid, (_, said) in cabling.nodes.items() if "LEAF-00-00" in said)
    spine = next(guid for guid, (_, said) in cabling.nodes.items() if "SPINE" in said)
    cabling.connect(leaf, spine, "1xNDR")
    (slow,) = [link for link in read(cabling.text()).fabric.links if link.rate != "4xNDR"]
    assert (slow.lower, slow.count, slow.rate) == ("LEAF-00-00", 2, "1xNDR")


def test_two_hosts_of_one_name_are_nowhere():
    cabling, _ = rail_optimised(1, 3, 1, 1)
    leaf = next(guid for guid, (_, said) in cabling.nodes.items() if "LEAF" in said)
    cabling.connect(cabling.adapter("node0001 mlx5_0"), leaf)
    text = cabling.text()
    reading = read(text)
    assert reading.fabric.hosts() == ("node0000", "node0002")
    lines = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.startswith("Ca") and "node0001" in line
    ]
    assert said(reading) == [
        f"line {lines[1]}: mlx5_0 of host 'node0001' is there twice, first in line {lines[0]}: two "
        "hosts may have one name, and where it is, is unknown"
    ]


def test_what_two_lines_say_differently_is_not_believed():
    cabling, _ = rail_optimised(1, 2, 1, 1)
    lines = cabling.text().splitlines()
    leaf = next(guid for guid, (_, said) in cabling.nodes.items() if "LEAF" in said)
    at = next(n for n, line in enumerate(lines) if line.startswith("[") and "node0000" in line)
    port = lines[at][1 : lines[at].index("]")]
    wrong = re.sub(r'"H-[0-9a-f]+"', f'"H-{0xBAD:016x}"', lines[at])
    reading = read("\n".join([*lines[: at + 1], wrong, *lines[at + 1 :]]))
    (first, *_) = [text for text in said(reading) if text.startswith(f"line {at + 2}:")]
    assert f"port {port} of {leaf} goes to H-{0xBAD:016x} and to H-" in first
    assert f"in line {at + 1}: neither is believed" in first
    twice = read("\n".join([*lines[: at + 1], lines[at], *lines[at + 1 :]]))
    assert said(twice) == [
        f"line {at + 2}: port {port} of {leaf} is there twice, first in line {at + 1}"
    ]
    assert twice.fabric.hosts() == ("node0000", "node0001")


def test_a_file_that_was_cut_says_where():
    cabling, _ = rail_optimised(2, 3, 2, 2)
    text = cabling.text()
    reading = read(text[: len(text) // 2])
    assert reading.problems
    assert all(problem.line for problem in reading.problems[:-1])


@pytest.mark.parametrize("text", ["", "# nothing\n", "SwitchName=a Nodes=b\n", "Ca 1"])
def test_what_has_no_switch_is_no_output_of_ibnetdiscover(text):
    with pytest.raises(FabricMapError, match="no output of ibnetdiscover"):
        read(text)


@given(st.data())
def test_damage_never_raises(data):
    lines = rail_optimised(2, 2, 2, 2)[0].text().splitlines()
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(lines) - 1))
        kind = data.draw(st.sampled_from(["cut", "drop", "twice", "noise", "swap"]))
        if kind == "cut":
            lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
        elif kind == "drop" and len(lines) > 1:
            del lines[at]
        elif kind == "twice":
            lines.insert(at, lines[data.draw(st.integers(0, len(lines) - 1))])
        elif kind == "noise":
            lines[at] = data.draw(st.text(max_size=30))
        else:
            other = data.draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
    try:
        reading = read("\n".join(lines))
    except FabricMapError:
        return
    for problem in (*reading.problems, *reading.notes):
        assert problem.text.isprintable()
