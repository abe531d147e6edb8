# SPDX-License-Identifier: Apache-2.0
"""Flavors: what is refused where, and that stock flavors are left alone."""

from __future__ import annotations

from collections.abc import Mapping
from unittest import mock

from nova.tests import fixtures as nova_fixtures
from nova.tests.functional.api import client
from oslo_serialization import jsonutils

from scheduler_filters import hpc_topology_filter
from tests.functional import base, fixtures

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}


class ValidatorsTest(base.HpcServersTest):
    """Nova's API refuses wrong words, where it validates at all."""

    def refuse(self, specs: dict[str, str], version: str = "2.86") -> str:
        flavor = self.make_flavor({})
        admin = self.api_fixture.admin_api
        with self.at_microversion(admin, version):
            error = self.assertRaises(
                client.OpenStackApiException,
                admin.post_extra_spec,
                flavor,
                {"extra_specs": specs},
            )
        self.assertEqual(400, error.response.status_code)
        return str(error)

    def test_wrong_words_are_named(self) -> None:
        text = self.refuse({"hpc:affinity": "swtich"})
        self.assertIn("hpc:affinity is 'swtich'", text)
        self.assertIn("switch, root, numa, socket, host", text)
        for key, value in {
            "hpc:affinity_policy": "must",
            "hpc:group": "gpu",
            "hpc:nvlink": "yes",
            "hpc:guest_topology": "real",
        }.items():
            text = self.refuse({key: value})
            self.assertIn(key, text)
            self.assertIn(value, text)

    def test_unknown_key(self) -> None:
        self.assertIn("hpc:afinity", self.refuse({"hpc:afinity": "switch"}))

    def test_good_words_pass(self) -> None:
        flavor = self.make_flavor({})
        admin = self.api_fixture.admin_api
        with self.at_microversion(admin, "2.86"):
            admin.post_extra_spec(
                flavor,
                {
                    "extra_specs": {
                        "hpc:affinity": "switch",
                        "hpc:affinity_policy": "preferred",
                        "hpc:group": "gpu:1,vf:1",
                        "hpc:nvlink": "none",
                        "hpc:guest_topology": "flat",
                    }
                },
            )


class BadFlavorTest(base.HpcServersTest):
    """Older clients pass the validators by; the scheduler refuses cleanly."""

    def setUp(self) -> None:
        super().setUp()
        self.start_host("secret", fixtures.two_switches(gpus=4, pfs=1))

    def assert_refused(self, specs: dict[str, str], *words: str) -> None:
        server = self.boot(self.make_flavor(specs), state="ERROR")
        fault = self.fault(server)
        self.assertIn("Flavor:", fault)
        for word in words:
            self.assertIn(word, fault)
        self.assertNotIn("secret", fault)
        self.assertEqual([], self.log_lines(r"ERROR \[scheduler_filters"))

    def test_wrong_word(self) -> None:
        self.assert_refused(PAIR | {"hpc:affinity": "swtich"}, "hpc:affinity", "swtich")

    def test_unknown_key(self) -> None:
        self.assert_refused(PAIR | {"hpc:afinity": "switch"}, "hpc:afinity")

    def test_groups_that_do_not_divide_the_devices(self) -> None:
        self.assert_refused(
            {
                "pci_passthrough:alias": "gpu:3,vf:2",
                "hpc:affinity": "switch",
                "hpc:group": "gpu:1,vf:1",
            },
            "hpc:group",
        )

    def test_unknown_name_in_group(self) -> None:
        self.assert_refused(PAIR | {"hpc:group": "fpga:1"}, "hpc:group", "fpga")

    def test_device_profile_of_cyborg(self) -> None:
        self.useFixture(nova_fixtures.CyborgFixture())
        profile = nova_fixtures.CyborgFixture.dp_name
        self.assert_refused(PAIR | {"accel:device_profile": profile}, "requests Cyborg devices")

    def test_socket_policy_with_switch(self) -> None:
        self.assert_refused(
            PAIR | {"hw:pci_numa_affinity_policy": "socket", "hw:numa_nodes": "1"},
            "hw:pci_numa_affinity_policy",
        )


class RoleTest(base.HpcServersTest):
    """``hpc:group`` may use roles where aliases have other names."""

    PCI_ALIAS = [
        '{"name": "a100", "resource_class": "CUSTOM_HPC_GPU"}',
        '{"name": "cx7", "resource_class": "CUSTOM_HPC_VF"}',
    ]

    def test_group_by_role(self) -> None:
        self.start_host(
            "one", fixtures.Shape((fixtures.Switch(pfs=1), fixtures.Switch(pfs=1, numa=1)))
        )
        flavor = self.make_flavor(
            {
                "pci_passthrough:alias": "a100:2,cx7:2",
                "hpc:affinity": "switch",
                "hpc:group": "gpu:1,vf:1",
            }
        )
        server = self.boot(flavor)
        self.assertEqual(4, len(self.devices_of(server)))


