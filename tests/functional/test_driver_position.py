# SPDX-License-Identifier: Apache-2.0
"""What owners and guests are told of a server's place and devices, on Nova's stack."""

from __future__ import annotations

import base64
import contextlib
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from lxml import etree
from nova import exception, objects
from nova.objects import base as objects_base
from nova.tests.functional.api import client

from nova_hpc.fabric.aggregates import SALT_KEY
from nova_hpc.fabric.model import FabricMap, FabricPlace, Rail
from nova_hpc.from_nova import fabric_position
from nova_hpc_common.wire import position, server_devices
from nova_hpc_common.wire.position import Position
from nova_hpc_guest import command
from nova_hpc_tools.fabric.map_aggregates import aggregates_of
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

SALT = "00112233445566778899aabbccddeeff"
OTHER_PROJECT = "616c6c796f7572626173656172656f73"
IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"
#: A GPU and an adapter's functions below one switch.
SHAPE = fixtures.Shape((fixtures.Switch(gpus=2, pfs=1, vfs=2),))
PAIR = {
    "pci_passthrough:alias": "gpu:1,vf:1",
    "hpc:affinity": "switch",
    "hpc:group": "gpu:1,vf:1",
    "hpc:guest_topology": "mirror",
}
ONE = {"pci_passthrough:alias": "gpu:1", "hpc:affinity": "root"}
STOCK = {"pci_passthrough:alias": "gpu:1"}


def place(host: str, leaf: str) -> FabricPlace:
    rails = (Rail("mlx5_0"), Rail("mlx5_1"))
    return FabricPlace(host, leaf=leaf, block="block7", spine="spine7", core="c", rails=rails)


