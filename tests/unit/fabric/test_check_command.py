# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc fabric check`` without a fabric: its files, its rows, its exit status."""

import json
from types import SimpleNamespace

import pytest

from nova_hpc.fabric.partitions.backends.base import AuditRow, AuditState, FileComparison
from nova_hpc.fabric.partitions.members import DesiredPartitions, PartitionMember
from nova_hpc.fabric.partitions.own_partitions import OwnPartitions
from nova_hpc.fabric.partitions.partition_file import lay_out_partitions, render_body, render_file
from nova_hpc_tools.fabric import check_command
from nova_hpc_tools.fabric.check_command import CheckFabric
from nova_hpc_tools.main import NovaHpc

KEYS = (
    "sa_key 0x9d31c60ab84ef217\nsm_key 0x71f0e1c29ab35d48\nm_key 0x0c95b3ee61d2748a\n"
    "m_key_protection_level 2\n"
)


def text_of_file(ticket=7):
    members = tuple(PartitionMember(row, f"p{row}", 0xA0 + row, 0x101) for row in range(3))
    layout = lay_out_partitions(DesiredPartitions(ticket, members), OwnPartitions())
    return render_file(render_body(layout, OwnPartitions()), ticket)


@pytest.fixture
def place(tmp_path):
    """The files of a subnet manager, and the agent's options."""
    config = tmp_path / "opensm.conf"
    partitions = tmp_path / "partitions.conf"
    config.write_text(f"{KEYS}partition_config_file {partitions}\n")
    partitions.write_text(text_of_file())
    agent = tmp_path / "agent.conf"
    agent.write_text(
        f"[hpc_fabric_agent]\nfabric = main\nopensm_config = {config}\n"
        f"partitions_file = {partitions}\nstate_path = {tmp_path}\n"
        f"opensm_log = {tmp_path}/log\nopensm_pid_file = {tmp_path}/pid\n"
        f"own_partitions_file = {tmp_path}/own\n"
    )
    return SimpleNamespace(config=config, partitions=partitions, agent=agent, folder=tmp_path)


@pytest.fixture
def ask(place, capsys):
    def run(*words):
        app = NovaHpc()
        app.command_manager.add_command("fabric check", CheckFabric)
        status = app.run(["fabric", "check", "--config-file", str(place.agent), *words])
        return status, *capsys.readouterr()

    return run


def rows_of(answer):
    status, out, err = answer
    assert err == "", err
    return status, {row["Name"]: row for row in json.loads(out)}


def test_each_setting_has_a_row_with_the_requirements_id(ask):
    status, rows = rows_of(ask("-f", "json"))
    assert rows["m_key"]["Requirement"] == "SDN04-05"
    assert rows["default_partition"]["Requirement"] == "SDN04-04"
    assert rows["m_key"]["State"] == "met", rows
    assert rows["vs_key"]["State"] == "not available"
    assert rows["vs_key"]["Cure"].startswith("open: ")
    assert rows["partitions_file"]["Found"] == "ticket 7: 1 networks, 3 members"
    # No fabric can be read here, and what is not read is not proved.
    assert rows["tables"]["State"] == "unknown"
    assert status == 1


@pytest.mark.parametrize(
    ("line", "name"),
    [("sa_key 0x1", "sa_key"), ("m_key 0", "m_key"), ("part_enforce off", "part_enforce")],
)
def test_what_is_not_met_has_the_line_to_change(ask, place, line, name):
    place.config.write_text(place.config.read_text() + line + "\n")
    status, rows = rows_of(ask("-f", "json"))
    assert (status, rows[name]["State"]) == (1, "not met")
    assert name in rows[name]["Cure"]


def test_a_file_that_others_have_changed_is_named(ask, place):
    text = place.partitions.read_text().replace("0x00000000000000a1", "0x00000000000000b1")
    place.partitions.write_text(text)
    _, rows = rows_of(ask("-f", "json"))
    assert rows["partitions_file"]["State"] == "not met"
    assert "changed by others" in rows["partitions_file"]["Found"]


@pytest.mark.parametrize("text", ["", "Default=0x7fff : ALL=full ;\n"])
def test_an_open_file_is_named_twice(ask, place, text):
    place.partitions.write_text(text)
    _, rows = rows_of(ask("-f", "json"))
    assert rows["partitions_file"]["State"] == "not met"
    assert rows["default_partition"]["State"] == "not met"


def test_losses_that_cannot_be_told_are_not_accepted(ask, place):
    status, out, err = ask("--accept-losses")
    assert (status, out) == (2, "")
    assert f"an agent has written {place.partitions} before: there is nothing to accept" in err
    place.partitions.write_text("Default=0x7fff : ALL, SELF=full ;\na=2 : cn01 ;\n")
    _, _, err = ask("--accept-losses")
    assert "line 2: 'cn01' is no port GUID" in err
    # No fabric can be read here.
    place.partitions.write_text("Default=0x7fff : ALL, SELF=full ;\na=2 : 0xa ;\n")
    status, out, _ = ask("--accept-losses")
    assert (status, out) == (2, "")
    _, rows = rows_of(ask("-f", "json"))
    assert rows["own_partitions"]["Found"] == "would be lost: port 0x000000000000000a: 0x0002"
    assert rows["first_write"]["State"] == "unknown"


