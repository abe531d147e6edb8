# SPDX-License-Identifier: Apache-2.0
"""A snapshot of a cloud as input."""

from __future__ import annotations

import attrs
import pytest

from nova_hpc.placement.model import HostNode, WantedCell
from nova_hpc_common.level import Level, Location
from nova_hpc_simulate import inputs
from nova_hpc_simulate.command import SimulatePolicies
from nova_hpc_simulate.model import TaskShape, dgx_layout
from nova_hpc_simulate.scenario import play_scenario, prepare_scenario
from nova_hpc_tools import snapshot as cloud
from nova_hpc_tools.snapshot import document as snapshot_document

PLACES = dgx_layout(4)


def device(number, **more):
    values = {
        "provider": f"rp{number}",
        "address": f"0000:{number:02x}:00.0",
        "free": 1,
        "location": PLACES[number],
        "aliases": frozenset({"gpu"}),
        "role": "gpu",
        **more,
    }
    return cloud.SnapshotDevice(**values)


def node(name, *devices, **more):
    devices = tuple(attrs.evolve(one, provider=f"{name}-{one.address}") for one in devices)
    numa = (HostNode(0, 0, 16, {2048: 512}), HostNode(1, 1, 16, {2048: 512}))
    return cloud.SnapshotNode(host=name, node=name, devices=devices, numa=numa, **more)


def flavor(name, gpus, vcpus, **specs):
    return cloud.Flavor(
        name=name,
        id=name,
        extra_specs={key.replace("_", ":", 1): value for key, value in specs.items()},
        wants=(cloud.FlavorWant("gpu", gpus),) if gpus else (),
        cells=(WantedCell(0, vcpus, vcpus * 1024 * 1024, 2048),),
        numa_policy="preferred",
        vcpus=vcpus,
        memory_mb=vcpus * 1024,
    )


@pytest.fixture
def snapshot():
    adapter = device(3, role="vf", aliases=frozenset({"vf"}), address="0000:09:00.0")
    return cloud.Snapshot(
        taken="2026-01-01T00:00:00Z",
        nova="34.0.0",
        hosts=(
            node("a", *(device(n) for n in range(4)), adapter),
            node(
                "b", device(0), device(1, free=0, used=(cloud.FunctionUse("0000:01:00.0", "s1"),))
            ),
            node("c", device(0), out="disabled"),
        ),
        flavors=(
            flavor("one", 1, 2),
            flavor("pair", 2, 4, hpc_affinity="switch"),
            flavor("rather", 2, 4, hpc_affinity="numa", hpc_affinity_policy="preferred"),
            flavor("none", 0, 4),
        ),
        aliases=(cloud.SnapshotAlias("gpu"), cloud.SnapshotAlias("vf")),
        servers=tuple(
            cloud.Server(uuid=f"s{n}", name="x", host="b", node="b", flavor=name)
            for n, name in enumerate(["pair", "one", "pair", "gone"], 1)
        ),
    )


def test_machines(snapshot):
    first, second = inputs.machines_of(snapshot, "gpu")
    assert (first.name, first.gpus, first.busy, first.layout) == ("a", 4, (), PLACES)
    assert (first.cpu_milli, first.memory_mib) == (32_000, 2048)
    assert (second.gpus, second.busy, second.free) == (2, (1,), 1)


def test_unknown_cpus_do_not_limit(snapshot):
    host = cloud.SnapshotNode(host="d", node="d", devices=(device(0, location=Location()),))
    bare = cloud.Snapshot(taken="x", nova="34", hosts=(host,))
    assert inputs.machines_of(bare, "gpu")[0].cpu_milli == inputs.PLENTY


def test_requests_are_as_frequent_as_servers(snapshot):
    pair = TaskShape(4000, 4096, 2, level=Level.SWITCH, group=2)
    one = TaskShape(2000, 2048, 1, group=1)
    assert [task.shape for task in inputs.tasks_of(snapshot, "gpu")] == [one, pair, pair]


def test_without_servers_all_flavors_are_alike(snapshot):
    empty = cloud.Snapshot(taken="x", nova="34", hosts=snapshot.hosts, flavors=snapshot.flavors)
    shapes = {task.name: task.shape for task in inputs.tasks_of(empty, "gpu")}
    assert set(shapes) == {"one-1", "pair-1", "rather-1"}
    assert shapes["rather-1"].level is Level.HOST


def test_it_can_be_played(snapshot):
    scenario = prepare_scenario(
        inputs.machines_of(snapshot, "gpu"),
        inputs.tasks_of(snapshot, "gpu"),
        whole=True,
        demand=100,
        levels=0.0,
        added=0,
    )
    assert scenario.capacity == 5000
    assert play_scenario(scenario, "nova-hpc", 0).arrived >= 3


def test_command(snapshot, tmp_path, capsys):
    file = tmp_path / "cloud.json"
    file.write_text(snapshot_document.dump_cloud_snapshot(snapshot))
    command = SimulatePolicies(None, None)
    parser = command.get_parser("nova-hpc simulate")
    words = ["--snapshot", str(file), "--seeds", "1", "--jobs", "1", "--policy", "nova-hpc"]
    assert command.run(parser.parse_args([*words, "--nodes-add", "2"])) == 0
    assert "4 nodes, 5 free GPUs before 2 nodes are added" in capsys.readouterr().out
    assert command.run(parser.parse_args([*words, "--role", "tpu"])) == 2
    assert "no node has a device of role 'tpu'" in capsys.readouterr().err
    file.write_text("{}")
    assert command.run(parser.parse_args(words)) == 2
    assert str(file) in capsys.readouterr().err