class PositionTest(DriverTest):
    """Hosts in two leaves of one block."""

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        self.flags(hw_machine_type=["x86_64=q35"], group="libvirt")
        self.useFixture(fixtures.Moves())
        self.ids: dict[str, int] = {}

    def hosts(self, *places: FabricPlace, salt: str = SALT) -> None:
        """Hosts, and the aggregates that ``nova-hpc fabric sync`` makes of a map."""
        for each in places:
            self.host(each.host, SHAPE, before=self._rdma)
        for aggregate in aggregates_of(FabricMap(places, name="ib")):
            made = self.admin_api.post_aggregate({"aggregate": {"name": aggregate.name}})
            metadata = dict(aggregate.metadata) | ({SALT_KEY: salt} if salt else {})
            action = {"set_metadata": {"metadata": metadata}}
            self.admin_api.api_post(f"/os-aggregates/{made['id']}/action", action)
            for host in aggregate.hosts:
                self.admin_api.add_host_to_aggregate(made["id"], host)

    @staticmethod
    def _rdma(tree: Any) -> None:
        """The kernel's name of the adapter."""
        (tree.devices / "0000:40:02.0/infiniband/mlx5_1").mkdir(parents=True)

    def make(self, specs: dict[str, str], host: str, **keywords: Any) -> dict[str, Any]:
        return self.boot(self.make_flavor(specs), host=host, **keywords)

    def metadata(self, server: dict[str, Any]) -> dict[str, str]:
        return self.admin_api.get_server(server["id"])["metadata"]

    def position(self, server: dict[str, Any]) -> Position:
        return position.read_position(self.metadata(server)[position.KEY])

    def document(self, server: dict[str, Any]) -> bytes:
        """The text that the guest finds in its firmware."""
        root = etree.fromstring(self.domains.given[server["id"]][-1])
        entries = root.findall("sysinfo[@type='fwcfg']/entry")
        (text,) = (e.text for e in entries if e.get("name") == "opt/org.nova-hpc/guest.json")
        return base64.b64decode(text)

    def guest(self, server: dict[str, Any], *words: str) -> tuple[int, str]:
        """Run ``nova-hpc-guest topology`` in a machine that has nothing but its document."""
        root = Path(self.useFixture(fixtures.fixtures.TempDir()).path)
        entry = root / "sys/firmware/qemu_fw_cfg/by_name/opt/org.nova-hpc/guest.json"
        entry.mkdir(parents=True)
        (entry / "raw").write_bytes(self.document(server))
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = command.main(["topology", "--root", str(root), *words])
        return status, out.getvalue()

    # -- who sees what --------------------------------------------------------

    def test_two_projects_have_two_names_for_one_leaf(self) -> None:
        self.hosts(place("alpha", "leaf7"), place("beta", "leaf7"), place("gamma", "leaf8"))
        mine = {host: self.make(ONE, host) for host in ("alpha", "beta", "gamma")}
        found = {host: self.position(server).domains for host, server in mine.items()}
        self.assertEqual(found["alpha"], found["beta"])
        self.assertNotEqual(found["alpha"]["leaf"], found["gamma"]["leaf"])
        for level in ("core", "spine", "block"):
            self.assertEqual(found["alpha"][level], found["gamma"][level])
        self.assertEqual({"core", "spine", "block", "leaf"}, set(found["alpha"]))

        other = client.TestOpenStackClient(
            "other", self.api_fixture.base_url, OTHER_PROJECT, ["reader", "member", "admin"]
        )
        other.microversion = self.api.microversion
        built = self._create_server(
            flavor_id=self.make_flavor(ONE), networks="none", host="alpha", api=other
        )
        theirs = other.get_server(built["id"])
        self.assertEqual(OTHER_PROJECT, theirs["tenant_id"])
        names = position.read_position(theirs["metadata"][position.KEY]).domains
        self.assertEqual(set(), set(names.values()) & set(found["alpha"].values()))
        # Nothing of the operator's, and no address, is in anything that users read.
        texts = [json.dumps(self.metadata(each)) for each in (*mine.values(), theirs)]
        texts += [self.document(each).decode() for each in (*mine.values(), theirs)]
        for text in texts:
            for secret in (SALT, "leaf7", "leaf8", "block7", "spine7", "mlx5", "alpha", "gamma"):
                self.assertNotIn(secret, text)
            self.assert_no_secrets(text)

    def test_devices_and_guest(self) -> None:
        self.hosts(place("alpha", "leaf7"))
        server = self.make(PAIR, "alpha")
        self.assertEqual(
            {
                "v": 1,
                "asked": "switch",
                "policy": "required",
                "reached": "switch",
                "roles": {"gpu": 1, "vf": 1},
                "groups": [[1, {"gpu": 1, "vf": 1}]],
            },
            json.loads(self.metadata(server)[server_devices.KEY]),
        )
        found = self.position(server)
        (rail,) = found.rails
        told = json.loads(self.document(server))
        self.assertEqual(found.domains, told["fabric"])
        self.assertEqual(
            {"gpu": None, "vf": rail}, {each["role"]: each.get("rail") for each in told["devices"]}
        )
        leaf = found.domains["leaf"]
        self.assertEqual((0, f"Topology=default:{leaf}\n"), self.guest(server, "--format", "slurm"))
        status, text = self.guest(server, "--format", "json")
        self.assertEqual(0, status)
        self.assertEqual(found.domains, json.loads(text)["fabric"])
        self.assertEqual([rail], [each["rail"] for each in json.loads(text)["rails"]])
        status, text = self.guest(server)
        self.assertEqual(0, status)
        self.assertIn(f"leaf {leaf}\n", text)
        self.assertIn(f"rail {rail}: device", text)

    def test_where_it_is_switched_off(self) -> None:
        """What is there already goes when the server starts the next time."""
        self.hosts(place("alpha", "leaf7"))
        server = self.make(PAIR, "alpha")
        self.assertIn(server_devices.KEY, self.metadata(server))
        self.flags(server_metadata=False, group="hpc")
        self._reboot_server(server, hard=True)
        self.assertEqual({}, self.metadata(server))
        self.assertEqual({}, self.metadata(self.make(PAIR, "alpha")))

    def test_a_server_without_devices(self) -> None:
        """Its flavor only says how near the members of its group are."""
        self.hosts(place("alpha", "leaf7"))
        server = self.make({"hpc:fabric": "leaf"}, "alpha")
        self.assertEqual({position.KEY}, set(self.metadata(server)))
        found = self.position(server)
        self.assertEqual(
            ({"core", "spine", "block", "leaf"}, ()), (set(found.domains), found.rails)
        )

    def test_a_cloud_that_does_not_know(self) -> None:
        """Without a map, and with one that an earlier release has written."""
        self.hosts(place("alpha", "leaf7"), salt="")
        self.host("beta", SHAPE)
        for host in ("alpha", "beta"):
            server = self.make(ONE, host)
            self.assertNotIn(position.KEY, self.metadata(server))
            self.assertIn(server_devices.KEY, self.metadata(server))
            self.assertNotIn("fabric", json.loads(self.document(server)))
            status, text = self.guest(server)
            self.assertEqual(2, status)
            self.assertIn("does not say where this machine is", text)
        # A flavor without our keys, and what its user has written, is nobody's business.
        server = self._build_server(
            networks="none", host="alpha", flavor_id=self.make_flavor(STOCK)
        )
        server["metadata"] = {position.KEY: "mine"}
        made = self.admin_api.post_server({"server": server})
        self._wait_for_state_change(made, "ACTIVE")
        self.assertEqual({position.KEY: "mine"}, self.metadata(made))

    def test_the_conductor_may_not_know(self) -> None:
        """A cell whose conductor has no API database: the server starts all the same."""
        self.hosts(place("alpha", "leaf7"))
        ask = mock.Mock(side_effect=exception.NovaException("no API database here"))
        # Nova's own conductor asks the same, so only this project's question fails.
        nova_objects = SimpleNamespace(AggregateList=SimpleNamespace(get_by_host=ask))
        with mock.patch.object(fabric_position, "objects", nova_objects):
            server = self.make(ONE, "alpha")
        self.assertEqual("ACTIVE", server["status"])
        # For the metadata, and for the guest.
        self.assertEqual(2, ask.call_count)
        self.assertEqual({server_devices.KEY}, set(self.metadata(server)))
        (line,) = self.log_lines("do not get their place on the fabric")
        self.assertIn("no API database here", line)

    def test_nova_compute_asks_the_conductor(self) -> None:
        """A contract with Nova: nova-compute has no database, and this call needs none."""
        asked = []

        class Conductor:
            def object_class_action_versions(self, context, name, method, versions, args, keywords):
                asked.append((name, method, args, keywords))
                metadata = dict(aggregates_of(FabricMap([place("alpha", "l")]))[0].metadata)
                found = objects.Aggregate(metadata=metadata | {SALT_KEY: SALT})
                return objects.AggregateList(objects=[found])

        with mock.patch.object(objects_base.NovaObject, "indirection_api", Conductor()):
            found = fabric_position.read_fabric_position("alpha", "p1")
        self.assertEqual([("AggregateList", "get_by_host", ("alpha",), {})], asked)
        self.assertEqual({"core", "spine", "block", "leaf"}, set(found.domains))

    # -- a server's life ------------------------------------------------------

    def test_a_life(self) -> None:
        self.hosts(place("alpha", "leaf7"), place("beta", "leaf8"))
        server = self.make(ONE, "alpha")
        before = self.metadata(server)
        # What its user writes stays, and nobody goes by it.
        self.api.api_post(
            f"/servers/{server['id']}/metadata",
            {"metadata": {"mine": "x", position.KEY: '{"v":1,"leaf":"l-mine"}'}},
        )
        self._reboot_server(server, hard=True)
        self.assertEqual({**before, "mine": "x"}, self.metadata(server))
        # Another leaf after a move, and the former one after its revert.
        self._migrate_server(server)
        self.assertEqual("beta", self.host_of(server))
        moved = self.position(server).domains
        self.assertNotEqual(json.loads(before[position.KEY])["leaf"], moved["leaf"])
        self.assertEqual(moved, json.loads(self.document(server))["fabric"])
        self.assertEqual("x", self.metadata(server)["mine"])
        self.api.post_server_action(server["id"], {"revertResize": None})
        self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual({**before, "mine": "x"}, self.metadata(server))
        # A rebuild may bring other metadata.
        rebuild = {"imageRef": IMAGE, "metadata": {"mine": "y"}}
        self.api.post_server_action(server["id"], {"rebuild": rebuild})
        self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual({**before, "mine": "y"}, self.metadata(server))
        # Without our keys nothing is told, until they are back.
        resize = {"resize": {"flavorRef": self.make_flavor(STOCK)}}
        self.api.post_server_action(server["id"], resize)
        self._wait_for_state_change(server, "VERIFY_RESIZE")
        self.assertEqual({"mine": "y"}, self.metadata(server))
        self.api.post_server_action(server["id"], {"revertResize": None})
        self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual({**before, "mine": "y"}, self.metadata(server))
