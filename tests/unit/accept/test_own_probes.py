# SPDX-License-Identifier: Apache-2.0
"""A cluster measures the user's own program: the guest's own command runs it on each member."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from nova_hpc_client.accept import cluster_views
from nova_hpc_client.accept.remote_member import PairCall, measure_pairs
from nova_hpc_guest.accept.own_probes import OwnProbes, parse_probes
from nova_hpc_guest.accept.sample import Sample
from tests.unit.accept.cluster_world import ClusterWorld
from tests.unit.guest.accept_world import list_processes
from tests.unit.pictures.faults import list_faults

MINE = parse_probes(
    "[mine]\ncommand = mine 'a; b' --fast\nfigure = rate: (\\S+)\nunit = x/s\nbetter = higher\n"
)
PAIR = parse_probes(
    "[far]\nscope = pair\ncommand = far {peer}\nfigure = took (\\S+) us\nunit = us\n"
    "better = lower\nfloor = 0.5\n[near]\nof = far\nfigure = rate (\\S+)\nunit = x/s\n"
    "better = higher\n"
)
#: Also prints its second word, to show that no shell has read it.
_MINE = '#!/bin/sh\n[ "$1" = "a; b" ] || exit 9\n'
#: The pair with member 3 is slow.
_FAR = """#!/bin/sh
case "$PWD $1" in *.3*) echo took 9 us, rate 1 ;; *) echo took 3 us, rate 1 ;; esac
"""


def build_world(folder: Path, size: int, own: OwnProbes = MINE) -> ClusterWorld:
    world = ClusterWorld(folder, size, real=True)
    world.own = (own,)
    for member in world.members.values():
        member.tool("mine", f"{_MINE}echo rate: 5\n")
        member.tool("far", _FAR)
    return world


@pytest.mark.long
def test_a_member_on_which_the_program_is_slow_is_named(tmp_path: Path) -> None:
    world = build_world(tmp_path, 2)
    world.members[2].tool("mine", f"{_MINE}echo rate: 2.5\n")
    measured = world.measure(("mine",))
    assert (measured.verdict, measured.rounds) == ("slow", 6)
    assert [member.name for member in measured.rejected] == ["train-2"]
    (row,) = measured.members[1].result.rows
    assert (row.probe, row.unit, row.against, row.ratio, row.floor) == (
        *("mine", "x/s", "rest", 0.5, 0.9),
    )
    text = cluster_views.format_cluster_text(measured)
    assert "  mine          0.500 (0.500-0.500) of the rest, floor 0.9: slow\n" in text
    assert "  no cause found for mine\n" in text
    assert "mine 0.50" in str(cluster_views.list_member_rows(measured))
    assert list_faults(cluster_views.draw_cluster(measured)) == []
    assert "0.50 slow" in cluster_views.draw_cluster(measured)
    suites = ElementTree.fromstring(cluster_views.format_cluster_junit(measured))
    assert [case.get("classname") for case in suites.iter("testcase")] == ["mine", "mine"]


def test_a_program_that_fails_on_one_member_is_a_row(tmp_path: Path) -> None:
    mark = f"318{os.getpid()}"
    # The good members' programs have to end within it on a loaded machine.
    limited = MINE.text + "seconds = 2\n"
    for number, (text, reason) in enumerate(
        (
            ("echo bad; exit 3\n", "mine: it ended with status 3: 'bad'"),
            (f"/bin/sleep {mark}\n", "mine: it was ended at its limit of 2 s"),
            ("echo 'rate: 1,5'\n", "'1,5' is no number of the C locale: 'rate: 1,5'"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = build_world(folder, 3, parse_probes(limited))
        world.members[2].tool("mine", f"{_MINE}{text}")
        measured = world.measure(("mine",), least=1)
        assert measured.verdict == "not measurable"
        assert [member.name for member in measured.rejected] == ["train-2"]
        assert reason in measured.members[1].result.failed["mine"]
    assert not list_processes(mark)


def test_a_program_that_fails_on_all_members_is_not_run_again(tmp_path: Path) -> None:
    world = build_world(tmp_path, 2)
    for member in world.members.values():
        member.tool("mine", "#!/bin/sh\nexit 3\n")
    measured = world.measure(("mine",))
    assert (measured.verdict, measured.rounds) == ("not measurable", 1)


def test_an_older_guest_is_named(tmp_path: Path) -> None:
    world = build_world(tmp_path, 2)
    world.say_at_login(
        2, "echo 'nova-hpc-guest: error: unrecognized arguments: --probe-data' >&2; exit 2"
    )
    measured = world.measure(("mine",), least=1)
    assert "older" in measured.members[1].result.failed["turn"]


@pytest.mark.long
def test_pairs_run_the_program_with_each_others_address(tmp_path: Path) -> None:
    world = build_world(tmp_path, 4, PAIR)
    measured = world.measure(("far", "near"))
    slow = {member.name: member.slow for member in measured.members}
    assert slow == {"train-1": (), "train-2": (), "train-3": ("far",), "train-4": ()}
    rows = {row.probe: row.ratio for row in measured.members[2].result.rows}
    assert rows == {"far": pytest.approx(1 / 3), "near": 1.0}


def test_one_of_a_pair_starts_no_server(tmp_path: Path) -> None:
    world = build_world(tmp_path, 2, PAIR)
    first, second = (host.remote for host in world.hosts())
    # A command that answered a probe would not be known.
    world.members[2].tool("nova-hpc-guest", "#!/bin/sh\nexit 7\n")
    (answer,) = measure_pairs([PairCall(first, second, "10.0.0.2")], PAIR.probes)
    assert isinstance(answer, Sample)
    assert {name: reading.value for name, reading in answer.readings.items()} == {
        **{"far": 3.0, "near": 1.0},
    }
