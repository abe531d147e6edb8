# SPDX-License-Identifier: Apache-2.0
"""An upgrade loses nothing: files and servers of the release before, below the present code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nova_hpc.tenancy.ledger import copy_of
from nova_hpc.wire.ledger import SOMEBODY
from tests.functional.upgrade import DATA, FILES, GPUS, HELD, KILLED, PFS, VFS, UpgradeBase
from tests.unit.tenancy import cards

AWAY = ".before-ledger"


class UpgradeTest(UpgradeBase):
    def setUp(self) -> None:
        super().setUp()
        self.old = json.loads((DATA / "servers.json").read_text())

    def before(self) -> dict[str, dict[str, Any]]:
        """The node as the release before has left it: servers by the name of their flavor."""
        self.start()
        servers = self.servers()
        for name, server in servers.items():
            self.assertEqual(self.old["servers"][name]["devices"], self.facts(server)["devices"])
        self.computes["alpha"].stop()
        file = self.ledger_file("alpha")
        file.path.unlink()
        copy_of(file.path).unlink()
        for name in FILES:
            for path, source in (
                (self.path(name), f"{name}.json"),
                (copy_of(self.path(name)), f"{name}.copy.json"),
            ):
                path.write_text(self.present((DATA / source).read_text(), servers))
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

    def away(self) -> set[str]:
        return {each.name for each in self.ledger_file("alpha").path.parent.glob(f"*{AWAY}")}

    def read_old(self, name: str, servers: dict[str, dict[str, Any]]) -> dict[str, Any]:
        return json.loads(self.present((DATA / f"{name}.json").read_text(), servers))

    def test_nothing_is_lost(self) -> None:
        servers = self.before()
        pair, near = servers["pair"], servers["near"]
        self.upgrade()
        ledger = self.ledger("alpha")
        self.assertEqual((), ledger.problems)
        # What was in four files is in one, and they are put away, not deleted.
        self.assertEqual(
            {f"{each}{end}{AWAY}" for each in FILES for end in ("", ".copy")}, self.away()
        )
        self.assertFalse([each for each in FILES if self.path(each).exists()])
        # The quarantine.
        self.assertEqual(HELD, ledger.quarantined)
        withheld = {each: f"in quarantine: {why}" for each, why in HELD.items()}
        self.assertEqual(withheld, dict(self.stats_of("alpha").withheld))
        self.assertFalse(HELD.keys() & self.tracked("alpha").keys())
        # Baselines, and who has which device.
        old = self.read_old("hygiene", servers)["devices"]
        self.assertEqual(
            {each: body["baseline"] for each, body in old.items()},
            {each: ledger.device(each).baseline for each in old},
        )
        marks = {each: body["server"] for each, body in old.items() if "server" in body}
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
        adapters = self.read_old("adapters", servers)["functions"]
        self.assertEqual(adapters[VFS[0]], ledger.device(VFS[0]).adapter)
        # NVLink partitions: still active, and a manager that is restarted is told.
        nvlink = self.read_old("nvlink", servers)
        self.assertEqual(set(nvlink["known"]), set(ledger.gpus))
        self.assertEqual(
            {
                int(key): (one["server"], set(one["gpus"]))
                for key, one in nvlink["partitions"].items()
            },
            {key: (one.server, set(one.gpus)) for key, one in (ledger.partitions or {}).items()},
        )
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

    def test_a_file_that_is_cut_is_read_from_its_copy(self) -> None:
        self.before()
        for name in FILES:
            path = self.path(name)
            path.write_bytes(path.read_bytes()[:20])
        self.upgrade()
        self.assertEqual(HELD, self.ledger("alpha").quarantined)
        self.assertEqual(4, len(self.ledger("alpha").marked))
        self.assertEqual({1, 4}, set(self.ledger("alpha").partitions or {}))

    def test_a_file_that_is_lost_withholds_everything_until_it_is_repaired(self) -> None:
        self.before()
        path = self.path("quarantine")
        text = path.read_text()
        path.write_text("{")
        copy_of(path).unlink()
        self.upgrade()
        self.assertFalse(self.ledger_file("alpha").path.exists())
        self.assertEqual(set(), self.away())
        self.assertIn("quarantine file", self.stats_of("alpha").notes[0])
        # The servers keep theirs; nothing else is offered, and nothing was reset.
        self.assertEqual(set(self.tracked("alpha").values()), {"allocated"})
        self.assertEqual(4, len(self.tracked("alpha")))
        path.write_text(text)
        self.update("alpha")
        self.assertEqual(HELD, self.ledger("alpha").quarantined)
        self.assertEqual({"allocated", "available"}, set(self.tracked("alpha").values()))

    def test_the_release_before_was_in_use_again(self) -> None:
        """What it has written since is read, too, and nothing of the ledger is lost."""
        servers = self.before()
        self.upgrade()
        again: Path = self.path("quarantine")
        again.write_text(json.dumps({VFS[1]: "ticket 4712"}))
        self.update("alpha")
        self.assertEqual({**HELD, VFS[1]: "ticket 4712"}, self.ledger("alpha").quarantined)
        self.assertIn(f"quarantine{AWAY}-2", {each.name for each in again.parent.iterdir()})
        marked = self.ledger("alpha").marked
        self.assertEqual({each["id"] for each in servers.values()}, set(marked.values()))
        self.assertNotIn(SOMEBODY, marked.values())
        self.assertNotIn(GPUS[4], marked)
