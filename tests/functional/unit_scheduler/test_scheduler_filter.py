# SPDX-License-Identifier: Apache-2.0
"""The filter as a scheduler calls it, without a scheduler around it."""

from __future__ import annotations

import threading
from unittest import mock

import fixtures
from nova import exception, objects
from oslo_config import cfg
from oslo_utils.fixture import uuidsentinel as uuids

from nova_hpc import conf as hpc_conf
from nova_hpc.from_nova import contract, providers
from nova_hpc.from_nova.patches import answers
from nova_hpc.placement import user_reasons
from nova_hpc.placement.model import DeviceGroup, Request, Unmet, Want
from nova_hpc_common.level import AffinityPolicy, Level
from scheduler_filters import hpc_topology_filter, shared_memory_hosts
from tests.functional.unit_scheduler.states import HostStates, pool, spec

CONF = cfg.CONF


class FilterTest(HostStates):
    """Hosts in, hosts out, or the reason why none."""

    def setUp(self) -> None:
        super().setUp()
        hpc_conf.register_all_options(CONF)
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
        """What the user reads, as Nova's own words take the reason along."""
        asked = asked or spec()
        self.assertEqual([], self.filter.filter_all(hosts, asked))
        return str(exception.NoValidHost(reason=answers.reason_put_down_for(asked)))

    def test_others_pass_untouched(self) -> None:
        """Stock flavors and rebuilds get the very object back that came in."""
        stock = spec()
        stock.flavor.extra_specs = {"hw:cpu_policy": "dedicated"}
        rebuild = spec()
        # As Nova's API marks it.
        rebuild.scheduler_hints = {"_nova_check_type": ["rebuild"]}
        rebuild.force_hosts, rebuild.force_nodes = ["one"], ["one"]
        for asked in (stock, rebuild):
            given = iter([self.named("one")])
            self.assertIs(given, self.filter.filter_all(given, asked))
        self.assertEqual([], self.filter.filter_all([], spec()))

    def test_a_mark_that_a_user_wrote_is_refused(self) -> None:
        """A record of a user has its id, and no one forces the host (CVE-2026-46448)."""
        for change in ({}, {"id": 1}, {"force_hosts": ["one"], "force_nodes": ["one"], "id": 1}):
            asked = spec()
            asked.scheduler_hints = {"_nova_check_type": ["rebuild"]}
            for name, value in change.items():
                setattr(asked, name, value)
            self.assertIn("_nova_check_type", self.refused([self.named("one", pool(1))], asked))

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
            "No valid host was found. No host with such devices can be used at this moment; "
            "contact the cloud's operator",
            self.refused([broken]),
        )

    def test_the_user_reads_the_wish_that_is_not_met(self) -> None:
        """Of the host that came nearest; no counts of the cloud, and no names."""
        hosts = [self.named(f"secret{number}") for number in range(3)]
        self.assertEqual(
            "No valid host was found. No host has 2 gpu free; fewer devices may help",
            self.refused(hosts, spec(2)),
        )
        hosts.append(self.named("secret3", pool(1, numa=0), pool(2, numa=1)))
        self.offered(hosts[3], uuids.gpu1, uuids.gpu2)
        self.assertEqual(
            "No valid host was found. No host has 2 gpu on one NUMA node; hpc:affinity socket or "
            "hpc:affinity_policy preferred or smaller groups (hpc:group) may help",
            self.refused(hosts, spec(2)),
        )

    def test_counts_where_the_operator_discloses_them(self) -> None:
        self.flags(disclose_capacity=True, group="hpc")
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
        text = self.refused([self.named("full")], asked)
        self.assertNotIn("Not for every server", text)
        asked.num_instances = 2
        text = self.refused([self.named("full")], asked)
        self.assertIn("Not for every server of the request: No host has 1 gpu free", text)

    def test_the_wish_for_ports(self) -> None:
        """Ports come before CPUs, and after the flavor's own devices."""
        order = (Unmet.OTHER, Unmet.DEVICES, Unmet.TOGETHER, Unmet.PORTS, Unmet.BESIDE)
        self.assertEqual(sorted(order), list(order))
        want = Want("0", "gpu", 2)
        request = Request((want,), (DeviceGroup({"0": 2}),), Level.SWITCH, AffinityPolicy.REQUIRED)
        self.assertEqual(
            "No host has 2 gpu under one switch with an adapter's function for each of its ports; "
            "hpc:affinity numa or hpc:affinity_policy preferred may help",
            user_reasons.refusal_sentence(request, Unmet.PORTS),
        )

    def test_a_reason_does_not_outlive_its_filter(self) -> None:
        asked = spec()
        self.refused([self.named("full")], asked)
        good = self.named("good", pool(1))
        self.assertEqual([good], self.filter.filter_all([good], asked))
        self.assertIsNone(answers.reason_put_down_for(asked))

    def test_a_scheduler_that_is_not_set_up(self) -> None:
        self.flags(pci_in_placement=False, group="filter_scheduler")
        self.assertIn("not set up for hpc: flavors", self.refused([self.named("one", pool(1))]))

    def on_unknown_nova(self, new: bool) -> None:
        patch = fixtures.MonkeyPatch
        self.useFixture(patch("nova.version.version_string", lambda: "35.0.0"))
        self.useFixture(patch("nova_hpc.from_nova.new_servers.is_new_server", lambda spec: new))

    def test_new_servers_on_an_unknown_nova(self) -> None:
        self.on_unknown_nova(new=True)
        text = self.refused([self.named("one", pool(1))])
        self.assertIn("a release for which hpc: flavors are not ready", text)

    def test_moves_on_an_unknown_nova(self) -> None:
        """Aligned where that is possible; and anywhere only where the operator says so."""
        self.on_unknown_nova(new=False)
        good, full = self.named("good", pool(1)), self.named("full")
        self.assertEqual([good], self.filter.filter_all([full, good], spec()))
        self.assertIn("No host has 1 gpu free", self.refused([full]))
        self.flags(moves_on_unknown_nova="any", group="hpc")
        self.assertEqual([good], self.filter.filter_all([full, good], spec()))
        self.assertEqual([full], self.filter.filter_all([full], spec()))

    def test_a_request_that_was_made_without_placement(self) -> None:
        asked = spec()
        asked.requested_resources = []
        text = self.refused([self.named("one", pool(1))], asked)
        self.assertIn("not set up for hpc: flavors", text)

    def test_a_count_that_makes_no_sense(self) -> None:
        """Nova's API takes gpu:0, and makes a request without groups of it."""
        text = self.refused([self.named("one", pool(1))], spec(0))
        self.assertIn("Flavor: pci_passthrough:alias requests '0' of 'gpu'", text)

    def test_a_check_before_the_reading_fails(self) -> None:
        """It ends like a failure in the reading: no host, and a reason."""
        asked = spec()
        asked.flavor.extra_specs |= {"hpc:shared_memory": "64"}
        with mock.patch.object(
            shared_memory_hosts, "list_giving_hosts", side_effect=ZeroDivisionError
        ):
            text = self.refused([self.named("one", pool(1))], asked)
        self.assertIn("could not read the request", text)

    def test_two_threads_see_a_role_each(self) -> None:
        """Both stay known: an alias of a role whose devices are all taken has only this role."""
        threads: list[threading.Thread] = []

        def add_roles(before: frozenset[str], more: frozenset[str]) -> frozenset[str]:
            if not threads:
                # Another request comes while the roles of the first one are added.
                threads.append(threading.Thread(target=self.filter_roles, args=("two",)))
                threads[0].start()
                threads[0].join(0.5)
            return frozenset(before).union(more)

        self.filter._known = type("Roles", (frozenset,), {"__or__": add_roles})()
        self.filter_roles("one")
        threads[0].join()
        self.assertLessEqual({"one", "two"}, self.filter._known)

    def filter_roles(self, role: str) -> None:
        self.filter.filter_all([self.named(role, pool(1, hpc_role=role))], spec())

    def test_flavor_and_image_that_contradict_each_other(self) -> None:
        """Nova refuses them before; if it ever does not, nothing starts here."""
        asked = spec()
        asked.flavor.extra_specs |= {"hw:pci_numa_affinity_policy": "required"}
        asked.image = objects.ImageMeta.from_dict(
            {"properties": {"hw_pci_numa_affinity_policy": "socket"}}
        )
        text = self.refused([self.named("one", pool(1))], asked)
        self.assertIn("could not read the request", text)
