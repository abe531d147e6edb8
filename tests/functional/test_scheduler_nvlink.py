# SPDX-License-Identifier: Apache-2.0
"""Whole NVLink sets: from the node's tags to the scheduler, and the node's own check."""

from __future__ import annotations

from collections.abc import Mapping

from nova_hpc_common.level import Level
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest

LINKED = {
    "pci_passthrough:alias": "gpu:2",
    "hpc:affinity": "numa",
    "hpc:nvlink": "required",
}
#: The links cross the switches, so that the nearest two are never a set.
SETS = {
    "0000:40:00.0": "left:2",
    "0000:41:00.0": "left:2",
    "0000:40:01.0": "right:2",
    "0000:41:01.0": "right:2",
}


class NvlinkTest(DriverTest):
    """A host whose GPUs are linked in pairs."""

    def start(self, name: str, sets: Mapping[str, str]) -> None:
        shape = fixtures.two_switches(gpus=2)
        entries = shape.device_spec()
        for entry in entries:
            if entry["address"] in sets:
                entry["hpc_nvlink"] = sets[entry["address"]]
        self.host(name, shape, entries)

    def test_whole_sets_or_none(self) -> None:
        self.start("secret", SETS)
        flavor = self.make_flavor(LINKED)
        servers = [self.boot(flavor) for _ in range(2)]
        got = sorted([each.address for each in self.devices_of(server)] for server in servers)
        self.assertEqual([["0000:40:00.0", "0000:41:00.0"], ["0000:40:01.0", "0000:41:01.0"]], got)
        self.assertEqual([Level.NUMA] * 2, [self.level_of(server) for server in servers])
        self.assert_given_once()
        refused = self.boot(flavor, state="ERROR")
        self.assert_no_secrets(self.fault(refused))

    def test_a_set_with_a_wrong_tag_is_not_given(self) -> None:
        self.start("alpha", SETS | {"0000:41:01.0": "right:3"})
        flavor = self.make_flavor(LINKED)
        first = self.boot(flavor)
        self.assertEqual(
            ["0000:40:00.0", "0000:41:00.0"], [each.address for each in self.devices_of(first)]
        )
        refused = self.boot(flavor, state="ERROR")
        self.assertIn("NVLink", self.fault(refused))
        self.assertTrue(self.log_lines("'right': its members disagree about its size"))
        # The devices themselves are as good as ever.
        self.boot(self.make_flavor({**LINKED, "hpc:nvlink": "none"}))

    def test_the_node_refuses_a_part_of_a_set(self) -> None:
        """A host given with the zone is not looked at by the scheduler's filters."""
        self.start("alpha", dict.fromkeys(SETS, "all:4"))
        server = self.boot(self.make_flavor(LINKED), state="ERROR", az="nova:alpha")
        self.assertIn("hpc:nvlink=required", self.fault(server))
        self.assertIn("--host", self.fault(server))
        self.assert_all_free("alpha")
