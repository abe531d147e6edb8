# SPDX-License-Identifier: Apache-2.0
"""Every way in which a server reaches the scheduler."""

from __future__ import annotations

import gc
import json
import weakref
from unittest import mock

import pytest
from nova.scheduler.manager import SchedulerManager

from nova_hpc.from_nova import placement_answer
from nova_hpc_common.level import Level
from scheduler_filters import again, hpc_topology_filter
from tests.functional import base, fixtures
from tests.functional.fixtures import Shape, Switch

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}


class MultiCreateTest(base.HpcServersTest):
    """Several servers in one request."""

    def create_many(self, flavor: str, count: int, state: str, **hints: object) -> list[dict]:
        body = self._build_server(flavor_id=flavor, networks="none")
        body |= {"min_count": count, "max_count": count, "return_reservation_id": True}
        request = {"server": body}
        if hints:
            request["os:scheduler_hints"] = hints
        answer = self.api.api_post("/servers", request).body
        servers = self.api.get_servers(
            search_opts={"reservation_id": answer["reservation_id"], "all_tenants": 1}
        )
        self.assertEqual(count, len(servers))
        return [self._wait_for_state_change(each, state) for each in servers]

    def test_aligned_across_hosts(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=2))
        self.start_host("two", fixtures.two_switches(gpus=2))
        servers = self.create_many(self.make_flavor(PAIR), 4, "ACTIVE")
        self.assertEqual(0, self.scattered(servers))
        self.assertEqual([2] * 4, [len(self.devices_of(each)) for each in servers])
        self.assert_given_once()

    def test_functions_of_one_adapter(self) -> None:
        self.start_host("one", Shape((Switch(gpus=0, pfs=1, vfs=6),)))
        flavor = self.make_flavor({"pci_passthrough:alias": "vf:2", "hpc:affinity": "switch"})
        servers = self.create_many(flavor, 3, "ACTIVE")
        self.assertEqual([2] * 3, [len(self.devices_of(each)) for each in servers])
        self.assert_given_once()

    def test_all_or_nothing(self) -> None:
        """One too many: none is built, and nothing stays claimed."""
        self.start_host("one", Shape((Switch(gpus=2), Switch(gpus=1), Switch(gpus=1))))
        servers = self.create_many(self.make_flavor(PAIR), 2, "ERROR")
        for server in servers:
            self.assertIn("No valid host was found", self.fault(server))
            self.assertEqual({}, self._get_allocations_by_server_uuid(server["id"]))
        self.assertIs(Level.SWITCH, self.level_of(self.boot(self.make_flavor(PAIR))))

    def alternates(self, shape: Shape, count: int) -> list[list[tuple[str, set[str]]]]:
        """Host and devices of each server's alternates, where it would go if it failed."""
        for name in ("one", "two", "three"):
            self.start_host(name, shape)
        given = []
        plain = SchedulerManager._select_destinations

        def spy(*arguments, **keywords):
            given.append(plain(*arguments, **keywords))
            return given[-1]

        with mock.patch.object(SchedulerManager, "_select_destinations", spy):
            self.create_many(self.make_flavor(PAIR), count, "ACTIVE")
        (selections,) = given
        found = []
        for one in selections:
            candidates = [json.loads(each.allocation_request) for each in one]
            found.append(
                [
                    (each.service_host, {p for m in ar["mappings"].values() for p in m})
                    for each, ar in zip(one, candidates, strict=True)
                ]
            )
        devices = [device for one in found for _, each in one for device in self.gpus(each)]
        self.assertEqual(len(set(devices)), len(devices), "a device is promised twice")
        return [one[1:] for one in found]

    def gpus(self, providers: set[str]) -> list[str]:
        roots = {self._get_provider_uuid_by_name(name) for name in self.shapes}
        return sorted(providers - roots)

    def test_alternates_of_a_request_name_devices_of_their_own(self) -> None:
        found = self.alternates(fixtures.two_switches(gpus=2), 2)
        self.assertEqual([2, 2], [len(one) for one in found])

    def test_a_host_is_the_alternate_of_as_many_as_it_has_room_for(self) -> None:
        found = self.alternates(Shape((Switch(gpus=2),)), 2)
        self.assertEqual([1, 0], [len(one) for one in found])

    def test_nothing_of_a_request_waits_for_the_collector(self) -> None:
        """The answer of Placement goes with the request, and so do host states and choices."""
        self.start_host("one", fixtures.two_switches(gpus=2))
        kept: list[weakref.ref[object]] = []

        def noted(make):
            def make_noted(*arguments):
                made = make(*arguments)
                kept.append(weakref.ref(made))
                return made

            return make_noted

        gc.disable()
        self.addCleanup(gc.enable)
        with (
            mock.patch.object(
                placement_answer, "PlacementAnswer", noted(placement_answer.PlacementAnswer)
            ),
            mock.patch.object(hpc_topology_filter, "ChooseAgain", noted(again.ChooseAgain)),
        ):
            self.create_many(self.make_flavor(PAIR), 2, "ACTIVE")
        self.assertEqual(3, len(kept), "an answer, and a choice for each server")
        self.assertEqual([None] * len(kept), [each() for each in kept])

    def test_anti_affinity(self) -> None:
        for name in ("one", "two", "three"):
            self.start_host(name, fixtures.two_switches(gpus=2))
        group = self.api.post_server_groups({"name": "apart", "policy": "anti-affinity"})
        servers = self.create_many(self.make_flavor(PAIR), 3, "ACTIVE", group=group["id"])
        self.assertEqual(3, len({self.host_of(each) for each in servers}))
        self.assertEqual(0, self.scattered(servers))


