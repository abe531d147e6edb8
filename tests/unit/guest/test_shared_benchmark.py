# SPDX-License-Identifier: Apache-2.0
"""The benchmark of shared memory: its table, and its program between two ranks of this machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.shared_memory import __main__ as benchmark
from benchmarks.shared_memory import machines

SOURCE = Path(benchmark.__file__).with_name("pingpong.c")


def test_the_table_has_a_ratio_of_pairs():
    lines = [
        benchmark.Line("mpich", 8, (1.0, 1.0, 4.0, 1.0, 1.0, 1.0), (10.0,) * 6),
        benchmark.Line("mpich", 4 << 20, (5.0,) * 6, (5.0,) * 6),
    ]
    text = benchmark.format_table(lines, {"machines": "emulated", "Nova": ""})
    rows = [line.strip(" *-") for line in text.splitlines()]
    assert "8 B" in rows
    assert "4 MiB" in rows
    assert "10 (2.5 to 10, 97% of 6 rounds)" in rows
    assert "1 (1 to 1, 97% of 6 rounds)" in rows
    assert text.endswith("\nmachines: emulated\n")


def test_a_machine_is_told_its_part(tmp_path):
    disk = machines.RootDisk(*(Path(name) for name in ("kernel", "initrd", "disk", "key")))
    told = []
    for number in range(2):
        words = machines._command_of(number, disk, tmp_path, Path("/dev/shm/x"), "tcg")
        assert words[words.index("-accel") + 1].startswith("tcg,")
        told.append((tmp_path / f"vm{number}.json").read_text())
    assert '"part": 0' in told[0]
    assert '"part": 1' in told[1]


@pytest.mark.skipif(
    not all(map(shutil.which, ("mpicc.mpich", "mpiexec.mpich"))), reason="there is no MPICH"
)
def test_the_program_measures_each_size(tmp_path):
    program = tmp_path / "pingpong"
    subprocess.run(["mpicc.mpich", "-Wall", "-Werror", "-O2", SOURCE, "-o", program], check=True)
    done = subprocess.run(
        ["mpiexec.mpich", "-n", "2", program, "0.05", "8", "70000"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    sizes = [line.split() for line in done.stdout.splitlines()]
    assert [size for size, _, _ in sizes] == ["8", "70000"]
    assert all(float(time) > 0 and int(rounds) >= 10 for _, time, rounds in sizes)
