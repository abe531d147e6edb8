"""``nova-hpc explain`` says what the scheduler does, on Nova's own stack."""

from __future__ import annotations

from nova import context as nova_context
from nova import objects

from nova_hpc.placement import snapshot_document
from nova_hpc.placement.explain import explain
from nova_hpc.placement.explain_model import Past, Question, Report
from nova_hpc.placement.explain_past import explain_server
from nova_hpc.placement.snapshot import Snapshot, SnapshotError
from nova_hpc.topology.level import Level
from scheduler_filters import cloud
from tests.functional import base, fixtures
from tests.functional.fixtures import Shape, Switch


class ExplainBase(base.HpcServersTest):
    """What the tests of explain have in common."""

    def cloud(self) -> Snapshot:
        """The cloud now, by way of the text of a file."""
        return snapshot_document.loads(snapshot_document.dumps(cloud.take()))

    def explain(self, flavor: str, **question: object) -> Report:
        return explain(self.cloud(), Question(flavor, **question))

    def addresses(self, report: Report, number: int = 0) -> list[str]:
        """Pools of the devices that a report chooses, once for each device."""
        placed = report.placed[number]
        names = {device.provider: device.address for device in placed.before.devices}
        return sorted(names[pick.pool] for pick in placed.choice.devices.picks)

    def pools_of(self, server: dict) -> list[str]:
        """The same of the devices that Nova gave to a server."""
        return sorted(device.parent_addr or device.address for device in self.devices_of(server))

    def setUp(self) -> None:
        super().setUp()
        # Of equal devices every server would take others.
        self.flags(spread_equal_sets=False, group="hpc")

    def assert_explained(self, flavor: str) -> dict:
        """What is explained is what then happens; returns the server."""
        report = self.explain(flavor)
        self.assertTrue(report.fits)
        server = self.boot(flavor)
        self.assertEqual(report.placed[0].before.host, self.host_of(server))
        self.assertEqual(self.addresses(report), self.pools_of(server))
        self.assertIs(report.placed[0].choice.devices.level, self.level_of(server))
        return server


