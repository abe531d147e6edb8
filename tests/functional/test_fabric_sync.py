# SPDX-License-Identifier: Apache-2.0
"""The fabric map in Nova's own host aggregates, by the commands that an operator types."""

from __future__ import annotations

import contextlib
import io
import json
import logging
from pathlib import Path
from unittest import mock

import fixtures
from keystoneauth1 import noauth, session
from nova.tests.functional import integrated_helpers
from openstack import connection
from oslo_config import cfg

from nova_hpc.fabric.aggregates import SALT_KEY, read_aggregate_place
from nova_hpc.fabric.model import FabricMap, FabricPlace
from nova_hpc_tools.fabric import command as fabric
from nova_hpc_tools.fabric import nova_aggregates, sync_command
from nova_hpc_tools.main import NovaHpc
from nova_hpc_tools.wire import fabric_map

CONF = cfg.CONF
HOSTS = ("n1", "n2", "n3", "n4")
OLD = FabricMap(
    [
        FabricPlace("n1", leaf="l1", spine="s1", nvlink_domain="v1"),
        FabricPlace("n2", leaf="l1", spine="s1", nvlink_domain="v1"),
        FabricPlace("n3", leaf="l2", spine="s1"),
        FabricPlace("n9", leaf="l2", spine="s1"),
    ]
)
NEW = FabricMap(
    [
        FabricPlace("n1", leaf="l1", spine="s1"),
        FabricPlace("n2", leaf="l3", spine="s1"),
        FabricPlace("n3", leaf="l3", spine="s1"),
        FabricPlace("n4", leaf="l3", spine="s1"),
    ]
)
#: Filters of Nova that read the metadata of aggregates.
READERS = (
    "AggregateInstanceExtraSpecsFilter",
    "AggregateMultiTenancyIsolation",
    "AggregateImagePropertiesIsolation",
)


#: These maps are small, and whole parts of them go.
_ALL = ("--removal-limit", "100")


