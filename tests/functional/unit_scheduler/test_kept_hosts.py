# SPDX-License-Identifier: Apache-2.0
"""Host states of records that have not changed: what Nova would build, and nobody else's."""

from __future__ import annotations

import concurrent.futures
import datetime
import random
from collections.abc import Callable, Iterable
from unittest import mock

from nova import context as nova_context
from nova import exception, objects, test
from nova.scheduler import host_manager
from oslo_config import cfg
from oslo_db import exception as db_exception
from oslo_serialization import jsonutils
from oslo_utils import uuidutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import hosts, kept_hosts, server
from nova_hpc.from_nova.kept_hosts import KEPT_HOSTS
from nova_hpc.from_nova.patches import host_reads
from nova_hpc.from_nova.patches import scheduler as scheduler_patches
from tests.functional import fixtures
from tests.functional.unit_scheduler import states

CONF = cfg.CONF

START = datetime.datetime(2026, 1, 1, 12)


def server_spec() -> objects.RequestSpec:
    """A server with a device and two dedicated CPUs, as it is taken from a host."""
    spec = states.spec(numa_topology=states.guest_cell())
    spec.requested_resources[0].provider_uuids = [uuids.gpu1]
    spec.flavor = objects.Flavor(
        flavorid="f",
        extra_specs={"hpc:affinity": "numa"},
        **{"vcpus": 2, "memory_mb": 64, "root_gb": 1, "ephemeral_gb": 0, "swap": 0},
    )
    return spec


