# SPDX-License-Identifier: Apache-2.0
"""The metrics of a node say what ``device list`` says, and nothing that is unknown."""

from __future__ import annotations

import collections
import json

import attrs
import pytest

from nova_hpc.tenancy.ledger import copy_of
from nova_hpc.tenancy.sign import HealthSign
from nova_hpc.wire.ledger import DeviceState, Trial
from nova_hpc_tools.main import main
from tests.unit.device import test_device
from tests.unit.metrics.texts import parse, value, values
from tests.unit.tenancy.hygiene_node import GPU, OTHER, VF

node, device = test_device.node, test_device.ask
SERVER = test_device.SERVER
DEVICES = "nova_hpc_node_devices"
FIRST = "GPU-11111111-2222-3333-4444-555555555555"
SECOND = "GPU-99999999-2222-3333-4444-555555555555"


@pytest.fixture
def metrics(node, capsys):
    """The text of a scrape of the node."""
    node.file.change(lambda ledger: attrs.evolve(ledger, compared=True))

    def run(*words, status=0):
        done = main(["metrics", "node", *words, "--config-file", str(node.root / "nova.conf")])
        out, err = capsys.readouterr()
        assert done == status, err
        return out if status == 0 else err

    return run


def listed(ask):
    _, out, _ = ask("list", "--format", "json")
    counts = collections.Counter((row["Role"], row["State"]) for row in json.loads(out))
    return {key: number for key, number in counts.items() if number}


def told(text):
    return {key: number for key, number in values(text, DEVICES, "role", "state").items() if number}


def test_devices_are_those_of_device_list_through_a_life(node, device, metrics):
    assert told(metrics()) == listed(device)
    assert values(metrics(), DEVICES, "role", "state")["gpu", "quarantined"] == 0
    node.step().give(SERVER, node.candidates(GPU))
    assert told(metrics()) == listed(device)
    assert told(metrics())["gpu", "in use"] == 1
    (node.devices / GPU / "reset").unlink()
    node.step().take_back(SERVER, {})
    assert told(metrics()) == listed(device)
    text = metrics()
    assert told(text)["gpu", "quarantined"] == 1
    assert values(text, "nova_hpc_node_troubled_devices", "sign")["failed"] == 1
    assert values(text, "nova_hpc_node_cleanings_total", "result") == {
        "clean": sum(each.cleaned for each in node.ledger.devices.values()),
        "failed": 1,
    }


def test_suspects_their_tries_and_who_quarantined_them(node, device, metrics):
    trial = Trial(sign=HealthSign.SILENT.value, since=1.0, tries=3)
    node.file.change(
        lambda ledger: ledger.put(
            {
                GPU: attrs.evolve(
                    ledger.device(GPU), state=DeviceState.SUSPECT, reason="x", trial=trial
                ),
                VF: attrs.evolve(
                    ledger.device(VF),
                    state=DeviceState.SUSPECT,
                    reason="x",
                    trial=attrs.evolve(trial, sign="of a later release", tries=4),
                ),
            }
        )
    )
    device("quarantine", OTHER, "--reason", "ticket")
    text = metrics()
    assert value(text, "nova_hpc_node_device_tries") == 7
    signs = values(text, "nova_hpc_node_troubled_devices", "sign")
    assert {sign: number for sign, number in signs.items() if number} == {
        "silent": 1,
        "other": 1,
        "quarantine": 1,
    }
    assert told(text) == listed(device)


def test_faults_of_devices_in_use(node, metrics):
    faults = {"link": {"since": 1.0}, "gone": {"since": 2.0}}
    node.file.change(
        lambda ledger: ledger.put(
            {
                GPU: attrs.evolve(ledger.device(GPU), watch={"server": SERVER, "faults": faults}),
                VF: attrs.evolve(
                    ledger.device(VF), watch={"server": SERVER, "faults": {"link": {"since": 1.0}}}
                ),
                OTHER: attrs.evolve(ledger.device(OTHER), watch={"": ""}),
            }
        )
    )
    assert values(metrics(), "nova_hpc_node_server_faults", "fault") == {
        **{"errors": 0, "firmware": 0, "gone": 1, "link": 2, "port": 0}
    }


def test_fragmentation_by_the_engine(node, metrics):
    sizes = values(metrics(), "nova_hpc_node_largest_set", "role", "level")
    assert sizes["gpu", "host"] == told(metrics())["gpu", "free"] == 2
    node.step().give(SERVER, node.candidates(GPU))
    assert values(metrics(), "nova_hpc_node_largest_set", "role", "level")["gpu", "host"] == 1


