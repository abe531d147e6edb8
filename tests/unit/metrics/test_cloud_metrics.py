# SPDX-License-Identifier: Apache-2.0
"""The metrics of a cloud say what ``capacity`` says, and nothing of one that was read in part."""

from __future__ import annotations

import json

import attrs
import pytest

from nova_hpc_tools.main import main
from nova_hpc_tools.metrics import cloud_facts, exposition
from nova_hpc_tools.metrics.cloud_facts import FlavorWish
from nova_hpc_tools.metrics.samples import MOST_ROLES, bound_label
from nova_hpc_tools.snapshot import cloud_readers
from nova_hpc_tools.snapshot import document as snapshot_document
from nova_hpc_tools.snapshot.node_health import NodeHealth
from tests.unit import hostile
from tests.unit.cloud.test_explain_command import a_cloud
from tests.unit.metrics.texts import parse, value, values
from tests.unit.snapshot import clouds

HEALTH = (
    NodeHealth(
        "node7",
        withheld={"0000:41:01.0": "AER", "0000:41:02.0": "link", "0000:41:03.0": "?"},
        in_use={"0000:41:04.0": "narrow"},
        states={
            "0000:41:01.0": ("quarantined", 1.0),
            "0000:41:02.0": ("suspect", 1.0),
            "0000:41:03.0": ("of a later release", 1.0),
        },
        left_out=5,
    ),
    NodeHealth("fit1", withheld={"0000:40:01.0": "no VFIO"}),
)


def text_of(cloud, *flavors, members=(), health=HEALTH):
    samples = cloud_facts.list_cloud_samples(cloud, health, FlavorWish(flavors, members))
    return exposition.write_exposition(samples).decode()


@pytest.fixture
def run(tmp_path, capsys):
    """A command with a snapshot of the cloud."""
    file = tmp_path / "cloud.json"
    file.write_text(snapshot_document.dump_cloud_snapshot(a_cloud()))

    def ask(*words):
        status = main([*words, "--snapshot", str(file)])
        return status, *capsys.readouterr()

    return ask


@pytest.mark.parametrize("flavor", ["pair", "four", "celled", "whole"])
def test_numbers_of_a_flavor_are_those_of_capacity(run, flavor):
    _, out, _ = run("capacity", "--flavor", flavor, "--members", "2", "-f", "json")
    said = json.loads(out)
    status, text, err = run("metrics", "cloud", "--flavor", flavor, "--members", "2")
    assert (status, err) == (0, "")
    assert values(text, "nova_hpc_cloud_servers_fit", "flavor") == {flavor: said["total"]}
    for key, name in (("largest", "largest_cluster"), ("clusters", "clusters_fit")):
        assert values(text, f"nova_hpc_cloud_{name}", "level") == {
            level["level"]: level[key] for level in said["levels"]
        }
    refusing = values(text, "nova_hpc_cloud_refusing_hosts", "reason")
    assert sum(refusing.values()) == sum(host["fit"] == 0 for host in said["hosts"])
    assert refusing["out"] == 1


def test_a_reason_has_its_sign():
    text = text_of(a_cloud(), "pair")
    reasons = values(text, "nova_hpc_cloud_refusing_hosts", "reason")
    # node7 has four GPUs below four switches, "both" one of two below each.
    assert {reason: number for reason, number in reasons.items() if number} == {
        "together": 2,
        "out": 1,
    }


def test_devices_by_role_state_and_service():
    text = text_of(a_cloud())
    devices = values(text, "nova_hpc_cloud_devices", "role", "state", "service")
    assert devices["gpu", "free", "in"] == 3 + 3 + 4 + 2
    assert devices["gpu", "in use", "in"] == 2
    assert devices["gpu", "free", "out"] == 4
    assert devices["nic", "free", "in"] == 8
    assert values(text, "nova_hpc_cloud_hosts", "service") == {"in": 4, "out": 1}


def test_what_strands():
    text = text_of(a_cloud(), "pair")
    # fit1 and fit2 lose one each, node7 all four, "both" its two; the host that is out has none.
    assert values(text, "nova_hpc_cloud_servers_fit", "flavor") == {"pair": 2}
    assert values(text, "nova_hpc_cloud_stranded_devices", "flavor", "role") == {
        ("pair", "gpu"): 12 - 2 * 2
    }


