# SPDX-License-Identifier: Apache-2.0
"""Members of a cluster on Nova's own API run jobs of a real Slurm, and a healer replaces one.

Each member has a real slurmd, which dies with its server. ``slow``: half a minute.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from nova import context as nova_context
from nova import objects

from nova_hpc_common.wire.server_faults import FaultWord
from tests.functional.cluster_client import base, slurm_base
from tests.unit.fabric import slurmctld
from tests.unit.fabric.slurm_root import CannotError
from tests.unit.fabric.slurmctld import scontrol
from tests.unit.fabric.slurmd import Slurmds

_NODES = ("k-1", "k-2", "k-3")


@pytest.mark.slow
class SlurmHealTest(slurm_base.SlurmClusterTest):
    SAMPLES = ("hpc-drain", "hpc-undrain")

    def setUp(self) -> None:
        super().setUp()
        try:
            self.daemons = Slurmds.of(self.folder, _NODES)
        except CannotError as error:
            self.skipTest(str(error))
        self.addCleanup(self.daemons.stop_all)
        self.booted: dict[str, str] = {}
        self.give_addresses()

    def give_addresses(self) -> None:
        """Addresses of members are on no network of this machine: each slurmd is at 127.0.0.1."""
        self.give_each_port_an_address()
        path = self.folder / "scontrol"
        calls = self.folder / "scontrol.calls"
        path.write_text(
            f'#!/bin/bash\necho "$*" >>{calls}\n'
            f'exec {shutil.which("scontrol")} "${{@/#NodeAddr=*/NodeAddr=127.0.0.1}}"\n'
        )
        path.chmod(0o755)

    def follow(self, method: str, path: str) -> None:
        """A slurmd dies with its server, and the next server has another one."""
        servers = {each["id"]: each for each in self.servers()}
        match = re.fullmatch(r"/v2\.1/servers/([0-9a-f-]{36})", path)
        if method == "DELETE" and match and match[1] in servers:
            self.daemons.stop(servers[match[1]]["name"])
            (self.folder / "gone").write_text(servers[match[1]]["name"])
        for id, server in servers.items():
            if server["status"] == "ACTIVE" and self.booted.get(server["name"]) != id:
                self.booted[server["name"]] = id
                self.daemons.stop(server["name"])
                self.daemons.start(server["name"])

    def slurm_says(self, *words: str) -> str:
        return subprocess.run(
            words,
            cwd=self.folder,
            env={**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    def submit(self, node: str, script: str) -> str:
        return self.slurm_says("sbatch", "--parsable", "-w", node, "--wrap", script)

    def state_of(self, job: str) -> str:
        """Its state and nodes; empty if Slurm does not know it any more."""
        line = self.slurm_says("squeue", "--noheader", "--states=all", "-o%i %T %N")
        rows = dict(row.split(" ", 1) for row in line.splitlines())
        return rows.get(job, "").strip()

    def server_ids(self) -> dict[str, str]:
        return {each["name"]: each["id"] for each in self.servers()}

    def heal(self, status: int) -> str:
        programs = ("--drain", str(self.folder / "hpc-drain"))
        programs += ("--undrain", str(self.folder / "hpc-undrain"))
        words = ("hpc", "cluster", "heal", "k", "--interval", "0.3", *programs)
        said = self.openstack(*words)
        self.assertEqual(status, said.status, f"{said.err}\n{self.logs()}")
        return said.out

    def test_a_running_job_ends_before_its_member_is_replaced(self) -> None:
        self.create("k", 3, "--nic", f"net-id={base.NETWORK}")
        before = self.server_ids()
        settings = (*self.daemons.settings(), "ReturnToService=0")
        topology = f"SwitchName=k-all Nodes={','.join(_NODES)}\n"
        lines = self.daemons.node_lines()
        with slurmctld.running(
            self.folder, topology, _NODES, "topology/tree", *settings, nodes=lines
        ) as conf:
            self.follow("GET", "/")
            self.front.watch = self.follow
            self.until(lambda: self.nodes_in("idle") == set(_NODES), "three idle nodes")
            mark = lambda name: Path(self.folder / name)  # noqa: E731
            job = self.submit(
                "k-2", "touch begun; until [ -e end ]; do sleep 0.1; done; touch done"
            )
            self.until(lambda: mark("begun").exists(), "a job on k-2")
            # Slurm's administrator has drained a node, for reasons of his own.
            scontrol(conf, "update", "NodeName=k-3", "State=DRAIN", "Reason=new cables")
            admin = nova_context.get_admin_context()
            tag = objects.Tag(context=admin, resource_id=before["k-2"], tag=FaultWord.LINK.tag)
            tag.create()
            # The member has a job: it stays, and the job runs on.
            self.assertIn("k-2 (link) is busy", self.heal(status=1))
            self.assertEqual(before, self.server_ids())
            self.assertEqual("RUNNING k-2", self.state_of(job))
            self.assertFalse(mark("done").exists())
            self.assertIn("Reason=hpc-fault=link", scontrol(conf, "show", "node", "k-2"))
            # No other job starts on it, but on the member beside it.
            later = self.submit("k-2", f"[ -e {mark('gone')} ] && touch on-the-new-one")
            beside = self.submit("k-1", "touch beside")
            self.until(lambda: mark("beside").exists(), "a job on k-1")
            self.until(lambda: self.state_of(beside) == "COMPLETED k-1", "its end")
            self.assertIn("k-2 (link) is busy", self.heal(status=1))
            self.assertEqual("PENDING", self.state_of(later))
            self.assertEqual("RUNNING k-2", self.state_of(job))
            # The job ends by itself, and then its member is another server.
            mark("end").touch()
            self.until(lambda: self.state_of(job) == "COMPLETED k-2", "the end of the job")
            self.assertTrue(mark("done").exists())
            self.assertFalse(mark("gone").exists())
            said = self.heal(status=0)
            self.assertIn("k-2 (link) is drained", said)
            self.assertEqual("k-2", mark("gone").read_text())
            after = self.server_ids()
            changed = {name for name in before if after[name] != before[name]}
            self.assertEqual({"k-2"}, changed)
            (server,) = [each for each in self.servers() if each["name"] == "k-2"]
            (addresses,) = server["addresses"].values()
            told = (self.folder / "scontrol.calls").read_text()
            self.assertIn(f"update NodeName=k-2 NodeAddr={addresses[0]['addr']} ", told)
            # It takes jobs again, and the administrator's node stays drained.
            self.until(lambda: self.state_of(later) == "COMPLETED k-2", "the job that waited")
            self.assertTrue(mark("on-the-new-one").exists())
            self.assertEqual({"k-3"}, self.nodes_in("drained"))
            self.assertIn("Reason=new cables", scontrol(conf, "show", "node", "k-3"))

    def nodes_in(self, state: str) -> set[str]:
        rows = self.slurm_says("sinfo", "-h", "-N", "-o%N %T").splitlines()
        return {name for name, _, found in (row.partition(" ") for row in rows) if found == state}
