# SPDX-License-Identifier: Apache-2.0
"""Turns, budgets and baselines, with machines that are simulated."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc_guest.accept import baseline, rounds
from nova_hpc_guest.accept.baseline import read_baseline, write_baseline
from nova_hpc_guest.accept.facts import GuestFacts
from nova_hpc_guest.accept.probes import PROBE_OF, Probe
from nova_hpc_guest.accept.rounds import BesideSource, FileSource, OwnSource, Series, run_series
from nova_hpc_guest.accept.sample import AcceptanceError, Reading, Sample, read_sample, write_sample
from nova_hpc_guest.document import GuestDevice, GuestDocument

FACTS = GuestFacts(model="Some CPU", online=(0, 1), allowed=(0, 1), memory_gib=16)


class SimulatedMachine:
    """A machine whose probes give what they should, with noise."""

    def __init__(
        self, values: Mapping[str, float], noise: float = 0.001, facts: GuestFacts = FACTS
    ) -> None:
        self.values = dict(values)
        self.noise = noise
        self.facts = facts
        self.dice = random.Random(5)
        self.log: list[str] = []
        #: Setting -> probe -> by how much more it gives.
        self.gains: dict[str, dict[str, float]] = {}

    def measure_round(
        self, probes: Sequence[Probe], settings: Mapping[str, str] | None = None
    ) -> Sample:
        setting = "".join(f"{name}={value}" for name, value in (settings or {}).items())
        names = ",".join(probe.name for probe in probes)
        self.log.append(f"{setting} {names}".strip())
        readings = {}
        for probe in probes:
            if probe.name in self.values:
                value = self.values[probe.name] * self.gains.get(setting, {}).get(probe.name, 1)
                readings[probe.name] = Reading(value * (1 + self.dice.gauss(0, self.noise)), wall=1)
        return Sample(self.facts, readings)


def probes(*names: str) -> list[Probe]:
    return [PROBE_OF[name] for name in names]


def run(source, wanted, least=6, budget=1e9, floors=None, step=1.0) -> Series:
    """A series on a clock that *step* seconds pass on at each look."""
    ticks = iter(range(10**6))
    return run_series(
        source, wanted, floors or {}, least, budget, lambda _: None, lambda: step * next(ticks)
    )


def test_a_machine_is_compared_with_itself_in_turns() -> None:
    machine = SimulatedMachine({"mem_stream": 100.0})
    machine.gains = {"pages=large": {"mem_stream": 1.5}}
    series = run(OwnSource(machine, FACTS, {}), probes("mem_stream"))
    changed, plain = "pages=large mem_stream", "mem_stream"
    assert machine.log == [changed, plain, plain, changed] * 3
    row = series.rows["mem_stream"]
    assert (row.verdict, row.against, row.pairs) == ("slow", "pages=large", 6)
    assert row.ratio == pytest.approx(1 / 1.5, rel=0.01)
    assert not series.short


def test_all_cpus_are_compared_with_the_sum_of_one() -> None:
    machine = SimulatedMachine({"cpu_all": 1000.0, "cpu_one": 1000.0})
    series = run(OwnSource(machine, FACTS, {}), probes("cpu_all"))
    assert machine.log == ["cpu_all,cpu_one"] * 6
    assert series.rows["cpu_all"].ratio == pytest.approx(0.5, rel=0.01)
    assert series.rows["cpu_all"].verdict == "slow"
    assert "cpu_one" not in series.rows
    machine.values["cpu_all"] = 1500.0  # threads of one core, or a lower frequency
    assert run(OwnSource(machine, FACTS, {}), probes("cpu_all")).rows["cpu_all"].verdict == "level"


def test_one_cpu_has_nothing_to_be_compared_with() -> None:
    one = FACTS._replace(online=(0,), allowed=(0,))
    machine = SimulatedMachine({"cpu_all": 1000.0, "cpu_one": 1000.0}, facts=one)
    assert run(OwnSource(machine, one, {}), probes("cpu_one", "cpu_all")).rows == {}


def test_links_are_ceilings() -> None:
    device = GuestDevice(0, "gpu", "10de", "2330", None, 0, 0, (), None, 32.0, 16)
    slower = device._replace(number=1, speed=5.0, width=8)
    promise = GuestDocument("mirror", (), (device,))
    assert rounds.find_ceilings(promise, {"mlx5_0": 400.0}) == {
        "ceiling=pcie": pytest.approx(63.0, abs=0.1),
        "ceiling=rdma": 400.0,
    }
    both = promise._replace(devices=(device, slower))
    assert rounds.find_ceilings(both, {})["ceiling=pcie"] == 4.0
    assert rounds.find_ceilings(None, {"mlx5_0": 0.0}) == {}
    machine = SimulatedMachine({"h2d": 27.6, "d2h": 55.0})
    series = run(OwnSource(machine, FACTS, {"ceiling=pcie": 63.0}), probes("h2d", "d2h"))
    assert {name: row.verdict for name, row in series.rows.items()} == {
        "h2d": "slow",
        "d2h": "level",
    }


class WaveringMachine(SimulatedMachine):
    """A machine that is a quarter slower and faster in turns, and so never decided."""

    def measure_round(self, *arguments) -> Sample:
        sample = super().measure_round(*arguments)
        part = 0.75 if len(self.log) % 2 else 1.25
        readings = {
            name: reading._replace(value=reading.value * part)
            for name, reading in sample.readings.items()
        }
        return sample._replace(readings=readings)


def file_source(machine: SimulatedMachine, values: Mapping[str, float]) -> FileSource:
    """Twenty rounds of a machine without noise."""
    other = SimulatedMachine(values, noise=0.0)
    return FileSource(machine, [other.measure_round(probes(*values))] * 20)


def test_what_is_undecided_gets_more_pairs_until_it_is_decided() -> None:
    # On its floor, and so never decided; the other one is at once.
    machine = SimulatedMachine({"mem_stream": 90.0, "blas": 50.0}, noise=0.02)
    series = run(
        file_source(machine, {"mem_stream": 100.0, "blas": 50.0}), probes("mem_stream", "blas")
    )
    assert machine.log[:6] == ["mem_stream,blas"] * 6
    assert set(machine.log[6:]) == {"mem_stream"}
    assert series.rounds == rounds.MOST_ROUNDS
    assert series.rows["blas"].verdict == "level"
    assert series.rows["mem_stream"].verdict == "undecided"
    near = SimulatedMachine({"mem_stream": 94.0}, noise=0.04)
    decided = run(file_source(near, {"mem_stream": 100.0}), probes("mem_stream"))
    assert 6 < decided.rounds < rounds.MOST_ROUNDS
    assert decided.rows["mem_stream"].verdict == "level"


def test_the_budget_ends_what_is_undecided() -> None:
    machine = WaveringMachine({"mem_stream": 90.0})
    series = run(file_source(machine, {"mem_stream": 100.0}), probes("mem_stream"), budget=30.0)
    assert series.short
    assert series.rows["mem_stream"].verdict == "undecided"
    # Two looks at the clock a round, and one before it.
    assert 6 < series.rounds < 20


def test_a_budget_of_less_than_six_pairs_decides_nothing() -> None:
    machine = SimulatedMachine({"mem_stream": 100.0})
    source = FileSource(machine, [machine.measure_round(probes("mem_stream"))] * 6)
    series = run(source, probes("mem_stream"), budget=0.5)
    assert (series.rounds, series.short) == (1, True)
    assert series.rows["mem_stream"].verdict == "undecided"


def test_a_clock_that_jumps_does_not_hold_it_for_ever() -> None:
    machine = SimulatedMachine({"mem_stream": 90.0}, noise=0.05)
    source = FileSource(machine, [machine.measure_round(probes("mem_stream"))] * 6)
    for step in (-5.0, 0.0):
        assert run(source, probes("mem_stream"), step=step).rounds <= rounds.MOST_ROUNDS


def test_probes_of_few_rounds_are_shown_and_not_judged() -> None:
    machine = SimulatedMachine({"hpl": 20.0, "stream_triad": 9.0, "oslat": 30.0})
    source = FileSource(machine, [machine.measure_round(probes("hpl", "oslat"))] * 6)
    series = run(source, probes("hpl", "stream_triad", "oslat"), least=25)
    assert sum("hpl" in line for line in machine.log[1:]) == 3
    assert sum("oslat" in line for line in machine.log[1:]) == 6
    assert set(series.rows) == {"oslat"}


def test_a_probe_that_gives_nothing_is_not_asked_for_ever() -> None:
    machine = SimulatedMachine({"mem_stream": 100.0})
    series = run(OwnSource(machine, FACTS, {}), probes("mem_stream", "blas"))
    assert set(series.rows) == {"mem_stream"}
    assert series.rounds == 6


def test_only_pairs_that_both_sides_gave_count() -> None:
    base = [Sample(FACTS, {"blas": Reading(float(index + 1))}, {}) for index in range(4)]
    test = [Sample(FACTS, {}, {}), *base[1:]]
    old, new = rounds.pair_readings("blas", base, test, "beside")
    assert [each.value for each in old] == [each.value for each in new] == [2, 3, 4]
    old, new = rounds.pair_readings("blas", base, test, "file")
    assert (len(old), len(new)) == (4, 3)


# -- experiments ------------------------------------------------------------------------


def test_an_experiment_is_the_median_of_three_runs() -> None:
    machine = SimulatedMachine({"clock": 100.0})
    machine.gains = {"clock=coarse": {"clock": 0.5}}
    value = rounds.make_experiment(machine, "clock=coarse", "clock")
    assert machine.log == ["clock=coarse clock"] * 3
    assert value == pytest.approx(50.0, rel=0.01)
    assert rounds.make_experiment(machine, "clock=coarse", "blas") is None


def test_half_of_the_cpus_is_the_better_of_two_halves() -> None:
    machine = SimulatedMachine({"cpu_all": 100.0})
    machine.gains = {"cpus=even": {"cpu_all": 0.5}, "cpus=first": {"cpu_all": 0.98}}
    assert rounds.make_experiment(machine, "cpus=half", "cpu_all") == pytest.approx(98, rel=0.02)


@pytest.mark.parametrize("large", [None, 0.0, 0.1])
def test_an_experiment_that_changed_nothing_says_nothing(large: float | None) -> None:
    class NoLargePages(SimulatedMachine):
        def measure_round(self, *arguments) -> Sample:
            sample = super().measure_round(*arguments)
            readings = {
                name: reading._replace(large_pages=large)
                for name, reading in sample.readings.items()
            }
            return sample._replace(readings=readings)

    machine = NoLargePages({"mem_stream": 100.0})
    assert rounds.make_experiment(machine, "pages=large", "mem_stream") is None
    only_reference = SimulatedMachine({"blas": 5.0}, facts=FACTS._replace(blas="reference"))
    assert rounds.make_experiment(only_reference, "blas=default", "blas") is None


# -- beside -----------------------------------------------------------------------------


def other_machine(folder: Path, text: str) -> str:
    program = folder / "other"
    program.write_text(f"#!{sys.executable}\nimport sys\n{text}")
    program.chmod(0o755)
    return str(program)


def sample_text(value: float = 100.0) -> str:
    return write_sample(Sample(FACTS, {"clock": Reading(value, wall=1.0)}, {"blas": "no blas"}))


def test_the_machine_beside_is_asked_in_turns(tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = (
        f"open({str(log)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        f"print('Warning: a key was added')\nprint({sample_text()!r})\n"
    )
    machine = SimulatedMachine({"clock": 400.0})
    source = BesideSource(machine, other_machine(tmp_path, text) + " --sample", {})
    series = run(source, probes("clock"))
    assert log.read_text().splitlines() == ["--sample --only clock --scale 1"] * 6
    assert series.rows["clock"].ratio == pytest.approx(0.25, rel=0.01)
    assert series.rows["clock"].against == "beside"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "print('Permission denied (publickey).', file=sys.stderr); sys.exit(255)",
            "status 255: 'Perm",
        ),
        ("print('no sample')", "not JSON"),
        ('print(\'{"schema": "something"}\')', "not of schema"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    ],
)
def test_a_machine_beside_that_does_not_answer(text: str, error: str, tmp_path: Path) -> None:
    source = BesideSource(SimulatedMachine({"clock": 1.0}), other_machine(tmp_path, text), {})
    with pytest.raises(AcceptanceError, match=error):
        run(source, probes("clock"))


def test_a_machine_beside_that_asks_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ssh that wants a password: it has no terminal, and comes to the limit."""
    monkeypatch.setattr(rounds, "_BESIDE_LIMIT", 0.5)
    text = (
        "print('password: ', end='', flush=True)\nimport time\nsys.stdin.read() or time.sleep(60)"
    )
    source = BesideSource(SimulatedMachine({"clock": 1.0}), other_machine(tmp_path, text), {})
    with pytest.raises(AcceptanceError, match=r"at its limit of 0.5 s: 'password:"):
        run(source, probes("clock"))