class ExplainTest(ExplainBase):
    """The same state is explained and then scheduled."""

    def test_same_devices_as_the_filter(self) -> None:
        """Until nothing fits, on hosts that differ, with GPUs and functions."""
        self.start_host("one", Shape((Switch(gpus=3, pfs=1), Switch(gpus=2, pfs=1, numa=1))))
        self.start_host("two", Shape((Switch(gpus=1, pfs=1), Switch(gpus=4, pfs=1, numa=1))))
        # No two hosts and switches are equal, so there is nothing to spread.
        pair = self.make_flavor(
            {"pci_passthrough:alias": "gpu:2,vf:2", "hpc:affinity": "switch"}, name="pair"
        )
        single = self.make_flavor(
            {"pci_passthrough:alias": "gpu:1,vf:1", "hpc:affinity": "switch"}, name="single"
        )
        for flavor in (single, pair, single):
            self.assert_explained(flavor)
        report = self.explain(pair)
        while report.fits:
            self.assert_explained(pair)
            report = self.explain(pair)
        self.assertEqual((), report.placed)
        self.boot(pair, state="ERROR")
        for verdict in report.verdicts:
            (line,) = self.log_lines(f"HpcTopologyFilter rejects {verdict.node.host}, ")
            self.assertIn(verdict.reason, line)

    def test_count_is_consumed(self) -> None:
        self.start_host("one", Shape((Switch(gpus=3), Switch(gpus=2, numa=1))))
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"})
        report = self.explain(flavor, count=3)
        self.assertEqual(2, len(report.placed))
        self.assertFalse(report.fits)
        # One GPU is left, wherever the third server may look.
        self.assertEqual(["size"], [remedy.kind for remedy in report.remedies])
        for number in range(2):
            server = self.boot(flavor)
            self.assertEqual(self.addresses(report, number), self.pools_of(server))
        self.boot(flavor, state="ERROR")

    def test_guest_cells_and_pages(self) -> None:
        """CPUs and pages beside the devices decide as they do in Nova."""
        self.flags(cpu_dedicated_set="0-7", group="compute")
        self.start_host("one", Shape((Switch(gpus=1), Switch(gpus=2, numa=1))))
        specs = {
            "pci_passthrough:alias": "gpu:1",
            "hpc:affinity": "numa",
            "hw:cpu_policy": "dedicated",
            "hw:numa_nodes": "1",
            "hw:pci_numa_affinity_policy": "required",
        }
        flavor = self.make_flavor(specs, vcpu=3)
        for _ in range(2):
            self.assert_explained(flavor)
        report = self.explain(flavor)
        self.assertFalse(report.fits)
        self.assertIn("CPU", report.verdicts[0].reason)
        # Either server leaves CPUs behind, but only one GPU is beside them.
        self.assertIn("server", {remedy.kind for remedy in report.remedies})
        self.boot(flavor, state="ERROR")

    def test_equal_devices_are_spread(self) -> None:
        """Which of equal devices a server gets is its own; the rest is as explained."""
        self.flags(spread_equal_sets=True, group="hpc")
        self.start_host("one", Shape((Switch(gpus=1), Switch(gpus=4, numa=1))))
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"})
        for _ in range(2):
            report = self.explain(flavor)
            server = self.boot(flavor)
            truth = self.shapes["one"].locations()
            self.assertEqual(
                [truth[address] for address in self.addresses(report)], self.locations_of(server)
            )

    def test_a_service_that_is_disabled_and_a_reserved_device(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=1))
        self.start_host("two", Shape((Switch(gpus=1), Switch(gpus=1, numa=1))))
        (service,) = self.api.get_services(host="one", binary="nova-compute")
        self.api.put_service(service["id"], {"status": "disabled", "disabled_reason": "fire"})
        self._reserve_placement_resource("two_0000:40:00.0", fixtures.GPU_CLASS, 1)
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:1", "hpc:affinity": "host"})
        report = self.explain(flavor)
        self.assertEqual("its nova-compute is disabled (fire)", report.verdicts[0].reason)
        self.assertEqual(["0000:41:00.0"], self.addresses(report))
        self.assert_explained(flavor)

    def test_what_nova_refuses(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=1))
        unknown = self.make_flavor(
            {"pci_passthrough:alias": "tpu:1", "hpc:affinity": "host"}, name="unknown"
        )
        plain = self.make_flavor({"pci_passthrough:alias": "gpu:1"}, name="plain")
        for flavor, text in ((unknown, "tpu"), (plain, "no hpc: keys"), ("none", "no flavor")):
            error = self.assertRaises(SnapshotError, self.explain, flavor)
            self.assertIn(text, str(error))

    def test_server(self) -> None:
        """Nova's records say which devices a server has."""
        self.start_host("one", Shape((Switch(gpus=2, pfs=1), Switch(gpus=2, pfs=1, numa=1))))
        flavor = self.make_flavor({"pci_passthrough:alias": "gpu:1,vf:2", "hpc:affinity": "switch"})
        server = self.boot(flavor)
        taken = self.cloud()
        past: Past = explain_server(taken, server["id"])
        self.assertEqual(
            [device.address for device in self.devices_of(server)],
            sorted(address for each in past.given for address in each.addresses),
        )
        self.assertEqual(past, explain_server(taken, server["name"]))

    def test_decision_and_reached_level(self) -> None:
        self.start_host("one", fixtures.two_switches(gpus=1))
        server = self.boot(
            self.make_flavor(
                {
                    "pci_passthrough:alias": "gpu:2",
                    "hpc:affinity": "switch",
                    "hpc:affinity_policy": "preferred",
                }
            )
        )
        instance = objects.Instance.get_by_uuid(
            nova_context.get_admin_context(), server["id"], expected_attrs=["system_metadata"]
        )
        instance.system_metadata["hpc_decision"] = (
            '{"v":1,"asked":"switch","policy":"preferred","reached":"numa"}'
        )
        instance.save()
        past = explain_server(self.cloud(), server["id"])
        self.assertIs(Level.NUMA, past.decision.reached)
        self.assertIn("preferred", past.notes[0])
