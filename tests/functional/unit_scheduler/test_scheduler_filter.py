# SPDX-License-Identifier: Apache-2.0
"""The filter as a scheduler calls it, without a scheduler around it."""

from __future__ import annotations

from unittest import mock

from nova import exception, objects
from oslo_config import cfg
from oslo_utils.fixture import uuidsentinel as uuids

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import contract, providers
from scheduler_filters import hpc_topology_filter
from tests.functional.unit_scheduler.states import HostStates, pool, spec

CONF = cfg.CONF


class FilterTest(HostStates):
    """Hosts in, hosts out, or the reason why none."""

    def setUp(self) -> None:
        super().setUp()
        hpc_conf.register(CONF)
        self.flags(
            pci_in_placement=True,
            enabled_filters=[contract.FILTER, *contract.AFTER],
            group="filter_scheduler",
        )
        # The pools have to do.
        patch = mock.patch.object(providers, "free_providers", return_value=None)
        patch.start()
        self.addCleanup(patch.stop)
        self.filter = hpc_topology_filter.HpcTopologyFilter()

    def named(self, name: str, *pools: objects.PciDevicePool):
        host = self.host(*pools)
        host.host = host.nodename = name
        self.offered(host, *[each["rp_uuid"] for each in host.pci_stats.pools][:1])
        return host

    def refused(self, hosts: list, asked: objects.RequestSpec | None = None) -> str:
        error = self.assertRaises(
            exception.NoValidHost, self.filter.filter_all, hosts, asked or spec()
        )
        return str(error)

    def test_others_pass_untouched(self) -> None:
        """Stock flavors and rebuilds get the very object back that came in."""
        stock = spec()
        stock.flavor.extra_specs = {"hw:cpu_policy": "dedicated"}
        rebuild = spec()
        rebuild.scheduler_hints = {"_nova_check_type": ["rebuild"]}
        for asked in (stock, rebuild):
            given = iter([self.named("one")])
            self.assertIs(given, self.filter.filter_all(given, asked))
        self.assertEqual([], self.filter.filter_all([], spec()))

    def test_the_hosts_that_fit_in_their_order(self) -> None:
        hosts = [
            self.named("b", pool(1)),
            self.named("full"),
            self.named("a", pool(2)),
        ]
        self.assertEqual([hosts[0], hosts[2]], self.filter.filter_all(hosts, spec()))

    def test_one_broken_host_costs_no_other(self) -> None:
        broken = self.named("broken", pool(1))
        broken.pci_stats.pools[0]["count"] = "many"
        good = self.named("good", pool(1))
        self.assertEqual([good], self.filter.filter_all([broken, good], spec()))
        self.assertEqual(
            "No valid host was found. 1 of 1 nodes: a node's state could not be read",
            self.refused([broken]),
        )

    def test_the_user_reads_counts_and_no_names(self) -> None:
        hosts = [self.named(f"secret{number}") for number in range(3)]
        hosts.append(self.named("secret3", pool(1, numa=0), pool(2, numa=1)))
        asked = spec(2)
        self.offered(hosts[3], uuids.gpu1, uuids.gpu2)
        text = self.refused(hosts, asked)
        self.assertNotIn("secret", text)
        self.assertIn("3 of 4 nodes: the devices are not free in Placement; 1 of 4 nodes:", text)

    def test_a_fault_has_room_for_the_reason(self) -> None:
        """Nova's table of faults cuts at 255 characters, in the middle of a word."""
        asked = spec()
        asked.flavor.extra_specs = {"hpc:affinity": "switch", "hpc:group": "x" * 50 + ":1,y:1,z:1"}
        asked.flavor.extra_specs |= {f"hpc:{number}": "unknown" for number in range(50)}
        text = self.refused([self.named("one", pool(1))], asked)
        self.assertTrue(text.startswith("No valid host was found. Flavor: 'hpc:0' is no known key"))
        self.assertLessEqual(len(text), 255)

    def test_servers_that_are_claimed_already_are_kept(self) -> None:
        """An exception would leave the claims of the request's first servers behind."""
        asked = spec()
        asked.requested_resources[0].provider_uuids = [uuids.gpu1]
        self.assertEqual([], self.filter.filter_all([self.named("full")], asked))

    def test_a_scheduler_that_is_not_set_up(self) -> None:
        self.flags(pci_in_placement=False, group="filter_scheduler")
        self.assertIn("not set up for hpc: flavors", self.refused([self.named("one", pool(1))]))

    def test_a_request_that_was_made_without_placement(self) -> None:
        asked = spec()
        asked.requested_resources = []
        text = self.refused([self.named("one", pool(1))], asked)
        self.assertIn("not set up for hpc: flavors", text)

    def test_a_count_that_makes_no_sense(self) -> None:
        """Nova's API takes gpu:0, and makes a request without groups of it."""
        text = self.refused([self.named("one", pool(1))], spec(0))
        self.assertIn("Flavor: pci_passthrough:alias asks for '0' of 'gpu'", text)

    def test_flavor_and_image_that_contradict_each_other(self) -> None:
        """Nova refuses them before; if it ever does not, nothing starts here."""
        asked = spec()
        asked.flavor.extra_specs |= {"hw:pci_numa_affinity_policy": "required"}
        asked.image = objects.ImageMeta.from_dict(
            {"properties": {"hw_pci_numa_affinity_policy": "socket"}}
        )
        text = self.refused([self.named("one", pool(1))], asked)
        self.assertIn("could not read the request", text)
