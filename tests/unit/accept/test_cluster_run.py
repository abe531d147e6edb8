# SPDX-License-Identifier: Apache-2.0
"""A cluster is measured end to end: real processes, a program in place of ssh, tools that lie."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import attrs
import pytest

from nova_hpc_client.accept import cluster_views
from nova_hpc_client.accept.cluster_result import ClusterAcceptance, MemberAcceptance
from nova_hpc_client.accept.cluster_run import ClusterMeasuring
from nova_hpc_client.accept.cluster_terms import ClusterTerms
from nova_hpc_common.wire.member_verdict import read_member_verdict
from nova_hpc_guest.accept.first_sample import read_first_sample, write_first_sample
from nova_hpc_guest.accept.readings import HISTOGRAM_US
from nova_hpc_guest.accept.refusal import Refusal
from nova_hpc_guest.accept.sample import read_sample, write_sample
from tests.unit.accept.cluster_world import TOP, ClusterWorld
from tests.unit.guest.accept_world import list_processes


def member_of(measured: ClusterAcceptance, number: int) -> MemberAcceptance:
    (member,) = [member for member in measured.members if member.number == number]
    return member


@pytest.fixture
def world(tmp_path: Path) -> ClusterWorld:
    return ClusterWorld(tmp_path, 3)


@pytest.mark.long
def test_the_guests_own_command_is_asked(tmp_path: Path) -> None:
    world = ClusterWorld(tmp_path, 2, real=True)
    world.members[2].cpu(1000.0, together=1000.0)
    world.members[2].rate("memory", 'echo "6144.00 MiB transferred (4000.00 MiB/sec)"\n')
    measured = world.measure(("cpu_one", "cpu_all", "mem_stream"))
    assert (measured.verdict, measured.status, measured.rounds) == ("slow", 1, 6)
    assert [member.name for member in measured.rejected] == ["train-2"]
    bad = member_of(measured, 2)
    assert bad.slow == ("cpu_all", "mem_stream")
    ratios = {row.probe: (row.against, round(row.ratio, 2)) for row in bad.result.rows}
    assert ratios == {
        "cpu_one": ("rest", 1.0),
        "cpu_all": ("rest", 0.5),
        "mem_stream": ("rest", 0.44),
    }


def test_members_that_are_alike_are_accepted(world: ClusterWorld) -> None:
    measured = world.measure()
    assert (measured.verdict, measured.status, measured.rounds) == ("accepted", 0, 6)
    for member in measured.members:
        assert [row.verdict for row in member.result.rows] == ["level"]
        assert list(member.reasons) == []
    assert measured.rejected == ()


def test_a_gpu_in_use_matters_where_gpus_are_measured(world: ClusterWorld) -> None:
    place = world.members[2].folder / "first"
    first = read_first_sample(place.read_text())
    refused = Refusal("gpu-busy", "other processes use a GPU (pid 7)")
    place.write_text(write_first_sample(first._replace(refused=refused), None) + "\n")
    assert world.measure(("cpu_one",)).verdict == "accepted"
    measured = world.measure(("cpu_one", "h2d"))
    assert member_of(measured, 2).result.refused == refused
    assert [member_of(measured, number).result.refused for number in (1, 3)] == [None, None]


def test_the_straggler_is_named_with_its_cause(world: ClusterWorld) -> None:
    for number, together in ((1, 2000.0), (2, 1000.0), (3, 2000.0)):
        world.lay_down(number, cpu_one=1000.0, cpu_all=together)
    measured = world.measure(("cpu_one", "cpu_all"))
    assert (measured.verdict, measured.status) == ("slow", 1)
    assert [member.name for member in measured.rejected] == ["train-2"]
    bad = member_of(measured, 2)
    assert bad.slow == ("cpu_all",)
    # The experiment, with half of the CPUs, was made on the member: it costs nothing.
    (cause,) = bad.result.diagnosis.causes
    assert (cause.cause, cause.status) == ("vcpus-share-core", "proved")
    verdict = read_member_verdict(bad.make_verdict(7).dumps())
    assert (verdict.verdict, verdict.rejects, verdict.causes) == ("slow", True, bad.causes)
    text = cluster_views.format_cluster_text(measured)
    assert "train-1: accepted\n" in text
    assert "cpu_all       0.500 (0.500-0.500) of the rest, floor 0.95: slow" in text
    assert text.endswith("verdict of train (quick, 6 rounds): slow: train-2\n")


@pytest.mark.parametrize(
    ("login", "words"),
    [
        ("echo 'Permission denied (publickey).' >&2; exit 255", "ssh: Permission denied"),
        ("echo 'sh: 1: nova-hpc-guest: not found' >&2; exit 127", "install it"),
        ("echo Welcome; echo '{\"schema\": 1}'", "is not of schema"),
        ("echo Welcome", "its output is no sample"),
        ("printf '{'; head -c 100 /dev/zero; echo", "is not JSON"),
        ("kill -9 $$", "was ended by signal 9"),
        ("echo 'nova-hpc-guest: error: unrecognized arguments: --hold' >&2; exit 2", "older"),
    ],
)
def test_a_member_that_does_not_answer_is_a_row(
    world: ClusterWorld, login: str, words: str
) -> None:
    world.say_at_login(2, login)
    measured = world.measure()
    assert (measured.verdict, measured.status) == ("not measurable", 2)
    assert [member.name for member in measured.rejected] == ["train-2"]
    (reason,) = member_of(measured, 2).reasons
    assert reason.startswith("turn: ")
    assert words in reason
    # The others are judged all the same.
    assert {member_of(measured, number).result.verdict for number in (1, 3)} == {"accepted"}


def test_what_a_login_prints_before_is_passed_over(world: ClusterWorld) -> None:
    world.say_at_login(1, 'echo "Welcome to {train}"; echo "mail" >&2; exec sh -c "$1"')
    assert world.measure().verdict == "accepted"


def test_a_member_that_dies_in_its_turn_is_a_row(world: ClusterWorld) -> None:
    counter = world.folder / "asked"
    text = "COUNT=$(cat FILE 2>/dev/null || echo 0); echo $((COUNT + 1)) > FILE; "
    text += '[ $COUNT -gt 3 ] && exit 255; exec sh -c "$1"'
    world.say_at_login(3, text.replace("FILE", str(counter)))
    measured = world.measure()
    bad = member_of(measured, 3)
    assert bad.result.verdict == "not measurable"
    assert list(bad.reasons)[-1].startswith("turn: in round 4: ssh: ")
    assert {member_of(measured, number).result.verdict for number in (1, 2)} == {"accepted"}


def test_all_but_one_are_dead(world: ClusterWorld) -> None:
    for number in (1, 2):
        world.say_at_login(number, "exit 255")
    measured = world.measure()
    assert (measured.verdict, measured.rounds) == ("not measurable", 0)
    assert "nothing is compared" in measured.notes[0]


def test_members_that_are_not_up_yet_are_waited_for(world: ClusterWorld) -> None:
    up = world.folder / "up"
    world.say_at_login(2, f'[ -e {up} ] || exit 255; exec sh -c "$1"')
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            up.touch()

    assert world.measure(patience=60.0, sleep=sleep).verdict == "accepted"
    assert len(slept) == 2


def test_another_kind_of_machine_is_left_out(world: ClusterWorld) -> None:
    world.lay_down(1, model="Another CPU", cpu_one=1000.0)
    measured = world.measure()
    assert (measured.verdict, measured.status) == ("refused", 2)
    (reason,) = member_of(measured, 1).reasons
    assert "another machine than most members: model 'Some CPU' and 'Another CPU'" in reason
    assert member_of(measured, 2).result.verdict == "accepted"


def test_a_member_that_nova_says_is_off_is_not_asked(world: ClusterWorld) -> None:
    first, *rest = world.hosts()
    hosts = [attrs.evolve(first, problem="it is SHUTOFF"), *rest]
    terms = ClusterTerms("quick", 6, 600.0, ("cpu_one",), busy=True)
    measured = ClusterMeasuring("train", hosts, terms, lambda *_: None).measure()
    assert list(member_of(measured, 1).reasons) == ["turn: it is SHUTOFF"]


def test_the_budget_ends_what_is_undecided(world: ClusterWorld) -> None:
    world.lay_down(2, cpu_one=940.0)
    home = world.members[2].folder
    (home / "other").write_text((home / "round").read_text())
    world.lay_down(2, cpu_one=1000.0)
    # Once as fast as the others, once not.
    world.say_at_login(2, f'sh -c "$1"; cd {home}; mv round old; mv other round; mv old other')
    now = [0.0]

    def clock() -> float:
        now[0] += 10.0
        return now[0]

    measured = world.measure(budget=300.0, clock=clock)
    assert (measured.verdict, measured.status) == ("undecided", 3)
    assert measured.notes == ("the budget ended before everything was decided",)
    assert measured.rejected == ()
    assert list(member_of(measured, 2).reasons) == ["undecided: cpu_one"]


# -- links -----------------------------------------------------------------------------


def test_without_its_tool_a_link_is_left_out_and_said(world: ClusterWorld) -> None:
    measured = world.measure(("cpu_one", "net_bw"))
    assert measured.verdict == "accepted"
    assert measured.notes == ("net_bw was left out: train-1 has no tool iperf3",)


#: The rate of a link is that of its slower end.
_LINKED = """#!/bin/sh
case "$*" in
    *--first*) cat HOME/first; exit ;;
    *--serve*) [ -e HOME/deaf ] && { echo 'refused: iperf3 does not listen'; exit 2; }
        echo serving; cat > /dev/null; exit ;;
    *--peer*) ;;
    *) cat HOME/round; exit ;;
