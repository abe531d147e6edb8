# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc device``: many devices at once, announced changes, and who has what where."""

from __future__ import annotations

import datetime
import json
import time

import attrs
import pytest

from nova_hpc.wire.ledger import DeviceState
from nova_hpc_tools.device import bulk_commands, list_command
from nova_hpc_tools.device import command as device
from nova_hpc_tools.main import NovaHpc
from nova_hpc_tools.snapshot import SnapshotError, cloud_readers
from nova_hpc_tools.snapshot.node_health import NodeHealth
from tests.unit.tenancy.hygiene_node import config, make

GPUS = [f"0000:{bus:02x}:00.0" for bus in range(0x40, 0x48)]
GPU, OTHER = GPUS[:2]
LATER = f"{datetime.date.today() + datetime.timedelta(days=9)}T08:00Z"
SERVER = "11111111-1111-1111-1111-111111111111"
COMMANDS = {
    "list": list_command.ListDevices,
    "show": device.ShowDevice,
    "quarantine": device.QuarantineDevice,
    "accept": bulk_commands.AcceptDevices,
    "release": bulk_commands.ReleaseDevices,
    "maintenance": bulk_commands.MaintenanceWindow,
}


@pytest.fixture
def node(tmp_path):
    node = make(tmp_path, *GPUS)
    (tmp_path / "nova.conf").write_text(
        f"[DEFAULT]\nstate_path = {tmp_path}\n[hpc]\nsysfs_root = {tmp_path}\n"
        f"ledger_file = {node.state}\nreset_timeout = 20\n"
    )
    node.step().sweep(node.candidates(*GPUS), frozenset)
    return node


@pytest.fixture
def ask(node, capsys):
    def run(*words):
        app = NovaHpc()
        for name, command in COMMANDS.items():
            app.command_manager.add_command(f"device {name}", command)
        status = app.run(["device", *words, "--config-file", str(node.root / "nova.conf")])
        out, err = capsys.readouterr()
        # Each says on standard error which file it has read.
        return status, out, err.replace(f"Ledger: {node.state}\n", "")

    return run


def rows(ask, *words):
    status, out, err = ask(*words, "-f", "json")
    assert err == ""
    return status, json.loads(out)


def sweep(node, *taken):
    return node.step().sweep(node.candidates(*GPUS), lambda: frozenset(taken))


def update(node, *addresses):
    """An update of firmware takes a capability away."""
    for each in addresses or GPUS:
        node.config(each, capabilities=(0x01,))


def test_an_update_of_firmware_is_accepted_at_once(node, ask):
    # One server has its GPU meanwhile.
    node.step().give(SERVER, node.candidates(GPU))
    update(node)
    withheld = sweep(node, GPU)
    assert set(withheld) == set(GPUS) - {GPU}
    (reason,) = set(withheld.values())
    assert "7 of 7 devices of model 10de:2330 have changed alike" in reason
    status, listed = rows(ask, "list")
    states = {row["Address"]: row["State"] for row in listed}
    assert (states.pop(GPU), set(states.values())) == ("in use", {"suspect"})
    # The difference is shown, and nothing happens without an answer.
    status, out, err = ask("accept", "--all", "--reason", "firmware 2.0")
    assert status == 2
    assert out.count("its capabilities have changed: 10@60 gone, none new") == 7
    assert "give --yes" in err
    assert len(node.ledger.suspect) == 7
    status, done = rows(ask, "accept", "--all", "--reason", "firmware 2.0", "--yes")
    assert status == 0
    assert {row["Address"] for row in done} == set(GPUS) - {GPU}
    assert node.ledger.suspect == {}
    assert sweep(node, GPU) == {}
    # The last one is accepted when its server is gone.
    assert node.step().take_back(SERVER, {}) == {}
    assert sweep(node) == {}
    assert node.step().give(SERVER, node.candidates(*GPUS)) == {}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--model", "10de:2330"], {*GPUS[1:]}),
        (["--model", "10DE:2330"], {*GPUS[1:]}),
        (["--model", "10de:2331"], set()),
        (["--since", "1h"], {*GPUS[1:]}),
        (["--since", "2999-01-01"], set()),
        (["--all"], {*GPUS[1:]}),
        ([OTHER, GPUS[2].upper()], {OTHER, GPUS[2]}),
    ],
)
def test_which_devices(node, ask, words, expected):
    node.now[:] = [time.time(), 1000.0]
    update(node, *GPUS[1:])
    sweep(node)
    status, done = rows(ask, "accept", *words, "--reason", "x", "--yes")
    assert status == 0
    assert {row["Address"] for row in done} == expected
    assert set(node.ledger.suspect) == set(GPUS[1:]) - expected


def test_a_quarantined_change_is_cleaned_before_it_is_offered(node, ask):
    node.step().give(SERVER, node.candidates(GPU))
    update(node, GPU)
    node.step().take_back(SERVER, {})
    for _ in range(20):
        sweep(node)
        node.later(900)
    assert GPU in node.ledger.quarantined
    node.forget(GPU)
    status, done = rows(ask, "accept", GPU, "--reason", "new card")
    assert (status, done[0]["Result"]) == (
        0,
        "recorded as it is now; it is cleaned and offered at the next update",
    )
    assert not node.resets(GPU)
    assert "suspect" in node.step().give("two", node.candidates(GPU))[GPU]
    assert sweep(node) == {}
    assert node.resets(GPU)
    assert node.ledger.device(GPU).state is DeviceState.OFFERED


