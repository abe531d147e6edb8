# SPDX-License-Identifier: Apache-2.0
"""A guest beside its host: where it is, when nothing is compared, and what comes out."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_client.accept.remote_member import RemoteMember
from nova_hpc_guest.accept.baseline import build_key, read_baseline, write_baseline
from nova_hpc_guest.accept.diagnosis import Diagnosis
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.result import read_acceptance, write_acceptance
from nova_hpc_guest.accept.sample import AcceptanceError, Reading, Sample
from nova_hpc_tools.accept.beside_run import BesideTerms, measure_against_file, measure_beside
from nova_hpc_tools.accept.guest_place import GuestPlaceError, read_guest_place
from nova_hpc_tools.accept.host_watch import HostWatch
from nova_hpc_tools.doctor import facts_quiet
from tests.unit.accept.cluster_world import ClusterWorld
from tests.unit.doctor.quiet_tree import BOUND, KCOMPACTD, KTHREADD, NVME, QuietTree

DOMAIN = """<domain type="{kind}"><name>instance-1</name><vcpu>{vcpus}</vcpu>
<cputune>{pins}</cputune><numatune><memory mode="strict" nodeset="1"/>
<memnode cellid="0" mode="strict" nodeset="1"/></numatune></domain>"""


def domain(pins: dict[int, str], kind: str = "kvm", vcpus: int | None = None) -> str:
    text = "".join(f'<vcpupin vcpu="{cpu}" cpuset="{where}"/>' for cpu, where in pins.items())
    return DOMAIN.format(kind=kind, pins=text, vcpus=len(pins) if vcpus is None else vcpus)


# -- where it is -----------------------------------------------------------------------


def test_a_pinned_guest_has_its_cpus_and_its_node() -> None:
    place = read_guest_place(domain({0: "7", 1: "3"}))
    assert (place.host_cpus, place.nodes, place.emulated) == ((3, 7), (1,), False)
    assert place.refusal is None
    assert place.findings == ()


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        (domain({0: "2", 1: "3"}, kind="qemu"), "emulated", "a ratio to the host's CPU has"),
        (domain({0: "2-3", 1: "3"}), "not pinned", "1 of 2 vCPUs are not pinned"),
        (domain({0: "2"}, vcpus=3), "not pinned", "2 of 3 vCPUs are not pinned"),
        (domain({0: "2-4,^3", 1: "5"}), "not pinned", "1 of 2"),
        (domain({}), "not pinned", "hw:cpu_policy=dedicated"),
    ],
)
def test_a_guest_without_the_same_cores_is_refused(text: str, kind: str, words: str) -> None:
    refusal = read_guest_place(text).refusal
    assert refusal is not None
    assert refusal.kind == kind
    assert words in refusal.text


def test_two_vcpus_on_one_cpu_are_found_without_measuring() -> None:
    (finding,) = read_guest_place(domain({0: "2", 1: "5", 2: "2"})).findings
    assert finding.wrong
    assert finding.text == "vCPUs 0, 2 are pinned to one CPU of the host, 2"


@pytest.mark.parametrize(
    "text",
    [
        *("", "<domain", "<node/>", "<domain/>", "<domain><vcpu>x</vcpu></domain>"),
        domain({0: "2"}).replace('nodeset="1"', 'nodeset="one"'),
        domain({0: "2; rm"}),
        '<!DOCTYPE d [<!ENTITY a SYSTEM "file:///etc/passwd">]><domain><vcpu>&a;</vcpu></domain>',
    ],
)
def test_a_domain_that_makes_no_sense_is_an_error(text: str) -> None:
    with pytest.raises(GuestPlaceError):
        read_guest_place(text)


@given(st.text(max_size=30), st.integers(0, 300))
def test_a_broken_domain_never_raises_anything_else(noise: str, place: int) -> None:
    text = domain({0: "2", 1: "3"})
    with contextlib.suppress(GuestPlaceError):
        read_guest_place(text[:place] + noise + text[place + len(noise) :])


# -- measured --------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> ClusterWorld:
    """Member 1 is the host, member 2 its guest."""
    world = ClusterWorld(tmp_path, 2)
    world.lay_down(1, model="Some CPU", cpu_one=1000.0, cpu_all=2000.0)
    world.lay_down(2, model="Some CPU", cpu_one=990.0, cpu_all=1000.0)
    return world


def both(world: ClusterWorld) -> tuple[RemoteMember, RemoteMember]:
    host, guest = world.hosts()
    return host.remote, guest.remote


TERMS = BesideTerms(only=("cpu_one", "cpu_all"))


def test_host_and_guest_are_measured_in_turns(world: ClusterWorld) -> None:
    steps: list[str] = []
    result = measure_beside(*both(world), TERMS, steps.append)
    assert (result.verdict, result.status, result.rounds) == ("slow", 1, 6)
    ratios = {row.probe: (row.against, round(row.ratio, 2), row.verdict) for row in result.rows}
    assert ratios == {"cpu_one": ("beside", 0.99, "level"), "cpu_all": ("beside", 0.5, "slow")}
    assert [cause.cause for cause in result.diagnosis.causes] == ["vcpus-share-core"]
    assert steps[0] == "round 1: cpu_one, cpu_all"
    assert read_acceptance(write_acceptance(result)).verdict == "slow"
    assert result.baseline["kind"] == "beside"
    assert result.baseline["key"]["model"] == "Some CPU"


def test_a_guest_that_is_not_idle_is_refused(world: ClusterWorld) -> None:
    home = world.members[1].folder / "round"
    data = json.loads(home.read_text())
    data["probes"]["cpu_one"]["others"] = 0.6
    home.write_text(json.dumps(data) + "\n")
    result = measure_beside(*both(world), TERMS, lambda _: None)
    assert (result.verdict, result.status, result.rows) == ("refused", 2, ())
    assert result.refused is not None
    assert result.refused.kind == "busy"
    assert "60% of a CPU" in result.refused.text


def test_an_emulated_guest_is_refused_by_what_it_says_too(world: ClusterWorld) -> None:
    world.lay_down(2, model="QEMU TCG CPU version 2.5+", cpu_one=100.0)
    result = measure_beside(*both(world), TERMS, lambda _: None)
    assert result.refused is not None
    assert result.refused.kind == "emulated"
    assert result.rounds == 0


def test_a_guest_that_cannot_be_reached_is_an_error(world: ClusterWorld) -> None:
    world.say_at_login(2, "echo 'Permission denied (publickey).' >&2; exit 255")
    with pytest.raises(AcceptanceError, match="ssh: Permission denied"):
        measure_beside(*both(world), TERMS, lambda _: None)


# -- the host's own work ---------------------------------------------------------------

#: How much of each fault is in a millisecond on CPU 7, the last dedicated one.
WORKS = {
    "host-interrupts": (
        lambda tree, much: tree.more[NVME].update({7: tree.more[NVME][7] + much}),
        "interrupts of the host fired {much}000 times a second on a CPU of this guest: 130 nvme0q1",
    ),
    "host-kernel-threads": (
        lambda tree, much: tree.ran.update({KCOMPACTD: tree.ran[KCOMPACTD] + much * 10_000}),
        "kernel threads of the host ran for {much}.0% of the time on a CPU of this guest: "
        "kcompactd0",
    ),
}


class WatchedTurns:
    """Host and guest whose turns take a millisecond of a host's synthetic files."""

    def __init__(self, world: ClusterWorld, folder: Path, monkeypatch) -> None:
        self.world = world
        self.tree = QuietTree(folder, frozenset(range(8)), frozenset({4, 5, 6, 7}))
        self.tree.write()
        self.tree.direct(NVME, {7})
        self.tree.last = 7
        self.tree.more[NVME], self.tree.ran[KCOMPACTD] = {7: 0}, 0
        self.tree.wait(0)
        self.milliseconds = 0
        monkeypatch.setattr(facts_quiet, "monotonic", lambda: self.milliseconds / 1000)
        self.host, self.guest = both(world)
        self.watch = HostWatch(folder, (6, 7))
        self.terms = BesideTerms(only=("cpu_one", "cpu_all", "timer_p99"))
        #: Makes the work of the host in its own turns, and in the guest's.
        self.work = {self.host: lambda: None, self.guest: lambda: None}
        for side in self.work:
            monkeypatch.setattr(side, "measure_round", self.delay(side, side.measure_round))

    def delay(self, side, measure_round):
        def measure(*words):
            self.work[side]()
            self.milliseconds += 1
            self.tree.counters()
            return measure_round(*words)

        return measure

    def find_causes(self, cpu: float = 1.0) -> Diagnosis:
        """Measure a guest whose timer is five times as late, and whose CPUs have this ratio."""
        self.world.lay_down(1, cpu_one=1000.0, cpu_all=2000.0, timer_p99=10.0)
        self.world.lay_down(2, cpu_one=1000 * cpu, cpu_all=2000 * cpu, timer_p99=50.0)
        self.result = measure_beside(self.host, self.guest, self.terms, lambda _: None, self.watch)
        return self.result.diagnosis