esac
while [ "$1" != --peer ]; do shift; done
rate=$(cat HOME/net); other=$(cat HOME/../$2/net)
[ "$other" -lt "$rate" ] && rate=$other
sed "s/4711.0/$rate.0/" HOME/round
"""


@pytest.fixture
def linked(world: ClusterWorld) -> ClusterWorld:
    for number, member in world.members.items():
        world.lay_down(number, net_bw=4711.0)
        member.tool("nova-hpc-guest", _LINKED.replace("HOME", str(member.folder)))
        (member.folder / "net").write_text("1000")
    return world


def test_links_that_are_alike_are_accepted(linked: ClusterWorld) -> None:
    measured = linked.measure(("net_bw",))
    assert (measured.verdict, measured.rounds) == ("accepted", 0)
    rows = [member.result.rows[0] for member in measured.members]
    # Three members: six passes over three links.
    assert {(row.probe, row.pairs, row.verdict) for row in rows} == {("net_bw", 6, "level")}


def test_the_member_with_slow_links_is_named(linked: ClusterWorld) -> None:
    (linked.members[1].folder / "net").write_text("300")
    measured = linked.measure(("net_bw",))
    assert [member.name for member in measured.rejected] == ["train-1"]
    assert member_of(measured, 1).slow == ("net_bw",)
    assert member_of(measured, 1).result.rows[0].ratio == pytest.approx(0.3)


def test_links_that_give_nothing_are_put_down_to_one(linked: ClusterWorld) -> None:
    for number in linked.members:
        linked.lay_down(number, cpu_one=1000.0, net_bw=4711.0)
    (linked.members[3].folder / "deaf").touch()
    measured = linked.measure(("cpu_one", "net_bw"))
    # It answers nobody; the link of the others is good.
    reasons = {member.name: list(member.reasons) for member in measured.members}
    assert reasons["train-3"] == [
        "links: 2 of its links gave nothing: the other one: status 2: refused: iperf3 does not "
        "listen"
    ]
    assert measured.verdict == "not measurable"
    assert [member.name for member in measured.rejected] == ["train-3"]


def test_two_members_have_one_link(tmp_path: Path) -> None:
    world = ClusterWorld(tmp_path, 2)
    for number, member in world.members.items():
        world.lay_down(number, cpu_one=1000.0, net_bw=4711.0)
        member.tool("nova-hpc-guest", _LINKED.replace("HOME", str(member.folder)))
        (member.folder / "net").write_text("1000")
    measured = world.measure(("cpu_one", "net_bw"))
    assert measured.verdict == "accepted"
    assert measured.notes == ("two members have one link, and nothing to compare it with",)


# -- the end ---------------------------------------------------------------------------

_RUN = """
import sys
from pathlib import Path
from tests.unit.accept.cluster_world import ClusterWorld
world = ClusterWorld.__new__(ClusterWorld)
world.folder = Path(sys.argv[1])
world.bin = world.folder / "bin"
world.members = {1: None, 2: None}
world.measure()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_running_on_any_member(tmp_path: Path, number: int) -> None:
    world = ClusterWorld(tmp_path, 2, real=True)
    sleep = f"sleep 303.{os.getpid()}"
    for member in world.members.values():
        member.tool(
            "sysbench", f'#!/bin/sh\ncase "$*" in *--version*) exit ;; esac\nexec /bin/{sleep}\n'
        )
    child = subprocess.Popen(
        [sys.executable, "-c", _RUN, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(TOP)},
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_until(lambda: bool(list_processes(sleep)))
    child.send_signal(number)
    child.wait(timeout=60)
    wait_until(lambda: not list_processes(sleep))
    wait_until(lambda: not list_processes(str(tmp_path)))


def wait_until(condition: object) -> None:
    end = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)


