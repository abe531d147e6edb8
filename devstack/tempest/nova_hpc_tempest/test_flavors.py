# SPDX-License-Identifier: Apache-2.0
"""A server of an ``hpc:`` flavor gets the devices that it asks for; another one is refused.

As an administrator reads it: Placement's allocation has one device for each that the flavor's
alias names, all of one host, and a refusal says which wish was not met.
"""

from __future__ import annotations

from typing import Any

from tempest import config, exceptions
from tempest.api.compute import base
from tempest.lib import decorators
from tempest.lib.common.utils import data_utils

CONF = config.CONF
ALIAS = "pci_passthrough:alias"


class DevicesTest(base.BaseV2ComputeAdminTest):
    """Servers of a family of flavors that ``nova-hpc flavor create`` has made."""

    min_microversion = "2.86"
    max_microversion = "latest"

    @classmethod
    def skip_checks(cls) -> None:
        """Skip without a flavor."""
        super().skip_checks()
        if not CONF.nova_hpc.flavor:
            raise cls.skipException("[nova_hpc]flavor names no flavor")

    def setUp(self) -> None:
        """Look the flavors up."""
        super().setUp()
        self.placement = self.os_admin.placement_client
        self.flavors = {
            flavor["name"]: flavor
            for flavor in self.os_admin.flavors_client.list_flavors(detail=True)["flavors"]
        }

    def _count_devices(self, flavor: dict[str, Any]) -> int:
        wants = flavor["extra_specs"][ALIAS].split(",")
        return sum(int(want.rpartition(":")[2]) for want in wants)

    def _list_device_allocations(self, server: str) -> dict[str, Any]:
        """Provider -> resources, without those of the host itself."""
        found = self.placement.list_allocations(server)["allocations"]
        host = {"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"}
        return {
            provider: allocation["resources"]
            for provider, allocation in found.items()
            if not host & set(allocation["resources"])
        }

    @decorators.idempotent_id("0f3c5d1e-8a51-4f0e-9d52-7c2a0b6b9e11")
    def test_a_server_gets_the_devices_of_its_flavor(self) -> None:
        """Boot one, and count its devices in Placement."""
        flavor = self.flavors[CONF.nova_hpc.flavor]
        server = self.create_test_server(flavor=flavor["id"], wait_until="ACTIVE")
        allocated = self._list_device_allocations(server["id"])
        amounts = [amount for resources in allocated.values() for amount in resources.values()]
        self.assertEqual(self._count_devices(flavor), sum(amounts))
        # What a server has is given back with it.
        self.delete_server(server["id"])
        self.assertEqual({}, self._list_device_allocations(server["id"]))

    @decorators.idempotent_id("5b0a8d53-6c54-49c4-8d1b-b3a1f5f0d8c2")
    def test_a_refusal_says_which_wish_was_not_met(self) -> None:
        """Ask for one device more than any host has."""
        largest = self.flavors[CONF.nova_hpc.largest_flavor or CONF.nova_hpc.flavor]
        count = self._count_devices({"extra_specs": {ALIAS: self._gpus_of(largest)}}) + 1
        flavor = self.create_flavor(
            ram=largest["ram"],
            vcpus=largest["vcpus"],
            disk=largest["disk"],
            name=data_utils.rand_name("too-many"),
        )
        specs = dict(largest["extra_specs"])
        specs[ALIAS] = f"{CONF.nova_hpc.gpu_alias}:{count}"
        # One group of all of them, on as many cells as any host has.
        for key in ("hpc:group", "hw:numa_nodes"):
            specs.pop(key, None)
        specs.update({"hpc:affinity": "host", "hw:pci_numa_affinity_policy": "preferred"})
        self.os_admin.flavors_client.set_flavor_extra_spec(flavor["id"], **specs)
        # tempest deletes a server that was not built; its fault is in the error.
        error = self.assertRaises(
            exceptions.BuildErrorException,
            self.create_test_server,
            flavor=flavor["id"],
            wait_until="ACTIVE",
        )
        self.assertIn(f"No host has {count} {CONF.nova_hpc.gpu_alias}", str(error))

    def _gpus_of(self, flavor: dict[str, Any]) -> str:
        """The part of a flavor's alias that asks for GPUs."""
        wants = flavor["extra_specs"][ALIAS].split(",")
        return next(want for want in wants if want.startswith(f"{CONF.nova_hpc.gpu_alias}:"))
