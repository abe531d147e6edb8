# SPDX-License-Identifier: Apache-2.0
"""A cloud whose clusters are nodes of a real slurmctld, with the sample programs for Slurm."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.functional.cluster_client import base
from tests.unit.cluster.test_samples import SLURM

_TOP = Path(__file__).resolve().parents[3]


class SlurmClusterTest(base.ClusterClientTest):
    """Gives slurmctld, and its programs, a folder of their own."""

    TOOLS = ("slurmctld", "scontrol", "sbatch")
    SAMPLES: tuple[str, ...] = ()

    def setUp(self) -> None:
        for tool in self.TOOLS:
            if shutil.which(tool) is None:
                self.skipTest(f"{tool} is not installed")
        super().setUp()
        self.folder = self._folder / "slurm"
        self.folder.mkdir()
        (self.folder / "openstack").write_text(
            f'#!/bin/bash\nexec {sys.executable} -m openstackclient.shell "$@"\n'
        )
        (self.folder / "openstack").chmod(0o755)
        environment = {
            **self.credentials(),
            "HPC_CREATE": f"--flavor one --image {base.IMAGE} --network {base.NETWORK}",
            "HPC_LOCKS": str(self.folder),
            "HPC_TOPOLOGY": "file",
            "HPC_TOPOLOGY_FILE": str(self.folder / "topology.conf"),
        }
        lines = [f"{key}={shlex.quote(value)}\n" for key, value in environment.items()]
        (self.folder / "hpc.env").write_text("".join(lines))
        for name in self.SAMPLES:
            self._lay_down(name)

    def _lay_down(self, name: str) -> None:
        """The sample, with what an installation has in its usual places: slurmctld gives none."""
        given = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "PYTHONPATH": f"{_TOP}:{_TOP / 'lab'}",
            "HPC_ENV": str(self.folder / "hpc.env"),
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }
        exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in given.items())
        log = self.folder / f"{name}.log"
        path = self.folder / name
        path.write_text(f'#!/bin/bash\n{exports}exec {SLURM / name} "$@" >>{log} 2>&1\n')
        path.chmod(0o755)

    def until(self, done: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 900
        while not done():
            if time.monotonic() > end:
                raise AssertionError(f"{what} never came\n{self.logs()}")
            time.sleep(1)

    def logs(self) -> str:
        """The last lines of the daemons and programs."""
        return "\n".join(
            f"{path.name}: {path.read_text(errors='replace')[-3000:]}"
            for path in [*self.folder.glob("*.log"), self.folder / "log"]
        )