@pytest.fixture
def turns(world: ClusterWorld, tmp_path: Path, monkeypatch) -> WatchedTurns:
    return WatchedTurns(world, tmp_path / "node", monkeypatch)


@pytest.mark.parametrize("cause", WORKS)
def test_the_hosts_own_work_is_named(turns: WatchedTurns, cause: str) -> None:
    make, words = WORKS[cause]
    turns.work[turns.guest] = lambda: make(turns.tree, 2)
    diagnosis = turns.find_causes()
    (named,) = diagnosis.causes
    assert (named.cause, named.status, named.explains) == (cause, "indicated", ("timer_p99",))
    assert named.says == words.format(much=2)
    assert "quiet_cpus" in named.cure
    # CPUs that lost a tenth of their time lost it to something else.
    diagnosis = turns.find_causes(cpu=0.9)
    assert cause not in [one.cause for one in diagnosis.causes]
    turns.work[turns.guest] = lambda: make(turns.tree, 20)
    (named,) = turns.find_causes(cpu=0.9).causes
    assert named.explains == ("cpu_all", "cpu_one", "timer_p99")
    assert not [note for note in turns.result.notes if "unknown" in note]


@pytest.mark.parametrize("cause", WORKS)
def test_work_elsewhere_or_in_the_hosts_own_turns_is_no_cause(
    turns: WatchedTurns, cause: str
) -> None:
    make, _ = WORKS[cause]
    turns.work[turns.host] = lambda: make(turns.tree, 50)
    assert turns.find_causes().unexplained == ("timer_p99",)
    turns.work[turns.guest] = lambda: make(turns.tree, 50)
    # The timer is measured on the last vCPU.
    turns.watch = HostWatch(turns.tree.root, (7, 6))
    assert turns.find_causes().unexplained == ("timer_p99",)
    turns.watch = None
    assert turns.find_causes().unexplained == ("timer_p99",)