class InertTest(base.HpcServersTest):
    """Flavors without ``hpc:`` keys are scheduled as stock Nova does."""

    def test_filter_changes_nothing(self) -> None:
        """The hosts come back as they went in, and nothing is hung on them."""
        self.start_host("one", fixtures.two_switches(gpus=1))
        plain = hpc_topology_filter.HpcTopologyFilter.filter_all
        same: list[bool] = []

        def spy(this, hosts, spec):
            hosts = list(hosts)
            before = [dict(vars(host)) for host in hosts]
            passed = plain(this, hosts, spec)
            after = [dict(vars(host)) for host in hosts]
            same.append(passed is hosts and all(map(_identical, before, after)))
            return passed

        with mock.patch.object(hpc_topology_filter.HpcTopologyFilter, "filter_all", spy):
            server = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:2"}))
            self.boot(self.make_flavor({}))
            self.assertEqual([True, True], same)
            # The same spy does see what the filter does for its own flavors.
            self._delete_server(server)
            self.boot(self.make_flavor(PAIR | {"hpc:affinity": "numa"}))
        self.assertEqual([True, True, False], same)


def _identical(before: Mapping[str, object], after: Mapping[str, object]) -> bool:
    """The same attributes with the very same objects in them."""
    return before.keys() == after.keys() and all(before[key] is after[key] for key in before)


class WrongOrderTest(base.HpcServersTest):
    """A filter in the wrong place is refused by name, for hpc: flavors only."""

    FILTERS = ("NUMATopologyFilter", "PciPassthroughFilter", "HpcTopologyFilter")

    def test_refused(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=2))
        server = self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertIn("contact its operator to put HpcTopologyFilter before", self.fault(server))
        lines = self.log_lines("put HpcTopologyFilter before NUMATopologyFilter")
        self.assertTrue(lines)
        self.assertIn("enabled_filters", lines[0])
        stock = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:2"}))
        self.assertEqual(2, len(self.devices_of(stock)))


class PlacementOffTest(base.HpcServersTest):
    """PCI in Placement is off in the scheduler."""

    PCI_ALIAS = [jsonutils.dumps(each) for each in fixtures.ID_ALIASES]

    def test_refused(self) -> None:
        self.flags(pci_in_placement=False, group="filter_scheduler")
        shape = fixtures.two_switches(gpus=2)
        self.start_host("one", shape, shape.device_spec(classes=False))
        server = self.boot(self.make_flavor(PAIR), state="ERROR")
        self.assertIn(
            "This cloud is not set up for hpc: flavors; contact its operator to set "
            "[filter_scheduler]pci_in_placement = True",
            self.fault(server),
        )
        self.assertTrue(self.log_lines(r"\[filter_scheduler\]pci_in_placement = True"))
        stock = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:2"}))
        self.assertEqual(2, len(self.devices_of(stock)))


class GroupPolicyTest(base.HpcServersTest):
    """Nova's own ``group_policy``."""

    VFS: Mapping[str, str] = {"pci_passthrough:alias": "vf:2", "hpc:affinity": "switch"}

    def adapters_of(self, specs: Mapping[str, str], state: str = "ACTIVE") -> int:
        server = self.boot(self.make_flavor(specs), state=state)
        return len({device.parent_addr for device in self.devices_of(server)})

    def test_isolate_takes_two_adapters(self) -> None:
        """Though the functions of one are nearer to each other."""
        self.start_host("one", fixtures.two_switches(gpus=1, pfs=1))
        near = self.VFS | {"hpc:affinity": "numa"}
        self.assertEqual(1, self.adapters_of(near))
        self.assertEqual(1, self.adapters_of(near | {"group_policy": "none"}))
        self.assertEqual(2, self.adapters_of(near | {"group_policy": "isolate"}))
        self.assert_given_once()

    def test_the_level_still_counts(self) -> None:
        """One adapter below each switch: Placement has candidates, the flavor has none."""
        self.start_host("one", fixtures.two_switches(gpus=1, pfs=1))
        server = self.boot(self.make_flavor(self.VFS | {"group_policy": "isolate"}), state="ERROR")
        self.assertIn("2 vf under one switch; group_policy none", self.fault(server))

    def test_a_policy_for_one_device(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=1, pfs=1))
        specs = {"pci_passthrough:alias": "vf:1", "hpc:affinity": "switch"}
        for policy in ("isolate", "none", "nonsense"):
            self.assertEqual(1, self.adapters_of(specs | {"group_policy": policy}))
