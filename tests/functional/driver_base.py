# SPDX-License-Identifier: Apache-2.0
"""The base of the driver's functional tests: hosts with a sysfs of their own."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from lxml import etree
from nova import context as nova_context
from nova import objects, utils
from nova.tests.functional.libvirt import base as libvirt_base

from nova_hpc.from_nova import contract
from nova_hpc.tenancy.ledger import LedgerFile
from nova_hpc.wire import decision, stats
from nova_hpc.wire.ledger import Ledger
from tests.functional import base, fixtures
from tests.functional.driver_fixtures import FakeSysfs


class DriverTest(base.HpcServersTest):
    """Compute services with this project's driver."""

    DRIVER = base.HPC_DRIVER

    def setUp(self) -> None:
        self.sysfs: dict[str, FakeSysfs] = {}
        self._native_threads()
        super().setUp()
        self.neutron = self.useFixture(libvirt_base.LibvirtNeutronFixture(self))

    def _native_threads(self) -> None:
        """Let Nova's fake notifier work without eventlet before release 34."""
        if utils.concurrency_mode_threading():
            if contract.running_nova_release() == 32:
                self.skipTest("nova-compute 32 copies a lock, which native threads do not allow")
            self.useFixture(
                fixtures.fixtures.MockPatch(
                    "nova.tests.fixtures.notifications.FakeVersionedNotifier"
                    "._get_sender_test_case_id",
                    new=staticmethod(self.id),
                )
            )

    # Nova's tests give up after five seconds, which a busy machine needs.

    def _wait_for_server_parameter(self, server, expected_params, max_retries=120, **keywords):
        return super()._wait_for_server_parameter(
            server, expected_params, max_retries=max_retries, **keywords
        )

    def _wait_for_instance_action_event(self, *arguments, **keywords):
        for _ in range(11):
            with contextlib.suppress(AssertionError):
                return super()._wait_for_instance_action_event(*arguments, **keywords)
        return super()._wait_for_instance_action_event(*arguments, **keywords)

    def host(
        self,
        name: str,
        shape: fixtures.Shape,
        device_spec: Iterable[Mapping[str, str]] | None = None,
        before: Callable[[FakeSysfs], None] | None = None,
        **options: object,
    ) -> str:
        """Start a host of *shape* with its own sysfs.

        :param before: changes the sysfs before the service starts.
        """
        tree = self.useFixture(FakeSysfs(shape))
        self.sysfs[name] = tree
        if before is not None:
            before(tree)
        self.flags(
            sysfs_root=str(tree.root),
            ledger_file=str(self.ledger_path(name)),
            group="hpc",
        )
        self.start_host(name, shape, device_spec, **options)
        self.settle_start(name)
        return name

    def settle_start(self, name: str) -> None:
        """The first start has cleaned what nobody knew; only later resets are counted."""
        self.update(name)  # Nova's records are there now, and what they say is written down
        for each in self.sysfs[name].devices.glob("*/reset"):
            if each.is_file():
                each.write_text("")

    def update(self, name: str) -> None:
        """The periodic update of one host."""
        self.computes[name].manager.update_available_resource(nova_context.get_admin_context())

    def quarantine(self, host: str, address: str, reason: str) -> None:
        """What an operator does."""
        self.ledger_file(host).quarantine({address: reason})

    def ledger_file(self, host: str) -> LedgerFile:
        return LedgerFile(self.ledger_path(host))

    def ledger_path(self, host: str) -> Path:
        return self.sysfs[host].root / "ledger"

    def ledger(self, host: str) -> Ledger:
        """What a host remembers of its devices."""
        return self.ledger_file(host).read()

    def stats_of(self, name: str) -> stats.StatsDocument:
        """What the host has reported about itself."""
        node = objects.ComputeNode.get_by_host_and_nodename(
            nova_context.get_admin_context(), name, name
        )
        document = stats.read_stats_or_none(node.stats[stats.KEY])
        assert document is not None
        return document

    def failed_builds(self, name: str) -> int:
        """What BuildFailureWeigher goes by."""
        return int(self.computes[name].manager.rt.stats[name].get("failed_builds", 0))

    def tracked(self, name: str) -> dict[str, str]:
        """Address -> status of the devices that Nova tracks on a host."""
        context = nova_context.get_admin_context()
        node = objects.ComputeNode.get_by_host_and_nodename(context, name, name)
        found = objects.PciDeviceList.get_by_compute_node(context, node.id)
        return {device.address: device.status for device in found}

    def in_placement(self, name: str) -> dict[str, int]:
        """PCI address -> devices in the inventory of its provider in Placement."""
        return self._inventories(name, "total")

    def given_by_placement(self, name: str) -> dict[str, int]:
        """PCI address -> devices of its provider that are not reserved, where there are any."""
        reserved = self.reserved_in_placement(name)
        left = {each: total - reserved[each] for each, total in self.in_placement(name).items()}
        return {each: count for each, count in left.items() if count}

    def reserved_in_placement(self, name: str) -> dict[str, int]:
        """PCI address -> devices that are reserved of its provider in Placement."""
        return self._inventories(name, "reserved")

    def _inventories(self, name: str, field: str) -> dict[str, int]:
        found = {}
        body = self.placement.get("/resource_providers", version="1.14").body
        for provider in body["resource_providers"]:
            host, _, address = provider["name"].partition("_")
            if host == name and address:
                url = f"/resource_providers/{provider['uuid']}/inventories"
                inventories = self.placement.get(url).body["inventories"]
                found[address] = sum(each[field] for each in inventories.values())
        return found

    def assert_all_free(self, name: str) -> None:
        self.assertEqual({"available"}, set(self.tracked(name).values()))

    def assert_no_secrets(self, text: str) -> None:
        """The user's text has no PCI address and no host's name."""
        self.assertIsNone(re.search(r"[0-9a-f]{4}:[0-9a-f]{2}:", text), text)
        for name in self.sysfs:
            self.assertIsNone(re.search(rf"\b{name}\b", text), text)

    def instance(self, server: Mapping[str, object]) -> objects.Instance:
        return objects.Instance.get_by_uuid(
            nova_context.get_admin_context(),
            server["id"],
            expected_attrs=["flavor", "system_metadata", "pci_devices", "numa_topology"],
        )

    def decision(self, server: Mapping[str, object]) -> decision.Decision | None:
        return decision.read_decision(self.instance(server).system_metadata.get("hpc_decision"))

    def fault_messages(self, server: Mapping[str, object]) -> list[str]:
        """Every fault of the server, newest first; the API shows the last of one in error."""
        found = objects.InstanceFaultList.get_by_instance_uuids(
            nova_context.get_admin_context(), [server["id"]]
        )
        return [fault.message for fault in found]

    def instance_flavor(self, server: Mapping[str, object]) -> Mapping[str, str]:
        """Extra specs of the flavor that the server has now."""
        return self.instance(server).flavor.extra_specs

    def eventually(self, assertion: Callable[[], None]) -> None:
        """Repeat an assertion until it holds, for what services do in their own time."""
        for _ in range(120):
            with contextlib.suppress(AssertionError):
                return assertion()
            time.sleep(0.5)
        return assertion()

    def stop_host(self, name: str) -> None:
        """The host dies."""
        self.computes[name].stop()
        (service,) = self.api.get_services(host=name, binary="nova-compute")
        self.api.put_service_force_down(service["id"], True)

    def refused_action(self, server: Mapping[str, object], body: dict[str, object]) -> None:
        """Ask for an action that a compute service refuses.

        In these tests Nova's casts are calls, so the refusal comes back through
        the API, which real clients do not see.
        """
        with contextlib.suppress(base.client.OpenStackApiException):
            self.api.post_server_action(server["id"], body)

    def direct_port(self) -> str:
        """A new direct (SR-IOV) port of the network physnet4."""
        port = self.neutron.network_4_port_1
        return self.neutron.create_port({"port": port})["port"]["id"]

    @staticmethod
    def canonical(domain: etree._Element) -> str:
        return etree.tostring(domain, method="c14n2", strip_text=True).decode()