@pytest.mark.parametrize(
    ("cause", "path"),
    [
        ("host-interrupts", "/proc/interrupts"),
        ("host-interrupts", f"/proc/irq/{NVME}/effective_affinity_list"),
        ("host-kernel-threads", f"/proc/{KCOMPACTD}/schedstat"),
        ("host-kernel-threads", f"/proc/{KCOMPACTD}/status"),
    ],
)
def test_unreadable_work_of_the_host_is_no_cause(
    turns: WatchedTurns, cause: str, path: str
) -> None:
    turns.work[turns.guest] = lambda: WORKS[cause][0](turns.tree, 2)
    turns.tree.broken.add(path)
    turns.tree.put(path, "")
    assert turns.find_causes().unexplained == ("timer_p99",)


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("interrupts", ("/proc/interrupts",)),
        (
            "kernel threads",
            tuple(f"/proc/{pid}/schedstat" for pid in (KTHREADD, KCOMPACTD, BOUND)),
        ),
    ],
)
def test_unreadable_counters_of_the_host_are_named(
    turns: WatchedTurns, name: str, paths: tuple[str, ...]
) -> None:
    for path in paths:
        turns.tree.broken.add(path)
        turns.tree.put(path, "")
    turns.find_causes()
    unknown = [note for note in turns.result.notes if "unknown" in note]
    assert unknown == [f"the host's {name} in the guest's turns are unknown: unreadable"]


# -- from a file -----------------------------------------------------------------------


def rounds_of(rate: float, scale: float = 1.0, model: str = "Some CPU") -> str:
    facts = GuestFacts(model=model, online=(0, 1), allowed=(0, 1))
    values = [rate * factor for factor in (0.998, 0.999, 1.0, 1.001, 1.002, 1.003)]
    samples = [Sample(facts, {"cpu_one": Reading(value, wall=1.0)}) for value in values]
    return write_baseline(build_key(facts, {}, scale), samples)


@pytest.mark.parametrize(("rate", "verdict"), [(1000.0, "level"), (800.0, "slow")])
def test_rounds_of_a_guest_nobody_can_log_in_to(
    world: ClusterWorld, rate: float, verdict: str
) -> None:
    host, _ = both(world)
    rounds = read_baseline(rounds_of(rate, 0.25))
    result = measure_against_file(host, rounds, BesideTerms(only=("cpu_one",)), lambda _: None)
    (row,) = result.rows
    assert (row.against, row.verdict) == ("file", verdict)
    assert row.ratio == pytest.approx(rate / 1000.0, rel=0.01)
    # The host does as much work as the guest did.
    assert host.scale == 0.25
    assert result.baseline["kind"] == "file"


def test_rounds_of_an_emulated_guest_are_refused(world: ClusterWorld) -> None:
    host, _ = both(world)
    rounds = read_baseline(rounds_of(100.0, model="QEMU TCG CPU version 2.5+"))
    result = measure_against_file(host, rounds, TERMS, lambda _: None)
    assert result.refused is not None
    assert result.refused.kind == "emulated"
