# SPDX-License-Identifier: Apache-2.0
"""A role is binding: nobody gets a device of another role for having the same ids."""

from __future__ import annotations

from oslo_serialization import jsonutils

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
        self.assertIn("0 ethvf free", self.fault(server))
        self.assertNotIn("0000:", self.fault(server))
        self.assertTrue(
            self.log_lines(r"0000:40:01\.0: its role is ibvf, asked for is ethvf"),
            self.stdlog.logger.output,
        )

    def test_a_name_that_is_no_role(self) -> None:
        server = self.boot(self.make_flavor(flavor_of("fast")), state="ERROR")
        for word in ("fast", "ethvf and ibvf", "cannot be told apart"):
            self.assertIn(word, self.fault(server))
        self.assertNotIn("one", self.fault(server).split())
        self.assertTrue(self.log_lines("ERROR .*alias fast .*ethvf and ibvf"))


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
