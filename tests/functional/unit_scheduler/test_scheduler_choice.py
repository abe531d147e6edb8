# SPDX-License-Identifier: Apache-2.0
"""The choice on one host, without a scheduler around it."""

from __future__ import annotations

import copy

from nova import test
from nova.pci import request as pci_request
from nova.scheduler import host_manager
from oslo_config import cfg
from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import hosts, server
from nova_hpc.from_nova.profile import CloudProfile
from nova_hpc.placement.model import DeviceGroup, DeviceMiss, Request
from nova_hpc.placement.profile import DEFAULT
from nova_hpc_common.level import AffinityPolicy, Level
from scheduler_filters import choice, filter_log
from tests.functional import fixtures
from tests.functional.unit_scheduler.states import HostStates, guest_cell, pool, spec

CONF = cfg.CONF


class PlaceTest(HostStates):
    """One host, from its state to the candidate that is offered."""

    def setUp(self) -> None:
        super().setUp()
        hpc_conf.register_all_options(CONF)
        self.flags(spread_equal_sets=False, group="hpc")

    def place(self, host, asked, order: choice.ServerOrder | None = None) -> DeviceMiss | None:
        task = server.read_server_task(asked)
        view = hosts.read_host(host, task, {})
        before = dict(vars(host))
        outcome = choice.place_devices_on_host(host, order or self.order(asked), view)
        self.assertEqual(before, vars(host), "a choice is no offer")
        if isinstance(outcome, DeviceMiss):
            return outcome
        choice.put_choice_on_host(host, outcome)
        return None

    def order(self, asked, profile: CloudProfile | None = None) -> choice.ServerOrder:
        task = server.read_server_task(asked)
        sold = CloudProfile(DEFAULT) if profile is None else profile
        return choice.ServerOrder.of(asked, task, task.server.request({}), sold)

    def taken(self, host) -> list[str]:
        (candidate,) = host.allocation_candidates
        return [each for (each,) in candidate["mappings"].values()]

    def test_the_candidate_names_the_devices_that_were_chosen(self) -> None:
        host = self.host(pool(1), pool(2, numa=1), pool(3, numa=1))
        offered = self.offered(host, uuids.gpu1, uuids.gpu2)
        before = copy.deepcopy(offered)
        asked = spec(2)
        self.assertIsNone(self.place(host, asked))
        self.assertEqual({uuids.gpu2, uuids.gpu3}, set(self.taken(host)))
        (candidate,) = host.allocation_candidates
        self.assertEqual(
            {"node": {"resources": {"PCPU": 2}}}
            | {each: {"resources": {fixtures.GPU_CLASS: 1}} for each in (uuids.gpu2, uuids.gpu3)},
            candidate["allocations"],
        )
        self.assertEqual(before, offered, "Placement's own is left as it was")
        self.assertEqual(Level.NUMA, host.hpc_choice.devices.level)
        self.assertEqual((uuids.request,), host.hpc_choice.key)

    def aliases(self, *more: dict[str, str]) -> None:
        """The alias gpu, and others."""
        gpu = {"name": "gpu", "resource_class": fixtures.GPU_CLASS}
        self.flags(alias=[jsonutils.dumps(each) for each in (gpu, *more)], group="pci")
        self.flags(pci_in_placement=True, group="filter_scheduler")
        forget = getattr(pci_request.get_alias_from_config, "cache_clear", lambda: None)
        forget()
        self.addCleanup(forget)

    def test_a_device_with_an_alias_of_its_own_is_taken_last(self) -> None:
        """A plain GPU beside an H100 under one switch: who asks for a gpu gets the plain one."""
        self.aliases(
            {"name": "h100", "resource_class": fixtures.GPU_CLASS, "traits": "CUSTOM_H100"}
        )
        place = {"hpc_root": "pci0000:40", "hpc_switch": "0000:40:01.0"}
        host = self.host(pool(1, hpc_traits="CUSTOM_H100", **place), pool(2, **place))
        self.offered(host, uuids.gpu1)
        self.assertIsNone(self.place(host, spec()))
        self.assertEqual([uuids.gpu2], self.taken(host))
        self.assertEqual(1, host.hpc_choice.devices.score[9])
        # What the pools were read for before is known by the aliases of that time.
        self.aliases()
        self.offered(host, uuids.gpu1)
        self.assertIsNone(self.place(host, spec()))
        self.assertEqual([uuids.gpu1], self.taken(host))

    def test_an_alias_that_nova_refuses_serves_nothing(self) -> None:
        self.aliases({"name": "odd", "resource_class": fixtures.GPU_CLASS, "device_type": "odd"})
        host = self.host(pool(1))
        self.offered(host, uuids.gpu1)
        self.assertIsNone(self.place(host, spec()))
        self.assertEqual(0, host.hpc_choice.devices.score[9])

    def test_a_second_server_of_the_request_starts_from_placements_candidate(self) -> None:
        host = self.host(pool(1, count=2))
        self.offered(host, uuids.gpu1)
        self.assertIsNone(self.place(host, spec()))
        # Nova has claimed what was offered; nothing of it is of use any more.
        host.allocation_candidates = []
        self.assertIsNone(self.place(host, spec()))
        self.assertEqual([uuids.gpu1], self.taken(host))
        # But another request's candidate is none.
        other = spec()
        other.pci_requests.requests[0].request_id = uuids.another
        other.requested_resources[0].requester_id = f"{uuids.another}-0"
        host.allocation_candidates = []
        self.assertIn("no allocation candidate", self.place(host, other).operator)

    def test_a_miss_leaves_the_host_as_it_was(self) -> None:
        host = self.host(pool(1), pool(2, numa=1))
        offered = self.offered(host, uuids.gpu1, uuids.gpu2)
        miss = self.place(host, spec(2))
        self.assertIn("2 gpu free, but at most 1", miss.operator)
        self.assertEqual([offered], host.allocation_candidates)
        self.assertFalse(hasattr(host, "hpc_choice"))

    def test_a_pass_without_steps_judges_without_damage_and_says_so(self) -> None:
        """The devices are as near, the host comes after those that were measured."""
        hosts_ = [self.host(pool(1, count=2), pool(2, numa=1)) for _ in range(3)]
        for host in hosts_:
            self.offered(host, uuids.gpu1, uuids.gpu2)
        sold, asked = CloudProfile(DEFAULT), spec()
        late = self.order(asked, sold)
        late.work.left = 0
        self.assertIsNone(self.place(hosts_[0], asked, late))
        self.assertEqual(1, late.work.unmeasured)
        self.assertIsNone(self.place(hosts_[1], asked, self.order(asked, sold)))
        first, second = (host.hpc_choice for host in hosts_[:2])
        self.assertEqual(first.devices.level, second.devices.level)
        self.assertLess(second.rank, first.rank)
        # What another pass has measured is known, and costs no steps.
        again = self.order(asked, sold)
        again.work.left = 0
        self.assertIsNone(self.place(hosts_[2], asked, again))
        self.assertEqual(second.rank, hosts_[2].hpc_choice.rank)
        self.assertEqual(0, again.work.unmeasured)
        with self.assertLogs(filter_log.LOG.logger, "WARNING") as said:
            filter_log.log_unmeasured_hosts(late.work, asked)
            filter_log.log_unmeasured_hosts(again.work, asked)
        (line,) = said.output
        self.assertIn("1 hosts were judged without their loss", line)

    def test_what_nova_would_refuse_is_not_offered(self) -> None:
        """CPUs are free, but the pages beside the device are not."""
        host = self.host(pool(1))
        host.numa_topology.cells[0].mempages[1].used = 95
        offered = self.offered(host, uuids.gpu1)
        miss = self.place(host, spec(policy="required", numa_topology=guest_cell()))
        self.assertIsNotNone(miss)
        self.assertEqual([offered], host.allocation_candidates)
        # On the other node it is, for a device that may be anywhere.
        self.assertIsNone(
            self.place(self.with_offer(), spec(policy="preferred", numa_topology=guest_cell()))
        )

    def with_offer(self) -> host_manager.HostState:
        host = self.host(pool(1))
        self.offered(host, uuids.gpu1)
        return host


class SpreadTest(test.NoDBTestCase):
    """Every server has its own order of equal sets, always the same."""

    def setUp(self) -> None:
        super().setUp()
        hpc_conf.register_all_options(CONF)

    def turn(self, name: str) -> int | None:
        asked = spec()
        asked.instance_uuid = getattr(uuids, name)
        task = server.read_server_task(asked)
        group = DeviceGroup({"0": 1})
        wanted = Request(task.server.wants, (group,), Level.NUMA, AffinityPolicy.REQUIRED)
        return choice.ServerOrder.of(asked, task, wanted, CloudProfile(DEFAULT)).turn

    def test_servers_differ(self) -> None:
        turns = [self.turn(f"server{number}") for number in range(32)]
        self.assertEqual(turns, [self.turn(f"server{number}") for number in range(32)])
        self.assertGreater(len(set(turns)), 8)

    def test_it_can_be_switched_off(self) -> None:
        self.flags(spread_equal_sets=False, group="hpc")
        self.assertIsNone(self.turn("server"))
