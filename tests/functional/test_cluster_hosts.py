# SPDX-License-Identifier: Apache-2.0
"""Members of ``openstack hpc cluster`` know each other: what Nova gives them, read by the guest."""

from __future__ import annotations

import base64
import email
import http.server
import io
import json
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from nova import context
from nova.api.metadata import base as metadata

from nova_hpc_guest import command, host_list
from tests.functional.cluster_client import base

OWN = b"#!/bin/sh\necho of the user \xc3\xa9\n"
_NIC = ("--nic", f"net-id={base.NETWORK}")


class ClusterHostsTest(base.ClusterClientTest):
    HOSTS = 2

    def setUp(self) -> None:
        super().setUp()
        self.give_each_port_an_address()
        self.own = Path(tempfile.mkdtemp(dir=self._folder)) / "user-data"
        self.own.write_bytes(OWN)
        self.words = ("--user-data", str(self.own))

    def parts_of(self, server: dict[str, Any]) -> list[tuple[str, bytes]]:
        data = base64.b64decode(server["OS-EXT-SRV-ATTR:user_data"])
        message = email.message_from_string(data.decode())
        return [
            (part.get_content_type(), part.get_payload(decode=True))
            for part in message.walk()
            if not part.is_multipart()
        ]

    def refresh(self, server: dict[str, Any]) -> Path:
        """The machine after the guest's command has asked Nova's metadata service."""
        own = metadata.get_metadata_by_instance_id(
            server["id"], "192.0.2.9", context.get_admin_context()
        )
        answer = own.lookup("/openstack/latest/meta_data.json")
        self.assertIsInstance(answer, bytes)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *words: object) -> None:
                pass

        root = self._folder / server["id"]
        (root / "etc").mkdir(parents=True, exist_ok=True)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as service:
            threading.Thread(target=service.serve_forever, args=(0.05,), daemon=True).start()
            url = f"http://127.0.0.1:{service.server_port}/"
            words = ("cluster", "refresh", "--metadata-url", url, "--root", str(root))
            self.assertEqual(0, command.main([*words]))
            service.shutdown()
        return root

    def assert_all_know_all(self, name: str, numbers: list[int]) -> None:
        servers = {server["name"]: server for server in self.servers()}
        names = [f"{name}-{number}" for number in numbers]
        self.assertEqual(sorted(names), sorted(servers))
        for server in servers.values():
            root = self.refresh(server)
            hosts = (root / "etc/nova-hpc/hosts").read_text()
            self.assertEqual(
                sorted(f"{each} slots=1" for each in names), sorted(hosts.splitlines())
            )
            resolved = dict(
                reversed(line.split()[:2]) for line in (root / "etc/hosts").read_text().splitlines()
            )
            keys = dict(
                line.split(" ssh-ed25519 ")
                for line in (root / "etc/nova-hpc/known_hosts").read_text().splitlines()
            )
            self.assertEqual(set(names), set(resolved))
            for each in names:
                (addresses,) = servers[each]["addresses"].values()
                self.assertEqual(resolved[each], addresses[0]["addr"])
                given = servers[each]["metadata"]["hpc_host_keys"].split()
                self.assertEqual(given[1], keys[f"{each},{resolved[each]}"])
        (row,) = self.cluster("list", "-f", "json").json
        self.assertEqual("ACTIVE", row["State"])

    def test_members_that_nova_makes_at_once(self) -> None:
        self.create("train", 2, "--network", base.NETWORK, *self.words)
        for server in self.servers():
            hook, own = self.parts_of(server)
            self.assertEqual("text/cloud-boothook", hook[0])
            self.assertEqual(("text/plain", OWN), own)
        self.assert_all_know_all("train", [1, 2])
        self.cluster("scale", "train", "--members", "3", *self.words)
        self.assert_all_know_all("train", [1, 2, 3])
        self.cluster("replace", "train", "train-1", *self.words)
        self.assert_all_know_all("train", [1, 2, 3])
        pairs = {server["metadata"]["hpc_host_keys"] for server in self.servers()}
        self.assertEqual(3, len(pairs))
        self.cluster("scale", "train", "--members", "1")
        (left,) = self.servers()
        self.assert_all_know_all("train", [int(left["name"].partition("-")[2])])

    def test_members_with_ports_are_told_when_they_are_made(self) -> None:
        """Who has a configuration drive alone is told once."""
        told = []
        app = self.front._nova

        def nova(environ, start):
            if (environ["REQUEST_METHOD"], environ["PATH_INFO"]) == ("POST", "/v2.1/servers"):
                body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
                environ["wsgi.input"] = io.BytesIO(body)
                told.append(json.loads(body)["server"]["metadata"])
            return app(environ, start)

        self.front._nova = nova
        self.create("ib", 2, *_NIC)
        self.assert_all_know_all("ib", [1, 2])
        lists = [host_list.read_host_list(host_list.from_items(items)) for items in told]
        self.assertEqual([[1, 2]] * 2, [[host.number for host in each.hosts] for each in lists])

    def test_without_hosts_nothing_is_added(self) -> None:
        self.create("plain", 1, "--no-hosts", *self.words)
        (server,) = self.servers()
        self.assertEqual(OWN, base64.b64decode(server["OS-EXT-SRV-ATTR:user_data"]))
        self.assertNotIn("hpc_hosts", server["metadata"])
        self.assertNotIn("hpc_host_keys", server["metadata"])

    def test_members_mount_also_those_that_come_later(self) -> None:
        words = ("--mount", "nfs:/export:/data", "--mount", "[2001:db8::9]:/:/opt/apps")
        self.create("train", 1, "--network", base.NETWORK, "--no-hosts", *words)
        self.cluster("scale", "train", "--members", "2")
        self.cluster("replace", "train", "train-1")
        servers = self.servers()
        self.assertEqual(["train-1", "train-2"], sorted(server["name"] for server in servers))
        for server in servers:
            ((kind, hook),) = self.parts_of(server)
            self.assertEqual("text/cloud-boothook", kind)
            for line in (
                "What=nfs:/export\nWhere=/data\n",
                "What=[2001:db8::9]:/\nWhere=/opt/apps",
            ):
                self.assertIn(line, hook.decode())
            self.assertNotIn("ssh", hook.decode())

    def test_a_mount_that_harms_is_refused_before_anything_is_made(self) -> None:
        self.front.requests.clear()
        for texts, status, why in (
            (("nfs:/x:/etc",), 2, "would hide files that members need"),
            (("6f0c:/data",), 2, "a share of Manila is attached by hand"),
            (("nfs:/x:/d", "nfs:/y:/d"), 1, "/d is mounted twice"),
        ):
            mounts = [word for text in texts for word in ("--mount", text)]
            said = self.create("bad", 1, "--network", base.NETWORK, *mounts, status=status)
            self.assertIn(why, " ".join(said.err.split()))
        self.assertNotIn("POST", " ".join(self.front.requests))

    def test_user_data_without_room_are_refused_before_anything_is_made(self) -> None:
        self.own.write_bytes(b"#!" + bytes(range(256)) * 190)
        said = self.create("big", 2, *self.words, "--no-hosts", status=0)
        self.cluster("delete", "big")
        self.front.requests.clear()
        self.own.write_bytes(b"#!" + os.urandom(48500))
        said = self.create("big", 2, *self.words, status=1)
        self.assertRegex(
            said.err, r"has \d{5} bytes in gzip and base64 .*longer than Nova takes: 65535"
        )
        self.own.write_bytes(b'{"ignition": {}}')
        said = self.create("big", 2, *self.words, status=1)
        self.assertIn("--no-hosts leaves them out", said.err)
        self.assertNotIn("POST", " ".join(self.front.requests))
        self.assert_nothing_left()

    @pytest.mark.slow
    def test_create_is_killed_while_members_are_told(self) -> None:
        words = ("create", "k", "--members", "2", "--flavor", "one", "--image", base.IMAGE)
        words += ("--network", base.NETWORK)
        self.cluster(*words)
        asked = list(self.front.requests)
        self.cluster("delete", "k")
        told = [at for at, asked_for in enumerate(asked, 1) if asked_for.endswith("/metadata")]
        self.assertEqual(2, len(told))
        for at in told:
            for before in (True, False):
                self.assertTrue(self.killed(at, before, words))
                (row,) = self.cluster("list", "--long", "-f", "json").json
                if row["State"] != "ACTIVE":
                    self.assertIn("do not have the newest host list", row["Reason"])
                    self.assertIn("create --resume k", row["Next"])
                self.cluster("create", "--resume", "k")
                self.assert_all_know_all("k", [1, 2])
                self.cluster("delete", "k")
                self.assert_nothing_left()
