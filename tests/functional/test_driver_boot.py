# SPDX-License-Identifier: Apache-2.0
"""Servers that come back with their host: what the host makes late is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nova import context as nova_context
from nova import objects

from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from virt_driver_patches.driver import host_boot

TOGETHER = fixtures.Shape((fixtures.Switch(gpus=2),))
PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}


class HostBootTest(DriverTest):
    """The devices are bound by a unit of the host (``managed`` is no)."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.fixtures.MonkeyPatch(f"{host_boot.__name__}._PAUSE", 0.02))
        self.flags(resume_guests_state_on_host_boot=True)
        self.host("alpha", TOGETHER)
        self.server = self.boot(self.make_flavor(PAIR))
        self.devices = [each.address for each in self.devices_of(self.server)]
        self.driver = self.computes["alpha"].driver

    def boot_the_host(self) -> None:
        """As Nova resumes a server while its service starts."""
        context = nova_context.get_admin_context()
        instance = objects.Instance.get_by_uuid(context, self.server["id"])
        self.driver._host._get_domain(instance).destroy()
        self.computes["alpha"].manager._resume_guests_state(
            context, instance, instance.get_network_info()
        )

    def status(self) -> tuple[str, str]:
        server: dict[str, Any] = self.api.get_server(self.server["id"])
        return server["status"], server.get("fault", {}).get("message", "")

    def test_a_device_that_is_bound_late_is_waited_for(self) -> None:
        sysfs, started = self.sysfs["alpha"], len(self.domains.given[self.server["id"]])
        for each in self.devices:
            sysfs.bind(each, None)

        def ready(lacks: list[str]) -> None:
            """Called while it waits: a unit of the host comes to it at last."""
            self.assertIn("bound to no driver", lacks[0])
            for each in self.devices:
                sysfs.bind(each, "vfio-pci")

        self.look_at_waits(ready)
        self.boot_the_host()
        self.assertEqual(("ACTIVE", ""), self.status())
        self.assertEqual(started + 1, len(self.domains.given[self.server["id"]]))
        self.assertEqual(1, len(self.log_lines("Waiting for the host: PCI device")))

    def test_a_device_that_is_never_bound_is_said_to_be_unbound(self) -> None:
        """It was said to be in use by the host, which nobody could find there."""
        self.flags(boot_patience=0, group="hpc")
        self.sysfs["alpha"].bind(self.devices[0], None)
        self.boot_the_host()
        status, fault = self.status()
        self.assertEqual("ERROR", status)
        self.assertIn("1 has no driver on the host yet", fault)
        self.assertNotIn("in use by the host", fault)
        self.assert_no_secrets(fault)

    def test_a_device_that_the_host_uses_is_in_use(self) -> None:
        self.flags(boot_patience=0, group="hpc")
        self.sysfs["alpha"].bind(self.devices[0], "nvidia")
        self.boot_the_host()
        self.assertIn("1 is in use by the host", self.status()[1])

    def look_at_waits(self, tell: Callable[[list[str]], None]) -> None:
        """Call *tell* at the first wait, in place of the pause."""
        waits = self.driver._hpc_host_boot
        missing = host_boot.list_missing_resources

        def seen(instance: Any, reading: Any) -> Any:
            found = missing(instance, reading)
            if found:
                tell(list(found))
            return found

        self.useFixture(
            fixtures.fixtures.MonkeyPatch(f"{host_boot.__name__}.list_missing_resources", seen)
        )
        self.assertEqual(60, waits.patience)


class HugePagesTest(DriverTest):
    """A server of huge pages, on a host that has none yet."""

    def test_huge_pages_are_waited_for(self) -> None:
        self.host("alpha", TOGETHER)
        instance = self.instance(self.boot(self.make_flavor(PAIR)))
        cell = objects.InstanceNUMACell(id=0, memory=512, pagesize=2048)
        instance.numa_topology = objects.InstanceNUMATopology(cells=[cell])
        pool = "sys/devices/system/node/node0/hugepages/hugepages-2048kB"
        folder = self.sysfs["alpha"].root / pool
        folder.mkdir(parents=True)

        def have(count: int) -> None:
            for name in ("nr_hugepages", "free_hugepages"):
                (folder / name).write_text(f"{count}\n")

        def lacks() -> tuple[str, ...]:
            source = self.computes["alpha"].driver.hpc_node.source
            return host_boot.list_missing_resources(instance, source.read())

        need = cell.memory * 1024 // 2048
        have(need - 1)
        self.assertEqual(
            (
                f"NUMA node 0 has {need - 1} free huge pages of 2048 KiB, and the server "
                f"needs {need}",
            ),
            lacks(),
        )
        have(need)
        self.assertEqual((), lacks())
        cell.pagesize = 4
        have(0)
        self.assertEqual((), lacks())

    def test_one_time_for_all_servers(self) -> None:
        """Ten servers that wait in vain cost one patience."""
        self.host("alpha", TOGETHER)
        server = self.boot(self.make_flavor(PAIR))
        instance, now = self.instance(server), [100.0]
        for each in self.devices_of(server):
            self.sysfs["alpha"].bind(each.address, None)
        waits = host_boot.HostBoot(
            self.computes["alpha"].driver.hpc_node.source.read,
            patience=5.0,
            clock=lambda: now[0],
            sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
        )
        for _ in range(10):
            waits.wait(instance)
        self.assertEqual(105.0, now[0])
        self.assertEqual(10, len(self.log_lines("The host is not ready: PCI device")))
