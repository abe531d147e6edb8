# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from attrs import evolve

from nova_hpc.topology.model import Node, NumaNode, PcieLink, PciFunction
from tests.unit.guest.accept_world import AcceptWorld
from tests.unit.guest.servers import start
from tests.unit.guest.worlds import ADAPTER, GPU


@pytest.fixture
def guest(tmp_path):
    """Two GPUs below one switch on cell 0, an adapter on cell 1."""
    below = {
        "root": "pci0000:17",
        "path": ("0000:17:00.0", "0000:18:00.0", "0000:19:00.0"),
        "switches": ("0000:18:00.0",),
        "numa_node": 1,
        "link": PcieLink(max_speed=32.0, max_width=16),
    }
    node = Node(
        "x",
        hostname="secret-host",
        numa_nodes=(NumaNode(0), NumaNode(1)),
        functions=(
            PciFunction("0000:1a:00.0", **GPU, **below),
            PciFunction("0000:1b:00.0", **GPU, **below),
            PciFunction("0000:98:00.0", **ADAPTER, numa_node=0, root="pci0000:97"),
        ),
    )
    chosen = ["0000:1a:00.0", "0000:1b:00.0", "0000:98:00.0"]
    roles = {"0000:1a:00.0": "gpu", "0000:1b:00.0": "gpu", "0000:98:00.0": "vf"}
    first, second, adapter = node.functions
    second = evolve(second, path=("0000:17:00.0", "0000:18:00.0", "0000:19:01.0"))
    adapter = evolve(adapter, path=("0000:97:00.0",), switches=("0000:97:00.0",))
    node = evolve(node, functions=(first, second, adapter))
    return start(str(tmp_path), node, chosen, roles=roles)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AcceptWorld:
    """A machine with no other tools than those of the test, whose noise would be this one's."""
    made = AcceptWorld(tmp_path)
    monkeypatch.setattr("nova_hpc_guest.accept.toolbox._BLAS", ())
    monkeypatch.setattr("nova_hpc_guest.accept.tools._LOOK", 0.005)
    real = shutil.which

    def which(name: str, path: str | None = None) -> str | None:
        found = real(name, path=path)
        return found if found and found.startswith(str(made.folder)) else None

    monkeypatch.setattr("shutil.which", which)
    return made
