# SPDX-License-Identifier: Apache-2.0
"""The sample programs for Slurm, called by a real slurmctld, against Nova's own API."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.functional.cluster_client import base, slurm_base
from tests.unit.fabric import slurmctld
from tests.unit.fabric.slurmctld import scontrol

_NODES = [f"train-{number}" for number in range(1, 13)]


@pytest.mark.slow
class SlurmTest(slurm_base.SlurmClusterTest):
    """Five hosts of two vCPUs: room for ten members."""

    HOSTS = 5

    SAMPLES = ("hpc-resume", "hpc-suspend")

    def slurm(self):
        return slurmctld.running(
            self.folder,
            f"SwitchName=train-all Nodes={','.join(_NODES)}\n",
            _NODES,
            "topology/tree",
            *slurmctld.cloud_settings(self.folder / "hpc-resume", self.folder / "hpc-suspend"),
        )

    def submit(self, nodes: int) -> str:
        ended = subprocess.run(
            ["sbatch", "--parsable", f"-N{nodes}", "--wrap=true"],
            cwd=self.folder,
            env={**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(0, ended.returncode, ended.stderr)
        return ended.stdout.strip()

    def refusal_of(self, nodes: int) -> str:
        """Why Slurm would never run a job of so many nodes; "": it would."""
        ended = subprocess.run(
            ["sbatch", "--test-only", f"-N{nodes}", "--wrap=true"],
            cwd=self.folder,
            env={**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")},
            capture_output=True,
            text=True,
            check=False,
        )
        return "" if ended.returncode == 0 else ended.stderr

    def members_in_slurm(self, conf: Path) -> set[str]:
        """The nodes below leaves of the cluster; all of Slurm's are in its topology."""
        found = slurmctld.switches(conf)
        leaves = {name: hosts for name, (level, hosts) in found.items() if level == 0}
        self.assertEqual(set(_NODES), set().union(*leaves.values()))
        missing = leaves.get("train-none", leaves.get("train-all", frozenset()))
        return set(_NODES) - missing

    def names(self) -> list[str]:
        return sorted(each["name"] for each in self.servers() if each["status"] == "ACTIVE")

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def test_jobs_make_and_end_a_cluster(self) -> None:
        with self.slurm() as conf:
            # The nodes of a job come in one call, and become one cluster.
            self.submit(2)
            self.until(lambda: self.names() == ["train-1", "train-2"], "two members")
            (server, _) = sorted(self.servers(), key=lambda each: each["name"])
            (address,) = [each["addr"] for each in server["addresses"][base.NETWORK]]
            self.until(
                lambda: f"NodeAddr={address} " in scontrol(conf, "show", "node", "train-1"),
                "the address of train-1",
            )
            self.until(lambda: self.members_in_slurm(conf) == {"train-1", "train-2"}, "topology")
            # Nodes that do not exist yet are in it, too, or Slurm would refuse their jobs.
            self.assertEqual("", self.refusal_of(len(_NODES) - 2))
            # Those of another job join it.
            self.submit(6)
            eight = [f"train-{number}" for number in range(1, 9)]
            self.until(lambda: self.names() == eight, "eight members")
            self.until(lambda: self.members_in_slurm(conf) == set(eight), "topology of eight")
            (row,) = self.cluster("list", "-f", "json").json
            self.assertEqual(
                ("train", "ACTIVE", "8/8"), (row["Name"], row["State"], row["Members"])
            )
            # More than there is room for: none of them is made, and Slurm has its nodes back.
            self.submit(4)
            self.until(lambda: "no room" in scontrol(conf, "show", "node"), "a refusal")
            self.until(
                lambda: self.cluster("list", "-f", "json").json[0]["State"] == "ACTIVE", "order"
            )
            self.assertEqual(eight, self.names())
            # Nodes that go: some, then all.
            scontrol(conf, "update", "NodeName=train-[3-8]", "State=POWER_DOWN_FORCE")
            self.until(lambda: self.names() == ["train-1", "train-2"], "six members less")
            self.until(lambda: self.members_in_slurm(conf) == {"train-1", "train-2"}, "two again")
            scontrol(conf, "update", "NodeName=train-[1-2]", "State=POWER_DOWN_FORCE")
            self.until(lambda: not self.groups(), "the end")
            self.assertIn("hpc-cluster", str(list(self.folder.glob("*.lock"))))
        self.assert_nothing_left()