class KeptHostsTest(test.TestCase):
    """Two cells with databases of their own; Nova's own host manager."""

    NUMBER_OF_CELLS = 2

    def setUp(self) -> None:
        super().setUp()
        hpc_conf.register_all_options(CONF)
        scheduler_patches.install_scheduler_patches()
        self.flags(track_instance_changes=False, group="filter_scheduler")
        self.useFixture(
            fixtures.fixtures.MockPatchObject(
                host_manager.HostManager, "_get_instance_info", lambda *_: {}
            )
        )
        KEPT_HOSTS.clear()
        self.addCleanup(KEPT_HOSTS.clear)
        self.now = START
        self.useFixture(
            fixtures.fixtures.MonkeyPatch("oslo_utils.timeutils.utcnow", lambda *_, **__: self.now)
        )
        self.context = nova_context.get_admin_context()
        self.random = random.Random(1)
        self.records: list[objects.ComputeNode] = []
        self.manager = host_manager.HostManager()
        #: uuids of records that were read as a whole.
        self.read: list[str] = []
        plain_read = objects.ComputeNodeList._db_compute_node_get_all_by_uuids

        def spy(context: object, compute_uuids: list[str], **keywords: object) -> object:
            self.read += compute_uuids
            return plain_read(context, compute_uuids, **keywords)

        self.useFixture(
            fixtures.fixtures.MockPatchObject(
                objects.ComputeNodeList, "_db_compute_node_get_all_by_uuids", staticmethod(spy)
            )
        )

    def cell(self, name: str) -> object:
        return nova_context.target_cell(self.context, self.cell_mappings[name])

    def make_service(self, host: str, cell: str) -> None:
        with self.cell(cell) as within:
            objects.Service(
                within, host=host, binary="nova-compute", topic="compute", report_count=1
            ).create()

    def make_record(
        self, host: str, cell: str = "cell1", uuid: str | None = None, service: bool = True
    ) -> objects.ComputeNode:
        """A record with what records may have or lack, and its service."""
        if service:
            self.make_service(host, cell)
        draw = self.random.randrange
        with self.cell(cell) as within:
            record = objects.ComputeNode(
                within,
                uuid=uuid or uuidutils.generate_uuid(),
                host=host,
                hypervisor_hostname=f"node of {host}",
                vcpus=64,
                vcpus_used=draw(64),
                memory_mb=65536,
                memory_mb_used=draw(65536),
                free_ram_mb=draw(-10, 65536),
                local_gb=100,
                local_gb_used=draw(100),
                free_disk_gb=None if draw(8) == 0 else draw(100),
                disk_available_least=draw(200) if draw(2) else None,
                hypervisor_type="QEMU",
                hypervisor_version=8002000,
                running_vms=draw(9),
                current_workload=0,
                cpu_info=jsonutils.dumps({"model": draw(3)}),
                host_ip="192.0.2.1",
                metrics=jsonutils.dumps([]),
                stats={"num_instances": str(draw(9)), "failed_builds": str(draw(3))}
                if draw(4)
                else None,
                supported_hv_specs=[objects.HVSpec.from_list(["x86_64", "kvm", "hvm"])]
                if draw(4)
                else [],
                numa_topology=states.topology(draw(1, 3))._to_json() if draw(3) else None,
                pci_device_pools=objects.PciDevicePoolList(
                    objects=[
                        states.pool(index, numa=draw(2), count=draw(1, 5))
                        for index in range(draw(5))
                    ]
                )
                if draw(8)
                else None,
                cpu_allocation_ratio=4.0,
                ram_allocation_ratio=1.0,
                disk_allocation_ratio=1.0,
            )
            record.create()
        self.records.append(record)
        return record

    def change(self, record: objects.ComputeNode, **fields: object) -> None:
        for name, value in fields.items():
            setattr(record, name, value)
        record.save()

    def settle(self, seconds: float = 60.0) -> None:
        self.now += datetime.timedelta(seconds=seconds)

    def ask(
        self, *names: str, hpc: bool = True, manager: object = None
    ) -> list[host_manager.HostState]:
        """Host states for a request; by default of all records, and of devices' providers."""
        spec = states.spec()
        if not hpc:
            spec.flavor.extra_specs = {}
        asked = list(names) or [record.uuid for record in self.records]
        self.read.clear()
        found = (manager or self.manager).get_host_states_by_uuids(
            self.context, [*asked, uuids.device], spec
        )
        return list(found)

    def assert_as_nova(self) -> None:
        """That a request sees what Nova shows one without ``hpc:`` keys."""
        seen = states.content(self.ask())
        self.assertEqual(states.content(self.ask(hpc=False)), seen)

    def settled_hosts(self, count: int = 3) -> list[host_manager.HostState]:
        """So many hosts, which are kept."""
        for number in range(count):
            record = self.make_record(f"host{number}")
            self.change(
                record,
                free_disk_gb=50,
                numa_topology=states.topology()._to_json(),
                pci_device_pools=objects.PciDevicePoolList(objects=[states.pool(1, count=4)]),
            )
        self.settle()
        self.ask()
        self.assertEqual(count, len(KEPT_HOSTS))
        return sorted(self.ask(), key=lambda state: state.host)

    # What is seen.

    def test_the_same_states_as_nova(self) -> None:
        for number in range(40):
            record = self.make_record(f"host{number}", f"cell{1 + number % 2}")
            if number % 5:
                self.change(record, running_vms=number)
        self.settle()
        for _ in range(3):
            self.assert_as_nova()
        self.ask()
        # Those that were never updated, or have no free disk, are read each time.
        odd = {
            record.uuid
            for record in self.records
            if record.updated_at is None or record.free_disk_gb is None
        }
        self.assertEqual(odd, set(self.read) & {record.uuid for record in self.records})
        self.assertEqual(40 - len(odd), len(KEPT_HOSTS))
        self.assertGreater(len(KEPT_HOSTS), 20)

    def test_random_histories(self) -> None:
        """Records that come, go and change, in the same second and later."""
        for number in range(12):
            self.make_record(f"host{number}", f"cell{1 + number % 2}")
        for number in range(12, 72):
            record = self.random.choice(self.records)
            what = self.random.randrange(6)
            if what == 0:
                self.records.remove(record)
                record.destroy()
                self.make_record(f"host{number}", f"cell{1 + number % 2}")
            elif what < 4:
                self.change(record, vcpus_used=self.random.randrange(64))
            if what > 2:
                self.settle(self.random.choice([1, 1, 5, 30]))
            self.assert_as_nova()
        self.assertGreater(len(KEPT_HOSTS), 3)

    def test_only_what_has_changed_is_read(self) -> None:
        self.settled_hosts(3)
        self.assertEqual([], self.read)
        self.change(self.records[1], vcpus_used=63)
        (state,) = [state for state in self.ask() if state.vcpus_used == 63]
        self.assertEqual("host1", state.host)
        self.assertEqual([self.records[1].uuid], self.read)
        # It is young: read again, until it is old enough to be kept.
        self.ask()
        self.assertEqual([self.records[1].uuid], self.read)
        self.settle(kept_hosts._SETTLED)
        self.ask()
        self.ask()
        self.assertEqual([], self.read)

    def test_a_change_within_the_same_second(self) -> None:
        """The database of a cloud keeps whole seconds."""
        record = self.make_record("host")
        self.change(record, cpu_allocation_ratio=1.0)
        self.ask()
        for ratio in (2.0, 3.0):
            # Nothing but the ratio tells one from the other.
            self.change(record, cpu_allocation_ratio=ratio)
            self.assertEqual([ratio], [state.cpu_allocation_ratio for state in self.ask()])
        self.assertEqual(0, len(KEPT_HOSTS))

    def test_a_claim_is_seen_whatever_the_clocks_say(self) -> None:
        """A conductor whose clock is wrong, or who stands still: usage is of the version."""
        self.settled_hosts(1)
        (record,) = self.records
        stamp = record.updated_at
        with mock.patch("nova.db.main.api.timeutils.utcnow", return_value=stamp):
            self.change(record, vcpus_used=60, memory_mb_used=1)
        self.assertEqual([60], [state.vcpus_used for state in self.ask()])

    def test_a_record_of_the_future_is_not_kept(self) -> None:
        record = self.make_record("host")
        self.settle()
        self.change(record, vcpus_used=1)
        self.settle(-30)
        self.ask()
        self.assertEqual(0, len(KEPT_HOSTS))
        self.assert_as_nova()

    def test_a_host_that_is_deleted_renamed_or_moved(self) -> None:
        self.settled_hosts(3)
        self.records[0].destroy()
        self.make_service("renamed", "cell1")
        self.change(self.records[1], host="renamed")
        moved = self.records.pop()
        self.assertEqual(
            ["host2", "renamed"],
            sorted(
                state.host
                for state in self.ask(*(record.uuid for record in self.records), moved.uuid)
            ),
        )
        moved.destroy()
        self.make_record("host2", "cell2", moved.uuid)
        self.change(self.records[-1], free_disk_gb=1)
        self.settle()
        for _ in range(2):
            self.assert_as_nova()
            there = {state.host: state.cell_uuid for state in self.ask()}
            self.assertEqual({"host2": uuids.cell2, "renamed": uuids.cell1}, there)

    def test_two_records_of_one_host(self) -> None:
        """One was left behind in the former cell: Nova takes the one that is newer."""
        uuid = uuidutils.generate_uuid()
        for cell in ("cell1", "cell2"):
            record = self.make_record("host", cell, uuid)
            self.change(record, free_disk_gb=5, stats={"num_instances": cell[-1]})
            self.settle(1)
        self.settle()
        for _ in range(3):
            self.assert_as_nova()

    def test_no_hosts(self) -> None:
        self.assertEqual([], self.ask(uuids.unknown))
        self.assertEqual(
            [], list(self.manager.get_host_states_by_uuids(self.context, [], states.spec()))
        )

    def test_many_providers(self) -> None:
        """The answer names devices, too; of many the cell is asked for all of its versions."""
        self.settled_hosts(2)
        devices = [uuidutils.generate_uuid() for _ in range(kept_hosts._NAMED)]
        self.assertEqual(1, len(self.ask(self.records[0].uuid, *devices)))
        self.assertEqual([], self.read)

    # Who sees it.

    def test_nobody_sees_what_another_request_has_consumed(self) -> None:
        before = states.content(self.settled_hosts(2))
        first, second = sorted(self.ask(), key=lambda state: state.host)
        for _ in range(2):
            first.consume_from_request(server_spec())
        self.assertEqual(2, first.pci_stats.pools[0]["count"])
        self.assertNotEqual(
            states.plain(first.numa_topology), before["host0", "node of host0"]["numa_topology"]
        )
        first.stats["num_instances"] = "spoilt"
        first.supported_instances.append("spoilt")
        first.limits["spoilt"] = first.aggregates
        second.pci_stats.pools.clear()
        self.assertEqual(before, states.content(self.ask()))
        self.assert_as_nova()

    def test_what_is_read_of_a_kept_host(self) -> None:
        """The filter remembers what it has read, until something is consumed."""
        for number in range(20):
            self.change(self.make_record(f"host{number}"), free_disk_gb=50)
        self.settle()
        task = server.read_server_task(server_spec())

        def views(host_states: Iterable[host_manager.HostState]) -> dict[str, hosts.HostView]:
            return {state.host: hosts.read_host(state, task, {}) for state in host_states}

        for _ in range(3):
            self.assertEqual(views(self.ask(hpc=False)), views(self.ask()))
        with mock.patch.object(hosts, "_read_state", side_effect=AssertionError):
            views(self.ask())
        used = 0
        for state in self.ask():
            first = next((each for each in state.pci_stats.pools if each["count"] > 1), None)
            if first is not None:
                before = hosts.read_host(state, task, {}).host
                first["count"] -= 1
                used += 1
                after = hosts.read_host(state, task, {}).host
                self.assertEqual(
                    sum(pool.free for pool in before.pools) - 1,
                    sum(pool.free for pool in after.pools),
                )
            if state.numa_topology:
                before = hosts.read_host(state, task, {}).host
                state.numa_topology = states.topology(1)
                state.numa_topology.cells[0].pinned_cpus = set(range(8))
                self.assertNotEqual(before.nodes, hosts.read_host(state, task, {}).host.nodes)
        self.assertGreater(used, 3)
        self.assertEqual(views(self.ask(hpc=False)), views(self.ask()))

    def test_few_kinds_of_requests_are_remembered(self) -> None:
        (state,) = self.settled_hosts(1)
        for number in range(3 * kept_hosts._KEYS):
            self.assertEqual(
                number, state.hpc_kept.recall(state, number, lambda number=number: number)
            )
            self.assertLessEqual(len(state.hpc_kept._made), kept_hosts._KEYS)

    def test_threads(self) -> None:
        """Each consumes from hosts of its own, and one record changes meanwhile."""
        before = states.content(self.settled_hosts(6))

        def request() -> None:
            spec = server_spec()
            for state in self.manager.get_host_states_by_uuids(
                self.context, [record.uuid for record in self.records], spec
            ):
                self.assertEqual(4, state.pci_stats.pools[0]["count"])
                state.consume_from_request(spec)
                self.assertEqual(3, state.pci_stats.pools[0]["count"])

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for each in [pool.submit(request) for _ in range(24)]:
                each.result()
        self.assertEqual(before, states.content(self.ask()))

    # When it is not done.

    def test_other_requests_are_read_as_nova_does(self) -> None:
        self.settled_hosts(2)
        everything = {uuids.device, *(record.uuid for record in self.records)}
        self.ask(hpc=False)
        self.assertEqual(everything, set(self.read))

        class Other(host_manager.HostManager):
            """An operator's own, which may read more of a record."""

        self.ask(manager=Other())
        self.assertEqual(everything, set(self.read))
        self.flags(kept_hosts=0, group="hpc")
        self.ask()
        self.assertEqual(everything, set(self.read))
        states_of_all = self.manager.get_host_states_by_uuids(self.context, None, states.spec())
        self.assertEqual(2, len(list(states_of_all)))

    def test_it_is_bounded(self) -> None:
        self.flags(kept_hosts=2, group="hpc")
        for number in range(5):
            self.change(self.make_record(f"host{number}"), free_disk_gb=50)
        self.settle()
        for _ in range(2):
            self.assert_as_nova()
            self.assertEqual(2, len(KEPT_HOSTS))

    def test_versions_that_cannot_be_read(self) -> None:
        """Nova's own way, and a word about it."""
        self.settled_hosts(2)
        self.useFixture(fixtures.fixtures.MockPatchObject(host_reads, "_ONCE", host_reads.Once()))
        before = states.content(self.ask())
        broken = mock.Mock(side_effect=db_exception.DBError(Exception("no such column")))
        with mock.patch.object(kept_hosts, "read_versions", broken):
            for _ in range(2):
                self.assertEqual(before, states.content(self.ask()))
        self.assertEqual(1, self.stdlog.logger.output.count("Which hosts have changed"))

    def test_a_cell_that_is_down(self) -> None:
        self.settled_hosts(2)
        self.make_record("far", "cell2")
        self.change(self.records[-1], free_disk_gb=5)
        self.settle()
        self.ask()
        plain_services: Callable[..., object] = objects.ServiceList.get_by_binary

        def services(context: nova_context.RequestContext, *args: object, **keywords: object):
            if context.cell_uuid == uuids.cell2:
                raise exception.CellTimeout()
            return plain_services(context, *args, **keywords)

        with mock.patch.object(objects.ServiceList, "get_by_binary", services):
            self.assertEqual(["host0", "host1"], sorted(state.host for state in self.ask()))
        self.assertEqual(["far", "host0", "host1"], sorted(state.host for state in self.ask()))
        self.assertEqual([], self.read)

    def test_a_record_that_nova_cannot_read(self) -> None:
        """The error is Nova's, and where Nova has it."""
        self.settled_hosts(1)
        self.make_record("broken")
        self.change(self.records[-1], free_disk_gb=5, stats={"num_instances": "many"})
        self.settle()
        for hpc in (True, False):
            self.assertRaises(ValueError, self.ask, hpc=hpc)