def test_release_in_bulk(node, ask):
    for each in GPUS[:3]:
        node.file.quarantine({each: "a bad night"})
    (node.devices / GPU / "reset").unlink()
    node.forget(OTHER)
    status, out, err = ask("release", "--all")
    assert status == 2
    assert out.count("a bad night") == 3
    assert not node.resets(OTHER)
    status, out, err = ask("release", "--all", "--yes", "-f", "json")
    assert status == 1
    assert "stays in quarantine: the kernel knows no way to reset it" in err
    assert [row["State"] for row in json.loads(out)] == ["quarantined", "free", "free"]
    assert list(node.ledger.quarantined) == [GPU]
    assert node.resets(OTHER)
    # A suspect device need not wait for its next try.
    update(node, GPUS[4])
    for _ in range(3):
        sweep(node)
    node.config(GPUS[4])
    assert GPUS[4] in sweep(node)
    assert ask("release", GPUS[4])[0] == 0
    assert GPUS[4] not in sweep(node)


def test_announced_changes_are_recorded(node, ask):
    assert rows(ask, "maintenance") == (
        0,
        {"Start": "", "End": "", "Models": "", "Reason": "", "Planned": ""},
    )
    node.now[:] = [time.time() + 60, 1000.0]
    status, out, _ = ask("maintenance", "--start", "--for", "2h", "--reason", "firmware 2.0")
    assert status == 0
    assert "all models: firmware 2.0" in out
    update(node)
    assert sweep(node) == {}
    assert "10@60" not in node.ledger.device(GPU).baseline["capabilities"]
    # Afterwards a change is one again.
    node.later(7200)
    for each in GPUS:
        node.config(each)
    assert len(sweep(node)) == len(GPUS)
    assert ask("maintenance", "--stop")[1] == "no maintenance is announced\n"
    assert node.ledger.maintenance is None


def test_a_maintenance_of_one_model_is_not_that_of_another(node, ask):
    node.now[:] = [time.time() + 60, 1000.0]
    assert (
        ask("maintenance", "--start", "--for", "2h", "--reason", "x", "--model", "15b3:101e")[0]
        == 0
    )
    update(node)
    assert len(sweep(node)) == len(GPUS)


def test_planned_work_is_a_mark_that_changes_nothing_else(node, ask):
    node.now[:] = [time.time(), 1000.0]
    moment = f"{datetime.date.today() + datetime.timedelta(days=3)}T08:00"
    before = node.ledger
    status, out, _ = ask("maintenance", OTHER, GPU.upper(), "--at", f"{moment}+00:00")
    assert (status, out) == (
        0,
        f"planned work: {GPU} {moment}Z\nplanned work: {OTHER} {moment}Z\n",
    )
    assert attrs.evolve(node.ledger, planned=before.planned) == before
    # Changes are not expected, and the device goes to servers as before.
    update(node, GPU)
    assert set(sweep(node)) == {GPU}
    node.config(GPU)
    assert node.step().give(SERVER, node.candidates(OTHER)) == {}
    assert ask("show", GPU, "-f", "value", "-c", "Planned")[1] == f"{moment}Z\n"
    waiting = f"{moment}Z, not reported to its owner yet"
    assert ask("show", OTHER, "-f", "value", "-c", "Planned")[1] == f"{waiting}\n"
    listed = {row["Address"]: row["Planned"] for row in rows(ask, "list")[1]}
    assert {address: text for address, text in listed.items() if text} == {
        GPU: f"{moment}Z",
        OTHER: waiting,
    }
    told = attrs.evolve(node.ledger.planned, announced={SERVER: f"{moment}Z"})
    node.file.change(lambda ledger: attrs.evolve(ledger, planned=told))
    assert ask("show", OTHER, "-f", "value", "-c", "Planned")[1] == f"{moment}Z\n"
    # A window is another thing, and one mark is taken back alone.
    ask("maintenance", "--start", "--for", "2h", "--reason", "x")
    status, out, _ = ask("maintenance", "--stop", GPU)
    assert out.splitlines()[1:] == [f"planned work: {OTHER} {moment}Z"]
    assert ask("maintenance", "--stop", GPU)[0] == 2
    assert rows(ask, "maintenance")[1]["Planned"] == f"{OTHER} {moment}Z"
    assert ask("maintenance", "--stop")[1] == "no maintenance is announced\n"
    assert node.ledger.maintenance is None
    assert node.ledger.planned == attrs.evolve(told, devices={})


def test_planned_work_needs_the_watch(node, ask):
    path = node.root / "nova.conf"
    path.write_text(f"{path.read_text()}watch_interval = 0\n")
    status, _, err = ask("maintenance", GPU, "--at", LATER)
    assert status == 2
    assert "[hpc]watch_interval is 0, so nova-compute of this node announces nothing" in err
    assert node.ledger.planned.devices == {}


