# SPDX-License-Identifier: Apache-2.0
"""A snapshot of Nova has owners' words about ends and moves, and server groups."""

from __future__ import annotations

from nova_hpc_tools.readers import snapshot
from nova_hpc_tools.snapshot import SnapshotGroup
from nova_hpc_tools.snapshot import document as snapshot_document
from tests.functional.drain_base import PAIR, DrainCase


class OwnerWordsTest(DrainCase):
    def test_a_snapshot_has_what_owners_have_set(self) -> None:
        group = self.api.post_server_groups(
            {"name": "apart", "policy": "anti-affinity", "rules": {"max_server_per_host": 2}}
        )
        movable = self.make_flavor({**PAIR, "hpc:movable": "yes"})
        built = self._build_server(name="m", networks="none", flavor_id=movable, host="alpha") | {
            "metadata": {"hpc:until": "2026-12-04T08:00Z", "hpc:movable": "no"}
        }
        made = self.admin_api.post_server(
            {"server": built, "os:scheduler_hints": {"group": group["id"]}}
        )
        member = self._wait_for_state_change(made, "ACTIVE")
        paused = self.make("p", self.pair, "beta")
        self.admin_api.post_server_action(paused["id"], {"pause": {}})
        self._wait_for_state_change(paused, "PAUSED")
        taken = snapshot.take_cloud_snapshot()
        servers = {each.name: each for each in taken.servers}
        found = servers["m"]
        self.assertEqual(("2026-12-04T08:00Z", "no"), (found.until, found.movable))
        self.assertEqual(
            (member["tenant_id"], None, "yes"),
            (found.project, found.immobile, found.extra_specs["hpc:movable"]),
        )
        other = servers["p"]
        self.assertEqual((None, None), (other.until, other.movable))
        self.assertIn("it is paused", other.immobile or "")
        self.assertEqual(
            (SnapshotGroup(group["id"], "anti-affinity", 2, {member["id"]: "alpha"}),),
            taken.groups,
        )
        text = snapshot_document.dump_cloud_snapshot(taken)
        self.assertEqual(taken.groups, snapshot_document.load_cloud_snapshot(text).groups)
