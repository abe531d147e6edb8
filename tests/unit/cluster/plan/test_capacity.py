# SPDX-License-Identifier: Apache-2.0
"""``nova-hpc capacity``: what it counts, and how it says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova_hpc.cluster.plan import Gang, GangPlan, plan_gang
from nova_hpc.fabric.model import FabricLevel, FabricMap, FabricPlace
from nova_hpc.placement.model import WantedCell
from nova_hpc_tools.cloud.capacity import measure_capacity
from nova_hpc_tools.cloud.cluster_capacity import count_clusters_by_level
from nova_hpc_tools.cloud.explain import explain_flavor
from nova_hpc_tools.cloud.explain.model import FlavorQuestion
from nova_hpc_tools.fabric.map_aggregates import aggregates_of
from nova_hpc_tools.main import main
from nova_hpc_tools.snapshot import Snapshot, SnapshotError, cloud_readers
from nova_hpc_tools.snapshot import document as snapshot_document
from tests.unit.cluster.plan.fabrics import Case, cases
from tests.unit.snapshot import clouds

free = st.lists(st.integers(0, 4), min_size=1, max_size=4)


@given(free, st.integers(1, 4))
def test_as_many_fit_as_the_switches_have_room_for(gpus: list[int], size: int) -> None:
    cloud = clouds.cloud(
        clouds.node("n1", gpus), flavors=[clouds.flavor("some", wants={"gpu": size})]
    )
    found = measure_capacity(cloud, "some")
    assert found.by_host == {"n1": sum(number // size for number in gpus)}


@given(free, st.integers(0, 12))
def test_cpus_and_pages_are_used_up_too(gpus: list[int], cpus: int) -> None:
    cell = WantedCell(id=0, dedicated_cpus=4, memory_kib=2048 * 300, page_kib=2048)
    flavor = clouds.flavor(
        "celled", wants={"gpu": 1}, affinity="numa", cells=[cell], numa_policy="required"
    )
    cloud = clouds.cloud(clouds.node("n1", gpus, cpus=cpus), flavors=[flavor])
    # Two switches a NUMA node; 1,024 pages hold three servers.
    each = [sum(gpus[:2]), sum(gpus[2:])]
    assert measure_capacity(cloud, "celled").total == sum(min(one, cpus // 4, 3) for one in each)


@given(st.lists(free, min_size=1, max_size=3), st.integers(1, 3))
def test_explain_places_as_many(hosts: list[list[int]], size: int) -> None:
    nodes = [clouds.node(f"n{number}", gpus) for number, gpus in enumerate(hosts)]
    flavor = clouds.flavor("some", wants={"gpu": size}, affinity="numa")
    cloud = clouds.cloud(*nodes, flavors=[flavor])
    found = measure_capacity(cloud, "some")
    assert (
        len(explain_flavor(cloud, FlavorQuestion("some", count=found.total + 1)).placed)
        == found.total
    )
    for room in found.rooms:
        left = attrs.evolve(cloud, hosts=(room.node,))
        assert room.reason == explain_flavor(left, FlavorQuestion("some")).verdicts[0].reason


def test_a_host_that_is_out_holds_nothing() -> None:
    cloud = clouds.cloud(clouds.node("n1", [4]), clouds.node("off", [4], out="it is disabled"))
    found = measure_capacity(cloud, "pair")
    assert found.by_host == {"n1": 2, "off": 0}
    assert found.rooms[1].reason == "it is disabled"
    with pytest.raises(SnapshotError, match="there is no flavor 'pear'; there is: pair"):
        measure_capacity(cloud, "pear")


@given(cases(most=12), st.integers(1, 5))
def test_the_planner_gets_as_many_clusters(case: Case, members: int) -> None:
    fabric, capacity, _ = case
    for found in count_clusters_by_level(fabric, capacity, members):
        if found.level == "anywhere":
            gang = Gang(members=members, policy="preferred")
        else:
            gang = Gang(members=members, level=FabricLevel.from_word(found.level))
        left, count = dict(capacity), 0
        while isinstance(answer := plan_gang(fabric, left, gang), GangPlan):
            count += 1
            for host, number in answer.hosts.items():
                left[host] -= number
        assert count == found.clusters
        assert (found.largest >= members) == (count > 0)


# --- the command -----------------------------------------------------------------

MAP = FabricMap(
    places=tuple(
        FabricPlace(host=f"n{number}", leaf=f"leaf{number % 2}", spine="spine")
        for number in range(1, 5)
    )
)
Run = Callable[..., tuple[int, str, str]]


def synced(fabric: FabricMap, cloud: Snapshot) -> Snapshot:
    """The cloud after ``nova-hpc fabric sync``."""

    def aggregates(host: str) -> Mapping[str, Mapping[str, str]]:
        return {
            each.name: dict(each.metadata) for each in aggregates_of(fabric) if host in each.hosts
        }

    hosts = (attrs.evolve(node, aggregates=aggregates(node.host)) for node in cloud.hosts)
    return attrs.evolve(cloud, hosts=tuple(hosts), problems=())


def a_cloud() -> Snapshot:
    """Places for 2, 3, 2 and 3 servers on n1 to n4."""
    nodes = [clouds.node(f"n{number}", [2, 2, (number % 2 and 1) or 2]) for number in range(1, 5)]
    return clouds.cloud(*nodes, clouds.node("off", [4], out="it is disabled"))


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    path = tmp_path / "cloud.json"
    path.write_text(snapshot_document.dump_cloud_snapshot(synced(MAP, a_cloud())))

    def call(*words: object) -> tuple[int, str, str]:
        status = main(["capacity", "--snapshot", str(path), "--flavor", *map(str, words)])
        return status, *capsys.readouterr()

    return call


def test_people_read_hosts_reasons_and_levels(run: Run) -> None:
    status, out, err = run("pair", "--members", 4)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "pair: 10 more servers fit, on 4 of 5 hosts",
        "  3 on each of n2, n4",
        "  2 on each of n1, n3",
        "  0 on off",
        "",
        "Where none fits:",
        "  1 host: it is disabled",
        "",
        "level     domains  largest cluster  clusters of 4",
        "leaf            2                6              2",
        "spine           1               10              2",
        "anywhere        1               10              2",
    ]


def test_json_says_everything(run: Run) -> None:
    status, out, _ = run("pair", "--members", 11, "-f", "json")
    found = json.loads(out)
    assert status == 1
    assert (found["schema"], found["fits"], found["total"]) == ("nova-hpc/capacity", False, 10)
    assert found["levels"][0] == {"level": "leaf", "domains": 2, "largest": 6, "clusters": 0}
    first = found["hosts"][0]
    assert (first["host"], first["fit"]) == ("n1", 2)
    assert first["place"] == {"spine": "spine", "leaf": "leaf1"}
    status, out, _ = run("pair", "-f", "json")
    assert status == 0
    assert "clusters" not in json.loads(out)["levels"][0]


def test_another_map_replaces_that_of_the_aggregates(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("pair", "-f", "csv", "-c", "Host", "-c", "Fit")
    assert (status, out.splitlines()[:2]) == (0, ['"Host","Fit"', '"n1",2'])
    (tmp_path / "topology.conf").write_text("SwitchName=leaf0 Nodes=n[1-4]\n")
    status, out, _ = run("pair", "--map", tmp_path / "topology.conf", "--members", 6)
    assert status == 0
    assert "leaf            1               10              1\n" in out


def test_without_a_map_it_says_how_to_get_one(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cloud.json").write_text(snapshot_document.dump_cloud_snapshot(a_cloud()))
    status, out, err = run("pair")
    assert status == 0
    assert "No host has a known place on the fabric: give --map FILE" in out
    assert "warning: Placement could not be asked" in err


def test_mistakes_are_one_line(run: Run, tmp_path: Path) -> None:
    for words in (["pear"], ["pair", "--map", tmp_path / "none"], ["pair", "--image", "none"]):
        status, out, err = run(*words)
        assert (status, out) == (2, "")
        assert len(err.splitlines()) == 1


def test_the_cloud_itself_is_read_like_explain_reads_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def reader(config: object, image: object) -> Snapshot:
        asked.append((tuple(config), image))
        return a_cloud()

    monkeypatch.setattr(cloud_readers, "_load_reader", lambda name: {"nova": reader}[name])
    assert main(["capacity", "--flavor", "pair", "--config-file", "/etc/nova/nova.conf"]) == 0
    assert asked == [(("--config-file=/etc/nova/nova.conf",), None)]
    assert "10 more servers fit" in capsys.readouterr().out
