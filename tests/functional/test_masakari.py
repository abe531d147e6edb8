# SPDX-License-Identifier: Apache-2.0
"""Masakari's real engine recovers a dead host: servers with a place leave, the others stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from nova.tests import fixtures as nova_fixtures

from tests.functional import fixtures
from tests.functional.cluster_client.cloud_front import CloudFront
from tests.functional.drain_base import DrainCase, run_drain

_TOP = Path(__file__).resolve().parents[2]
_NAME = "hpc_evacuate_servers_task"
#: Calls nova-hpc drain in the process of the test, which has the cloud's database.
_DRAIN = """
import json, sys, urllib.request
request = urllib.request.Request("{url}/drain", json.dumps(sys.argv[1:]).encode())
status, out, err = json.load(urllib.request.urlopen(request))
sys.stdout.write(out); sys.stderr.write(err); sys.exit(status)
"""


class _Front(CloudFront):
    """The cloud, and the command that needs its database."""

    drain: Callable[[list[str]], tuple[int, str, str]]

    def _app(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/drain":
            return super()._app(environ, start)
        words = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        start("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(self.drain(words)).encode()]


class MasakariTest(DrainCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = Path(self.useFixture(fixtures.fixtures.TempDir()).path)
        self.front = _Front(self.api_fixture.app(), self.neutron)
        self.addCleanup(self.front.stop)
        self.front.drain = lambda words: run_drain(self.compute, words)

    def recover(self, drain: str = _DRAIN, ours: bool = True) -> dict[str, Any]:
        """Let the engine recover alpha; its failure, and UUID -> state, host, message."""
        script = self.folder / "drain.py"
        script.write_text(drain.format(url=self.front.url))
        flow = {
            "pre": ["disable_compute_service_task"],
            "main": ["prepare_HA_enabled_instances_task", *([_NAME] if ours else [])],
            "post": ["evacuate_instances_task"],
        }
        flow_text = ",".join(f"{at}:[{','.join(tasks)}]" for at, tasks in flow.items())
        conf = self.folder / "masakari.conf"
        conf.write_text(
            f"""
[DEFAULT]
os_privileged_user_name = admin
os_privileged_user_password = p
os_privileged_user_tenant = {nova_fixtures.PROJECT_ID}
os_privileged_user_auth_url = {self.front.url}/identity/v3
nova_catalog_admin_info = compute:compute:publicURL
wait_period_after_service_update = 1
verify_interval = 1
wait_period_after_evacuation = 60
[keystone_authtoken]
auth_type = password
[database]
connection = sqlite:///{self.folder}/masakari.sqlite
[taskflow]
connection = sqlite:///{self.folder}/taskflow.sqlite
[taskflow_driver_recovery_flows]
host_auto_failure_recovery_tasks = {flow_text}
[nova_hpc]
drain_command = {sys.executable},{script}
"""
        )
        words = ["-m", "tests.functional.masakari_engine", str(conf), "alpha", str(uuid.uuid4())]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            process = subprocess.Popen(
                [sys.executable, *words], cwd=_TOP, stdout=out, stderr=err, env=dict(os.environ)
            )
            try:
                # The test's own threads answer it.
                end = time.monotonic() + 300
                while process.poll() is None and time.monotonic() < end:
                    time.sleep(0.1)
            finally:
                process.kill()
                process.wait()
            out.seek(0)
            err.seek(0)
            self.assertEqual(0, process.returncode, err.read()[-3000:])
            return dict(json.loads(out.read().splitlines()[-1]))

    @pytest.mark.slow
    def test_servers_with_a_place_leave_and_the_others_stay(self) -> None:
        member = self.make("m", self.member, "alpha", group=True)
        free = self.make("a", self.pair, "alpha")
        stock = self.make("s", self.make_flavor({}), "alpha")
        self.make("y", self.pair, "beta")
        self.make("x", self.pair, "beta")
        self.die()
        told = self.recover()
        moves = told["moves"]
        self.assertEqual(["succeeded", "gamma", ""], moves[free["id"]])
        self.assertEqual(["failed", None], moves[member["id"]][:2])
        self.assertIn("no host in leaf leaf1 has room for it", moves[member["id"]][2])
        # Masakari's own task evacuates servers without hpc: keys.
        self.assertEqual("succeeded", moves[stock["id"]][0])
        self.assertIn(member["id"], told["failure"])
        self.assertEqual(("ACTIVE", "gamma"), self.status(free))
        self.assertEqual(("ACTIVE", "alpha"), self.status(member))
        self.assertNotEqual("alpha", self.status(stock)[1])
        self.assert_given_once()

    @pytest.mark.slow
    def test_a_command_that_fails_evacuates_no_server(self) -> None:
        servers = [
            self.make("a", self.pair, "alpha"),
            self.make("s", self.make_flavor({}), "alpha"),
        ]
        self.die()
        for broken, reason in (
            ("import sys; sys.exit(2)", "Exit code: 2"),
            ("print(7)", "its output cannot be read"),
            ('print(\'[{{"ID": "7"}}]\')', "it names servers outside the request"),
        ):
            told = self.recover(broken)
            self.assertIn(reason, told["failure"])
            self.assertEqual({"pending"}, {move[0] for move in told["moves"].values()})
            self.assertEqual([("ACTIVE", "alpha")] * 2, [self.status(each) for each in servers])
        # Without our task, Nova sets a server without a place to ERROR.
        for host in ("beta", "gamma"):
            self.make(f"{host}1", self.pair, host)
            self.make(f"{host}2", self.pair, host)
        self.recover(ours=False)
        self.assertEqual(("ERROR", "alpha"), self.status(servers[0]))