def test_as_long_as_nothing_is_compared_nothing_is_said_of_devices(node, metrics):
    """nova-compute that has just begun, or a ledger that is new."""
    node.file.change(lambda ledger: attrs.evolve(ledger, compared=False))
    text = metrics()
    assert value(text, "nova_hpc_node_up") == 1
    assert value(text, "nova_hpc_node_ledger_usable") == 0
    names = {name for name, _ in parse(text)}
    assert not {DEVICES, "nova_hpc_node_largest_set", "nova_hpc_node_cleanings_total"} & names
    assert "nova_hpc_node_peer_pairs" in names


def test_a_lost_ledger_is_unknown_and_not_empty(node, metrics):
    node.state.write_text("{")
    copy_of(node.state).write_text("{")
    text = metrics()
    assert value(text, "nova_hpc_node_ledger_usable") == 0
    assert DEVICES not in {name for name, _ in parse(text)}
    assert value(text, "nova_hpc_node_maintenance") is None
    assert value(text, "nova_hpc_node_problems") > 0


def test_a_node_that_cannot_be_read_is_one_line(node, metrics):
    (node.root / "nova.conf").write_text("[hpc]\nreset_timeout = never\n")
    assert metrics(status=2).startswith("nova-hpc metrics node: the configuration cannot be read")


def test_maintenance(node, device, metrics):
    assert value(metrics(), "nova_hpc_node_maintenance") == 0
    assert device("maintenance", "--start", "--for", "1h", "--reason", "firmware")[0] == 0
    assert value(metrics(), "nova_hpc_node_maintenance") == 1


def test_gpus_are_named_where_the_operator_allows_it(node, metrics, tmp_path):
    name = "nova_hpc_node_gpu_info"
    kernel = node.root / "proc/driver/nvidia/gpus" / GPU
    kernel.mkdir(parents=True)
    information = kernel / "information"
    information.write_text(f"Model: \t\t NVIDIA H100\nIRQ: 1\nGPU UUID: \t {FIRST}\nBus: PCIe\n")
    node.step().give(SERVER, node.candidates(GPU))
    labels = ("UUID", "pci_bus_id", "role", "state", "server")
    assert values(metrics(), name, *labels) == {}
    told = values(metrics("--gpu-uuids"), name, *labels)
    assert told == {(FIRST, GPU, "gpu", "in use", SERVER): 1}
    # The driver does not know it yet.
    information.write_text("GPU UUID: \t GPU-????????-????-????-????-????????????\n")
    assert values(metrics("--gpu-uuids"), name, *labels) == {}
    # A GPU on VFIO: by its hardware, wherever it is plugged in.
    node.file.change(
        lambda ledger: ledger.put(
            {OTHER: attrs.evolve(ledger.device(OTHER), hardware="serial:00042")}
        )
    )
    file = tmp_path / "uuids"
    file.write_text(f"# burnt in\nserial:00042  {SECOND}  # of rack 7\n\nserial:00043 {FIRST}\n")
    told = values(metrics("--gpu-uuid-file", str(file)), name, *labels)
    assert told == {(SECOND, OTHER, "gpu", "free", ""): 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"slot:{GPU} {FIRST}", "is no piece of hardware"),
        (f"{GPU} {FIRST}", "is no piece of hardware"),
        ("serial:1", "line 1: a line is HARDWARE GPU-UUID"),
        ("serial:1 GPU-1", "line 1: a line is HARDWARE GPU-UUID"),
        (f"serial:1 {FIRST}\nserial:1 {SECOND}", "line 2: serial:1 has another UUID above"),
        (None, "cannot be read: No such file"),
        (b"\xff", "cannot be read"),
    ],
)
def test_a_file_of_uuids_that_is_none(node, metrics, tmp_path, text, reason):
    file = tmp_path / "uuids"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    err = metrics("--gpu-uuid-file", str(file), status=2)
    assert reason in err
    assert len(err.splitlines()) == 1


def test_two_devices_have_no_one_uuid(node, metrics, tmp_path):
    node.file.change(
        lambda ledger: ledger.put(
            {
                GPU: attrs.evolve(ledger.device(GPU), hardware="serial:1"),
                OTHER: attrs.evolve(ledger.device(OTHER), hardware="serial:2"),
            }
        )
    )
    file = tmp_path / "uuids"
    file.write_text(f"serial:1 {FIRST}\nserial:2 {FIRST}\n")
    assert f"have the UUID {FIRST}" in metrics("--gpu-uuid-file", str(file), status=2)
