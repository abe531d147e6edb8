# SPDX-License-Identifier: Apache-2.0
"""Server groups come to one domain, however their members are made."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from nova import objects
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional.api import client

from tests.functional.fabric_base import FabricTest


class CreateTest(FabricTest):
    """Members that are made one by one, or together."""

    def share(self, managers: Sequence[Any], asked: list[int]) -> None:
        """Let *managers* decide in turn, whichever of them a message reached."""
        plain = [manager._select_destinations for manager in managers]
        turns = itertools.count()

        def decide(*arguments: Any, **keywords: Any) -> Any:
            turn = next(turns) % len(plain)
            asked.append(turn)
            return plain[turn](*arguments, **keywords)

        for manager in managers:
            manager._select_destinations = decide

    def test_interleaved_single_creates(self) -> None:
        """As many groups as leaves, and each gets one for itself; two schedulers."""
        # Nova's start_service() allows one alone.
        second = self.useFixture(nova_fixtures.ServiceFixture("scheduler", "second")).service
        asked: list[int] = []
        self.share([self.scheduler_service.manager, second.manager], asked)
        flavor = self.make_flavor(fabric="leaf")
        groups = [self.make_group() for _ in range(self.LEAVES)]
        made: dict[str, list[Mapping[str, Any]]] = {group: [] for group in groups}
        hints = {"hpc_members": self.HOSTS}
        for _ in range(self.HOSTS):
            for group in groups:
                made[group].append(self.post(flavor, group, hints))
        leaves = {group: set(self.wait(servers)) for group, servers in made.items()}
        self.assertTrue(all(len(found) == 1 for found in leaves.values()), leaves)
        self.assertEqual(set(self.leaf.values()), set.union(*leaves.values()))
        self.assertEqual(
            [self.HOSTS] * self.LEAVES, [len(room.record.tickets) for room in self.rooms()]
        )
        self.assertEqual({0, 1}, set(asked))

    def test_multi_create(self) -> None:
        flavor = self.make_flavor(fabric="leaf")
        group = self.make_group()
        # One more than a leaf has is refused, and none of them stays.
        self.post(flavor, group, min_count=3, max_count=3)
        late = self.api.get_servers()
        self.assertEqual([None] * 3, self.wait(late))
        self.assertIn(
            "No leaf has room for the 3 members of the server group; hpc:fabric block or "
            "hpc:fabric_policy preferred or fewer members may help",
            self.fault(late[0]),
        )
        (line,) = self.log_lines("finds no leaf for the 3 members")
        self.assertIn("with room for 2 servers, of which 0 are kept", line)
        self.assertEqual([], self.rooms())
        for each in late:
            self.assertEqual({}, self._get_allocations_by_server_uuid(each["id"]))
        self.post(flavor, group, min_count=2, max_count=2)
        old = {each["id"] for each in late}
        servers = [each for each in self.api.get_servers(detail=False) if each["id"] not in old]
        (leaf,) = set(self.wait(servers))
        self.assertEqual({each["id"] for each in servers}, self.tickets())
        # Without a group they keep together, too, and off the places of others.
        self.boot(flavor, self.make_group(), {"hpc_members": 2})
        before = {each["id"] for each in self.api.get_servers(detail=False)}
        self.post(flavor, min_count=2, max_count=2)
        servers = [each for each in self.api.get_servers(detail=False) if each["id"] not in before]
        (other,) = set(self.wait(servers))
        taken = {leaf, *(self.leaf_of({"id": each}) for each in self.tickets())}
        self.assertEqual(set(self.leaf.values()) - taken, {other})

    @pytest.mark.slow
    def test_blocks_and_preferred(self) -> None:
        """A block takes the fewest leaves; preferred takes the next wider domain, recorded."""
        flavor = self.make_flavor(fabric="block")
        group = self.make_group()
        servers = [self.boot(flavor, group, {"hpc_members": 3}) for _ in range(3)]
        found = [self.leaf_of(each) for each in servers]
        self.assertEqual({"leaf0", "leaf1"}, set(found))
        self.assertEqual(found[0], found[1])
        for each in servers:
            self._delete_server(each)
        flavor = self.make_flavor(fabric="leaf", fabric_policy="preferred")
        group = self.make_group()
        servers = [self.boot(flavor, group, {"hpc_members": 3}) for _ in range(3)]
        self.assertEqual({"leaf0", "leaf1"}, {self.leaf_of(each) for each in servers})
        lines = self.log_lines("has its domain on the fabric now")
        self.assertIn("block ib/block0", lines[-1])
        # All hosts together are one, too.
        self.boot(flavor, self.make_group(), {"hpc_members": 9})
        self.assertIn("anywhere", self.log_lines("has its domain on the fabric now")[-1])

    @pytest.mark.slow
    def test_a_late_member_of_a_full_leaf(self) -> None:
        required = self.make_flavor(fabric="leaf")
        preferred = self.make_flavor(fabric="leaf", fabric_policy="preferred")
        group = self.make_group()
        first = [self.boot(required, group, {"hpc_members": 2}) for _ in range(2)]
        (leaf,) = {self.leaf_of(each) for each in first}
        late = self.boot(required, group, {"hpc_members": 4})
        self.assertEqual("ERROR", late["status"])
        self.assertIn("The leaf of the server group has no host left", self.fault(late))
        self.assertEqual(2, len(self.tickets()))
        (line,) = self.log_lines("4 hosts that fit are all elsewhere")
        self.assertIn(f"its domain is leaf ib/{leaf}", line)
        # Where that will do it is near: in the same block, where there is another leaf.
        late = self.boot(preferred, group, {"hpc_members": 4})
        self.assertEqual("ACTIVE", late["status"])
        if leaf != "leaf2":
            self.assertIn(self.leaf_of(late), {"leaf0", "leaf1"})
        self.assertEqual(1, len(self.log_lines("goes outside of the leaf")))

    @pytest.mark.slow
    def test_a_flavor_without_the_key_changes_nothing(self) -> None:
        flavor = self.make_flavor()
        group = self.make_group()
        servers = [self.post(flavor, group, {"hpc_members": "nonsense"}) for _ in range(6)]
        self.assertNotIn(None, self.wait(servers))
        self.assertEqual([], self.trees())


class HintTest(FabricTest):
    """What users may write into ``hpc_members``, and name as their group."""

    LEAVES = 1

    def test_what_is_refused(self) -> None:
        flavor = self.make_flavor(fabric="leaf")
        group = self.make_group()
        for wrong in ("-3", 10**9, "four", [], ["2", "3"], {"a": 1}):
            try:
                server = self.boot(flavor, group, {"hpc_members": wrong})
            except client.OpenStackApiException as error:
                # Nova's own answer to what is neither a string nor a list.
                self.assertEqual(500, error.response.status_code, wrong)
                continue
            self.assertEqual("ERROR", server["status"], wrong)
            self.assertIn(
                "The scheduler hint hpc_members must be one number from 1 to 4096",
                self.fault(server),
            )
        self.flags(fabric_max_members=2, group="hpc")
        self.assertIn("from 1 to 2", self.fault(self.boot(flavor, group, {"hpc_members": 3})))
        server = self.boot(flavor, None, {"hpc_members": 2})
        self.assertIn("name one with the hint group", self.fault(server))
        server = self.boot(self.make_flavor(fabric_policy="preferred"), group)
        self.assertIn("hpc:fabric_policy is set without hpc:fabric", self.fault(server))
        # A user gets 400 from Nova; an administrator may name any.
        theirs = objects.InstanceGroup(
            self.context,
            uuid="6f9a5d3e-1111-4222-8333-444455556666",
            project_id="another-project",
            user_id="somebody",
            name="theirs",
            policy="soft-affinity",
        )
        theirs.create()
        server = self.boot(flavor, theirs.uuid)
        self.assertEqual("ERROR", server["status"])
        self.assertIn("belongs to another project", self.fault(server))
        self.assertEqual([], self.trees())
        server = self.boot(flavor, group, {"hpc_members": "2"})
        self.assertEqual("ACTIVE", server["status"])
