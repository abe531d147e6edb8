# SPDX-License-Identifier: Apache-2.0
"""What steps print of what services say: in the suite's shapes, and nothing that nobody said."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from nova_hpc.fabric.model import FabricPlace
from nova_hpc.wire.ledger import LedgerDevice
from nova_hpc_client.cluster.members.model import Cluster, ClusterMember
from nova_hpc_common.wire.cluster_wish import ClusterWish
from nova_hpc_common.wire.position import Position
from nova_hpc_requirements import steps_console, steps_fabric, steps_node
from nova_hpc_requirements.domain_facts import read_domain_facts
from nova_hpc_requirements.verdicts import EvidenceError
from nova_hpc_tools.fabric.sync import CloudAggregate
from nova_hpc_tools.snapshot.node_health import NodeHealth
from tests.requirement_shapes import SHAPES, list_shape_faults
from tests.unit.requirements.test_domain_facts import CLEAN

NOW = datetime.datetime(2026, 11, 26, 12, 0, tzinfo=datetime.UTC)


def assert_shape(step: str, output: dict[str, Any]) -> dict[str, Any]:
    assert list_shape_faults(step, output) == []
    return output


def aggregate(name: str, hosts: tuple[str, ...], **metadata: str) -> CloudAggregate:
    return CloudAggregate(id="1", name=name, metadata=metadata, hosts=hosts)


def test_the_shapes_see_a_fault():
    assert list_shape_faults("teardown", {"success": 1}) == [
        "success",
        "platform: Ellipsis is not filled",
        "resources_deleted: Ellipsis is not <class 'list'>",
        "resources_failed: Ellipsis is not <class 'list'>",
    ]
    rows = {"success": True, "partitions": [{"name": ""}]}
    assert "partitions.0.name: '' is not filled" in list_shape_faults(
        "query_ib_tenant_isolation", rows
    )


MAP = {"hpc_fabric:version": "1", "hpc_fabric:map": "m", "hpc_fabric:kind": "leaf"}


def test_switches_of_a_fabric_of_two_tiers():
    aggregates = [
        aggregate("a", ("h0",), **{**MAP, "hpc_fabric:leaf": "l1", "hpc_fabric:spine": "s1"})
    ]
    places, problems = steps_fabric.read_places(["h0", "h1"], aggregates)
    assert problems == []
    output = assert_shape(
        "backend_switch_fabric", steps_fabric.describe_switches(places, problems, "")
    )
    assert output["node_id"] == "h0"
    assert output["fabric"] == {
        "leaf_switch_ids": ["l1"],
        "spine_switch_ids": ["s1"],
        "core_switch_ids": [],
    }
    # The suite wants a core; there is none, and none is made up.
    assert output["tests"]["core_switch_ids_present"]["passed"] is False
    other = steps_fabric.describe_switches(places, problems, "h1")
    assert other["tests"]["leaf_switch_ids_present"]["passed"] is False


def test_a_map_that_was_edited_by_hand():
    places, problems = steps_fabric.read_places(
        ["h0"], [aggregate("a", ("h0",), **{"hpc_fabric:leaf": "l1"})]
    )
    assert places[0].leaf is None
    assert "no hpc_fabric:version" in problems[0]


@pytest.mark.parametrize(
    ("places", "node", "part"),
    [([], "", "no compute service"), ([FabricPlace("h0")], "h9", "no compute service is on 'h9'")],
)
def test_a_host_that_is_not_there(places, node, part):
    with pytest.raises(EvidenceError, match=part):
        steps_fabric.describe_switches(places, [], node)


def test_partitions_are_the_networks_on_infiniband():
    provider = {"provider:network_type": "vlan", "provider:physical_network": "ib"}
    networks = [
        {"id": "1", "name": "a", "project_id": "p", **provider, "provider:segmentation_id": 5},
        {"id": "2", "name": "", "project_id": "q", **provider, "provider:segmentation_id": 6},
        {"id": "3", "name": "c", "project_id": "q", **provider, "provider:segmentation_id": None},
        {"id": "4", "name": "d", "provider:physical_network": "eth", "provider:segmentation_id": 7},
    ]
    output = assert_shape(
        "query_ib_tenant_isolation", steps_fabric.describe_partitions(networks, ["ib"], {"2"})
    )
    rows = [(row["name"], row["partition_key"], row["shared"]) for row in output["partitions"]]
    assert rows == [("a", "0x0005", False), ("2", "0x0006", True)]


def test_a_user_without_rights_sees_no_keys():
    with pytest.raises(EvidenceError, match="to the admin role alone"):
        steps_fabric.describe_partitions([{"id": "1", "name": "a"}], ["ib"])


@pytest.mark.parametrize(
    ("state", "configured"),
    [("met", True), ("not met", False), ("not available", False), ("unknown", None), (7, None)],
)
def test_keys_of_the_fabric(state, configured):
    output = assert_shape(
        "query_ib_keys",
        steps_fabric.describe_keys([{"Name": "m_key", "State": state, "Found": "x"}]),
    )
    assert output["keys"]["management_key"]["configured"] is configured
    assert output["keys"]["p_key"]["configured"] is None
    assert output["partitions_with_pkey"] == 0


def test_reservations():
    aggregates = [
        aggregate("plain", ("h9",), size="3"),
        aggregate("a", ("h0", "h1"), filter_tenant_id="p1"),
        aggregate("b", ("h2",), filter_tenant_id="p1,p2", filter_tenant_id3="p4"),
    ]
    output = assert_shape(
        "capacity_reservation_grouping", steps_fabric.describe_reservations(aggregates, None)
    )
    assert [group["projects"] for group in output["groups"]] == [["p1"], ["p1", "p2", "p4"]]
    assert [resource["resource_id"] for resource in output["resources"]] == ["h0", "h1"]
    assert (output["account_id"], output["isolation_enforced"]) == ("p1", None)
    empty = assert_shape(
        "capacity_reservation_grouping", steps_fabric.describe_reservations([], False)
    )
    assert (empty["pinned"], empty["resources"]) == (False, [])


@pytest.mark.parametrize(
    ("text", "enforced"),
    [
        ("", False),
        ("[filter_scheduler]\nenabled_filters = A, AggregateMultiTenancyIsolation\n", True),
        ("[scheduler]\nlimit_tenants_to_placement_aggregate = true\n", False),
        (
            "[scheduler]\nlimit_tenants_to_placement_aggregate = true\n"
            "placement_aggregate_required_for_tenants = true\n",
            True,
        ),
    ],
)
def test_whether_the_scheduler_keeps_others_out(tmp_path, text, enforced):
    file = tmp_path / "nova.conf"
    file.write_text(text)
    assert steps_fabric.read_isolation([f"--config-file={file}"]) is enforced


def test_a_configuration_that_cannot_be_read(tmp_path):
    with pytest.raises(EvidenceError, match=r"cannot be read.*nova\.conf"):
        steps_fabric.read_isolation([f"--config-file={tmp_path}/nova.conf"])


def member(number: int, status: str = "ACTIVE", **domains: str) -> ClusterMember:
    return ClusterMember(
        id=f"s{number}",
        name=f"c-{number}",
        status=status,
        position=Position(domains),
        wish=ClusterWish(name="c", members=frozenset((1, 2)), flavor="f"),
    )


def test_a_block_is_the_narrowest_domain_that_all_share():
    members = (member(1, leaf="l1", spine="s1"), member(2, leaf="l2", spine="s1"))
    output = assert_shape(
        "topology_block_atomic_allocation",
        steps_fabric.describe_block(Cluster("g", members=members), "p"),
    )
    block = output["topology_block"]
    assert (block["level"], block["block_id"], block["allocated_as_unit"]) == ("spine", "s1", True)
    assert (block["wanted"], block["running"]) == (2, 2)


@pytest.mark.parametrize("status", ["BUILD", "ERROR", "SHUTOFF"])
def test_a_block_that_is_not_whole(status):
    members = (member(1, leaf="l1"), member(2, status, leaf="l1"))
    block = steps_fabric.describe_block(Cluster("g", members=members), "p")["topology_block"]
    assert (block["partial_allocation"], block["allocated_as_unit"]) == (True, False)
    lost = steps_fabric.describe_block(Cluster("g", members=members[:1]), "p")["topology_block"]
    assert (lost["wanted"], lost["running"], lost["allocated_as_unit"]) == (2, 1, False)


def test_health_of_hosts():
    services = [
        {"host": "h0", "state": "up", "updated_at": "2026-11-26T11:59:30.000000"},
        {"host": "h1", "state": "up", "updated_at": None},
        {"host": "h2", "state": "up", "updated_at": "2026-11-26T12:00:30+00:00"},
    ]
    health = [NodeHealth("h0", withheld={"0000:21:00.0": "no driver"}, notes=("old",))]
    output = assert_shape(
        "query_host_health",
        steps_fabric.describe_health(services, [*health, NodeHealth("h2")], NOW),
    )
    rows = {row["host_id"]: row for row in output["hosts"]}
    assert [len(row["alerts"]) for row in rows.values()] == [2, 0, 0]
    assert [row["observed_age_seconds"] for row in rows.values()] == [30, None, 0]
    # A host that says nothing is not well.
    assert (rows["h1"]["health_present"], rows["h1"]["healthy"]) == (False, False)
    assert rows["h2"]["healthy"] is True


@pytest.mark.parametrize(
    ("answers", "passed"),
    [
        ((404, 200, 404), (True, True, True)),
        ((403, 200, 403), (True, True, True)),
        ((200, 200, 200), (False, True, False)),
        ((404, 403, 404), (True, False, True)),
    ],
)
def test_rights_to_consoles(answers, passed):
    output = {**steps_console.describe_console_rights(*answers), "instance_id": "s"}
    assert_shape("console_rbac", output)
    assert tuple(test["passed"] for test in output["tests"].values()) == passed
    assert output["access_restricted"] is passed[0]


@pytest.mark.parametrize("status", [500, 401, 409, 503])
def test_a_service_that_is_away_refuses_nobody(status):
    for answers in ((status, 200, 404), (404, status, 404), (404, 200, status)):
        with pytest.raises(EvidenceError, match=f"HTTP {status}"):
            steps_console.describe_console_rights(*answers)


def test_devices_of_a_domain():
    output = assert_shape(
        "virtual_device_hardening", steps_node.describe_hardening(read_domain_facts(CLEAN))
    )
    assert all(test["passed"] for test in output["tests"].values())


@pytest.mark.parametrize(
    ("device", "free", "sanitized", "within", "served"),
    [
        (LedgerDevice(), True, False, False, False),
        (LedgerDevice(proof="", cleaned=1, last_server="s"), True, True, False, True),
        (
            LedgerDevice(proof="", cleaned=1, stage={"phase": "clean", "seconds": 3.5}),
            True,
            True,
            True,
            True,
        ),
        # Offered although nobody has found it clean.
        (LedgerDevice(last_server="s"), True, False, False, True),
        # In use, or withheld: it has not come back.
        (LedgerDevice(server="s"), False, True, True, True),
    ],
)
def test_devices_of_a_node(device, free, sanitized, within, served):
    machine = steps_node.describe_device("0000:21:00.0", device, free, gpu=True)
    output = {"success": True, "machines": [machine]}
    assert_shape("query_sanitization", output)
    assert (machine["sanitized"], machine["cleaned_within"]) == (sanitized, within)
    assert machine["served_tenant"] is served


@pytest.mark.parametrize(
    ("kind", "clear", "wiped"),
    [
        ("default", "zero", True),
        ("qcow2", "none", True),
        ("rbd", "none", True),
        ("lvm", "zero", True),
        ("lvm", "none", False),
        ("new", "zero", None),
    ],
)
def test_disks(kind, clear, wiped):
    assert steps_node.describe_disks(kind, clear)["wiped"] is wiped


def test_recorded_pins():
    topology = {"nodes": [{"cpu_pinning": {"0": 4}}, {"cpu_pinning": {"1": 9}}, {}]}
    assert steps_node.read_recorded_pins(topology) == {"0": 4, "1": 9}
    # Nova shows them to the admin role alone.
    assert steps_node.read_recorded_pins({"nodes": [{"memory_mb": 1}]}) is None


def test_every_step_of_the_suite_has_a_shape():
    from nova_hpc_requirements.step_names import QUERY_KEYS, STEP_NAMES
    from nova_hpc_requirements.step_table import STEPS

    assert set(STEPS) == set(STEP_NAMES)
    assert {*STEP_NAMES, QUERY_KEYS} - set(SHAPES) == {"vcpu_pinning", "migrate_instance"}
