# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc doctor --fleet``: archives in, kinds and odd ones out."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from nova_hpc_tools.main import main
from tests.nodes.catalogue import NODES
from tests.nodes.describe import Endpoint, Link, every
from tests.nodes.write import write

IDS = "10de:20b7"
GPU = f"3D controller {IDS}"


def narrow(machine):
    """The machine with its last GPU at two lanes."""

    def changed(part):
        if isinstance(part, Endpoint):
            return dataclasses.replace(part, link=Link(16.0, 8, (16.0, 2)))
        *_, (number, with_gpu) = (
            (number, each)
            for number, each in enumerate(part.below)
            if any(one.ids == IDS for one in every((each,)))
        )
        below = (*part.below[:number], changed(with_gpu), *part.below[number + 1 :])
        return dataclasses.replace(part, below=below)

    *_, last = (root for root in machine.roots if any(one.ids == IDS for one in every(root.below)))
    roots = tuple(changed(root) if root is last else root for root in machine.roots)
    return dataclasses.replace(machine, roots=roots)


@pytest.fixture
def archives(synthetic, tmp_path):
    """Three nodes of two GPUs, a GPU of one with fewer lanes; and a node without GPUs."""
    folder = tmp_path / "nodes"
    folder.mkdir()
    roots = {
        "gpu1": synthetic("two-socket"),
        "gpu2": write(narrow(NODES["two-socket"]), tmp_path / "gpu2"),
        "gpu3": synthetic("two-socket"),
        "login": synthetic("bare"),
    }
    for name, root in roots.items():
        target = folder / f"{name}.tar.xz"
        assert main(["inventory", "--root", str(root), "--save", str(target)]) == 0
    return folder


def run(capsys, *words):
    capsys.readouterr()
    status = main(["doctor", "--fleet", *map(str, words)])
    return status, *capsys.readouterr()


def test_people_read_kinds_and_what_is_odd(archives, capsys):
    status, out, err = run(capsys, archives)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "Kind 1: 3 nodes: gpu1, gpu2, gpu3"
    assert lines[1] == "  2 NUMA nodes, 64 CPUs, 256 GiB"
    assert f"  gpu2: {GPU} no. 2: link width x2, 2 others x8" in lines
    assert "Kind 2: 1 node: login" in lines
    assert lines[-1] == "Odd ones out: gpu2"


def test_programs_read_a_list_or_a_document(archives, capsys):
    status, out, _ = run(capsys, archives, "-f", "value", "-c", "Node", "-c", "Fact")
    assert (status, out) == (0, "gpu2 link width\n")
    status, out, _ = run(capsys, archives, "-f", "json")
    document = json.loads(out)
    assert (document["schema"], document["version"]) == ("nova-hpc/fleet", 1)
    assert [kind["nodes"] for kind in document["kinds"]] == [["gpu1", "gpu2", "gpu3"], ["login"]]
    (difference,) = document["differences"]
    assert difference["usual"] == "x8"


def test_an_archive_that_cannot_be_read_is_named_and_the_rest_is_told(archives, capsys):
    (archives / "torn.tar.xz").write_bytes(b"no archive")
    status, out, err = run(capsys, archives)
    assert status == 1
    assert "Kind 1: 3 nodes" in out
    assert "torn.tar.xz: not an archive that --save wrote" in err


def test_nothing_to_read(tmp_path, capsys):
    status, _, err = run(capsys, tmp_path)
    assert (status, err.count("\n")) == (2, 1)
    assert "no file in it ends with .tar.xz" in err
    status, out, err = run(capsys, tmp_path / "none.tar.xz")
    assert (status, out) == (2, "")
    assert "No such file" in err


def test_two_files_of_one_name(archives, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(archives / "gpu1.tar.xz", other)
    _, out, _ = run(capsys, archives / "gpu1.tar.xz", other / "gpu1.tar.xz")
    assert f"Kind 1: 2 nodes: {archives}/gpu1, {other}/gpu1" in out
