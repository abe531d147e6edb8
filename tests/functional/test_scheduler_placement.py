# SPDX-License-Identifier: Apache-2.0
"""What the scheduler asks Placement, and what becomes of a claim that comes too late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from nova.scheduler.client.report import SchedulerReportClient
from nova.scheduler.manager import SchedulerManager
from oslo_utils import uuidutils

from nova_hpc.from_nova.contention import CONTENTION
from nova_hpc_common.level import Level
from tests.functional import base, fixtures
from tests.functional.fixtures import Shape, Switch

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}


class PlacementTest(base.HpcServersTest):
    """A scheduler whose requests to Placement are noted."""

    def setUp(self) -> None:
        super().setUp()
        self.asked: list[str] = []
        plain = SchedulerReportClient.get

        def spy(client: Any, url: str, **keywords: Any) -> Any:
            self.asked.append(url)
            return plain(client, url, **keywords)

        patch = mock.patch.object(SchedulerReportClient, "get", spy)
        patch.start()
        self.addCleanup(patch.stop)

    def questions(self) -> list[str]:
        """What was asked about many hosts, or about what is free on one."""
        return [
            url
            for url in self.asked
            if url.startswith("/allocation_candidates")
            or (url.startswith("/resource_providers?") and "resources=" in url)
        ]

    def create_many(self, flavor: str, count: int) -> list[dict[str, Any]]:
        body = self._build_server(flavor_id=flavor, networks="none")
        body |= {"min_count": count, "max_count": count, "return_reservation_id": True}
        answer = self.api.api_post("/servers", {"server": body}).body
        servers = self.api.get_servers(
            search_opts={"reservation_id": answer["reservation_id"], "all_tenants": 1}
        )
        return [self._wait_for_state_change(each, "ACTIVE") for each in servers]

    def before_claims(self, rival: Callable[[Sequence[Any]], None]) -> None:
        """Let *rival* act on the hosts of the first pass, when the filters have chosen."""
        plain = SchedulerManager._get_sorted_hosts
        done: list[bool] = []

        def sorted_hosts(*arguments: Any, **keywords: Any) -> Any:
            hosts = plain(*arguments, **keywords)
            if not done:
                done.append(True)
                rival(hosts)
            return hosts

        patch = mock.patch.object(SchedulerManager, "_get_sorted_hosts", sorted_hosts)
        patch.start()
        self.addCleanup(patch.stop)

    def take(self, hosts: Sequence[Any], devices: int) -> None:
        """Another scheduler's claim: devices that the first host offers."""
        offered = hosts[0].allocation_candidates[0]["mappings"]
        chosen = [found[0] for group, found in offered.items() if group][:devices]
        body = {
            "allocations": {each: {"resources": {fixtures.GPU_CLASS: 1}} for each in chosen},
            "project_id": uuidutils.generate_uuid(),
            "user_id": uuidutils.generate_uuid(),
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
        }
        url = f"/allocations/{uuidutils.generate_uuid()}"
        self.assertEqual(204, self.placement.put(url, body, version="1.38").status)


class OneLookTest(PlacementTest):
    """Placement is asked for candidates, once, and for nothing else."""

    #: More than there are: an answer that was cut off is looked into, from time to time.
    CANDIDATES = 1000

    def test_one_server_of_two_kinds_of_devices(self) -> None:
        for name in ("one", "two"):
            self.start_host(name, Shape((Switch(gpus=2, pfs=1, vfs=4),)))
        specs = {"pci_passthrough:alias": "gpu:2,vf:2", "hpc:affinity": "switch"}
        self.boot(self.make_flavor(specs))
        (url,) = self.questions()
        self.assertTrue(url.startswith("/allocation_candidates"))

    def test_four_servers_of_one_request(self) -> None:
        """What the first have claimed is known, though nobody asks again."""
        self.start_host("one", Shape((Switch(gpus=4, pfs=1, vfs=4), Switch(gpus=4, pfs=1, vfs=4))))
        specs = {"pci_passthrough:alias": "gpu:2,vf:2", "hpc:affinity": "switch"}
        specs["hpc:group"] = "gpu:2,vf:2"
        servers = self.create_many(self.make_flavor(specs), 4)
        self.assertEqual([4] * 4, [len(self.devices_of(each)) for each in servers])
        self.assertEqual(0, self.scattered(servers))
        self.assert_given_once()
        self.assertEqual(1, len(self.questions()))


