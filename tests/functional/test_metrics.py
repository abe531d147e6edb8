# SPDX-License-Identifier: Apache-2.0
"""What is scraped while nova-compute restarts: the truth, or that it is unknown."""

from __future__ import annotations

from nova import context as nova_context
from nova import objects

from nova_hpc.tenancy import ledger
from nova_hpc_tools.metrics import catalogue, cloud_facts, node_facts
from nova_hpc_tools.readers import node_health, snapshot
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

FOUR = fixtures.Shape((fixtures.Switch(gpus=2), fixtures.Switch(gpus=2)))
FREE, USED, LOST, WITHHELD = "free", "in use", "quarantined", "withheld"


class MetricsTest(DriverTest):
    def of_node(self) -> dict[str, int] | None:
        """GPUs by state, as a scrape of the node says; None: it says nothing of them."""
        config = self.sysfs["alpha"].root / "metrics.conf"
        config.write_text(
            f"[hpc]\nsysfs_root = {self.sysfs['alpha'].root}\n"
            f"ledger_file = {self.ledger_path('alpha')}\n"
        )
        samples = node_facts.read_node_samples([f"--config-file={config}"], node_facts.UuidWish())
        states = {
            sample.labels[1]: int(sample.value)
            for sample in samples
            if sample.kind is catalogue.NODE_DEVICES and sample.labels[0] == "gpu" and sample.value
        }
        return states or None

    def of_cloud(self) -> dict[str, int]:
        """GPUs by state on hosts in service, and what is withheld, by a scrape of the cloud."""
        cloud = snapshot.take_cloud_snapshot()
        self.assertTrue(cloud.complete)
        health = node_health.collect_node_health()
        samples = cloud_facts.list_cloud_samples(cloud, health, cloud_facts.FlavorWish())
        states = {}
        for sample in samples:
            if sample.kind is catalogue.CLOUD_DEVICES and sample.labels[::2] == ("gpu", "in"):
                states[sample.labels[1]] = int(sample.value)
            elif sample.kind is catalogue.CLOUD_WITHHELD and sample.value:
                states[sample.labels[0]] = int(sample.value)
        return {state: number for state, number in states.items() if number}

    def set_service(self, down: bool) -> None:
        service = objects.Service.get_by_host_and_binary(
            nova_context.get_admin_context(), "alpha", "nova-compute"
        )
        service.forced_down = down
        service.save()

    def test_a_restart(self) -> None:
        self.host("alpha", FOUR)
        server = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:1"}))
        (device,) = self.devices_of(server)
        (lost, *_) = sorted(self.tracked("alpha").keys() - {device.address})
        self.quarantine("alpha", lost, "dust")
        self.update("alpha")
        truth = {FREE: 2, USED: 1, LOST: 1}
        self.assertEqual(truth, self.of_node())
        self.assertEqual(truth, self.of_cloud())
        # Nova takes the host for down: it is no host that gives anything.
        self.set_service(down=True)
        self.assertEqual({LOST: 1}, self.of_cloud())
        self.assertEqual(truth, self.of_node())
        self.set_service(down=False)
        seen: list[dict[str, int] | None] = []
        of_cloud: list[dict[str, int]] = []
        change, update = (
            ledger.LedgerFile.change,
            type(self.computes["alpha"].manager).update_available_resource,
        )

        def look(file, edit):
            seen.append(self.of_node())
            result = change(file, edit)
            seen.append(self.of_node())
            return result

        def look_around(manager, *more, **words):
            of_cloud.append(self.of_cloud())
            update(manager, *more, **words)
            of_cloud.append(self.of_cloud())

        for target, wrapped in (
            ("nova_hpc.tenancy.ledger.LedgerFile.change", look),
            ("nova.compute.manager.ComputeManager.update_available_resource", look_around),
        ):
            self.useFixture(fixtures.fixtures.MonkeyPatch(target, wrapped))
        self.computes["alpha"] = self.restart_compute_service("alpha", keep_hypervisor_state=True)
        self.update("alpha")
        # Each moment at which the service wrote, and each of its reports.
        self.assertGreater(len(seen), 2)
        self.assertGreater(len(of_cloud), 2)
        # A service that begins doubts for a moment what is clean, and gives nobody such a device.
        doubted = {WITHHELD: 2, USED: 1, LOST: 1}
        for states in seen:
            self.assertIn(states, (None, truth, doubted))
        for states in of_cloud:
            self.assertIn(states, (truth, {LOST: 1}))
        self.assertEqual((truth, truth), (self.of_node(), self.of_cloud()))