@pytest.mark.parametrize("command", ["", "   ", "'unclosed"])
def test_a_command_that_is_none(command: str) -> None:
    with pytest.raises(AcceptanceError, match="--beside"):
        BesideSource(SimulatedMachine({}), command, {})


# -- files ------------------------------------------------------------------------------

KEY = baseline.build_key(FACTS, {"sysbench": "1.0.20"})


def file_text(count: int = 6) -> str:
    machine = SimulatedMachine({"clock": 100.0})
    return write_baseline(KEY, [machine.measure_round(probes("clock")) for _ in range(count)])


def test_a_file_is_read_as_it_was_written() -> None:
    found = read_baseline(file_text())
    assert found.key == KEY
    assert len(found.samples) == 6
    assert found.samples[0].facts == FACTS
    assert len(found.sha256) == 64


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('"value": ', '"value": 1', "was changed after it was measured"),
        ("Some CPU", "Some cpu", "was changed after it was measured"),
        ('"version": 1,', '"version": 2,', "has version 2, and this command reads 1"),
        ('"version": 1,', '"version": true,', "has version True"),
        ("acceptance-baseline", "acceptance-basement", "not of schema"),
        ('"sha256"', '"sha255"', "was changed"),
        ("{", "", "not JSON"),
    ],
)
def test_a_file_that_was_edited(old: str, new: str, error: str) -> None:
    with pytest.raises(AcceptanceError, match=error):
        read_baseline(file_text().replace(old, new, 1))


