"""Makes the files beside it: run it with the code whose files they are to be.

``python -m pytest -p tests.functional.conftest tests/data/upgrade/make.py``, in a
checkout of the release, with ``NOVA_HPC_UPGRADE_DATA`` naming the folder to fill.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from tests.functional.upgrade import KILLED, VFS, UpgradeBase


class MakeTest(UpgradeBase):
    def test_make(self) -> None:
        folder = Path(os.environ["NOVA_HPC_UPGRADE_DATA"])
        self.start()
        servers = self.servers()
        # nova-compute was killed when the function was set, and before Nova had saved it.
        driver = self.computes["alpha"].driver
        node = driver.hpc_source.read().node
        self.assertEqual({}, driver.hpc_adapters.keeper.give(KILLED, node, [VFS[1]]).refused)
        driver.hpc_hygiene.keeper.keep(KILLED, [VFS[1]])
        body = {
            "servers": {name: self.facts(server) for name, server in servers.items()},
            "guids": self.guids(),
            "active": sorted(self.manager.active),
        }
        (folder / "servers.json").write_text(json.dumps(body, indent=1) + "\n")
        shutil.copy(self.ledger_file("alpha").path, folder / "ledger.json")
