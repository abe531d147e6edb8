# SPDX-License-Identifier: Apache-2.0
"""Servers with direct ports and no ``hpc:`` keys, migrated live between HPC nodes."""

from __future__ import annotations

from urllib import parse

from lxml import etree

from tests.functional import fixtures
from tests.functional.fixtures import Shape, Switch
from tests.functional.ports_base import PortsTest

SHAPE = Shape((Switch(gpus=1, pfs=1, vfs=2),))


class LiveMigrationTest(PortsTest):
    """What the destination looks at before it takes the server."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(device_detach_timeout=1, group="libvirt")
        self.useFixture(
            fixtures.fixtures.MonkeyPatch(
                "nova.tests.fixtures.libvirt.Domain.migrateToURI3", self._migrate
            )
        )
        for name in ("alpha", "beta"):
            self.rails(name, SHAPE)
        self.server = self.boot(
            self.make_flavor({"hw:mem_page_size": "any"}),
            host="alpha",
            networks=self.ports("physnet4"),
        )
        node = self.computes["beta"].driver.hpc_node.source.read().node
        self.functions = [each.address for each in node.functions if each.physical_function]

    def _migrate(self, domain, destination, params, flags) -> None:
        """What libvirt and QEMU of both hosts do between them."""
        there = self.computes[parse.urlparse(destination).netloc].driver
        there._host.get_connection().createXML(params["destination_xml"], "")
        uuid = etree.fromstring(params["destination_xml"]).find("./uuid").text
        domain._connection.lookupByUUIDString(uuid).complete_job()

    def _claimed(self, host: str) -> list[str]:
        return sorted(each for each, state in self.tracked(host).items() if state != "available")

    def _refused(self) -> str:
        """Ask for the move; where the server is, what it has, and why."""
        had = self._claimed("alpha")
        before = self.domain_of(self.server)
        where = {"host": None, "block_migration": "auto"}
        self.refused_action(self.server, {"os-migrateLive": where})
        self._wait_for_migration_status(self.server, ["error"])
        self._wait_for_state_change(self.server, "ACTIVE")
        self.assertEqual("alpha", self.host_of(self.server))
        self.assertEqual(had, self._claimed("alpha"))
        self.assertEqual([], self._claimed("beta"))
        self.assertEqual(self.canonical(before), self.canonical(self.domain_of(self.server)))
        return "\n".join(self.log_lines("cannot come here by live migration"))

    def test_it_goes_where_all_is_well(self) -> None:
        self._live_migrate(self.server, "completed")
        self.assertEqual("beta", self.host_of(self.server))
        (address,) = [each for each in self._claimed("beta") if each in self.functions]
        self.assertEqual(self.server["id"], self.ledger("beta").device(address).server)
        # And the source's is clean for the next one.
        self.update("alpha")
        self.assertEqual([], self._claimed("alpha"))

    def test_quarantined_since_the_last_update(self) -> None:
        for each in self.functions:
            self.quarantine("beta", each, "smells of smoke")
        self.assertIn("is out of service", self._refused())

    def test_not_as_its_baseline(self) -> None:
        """A function whose maker has changed since the last look is nobody's."""
        for each in self.functions:
            (self.sysfs["beta"].devices / each / "vendor").write_text("0x1af4\n")
        self.assertIn("did not pass the check before it starts", self._refused())
