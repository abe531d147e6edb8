# SPDX-License-Identifier: Apache-2.0
"""Servers with devices of their flavor that move live, and the truth about both nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib import parse

from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.fixtures import Shape, Switch

TOGETHER = Shape((Switch(gpus=4),))


class LiveBase(DriverTest):
    """Devices of the flavor that the operator has declared ``live_migratable``."""

    CAST_AS_CALL = False
    PCI_ALIAS: ClassVar = [
        json.dumps({**each, "live_migratable": "yes"}) for each in fixtures.CLASS_ALIASES
    ] + [json.dumps({"name": "fixed", "resource_class": fixtures.GPU_CLASS})]

    def setUp(self) -> None:
        super().setUp()
        patch = fixtures.fixtures.MonkeyPatch
        # Nova's fake libvirt is as old as Nova takes, and live_migratable wants a newer one.
        for name in ("LIBVIRT", "QEMU"):
            option = f"nova.virt.libvirt.driver.MIN_VFIO_PCI_VARIANT_{name}_VERSION"
            self.useFixture(patch(option, (1, 0, 0)))
        self.migrate = self._copy
        self.useFixture(
            patch(
                "nova.tests.fixtures.libvirt.Domain.migrateToURI3",
                lambda domain, destination, params, flags: self.migrate(
                    domain, self.computes[parse.urlparse(destination).netloc], params
                ),
            )
        )

    @staticmethod
    def _copy(domain: Any, there: Any, params: Mapping[str, str]) -> None:
        """What libvirt and QEMU of both hosts do between them; the guest is gone here then."""
        there.driver._host.get_connection().defineXML(params["destination_xml"]).create()
        domain.complete_job()
        domain.destroy()
        domain.undefine()

    @staticmethod
    def _fail(domain: Any, there: Any, params: Mapping[str, str]) -> None:
        domain.fail_job()

    def place(self, name: str, shape: Shape, **options: object) -> None:
        entries = [{**entry, "live_migratable": "yes"} for entry in shape.device_spec()]
        self.host(name, shape, device_spec=entries, **options)

    def alone(self, specs: Mapping[str, str], shape: Shape = TOGETHER, **more: Any) -> dict:
        """A server on alpha, for which there is no other host yet."""
        options = {"cpu_dedicated_set": "1-3,5-7"} if "hw:cpu_policy" in specs else {}
        self.place("alpha", shape, **options)
        return self.boot(self.make_flavor(specs, **more))

    def _ask(self, server: Mapping[str, Any]) -> None:
        where = {"host": None, "block_migration": "auto"}
        self.api.post_server_action(server["id"], {"os-migrateLive": where})

    def moved(self, server: Mapping[str, Any]) -> None:
        self._live_migrate(server, "completed")
        self.assertEqual("beta", self.host_of(server))

    def assert_held(self, host: str, *servers: Mapping[str, Any]) -> None:
        """Nova's tracker, its records, Placement and the ledger agree about a host's devices."""
        self.update(host)
        uuids = {server["id"] for server in servers}
        taken = {each for each, status in self.tracked(host).items() if status != "available"}
        self.assertEqual(taken, {each for each in taken if self.tracked(host)[each] == "allocated"})
        marked = self.ledger(host).marked
        self.assertEqual(taken, set(marked))
        self.assertEqual(uuids, set(marked.values()))
        devices = [each for server in servers for each in self.devices_of(server)]
        self.assertEqual(taken, {each.address for each in devices})
        # Placement counts the functions of an adapter together.
        providers = {
            each.address if each.dev_type == "type-PCI" else each.parent_addr for each in devices
        }
        self.assertEqual(providers, self.used_in_placement(host))
        self.assert_given_once()
        self.assertEqual({}, self.stats_of(host).differs)

    def used_in_placement(self, host: str) -> set[str]:
        found = set()
        for provider in self.placement.get("/resource_providers", version="1.14").body[
            "resource_providers"
        ]:
            name, _, address = provider["name"].partition("_")
            if name == host and address:
                usages = self.placement.get(f"/resource_providers/{provider['uuid']}/usages")
                if any(usages.body["usages"].values()):
                    found.add(address.lower())
        return found

    def assert_in_guest(self, server: Mapping[str, Any]) -> None:
        """The guest has Nova's devices, now and after its next start."""
        devices = [each.address for each in self.devices_of(server)]
        self.assertEqual(devices, self.domain_devices(server))
        decision = self.decision(server)
        self._reboot_server(server, hard=True)
        self.assertEqual(devices, [each.address for each in self.devices_of(server)])
        self.assertEqual(devices, self.domain_devices(server))
        self.assertEqual(decision, self.decision(server))

    def refused(self, server: Mapping[str, Any], text: str) -> None:
        """The server stays as it was, its user reads why, and nothing stays claimed."""
        before = (self.devices_of(server), self.instance(server).system_metadata)
        given = len(self.domains.given[server["id"]])
        self._ask(server)
        self._wait_for_migration_status(server, ["error"])
        self._wait_for_state_change(server, "ACTIVE")
        self.assertEqual("alpha", self.host_of(server))
        after = (self.devices_of(server), self.instance(server).system_metadata)
        self.assertEqual(str(before), str(after))
        self.assertEqual(given, len(self.domains.given[server["id"]]))
        self.assert_held("alpha", server)
        for each in self.computes.keys() - {"alpha"}:
            self.assert_held(each)
        newest = self.api.get_instance_actions(server["id"])[0]["request_id"]
        events = self.api.get_instance_action_details(server["id"], newest)["events"]
        told = [each["details"] for each in events if each["details"]]
        self.assertTrue([each for each in told if text in each], told)
