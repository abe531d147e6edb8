# SPDX-License-Identifier: Apache-2.0
"""Reports that are refused, each with its cure, before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from nova_hpc_client.cluster.members import member_reports
from nova_hpc_common.wire import server_devices
from nova_hpc_common.wire.server_devices import ServerDevices
from nova_hpc_common.wire.server_faults import FaultWord

ID = "6f0c6c3e-0d7c-4d1e-9a55-1d1c1d1c1d1c"
GIVEN = {server_devices.KEY: ServerDevices(roles={"gpu": 1}).dumps()}
DIRECT = {"device_id": ID, "binding:vnic_type": "direct"}


def server(**values: Any) -> dict[str, Any]:
    usual = {"id": ID, "name": "k-1", "status": "ACTIVE", "hostId": "h", "flavor": {}}
    return {**usual, **values}


def refusal(record: dict[str, Any], *ports: dict[str, Any]) -> str:
    return member_reports.explain_refusal(record, ports, FaultWord.SLOW)


@pytest.mark.parametrize(
    ("record", "ports"),
    [
        (server(metadata=GIVEN, flavor={"extra_specs": {}}), ()),
        (server(flavor={"extra_specs": {"pci_passthrough:alias": "gpu:1"}}), ()),
        (server(flavor={"extra_specs": {}}), (DIRECT,)),
        # The cloud does not show users the keys of flavors: unknown is not none.
        (server(), ()),
    ],
)
def test_a_server_that_may_have_devices_is_reported(
    record: dict[str, Any], ports: tuple[dict[str, Any], ...]
) -> None:
    assert refusal(record, *ports) == ""


def test_a_server_without_devices_is_refused() -> None:
    plain = server(flavor={"extra_specs": {"hw:cpu_policy": "dedicated"}})
    others = {**DIRECT, "device_id": "another"}, {**DIRECT, "binding:vnic_type": "normal"}
    for ports in ((), others):
        assert refusal(plain, *ports).startswith("k-1 has no PCI devices")
    empty = {server_devices.KEY: ServerDevices().dumps()}
    assert "no PCI devices" in refusal({**plain, "metadata": empty})


def test_a_server_on_no_host_is_refused() -> None:
    said = refusal(server(hostId="", status="SHELVED_OFFLOADED", metadata=GIVEN, name="a\x1b[m"))
    assert said == "a\\u001b[m is SHELVED_OFFLOADED and on no host, so it has no devices to report"


def test_fifty_tags_are_refused_unless_it_is_one_of_them() -> None:
    full = server(metadata=GIVEN, tags=[f"own-{at}" for at in range(50)])
    assert f"remove one with openstack server unset --tag TAG {ID}" in refusal(full)
    assert refusal({**full, "tags": full["tags"][1:]}) == ""
    assert refusal({**full, "tags": [*full["tags"][1:], "hpc-report=slow"]}) == ""


def test_only_known_words_are_reports() -> None:
    tags = ["hpc-report=slow", "hpc-report=gone", "hpc-report=host", "hpc-report=\x1b", 7, "x"]
    assert member_reports.read_reports({"tags": tags}) == (FaultWord.GONE, FaultWord.SLOW)
    assert member_reports.read_reports({}) == ()
