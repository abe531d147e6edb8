# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc fabric groups`` and ``reap``."""

from __future__ import annotations

import json

import pytest

from nova_hpc.cluster.group_domain.records import SweptProviders
from nova_hpc_tools import main
from nova_hpc_tools.snapshot import SnapshotError, cloud_readers
from nova_hpc_tools.snapshot.group_fleet import GroupLine, Reaped

LINES = (
    GroupLine("g1", "leaf", "ib/leaf1", 4, 3, 1, "decided"),
    GroupLine("g2", "block", "ib/b", 2, 0, 0, "undecided"),
)


def run(*arguments: str) -> int:
    return main.NovaHpc().run(["fabric", *arguments])


def test_groups(monkeypatch, capsys):
    monkeypatch.setattr(
        cloud_readers, "_load_reader", {"nova_fabric_groups": lambda config: LINES}.get
    )
    assert run("groups", "-f", "json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows[0] == {
        "Group": "g1",
        "Level": "leaf",
        "Domain": "ib/leaf1",
        "Announced": 4,
        "Members": 3,
        "Leftover": 1,
        "State": "decided",
    }
    assert len(rows) == 2
    assert run("groups", "--group", "g2", "-f", "value", "-c", "State") == 0
    assert capsys.readouterr().out == "undecided\n"


@pytest.mark.parametrize(("strange", "status"), [((), 0), (("odd (x)",), 1)])
def test_reap(monkeypatch, capsys, strange, status):
    found = Reaped(SweptProviders(3, 2, 1), 1, strange)
    monkeypatch.setattr(
        cloud_readers, "_load_reader", {"nova_fabric_reap": lambda config: found}.get
    )
    assert run("reap", "-f", "json") == status
    assert json.loads(capsys.readouterr().out) == {
        "Tickets": 3,
        "Records": 2,
        "Rooms": 1,
        "Domains": 1,
        "Strange": len(strange),
    }


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Reaped(), "There was nothing to take away.\n"),
        (Reaped(SweptProviders(3, 0, 1), 1), "Taken away: 3 tickets, 1 room, 1 empty domain.\n"),
    ],
)
def test_reap_for_people(monkeypatch, capsys, found, said):
    monkeypatch.setattr(
        cloud_readers, "_load_reader", {"nova_fabric_reap": lambda config: found}.get
    )
    assert run("reap") == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("command", ["groups", "reap"])
def test_no_answer(monkeypatch, capsys, command):
    def fail(config):
        raise SnapshotError("Placement gave no usable answer within 30 seconds")

    monkeypatch.setattr(cloud_readers, "_load_reader", lambda name: fail)
    assert run(command) == 2
    assert "no usable answer" in capsys.readouterr().err
