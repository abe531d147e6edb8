# SPDX-License-Identifier: Apache-2.0
"""A role is binding: nobody gets a device of another role for having the same ids."""

from __future__ import annotations

from nova import exception
from oslo_limit import fixture as limit_fixture
from oslo_serialization import jsonutils

from nova_hpc.from_nova import contract
from nova_hpc_tools.cloud import explain
from nova_hpc_tools.readers import snapshot
from nova_hpc_tools.site import identity
from nova_hpc_tools.snapshot import SnapshotError
from tests.functional import base, fixtures
from tests.functional.driver_base import DriverTest

#: Two adapters, the first InfiniBand and the second Ethernet: all VFs are 15b3:101e.
TWO_FABRICS = fixtures.Shape(
    (fixtures.Switch(gpus=1, pfs=1, vfs=2), fixtures.Switch(gpus=1, pfs=1, vfs=2))
)
BUS = {"ibvf": "40", "ethvf": "41"}
SAME = {"vendor_id": "15b3", "product_id": "101e", "device_type": "type-VF"}


def entries(classes: dict[str, str] | None = None) -> list[dict[str, str]]:
    """What a node with these adapters says: a role for each, and their own ids."""
    found = []
    for entry in TWO_FABRICS.device_spec(classes=False):
        if entry["hpc_role"] == "vf":
            role = "ibvf" if f":{BUS['ibvf']}:" in entry["address"] else "ethvf"
            entry["hpc_role"] = role
            if classes:
                entry["resource_class"] = entry["hpc_resource_class"] = classes[role]
                product = identity.product_class("15b3", "101e")
                entry["traits"] = entry["hpc_traits"] = product
        found.append(entry)
    return found


def flavor_of(alias: str, count: int = 1, **more: str) -> dict[str, str]:
    return {"pci_passthrough:alias": f"{alias}:{count}", "hpc:affinity": "host"} | more


class _Base(base.HpcServersTest):
    """One host with two fabrics."""

    def buses(self, server) -> set[str]:
        return {device.address.split(":")[1] for device in self.devices_of(server)}


class SameIdsTest(_Base):
    """Aliases that ask for the same devices, as an operator has written them."""

    PCI_ALIAS = [jsonutils.dumps({"name": name, **SAME}) for name in ("ibvf", "ethvf", "fast")]

    def setUp(self) -> None:
        super().setUp()
        self.start_host("one", TWO_FABRICS, entries())

    def test_each_gets_its_own_and_no_other(self) -> None:
        for _ in range(2):
            for role in ("ethvf", "ibvf"):
                server = self.boot(self.make_flavor(flavor_of(role)))
                self.assertEqual({BUS[role]}, self.buses(server))
        self.assert_given_once()

    def test_the_last_one_is_not_replaced_by_another_role(self) -> None:
        for _ in range(2):
            self.boot(self.make_flavor(flavor_of("ethvf")))
        flavor = self.make_flavor(flavor_of("ethvf"))
        server = self.boot(flavor, state="ERROR")
        self.assertIn("No host has 1 ethvf free", self.fault(server))
        self.assertNotIn("0000:", self.fault(server))
        self.assertTrue(
            self.log_lines(r"0000:40:01\.0: its role is ibvf; the request needs ethvf"),
            self.stdlog.logger.output,
        )

    def test_explain_says_the_same(self) -> None:
        flavors = {alias: self.make_flavor(flavor_of(alias)) for alias in ("ethvf", "ibvf", "fast")}
        cloud = snapshot.take_cloud_snapshot()
        self.assertEqual(
            ["ethvf", "fast", "ibvf"],
            [text.split()[4] for text in cloud.problems if "of the roles ethvf and ibvf" in text],
        )
        with self.assertRaisesRegex(
            SnapshotError, "fast matches devices of the roles ethvf and ibvf"
        ):
            explain.explain_flavor(cloud, explain.FlavorQuestion(flavors.pop("fast")))
        for ethvf in (True, False):
            cloud = snapshot.take_cloud_snapshot()
            fits = {
                alias: explain.explain_flavor(cloud, explain.FlavorQuestion(flavor)).fits
                for alias, flavor in flavors.items()
            }
            self.assertEqual({"ethvf": ethvf, "ibvf": True}, fits)
            for _ in range(2 if ethvf else 0):
                self.boot(flavors["ethvf"])

    def test_a_name_that_is_no_role(self) -> None:
        server = self.boot(self.make_flavor(flavor_of("fast")), state="ERROR")
        for word in ("fast", "ethvf and ibvf", "has to give each role an alias of its own"):
            self.assertIn(word, self.fault(server))
        self.assertNotIn("one", self.fault(server).split())
        self.assertTrue(self.log_lines("ERROR .*alias fast .*ethvf and ibvf"))


def alias_of(role: str) -> str:
    """As ``nova-hpc configure`` writes it for a new node."""
    return jsonutils.dumps(
        {
            "name": role,
            **SAME,
            "resource_class": identity.class_of_role(role),
            "traits": identity.product_class("15b3", "101e"),
        }
    )


