# SPDX-License-Identifier: Apache-2.0
"""The steps of ``nova-hpc requirements`` against Nova's own API: a server's life, and refusals."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import fixtures
from keystoneauth1 import noauth, session
from nova.tests.functional import integrated_helpers
from openstack import connection

from nova_hpc_requirements import trial
from nova_hpc_requirements.catalog import REQUIREMENTS
from nova_hpc_requirements.judging import choose_requirements, judge_requirement
from nova_hpc_requirements.step_context import NAME, StepContext, StepOptions
from nova_hpc_requirements.step_table import run_step
from nova_hpc_tools import main
from tests.requirement_shapes import list_shape_faults

IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"
#: What stock Nova meets with a driver that has no guest: no console text, no login.
LIFE = ("CNP01-09", "CNP01-11", "CNP01-14", "CNP08-03", "CNP05-02", "CNP08-04")


class ProjectAuth(noauth.NoAuth):
    """Says which project it is for, as Keystone does."""

    project = ""

    def get_project_id(self, session: Any, **keywords: Any) -> str:
        return self.project


class RequirementStepsTest(integrated_helpers.ProviderUsageBaseTestCase):
    compute_driver = "fake.SmallFakeDriver"
    HOSTS = ("host0", "host1")

    def setUp(self) -> None:
        super().setUp()
        self.flags(response_validation="ignore", group="api")
        for host in self.HOSTS:
            self._start_compute(host=host)
        self._create_flavor(vcpu=1, memory_mb=256, disk=1, ephemeral=0, name="one")
        headers = {
            "X-Auth-User": "admin",
            "X-Auth-Project-Id": self.admin_api.project_id,
            "X-Roles": "reader,member,admin",
        }
        auth = ProjectAuth(endpoint=self.api_fixture.base_url)
        auth.project = self.admin_api.project_id
        # There is no Keystone and no Neutron here: what asks them is tried in the lab.
        self.cloud = connection.Connection(
            session=session.Session(auth=auth, additional_headers=headers),
            compute_endpoint_override=self.api_fixture.base_url,
        )
        self.cloud.config.disable_service("network")
        for name in ("openstack", "keystoneauth"):
            logging.getLogger(name).setLevel(logging.ERROR)
        self.options = StepOptions(
            flavor="one", image=IMAGE, timeout=60.0, ssh_timeout=1.0, ssh_user="ubuntu"
        )
        self.made: list[str] = []

    def context(self, **more: Any) -> StepContext:
        return StepContext(attrs.evolve(self.options, **more), lambda: self.cloud)

    def test_a_life(self) -> None:
        chosen = choose_requirements(LIFE)
        steps = trial.list_steps(chosen)
        said: list[str] = []
        evidence = trial.gather_evidence(steps, self.context(), {}, True, said.append)
        for item in chosen:
            verdict = judge_requirement(item, evidence)
            self.assertEqual("met", verdict.state, (item.id, verdict))
        for name in steps:
            output = evidence.steps[name].output
            if name != "migrate_instance":
                self.assertEqual([], list_shape_faults(name, dict(output)), name)
        # In the order in which a server can live.
        self.assertEqual([*steps, "teardown"], said)
        self.assert_nothing_left(evidence.steps["launch_instance"].output)

    def assert_nothing_left(self, made: Any) -> None:
        self.assertEqual([], self.admin_api.get_servers(detail=False))
        keys = self.admin_api.api_get("/os-keypairs").body["keypairs"]
        self.assertEqual([], keys)
        self.assertFalse(Path(made["key_file"]).parent.exists())

    def test_the_steps_of_the_suite_one_by_one(self) -> None:
        made = run_step("launch_instance", self.context()).output
        self.assertEqual([], list_shape_faults("launch_instance", dict(made)))
        self.assertEqual(0o600, Path(made["key_file"]).stat().st_mode & 0o777)
        own = {"server": made["instance_id"], "key_file": made["key_file"]}
        for name in (
            *("describe_instance", "serial_console", "component_key_access"),
            *("topology_placement", "stop_instance", "start_instance", "reboot_instance"),
        ):
            output = run_step(name, self.context(**own)).output
            self.assertEqual([], list_shape_faults(name, dict(output)), name)
        # The fake driver has no guest, so nobody is believed to have logged in.
        described = run_step("describe_instance", self.context(**own)).output
        self.assertEqual((None, False), (described["guest"], described["ssh_ready"]))
        ended = run_step("teardown", self.context(**own, key_name=made["key_name"])).output
        self.assertEqual([], list_shape_faults("teardown", dict(ended)))
        self.assertEqual([], ended["resources_failed"])
        self.assert_nothing_left(made)
        # Once more: what is gone already is no failure.
        again = run_step("teardown", self.context(**own, key_name=made["key_name"])).output
        self.assertTrue(again["success"])

    def test_a_key_of_the_caller_is_never_deleted(self) -> None:
        key = Path(self.useFixture(fixtures.TempDir()).path) / "id_ed25519"
        key.write_text("mine")
        self.context().rest.nova("POST", "/os-keypairs", {"keypair": {"name": "mine"}})
        run_step("teardown", self.context(server="", key_file=str(key), key_name="mine"))
        self.assertTrue(key.exists())
        self.assertEqual(1, len(self.admin_api.api_get("/os-keypairs").body["keypairs"]))

    def test_what_cannot_be_made_leaves_nothing(self) -> None:
        self.useFixture(fixtures.NestedTempfile())
        for more, part in (
            ({"flavor": "nothing"}, "no flavor is called nothing"),
            ({"flavor": ""}, "--flavor FLAVOR --image IMAGE"),
            ({"image": "7" * 8 + "-0000-4000-8000-000000000000"}, "Can not find requested image"),
        ):
            evidence = run_step("launch_instance", self.context(**more))
            self.assertIsNone(evidence.output)
            self.assertIn(part, evidence.reason)
        # No host is large enough: Nova takes the request, and then has no host.
        self._create_flavor(vcpu=20, memory_mb=256, disk=1, ephemeral=0, name="huge")
        evidence = run_step("launch_instance", self.context(flavor="huge"))
        self.assertIn("No valid host", evidence.reason)
        self.assertEqual([], self.admin_api.get_servers(detail=False))
        self.assertEqual([], self.admin_api.api_get("/os-keypairs").body["keypairs"])
        self.assertEqual([], list(Path(tempfile.gettempdir()).glob(f"{NAME}-*")))

    def test_a_request_to_end_leaves_nothing(self) -> None:
        """SIGTERM in the middle, as ``nova-hpc`` takes it, and again while it cleans up."""
        self.addCleanup(signal.signal, signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        signal.signal(signal.SIGTERM, main._raise_interrupt)
        self.useFixture(fixtures.NestedTempfile())
        real_step, real_removal = trial.run_step, trial.remove_made
        removed = []

        def run(name: str, context: StepContext) -> Any:
            if name == "stop_instance":
                os.kill(os.getpid(), signal.SIGTERM)
            return real_step(name, context)

        def remove(*what: Any) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            removed.append(real_removal(*what))
            return removed[-1]

        steps = trial.list_steps(choose_requirements(LIFE))
        with (
            mock.patch.object(trial, "run_step", run),
            mock.patch.object(trial, "remove_made", remove),
            self.assertRaises(KeyboardInterrupt),
        ):
            trial.gather_evidence(steps, self.context(), {}, True)
        ((_, left),) = removed
        self.assertEqual([], left)
        self.assertEqual([], self.admin_api.get_servers(detail=False))
        self.assertEqual([], self.admin_api.api_get("/os-keypairs").body["keypairs"])
        self.assertEqual([], list(Path(tempfile.gettempdir()).glob(f"{NAME}-*")))

    def test_a_server_that_is_not_there(self) -> None:
        for name in ("verify_tags", "stop_instance", "migrate_instance"):
            evidence = run_step(name, self.context(server="nothing"))
            self.assertEqual("no server is called nothing", evidence.reason)

    def test_hosts_without_a_map(self) -> None:
        output = run_step("backend_switch_fabric", self.context()).output
        self.assertEqual([], list_shape_faults("backend_switch_fabric", dict(output)))
        self.assertEqual(["host0", "host1"], [row["host"] for row in output["places"]])
        evidence = trial.gather_evidence(
            ("backend_switch_fabric", "nvlink_domain", "capacity_reservation_grouping"),
            self.context(),
            {},
            False,
        )
        states = {
            item.id: judge_requirement(item, evidence).state.value
            for item in REQUIREMENTS
            if item.id in ("NET01-01", "NET02-02", "CAP04-01")
        }
        expected = {"NET01-01": "not met", "NET02-02": "not known", "CAP04-01": "not met"}
        self.assertEqual(expected, states)

    def test_aggregates_of_a_project(self) -> None:
        aggregate = self.admin_api.post_aggregate({"aggregate": {"name": "own"}})
        self.admin_api.add_host_to_aggregate(aggregate["id"], "host0")
        body = {"set_metadata": {"metadata": {"filter_tenant_id": "p1"}}}
        self.admin_api.post_aggregate_action(aggregate["id"], body)
        output = run_step("capacity_reservation_grouping", self.context()).output
        self.assertEqual([], list_shape_faults("capacity_reservation_grouping", dict(output)))
        self.assertEqual("p1", output["account_id"])
        self.assertIsNone(output["isolation_enforced"])

    def test_without_rights(self) -> None:
        headers = {
            "X-Auth-User": "fake",
            "X-Auth-Project-Id": self.api.project_id,
            "X-Roles": "reader,member",
        }
        auth = noauth.NoAuth(endpoint=self.api_fixture.base_url)
        self.cloud = connection.Connection(
            session=session.Session(auth=auth, additional_headers=headers),
            compute_endpoint_override=self.api_fixture.base_url,
        )
        for name in ("backend_switch_fabric", "nvlink_domain", "capacity_reservation_grouping"):
            evidence = run_step(name, self.context())
            self.assertIsNone(evidence.output)
            self.assertIn("it takes the admin role", evidence.reason)

    def test_services_that_are_away(self) -> None:
        self.cloud = connection.Connection(
            session=session.Session(auth=noauth.NoAuth(endpoint="http://127.0.0.1:1")),
            compute_endpoint_override="http://127.0.0.1:1",
        )
        for name in ("backend_switch_fabric", "launch_instance", "list_instances"):
            evidence = run_step(name, self.context(server="0b1f6a5e-7f52-4c0d-9b0e-0a4a2f5d7c11"))
            self.assertIsNone(evidence.output, name)
            self.assertIn("127.0.0.1", evidence.reason, name)