def test_five_rounds_are_too_few() -> None:
    with pytest.raises(AcceptanceError, match="has 5 rounds, and 6 are the fewest"):
        read_baseline(file_text(5))


@given(st.data())
def test_bytes_of_a_file_that_have_changed(data: st.DataObject) -> None:
    text = list(file_text())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place] = data.draw(st.characters())
    changed = "".join(text)
    if changed != file_text():
        try:
            found = read_baseline(changed)
        except AcceptanceError:
            return
        # Space between its parts, say: it means the same.
        assert found == read_baseline(file_text())


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"model": "Other CPU"}, "model 'Some CPU' and 'Other CPU'"),
        ({"online": (0, 1, 2)}, "cpus 2 and 3"),
        ({"memory_gib": 32}, "memory 16 and 32 GiB"),
        ({"memory_gib": None}, "memory 16 and None GiB"),
        ({"devices": {"10de:2330": 8}}, "devices {} and {'10de:2330': 8}"),
        ({"rdma": {"mlx5_0": 400.0}}, "rdma {} and {'mlx5_0': 400.0}"),
        ({"memory_gib": 15}, None),
        ({"kernel": "7.0", "thp": "never"}, None),
    ],
)
def test_a_foreign_key(change: dict[str, object], difference: str | None) -> None:
    key = baseline.build_key(FACTS._replace(**change), {"sysbench": "1.0.20"})
    found = baseline.find_key_differences(KEY, key, ["sysbench"])
    assert found == ([] if difference is None else [difference])