class FabricSyncTest(integrated_helpers.ProviderUsageBaseTestCase):
    compute_driver = "fake.SmallFakeDriver"

    def setUp(self) -> None:
        super().setUp()
        for host in HOSTS:
            self._start_compute(host=host)
        self.folder = Path(self.useFixture(fixtures.TempDir()).path)
        headers = {
            "X-Auth-User": "admin",
            "X-Auth-Project-Id": self.admin_api.project_id,
            "X-Roles": "reader,member,admin",
        }
        auth = noauth.NoAuth(endpoint=self.api_fixture.base_url)
        self.cloud = connection.Connection(
            session=session.Session(auth=auth, additional_headers=headers),
            compute_endpoint_override=self.api_fixture.base_url,
        )
        for name in ("openstack", "keystoneauth"):
            logging.getLogger(name).setLevel(logging.ERROR)

    def run_command(self, *words: str, given: FabricMap | None = None) -> tuple[int, str, str]:
        """Run ``nova-hpc fabric``; its status, output and errors."""
        out, err = io.StringIO(), io.StringIO()
        paths = []
        if given is not None:
            path = self.folder / "map.json"
            path.write_text(fabric_map.write_fabric_map(given))
            paths.append(str(path))
        with (
            mock.patch.object(
                nova_aggregates,
                "connect_fabric_cloud",
                return_value=nova_aggregates.FabricCloud(self.cloud.compute),
            ),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            app = NovaHpc()
            for name, command in {
                "diff": fabric.DiffFabric,
                "sync": sync_command.SyncFabric,
            }.items():
                app.command_manager.add_command(f"fabric {name}", command)
            status = app.run(["fabric", *words, *paths])
        return status, out.getvalue(), err.getvalue()

    def aggregates(self) -> dict[str, dict]:
        found = self.admin_api.api_get("os-aggregates").body["aggregates"]
        return {each["name"]: each for each in found}

    def ours(self) -> list[dict]:
        found = self.aggregates().items()
        return [each for name, each in found if name.startswith("hpc-fabric:")]

    def places(self) -> dict[str, FabricPlace]:
        """Where Nova's aggregates say that the hosts are."""
        found = {}
        for host in HOSTS:
            metadata = [
                each["metadata"] for each in self.aggregates().values() if host in each["hosts"]
            ]
            reading = read_aggregate_place(host, metadata)
            self.assertEqual((), reading.problems)
            found[host] = reading.place
        return found

    def test_a_map_is_written_shown_and_changed(self) -> None:
        theirs = self.admin_api.post_aggregate({"aggregate": {"name": "theirs"}})
        self.admin_api.add_host_to_aggregate(theirs["id"], "n1")
        before = self.aggregates()["theirs"]
        # Without --yes nothing is done.
        status, out, err = self.run_command("sync", given=OLD)
        self.assertEqual(1, status, err)
        self.assertIn("nothing was changed, --yes does them", out)
        self.assertEqual({"theirs"}, set(self.aggregates()))
        status, out, err = self.run_command("sync", "--yes", given=OLD)
        self.assertEqual(0, status, err)
        self.assertIn("hosts of the map that Nova has not: n9", err)
        self.assertIn("hosts of Nova that the map has not: n4", err)
        self.assertEqual(
            {"theirs", "hpc-fabric:leaf:l1", "hpc-fabric:leaf:l2", "hpc-fabric:nvlink_domain:v1"},
            set(self.aggregates()),
        )
        self.assertEqual(
            {host: OLD.place(host) or FabricPlace(host) for host in HOSTS}, self.places()
        )
        # One secret for the whole map, which is not shown.
        (salt,) = {each["metadata"].get(SALT_KEY) for each in self.ours()}
        self.assertRegex(salt, "^[0-9a-f]{32}$")
        self.assertIn(f"{SALT_KEY}=(secret)", out)
        self.assertNotIn(salt, out + err)
        # Again: nothing is left to do.
        status, out, err = self.run_command("sync", "--yes", given=OLD)
        self.assertEqual((0, "Nova's aggregates are as in the map\n"), (status, out[-36:]), err)
        # A map that has changed.
        status, out, err = self.run_command("diff", "--format", "json", given=NEW)
        self.assertEqual(1, status, err)
        moved = {
            (row["Name"], row["Old"], row["New"])
            for row in json.loads(out)
            if row["Change"] == "moved"
        }
        self.assertIn(("n2", "l1", "l3"), moved)
        # Two of three hosts would lose their NVLink domain: somebody has to say so.
        status, out, err = self.run_command("sync", "--yes", given=NEW)
        self.assertEqual((2, ""), (status, out))
        self.assertIn("2 of 3 hosts would lose a domain that Nova has now: n1, n2", err)
        words = ("--accept-removals", "2", "--format", "json")
        status, out, err = self.run_command("sync", "--yes", *words, given=NEW)
        self.assertEqual(0, status, err)
        self.assertEqual({salt}, {each["metadata"].get(SALT_KEY) for each in self.ours()})
        self.assertNotIn(salt, out + err)
        self.assertTrue(all(step["done"] for step in json.loads(out)["steps"]))
        self.assertEqual({host: NEW.place(host) for host in HOSTS}, self.places())
        # What is gone is gone, and what is not ours is as it was.
        self.assertEqual(
            {"theirs", "hpc-fabric:leaf:l1", "hpc-fabric:leaf:l3"}, set(self.aggregates())
        )
        self.assertEqual(before, self.aggregates()["theirs"])
        status, _, _ = self.run_command("diff", given=NEW)
        self.assertEqual(0, status)

    def test_a_run_that_nova_stops_says_so_and_is_finished_by_the_next(self) -> None:
        apply = nova_aggregates.FabricCloud.apply
        for stop in range(0, 14, 3):
            count = 0

            def until(cloud, step, stop=stop):
                nonlocal count
                count += 1
                if count > stop:
                    raise nova_aggregates.NovaApiError("POST /os-aggregates: 500: no database")
                apply(cloud, step)

            with mock.patch.object(nova_aggregates.FabricCloud, "apply", until):
                given = OLD if stop % 2 else NEW
                status, _, err = self.run_command("sync", "--yes", *_ALL, given=given)
            if count > stop:
                self.assertEqual(1, status)
                self.assertIn(f"{stop} of ", err)
                self.assertIn("500: no database; run it again to go on", err)
        status, _, err = self.run_command("sync", "--yes", *_ALL, given=OLD)
        self.assertEqual(0, status, err)
        self.assertEqual(
            {host: OLD.place(host) or FabricPlace(host) for host in HOSTS}, self.places()
        )

    def test_what_nova_refuses_is_said_in_its_words(self) -> None:
        self.run_command("sync", "--yes", given=OLD)
        # A zone on an aggregate of ours, and a server in it: Nova does not let the host go.
        leaf = self.aggregates()["hpc-fabric:leaf:l1"]
        body = {"set_metadata": {"metadata": {"availability_zone": "zone"}}}
        self.admin_api.api_post(f"os-aggregates/{leaf['id']}/action", body)
        self._create_server(networks="none", az="zone", host="n2")
        status, _, err = self.run_command("sync", "--yes", *_ALL, given=NEW)
        self.assertEqual(1, status)
        self.assertIn("take it off", err)
        self.assertIn("409: Cannot remove host", err)
        self.assertIn("run it again to go on", err)
        # Nothing of it is half: whoever is in no leaf is unknown, and nobody in two.
        self.places()

    def test_two_maps_at_once_are_refused(self) -> None:
        self.run_command("sync", "--yes", given=OLD)
        before = self.aggregates()
        status, _, err = self.run_command("sync", "--yes", "--name", "hall b", given=NEW)
        self.assertEqual(2, status)
        self.assertIn("two maps at once: n1, n2", err)
        self.assertEqual(before, self.aggregates())

    def test_somebody_else_who_writes_meanwhile_is_noticed(self) -> None:
        apply = nova_aggregates.FabricCloud.apply

        def other(cloud, step):
            apply(cloud, step)
            if step.kind == "add host" and step.value == "n1":
                leaf = self.aggregates()[step.aggregate]
                self.admin_api.api_post(
                    f"os-aggregates/{leaf['id']}/action", {"remove_host": {"host": "n1"}}
                )

        with mock.patch.object(nova_aggregates.FabricCloud, "apply", other):
            status, _, err = self.run_command("sync", "--yes", given=OLD)
        self.assertEqual(1, status)
        self.assertIn("another program has changed them meanwhile", err)

    def test_a_cluster_that_a_new_map_tears_apart_is_named_and_not_moved(self) -> None:
        self.run_command("sync", "--yes", given=OLD)
        group = self.api.post_server_groups({"name": "train", "policy": "soft-affinity"})
        servers = [self._member(group["id"], host) for host in ("n1", "n2")]
        status, _, err = self.run_command("diff", given=NEW)
        self.assertEqual(1, status, err)
        self.assertIn("cluster train now spans 2 leaves (before: 1)", err)
        status, _, err = self.run_command("sync", "--yes", *_ALL, given=NEW)
        self.assertEqual(0, status, err)
        self.assertIn("cluster train now spans 2 leaves (before: 1); nothing is moved", err)
        hosts = [
            self.admin_api.get_server(server["id"])["OS-EXT-SRV-ATTR:host"] for server in servers
        ]
        self.assertEqual(["n1", "n2"], hosts)
        _, _, err = self.run_command("sync", "--no-clusters", given=OLD)
        self.assertNotIn("cluster train", err)

    def _member(self, group: str, host: str) -> dict:
        body = self._build_server(networks="none", host=host)
        body = {"server": body, "os:scheduler_hints": {"group": group}}
        return self._wait_for_state_change(self.api.post_server(body), "ACTIVE")

    def test_novas_own_filters_decide_as_before(self) -> None:
        self.flags(
            enabled_filters=[*CONF.filter_scheduler.enabled_filters, *READERS],
            group="filter_scheduler",
        )
        self.flags(enable_isolated_aggregate_filtering=True, group="scheduler")
        self.scheduler_service.stop()
        self.scheduler_service = self.start_service("scheduler")
        flavors = [
            self._create_flavor(vcpu=1, memory_mb=64, disk=0, extra_spec=specs)
            for specs in (
                {},
                {"hpc:affinity": "numa"},
                {"colour": "red"},
                {"aggregate_instance_extra_specs:colour": "red"},
            )
        ]
        before = [self._state(flavor) for flavor in flavors]
        self.run_command("sync", "--yes", given=OLD)
        self.assertEqual(before, [self._state(flavor) for flavor in flavors])
        self.assertEqual(["ACTIVE", "ACTIVE", "ERROR", "ERROR"], before)
        # What an operator asks for on purpose works: Nova's filter reads our keys, too.
        flavor = self._create_flavor(
            vcpu=1,
            memory_mb=64,
            disk=0,
            extra_spec={"aggregate_instance_extra_specs:hpc_fabric:leaf": "l2"},
        )
        server = self.api.post_server(
            {"server": self._build_server(flavor_id=flavor, networks="none")}
        )
        server = self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual("n3", server["OS-EXT-SRV-ATTR:host"])

    def _state(self, flavor: str) -> str:
        body = self._build_server(flavor_id=flavor, networks="none")
        server = self.api.post_server({"server": body})
        for state in ("ACTIVE", "ERROR"):
            with contextlib.suppress(self.failureException):
                server = self._wait_for_state_change(server, state)
                break
        self._delete_server(server)
        return str(server["status"])

    def test_a_cloud_that_does_not_answer_is_one_line(self) -> None:
        with mock.patch.object(
            self.cloud.compute, "get", side_effect=OSError("connection refused")
        ):
            status, out, err = self.run_command("sync", "--yes", given=OLD)
        self.assertEqual((2, ""), (status, out))
        self.assertEqual(
            "nova-hpc fabric sync: GET /os-aggregates: connection refused",
            err.strip().splitlines()[-1],
        )
