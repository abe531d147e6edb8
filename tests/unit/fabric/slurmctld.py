# SPDX-License-Identifier: Apache-2.0
"""A real slurmctld that has loaded a topology, without a node, a key or a database."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from nova_hpc_common.output.hostlist import compress_hostlist, expand_hostlist

_PATIENCE = 60.0
_ENTRY = re.compile(r"(\w+)=(\S+)")
_CLOUD_NODE = "NodeName={} NodeAddr=127.0.0.1 CPUs=4 State=CLOUD"


def cloud_settings(resume: Path, suspend: Path) -> tuple[str, ...]:
    """Lines for nodes that programs make and end, and for which Slurm waits long."""
    return (
        f"ResumeProgram={resume}",
        f"SuspendProgram={suspend}",
        "ResumeTimeout=3000",
        "SuspendTimeout=30",
        "SuspendTime=3000",
        "ResumeRate=0",
        "SuspendRate=0",
    )


@contextlib.contextmanager
def running(
    folder: Path,
    topology: str,
    hosts: Iterable[str],
    plugin: str,
    *settings: str,
    nodes: Sequence[str] = (),
) -> Iterator[Path]:
    """Start slurmctld and wait for it; gives the path of its slurm.conf.

    :param settings: more lines of it.
    :param nodes: lines of nodes that have a slurmd; by default nodes are a cloud's and not up.
    """
    state = folder / "state"
    state.mkdir()
    (folder / "topology.conf").write_text(topology, encoding="utf-8")
    port = free_port()
    conf = folder / "slurm.conf"
    conf.write_text(
        "\n".join(
            [
                "ClusterName=test",
                "SlurmctldHost=localhost(127.0.0.1)",
                f"SlurmctldPort={port}",
                f"SlurmdPort={free_port()}",
                "AuthType=auth/none",
                "CredType=cred/none",
                f"SlurmUser={getpass.getuser()}",
                f"StateSaveLocation={state}",
                f"SlurmctldPidFile={folder}/slurmctld.pid",
                "MailProg=/bin/true",
                "MpiDefault=none",
                "SelectType=select/cons_tres",
                "ProctrackType=proctrack/linuxproc",
                "SlurmctldParameters=cloud_dns",
                # Without it the nodes of a cloud that are not up are not shown.
                "PrivateData=cloud",
                f"TopologyPlugin={plugin}",
                *settings,
                # No name is looked up, and nobody answers.
                *(nodes or [_CLOUD_NODE.format(compress_hostlist(hosts))]),
                "PartitionName=p Nodes=ALL Default=YES State=UP",
                "",
            ]
        ),
        encoding="utf-8",
    )
    with (folder / "log").open("w", encoding="utf-8") as log:
        daemon = subprocess.Popen(
            ["slurmctld", "-D", "-f", str(conf)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        limit = time.monotonic() + _PATIENCE
        while "is UP" not in scontrol(conf, "ping"):
            said = (folder / "log").read_text(encoding="utf-8", errors="replace")
            assert daemon.poll() is None, f"slurmctld ended: {said[-2000:]}"
            assert time.monotonic() < limit, f"slurmctld does not answer: {said[-2000:]}"
            time.sleep(0.2)
        yield conf
    finally:
        daemon.terminate()
        try:
            daemon.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def scontrol(conf: Path, *words: str) -> str:
    """What scontrol prints."""
    return subprocess.run(
        ["scontrol", *words],
        env={**os.environ, "SLURM_CONF": str(conf)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    ).stdout


def switches(conf: Path) -> dict[str, tuple[int, frozenset[str]]]:
    """Switch -> its level and all hosts below it, as slurmctld has understood them."""
    found = {}
    for line in scontrol(conf, "show", "topology").splitlines():
        words = dict(_ENTRY.findall(line))
        hosts = frozenset(expand_hostlist(words["Nodes"])) if words.get("Nodes") else frozenset()
        found[words["SwitchName"]] = (int(words["Level"]), hosts)
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
