# SPDX-License-Identifier: Apache-2.0
"""The metrics of a subnet manager's host say what ``fabric check`` says."""

from __future__ import annotations

import collections
import json
from types import SimpleNamespace

import pytest

from nova_hpc.fabric.partitions.backends.base import AuditRow, AuditState
from nova_hpc_tools.fabric import check_command
from nova_hpc_tools.fabric.check_command import FabricFindings
from nova_hpc_tools.main import main
from nova_hpc_tools.metrics import exposition, fabric_facts
from tests.unit.fabric import test_check_command
from tests.unit.metrics.texts import parse, value, values

place = test_check_command.place
CHECKS = "nova_hpc_fabric_checks"


@pytest.fixture
def ask(place, capsys):
    def run(*words):
        status = main([*words, "--config-file", str(place.agent)])
        return status, *capsys.readouterr()

    return run


def network_of(*agents, ports=()):
    return SimpleNamespace(agents=lambda: agents, ports=lambda: ports)


def test_rows_are_those_of_fabric_check(ask, place):
    _, out, _ = ask("fabric", "check", "-f", "json")
    rows = [row for row in json.loads(out) if row["Name"] != "table"]
    said = collections.Counter((row["Name"], row["Requirement"], row["State"]) for row in rows)
    status, text, err = ask("metrics", "fabric")
    assert (status, err) == (0, "")
    assert values(text, CHECKS, "name", "requirement", "state") == said
    assert value(text, "nova_hpc_fabric_partitions") == 1
    assert value(text, "nova_hpc_fabric_members") == 3
    # Nobody was asked.
    assert "nova_hpc_fabric_agent_alive" not in {name for name, _ in parse(text)}
    place.partitions.write_text("changed by others")
    status, text, err = ask("metrics", "fabric")
    assert values(text, CHECKS, "name", "state")["partitions_file", "not met"] == 1
    assert value(text, "nova_hpc_fabric_partitions") is None


def test_agents_and_loose_ports(ask, monkeypatch):
    live = test_check_command.agent(last_heartbeat_at="2026-01-01 00:00:00")
    dead = test_check_command.agent(host="sm2", is_alive=False, last_heartbeat_at=None)
    other = test_check_command.agent(host="sm3", configuration={"fabric": "two"})
    ports = [test_check_command.port(id=f"p{number}") for number in range(3)]
    monkeypatch.setattr(
        check_command, "_connect_network", lambda _: network_of(live, dead, other, ports=ports)
    )
    status, text, err = ask("metrics", "fabric", "--os-cloud", "admin")
    assert (status, err) == (0, "")
    assert values(text, "nova_hpc_fabric_agent_alive", "host") == {"sm1": 1, "sm2": 0}
    heartbeat = values(text, "nova_hpc_fabric_agent_heartbeat_timestamp_seconds", "host")
    assert heartbeat == {"sm1": 1767225600}
    # Ports have no series each.
    assert values(text, CHECKS, "name", "state")["port", "not met"] == 3
    # The command itself still says it of each.
    _, out, _ = ask("fabric", "check", "--os-cloud", "admin", "-f", "json")
    assert {row["Name"] for row in json.loads(out)} >= {"port p0", "port p1", "port p2"}


def test_a_cloud_that_does_not_answer_is_unknown(ask, monkeypatch, tmp_path):
    def silent(_):
        raise check_command.CommandError("Neutron does not answer: no route")

    monkeypatch.setattr(check_command, "_connect_network", silent)
    file = tmp_path / "fabric.prom"
    status, _, err = ask("metrics", "fabric", "--os-cloud", "admin", "--textfile", str(file))
    assert (status, err) == (2, "nova-hpc metrics fabric: Neutron does not answer: no route\n")
    assert {name for name, _ in parse(file.read_text())} == {"nova_hpc_fabric_up"}


def test_rows_without_end_have_an_end():
    rows = tuple(AuditRow(f"setting{number}", "", AuditState.MET) for number in range(500))
    text = exposition.write_exposition(
        fabric_facts.list_fabric_samples(FabricFindings(rows))
    ).decode()
    found = values(text, CHECKS, "name")
    assert len(found) == 65
    assert found["other"] == 500 - 64
