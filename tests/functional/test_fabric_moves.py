# SPDX-License-Identifier: Apache-2.0
"""Members stay in their domain: replaced, moved, with their group deleted, and swept at the end."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from nova import objects
from nova.conductor import manager as conductor_manager

from nova_hpc.cluster.group_domain.records import ServerPresence, SweptProviders
from nova_hpc.from_nova import fabric_records
from nova_hpc_tools.readers import fabric_groups, server_requests
from tests.functional.fabric_base import FabricTest


class MoveTest(FabricTest):
    """Two leaves of three hosts; a group of two."""

    LEAVES = 2
    HOSTS = 3

    def setUp(self) -> None:
        super().setUp()
        self.flavor = self.make_flavor(fabric="leaf")
        self.group = self.make_group()
        self.servers = [self.boot(self.flavor, self.group, {"hpc_members": 2}) for _ in range(2)]
        (self.home,) = {self.leaf_of(each) for each in self.servers}

    def stop_host(self, server: dict) -> None:
        host = self.host_of(server)
        self.computes_[host].stop()
        (service,) = self.admin_api.get_services(host=host, binary="nova-compute")
        self.admin_api.put_service_force_down(service["id"], True)

    def test_moves(self) -> None:
        one, two = self.servers
        for action in ("migrate", "resize"):
            body = None
            if action == "resize":
                body = {"flavorRef": self.make_flavor(fabric="leaf")}
            before = self.host_of(one)
            self.api.post_server_action(one["id"], {action: body})
            self._wait_for_state_change(one, "VERIFY_RESIZE")
            self.assertNotEqual(before, self.host_of(one))
            self.assertEqual(self.home, self.leaf_of(one))
            self.api.post_server_action(one["id"], {"confirmResize": None})
            self._wait_for_state_change(one, "ACTIVE")
        self.api.post_server_action(one["id"], {"shelve": None})
        self._wait_for_server_parameter(one, {"status": "SHELVED_OFFLOADED"})
        # Another group does not get the place of a member that is shelved.
        self.boot(self.flavor, self.make_group(), {"hpc_members": 3})
        # The group and its hint are gone from now on.
        self.api.api_delete(f"/os-server-groups/{self.group}")
        self.api.post_server_action(one["id"], {"unshelve": None})
        self._wait_for_state_change(one, "ACTIVE")
        self.assertEqual(self.home, self.leaf_of(one))
        self.stop_host(two)
        self.api.post_server_action(two["id"], {"evacuate": {}})
        # Stopped there, from microversion 2.95 on.
        self._wait_for_migration_status(two, ["done"])
        self.assertEqual(self.home, self.leaf_of(two))
        self.assertEqual({self.ticket(one).root}, {self.ticket(each).root for each in self.servers})

    @pytest.mark.slow
    def test_no_room_in_the_domain(self) -> None:
        """A move is refused with the reason, and the server stays as it was."""
        self.boot(self.flavor, self.group, {"hpc_members": 3})
        one = self.servers[0]
        before = self.host_of(one)
        self.api.post_server_action(one["id"], {"migrate": None})
        self._wait_for_action_fail_completion(one, "migrate", "cold_migrate")
        found = self.admin_api.get_server(one["id"])
        self.assertEqual(("ACTIVE", before), (found["status"], self.host_of(one)))
        (line,) = self.log_lines("3 hosts that fit are all elsewhere")
        self.assertIn(f"leaf ib/{self.home}", line)
        self.assertIsNotNone(self.ticket(one))

    def test_deleted_members_are_replaced_in_the_domain(self) -> None:
        for each in self.servers:
            self._delete_server(each)
            again = self.boot(self.flavor, self.group, {"hpc_members": 2})
            self.assertEqual(self.home, self.leaf_of(again))
            self.servers = [*self.servers, again]
        # Without a member left the record is decided anew: here to where it was.
        for each in self.servers[-2:]:
            self._delete_server(each)
        self.assertEqual(self.home, self.leaf_of(self.boot(self.flavor, self.group)))

    @pytest.mark.slow
    def test_aggregates_that_hands_have_edited(self) -> None:
        """No host of it is in a leaf any more, and the scheduler goes on."""
        other = "leaf1" if self.home == "leaf0" else "leaf0"
        name = f"hpc-fabric:leaf:{other}"
        for key, value in (("hpc_fabric:version", "99"), ("hpc_fabric:leaf", " \t")):
            self.set_metadata(name, {key: value})
            server = self.boot(self.flavor, self.make_group(), {"hpc_members": 2})
            self.assertEqual("ERROR", server["status"], key)
        self.set_metadata(f"hpc-fabric:leaf:{self.home}", {"hpc_fabric:leaf": "renamed"})
        late = self.boot(self.flavor, self.group, {"hpc_members": 3})
        self.assertIn("The leaf of the server group has no host left", self.fault(late))
        self.assertNotEqual([], self.log_lines("Where hosts are on the fabric is not clear"))


class SweepTest(FabricTest):
    """Nothing is left of groups that have nobody any more."""

    LEAVES = 1

    @pytest.mark.slow
    def test_groups_that_come_to_nothing(self) -> None:
        """Members that find no host after their ticket, or go while they are built."""
        flavor = self.make_flavor(fabric="leaf")
        self.boot(flavor)
        for _ in range(4):
            # Deleted while it is built, or right after.
            server = self.post(flavor, self.make_group(), {"hpc_members": 1})
            self.api.delete_server(server["id"])
            self._wait_until_deleted(server)
        # Who decides sweeps before, so there is never more than the last of them.
        self.assertLessEqual(len(self.rooms()), 1)
        last = self.boot(flavor, self.make_group(), {"hpc_members": 1})
        self.assertEqual("ACTIVE", last["status"])
        self.assertEqual({last["id"]}, self.tickets())

    @pytest.mark.slow
    def test_a_group_deleted_in_between(self) -> None:
        """Before its member is scheduled, and while the scheduler is at it."""
        flavor = self.make_flavor(fabric="leaf")
        conductor = conductor_manager.ComputeTaskManager
        scheduler = self.scheduler_service.manager
        for owner, name in (
            (conductor, "_schedule_instances"),
            (scheduler, "_select_destinations"),
        ):
            group = self.make_group()
            plain = getattr(owner, name)

            def first(*arguments: Any, group: str = group, plain: Any = plain, **keywords: Any):
                self.api.api_delete(f"/os-server-groups/{group}")
                return plain(*arguments, **keywords)

            with mock.patch.object(owner, name, first):
                server = self.boot(flavor, group, {"hpc_members": 2})
            self.assertEqual("ACTIVE", server["status"], name)
            # It was decided for a group that is no more; the server keeps its place.
            self.assertEqual({server["id"]}, self.tickets(), name)
            self._delete_server(server)
        fabric_groups.sweep_group_domains(self.context)
        self.assertEqual([], self.trees())

    def test_who_is_gone(self) -> None:
        flavor = self.make_flavor(fabric="leaf")
        one, two = (self.boot(flavor, self.make_group()) for _ in range(2))
        group = self.make_group()
        failed = self.boot(flavor, group, {"hpc_members": 2})
        self.assertEqual("ERROR", failed["status"])
        # What explain is told of it.
        found = server_requests.find_server_request(failed["id"])
        self.assertEqual((group, 2, ()), (found.group, found.members, found.notes))
        servers = fabric_records.ServerMappings(self.context)
        nobody = "00000000-0000-4000-8000-000000000000"
        mapping = objects.InstanceMapping.get_by_instance_uuid(self.context, two["id"])
        mapping.queued_for_delete = True
        mapping.save()
        self.assertEqual(
            {
                one["id"]: ServerPresence.THERE,
                two["id"]: ServerPresence.LEAVING,
                failed["id"]: ServerPresence.GONE,
                nobody: ServerPresence.GONE,
            },
            servers.states([one["id"], two["id"], failed["id"], nobody]),
        )
        # The one that is marked has its allocation, so it is still there.
        self.assertEqual(SweptProviders(), fabric_groups.sweep_group_domains(self.context).swept)
        self.assertEqual({one["id"], two["id"]}, self.tickets())
        self._delete_server(one)
        self.assertEqual(
            SweptProviders(1, 1, 1), fabric_groups.sweep_group_domains(self.context).swept
        )
        mapping.queued_for_delete = False
        mapping.save()
        self._delete_server(two)
        found = fabric_groups.sweep_group_domains(self.context)
        self.assertEqual((SweptProviders(1, 1, 1), 1), (found.swept, found.domains))
        self.assertEqual([], self.trees())
