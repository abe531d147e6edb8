# SPDX-License-Identifier: Apache-2.0
"""What else Nova's scheduler can do still holds with ``hpc:`` flavors."""

from __future__ import annotations

import pytest

from nova_hpc_common.level import Level
from tests.functional import base, fixtures
from tests.functional.fixtures import Shape, Switch

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}


class FeaturesTest(base.HpcServersTest):
    """Hosts that differ only in what the operator and the user say about them."""

    FILTERS = ("AggregateInstanceExtraSpecsFilter", *base.HpcServersTest.FILTERS)

    def start_hosts(self, *names: str) -> None:
        for name in names:
            self.start_host(name, fixtures.two_switches(gpus=4))

    def put_into_aggregate(self, host: str, zone: str | None = None, **metadata: str) -> None:
        aggregate = self._create_aggregate(f"of {host}")
        self.admin_api.add_host_to_aggregate(aggregate, host)
        if zone is not None:
            metadata["availability_zone"] = zone
        self.admin_api.post_aggregate_action(aggregate, {"set_metadata": {"metadata": metadata}})

    def test_affinity(self) -> None:
        """Together, although the weigher would send each of them elsewhere."""
        self.start_hosts("first")
        group = self.api.post_server_groups({"name": "together", "policy": "affinity"})
        flavor = self.make_flavor(PAIR)
        body = self._build_server(flavor_id=flavor, networks="none")
        servers = []
        for number in range(3):
            answer = self.api.post_server(
                {"server": dict(body), "os:scheduler_hints": {"group": group["id"]}}
            )
            servers.append(self._wait_for_state_change(answer, "ACTIVE"))
            if number == 0:
                self.start_hosts("second")
                self.put_into_aggregate("first", hpc_packing_weight_multiplier="-10000")
        self.assertEqual(["first"] * 3, [self.host_of(each) for each in servers])
        self.assertEqual(0, self.scattered(servers))
        self.assertEqual("second", self.host_of(self.boot(flavor)))
        self.assert_given_once()

    def test_zones_and_aggregates(self) -> None:
        self.start_hosts("one", "two")
        self.start_host("tight", fixtures.two_switches(gpus=2))
        self.put_into_aggregate("one", zone="gold")
        self.put_into_aggregate("two", pool="a100")
        flavor = self.make_flavor(PAIR)
        server = self.boot(flavor, az="gold")
        self.assertEqual("one", self.host_of(server))
        self.assertIs(Level.SWITCH, self.level_of(server))
        special = self.make_flavor(PAIR | {"aggregate_instance_extra_specs:pool": "a100"})
        server = self.boot(special)
        self.assertEqual("two", self.host_of(server))
        self.assertIs(Level.SWITCH, self.level_of(server))
        self.assertEqual("tight", self.host_of(self.boot(flavor, az="nova")))

    @pytest.mark.slow
    def test_ten_at_once(self) -> None:
        self.start_hosts("one", "two", "three")
        body = self._build_server(flavor_id=self.make_flavor(PAIR), networks="none")
        body |= {"min_count": 10, "max_count": 10, "return_reservation_id": True}
        answer = self.api.api_post("/servers", {"server": body}).body
        servers = self.api.get_servers(
            search_opts={"reservation_id": answer["reservation_id"], "all_tenants": 1}
        )
        servers = [self._wait_for_state_change(each, "ACTIVE") for each in servers]
        self.assertEqual(10, len(servers))
        self.assertEqual(0, self.scattered(servers))
        # Two hosts are filled before the third is touched.
        used = sorted(self.host_of(each) for each in servers)
        self.assertEqual([2, 4, 4], sorted(used.count(host) for host in set(used)))
        self.assert_given_once()

    def test_servers_without_devices_stay_off_hosts_with_devices(self) -> None:
        """That is Nova's own PCIWeigher; ours says nothing about such servers.

        With its default multiplier, Nova's weighers of memory and CPUs together
        outweigh it as soon as the hosts differ in those.
        """
        self.flags(pci_weight_multiplier=10.0, group="filter_scheduler")
        self.start_hosts("devices")
        self.start_host("plain", Shape((Switch(gpus=0),)), device_spec=())
        flavor = self.make_flavor({})
        for _ in range(3):
            self.assertEqual("plain", self.host_of(self.boot(flavor)))


class AsymmetricCellsTest(base.HpcServersTest):
    """Guests whose NUMA cells differ in CPUs and memory."""

    SPECS = {
        "hw:cpu_policy": "dedicated",
        "hw:numa_nodes": "2",
        "hw:numa_cpus.0": "0",
        "hw:numa_cpus.1": "1-4",
        "hw:numa_mem.0": "256",
        "hw:numa_mem.1": "768",
        "hpc:affinity": "numa",
        "hw:pci_numa_affinity_policy": "required",
        "pci_passthrough:alias": "gpu:2",
    }

    def setUp(self) -> None:
        self.flags(cpu_dedicated_set="0-11", group="compute")
        super().setUp()
        self.flags(disclose_capacity=True, group="hpc")
        shape = Shape((Switch(gpus=1, numa=0), Switch(gpus=2, numa=1)), cores=6, threads=1)
        self.start_host("one", shape)
        self.flavor = self.make_flavor(self.SPECS, vcpu=5, memory_mb=1024)

    def test_the_large_cell_finds_its_node(self) -> None:
        # Takes CPUs of node 0, where there are fewer devices.
        filler = self.boot(
            self.make_flavor({"hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"}, vcpu=4)
        )
        self.assertEqual({0: 0}, self.domain_nodes(filler))
        server = self.boot(self.flavor)
        self.assertEqual({0: 0, 1: 1}, self.domain_nodes(server))
        self.assertEqual([0, 1], sorted(place.numa for place in self.locations_of(server)))

    def test_the_reason_names_the_cpus(self) -> None:
        """GPUs are free on both nodes, but the large cell fits on neither."""
        for count in (4, 3):
            self.boot(
                self.make_flavor({"hw:cpu_policy": "dedicated", "hw:numa_nodes": "1"}, vcpu=count)
            )
        server = self.boot(self.flavor, state="ERROR")
        self.assertIn("4 dedicated CPUs", self.fault(server))
        self.assertTrue(
            self.log_lines("rejects one, one .*NUMA node 1 has 3 free dedicated CPUs .needs 4")
        )
