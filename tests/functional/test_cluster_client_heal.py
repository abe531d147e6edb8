# SPDX-License-Identifier: Apache-2.0
"""Healers replace faulty members: each once, within their limits, and never half.

The tags are written as nova-compute writes them: rows of Nova's database. ``slow``: healers die at
each of their steps, and two heal at once.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from nova import context as nova_context
from nova import objects

from nova_hpc_common.wire.server_faults import FaultWord
from tests.functional.cluster_client import base

NIC = ("--nic", f"net-id={base.NETWORK}")
#: A healer of tests looks often.
SOON = ("--interval", "0.3")


class HealTest(base.ClusterClientTest):
    HOSTS = 3

    def make(self, members: int = 3, *words: str) -> dict[str, dict[str, Any]]:
        """A cluster of members with ports; returns its servers by name."""
        self.create("k", members, *NIC, *words)
        return self.by_name()

    def by_name(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self.servers()}

    def tag(self, server: str, word: FaultWord) -> None:
        """What nova-compute does when it sees a fault."""
        admin = nova_context.get_admin_context()
        tag = objects.Tag(context=admin, resource_id=server, tag=word.tag)
        tag.create()

    def untag(self, server: str, word: FaultWord) -> None:
        objects.Tag.destroy(nova_context.get_admin_context(), server, word.tag)

    def fail(self, server: str) -> None:
        self.admin_api.post_server_action(server, {"os-resetState": {"state": "error"}})

    def heal(self, *words: str, status: int = 0) -> list[str]:
        """Run a healer for one round; returns its lines."""
        return self.cluster("heal", "k", *SOON, *words, status=status).out.splitlines()

    def ports_of(self, server: str) -> set[str]:
        return {port["id"] for port in self.made_ports() if port["device_id"] == server}

    def program(self, name: str, text: str) -> str:
        path = self._folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)


class OneRoundTest(HealTest):
    def test_a_tagged_member_is_another_server_with_its_name_and_ports(self) -> None:
        before = self.make()
        self.assertIn("no member of k has to be replaced", self.heal()[-1])
        old = before["k-2"]["id"]
        ports = self.ports_of(old)
        self.tag(old, FaultWord.LINK)
        shown = self.cluster("show", "k", "-f", "json").json
        self.assertEqual({"k-2": ["link"]}, shown["faults"])
        (row,) = self.cluster("list", "--long", "-f", "json").json
        self.assertEqual(["k-2 link"], row["Faults"])
        server = self.openstack("hpc", "server", "show", "k-2", "-f", "json").json
        self.assertEqual(["link"], server["faults"])
        lines = self.heal("--dry-run", "--force", status=1)
        self.assertEqual("next: k-2 is replaced", lines[1])
        self.assertEqual(old, self.by_name()["k-2"]["id"])
        self.heal("--force")
        after = self.by_name()
        self.assertNotEqual(old, after["k-2"]["id"])
        self.assertEqual(ports, self.ports_of(after["k-2"]["id"]))
        for name in ("k-1", "k-3"):
            self.assertEqual(before[name]["id"], after[name]["id"])
        self.assert_complete("k", [1, 2, 3], ports_each=1)
        shown = self.cluster("show", "k", "-f", "json").json
        self.assertEqual(("ACTIVE", {}), (shown["state"], shown["faults"]))
