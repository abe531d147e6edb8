# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's part relies on in Nova, without Nova promising it.

A failure here after an update of Nova says which assumption no longer holds.
"""

from __future__ import annotations

import copy
from unittest import mock

from nova import context as nova_context
from nova import exception, objects, test
from nova.notifications.objects import exception as exception_payloads
from nova.pci import stats as pci_stats
from nova.scheduler import host_manager
from oslo_utils.fixture import uuidsentinel as uuids

from nova_hpc.from_nova import kept_hosts
from scheduler_filters import hpc_topology_filter
from tests.functional import base, fixtures
from tests.functional.fixtures import Shape, Switch
from tests.functional.unit_scheduler import states

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}


class ContractTest(base.HpcServersTest):
    """Seen with the eyes of a filter in a running scheduler."""

    def seen_by_filter(self, flavor: str, **keywords: object) -> list[tuple[list, object]]:
        """Hosts and request of every call of the filter while a server is made."""
        calls: list[tuple[list, object]] = []
        plain = hpc_topology_filter.HpcTopologyFilter.filter_all

        def spy(this, hosts, spec):
            hosts = list(hosts)
            # The scheduler consumes from the pools of the host that it takes.
            before = [dict(vars(host), pci_stats=copy.deepcopy(host.pci_stats)) for host in hosts]
            calls.append((before, spec.obj_clone()))
            return plain(this, hosts, spec)

        with mock.patch.object(hpc_topology_filter.HpcTopologyFilter, "filter_all", spy):
            self.boot(flavor, **keywords)
        return calls

    def test_tags_reach_the_pools(self) -> None:
        shape = Shape((Switch(gpus=1, pfs=1, vfs=4, numa=1),))
        entries = shape.device_spec()
        entries[0]["traits"] = "CUSTOM_X"
        self.start_host("one", shape, entries)
        ((hosts, _spec),) = self.seen_by_filter(
            self.make_flavor({"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"})
        )
        pools = {pool["address"]: pool for pool in hosts[0]["pci_stats"].pools}
        # One pool a device, and one for all functions of an adapter.
        self.assertEqual({"0000:40:00.0", "0000:40:01.0"}, set(pools))
        self.assertEqual([1, 4], [pools[address]["count"] for address in sorted(pools)])
        gpu = pools["0000:40:00.0"]
        for key, value in entries[0].items():
            if key.startswith("hpc_"):
                self.assertEqual(value, gpu[key])
        self.assertEqual(1, gpu["numa_node"])
        self.assertEqual(self._get_provider_uuid_by_name("one_0000:40:00.0"), gpu["rp_uuid"])
        # The reason why these two are mirrored in tags.
        self.assertNotIn("resource_class", gpu)
        self.assertNotIn("traits", gpu)

    def test_candidates_and_groups(self) -> None:
        self.start_host("one", Shape((Switch(gpus=2, pfs=1),)))
        ((hosts, spec),) = self.seen_by_filter(
            self.make_flavor({"pci_passthrough:alias": "gpu:2,vf:1", "hpc:affinity": "switch"})
        )
        names = {
            f"{request.request_id}-{index}"
            for request in spec.pci_requests.requests
            for index in range(request.count)
        }
        groups = {group.requester_id: group for group in spec.requested_resources}
        self.assertEqual(names, set(groups) & names)
        for name in names:
            self.assertEqual([1], list(groups[name].resources.values()))
            # Empty until the first server of a request has its claim.
            self.assertEqual([], groups[name].provider_uuids)
        for candidate in hosts[0]["allocation_candidates"]:
            for name in names:
                (provider,) = candidate["mappings"][name]
                (resource_class,) = groups[name].resources
                self.assertIn(resource_class, candidate["allocations"][provider]["resources"])

    def test_host_states_are_made_anew(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=2))
        flavor = self.make_flavor(PAIR)
        for _ in range(2):
            ((hosts, _spec),) = self.seen_by_filter(flavor)
            self.assertNotIn("hpc_choice", hosts[0])

    def test_no_request_changes_what_is_kept_of_hosts(self) -> None:
        """Filters, weighers, alternates, servers that are consumed: none writes to it."""
        self.start_host("one", fixtures.two_switches(gpus=2))
        self.start_host("two", fixtures.two_switches(gpus=2))
        handed_out: list[tuple[kept_hosts.KeptHost, object]] = []
        find = kept_hosts.KeptHosts.find

        def content(host: kept_hosts.KeptHost) -> object:
            state = host_manager.HostState(host.host, host.hypervisor_hostname, None)
            host.update_state(state)
            return states.content([state])

        def spy(this, cell, versions):
            found = find(this, cell, versions)
            handed_out.extend((host, content(host)) for host in found.values())
            return found

        body = self._build_server(
            flavor_id=self.make_flavor(
                {"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"}
                | {"hw:numa_nodes": "1", "hw:pci_numa_affinity_policy": "preferred"}
            ),
            networks="none",
        )
        with mock.patch.object(kept_hosts.KeptHosts, "find", spy):
            for _ in range(2):
                self.api.post_server({"server": body | {"min_count": 3, "max_count": 3}})
                for server in self.api.get_servers():
                    self._wait_for_state_change(server, "ACTIVE")
        self.assertTrue(handed_out)
        for host, before in handed_out:
            self.assertEqual(before, content(host))
        self.assert_given_once()

    def test_host_states_are_kept_within_a_request(self) -> None:
        """Several servers: the candidates are ours already, the template stays."""
        self.start_host("one", fixtures.two_switches(gpus=2))
        calls: list[dict] = []
        plain = hpc_topology_filter.HpcTopologyFilter.filter_all

        def spy(this, hosts, spec):
            hosts = list(hosts)
            calls.append(dict(vars(hosts[0])))
            return plain(this, hosts, spec)

        body = self._build_server(flavor_id=self.make_flavor(PAIR), networks="none")
        body |= {"min_count": 2, "max_count": 2}
        with mock.patch.object(hpc_topology_filter.HpcTopologyFilter, "filter_all", spy):
            self.api.post_server({"server": body})
        self.assertNotIn("hpc_choice", calls[0])
        for later in calls[1:]:
            self.assertIn("hpc_choice", later)
            self.assertEqual(1, len(later["allocation_candidates"]))
        for server in self.api.get_servers():
            self._wait_for_state_change(server, "ACTIVE")
        self.assert_given_once()

    def test_pools_that_match(self) -> None:
        """Nova hands out its own pools, and none for too many devices."""
        self.start_host("one", fixtures.two_switches(gpus=1))
        ((hosts, spec),) = self.seen_by_filter(
            self.make_flavor({"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"})
        )
        stats = hosts[0]["pci_stats"]
        request = spec.pci_requests.requests[0]
        request.count = 0
        found = stats._filter_pools(stats.pools, request, None, [])
        self.assertEqual([id(pool) for pool in stats.pools], [id(pool) for pool in found])
        request.count = 3
        self.assertIsNone(stats._filter_pools(stats.pools, request, None, []))

    def test_a_reason_reaches_the_user(self) -> None:
        """NoValidHost with a reason becomes the server's fault, cut at 255."""
        self.start_host("one", fixtures.two_switches(gpus=1))
        server = self.boot(self.make_flavor(PAIR | {f"hpc:{'x' * 200}": "1"}), state="ERROR")
        fault = self.fault(server)
        self.assertTrue(fault.startswith("No valid host was found. Flavor: 'hpc:xxx"), fault)
        self.assertLessEqual(len(fault), 255)

    def test_moves_are_not_bound(self) -> None:
        """Stock Nova forgets the choice in a move: why the driver binds it."""
        self.useFixture(
            fixtures.fixtures.MockPatch(
                "nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off",
                new=mock.Mock(return_value="{}"),
            )
        )
        self.useFixture(fixtures.stock_move_claims())
        self.start_host("one", Shape((Switch(gpus=2),)))
        server = self.boot(self.make_flavor(PAIR))
        self.start_host("two", Shape((Switch(gpus=1), Switch(gpus=1), Switch(gpus=2))))
        self._migrate_server(server)
        node = objects.ComputeNode.get_by_nodename(nova_context.get_admin_context(), "two")
        given = [
            device.address
            for device in self.devices_of(server)
            if device.compute_node_id == node.id
        ]
        self.assertNotEqual(["0000:42:00.0", "0000:42:01.0"], given)