class DestinationTest(base.HpcServersTest):
    """Servers for a certain host."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host("good", fixtures.two_switches(gpus=2))
        self.start_host("bad", fixtures.two_switches(gpus=1))
        self.flavor = self.make_flavor(PAIR)

    def test_host_runs_the_filter(self) -> None:
        server = self.boot(self.flavor, host="good")
        self.assertEqual("good", self.host_of(server))
        self.assertIs(Level.SWITCH, self.level_of(server))
        server = self.boot(self.flavor, host="bad", state="ERROR")
        self.assertIn("switch", self.fault(server))

    def test_az_host_skips_the_filter(self) -> None:
        """The node's own check is what guards this way in."""
        with mock.patch.object(
            hpc_topology_filter.HpcTopologyFilter, "filter_all", side_effect=AssertionError
        ) as called:
            server = self.boot(self.flavor, az="nova:bad")
        called.assert_not_called()
        self.assertEqual("bad", self.host_of(server))
        self.assertIs(Level.NUMA, self.level_of(server))


class WeigherTest(base.HpcServersTest):
    """Which of several hosts is taken."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host("loose", fixtures.two_switches(gpus=4))
        self.start_host("tight", fixtures.two_switches(gpus=2))

    def test_tightest_fit_wins(self) -> None:
        flavor = self.make_flavor(PAIR)
        self.assertEqual(["tight", "tight"], [self.host_of(self.boot(flavor)) for _ in range(2)])
        self.assertEqual("loose", self.host_of(self.boot(flavor)))

    def in_group(self, policy: str, *flavors: str) -> list[str]:
        """The hosts of servers of one server group, made one after the other."""
        group = self.api.post_server_groups({"name": policy, "policy": policy})
        found = []
        for flavor in flavors:
            body = self._build_server(flavor_id=flavor, networks="none")
            request = {"server": body, "os:scheduler_hints": {"group": group["id"]}}
            server = self._wait_for_state_change(self.api.post_server(request), "ACTIVE")
            found.append(self.host_of(server))
        return found

    def test_soft_anti_affinity_outranks_packing(self) -> None:
        """What the user asked for decides first, packing among what is left."""
        flavor = self.make_flavor(PAIR)
        self.assertEqual(["tight", "loose"], self.in_group("soft-anti-affinity", flavor, flavor))
        # Both hosts have none of another group.
        self.assertEqual(["tight"], self.in_group("soft-anti-affinity", flavor))

    def test_soft_affinity_outranks_packing(self) -> None:
        """Only one host has three GPUs under one switch."""
        flavor = self.make_flavor(PAIR)
        large = self.make_flavor(PAIR | {"pci_passthrough:alias": "gpu:3"})
        self.assertEqual(["loose", "loose"], self.in_group("soft-affinity", large, flavor))

    def test_a_group_that_is_deleted_meanwhile(self) -> None:
        """While the filter works, and before the node looks: the server is as if without it."""
        flavor = self.make_flavor(PAIR)
        plain = self.topology_filter().filter_all
        for policy in ("soft-anti-affinity", "affinity"):

            def delete(hosts, spec):
                for group in self.api.get_server_groups():
                    self.api.delete_server_group(group["id"])
                return plain(hosts, spec)

            with mock.patch.object(self.topology_filter(), "filter_all", delete):
                self.assertEqual(["tight"], self.in_group(policy, flavor))
            self.assertEqual([], self.api.get_server_groups())
        self.assertEqual([], self.log_lines("Traceback|failed; the server is refused"))

    def test_spreading_does_not_turn_the_wish_round(self) -> None:
        self.flags(packing_weight_multiplier=-10000.0, group="hpc")
        flavor = self.make_flavor(PAIR)
        self.assertEqual(["loose", "tight"], self.in_group("soft-anti-affinity", flavor, flavor))

    def test_packing_before_the_wish(self) -> None:
        """The operator turns it round."""
        self.flags(weighers_before_packing=[], group="hpc")
        self.restart_scheduler()
        flavor = self.make_flavor(PAIR)
        self.assertEqual(["tight", "tight"], self.in_group("soft-anti-affinity", flavor, flavor))

    def test_a_wish_that_the_operator_does_not_weigh(self) -> None:
        self.flags(soft_anti_affinity_weight_multiplier=0.0, group="filter_scheduler")
        flavor = self.make_flavor(PAIR)
        self.assertEqual(["tight", "tight"], self.in_group("soft-anti-affinity", flavor, flavor))

    def test_aggregate_overrides_the_multiplier(self) -> None:
        aggregate = self._create_aggregate("spread")
        self.admin_api.add_host_to_aggregate(aggregate, "tight")
        self.admin_api.post_aggregate_action(
            aggregate, {"set_metadata": {"metadata": {"hpc_packing_weight_multiplier": "-100"}}}
        )
        self.assertEqual("loose", self.host_of(self.boot(self.make_flavor(PAIR))))


@pytest.mark.slow
class FiftyHostsTest(base.HpcServersTest):
    """The limit of candidates does not hide hosts."""

    HOSTS = 50

    def test_all_hosts_are_considered(self) -> None:
        self.assertEqual(100, self.CANDIDATES)
        shape = fixtures.two_switches(gpus=2)
        fits = fixtures.Shape((Switch(gpus=3), Switch(gpus=1)))
        for index in range(self.HOSTS):
            # Only the last one has three under one switch.
            self.start_host(f"host{index:02}", fits if index == self.HOSTS - 1 else shape)
        seen: set[str] = set()
        plain = hpc_topology_filter.HpcTopologyFilter.filter_all

        def spy(this, hosts, spec):
            hosts = list(hosts)
            seen.update(host.host for host in hosts)
            return plain(this, hosts, spec)

        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:3", "hpc:affinity": "switch"})
        with mock.patch.object(hpc_topology_filter.HpcTopologyFilter, "filter_all", spy):
            server = self.boot(flavor)
        self.assertEqual(self.HOSTS, len(seen))
        self.assertEqual(f"host{self.HOSTS - 1}", self.host_of(server))
        self.assertEqual(3, len(self.devices_of(server)))
