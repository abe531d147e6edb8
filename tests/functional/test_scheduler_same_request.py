"""Scheduler, node and explain read the same request from the same flavor."""

from __future__ import annotations

from oslo_serialization import jsonutils

from nova_hpc.cloud.explain import explain
from nova_hpc.cloud.explain.model import Question
from nova_hpc.from_nova import snapshot
from nova_hpc.topology.level import Level
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

PAIR = {
    "pci_passthrough:alias": "gpu:1,vf:1",
    "hpc:affinity": "switch",
    "hw:numa_nodes": "1",
}


def _aliases(**policies: str) -> list[str]:
    """The aliases of the fixtures with NUMA policies of their own."""
    found = []
    for alias in fixtures.CLASS_ALIASES:
        policy = policies.get(alias["name"])
        found.append(jsonutils.dumps(alias | ({"numa_policy": policy} if policy else {})))
    return found


class AliasPoliciesTest(DriverTest):
    """No policy in the flavor, and aliases that differ: Nova gives each request its own."""

    PCI_ALIAS = _aliases(gpu="required", vf="preferred")

    def setUp(self) -> None:
        super().setUp()
        shape = fixtures.Shape(
            (fixtures.Switch(gpus=1, pfs=1), fixtures.Switch(gpus=1, pfs=1, numa=1))
        )
        self.host("alpha", shape)

    def test_what_explain_promises_starts(self) -> None:
        flavor = self.make_flavor(PAIR)
        report = explain(snapshot.take(), Question(flavor))
        self.assertTrue(report.fits)
        self.assertTrue(report.request.on_cells)
        server = self.boot(flavor)
        self.assertIs(Level.SWITCH, self.level_of(server))
        (node,) = self.domain_nodes(server).values()
        self.assertEqual({node}, {place.numa for place in self.locations_of(server)})


class AliasWithoutPolicyTest(AliasPoliciesTest):
    """Nova's own default of an alias is ``legacy``."""

    PCI_ALIAS = _aliases(gpu="required")
