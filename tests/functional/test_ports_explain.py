# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc explain`` says of servers with direct ports what the scheduler does."""

from __future__ import annotations

import attrs

from nova_hpc_common.level import Level
from nova_hpc_tools.cloud.explain import explain_asked, explain_flavor
from nova_hpc_tools.cloud.explain.model import FlavorQuestion
from nova_hpc_tools.cloud.explain.server_report import explain_server
from nova_hpc_tools.readers import server_requests, snapshot
from nova_hpc_tools.snapshot import Snapshot
from nova_hpc_tools.snapshot import document as snapshot_document
from nova_hpc_tools.snapshot.direct_ports import DirectPorts
from tests.functional.fixtures import Shape
from tests.functional.ports_base import ONE, RAIL, PortsTest


class ExplainPortsTest(PortsTest):
    """The cloud is read with Nova's own functions, and explained without."""

    def cloud(self) -> Snapshot:
        """The cloud now, by way of the text of a file."""
        return snapshot_document.load_cloud_snapshot(
            snapshot_document.dump_cloud_snapshot(snapshot.take_cloud_snapshot())
        )

    def test_before_after_and_when_refused(self) -> None:
        self.rails("alpha", Shape((RAIL, RAIL)), {1: "physnet4"})
        flavor = self.make_flavor(ONE, name="one")
        one = FlavorQuestion("one", ports=(DirectPorts("physnet4"),))
        report = explain_flavor(self.cloud(), one)
        self.assertTrue(report.fits)
        (verdict,) = report.verdicts
        assert verdict.choice is not None
        self.assertEqual(Level.SWITCH, verdict.choice.devices.level)
        names = {each.provider: each.address for each in verdict.node.devices}
        chosen = {names[each] for each in verdict.choice.providers()}
        server = self.boot(flavor, networks=self.ports("physnet4"))
        self.assertEqual(
            chosen, {each.parent_addr or each.address for each in self.devices_of(server)}
        )
        self.assertEqual(2, len(explain_server(self.cloud(), server["id"]).given))
        # The other GPU has no adapter beside it.
        other = self.boot(flavor, state="ERROR", networks=self.ports("physnet4"), name="refused")
        found = server_requests.find_server_request("refused")
        self.assertEqual((DirectPorts("physnet4"),), found.ports)
        report = explain_asked(self.cloud(), found)
        self.assertFalse(report.fits)
        miss = report.verdicts[0].reason
        self.assertIn("1 gpu and 1 port free, but", miss)
        # The operator reads the same in the scheduler's log.
        self.assertTrue(self.log_lines("1 gpu and 1 port free, but"))
        self.assertEqual("affinity", report.remedies[0].kind)
        self.assertTrue(explain_flavor(self.cloud(), attrs.evolve(one, ports=())).fits)
        self._delete_server(server)
        self.assertTrue(
            explain_asked(self.cloud(), server_requests.find_server_request(other["id"])).fits
        )
