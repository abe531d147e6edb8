# SPDX-License-Identifier: Apache-2.0
"""A host keeps memory for itself, whatever number of hugepages is declared."""

import json

import attrs
import pytest

from nova_hpc.topology.model import HugePages, NumaNode
from nova_hpc_tools.adopt import host_files
from nova_hpc_tools.main import main
from nova_hpc_tools.site import page_memory
from tests.nodes import states
from tests.nodes.write import write
from tests.unit.node_files import libvirt  # noqa: F401

GIB = 1 << 20
#: Of each NUMA node of the written machine.
MEMORY = 512
FITS = MEMORY - 2


@pytest.fixture
def run(tmp_path, capsys):
    """One declaration for all nodes comes to a node with 512 GiB in each NUMA node."""
    root, home = write(states.epyc(), tmp_path / "node"), tmp_path / "home"
    (root / "etc/default/grub.d").mkdir(parents=True)
    (root / "etc/default/grub").touch()
    home.mkdir()

    def of(pages, command, *words):
        declaration = home / "node.yaml"
        declaration.write_text(f"schema: nova-hpc/node\nversion: 1\nhugepages: {pages}\n")
        argv = [command, "--root", root, "--config-dir", home, "--declaration", declaration, *words]
        return main(list(map(str, argv))), *capsys.readouterr()

    of.root = root
    return of


@pytest.mark.parametrize("pages", ["{1G: 512}", "{1G: 1000}", "{1G: 500, 2M: 10000}"])
def test_no_host_is_prepared_without_memory_of_its_own(run, pages):
    status, _, err = run(pages, "prepare", "--write", run.root)
    assert status == 2
    assert "all hugepages of NUMA node 0 would be " in err
    assert " GiB of its 512.0 GiB of memory, and the host keeps 2.0 GiB; lower hugepages" in err
    assert not (run.root / host_files.GRUB).exists()
    assert not (run.root / host_files.TMPFILES).exists()


def test_the_most_that_fits_is_prepared(run):
    assert run(f"{{1G: {FITS}}}", "prepare", "--write", run.root)[0] == 0
    assert f"hugepages={2 * FITS}" in (run.root / host_files.GRUB).read_text()


@pytest.mark.parametrize("count", [FITS, MEMORY, 1000])
def test_no_cure_takes_all_memory_of_a_running_host(run, count):
    answer = json.loads(run(f"{{1G: {count}}}", "doctor", "-f", "json")[1])
    cures = [each["cure"] for each in answer["findings"] if each["check"] == "hugepages-declared"]
    assert len(cures) == 2
    if count == FITS:
        assert all(cure.startswith(f"echo {count} >") for cure in cures)
    else:
        assert not any("echo" in cure for cure in cures)
        assert all("Lower hugepages in " in cure for cure in cures)
        assert f": all hugepages of NUMA node 1 would be {count}.0 GiB" in cures[1]


def test_memory_that_cannot_be_read_is_no_reason_to_refuse(run):
    for path in run.root.glob("sys/devices/system/node/node*/meminfo"):
        path.unlink()
    status, out, err = run("{1G: 1000}", "prepare", "--write", run.root)
    assert (status, err) == (0, "")
    assert "# NUMA node 1: its memory cannot be read, so see that its hugepages leave" in out
    cures = [
        each["cure"] for each in json.loads(run("{1G: 9}", "doctor", "-f", "json")[1])["findings"]
    ]
    assert any(cure.startswith("See that the NUMA node has the memory") for cure in cures)


NODE = NumaNode(3, memory_kib=64 * GIB)


@pytest.mark.parametrize(
    ("memory", "declared", "present", "fits"),
    [
        (64, {"1G": 62}, (), True),
        (64, {"1G": 63}, (), False),
        (64, {"1G": 60, "2M": 1024}, (), True),
        (64, {"1G": 60, "2M": 1025}, (), False),
        # A size that is not declared stays; one that is declared is replaced.
        (64, {"1G": 40}, (HugePages(2048, 512 * 30, 0),), False),
        (64, {"1G": 40, "2M": 0}, (HugePages(2048, 512 * 30, 0),), True),
        # A small node keeps a part.
        (8, {"1G": 7}, (), True),
        (8, {"1G": 7, "2M": 1}, (), False),
        (None, {"1G": 1000}, (), True),
    ],
)
def test_the_sum_of_all_sizes_counts(memory, declared, present, fits):
    numa = attrs.evolve(NODE, memory_kib=memory and memory * GIB, hugepages=present)
    assert (page_memory.explain_excess(numa, declared) is None) == fits
