# SPDX-License-Identifier: Apache-2.0
"""The base of the tests of ``openstack hpc gpu``: a small cloud, and what is true in it."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import fixtures

from nova_hpc_guest.gpu import records
from tests.functional.cluster_client import base
from tests.functional.cluster_client.base import IMAGE, NETWORK, Said
from tests.functional.gpu_client.filter_front import FilterFront


class TalkingFakeDriver(base.SmallFakeDriver):
    """A host whose servers say on their consoles what a test has them say."""

    consoles: ClassVar[dict[str, str]] = {}

    def get_console_output(self, context: Any, instance: Any) -> str:
        return self.consoles.get(instance.uuid, "")


class GpuClientTest(base.ClusterClientTest):
    """A cloud whose servers have addresses of their own, and security groups."""

    HOSTS = 2
    FRONT = FilterFront
    compute_driver = "fake.TalkingFakeDriver"

    def setUp(self) -> None:
        self.useFixture(fixtures.MonkeyPatch("nova.virt.fake.TalkingFakeDriver", TalkingFakeDriver))
        TalkingFakeDriver.consoles.clear()
        super().setUp()
        self.groups_before = set(self.neutron._security_groups)

    # -- the command -------------------------------------------------------

    def gpu(self, *words: str, status: int = 0, **keywords: Any) -> Said:
        """Run ``openstack hpc gpu ...``, which ends with *status*."""
        said = self.openstack("hpc", "gpu", *words, **keywords)
        self.assertEqual(status, said.status, said.err)
        return said

    @staticmethod
    def share_words(name: str = "sim", *more: str) -> tuple[str, ...]:
        """Words that create a share of a flavor without a GPU, which these hosts have not."""
        usual = ("--flavor", "one", "--image", IMAGE, "--network", NETWORK, "--engine", "pocl")
        return ("share", "create", name, *usual, "--force", *more)

    def shares(self) -> list[dict[str, Any]]:
        """The rows of ``share list``."""
        return self.gpu("share", "list", "--long", "-f", "json").json

    def show(self, name: str = "sim") -> dict[str, Any]:
        """What ``share show`` says."""
        return self.gpu("share", "show", name, "-f", "json").json

    def boot(self, *names: str) -> list[str]:
        """Servers without a GPU; their ids."""
        ids = []
        for name in names:
            body = {
                "name": name,
                "flavorRef": self.flavor,
                "imageRef": IMAGE,
                "networks": [{"uuid": self.neutron.network_1["id"]}],
            }
            server = self.api.post_server({"server": body})
            self._wait_for_state_change(server, "ACTIVE")
            ids.append(server["id"])
        return ids

    # -- the truth -----------------------------------------------------------

    def metadata(self, server: str) -> dict[str, str]:
        """A server's metadata."""
        return dict(self.admin_api.get_server(server)["metadata"])

    def filters(self) -> dict[str, dict[str, Any]]:
        """Security groups that were made, by their ids."""
        every = self.neutron._security_groups
        return {key: each for key, each in every.items() if key not in self.groups_before}

    def groups_of_server(self, server: str) -> set[str]:
        """Names of the security groups that a server's ports are in."""
        every = self.neutron._security_groups
        return {
            every[group]["name"]
            for port in self.neutron._ports.values()
            if port["device_id"] == server
            for group in port["security_groups"]
        }

    def wait_until_calm(self) -> None:
        """Nova ends what it was asked for, whoever asked."""
        for _ in range(600):
            if not {each["OS-EXT-STS:task_state"] for each in self.servers()} - {None}:
                return
            time.sleep(0.05)

    def assert_all_is_named(self) -> None:
        """Whatever there is of a share is in ``list``, with its owner."""
        rows = {row["ID"]: row for row in self.shares()}
        names = {server["id"]: server["name"] for server in self.servers()}
        for group in self.filters().values():
            self.assertIn(group["name"].removeprefix("hpc-gpu-").removesuffix("-clients"), rows)
        for server in self.servers():
            metadata = self.metadata(server["id"])
            if records.SHARE_KEY in metadata:
                self.assertIn(server["id"], rows)
            for client in filter(None, map(records.client_of_key, metadata)):
                listed = rows[server["id"]]["Clients"]
                self.assertTrue({client, names.get(client)} & set(listed), listed)
            for name in self.groups_of_server(server["id"]):
                if name.endswith("-clients"):
                    share = name.removeprefix("hpc-gpu-").removesuffix("-clients")
                    self.assertIn(server["name"], rows[share]["Clients"])

    def assert_no_share_left(self) -> None:
        """No trace of a share, in Nova or in Neutron."""
        self.assertEqual([], self.shares())
        self.assertEqual({}, self.filters())
        for server in self.servers():
            self.assertEqual([], [key for key in self.metadata(server["id"]) if "gpu" in key])
            self.assertEqual({"default"}, self.groups_of_server(server["id"]))
