# SPDX-License-Identifier: Apache-2.0
"""Newer slurmctlds load what is written for them, and understand the map.

24.11 and 26.05 in private roots (``slow``: 80 MB of packages each, kept in the cache).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from nova_hpc.fabric.model import TREE, FabricLevel, FabricMap, FabricPlace
from nova_hpc_common.output.hostlist import compress_hostlist, expand_hostlist
from nova_hpc_tools.fabric.readers import reader_choice as readers
from nova_hpc_tools.fabric.readers.reader_choice import ReaderOptions
from nova_hpc_tools.fabric.writers import slurm
from tests.unit.cluster.test_samples import SLURM
from tests.unit.fabric import slurm_root
from tests.unit.fabric.slurm_root import CannotError, Root, Slurm, running

pytestmark = pytest.mark.slow

#: Release -> the suite of Debian that has it.
SUITES = {"24.11": "trixie", "26.05": "sid"}
_ENTRY = re.compile(r"(\w+)=(\S+)")
CAPTURES = ("ibnetdiscover-ndr.out", "topograph-nvl72.yaml")


def root_of(release: str) -> Root:
    try:
        found = slurm_root.get(SUITES[release])
    except CannotError as error:
        pytest.skip(f"Slurm {release} cannot be had: {error}")
    if found.release != release:
        pytest.skip(f"{SUITES[release]} has Slurm {found.release} now, not {release}")
    return found


@pytest.fixture(scope="module")
def slurm_24() -> Root:
    return root_of("24.11")


@pytest.fixture(scope="module")
def slurm_26() -> Root:
    return root_of("26.05")


def fabric_of(captures: Path, name: str) -> FabricMap:
    text = (captures / "fabric" / name).read_text(encoding="utf-8")
    return readers.read_fabric_text(text, "test", ReaderOptions()).fabric


def shown(found: Slurm, kind: str, *words: str) -> dict[str, frozenset[str]]:
    """Switch or block -> all hosts in it, as slurmctld has understood them."""
    domains = {}
    for line in found.scontrol("show", "topology", *words).splitlines():
        entry = dict(_ENTRY.findall(line))
        if kind in entry:
            hosts = entry.get("Nodes", "")
            domains[entry[kind]] = frozenset(expand_hostlist(hosts)) if hosts else frozenset()
    return domains


def nodes(fabric: FabricMap) -> str:
    return compress_hostlist(place.host for place in fabric.places)


def check_tree(fabric: FabricMap, found: dict[str, frozenset[str]]) -> None:
    for level in TREE:
        for name, members in fabric.domains(level).items():
            assert found[name] == frozenset(members)


def check_blocks(fabric: FabricMap, found: dict[str, frozenset[str]]) -> None:
    level = slurm.block_level(fabric)
    assert level is not None
    wanted = {name: frozenset(hosts) for name, hosts in fabric.domains(level).items()}
    # An aggregate of blocks is shown beside the blocks that it is made of.
    assert {name: found[name] for name in wanted} == wanted


@pytest.mark.parametrize("name", CAPTURES)
def test_24_11_loads_the_tree(captures: Path, slurm_24: Root, name: str) -> None:
    fabric = fabric_of(captures, name)
    files = {"topology.conf": slurm.format_slurm_tree(fabric)}
    with running(slurm_24, "tree", files, nodes(fabric), "TopologyPlugin=topology/tree") as found:
        check_tree(fabric, shown(found, "SwitchName"))


@pytest.mark.parametrize("name", CAPTURES)
def test_24_11_loads_the_blocks(captures: Path, slurm_24: Root, name: str) -> None:
    fabric = fabric_of(captures, name)
    files = {"topology.conf": slurm.format_slurm_blocks(fabric, (24, 11))}
    with running(slurm_24, "block", files, nodes(fabric), "TopologyPlugin=topology/block") as found:
        check_blocks(fabric, shown(found, "BlockName"))


def test_24_11_dies_of_what_is_written_for_26_05(slurm_24: Root) -> None:
    """Why ``export`` asks for the release: a block that is smaller than the base size."""
    fabric = FabricMap(
        [FabricPlace(f"n{n:02d}", leaf="l0" if n < 2 else f"l{n // 4 + 1}") for n in range(18)]
    )
    files = {"topology.conf": slurm.format_slurm_blocks(fabric, (26, 5), FabricLevel.LEAF)}
    plugin = "TopologyPlugin=topology/block"
    with (
        pytest.raises(AssertionError, match="slurmctld ended"),
        running(slurm_24, "small", files, nodes(fabric), plugin),
    ):
        pass
    files = {"topology.conf": slurm.format_slurm_blocks(fabric, (24, 11), FabricLevel.LEAF)}
    with running(slurm_24, "small", files, nodes(fabric), plugin) as found:
        check_blocks(fabric, shown(found, "BlockName"))


@pytest.mark.parametrize("name", CAPTURES)
def test_26_05_loads_topology_yaml(captures: Path, slurm_26: Root, name: str) -> None:
    """The tree, which is the default, and the blocks beside it."""
    fabric = fabric_of(captures, name)
    files = {"topology.yaml": slurm.format_topology_yaml(fabric, (26, 5))}
    with running(slurm_26, "yaml", files, nodes(fabric)) as found:
        check_tree(fabric, shown(found, "SwitchName"))
        check_tree(fabric, shown(found, "SwitchName", "tree"))
        check_blocks(fabric, shown(found, "BlockName", "block"))


def test_26_05_takes_smaller_blocks(slurm_26: Root) -> None:
    fabric = FabricMap(
        [FabricPlace(f"n{n:02d}", leaf="l0" if n < 2 else f"l{n // 4 + 1}") for n in range(18)]
    )
    files = {"topology.conf": slurm.format_slurm_blocks(fabric, (26, 5), FabricLevel.LEAF)}
    plugin = "TopologyPlugin=topology/block"
    with running(slurm_26, "small", files, nodes(fabric), plugin) as found:
        check_blocks(fabric, shown(found, "BlockName"))


# -- nodes that come and go ----------------------------------------------------------------

_OPENSTACK = r"""#!/bin/bash
case "$3" in
show) exit 1 ;;
hosts) printf 'train-1 127.0.0.1\ntrain-2 127.0.0.1\ntrain-3 127.0.0.1\n' ;;
topology) printf 'Name,Block,Leaf\ntrain-1,b-1,l-a\ntrain-2,b-1,l-a\ntrain-3,,l-c\n' ;;
esac
"""


def resume(found: Slurm, folder: Path) -> int:
    """Run the sample of the user guide beside a cloud that has made three members."""
    path = folder / "openstack"
    path.write_text(_OPENSTACK)
    path.chmod(0o755)
    (folder / "hpc.env").write_text(f"HPC_TOPOLOGY=dynamic\nHPC_LOCKS={folder}\n")
    environment = {
        **os.environ,
        "PATH": f"{found.wrapper(folder)}:{os.environ['PATH']}",
        "HPC_ENV": str(folder / "hpc.env"),
    }
    ended = subprocess.run(
        [SLURM / "hpc-resume", "train-[1-3]"], env=environment, check=False, timeout=300
    )
    return ended.returncode


def test_26_05_is_told_where_new_nodes_are(slurm_26: Root, tmp_path: Path) -> None:
    """The sample's ResumeProgram, and the line that ``nova-hpc-guest topology`` prints."""
    files = {"topology.conf": "SwitchName=cloud\n"}
    with running(
        slurm_26, "elastic", files, "train-[1-8]", "TopologyPlugin=topology/tree"
    ) as found:
        assert resume(found, tmp_path) == 0
        line = "Topology=default:cloud:b-1:l-d"
        made = found.run("scontrol", "create", "NodeName=dynamic-1", "CPUs=4", "State=CLOUD", line)
        assert made.returncode == 0, made.stderr
        assert shown(found, "SwitchName") == {
            "cloud": frozenset({"train-1", "train-2", "train-3", "dynamic-1"}),
            "b-1": frozenset({"train-1", "train-2", "dynamic-1"}),
            "l-a": frozenset({"train-1", "train-2"}),
            "l-c": frozenset({"train-3"}),
            "l-d": frozenset({"dynamic-1"}),
        }


def test_24_11_refuses_it(slurm_24: Root, tmp_path: Path) -> None:
    """Why the sample writes topology.conf anew for it (``HPC_TOPOLOGY=file``)."""
    files = {"topology.conf": "SwitchName=cloud Nodes=train-[1-8]\n"}
    with running(
        slurm_24, "elastic", files, "train-[1-8]", "TopologyPlugin=topology/tree"
    ) as found:
        said = found.run("scontrol", "update", "NodeName=train-1", "topology=default:cloud:l-a")
        assert said.returncode != 0
        assert set(shown(found, "SwitchName")) == {"cloud"}
