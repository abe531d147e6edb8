# SPDX-License-Identifier: Apache-2.0
"""Nodes of a lab whose shape changes, and when one has joined the cloud."""

import json
import time
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from nova_hpc_lab import machines
from nova_hpc_lab.cloud import Cloud, Wishes, prepared
from nova_hpc_lab.node.shape import Shape
from nova_hpc_lab.process import Process
from nova_hpc_lab.state import Paths


@pytest.fixture
def paths(tmp_path):
    return Paths(state=tmp_path / "s", cache=tmp_path / "c", venv=tmp_path / "v")


def disk_of(machine):
    machine.folder.mkdir(parents=True, exist_ok=True)
    disk = machine.folder / "disk.qcow2"
    disk.write_text("x")
    return disk


def test_a_node_keeps_its_disk_until_it_becomes_another_machine(paths):
    (machine,) = prepared(paths, Wishes(nodes=1, shape="two-socket")).nodes()
    disk = disk_of(machine)
    assert prepared(paths, Wishes(nodes=0)).nodes() == []
    prepared(paths, Wishes(nodes=1, shape="two-socket"))
    assert disk.exists()
    (machine,) = prepared(paths, Wishes(shape="switchless")).nodes()
    assert machine.shape.name == "switchless"
    assert not disk.exists()


@pytest.mark.parametrize(
    ("said", "joined"), [(-30.0, True), (-90.0, False), (None, False), ("no service", False)]
)
def test_only_a_sign_of_life_since_the_start_counts(paths, said, joined):
    lab = prepared(paths, Wishes(nodes=1))
    assert isinstance(lab, Cloud)
    (machine,) = lab.nodes()
    paths.make()
    machine.folder.mkdir(parents=True)
    now = time.time()
    status = {"state": "up", "started": now - 60.0, "phase": "compute"}
    (machine.folder / "status.json").write_text(json.dumps(status))

    class Compute:
        def services(self, binary, host):
            assert (binary, host) == ("nova-compute", "hpc1")
            if said == "no service":
                return
            when = None if said is None else datetime.fromtimestamp(now + said, UTC)
            yield SimpleNamespace(updated_at=when and when.replace(tzinfo=None).isoformat())

    cloud = SimpleNamespace(compute=Compute())
    # A node without a supervisor is not there, whatever was written of it.
    assert not machines.reported(cloud, machine)
    supervisor = Process("node-hpc1", paths)
    supervisor.spawn(["sleep", "600"])
    try:
        assert machines.reported(cloud, machine) is joined
    finally:
        supervisor.stop()


@pytest.mark.parametrize(("network", "counted"), [("", True), (", network: physnet1", False)])
def test_a_node_may_have_devices_for_ports_alone(network, counted):
    """Nova counts none of them in Placement, where nobody waits for them then."""
    text = (
        "numa_nodes:\n  - socket: 0\n    cpus: 2\n    memory_mib: 2048\n    hugepages: 128\n"
        f"    roots:\n      - ports:\n          - {{adapter: hca0, vfs: 1{network}}}\n"
    )
    assert machines.counts_devices(Shape.parse(text, "x", "x")) is counted
