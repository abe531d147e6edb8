# SPDX-License-Identifier: Apache-2.0
"""A real slurmctld loads what is written for it, and understands the map."""

from __future__ import annotations

import shutil

import pytest

from nova_hpc.fabric.model import TREE, FabricLevel, FabricMap, FabricPlace
from nova_hpc_tools.fabric.map_outline import outline_map
from nova_hpc_tools.fabric.readers import reader_choice as readers
from nova_hpc_tools.fabric.readers.reader_choice import ReaderOptions
from nova_hpc_tools.fabric.writers import slurm
from tests.unit.fabric import slurmctld


@pytest.fixture(autouse=True)
def daemon() -> None:
    if shutil.which("slurmctld") is None or shutil.which("scontrol") is None:
        pytest.skip("slurmctld and scontrol are not installed")


def read(text: str) -> FabricMap:
    return readers.read_fabric_text(text, "test", ReaderOptions()).fabric


def check(fabric: FabricMap, folder) -> None:
    """What slurmctld shows is the map: every domain, with the hosts below it."""
    hosts = [place.host for place in fabric.places]
    with slurmctld.running(folder, slurm.format_slurm_tree(fabric), hosts, "topology/tree") as conf:
        found = slurmctld.switches(conf)
    for level in TREE:
        for name, members in fabric.domains(level).items():
            assert found[name][1] == frozenset(members)
    # The levels rise with the tree, from the switches that have hosts.
    for path in outline_map(fabric).values():
        heights = [found[name][0] for _, name in reversed(path)]
        assert heights == sorted(set(heights))


@pytest.mark.parametrize("name", ["ibnetdiscover-ndr.out", "topograph-nvl72.yaml"])
def test_a_real_fabric(captures, tmp_path, name):
    fabric = read((captures / "fabric" / name).read_text(encoding="utf-8"))
    check(fabric, tmp_path)
    assert len(fabric.places) > 70


def test_four_tiers_and_hosts_whose_leaf_nobody_knows(tmp_path):
    fabric = FabricMap(
        [
            FabricPlace(
                f"n{number}",
                leaf=f"leaf{number // 2}" if number else None,
                block=f"block{number // 4}",
                spine=f"spine{number // 8}",
                core="core",
            )
            for number in range(16)
        ]
    )
    check(fabric, tmp_path)
    assert len(fabric.domains(FabricLevel.LEAF)) == 8
