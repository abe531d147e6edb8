# SPDX-License-Identifier: Apache-2.0
"""The commands of ``nova-hpc fabric`` that change nothing, as an operator types them."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace

import pytest

from nova_hpc_tools.fabric import command as fabric
from nova_hpc_tools.fabric import nova_aggregates, sync_command
from nova_hpc_tools.main import NovaHpc
from nova_hpc_tools.wire import fabric_map

COMMANDS = {
    "show": fabric.ShowFabric,
    "diff": fabric.DiffFabric,
    "export": fabric.ExportFabric,
    "sync": sync_command.SyncFabric,
}
TREE = "SwitchName=l1 Nodes=n[1-4]\nSwitchName=l2 Nodes=n[5-8]\nSwitchName=s1 Switches=l[1-2]\n"
BROKEN = TREE.replace("n[5-8]", "n[4-8]")


@pytest.fixture
def ask(tmp_path, capsys):
    def run(*words):
        app = NovaHpc()
        for name, command in COMMANDS.items():
            app.command_manager.add_command(f"fabric {name}", command)
        status = app.run(["fabric", *map(str, words)])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def tree(tmp_path):
    path = tmp_path / "topology.conf"
    path.write_text(TREE)
    return path


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "broken.conf"
    path.write_text(BROKEN)
    return path


def test_a_map_is_shown_to_people_and_to_programs(ask, tree):
    status, out, err = ask("show", tree)
    assert (status, err) == (0, "")
    assert out.splitlines()[2] == "├─ leaf l1: 4 hosts: n[1-4]"
    status, out, _ = ask("show", tree, "-f", "json")
    assert fabric_map.read_fabric_map(out).path("n5") == fabric_map.read_fabric_map(out).path("n8")
    _, out, _ = ask("show", tree, "-f", "value", "-c", "Host", "-c", "Leaf")
    assert out.splitlines()[0] == "n1 l1"


def test_what_is_wrong_goes_to_standard_error_with_its_line(ask, broken):
    status, out, err = ask("show", broken)
    assert status == 1
    assert err == "problem: line 1: host 'n4' is as much in one leaf as in another: l1, l2\n"
    assert "spine s1: 8 hosts: n4" in out


def test_a_map_is_read_from_a_pipe(ask, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(TREE.encode())))
    assert ask("show", "-")[0] == 0


@pytest.mark.parametrize("format_", ["slurm-tree", "slurm-yaml", "json", "topograph"])
def test_what_is_exported_is_read_again_as_the_same_map(ask, tree, tmp_path, format_):
    target = tmp_path / "out"
    assert ask("export", tree, "--format", format_, "--output", target) == (0, "", "")
    assert ask("diff", tree, target, "-f", "json")[:2] == (0, "[]\n")


def test_the_last_good_map_is_kept(ask, tree, broken, tmp_path):
    target = tmp_path / "map.json"
    ask("export", tree, "--output", target)
    good = target.read_text()
    status, out, err = ask("export", broken, "--output", target)
    assert (status, out) == (2, "")
    assert "the map has 1 problem, and the last good one is kept" in err
    assert target.read_text() == good
    assert ask("export", broken, "--output", target, "--accept-problems")[0] == 0
    assert fabric_map.read_fabric_map(target.read_text()).place("n4").leaf is None
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_blocks_are_written_for_a_release(ask, tree):
    _, out, _ = ask("export", tree, "--format", "slurm-block", "--slurm-version", "24.11")
    assert out.splitlines()[-1] == "BlockSizes=4,8"
    status, out, err = ask("export", tree, "--format", "slurm-block", "--slurm-version", "22.05")
    assert (status, out) == (2, "")
    assert "22.05 has no blocks" in err


def test_differences_are_a_list_and_a_status(ask, tree, tmp_path):
    other = tmp_path / "new.conf"
    other.write_text(TREE.replace("n[5-8]", "n[5-7]"))
    status, out, _ = ask("diff", tree, other)
    assert (status, out) == (1, "gone host n8: core s1, spine s1, leaf l2 -> nothing\n")
    status, out, _ = ask("diff", tree, tree)
    assert (status, out) == (0, "nothing differs\n")
    _, out, _ = ask("diff", tree, other, "-f", "json")
    assert json.loads(out) == [
        {
            "Change": "gone host",
            "Name": "n8",
            "Level": "",
            "Old": "core s1, spine s1, leaf l2",
            "New": "",
        }
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "nowhere"), "nowhere: No such file or directory"),
        (("show", "TREE", "--from", "json"), "the fabric map is not JSON"),
        (("show", "TREE", "--from", "ibnetdiscover"), "there is no switch in it"),
        (("show", "TREE", "--name", "\x07"), "--name: name: "),
    ],
)
def test_a_mistake_is_one_line(ask, tree, words, said):
    status, out, err = ask(*[tree if word == "TREE" else word for word in words])
    assert (status, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_broken_map_changes_nothing_in_the_cloud(ask, broken, monkeypatch):
    monkeypatch.setattr(
        nova_aggregates, "connect_fabric_cloud", lambda args: pytest.fail("the cloud was asked")
    )
    status, _, err = ask("sync", broken, "--yes")
    assert status == 2
    assert "the last good one is kept" in err


def test_without_openstacksdk_it_says_what_to_install(ask, tree, monkeypatch):
    monkeypatch.setitem(sys.modules, "openstack", None)
    status, _, err = ask("sync", tree)
    assert status == 2
    assert "pip install openstacksdk" in err


class Interrupted:
    """A cloud whose operator loses patience at the third step."""

    def __init__(self):
        self.steps = []

    def aggregates(self):
        return []

    def hosts(self):
        return [f"n{number}" for number in range(1, 9)]

    def clusters(self):
        return {}

    def apply(self, step):
        if len(self.steps) == 2:
            raise KeyboardInterrupt
        self.steps.append(step)


def test_ctrl_c_says_how_far_it_came(ask, tree, monkeypatch):
    cloud = Interrupted()
    monkeypatch.setattr(nova_aggregates, "connect_fabric_cloud", lambda args: cloud)
    status, out, err = ask("sync", tree, "--yes")
    assert status == 130
    assert len(cloud.steps) == out.count("done: ") == 2
    assert "2 of 12 steps are done, and maybe the next one, create" in err
    assert "run it again to go on" in err


def test_a_later_map_is_refused_and_left(ask, tree, tmp_path):
    path = tmp_path / "map.json"
    path.write_text(
        fabric_map.write_fabric_map(fabric_map.FabricMap()).replace('"version": 1', '"version": 2')
    )
    status, _, err = ask("show", path)
    assert status == 2
    assert "newer than this release of nova-hpc can read" in err
