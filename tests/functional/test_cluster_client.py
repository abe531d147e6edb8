# SPDX-License-Identifier: Apache-2.0
"""``openstack hpc cluster`` against Nova's own API: what users do, and what goes wrong."""

from __future__ import annotations

import threading

import pytest
import yaml

from nova_hpc_common.level import AffinityPolicy, Level
from nova_hpc_common.wire import position, server_devices
from nova_hpc_common.wire.position import Position
from nova_hpc_common.wire.server_devices import ServerDevices
from tests.functional.cluster_client import base


class ClusterTest(base.ClusterClientTest):
    def test_a_life(self) -> None:
        made = self.create("train", 3).json
        self.assertEqual(("ACTIVE", "1-3"), (made["state"], made["wanted"]))
        self.assertEqual(["train-1", "train-2", "train-3"], made["members"])
        self.assert_complete("train", [1, 2, 3])
        # One request for all of them.
        self.assertEqual(1, self.front.requests.count("POST /v2.1/servers"))
        hosts = self.cluster("hosts", "train", "--format", "openmpi").out
        self.assertEqual(3, len(hosts.splitlines()))
        self.assertRegex(hosts, r"^192\.168\.1\.\d+ slots=1\n")
        inventory = yaml.safe_load(self.cluster("hosts", "train", "-f", "ansible").out)
        self.assertEqual(
            {"train-1", "train-2", "train-3"}, set(inventory["all"]["children"]["train"]["hosts"])
        )
        self.assertIn("train:", self.cluster("topology", "train").out)
        self.assertIn("<svg", self.cluster("topology", "train", "-f", "svg").out)
        self.assertEqual(3, len(self.cluster("topology", "train", "-f", "json").json))

        self.cluster("scale", "train", "--members", "5", "-f", "json")
        self.assert_complete("train", [1, 2, 3, 4, 5])
        # Whose going brings the others nearest: three hosts have two, two and one.
        self.cluster("scale", "train", "--members", "4")
        left = [server["name"] for server in self.servers()]
        hosts_left = {server["OS-EXT-SRV-ATTR:host"] for server in self.servers()}
        self.assertEqual((4, 2), (len(left), len(hosts_left)))
        first = left[0]
        before = {server["id"] for server in self.servers()}
        self.cluster("replace", "train", first)
        after = {server["id"] for server in self.servers()}
        self.assertEqual(3, len(before & after))
        self.assertEqual(sorted(left), sorted(server["name"] for server in self.servers()))
        self.cluster("delete", "train")
        self.assert_nothing_left()

    @pytest.mark.slow
    def test_a_reader_that_goes_away(self) -> None:
        """The work is done to its end, and nothing that is not read is success."""
        gone = {"status": 141, "closed": True}
        self.create("train", 2, **gone)
        self.assert_complete("train", [1, 2])
        for verb, words in (
            ("list", ()),
            ("show", ("train",)),
            ("hosts", ("train", "-f", "openmpi")),
            ("topology", ("train",)),
        ):
            self.assertIn("was not read to its end", self.cluster(verb, *words, **gone).err)
        self.cluster("scale", "train", "--members", "3", "-f", "json", **gone)
        self.assert_complete("train", [1, 2, 3])
        self.cluster("delete", "train")
        self.assert_nothing_left()

    @pytest.mark.slow
    def test_ports_are_made_before_and_go_with_the_cluster(self) -> None:
        nic = ("--nic", f"net-id={base.NETWORK},vnic-type=normal")
        self.create("ib", 2, *nic, "--security-group", "default")
        self.assert_complete("ib", [1, 2], ports_each=1)
        self.assertEqual(2, self.front.requests.count("POST /v2.1/servers"))
        # A replaced member has its port and its address again.
        ports = {port["id"] for port in self.made_ports()}
        self.cluster("replace", "ib", "2")
        self.assertEqual(ports, {port["id"] for port in self.made_ports()})
        self.cluster("scale", "ib", "--add", "ib-[4]")
        self.assert_complete("ib", [1, 2, 4], ports_each=1)
        self.cluster("scale", "ib", "--remove", "1-2")
        self.assert_complete("ib", [4], ports_each=1)
        self.cluster("delete", "ib")
        self.assert_nothing_left()

    @pytest.mark.slow
    def test_no_room_leaves_nothing(self) -> None:
        for words in ((), ("--one-by-one",), ("--nic", f"net-id={base.NETWORK}")):
            said = self.create("big", 7, *words, status=1)
            self.assertIn("No valid host was found", said.err)
            self.assertIn("nothing is left of the cluster", said.err)
            self.assert_nothing_left()

    def test_members_without_dhcp_get_a_configuration_drive(self) -> None:
        """As on a partition of InfiniBand, whose subnets have no DHCP."""
        network = ("--network", base.NETWORK)
        said = self.create("plain", 1, *network)
        self.assertNotIn("configuration drive", said.err)
        for subnet in self.neutron._subnets.values():
            subnet["enable_dhcp"] = False
        said = self.create("closed", 1, *network)
        self.assertIn("they get a configuration drive (--no-config-drive", said.err)
        self.create("without", 1, *network, "--no-config-drive")
        drives = {server["name"]: server["config_drive"] for server in self.servers()}
        self.assertEqual({"plain-1": "", "closed-1": "True", "without-1": ""}, drives)
        self.neutron._subnets.clear()
        said = self.create("none", 1, *network, status=1)
        self.assertIn("because none of its networks has a subnet", said.err)
        self.assertEqual(3, len(self.servers()))

    @pytest.mark.slow
    def test_no_room_to_grow_leaves_what_was(self) -> None:
        self.create("big", 5)
        said = self.cluster("scale", "big", "--members", "8", status=1)
        self.assertIn("the cluster has its 5 members as before", said.err)
        self.assert_complete("big", [1, 2, 3, 4, 5])

    @pytest.mark.slow
    def test_quotas_are_asked_first(self) -> None:
        self.flags(server_group_members=2, cores=3, group="quota")
        self.front.quota_ports = len(self.ports_before) + 1
        said = self.create("q", 4, "--network", base.NETWORK, status=1)
        self.assertIn(
            f"openstack quota set --cores 4 --server-group-members 4 "
            f"--ports {len(self.ports_before) + 4} {base.PROJECT}",
            said.err,
        )
        self.assertNotIn("POST", " ".join(self.front.requests))
        self.assert_nothing_left()

    def test_a_refusal_half_way_undoes_all(self) -> None:
        # The quota is changed after it was asked for, and requests come one after the other.
        app, turn = self.front._nova, threading.Lock()

        def nova(environ, start):
            if (environ["REQUEST_METHOD"], environ["PATH_INFO"]) != ("POST", "/v2.1/servers"):
                return app(environ, start)
            with turn:
                self.flags(server_group_members=2, group="quota")
                return list(app(environ, start))

        self.front._nova = nova
        said = self.create("q", 4, "--one-by-one", status=1)
        self.assertIn("too many servers in group (HTTP 403)", said.err)
        self.assertIn("nothing is left of the cluster", said.err)
        self.assert_nothing_left()

    def test_what_is_not_a_cluster_is_refused_before_anything_is_made(self) -> None:
        wrong = (
            (("--availability-zone", "nova:host0"), "say nova alone"),
            (("--max-per-host", "2"), "goes with --policy anti-affinity"),
            (("--network", "none", "--network", "private"), "leaves no room"),
            (("--volume", "6a1f"), "1 volumes for 3 members"),
            (("--flavor", "huge"), "no flavor is called huge"),
        )
        for words, text in wrong:
            self.assertIn(text, self.create("wrong", 3, *words, status=1).err)
        self.assertIn("cannot name a cluster", self.create("a:b", 2, status=1).err)
        self.assertNotIn("POST", " ".join(self.front.requests))

    @pytest.mark.slow
    def test_anti_affinity_by_host(self) -> None:
        said = self.create("apart", 4, "--policy", "anti-affinity", status=1)
        self.assertIn("nothing is left", said.err)
        self.create("apart", 3, "--policy", "anti-affinity")
        hosts = {server["OS-EXT-SRV-ATTR:host"] for server in self.servers()}
        self.assertEqual(3, len(hosts))
        matrix = self.cluster("topology", "apart", "-f", "matrix").out
        self.assertEqual(["apart-1", "X", "-", "-"], matrix.splitlines()[1].split())

    @pytest.mark.slow
    def test_another_project_sees_nothing(self) -> None:
        self.create("mine", 2, "--nic", f"net-id={base.NETWORK}")
        (row,) = self.cluster("list", "-f", "json").json
        for user in ("fake", "admin"):
            other = {"user": user, "project": base.OTHER_PROJECT}
            self.assertEqual([], self.cluster("list", "-f", "json", **other).json)
            for verb in ("show", "delete", "hosts", "topology"):
                said = self.cluster(verb, row["ID"], status=1, **other)
                self.assertIn("no cluster is called", said.err)
        self.assert_complete("mine", [1, 2], ports_each=1)

    def test_hints_and_records(self) -> None:
        self.create("seen", 2, "--network", "none")
        server = self.servers()[0]
        (group,) = self.groups()
        self.assertEqual([f"hpc-cluster={group['id']}"], server["tags"])
        self.assertEqual(group["id"], server["metadata"]["hpc_cluster_group"])
        self.assertEqual("soft-anti-affinity", group["policy"])
        from nova import context, objects

        spec = objects.RequestSpec.get_by_instance_uuid(context.get_admin_context(), server["id"])
        self.assertEqual(["2"], spec.scheduler_hints["hpc_members"])
        self.assertEqual([group["id"]], spec.scheduler_hints["group"])

    def test_positions_of_members_are_shown(self) -> None:
        """Nodes write them into the members' metadata; here, where there are none, the test."""
        self.create("near", 3, "--network", "none")
        devices = ServerDevices(Level.SWITCH, AffinityPolicy.REQUIRED, Level.SWITCH, {"gpu": 2})
        servers = sorted(self.servers(), key=lambda each: each["name"])
        for server, leaf in zip(servers, ("l-1", "l-2", "l-1"), strict=True):
            where = Position({"block": "b-1", "leaf": leaf}, ("r-1",))
            metadata = {position.KEY: where.dumps(), server_devices.KEY: devices.dumps()}
            self.api.api_post(f"/servers/{server['id']}/metadata", {"metadata": metadata})
        tree = self.cluster("topology", "near").out
        self.assertIn("near: 1 block, 2 leaves, ", tree)
        rows = self.cluster("topology", "near", "-f", "matrix").out.splitlines()
        self.assertRegex(rows[1], "^near-[13] +X +(LEAF|HOST) +(BLK|HOST)$")
        self.assertIn("Nodes=near-1,near-3\n", self.cluster("topology", "near", "-f", "slurm").out)
        for name in ("near-1", servers[0]["id"]):
            said = self.openstack("hpc", "server", "show", name, "-f", "json")
            self.assertEqual(0, said.status, said.err)
            shown = said.json
            self.assertEqual(
                ("switch", "required", "switch", {"gpu": 2}, "l-1", ["r-1"]),
                (
                    shown["level_asked"],
                    shown["policy"],
                    shown["level_reached"],
                    shown["devices"],
                    shown["leaf"],
                    shown["rails"],
                ),
            )
            self.assertEqual({"leaf": ["near-3"], "block": ["near-2"]}, shown["beside"])
        said = self.openstack("hpc", "server", "show", "near-1", project=base.OTHER_PROJECT)
        self.assertEqual(1, said.status)
        self.assertIn("no server is called near-1", said.err)