class UpstreamTest(test.NoDBTestCase):
    """Faults of Nova that ``docs/source/contributor/upstream`` reports."""

    def test_a_reschedule_that_loses_every_claim(self) -> None:
        """The conductor notifies of an exception that it has made and not raised."""
        error = exception.MaxRetriesExceeded(reason="no host is left")
        found = self.assertRaises(
            AttributeError, exception_payloads.ExceptionPayload.from_exception, error
        )
        self.assertIn("tb_frame", str(found))

    def test_fewer_functions_than_were_allocated(self) -> None:
        """Pools that are not allocated keep the count up, and one that is is dropped."""
        pools = [
            {
                "vendor_id": "15b3",
                "product_id": "101e",
                "numa_node": node,
                "count": 4,
                "dev_type": "type-VF",
                "rp_uuid": provider,
            }
            for node, provider in ((0, uuids.pf0), (1, uuids.pf1))
        ]
        request = objects.InstancePCIRequest(
            count=2,
            alias_name="vf",
            spec=[{"vendor_id": "15b3", "product_id": "101e"}],
            numa_policy="legacy",
            request_id=uuids.request,
        )
        cells = [objects.InstanceNUMACell(id=0)]
        found = pci_stats.PciDeviceStats(None)._filter_pools(
            pools, request, cells, [uuids.pf0, uuids.pf1]
        )
        # Placement allows one of it.
        self.assertEqual([uuids.pf0], [pool["rp_uuid"] for pool in found])
