# SPDX-License-Identifier: Apache-2.0
"""A real slurmd for each node of a slurmctld, on this machine: jobs run in it.

Where slurmd is not installed, its package is downloaded with apt, which checks it, and unpacked
into a folder of the user's cache.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from tests.unit.fabric.slurm_root import CannotError
from tests.unit.fabric.slurmctld import free_port


def find_slurmd() -> tuple[str, ...]:
    """The words that start slurmd.

    :raises CannotError: it cannot be had.
    """
    if os.geteuid() != 0:
        raise CannotError("slurmd needs root")
    installed = shutil.which("slurmd", path=f"{os.environ['PATH']}:/usr/sbin")
    if installed:
        return (installed,)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    work = cache / "nova-hpc/slurm/slurmd"
    daemon, step = (work / "root/usr/sbin" / f"{name}-wlm" for name in ("slurmd", "slurmstepd"))
    if not step.exists():
        work.mkdir(parents=True, exist_ok=True)
        said = subprocess.run(
            ["apt-get", "download", "-qq", "slurmd"],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        packages = sorted(work.glob("slurmd_*.deb"))
        if said.returncode or not packages:
            raise CannotError(f"slurmd cannot be downloaded: {said.stderr.strip()[-300:]}")
        subprocess.run(["dpkg", "-x", packages[-1], work / "root"], check=True)
    ended = subprocess.run([daemon, "-V"], capture_output=True, text=True, check=False)
    ours = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout
    if ended.stdout != ours:
        raise CannotError(f"slurmd is {ended.stdout or ended.stderr!r}, slurmctld {ours!r}")
    return (str(daemon), "-d", str(step))


@attrs.define
class Slurmds:
    """The slurmd of each node, all at 127.0.0.1.

    :ivar ports: name of a node -> its port.
    """

    folder: Path
    words: tuple[str, ...]
    ports: Mapping[str, int]
    _running: dict[str, subprocess.Popen[bytes]] = attrs.Factory(dict)

    @classmethod
    def of(cls, folder: Path, names: Iterable[str]) -> Slurmds:
        return cls(folder, find_slurmd(), {name: free_port() for name in names})

    def node_lines(self) -> list[str]:
        """Lines of slurm.conf for the nodes, which are idle once their daemons are there."""
        return [
            f"NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs=4"
            for name, port in self.ports.items()
        ]

    def settings(self) -> tuple[str, ...]:
        return (
            "SlurmdUser=root",
            # No key protects them: they answer at the loopback address alone.
            "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny",
            f"SlurmdPidFile={self.folder}/slurmd.%n.pid",
            f"SlurmdSpoolDir={self.folder}/spool.%n",
            # This machine has less than its nodes.
            "SlurmdParameters=config_overrides",
            "JobAcctGatherType=jobacct_gather/none",
            "TaskPlugin=task/none",
        )

    def start(self, name: str) -> None:
        """The node boots."""
        spool = self.folder / f"spool.{name}"
        shutil.rmtree(spool, ignore_errors=True)
        spool.mkdir()
        conf = str(self.folder / "slurm.conf")
        with (self.folder / f"slurmd.{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*self.words, "-D", "-N", name, "-f", conf],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def stop(self, name: str) -> None:
        """The node is gone, at once."""
        process = self._running.pop(name, None)
        if process is not None:
            process.kill()
            process.wait(60)

    def stop_all(self) -> None:
        for name in list(self._running):
            self.stop(name)
