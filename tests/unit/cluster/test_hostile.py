# SPDX-License-Identifier: Apache-2.0
"""Whatever members of a project write, nobody who reads it runs it."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shlex
import shutil
import string
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from osc_lib import exceptions

from nova_hpc_client.cluster import hostfiles
from nova_hpc_client.cluster.hostfiles import HostError
from nova_hpc_client.cluster.life_cycle import checks, commands, decide
from nova_hpc_client.cluster.life_cycle.run import ClusterError, Pace
from nova_hpc_client.cluster.life_cycle.steps import Stuck
from nova_hpc_client.cluster.members import neighbours, picture
from nova_hpc_client.openstack import progress
from nova_hpc_client.openstack.cloud import SdkCloud
from nova_hpc_client.openstack.rest import GoneError
from nova_hpc_client.openstack.v1 import cluster_changes, cluster_views
from nova_hpc_client.openstack.v1 import server_view as server_command
from nova_hpc_common.wire import cluster_wish, position
from nova_hpc_common.wire.position import Position
from tests.unit import hostile
from tests.unit.cluster import hostile_cloud
from tests.unit.cluster.hostile_cloud import HostileCloud, a_server, called, id_of
from tests.unit.fabric import slurmctld

SECOND = id_of("train-2")
MACHINE = (*hostfiles.FORMATS, "topology.conf")


def written(form: str, cluster: Any, names: bool = False) -> str:
    """The cluster in a format that a program reads."""
    if form == "topology.conf":
        return neighbours.format_slurm_switches(cluster)
    return hostfiles.FORMATS[form](hostfiles.list_cluster_hosts(cluster, names=names), cluster.name)


# -- what programs read -------------------------------------------------------------------


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("form", MACHINE)
@pytest.mark.parametrize("what", hostile.TEXTS)
def test_a_name_that_is_none_of_a_host_is_refused(what: str, form: str, names: bool) -> None:
    with pytest.raises(ValueError, match=SECOND) as caught:
        written(form, called(hostile.TEXTS[what]), names)
    said = str(caught.value)
    assert hostile.obeyed(said) == []
    assert "\n" not in said
    assert f"openstack server set --name NAME {SECOND}" in said


@pytest.mark.parametrize("form", hostfiles.FORMATS)
@pytest.mark.parametrize("what", hostile.TEXTS)
def test_an_address_that_is_none_is_refused(what: str, form: str) -> None:
    text = hostile.TEXTS[what]
    cluster = called("train-2", addresses={"net": [{"addr": text}]})
    if not text:
        assert SECOND not in written(form, cluster)  # it has none
        return
    with pytest.raises(HostError, match=SECOND) as caught:
        written(form, cluster)
    assert hostile.obeyed(str(caught.value)) == []


@pytest.mark.parametrize("what", hostile.TEXTS)
def test_what_an_owner_says_of_its_place_is_in_no_file(what: str) -> None:
    text = hostile.TEXTS[what]
    cluster = called("train-2", metadata=hostile_cloud.a_server(2)["metadata"])
    usual = {form: written(form, cluster) for form in MACHINE}
    said = called(
        "train-2",
        metadata={**a_server(2)["metadata"], **hostile_cloud.placed(text)},
    )
    # Names of domains have fewer letters than names of hosts need to have.
    if position.is_position_name(text):
        assert set(text) <= set(string.ascii_letters + string.digits + "._-")
        return
    assert {form: written(form, said) for form in MACHINE} == usual
    # Nor where something else has made the member.
    with pytest.raises(ValueError, match=SECOND):
        hostfiles.format_ansible_inventory(
            [
                hostfiles.MemberHost(SECOND, "train-2", "", 1, 1, Position({"leaf": text}).domains),
            ],
            "train",
        )


@pytest.mark.parametrize(
    ("form", "word"),
    [("slurm", "DEFAULT"), ("slurm", "all"), ("ansible", "all"), ("ansible", "ungrouped")],
)
def test_words_of_the_format_name_no_host(form: str, word: str) -> None:
    with pytest.raises(HostError, match=SECOND):
        written(form, called(word))


@pytest.mark.parametrize("form", MACHINE)
def test_two_members_of_one_name_are_refused(form: str) -> None:
    with pytest.raises(ValueError, match=id_of("train-1")):
        written(form, called("TRAIN-1"))


def test_groups_of_ansible_are_no_part_of_themselves() -> None:
    hosts = hostfiles.list_cluster_hosts(called("train-2"))
    assert set(
        yaml.safe_load(hostfiles.format_ansible_inventory(hosts, "all"))["all"]["children"]
    ) == {"hpc_all"}
    assert hostfiles.format_slurm_nodes(hosts, "Default").endswith(
        "NodeSet=hpc-Default Nodes=train-1,train-2\n"
    )
    for form in ("slurm", "ansible"):
        with pytest.raises(HostError, match="called"):
            hostfiles.FORMATS[form](hosts, "{{ 7 * 7 }}")


#: What a playbook does with an inventory: it reads names and variables of each host.
_READS = "{{ inventory_hostname }} {{ hostvars[inventory_hostname] | to_json }} {{ groups }}"


def test_ansible_runs_nothing_of_it(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("ansible")
    if not program.exists():
        pytest.skip("ansible-core is not installed")
    marker = tmp_path / "ran"
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")},
        "HOME": str(tmp_path),
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / "local"),
        "ANSIBLE_NOCOLOR": "1",
    }
    inventories: dict[str, str] = {}
    refused = 0
    for text in hostile.texts(marker):
        metadata = {**a_server(2)["metadata"], **hostile_cloud.placed(text)}
        for cluster in (
            called(text),
            called("train-2", metadata=metadata),
            called("train-2", addresses={text: [{"addr": "10.0.0.2"}]}),
            called("train-2", addresses={"net": [{"addr": text}]}),
        ):
            try:
                inventories.setdefault(written("ansible", cluster), text)
            except HostError:
                refused += 1
    assert inventories
    for number, (text, wrote) in enumerate(inventories.items()):
        inventory = tmp_path / f"{number}.yaml"
        inventory.write_text(text, encoding="utf-8")
        words = ["-i", str(inventory), "all", "-c", "local", "-m", "debug", "-a", f"msg='{_READS}'"]
        done = subprocess.run(
            [sys.executable, str(program), *words],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert not marker.exists(), wrote
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("SUCCESS") == 2
    assert refused >= 2 * len(hostile.TEXTS) - 2


def test_slurm_reads_what_is_written(tmp_path: Path) -> None:
    if shutil.which("slurmctld") is None:
        pytest.skip("slurmctld is not installed")
    cluster = called("gpu.node-2.example.org")
    lines = hostfiles.format_slurm_nodes(
        hostfiles.list_cluster_hosts(cluster), cluster.name
    ).splitlines()
    topology = neighbours.format_slurm_switches(cluster)
    with slurmctld.running(tmp_path, topology, ["other"], "topology/tree", *lines) as conf:
        said = slurmctld.scontrol(conf, "show", "nodes", "--oneliner")
        assert {line.split()[0] for line in said.splitlines()} == {
            "NodeName=train-1",
            "NodeName=gpu.node-2.example.org",
            "NodeName=other",
        }


# -- what people and scripts read -----------------------------------------------------------


class Shell:
    """The commands, with a cloud in memory."""

    def __init__(self, cloud: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cloud = cloud
        for module in (cluster_views, server_command):
            monkeypatch.setattr(module, "sdk_cloud_of", lambda app: cloud)

    def run(self, command: type[Any], *words: str) -> str:
        """What a command writes."""
        app = SimpleNamespace(stdout=io.StringIO(), client_manager=None)
        one = command(app, argparse.Namespace())
        one.run(one.get_parser("openstack").parse_args(words))
        return app.stdout.getvalue()


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
def shell(marker: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(HostileCloud(hostile.texts(marker)), monkeypatch)


LISTS = ("table", "csv", "value", "json", "yaml")
RECORDS = ("table", "shell", "value", "json", "yaml")


def rows_of(text: str) -> int:
    """Rows of a table, each of which is one line."""
    return sum(line.startswith("|") for line in text.splitlines()) - 1


@pytest.mark.parametrize("form", LISTS)
def test_the_list_of_clusters(shell: Shell, form: str) -> None:
    out = shell.run(cluster_views.ListCluster, "--long", "-f", form)
    count = 3 * len(hostile.TEXTS)
    assert hostile.obeyed(out) == []
    if form == "table":
        assert rows_of(out) == count
    elif form == "value":
        assert len(out.splitlines()) == count
    else:
        found = read(form, out)
        assert len(found) == count
        assert {len(row) for row in found} == {10}


def read(form: str, out: str) -> Any:
    """What a program makes of it."""
    if form == "csv":
        found = list(csv.DictReader(io.StringIO(out)))
        for row in found:
            assert None not in row
            for cell in row.values():
                assert not cell.lstrip().startswith(("=", "+", "-", "@"))
        return found
    return json.loads(out) if form == "json" else yaml.safe_load(out)


@pytest.mark.parametrize("form", RECORDS)
def test_one_cluster(shell: Shell, marker: Path, form: str) -> None:
    texts = hostile.texts(marker)
    for number, text in enumerate(texts):
        out = shell.run(cluster_views.ShowCluster, f"c{number}", "-f", form)
        assert hostile.obeyed(out) == []
        if form in ("json", "yaml"):
            found = json.loads(out) if form == "json" else yaml.safe_load(out)
            # Exactly what was written, and so is it read.
            assert found["members"].count(text) == 2
            assert found["others"] == [text]
            assert found["id"] == id_of(f"group c{number}")
        elif form == "shell":
            assert shown_by_shell(out)["name"] == f"c{number}"
        elif form == "table":
            assert rows_of(out) == 21
        else:
            assert len(out.splitlines()) == 21
    assert not marker.exists()


def shown_by_shell(out: str) -> dict[str, str]:
    """What a shell has in its variables after it has read a record."""
    names = [line.partition("=")[0] for line in out.splitlines()]
    shows = "\n".join(f"printf '%s\\0' \"${name}\"" for name in names)
    done = subprocess.run(
        ["bash", "-euc", 'eval "$1"; eval "$2"', "bash", out, shows],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return dict(zip(names, done.stdout.split("\0"), strict=False))


@pytest.mark.parametrize("form", RECORDS)
def test_one_server(shell: Shell, marker: Path, form: str) -> None:
    for server in shell.cloud.servers:
        out = shell.run(server_command.ShowServer, server["id"], "-f", form)
        assert hostile.obeyed(out) == []
        if form in ("json", "yaml"):
            found = json.loads(out) if form == "json" else yaml.safe_load(out)
            assert found["name"] == server["name"]
        elif form == "shell" and server["name"] in hostile.texts(marker)[:40]:
            assert shown_by_shell(out)["id"] == server["id"]
    assert not marker.exists()


@pytest.mark.parametrize("form", [*LISTS, *hostfiles.FORMATS])
def test_hosts(shell: Shell, form: str) -> None:
    for number in range(len(hostile.TEXTS)):
        words = (f"c{number}", "--names", "-f", form)
        if form in ("table", "json", "yaml"):
            out = shell.run(cluster_views.ListHosts, *words)
            assert hostile.obeyed(out) == []
            assert rows_of(out) == 3 if form == "table" else len(read(form, out)) == 3
        else:
            with pytest.raises(exceptions.CommandError) as caught:
                shell.run(cluster_views.ListHosts, *words)
            assert hostile.obeyed(str(caught.value)) == []


@pytest.mark.parametrize("form", [*LISTS, "tree", "matrix", "svg", "slurm"])
def test_topology(shell: Shell, form: str) -> None:
    for number in range(len(hostile.TEXTS)):
        words = (f"c{number}", "-f", form)
        if form in ("csv", "value", "slurm"):
            with pytest.raises(exceptions.CommandError) as caught:
                shell.run(cluster_views.ShowTopology, *words)
            assert hostile.obeyed(str(caught.value)) == []
            continue
        out = shell.run(cluster_views.ShowTopology, *words)
        assert hostile.obeyed(out) == []
        if form == "svg":
            elements = {each.tag.rpartition("}")[2] for each in ElementTree.fromstring(out).iter()}
            assert elements <= {"svg", "title", "style", "text", "g", "rect"}
        elif form == "tree":
            assert {line[0] for line in out.splitlines()} <= {"c", " ", "├", "└", "│"}
        elif form == "matrix":
            assert len(out.splitlines()) == 13


def test_pictures_of_one_member_are_of_one_line_a_member() -> None:
    for text in hostile.TEXTS.values():
        cluster = called(text)
        assert (
            hostile.obeyed(
                neighbours.format_cluster_tree(cluster) + neighbours.format_nearness_matrix(cluster)
            )
            == []
        )
        ElementTree.fromstring(picture.draw_cluster_picture(cluster))


# -- ids, commands ----------------------------------------------------------------------------


@pytest.mark.parametrize("what", hostile.TEXTS)
def test_a_tag_is_no_id_unless_it_is_one(what: str) -> None:
    groups, servers, ports = hostile_cloud.written_everywhere(hostile.TEXTS[what], 0)
    known = {group["id"] for group in groups}
    found = hostile_cloud.clusters(groups, servers, ports)
    assert {each.id for each in found} == known
    for cluster in found:
        assert cluster.name == "?" or cluster_wish.NAME.fullmatch(cluster.name)
        assert hostile.obeyed(cluster.reason) == []
        assert "\n" not in cluster.reason
        for command in decide.format_finish_commands(cluster).split(", or "):
            safe(command, known | {cluster.name} | {server["id"] for server in servers})


def safe(command: str, known: set[str]) -> None:
    """A command that a shell takes for these words, and ``openstack`` for no other option."""
    if not command:
        return
    assert command.isprintable()
    words = shlex.split(command)
    assert words[0] == "openstack"
    assert shlex.join(words) == command
    for word in words[1:]:
        if word not in ("hpc", "cluster", "create", "--resume", "delete", "replace", "server"):
            assert word in known or word in ("start", "show") or word.isdigit(), command


def test_the_next_command_of_a_renamed_member_says_its_number_or_id() -> None:
    failed = called("$(touch x)", status="ERROR")
    assert decide.format_finish_commands(failed) == "openstack hpc cluster replace train 2"
    stopped = called("$(touch x)", status="PAUSED")
    assert decide.format_finish_commands(stopped) == f"openstack server unpause {SECOND}"
    usual = called("train-2", status="PAUSED")
    assert decide.format_finish_commands(usual) == "openstack server unpause train-2"


@pytest.mark.parametrize("what", hostile.TEXTS)
def test_errors_with_names_in_them(what: str) -> None:
    text = hostile.TEXTS[what]
    groups, servers, ports = hostile_cloud.written_everywhere(text, 0)
    cluster = next(c for c in hostile_cloud.clusters(groups, servers, ports) if c.name == "c0")
    with pytest.raises(ClusterError) as caught:
        commands.delete_cluster(None, cluster, Pace())  # type: ignore[arg-type]
    move = decide.plan_fulfilment(cluster.wish, cluster)  # type: ignore[arg-type]
    assert isinstance(move, Stuck)
    for said in (str(caught.value), move.reason):
        assert hostile.obeyed(said) == []
        assert "\n" not in said


def test_a_flavor_in_metadata_makes_no_other_request() -> None:
    asked: list[str] = []

    class Rest:
        def nova(self, method: str, path: str, **query: Any) -> Any:
            asked.append(path)
            if path == "/flavors/detail":
                return {"flavors": []}
            raise GoneError("404")

    cloud = SdkCloud(Rest())  # type: ignore[arg-type]
    for text in hostile.TEXTS.values():
        with pytest.raises(ClusterError, match="no flavor"):
            cloud.flavor(text)
    for path in asked:
        head, _, last = path.rpartition("/")
        assert head == "/flavors"
        assert last.strip(".")
        assert set(last) <= set(map(chr, range(128)))
        assert not set(last) & set("/?#%\n ")


# -- programs and consoles --------------------------------------------------------------------


@pytest.mark.parametrize("what", hostile.TEXTS)
def test_the_program_of_drain_gets_names_of_hosts_alone(tmp_path: Path, what: str) -> None:
    program, called_with = tmp_path / "drain", tmp_path / "called"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{called_with}\n')
    program.chmod(0o755)
    with pytest.raises(ValueError, match=SECOND):
        cluster_changes._run_drain_program(str(program), called(hostile.TEXTS[what]), [1, 2])
    assert not called_with.exists()
    cluster_changes._run_drain_program(str(program), called(hostile.TEXTS[what]), [1])
    assert called_with.read_text() == "train-1\n"


@pytest.mark.parametrize("what", hostile.TEXTS)
def test_the_console_of_a_guest(what: str) -> None:
    text = hostile.TEXTS[what]
    (member, *_) = called("train-2").members
    said = checks.ConsoleChecks().judge([member], lambda _: f"nova-hpc: WRONG link: x{text}")
    assert isinstance(said, Stuck)
    assert hostile.obeyed(said.reason) == []
    assert "\n" not in said.reason


@pytest.mark.parametrize("colour", [False, True])
def test_the_bar_shows_whatever_it_is_told(
    colour: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if colour:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "200")
    for text in hostile.TEXTS.values():
        with progress.show_member_progress(2, True) as say:
            say(called(text), text)
        err = capsys.readouterr().err
        if not colour:
            assert hostile.obeyed(err) == []
        elif not text.replace("\n", "").isprintable():
            assert text not in err
