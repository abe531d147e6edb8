# SPDX-License-Identifier: Apache-2.0
"""With this project's driver, explain also knows where devices in use sit."""

from __future__ import annotations

from nova_hpc_common.level import Distance, Level
from nova_hpc_tools.cloud.explain import explain_flavor
from nova_hpc_tools.cloud.explain.model import FlavorQuestion
from nova_hpc_tools.cloud.explain.server_report import explain_server
from nova_hpc_tools.readers import server_requests, snapshot
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

PAIR = {"pci_passthrough:alias": "gpu:2", "hpc:affinity": "switch"}
FIRST = "0000:40:00.0"


class ExplainTest(DriverTest):
    def remedies(self, flavor: str) -> dict[str, list[str]]:
        report = explain_flavor(snapshot.take_cloud_snapshot(), FlavorQuestion(flavor))
        self.assertFalse(report.fits)
        found: dict[str, list[str]] = {}
        for remedy in report.remedies:
            found.setdefault(remedy.kind, []).append(remedy.text)
        return found

    def test_a_server_that_leaves_makes_room(self) -> None:
        """The report says which; deleting another does not help, deleting it does."""
        self.host("alpha", fixtures.two_switches(gpus=2, numa=(0, 1)))
        pair, single = (
            self.make_flavor(PAIR),
            self.make_flavor(PAIR | {"pci_passthrough:alias": "gpu:1"}),
        )
        whole, half = self.boot(pair), self.boot(single)
        named = self.remedies(pair)
        self.assertEqual(
            {f"after server {each['name']} ({each['id']}) leaves alpha" for each in (whole, half)},
            set(named["server"]),
        )
        self.boot(pair, state="ERROR")
        self._delete_server(half)
        again = self.boot(pair)
        self.assertIs(Level.SWITCH, self.level_of(again))
        # Now everything is in use, and either pair would have to leave.
        self.assertEqual(
            {f"after server {each['name']} ({each['id']}) leaves alpha" for each in (whole, again)},
            set(self.remedies(pair)["server"]),
        )

    def test_a_device_that_ails_is_no_room(self) -> None:
        """It would be withheld once its server is gone."""
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=2),)))
        pair = self.make_flavor(PAIR)
        server = self.boot(pair)
        self.quarantine("alpha", FIRST, "it fell silent")
        self.update("alpha")
        self.assertEqual({}, self.remedies(pair))
        past = explain_server(snapshot.take_cloud_snapshot(), server["id"])
        self.assertTrue(any(FIRST in note and "it fell silent" in note for note in past.notes))

    def test_a_withheld_device_is_named(self) -> None:
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=2),)))
        self.quarantine("alpha", FIRST, "it fell silent")
        self.update("alpha")
        flavor = self.make_flavor(PAIR)
        (verdict,) = explain_flavor(snapshot.take_cloud_snapshot(), FlavorQuestion(flavor)).verdicts
        self.assertEqual("1 of 2 gpu, one is withheld", verdict.reason)
        self.assertTrue(any(FIRST in note and "it fell silent" in note for note in verdict.notes))
        self.flags(disclose_capacity=True, group="hpc")
        server = self.boot(flavor, state="ERROR")
        self.assertIn("; the nearest has 1 of 2 gpu, one is withheld", self.fault(server))
        self.assertNotIn("alpha", self.fault(server))
        (line,) = self.log_lines("Placement has no candidate for flavor")
        said = (
            f"the nearest is alpha with 1 of 2 gpu, one is withheld; withheld by the node: {FIRST}"
        )
        self.assertIn(said, line)
        found = server_requests.find_server_request(server["id"])
        self.assertIn(said, found.placement or "")

    def test_what_is_withheld_of_each_alias(self) -> None:
        """A GPU that is withheld is none of the functions that are missing, too."""
        self.host("alpha", fixtures.Shape((fixtures.Switch(gpus=1, pfs=1),)))
        self.quarantine("alpha", FIRST, "it fell silent")
        self.update("alpha")
        flavor = self.make_flavor(PAIR | {"pci_passthrough:alias": "gpu:1,vf:5"})
        self.assertEqual("0 of 1 gpu, one is withheld; 4 of 5 vf", self.nearest(flavor))
        self.sysfs["alpha"].bind("0000:40:01.3", "mlx5_core")
        self.update("alpha")
        said = "0 of 1 gpu, one is withheld; 3 of 5 vf, one is withheld"
        self.assertEqual(said, self.nearest(flavor))
        self.boot(flavor, state="ERROR")
        (line,) = self.log_lines("Placement has no candidate for flavor")
        self.assertIn(f"the nearest is alpha with {said}; withheld by the node: {FIRST} (", line)
        # One that is not asked for is not counted.
        few = self.make_flavor(PAIR | {"pci_passthrough:alias": "vf:4"})
        self.assertEqual("3 of 4 vf, one is withheld", self.nearest(few))

    def nearest(self, flavor: str) -> str:
        (verdict,) = explain_flavor(snapshot.take_cloud_snapshot(), FlavorQuestion(flavor)).verdicts
        return verdict.reason

    def test_a_decision_and_where_the_devices_sit(self) -> None:
        self.host("alpha", fixtures.two_switches(gpus=1, numa=(0, 1)))
        server = self.boot(self.make_flavor(PAIR | {"hpc:affinity_policy": "preferred"}))
        past = explain_server(snapshot.take_cloud_snapshot(), server["id"])
        self.assertEqual(self.decision(server), past.decision)
        self.assertEqual(
            [device.address for device in self.devices_of(server)],
            sorted(address for each in past.given for address in each.addresses),
        )
        # Both NUMA nodes of this host are on one socket.
        self.assertEqual((Level.SOCKET, Distance.SYS), (past.level, past.distance))
        self.assertIs(past.decision.reached, past.level)
        self.assertEqual(
            ["switch was preferred, but could not be had when it was placed"], list(past.notes)
        )