class LostClaimTest(PlacementTest):
    """Another scheduler claims what was chosen, before this one does."""

    def test_other_devices_of_the_same_host(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=2))
        self.before_claims(lambda hosts: self.take(hosts, 1))
        server = self.boot(self.make_flavor(PAIR))
        self.assertIs(Level.SWITCH, self.level_of(server))
        self.assert_no_pci_healing("one")
        # The candidates, and the one host again.
        self.assertEqual(2, len(self.questions()))
        self.assertEqual(4, CONTENTION.hosts)

    def test_a_host_without_others_is_given_up(self) -> None:
        """One GPU is left under each switch: the level is kept, and the next host serves."""
        self.start_host("one", Shape((Switch(gpus=2),)))
        self.start_host("two", Shape((Switch(gpus=2),)))
        taken: list[str] = []

        def rival(hosts: Sequence[Any]) -> None:
            taken.append(hosts[0].host)
            self.take(hosts, 1)

        self.before_claims(rival)
        server = self.boot(self.make_flavor(PAIR))
        self.assertNotEqual(taken, [self.host_of(server)])
        self.assertIs(Level.SWITCH, self.level_of(server))

    def test_the_next_server_of_the_request_knows(self) -> None:
        """It is not offered what somebody else has claimed since."""
        self.start_host("one", Shape((Switch(gpus=2), Switch(gpus=2), Switch(gpus=2))))
        self.before_claims(lambda hosts: self.take(hosts, 2))
        servers = self.create_many(self.make_flavor(PAIR), 2)
        self.assertEqual(0, self.scattered(servers))
        self.assertEqual(2, len(self.questions()))

    def test_nothing_is_left(self) -> None:
        self.start_host("one", Shape((Switch(gpus=2),)))
        self.before_claims(lambda hosts: self.take(hosts, 1))
        server = self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertIn("No valid host was found", self.fault(server))
        self.assertEqual({}, self._get_allocations_by_server_uuid(server["id"]))


class ContendedTest(PlacementTest):
    """Schedulers that lose claims choose among several good hosts, in turn of their own."""

    HOSTS = ("one", "two", "three", "four")

    def setUp(self) -> None:
        super().setUp()
        for each in self.HOSTS:
            self.start_host(each, Shape((Switch(gpus=2), Switch(gpus=2))))
        self.single = self.make_flavor({"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"})
        self.first = self.host_of(self.boot(self.single))

    def hosts_of(self, count: int) -> list[str]:
        return [self.host_of(self.boot(self.single)) for _ in range(count)]

    def test_one_that_loses_none_packs(self) -> None:
        self.assertEqual([self.first] * 3, self.hosts_of(3))

    def test_one_that_loses_some_spreads(self) -> None:
        for _ in range(4):
            CONTENTION.lost()
        self.assertLess(1, len(set(self.hosts_of(6))))

    def test_servers_of_one_request_stay_together(self) -> None:
        for _ in range(4):
            CONTENTION.lost()
        servers = self.create_many(self.single, 2)
        self.assertEqual(1, len({self.host_of(each) for each in servers}))

    def test_what_the_flavor_asks_for_is_kept(self) -> None:
        """No host that is worse for the server is among the best, however many are lost."""
        for _ in range(4):
            CONTENTION.lost()
        preferred = {**PAIR, "hpc:affinity_policy": "preferred"}
        for _ in range(6):
            server = self.boot(self.make_flavor(preferred))
            self.assertIs(Level.SWITCH, self.level_of(server))
