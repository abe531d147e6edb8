# SPDX-License-Identifier: Apache-2.0
"""The benchmark of jitter: which settings it changes, its table, and that it undoes them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.jitter.__main__ import Turns, find_late, format_table
from benchmarks.jitter.quiet import format_mask, kept_files, list_quiet_files, write_files
from nova_hpc.topology import cpuset
from tests.unit.node_files import put

IRQ = "/proc/irq/{}/smp_affinity_list"
MASK = "/sys/devices/virtual/workqueue/cpumask"
#: Changes all settings below a folder, and then waits for its end.
_CHANGE = """
import sys, time
from pathlib import Path
from benchmarks.jitter.quiet import kept_files, list_quiet_files, write_files
files = list_quiet_files(Path(sys.argv[1]), 3)
with kept_files(files):
    write_files(files)
    print("changed", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path, IRQ.format(24), "0-3")
    put(tmp_path, IRQ.format(25), "3")
    put(tmp_path, IRQ.format(26), "0")
    put(tmp_path, IRQ.format(27), "0,3")
    put(tmp_path, "/proc/irq/default_smp_affinity", "f")
    put(tmp_path, MASK, "0000000f")
    return tmp_path


def read_all(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text().strip()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_what_can_leave_the_cpu_is_changed_and_comes_back(root: Path) -> None:
    before = read_all(root)
    files = list_quiet_files(root, 3)
    assert {str(path.relative_to(root)): text for path, text in files.items()} == {
        IRQ.format(24)[1:]: "0-2",
        IRQ.format(27)[1:]: "0",
        MASK[1:]: "00000007",
    }
    with kept_files(files) as old:
        assert write_files({**files, root / "none/none": "1"}) == [root / "none/none"]
        assert {path.read_text() for path in files} == {"0-2", "0", "00000007"}
        assert set(old.values()) == {"0-3", "0,3", "0000000f"}
    assert read_all(root) == before


@pytest.mark.parametrize("name", ["kill", "terminate"])
def test_settings_come_back_after_a_kill(root: Path, name: str) -> None:
    before = read_all(root)
    with subprocess.Popen(
        [sys.executable, "-c", _CHANGE, str(root)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "changed\n"
        assert read_all(root) != before
        getattr(process, name)()
    for _ in range(600):
        if read_all(root) == before:
            break
        time.sleep(0.1)
    assert read_all(root) == before


@given(st.frozensets(st.integers(0, 300), min_size=1))
def test_a_mask_is_read_as_it_is_written(cpus: frozenset[int]) -> None:
    assert cpuset.parse_mask(format_mask(cpus)) == cpus


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_percentile_is_the_one_of_all_wakes(wakes: list[int], part: float) -> None:
    counts = {wake: wakes.count(wake) for wake in wakes}
    late = find_late(counts, part)
    assert sum(wake <= late for wake in wakes) >= part * len(wakes)
    assert sum(wake < late for wake in wakes) < part * len(wakes)


def test_the_table_has_percentiles_and_ratios_of_pairs() -> None:
    turns = Turns([{50: 1000, 900: 20}] * 6, [{50: 1000, 100: 20}] * 6)
    text = format_table(turns, {"load": 0.1})
    assert "     - 900\n     - 100\n     - 9 (9 to 9, 97% of 6 pairs)" in text
    assert text.endswith(":load: 0.1\n")
