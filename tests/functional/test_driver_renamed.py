# SPDX-License-Identifier: Apache-2.0
"""A node that got another name: what it knows of its devices it knows still.

Nova takes it for a new node, with new providers in Placement. The ledger is the old one.
"""

from __future__ import annotations

from typing import Any

from nova import context as nova_context
from nova import exception, objects

from tests.functional import fixtures
from tests.functional.test_driver_hygiene import FIRST, GPU, SECOND, _Base

THIRD = "0000:40:02.0"
THREE = fixtures.Shape((fixtures.Switch(gpus=3),))


class RenamedTest(_Base):
    def setUp(self) -> None:
        super().setUp()
        self.host("alpha", THREE)
        self.quarantine("alpha", SECOND, "ticket 4711")
        self.update("alpha")
        self.assertEqual({SECOND: 1}, {k: v for k, v in self.reserved("alpha").items() if v})
        self.server = self.boot(self.make_flavor(GPU))
        (device,) = self.devices_of(self.server)
        self.mine = device.address
        (self.other,) = {FIRST, THIRD} - {self.mine}

    def reserved(self, host: str) -> dict[str, int]:
        return self.reserved_in_placement(host)

    def rename(self) -> Any:
        """The same machine starts nova-compute as beta."""
        connection = self.computes["alpha"].driver._host.get_connection()
        self.stop_host("alpha")
        connection.hostname = "beta"
        self.sysfs["beta"] = self.sysfs["alpha"]
        return lambda: self.start_compute("beta", connection=connection)

    def node_of(self, host: str) -> str:
        context = nova_context.get_admin_context()
        return objects.ComputeNode.get_by_host_and_nodename(context, host, host).uuid

    def end_guest(self) -> None:
        connection = self.computes["alpha"].driver._host.get_connection()
        for domain in list(connection._vms.values()):
            domain.destroy()
            domain.undefine()

    def test_with_guests_nova_refuses_and_nothing_is_touched(self) -> None:
        before = self.ledger("alpha")
        start = self.rename()
        error = self.assertRaises(exception.InvalidConfiguration, start)
        self.assertIn("My hypervisor has existing instances", str(error))
        self.assertEqual(before.marked, self.ledger("alpha").marked)
        self.assertEqual(before.quarantined, self.ledger("alpha").quarantined)
        for each in (FIRST, SECOND, THIRD):
            self.assertEqual(0, self.resets("alpha", each))

    def test_without_guests_quarantine_and_marks_outlive_the_name(self) -> None:
        start = self.rename()
        self.end_guest()
        start()
        # What the former name's server had is dirty: it is cleaned before anybody gets it.
        self.assertEqual(1, self.resets("beta", self.mine))
        self.update("beta")
        self.assertEqual({FIRST: "available", THIRD: "available"}, self.tracked("beta"))
        self.assertEqual({FIRST: 1, THIRD: 1}, self.given_by_placement("beta"))
        self.assertEqual([SECOND], list(self.stats_of("beta").withheld))
        self.assertIn("ticket 4711", self.stats_of("beta").withheld[SECOND])
        self.assertEqual({}, self.ledger("beta").marked)
        # The other, too: Nova has no record of it under the new name.
        self.assertEqual((1, 1), (self.resets("beta", self.mine), self.resets("beta", self.other)))
        self.update("beta")
        self.assertEqual(self.node_of("beta"), self.ledger("beta").node)
        self.computes["beta"] = self.restart_compute_service("beta", keep_hypervisor_state=True)
        self.assertIn("ticket 4711", self.stats_of("beta").withheld[SECOND])
        both = self.boot(self.make_flavor({"pci_passthrough:alias": "gpu:2"}), host="beta")
        self.assertEqual({FIRST, THIRD}, {each.address for each in self.devices_of(both)})
        # The operator's release is of the new name's device.
        self.assertIsNone(self.release("beta", SECOND))
        self.update("beta")
        self.assertEqual(1, self.given_by_placement("beta")[SECOND])
