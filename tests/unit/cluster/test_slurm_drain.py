# SPDX-License-Identifier: Apache-2.0
"""The sample that drains a node for a healer, against a real slurmctld."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cluster.test_samples import SLURM
from tests.unit.fabric import slurmctld
from tests.unit.fabric.slurmctld import scontrol

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("slurmctld", "scontrol", "sbatch", "squeue")),
    reason="Slurm is not installed",
)
NODES = [f"train-{number}" for number in range(1, 5)]


def call(conf: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        env={**os.environ, "SLURM_CONF": str(conf), **more},
        cwd=conf.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def drain(conf: Path, node: str) -> int:
    return call(conf, str(SLURM / "hpc-drain"), node, HPC_FAULTS="link,port").returncode


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_node_with_a_job_is_busy_and_gets_no_other_one(tmp_path: Path) -> None:
    """The jobs wait for nodes that never boot. Slurm has given them the nodes."""
    true = Path(shutil.which("true") or "/bin/true")
    topology = f"SwitchName=all Nodes={','.join(NODES)}\n"
    lines = slurmctld.cloud_settings(true, true)
    with slurmctld.running(tmp_path, topology, NODES, "topology/tree", *lines) as conf:

        def submit(*nodes: str) -> str:
            words = ("sbatch", "--parsable", f"-w{','.join(nodes)}", "--wrap=true")
            return call(conf, *words).stdout.strip()

        def state_of(job: str) -> str:
            return call(conf, "squeue", "--noheader", "-o%t %N", f"-j{job}").stdout.strip()

        job = submit("train-1", "train-2")
        until(lambda: state_of(job) == "CF train-[1-2]")
        assert (drain(conf, "train-2"), drain(conf, "train-3")) == (1, 0)
        for node in ("train-2", "train-3"):
            shown = scontrol(conf, "show", "node", node)
            assert "+DRAIN" in shown
            assert "Reason=hpc-fault=link,port" in shown
        assert "DRAIN" not in scontrol(conf, "show", "node", "train-1")
        # No job starts on a drained node, and the next look finds it free.
        waiting, other = submit("train-3"), submit("train-4")
        until(lambda: state_of(other) == "CF train-4")
        assert state_of(waiting) == "PD"
        assert drain(conf, "train-2") == 0
        # The healer has replaced the member.
        scontrol(conf, "update", "NodeName=train-3", "State=RESUME")
        until(lambda: state_of(waiting) == "CF train-3")


@pytest.mark.slow
def test_a_slurm_that_does_not_answer_drains_nothing(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=test\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\n")
    assert drain(conf, "train-1") != 0