def test_people_read_lines(ask):
    status, out, _ = ask()
    assert status == 1
    assert "          met  m_key [SDN04-05]: set\n" in out
    assert "not available  vs_key [SDN04-05]: " in out
    head, *lines = out.splitlines()
    assert head == f"1 of {len(rows_of(ask('-f', 'json'))[1])} rows need work: tables"
    assert max(map(len, lines)) <= 100


def test_a_host_without_a_subnet_manager_is_named_first(ask, place):
    place.config.unlink()
    assert ask()[0] == 1
    place.partitions.unlink()
    status, out, err = ask()
    assert (status, out) == (2, "")
    assert f"neither {place.config} nor {place.partitions} is there; run this command on" in err


def test_keys_are_never_shown(ask):
    for words in ((), ("-f", "json"), ("-f", "csv")):
        assert "9d31c60ab84ef217" not in ask(*words)[1]


def test_options_that_cannot_be_used_are_refused(ask, place):
    for text in ("[hpc_fabric_agent]\nsubnet_manager = none\n", "no options\n"):
        place.agent.write_text(text)
        status, out, err = ask("-f", "json")
        assert (status, out) == (2, "")
        assert "Traceback" not in err
    place.agent.unlink()
    assert ask()[0] == 2


def test_another_file_of_partitions_is_refused(ask, place):
    place.config.write_text(f"{KEYS}partition_config_file {place.folder}/other.conf\n")
    status, _, err = ask("-f", "json")
    assert status == 2
    assert "name one file in both" in err


class Compared:
    def __init__(self, *wrong, members=()):
        self.wrong, self.members = wrong, frozenset(members)

    def compare_with_file(self):
        return FileComparison(300, self.wrong, {0xA: "master", 0xB: "standby"}, self.members)


def test_tables_that_differ_have_a_row_each_and_right_ones_one(tmp_path):
    path = tmp_path / "partitions.conf"
    path.write_text(text_of_file())
    rows = list(check_command.check_partitions(Compared(), path))
    assert [row.state for row in rows] == [AuditState.MET] * 3
    assert rows[1].found == "0x000000000000000a (master), 0x000000000000000b (standby)"
    rows = list(check_command.check_partitions(Compared("port 1: a", "port 2: b"), path))
    assert [row.found for row in rows[2:]] == [
        "those of 2 of 300 ports are not as in the file",
        "port 1: a",
        "port 2: b",
    ]
    assert all(map(check_command.is_wrong, rows[2:]))
    rows = list(check_command.check_partitions(Compared(*map(str, range(300))), path))
    assert len(rows) == 53


def test_a_manager_in_a_network_is_named(tmp_path):
    path = tmp_path / "partitions.conf"
    path.write_text(text_of_file())
    rows = list(check_command.check_partitions(Compared(members=[0xB]), path))
    (row,) = [row for row in rows if row.name == "managers"]
    assert (row.state, check_command.is_wrong(row)) == (AuditState.NOT_MET, True)
    assert row.found.endswith("the file gives a network's key to 0x000000000000000b")


def test_a_manager_without_a_file_is_not_compared(tmp_path):
    (row,) = check_command.check_partitions(object(), tmp_path / "none")
    assert (row.state, check_command.is_wrong(row)) == (AuditState.UNKNOWN, False)


@pytest.mark.parametrize(
    ("state", "needed", "wrong"),
    [
        (AuditState.MET, True, False),
        (AuditState.NOT_MET, False, True),
        (AuditState.NOT_AVAILABLE, False, False),
        (AuditState.UNKNOWN, False, False),
        (AuditState.UNKNOWN, True, True),
    ],
)
def test_what_counts_as_wrong(state, needed, wrong):
    assert check_command.is_wrong(AuditRow("a", "", state, needed=needed)) is wrong


def port(**more):
    return SimpleNamespace(
        **{
            "id": "p1",
            "binding_host_id": "cn1",
            "binding_vif_type": "unbound",
            "binding_vnic_type": "direct",
            **more,
        }
    )


def test_a_port_with_a_host_and_without_a_partition_is_named():
    (row,) = check_command.describe_loose_ports([port()])
    assert (row.name, row.cure) == ("port p1", "openstack port set --host cn1 p1")
    assert check_command.is_wrong(row)
    assert check_command.describe_loose_ports([port(binding_vif_type="binding_failed")])
    for more in (
        {"binding_host_id": ""},
        {"binding_vif_type": "hostdev_physical"},
        {"binding_vnic_type": "normal"},
    ):
        assert check_command.describe_loose_ports([port(**more)]) == []


def agent(**more):
    return SimpleNamespace(
        **{
            "binary": "nova-hpc-fabric-agent",
            "host": "sm1",
            "is_alive": True,
            "configuration": {"fabric": "main", "faults": []},
            **more,
        }
    )


def test_the_faults_of_agents_are_named_and_a_live_one_is_missed():
    assert check_command.describe_agents([agent()], "main") == []
    dead = agent(is_alive=False)
    assert check_command.describe_agents([dead, agent()], "main") == []
    for agents in ([], [dead], [agent(configuration={"fabric": "two"})], [agent(binary="other")]):
        (row,) = check_command.describe_agents(agents, "main")
        assert row.found.startswith("Neutron has no live agent of the fabric main")
    faulty = agent(configuration={"fabric": "main", "faults": ["a", "b"]})
    rows = check_command.describe_agents([faulty], "main")
    assert [(row.name, row.found) for row in rows] == [("agent sm1", "a"), ("agent sm1", "b")]
