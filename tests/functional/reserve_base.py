# SPDX-License-Identifier: Apache-2.0
"""What Placement says of a provider, and what others write there."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from oslo_utils import uuidutils

from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

GPU = {"pci_passthrough:alias": "gpu:1"}
NEAR = {"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"}
VF = {"pci_passthrough:alias": "vf:1"}
PF, VFS = "0000:40:01.0", [f"0000:40:01.{function}" for function in (1, 2, 3, 4)]
FIRST, SECOND = "0000:40:00.0", "0000:40:01.0"
TWO = fixtures.Shape((fixtures.Switch(gpus=2),))
ADAPTER = fixtures.Shape((fixtures.Switch(gpus=1, pfs=1),))


class ReserveTest(DriverTest):
    """Helpers: what Placement says of a provider, and what others write there."""

    def setUp(self) -> None:
        super().setUp()
        # What others change in Placement is seen at the next update.
        self.flags(resource_provider_association_refresh=1, group="compute")
        # A device that is away for a moment is tried again at the next update.
        self.flags(suspect_retry=0.0, group="hpc")

    def provider(self, host: str, address: str) -> dict[str, Any]:
        name = f"{host}_{address.upper()}"
        found = self.placement.get(f"/resource_providers?name={name}", version="1.14").body
        (provider,) = found["resource_providers"]
        return provider

    def inventory(self, host: str, address: str) -> dict[str, Any]:
        """Total and reserved of its one resource class."""
        uuid = self.provider(host, address)["uuid"]
        body = self.placement.get(f"/resource_providers/{uuid}/inventories").body
        ((name, fields),) = body["inventories"].items()
        return {"class": name, "total": fields["total"], "reserved": fields["reserved"]}

    def reserved(self, host: str) -> dict[str, tuple[int, int]]:
        """Address of each provider -> how much of its total is reserved."""
        found = {each: self.inventory(host, each) for each in self.in_placement(host)}
        return {each: (one["reserved"], one["total"]) for each, one in found.items()}

    def reserve(self, host: str, address: str, amount: int) -> None:
        """What an operator does."""
        provider = self.provider(host, address)
        name = self.inventory(host, address)["class"]
        url = f"/resource_providers/{provider['uuid']}/inventories/{name}"
        fields = self.placement.get(url).body
        self.placement.put(url, {**fields, "reserved": amount}, version="1.26")
        self.refresh(host)

    def allocate(self, host: str, address: str, consumer: str | None = None) -> str:
        """An allocation of a consumer that nobody knows: what a crash leaves behind."""
        consumer = consumer or uuidutils.generate_uuid()
        uuid = self.provider(host, address)["uuid"]
        name = self.inventory(host, address)["class"]
        body = {
            "allocations": {uuid: {"resources": {name: 1}}},
            "project_id": "p",
            "user_id": "u",
            "consumer_generation": None,
        }
        answer = self.placement.put(f"/allocations/{consumer}", body, version="1.28")
        self.assertEqual(204, answer.status, answer.body)
        return consumer

    def consumers(self, host: str, address: str) -> list[str]:
        uuid = self.provider(host, address)["uuid"]
        body = self.placement.get(f"/resource_providers/{uuid}/allocations").body
        return sorted(body["allocations"])

    def refresh(self, host: str) -> None:
        """Nova keeps what Placement said for five minutes."""
        self.computes[host].manager.rt.reportclient.clear_provider_cache()

    def mark(self, host: str, address: str) -> Mapping[str, Any]:
        """An aggregate of an operator's, and the UUID of the provider."""
        provider = self.provider(host, address)
        url = f"/resource_providers/{provider['uuid']}/aggregates"
        body = {
            "aggregates": [AGGREGATE],
            "resource_provider_generation": provider["generation"],
        }
        self.placement.put(url, body, version="1.19")
        self.refresh(host)
        return provider

    def aggregates(self, host: str, address: str) -> list[str]:
        uuid = self.provider(host, address)["uuid"]
        url = f"/resource_providers/{uuid}/aggregates"
        return self.placement.get(url, version="1.19").body["aggregates"]

    @contextlib.contextmanager
    def unlisted(self, host: str, *addresses: str, kernel: bool = True) -> Iterator[None]:
        """Libvirt does not list these devices for a while.

        :param kernel: the kernel has not got them either.
        """
        names = {f"pci_{address.translate(str.maketrans(':.', '__'))}" for address in addresses}
        connection = self.computes[host].driver._host
        plain = connection.list_all_devices

        def without(flags: int) -> list[Any]:
            return [each for each in plain(flags=flags) if each.name() not in names]

        tree = self.sysfs[host]
        with (
            mock.patch.object(connection, "list_all_devices", side_effect=without),
            tempfile.TemporaryDirectory(dir=tree.root) as aside,
        ):
            gone = addresses if kernel else ()
            for address in gone:
                (tree.devices / address).rename(Path(aside) / address)
            try:
                yield
            finally:
                for address in gone:
                    (Path(aside) / address).rename(tree.devices / address)

    def restart(self, host: str) -> None:
        """nova-compute is started again."""
        self.computes[host] = self.restart_compute_service(host, keep_hypervisor_state=True)


AGGREGATE = "6f6f6f6f-0000-4000-8000-000000000001"