def test_other_versions_of_the_tools_that_measure_are_foreign() -> None:
    key = baseline.build_key(FACTS, {"sysbench": "1.1.0", "fio": "3.40"})
    assert baseline.find_key_differences(KEY, key, ["sysbench", "fio"]) == [
        "sysbench '1.0.20' and '1.1.0'"
    ]
    assert baseline.find_key_differences(KEY, key, ["fio"]) == []


def test_files_of_several_machines_are_one_baseline() -> None:
    one, two = read_baseline(file_text()), read_baseline(file_text(7))
    both = baseline.join_baselines([one, two])
    assert len(both.samples) == 13
    assert both.sha256 not in (one.sha256, two.sha256)
    assert baseline.join_baselines([one]) == one
    foreign = two._replace(key={**KEY, "model": "Other CPU"})
    with pytest.raises(AcceptanceError, match="different machines: model"):
        baseline.join_baselines([one, foreign])


# -- samples ----------------------------------------------------------------------------

numbers = st.floats(1e-6, 1e9, allow_nan=False)
samples = st.builds(
    Sample,
    st.builds(
        GuestFacts,
        model=st.one_of(st.none(), st.text(max_size=20)),
        online=st.lists(st.integers(0, 300), max_size=4).map(tuple),
        shapers=st.lists(st.text(max_size=9), max_size=2).map(tuple),
        devices=st.dictionaries(st.text(max_size=9), st.integers(0, 9), max_size=2),
        hypervisor=st.booleans(),
        settings=st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=2),
        rdma=st.dictionaries(st.text(max_size=9), st.floats(0, 800), max_size=2),
    ),
    st.dictionaries(
        st.sampled_from(sorted(PROBE_OF)),
        st.builds(
            Reading,
            value=numbers,
            **dict.fromkeys(("wall", "own", "others", "steal", "waited"), numbers),
            **dict.fromkeys(("watched", "throttled"), numbers),
            large_pages=st.one_of(st.none(), st.floats(0, 1)),
            sent=st.dictionaries(st.text(max_size=9), st.integers(0, 1 << 40), max_size=2),
            at_limit=st.booleans(),
            words=st.lists(st.text(max_size=9), max_size=2).map(tuple),
            counts=st.dictionaries(st.integers(0, 20_000), st.integers(1, 1 << 30), max_size=3),
        ),
        max_size=4,
    ),
    st.just({"blas": "no tool"}),
    st.just({"clock": "it ended with status 1"}),
)


@given(samples)
def test_a_sample_is_read_as_it_was_written(sample: Sample) -> None:
    assert read_sample(write_sample(sample)) == sample
