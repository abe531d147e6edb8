# SPDX-License-Identifier: Apache-2.0
"""A host whose guests keep their domains, and may be busy."""

from __future__ import annotations

import threading
from typing import Any

from nova.virt.libvirt import event as libvirtevent

from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.lifecycle.domains import FaithfulDomains, source_of
from virt_driver_patches.domain import attach

HOST = fixtures.Shape((fixtures.Switch(gpus=4),))
#: Without any hpc: key, as most flavors are.
STOCK = {"pci_passthrough:alias": "gpu:2"}
OURS = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}
MIRROR = {**OURS, "hpc:guest_topology": "mirror"}
SUSPEND = {"suspend": None}
SNAPSHOT = {"createImage": {"name": "snapshot"}}


class GuestTest(DriverTest):
    """A host whose guests keep their domains, and may be busy."""

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        #: Libvirt's events do not arrive.
        self.no_answer = False
        self.flags(hw_machine_type=["x86_64=q35"], group="libvirt")
        self.guests = self.useFixture(FaithfulDomains(self._removed))
        self.useFixture(fixtures.fixtures.MonkeyPatch(f"{attach.__name__}._PAUSE", 0.0))
        self.flags(device_detach_timeout=1, device_detach_attempts=1, group="libvirt")
        for path, value in (
            ("nova.virt.libvirt.utils.get_disk_size", 1 << 30),
            ("nova.virt.libvirt.utils.get_disk_backing_file", None),
            ("nova.virt.libvirt.utils.create_image", None),
            ("nova.virt.libvirt.utils.extract_snapshot", None),
            ("nova.privsep.path.chown", None),
        ):
            self.useFixture(fixtures.fixtures.MockPatch(path, return_value=value))
        self.host("alpha", HOST)

    def _removed(self, connection: Any, uuid: str, alias: str) -> None:
        if self.no_answer:
            return
        event = libvirtevent.DeviceRemovedEvent(uuid, alias)
        driver = self.computes["alpha"].driver
        threading.Timer(0.01, driver.emit_event, [event]).start()

    def domain(self, server: dict[str, Any]) -> Any:
        connection = self.computes["alpha"].driver._host.get_connection()
        (found,) = (each for each in connection._vms.values() if each.UUIDString() == server["id"])
        return found

    def places(self, server: dict[str, Any]) -> dict[Any, dict[str, str]]:
        """Host address of the devices in the running guest -> address in the guest."""
        devices = self.domain(server).hpc_live.devices
        return {
            source_of(each): dict(each.find("address").attrib)
            for each in devices
            if source_of(each) is not None
        }

    def reset(self, server: dict[str, Any]) -> None:
        self.guests.reset(self.domain(server))

    def ask(self, server: dict[str, Any], body: dict[str, Any], status: str = "ACTIVE") -> str:
        """An action to its end; the reason if it has failed."""
        self.api.post_server_action(server["id"], body)
        idle = {"OS-EXT-STS:task_state": None, "status": status}
        self._wait_for_server_parameter(server, idle)
        (newest, *_) = self.api.get_instance_actions(server["id"])
        events: list[dict[str, Any]] = []

        def over() -> None:
            found = self.api.get_instance_action_details(server["id"], newest["request_id"])
            events[:] = found["events"]
            self.assertTrue(events and all(each["finish_time"] for each in events))

        self.eventually(over)
        return " ".join(each["details"] or "" for each in events).strip()