CLASSES = {role: identity.class_of_role(role) for role in BUS}


class ClassTest(_Base):
    """Each role has a resource class of its own: Nova alone does it right, too."""

    PCI_ALIAS = [alias_of(role) for role in BUS]

    def test_flavors_without_hpc_keys(self) -> None:
        self.start_host("one", TWO_FABRICS, entries(CLASSES))
        flavors = {role: self.make_flavor({"pci_passthrough:alias": f"{role}:1"}) for role in BUS}
        for _ in range(2):
            for role, flavor in flavors.items():
                self.assertEqual({BUS[role]}, self.buses(self.boot(flavor)))
        self.boot(flavors["ethvf"], state="ERROR")
        self.assert_given_once()


class QuotaContractTest(_Base):
    """Nova's own unified limits count each role by its resource class."""

    PCI_ALIAS = [alias_of(role) for role in BUS]
    LIMITS = {
        **dict.fromkeys(("servers", "class:VCPU"), 10),
        **dict.fromkeys(("class:MEMORY_MB", "class:DISK_GB"), 10_000),
        "class:CUSTOM_HPC_ETHVF": 1,
        "class:CUSTOM_HPC_IBVF": 2,
    }

    def setUp(self) -> None:
        super().setUp()
        self.flags(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        self.useFixture(limit_fixture.LimitFixture(self.LIMITS, {}))
        self.start_host("one", TWO_FABRICS, entries(CLASSES))

    def test_a_project_has_so_many_of_a_role(self) -> None:
        flavors = {role: self.make_flavor(flavor_of(role)) for role in BUS}
        self.boot(flavors["ethvf"])
        self.boot(flavors["ibvf"])
        if contract.running_nova_release() < 34:
            # Its limits are those of the flavor alone, without what aliases ask for.
            self.boot(flavors["ethvf"])
            return
        with self.assertRaises(base.client.OpenStackApiException) as refused:
            self.boot(flavors["ethvf"])
        self.assertEqual(403, refused.exception.response.status_code)
        self.assertIn("class:CUSTOM_HPC_ETHVF", refused.exception.response.text)
        # Of another role there is one more, whatever the ids.
        self.boot(flavors["ibvf"])


class NodeTest(DriverTest):
    """The node looks once more: not every server comes by way of the filter."""

    PCI_ALIAS = [jsonutils.dumps({"name": "ethvf", **SAME})]

    def test_a_forced_host(self) -> None:
        only = [entry for entry in entries() if entry["hpc_role"] != "ethvf"]
        roles = [f'{{"role": "{role}", "vendor_id": "15b3"}}' for role in ("ibvf", "ethvf")]
        self.flags(device_role=roles, group="hpc")
        self.host("alpha", TWO_FABRICS, only)
        flavor = self.make_flavor(flavor_of("ethvf"))
        server = self.boot(flavor, state="ERROR", az="nova:alpha")
        self.assertIn("a claimed ethvf has the role ibvf, not ethvf", self.fault(server))
        self.assert_no_secrets(self.fault(server))
        self.assertEqual(0, self.failed_builds("alpha"))
        self.assert_all_free("alpha")

    def test_the_class_of_a_device_in_use_keeps_the_service_from_its_start(self) -> None:
        self.host("alpha", TWO_FABRICS, entries())
        server = self.boot(self.make_flavor(flavor_of("ethvf")))
        self._say(entries(CLASSES))
        # What Nova's helper forgets of a host before it starts it again.
        kept = [(one, one["alpha"]) for one in (self.computes, self.compute_rp_uuids)]
        with self.assertRaises(exception.InvalidConfiguration) as refused:
            self.restart_compute_service("alpha", keep_hypervisor_state=True)
        for one, value in kept:
            one["alpha"] = value
        for word in (
            "PCI device 0000:41:01.0",
            "class CUSTOM_HPC_ETHVF, but it is CUSTOM_PCI_15B3_101E",
            f"server {server['id']} has it",
            "InventoryInUse",
            "role_options: {ethvf: {identity: trait}}",
        ):
            self.assertIn(word, str(refused.exception))
        self.assertTrue(self.log_lines("devices of the roles ibvf, which .hpc.device_role"))
        # What it was, and with a trait of the role, it may be.
        with_traits = entries()
        for entry in with_traits:
            entry["traits"] = entry["hpc_traits"] = identity.trait_of_role(entry["hpc_role"])
        self._say(with_traits)
        self.computes["alpha"] = self.restart_compute_service("alpha", keep_hypervisor_state=True)
        # The devices that nobody has may change.
        self._delete_server(server)
        self._say(entries(CLASSES))
        self.computes["alpha"] = self.restart_compute_service("alpha", keep_hypervisor_state=True)

    def _say(self, device_spec) -> None:
        self.flags(device_spec=[jsonutils.dumps(each) for each in device_spec], group="pci")
