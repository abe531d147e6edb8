# SPDX-License-Identifier: Apache-2.0
"""An upgrade loses nothing: the ledger and servers of an earlier code, below the present one."""

from __future__ import annotations

import json
from typing import Any

from nova_hpc.tenancy.ledger import copy_of
from nova_hpc.wire.ledger import read_ledger
from tests.functional.upgrade import DATA, HELD, KILLED, PFS, VFS, UpgradeBase
from tests.unit.tenancy import cards


class UpgradeTest(UpgradeBase):
    def setUp(self) -> None:
        super().setUp()
        self.old = json.loads((DATA / "servers.json").read_text())

    def before(self) -> dict[str, dict[str, Any]]:
        """The node as an earlier code has left it: servers by the name of their flavor."""
        self.start()
        servers = self.servers()
        for name, server in servers.items():
            self.assertEqual(self.old["servers"][name]["devices"], self.facts(server)["devices"])
        self.computes["alpha"].stop()
        path = self.ledger_file("alpha").path
        for place in (path, copy_of(path)):
            place.write_text(self.present((DATA / "ledger.json").read_text(), servers))
        for name, server in servers.items():
            instance = self.instance(server)
            instance.system_metadata.update(self.old["servers"][name]["metadata"])
            instance.save()
        for vf, pf in zip(VFS, PFS, strict=True):
            folder = self.sysfs["alpha"].devices / pf / "sriov/0"
            for each, text in zip(("node", "port", "policy"), self.old["guids"][vf], strict=True):
                (folder / each).write_text(f"{text}\n")
        self.assertEqual(set(self.old["active"]), self.manager.active)
        return servers

    def present(self, text: str, servers: dict[str, dict[str, Any]]) -> str:
        """The text with the present servers in place of those that it is about."""
        for name, server in servers.items():
            text = text.replace(self.old["servers"][name]["id"], server["id"])
        return text

    def upgrade(self) -> None:
        self.computes["alpha"] = self.restart_compute_service("alpha", keep_hypervisor_state=True)
        self.update("alpha")

    def test_nothing_is_lost(self) -> None:
        servers = self.before()
        pair, near = servers["pair"], servers["near"]
        text = self.present((DATA / "ledger.json").read_text(), servers)
        old = read_ledger(text)
        self.upgrade()
        ledger = self.ledger("alpha")
        self.assertEqual((), ledger.problems)
        # The quarantine.
        self.assertEqual(HELD, ledger.quarantined)
        withheld = {each: f"in quarantine: {why}" for each, why in HELD.items()}
        self.assertEqual(withheld, dict(self.stats_of("alpha").withheld))
        self.assertFalse(HELD.keys() & self.tracked("alpha").keys())
        # Baselines, and who has which device.
        self.assertEqual(
            {each: device.baseline for each, device in old.devices.items()},
            {each: ledger.device(each).baseline for each in old.devices},
        )
        marks = dict(old.marked)
        self.assertEqual(KILLED, marks.pop(VFS[1]))
        self.assertEqual(marks, ledger.marked)
        self.assertEqual(marks.keys(), {*self.facts(pair)["devices"], *self.facts(near)["devices"]})
        # Nobody's device was reset, but that of the server which nobody knows.
        resets = {
            each.name
            for each in self.sysfs["alpha"].devices.iterdir()
            if (each / "reset").exists() and (each / "reset").read_text().strip()
        }
        self.assertEqual({VFS[1]}, resets)
        # What functions were set to: one stays, the other is put back.
        self.assertEqual(tuple(self.old["guids"][VFS[0]]), self.guids()[VFS[0]])
        self.assertEqual((cards.NO_GUID, cards.NO_GUID, "Down"), self.guids()[VFS[1]])
        self.assertIsNotNone(old.device(VFS[0]).adapter)
        self.assertEqual(old.device(VFS[0]).adapter, ledger.device(VFS[0]).adapter)
        # NVLink partitions: still active, and a manager that is restarted is told.
        self.assertEqual(old.gpus, ledger.gpus)
        self.assertEqual(old.partitions, ledger.partitions)
        self.assertEqual({1, 4}, set(ledger.partitions or {}))
        self.manager.restart()
        self.manager.calls()
        self.update("alpha")
        self.assertEqual(["set 1 4"], self.manager.calls())
        # Decisions and guests' addresses, also after the next start.
        for name, server in servers.items():
            self._reboot_server(server, hard=True)
            facts = self.facts(server)
            self.assertEqual(self.old["servers"][name]["metadata"], facts["metadata"])
            self.assertEqual(self.old["servers"][name]["guest"], facts["guest"])
        # And they end as servers of the present release do.
        for server in servers.values():
            self._delete_server(server)
        self.update("alpha")
        self.assertEqual({}, self.ledger("alpha").marked)
        self.assertEqual(set(), self.manager.active)
        self.assertEqual({(cards.NO_GUID, cards.NO_GUID, "Down")}, set(self.guids().values()))
        self.assertEqual(HELD, self.ledger("alpha").quarantined)
        self.assert_all_free("alpha")