# -- views -----------------------------------------------------------------------------


def test_views_of_hostile_members(world: ClusterWorld) -> None:
    world.say_at_login(2, "printf '\\033[2J<script>\\n' >&2; exit 255")
    measured = world.measure()
    assert cluster_views.format_cluster_text(measured).replace("\n", "").isprintable()
    suites = ElementTree.fromstring(cluster_views.format_cluster_junit(measured))
    assert [suite.get("name") for suite in suites] == [
        f"nova-hpc-accept train-{number}" for number in (1, 2, 3)
    ]
    assert suites[1].get("errors") == "1"
    picture = ElementTree.fromstring(cluster_views.draw_cluster(measured))
    texts = [element.text for element in picture.iter() if element.text]
    assert "train, quick: not measurable" in texts
    rows = cluster_views.list_member_rows(measured)
    assert [row[:2] for row in rows] == [
        ("train-1", "accepted"),
        ("train-2", "not measurable"),
        ("train-3", "accepted"),
    ]
    assert json.dumps(rows)


def test_views_show_how_late_each_members_timer_was(world: ClusterWorld) -> None:
    late = {1: {3: 900, 7: 300}, 2: {3: 1000, 700: 189, HISTOGRAM_US: 11}, 3: {3: 1200}}
    for number, counts in late.items():
        value = 700.0 if number == 2 else 7.0
        world.lay_down(number, timer_p99=value)
        place = world.members[number].folder / "round"
        sample = read_sample(place.read_text())
        reading = sample.readings["timer_p99"]._replace(counts=counts)
        sample = sample._replace(readings={"timer_p99": reading})
        place.write_text(write_sample(sample) + "\n")
    measured = world.measure(("timer_p99",))
    assert [row[-1] for row in cluster_views.list_member_rows(measured)] == [
        "timer_p99 3/7/7 us",
        "timer_p99 3/700/>=20000 us",
        "timer_p99 3/3/3 us",
    ]
    (shown,) = member_of(measured, 2).result.distributions
    assert shown.base is not None
    # Six rounds of 1,200 wakes, and those of both others.
    assert (sum(shown.here), sum(shown.base)) == (7200, 14400)
    text = cluster_views.format_cluster_text(measured)
    assert "  timer_p99 3/7/7 us (half, 99 of 100, all)\n" in text
    # Only the slow one has its bins.
    assert text.count(">=20000") == 2
    (heading,) = (line for line in text.splitlines() if "(logarithmic)" in line)
    assert heading.split() == ["timer_p99,", "us", "rest", "(logarithmic)", "here", "(logarithmic)"]
    picture = ElementTree.fromstring(cluster_views.draw_cluster(measured))
    titles = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[1:] == [
        str(count) for number in (1, 2, 3) for count in _bins_of(measured, number)
    ]
    for part in picture.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(part.get("y", 0)) + float(part.get("height")) <= float(picture.get("height"))


def _bins_of(measured: ClusterAcceptance, number: int) -> tuple[int, ...]:
    (shown,) = member_of(measured, number).result.distributions
    return shown.here