def test_sets_that_hosts_still_give():
    text = text_of(a_cloud())
    assert values(text, "nova_hpc_cloud_largest_set", "role", "level")["gpu", "switch"] == 2
    hosts = values(text, "nova_hpc_cloud_hosts_with_set", "role", "level", "size")
    # The host that is out has four below one switch, and gives nobody anything.
    assert (hosts["gpu", "switch", "1"], hosts["gpu", "switch", "2"]) == (4, 2)
    assert (hosts["gpu", "host", "2"], hosts["gpu", "host", "4"]) == (4, 1)
    assert ("gpu", "host", "8") not in hosts


def test_what_nodes_withhold():
    text = text_of(a_cloud())
    assert values(text, "nova_hpc_cloud_withheld_devices", "state") == {
        "quarantined": 1,
        "suspect": 1,
        "withheld": 1,
        "other": 1,
    }
    assert value(text, "nova_hpc_cloud_unlisted_devices") == 5
    assert value(text, "nova_hpc_cloud_ailing_devices") == 1
    # A file does not say it, which is not the same as none.
    text = text_of(a_cloud(), health=None)
    names = {name for name, _ in parse(text)}
    assert not names & {"nova_hpc_cloud_withheld_devices", "nova_hpc_cloud_ailing_devices"}


def test_a_flavor_that_is_gone_takes_nothing_else_away():
    text = text_of(a_cloud(), "pair", "gone")
    assert values(text, "nova_hpc_cloud_flavor_up", "flavor") == {"pair": 1, "gone": 0}
    assert values(text, "nova_hpc_cloud_servers_fit", "flavor") == {"pair": 2}


def test_a_cloud_that_was_read_in_part_is_unknown(monkeypatch, capsys, tmp_path):
    part = attrs.evolve(a_cloud(), complete=False, problems=("cell 2 did not answer",))
    monkeypatch.setattr(cloud_readers, "_load_reader", lambda _: lambda *_: part)
    file = tmp_path / "cloud.prom"
    assert main(["metrics", "cloud", "--textfile", str(file)]) == 2
    assert "was not read whole, so numbers would be wrong: cell 2" in capsys.readouterr().err
    assert {name for name, _ in parse(file.read_text())} == {"nova_hpc_cloud_up"}


def test_the_cloud_itself_is_asked(monkeypatch, capsys):
    readers = {"nova": lambda *_: a_cloud(), "nova_health": lambda *_: HEALTH}
    monkeypatch.setattr(cloud_readers, "_load_reader", readers.__getitem__)
    assert main(["metrics", "cloud"]) == 0
    text = capsys.readouterr().out
    assert value(text, "nova_hpc_cloud_up") == 1
    assert value(text, "nova_hpc_cloud_unlisted_devices") == 5
    assert value(text, "nova_hpc_cloud_snapshot_timestamp_seconds") == 1767225600


def test_names_of_others_make_no_series_without_end():
    many = attrs.evolve(
        clouds.node("n1", []),
        devices=tuple(
            attrs.evolve(clouds.gpu("n1", number), role=f"{text}{number}")
            for number, text in enumerate(hostile.texts())
        ),
    )
    flavors = [clouds.flavor(text) for text in dict.fromkeys(hostile.texts())]
    text = text_of(clouds.cloud(many, flavors=flavors), *(flavor.name for flavor in flavors))
    assert hostile.obeyed(text) == []
    assert len(values(text, "nova_hpc_cloud_devices", "role", "state", "service")) == 4 * (
        MOST_ROLES + 1
    )
    assert set(values(text, "nova_hpc_cloud_flavor_up", "flavor")) == {
        bound_label(flavor.name) for flavor in flavors
    }
    # Neither hosts nor servers are named.
    labels = {name for _, pairs in parse(text) for name, _ in pairs}
    assert not labels & {"host", "node", "server", "instance"}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--members", "4"], "give --flavor, too"),
        (["--flavor", "a"] * 33, "--flavor: at most 32"),
        (["--flavor", "a", *["--members", "4"] * 9], "--members: at most 8"),
        (["--interval", "9"], "need --listen"),
        (["--tls-key", "k"], "need --listen"),
        (["--listen", "127.0.0.1:1", "--tls-key", "k"], "go together"),
        (["--listen", "127.0.0.1:1", "--tls-client-ca", "k"], "needs --tls-certificate"),
    ],
)
def test_options_that_contradict_each_other(run, words, reason):
    status, out, err = run("metrics", "cloud", *words)
    assert (status, out) == (2, "")
    assert reason in err
