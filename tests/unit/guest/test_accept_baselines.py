# SPDX-License-Identifier: Apache-2.0
"""What a machine is measured against: a file that was saved before, or another machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nova_hpc_guest import command
from tests.unit.guest.accept_world import SLOW, AcceptWorld, read_result


def save(world: AcceptWorld, path: Path) -> None:
    _, out, _ = world.run("--save-baseline", str(path), only=None)
    assert f"note wrote {path}" in out, out


@pytest.fixture
def saved(world: AcceptWorld, tmp_path: Path) -> Path:
    save(world, tmp_path / "baseline.json")
    return tmp_path / "baseline.json"


def test_a_file_is_a_baseline(world: AcceptWorld, saved: Path) -> None:
    data = read_result(world, "--baseline", str(saved))
    assert data["verdict"] == "accepted"
    assert (data["baseline"]["kind"], data["baseline"]["rounds"]) == ("file", 6)
    assert data["rows"][0]["against"] == "file"
    assert data["baseline"]["sha256"] == json.loads(saved.read_text())["sha256"]
    world.rate("memory", SLOW)
    data = read_result(world, "--baseline", str(saved))
    assert (data["verdict"], data["status"]) == ("slow", 1)
    assert data["rows"][0]["ratio"] == pytest.approx(5 / 9, abs=1e-3)


def test_what_one_machine_is_slow_in_and_why(world: AcceptWorld, saved: Path) -> None:
    """The symptom by the tools, the fact by the files of the machine."""
    world.rate("memory", SLOW)
    world.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
    data = read_result(world, "--baseline", str(saved), only="mem_stream,cpu_one")
    (cause,) = data["causes"]
    assert (cause["cause"], cause["status"]) == ("pages-off", "indicated")
    assert cause["explains"] == ["mem_stream"]
    assert cause["anchor"] == "cause-pages-off"
    assert data["unexplained"] == []


def test_a_file_is_not_written_over(world: AcceptWorld, saved: Path) -> None:
    before = saved.read_text()
    status, out, _ = world.run("--save-baseline", str(saved), only=None)
    assert (status, out) == (2, f"refused: --save-baseline {str(saved)!a}: File exists\n")
    assert saved.read_text() == before


@pytest.mark.parametrize(
    ("path", "text", "kind", "words"),
    [
        ("proc/cpuinfo", "model name : Other CPU\n", "key", "model 'Some CPU' and 'Other CPU'"),
        ("proc/meminfo", "MemTotal: 4194304 kB\n", "key", "memory 16 and 4 GiB"),
        ("sys/devices/system/cpu/online", "0-7\n", "key", "cpus 2 and 8"),
        (
            "proc/cpuinfo",
            "model name : QEMU TCG CPU version 2.5+\n",
            "emulated",
            "this machine is emulated by software",
        ),
    ],
)
def test_a_foreign_baseline_is_refused(world, saved, path, text, kind, words) -> None:
    world.write(path, text)
    data = read_result(world, "--baseline", str(saved))
    assert (data["verdict"], data["status"], data["rows"]) == ("refused", 2, [])
    assert data["refused"]["kind"] == kind
    assert words in data["refused"]["text"]


def test_an_emulated_machine_is_judged_against_itself(world: AcceptWorld) -> None:
    world.write("proc/cpuinfo", "model name : QEMU TCG CPU version 2.5+\n")
    assert read_result(world)["verdict"] == "accepted"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace("9000", "8000"), "was changed after it was measured"),
        (lambda text: text.replace('"version": 1', '"version": 2', 1), "has version 2"),
        (lambda text: text[:-9], "not JSON"),
        (lambda text: "", "not JSON"),
    ],
)
def test_a_file_that_cannot_be_used(world: AcceptWorld, saved: Path, change, words: str) -> None:
    saved.write_text(change(saved.read_text()))
    status, out, _ = world.run("--baseline", str(saved))
    assert status == 2
    assert words in out
    assert world.run("--baseline", str(saved) + "x")[0] == 2


def test_another_machine_in_turns(world: AcceptWorld, tmp_path: Path) -> None:
    """The other machine is asked for samples by a command; here it is this one, undisturbed."""
    other = AcceptWorld(tmp_path / "other") if (tmp_path / "other").mkdir() is None else None
    assert other is not None
    program = tmp_path / "beside"
    words = f"-m nova_hpc_guest.command accept --sample --root {other.root}"
    top = Path(command.__file__).parents[1]
    program.write_text(
        f"#!/bin/sh\nexport PATH={other.tools}:/bin:/usr/bin RATES={other.rates} PYTHONPATH={top}\n"
        f'exec {sys.executable} {words} "$@"\n'
    )
    program.chmod(0o755)
    world.rate("memory", SLOW)
    data = read_result(world, "--beside", str(program))
    assert (data["verdict"], data["baseline"]["kind"]) == ("slow", "beside")
    assert data["rows"][0]["ratio"] == pytest.approx(5 / 9, abs=1e-3)
    assert world.run("--beside", "/bin/false")[0] == 2
