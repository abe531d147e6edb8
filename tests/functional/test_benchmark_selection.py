# SPDX-License-Identifier: Apache-2.0
"""The benchmark with a real Placement keeps running, and its rows are as hosts make them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.selection import __main__ as command
from benchmarks.selection import growth, installed, together
from benchmarks.selection.kept import INSTALLED, PAIR, PLAINEST, TOGETHER, Kept
from benchmarks.selection.side import Question


@pytest.mark.slow
def test_a_small_cloud(tmp_path: Path) -> None:
    def run(*more: str) -> subprocess.CompletedProcess[str]:
        argv = ("--hosts", "12", "--samples", "1", "--width", "250", *more)
        argv += ("--json", str(tmp_path / "kept"))
        names = {k: v for k, v in os.environ.items() if k != "OS_NOVA_DISABLE_EVENTLET_PATCHING"}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.selection", *argv],
            capture_output=True, text=True, env=names, cwd=Path(__file__).parents[2], check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return done

    done = run(
        "--plainest",
        "--parts",
        "--installed",
        "5",
        "--installed-samples",
        "1",
        "--together",
        "2",
        "--rounds",
        "1",
    )
    assert "rows as 9 hosts have made them through the API" in done.stderr
    for question in ("gpu:1", "gpu:4", "gpu:4,vf:4", "16 servers of gpu:1"):
        assert question in done.stdout
    # Placement makes all permutations of devices before it cuts their list.
    assert "not within 5 s" in done.stdout
    before = (tmp_path / "kept").read_text()
    kinds = [json.loads(line)["kind"] for line in before.splitlines()]
    counts = [kinds.count(each) for each in (PAIR, PLAINEST, INSTALLED, TOGETHER)]
    assert counts == [4, 1, 4, 2]
    assert "the question alone" in done.stdout
    # Nothing is left to measure, so not even a cloud is made.
    again = run("--resume")
    assert "hosts have made them" not in again.stderr
    assert (tmp_path / "kept").read_text() == before


@pytest.mark.slow
def test_speed_changes_no_answer() -> None:
    """Random requests on a real Placement, with what makes a scheduler fast on and off."""
    names = {k: v for k, v in os.environ.items() if k != "OS_NOVA_DISABLE_EVENTLET_PATCHING"}
    argv = ("--hosts", "12", "--requests", "60", "--seed", "3")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.selection.same", *argv],
        capture_output=True, text=True, env=names, cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "0 different" in done.stdout
    assert "60 requests" in done.stdout
    assert " placed" in done.stdout
    assert " refused" in done.stdout


def test_growth_has_a_curve_for_each_side() -> None:
    pair = {"kind": PAIR, "question": "gpu:1"}
    results = [
        pair | {"hosts": hosts, "ours": {"seconds": ours}, "stock": {"seconds": stock}}
        for hosts, ours, stock in ((100, 1.0, 4.0), (10, 0.5, 1.0), (100, 3.0, 6.0))
    ]
    results.append({"kind": PLAINEST, "question": "gpu:0", "hosts": 10, "seconds": 0.2})
    assert growth.find_curves(results) == {
        "gpu:1": {
            "stock": [(10, 1.0), (100, 5.0)],
            "ours": [(10, 0.5), (100, 2.0)],
            "plainest": [(10, 0.2)],
        }
    }


def test_growth_has_its_panels_by_the_number_of_devices() -> None:
    asked = ["16 servers of gpu:1", "gpu:4,vf:4", "gpu:8", "gpu:2", "gpu:1"]
    side = {"seconds": 1.0}
    results = [
        {"kind": PAIR, "question": each, "hosts": 10, "ours": side, "stock": side} for each in asked
    ]
    wanted = ["gpu:1", "gpu:2", "gpu:4,vf:4", "gpu:8", "16 servers of gpu:1"]
    assert list(growth.find_curves(results)) == wanted


def test_a_run_goes_on(tmp_path: Path) -> None:
    path, question = tmp_path / "kept", Question(4, functions=4)
    first = Kept(path, resume=True)
    first.add(PAIR, 12, question, {"ours": 1})
    first.add(INSTALLED, 12, question, {"fault": ""})
    later = Kept(path, resume=True)
    later.add(PAIR, 12, question, {"ours": 2})
    assert later.all(PAIR, 12, question) == ({"ours": 1}, {"ours": 2})
    assert later.all(PAIR, 13, question) == ()
    assert Kept(path, resume=True).all(PAIR, 12, question) == later.all(PAIR, 12, question)
    assert Kept(path, resume=False).all(PAIR, 12, question) == ()


def test_cells() -> None:
    samples = [{"seconds": each, "fault": ""} for each in (1.0, 9.0, 2.0)]
    assert installed.cell(samples) == "2.000"
    assert installed.cell([*samples, {"seconds": 5.0, "fault": "not within 5 s"}]) == (
        "not within 5 s"
    )
    assert installed.cell([]) == ""
    rounds = [
        {
            "schedulers": 4,
            "ours": {"rate": ours, "lost": 1, "faults": 0},
            "stock": {"rate": stock, "lost": 2, "faults": 1},
        }
        for ours, stock in ((2.0, 1.0), (3.0, 2.0))
    ]
    assert together.cells(100, Question(1), rounds) == [
        *("100", "4", "gpu:1", "2.50", "1.50", "1.75", "1.50 to 2.00", "2", "4", "2", "0 and 2"),
    ]


def test_samples_are_of_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    options = command._options(["--hosts", "100", "2000", "5000", "--samples", "5"])
    assert options.samples == [5, 5, 5]
    with pytest.raises(SystemExit):
        command._options(["--hosts", "100", "2000", "5000", "--samples", "5", "10"])
    assert "one number for all, or one for each of --hosts" in capsys.readouterr().err


def test_the_gpus_of_a_whole_host_may_be_on_both_numa_nodes() -> None:
    found = {gpus: Question(gpus).specs(ours=True)["hpc:affinity"] for gpus in (1, 2, 4, 8)}
    assert found == {1: "switch", 2: "switch", 4: "numa", 8: "host"}
    assert "hpc:affinity" not in Question(8).specs(ours=False)