def test_an_operators_quarantine_is_not_accepted_away(node, ask):
    node.file.quarantine({GPU: "ticket 4711"})
    update(node, GPU)
    assert ask("accept", GPU, "--reason", "x")[0] == 0
    assert node.ledger.quarantined == {GPU: "ticket 4711"}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["accept", GPU], "--reason"),
        (["accept", "--reason", "x"], "name addresses, or --all"),
        (["accept", "--all", GPU, "--reason", "x"], "name addresses, or --all"),
        (["accept", GPU, "--reason", " "], "give a reason"),
        (["accept", GPU, "--reason", "x"], "does not differ"),
        (["accept", "gpu3", "--reason", "x"], "not a PCI address"),
        (["accept", "0000:99:00.0", "--reason", "x"], "no such device"),
        (["accept", "--model", "gpu", "--reason", "x"], "no model"),
        (["accept", "--since", "soon", "--reason", "x"], "no time"),
        (["release", GPU], "neither suspect nor in quarantine"),
        (["maintenance", "--start", "--reason", "x"], "needs --end or --for"),
        (["maintenance", "--start", "--for", "2h"], "needs --reason"),
        (["maintenance", "--for", "2h"], "need --start"),
        (["maintenance", "--start", "--for", "soon", "--reason", "x"], "no duration"),
        (["maintenance", GPU, "--at", "2026-11-01T08:00Z"], "is in the past"),
        (["maintenance", GPU, "--at", "2999-01-01T08:00"], "has no time zone"),
        (["maintenance", "--at", LATER], "needs the ADDRESS of a device"),
        (["maintenance", GPU], "ADDRESS needs --at or --stop"),
        (["maintenance", GPU, "--start", "--for", "2h", "--reason", "x"], "ADDRESS needs --at"),
        (["maintenance", "0000:99:00.0", "--at", LATER], "no such device"),
        (["maintenance", "gpu3", "--at", LATER], "not a PCI address"),
        (["maintenance", GPU, "--at", LATER, "--reason", "x"], "need --start"),
        (["maintenance", GPU, "--at", LATER, "--stop"], "not allowed with"),
        (["maintenance", "--stop", GPU], f"no work is planned on {GPU}"),
        (["maintenance", "--start", "--end", "1d", "--reason", "x"], "end before it begins"),
    ],
)
def test_bad_input(ask, capsys, words, text):
    try:
        status, _, err = ask(*words)
    except SystemExit as error:
        status, err = error.code, capsys.readouterr().err
    assert status == 2
    assert text in err
    assert "Traceback" not in err


def test_hardware_that_is_away(node, ask):
    for number, each in enumerate(GPUS):
        (node.devices / each / "config").write_bytes(config(serial=0x100 + number))
    sweep(node)
    node.file.quarantine({GPU: "ticket 4711"})
    (node.devices / GPU / "config").write_bytes(config(serial=0x999))
    node.boot("second")
    sweep(node)
    (row,) = rows(ask, "list", "--absent")[1]
    assert row["Hardware"] == f"serial:{0x100:016x}"
    assert (row["State"], row["Reason"]) == ("quarantined", "ticket 4711")


def test_all_nodes(ask, monkeypatch):
    found = [
        NodeHealth("n1", {GPU: "suspect: x"}, {OTHER: "y"}, {GPU: ("suspect", 1.8e9)}, ("alarm",)),
        NodeHealth("n2"),
    ]
    monkeypatch.setattr(list_command, "read_health", lambda config: found)
    assert rows(ask, "list", "--all-nodes")[1] == [
        {
            "Host": "n1",
            "Address": GPU,
            "State": "suspect",
            "Reason": "suspect: x",
            "Since": "2027-01-15T08:00:00Z",
        },
        {"Host": "n1", "Address": OTHER, "State": "in use", "Reason": "y", "Since": ""},
        {"Host": "n1", "Address": "", "State": "note", "Reason": "alarm", "Since": ""},
    ]


def test_a_report_that_was_too_long_is_no_all_clear(ask, monkeypatch):
    monkeypatch.setattr(list_command, "read_health", lambda config: [NodeHealth("n1", left_out=3)])
    (row,) = rows(ask, "list", "--all-nodes")[1]
    assert (row["Host"], row["State"]) == ("n1", "note")
    assert row["Reason"].startswith("3 more devices did not fit into the report of the node")


def test_all_nodes_without_nova(ask, monkeypatch):
    def none(name):
        raise SnapshotError("Nova cannot be loaded here")

    monkeypatch.setattr(cloud_readers, "_load_reader", none)
    status, _, err = ask("list", "--all-nodes")
    assert status == 2
    assert "Nova cannot be loaded here" in err


def test_no_serial_number_is_in_a_reason(node):
    for number, each in enumerate(GPUS):
        (node.devices / each / "config").write_bytes(config(serial=0xABCDEF00 + number))
    sweep(node)
    update(node)
    sweep(node)
    texts = [node.ledger.device(each).reason for each in GPUS]
    assert all(texts)
    assert not any("abcdef" in each for each in texts)
