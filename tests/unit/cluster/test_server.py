# SPDX-License-Identifier: Apache-2.0
"""One server as its owner knows it."""

from __future__ import annotations

from typing import Any

from nova_hpc_client.cluster.members.server import read_own_server
from nova_hpc_client.openstack.v1.server_view import server_record_of
from nova_hpc_common.level import AffinityPolicy, Level
from nova_hpc_common.wire import position, server_devices
from nova_hpc_common.wire.position import Position
from nova_hpc_common.wire.server_devices import ServerDevices

DEVICES = ServerDevices(
    Level.SWITCH,
    AffinityPolicy.PREFERRED,
    Level.NUMA,
    {"gpu": 4, "vf": 4},
    ((4, {"gpu": 1, "vf": 1}),),
)


def server(name: str, rails: tuple[str, ...] = (), **domains: str) -> dict[str, Any]:
    metadata = {server_devices.KEY: DEVICES.dumps()}
    if domains:
        metadata[position.KEY] = Position(domains, rails).dumps()
    return {"id": f"id-{name}", "name": name, "status": "ACTIVE", "metadata": metadata}


def shown(*arguments: Any) -> dict[str, Any]:
    names, values = server_record_of(read_own_server(*arguments))
    return {
        name: value.machine_readable() if hasattr(value, "machine_readable") else value
        for name, value in zip(names, values, strict=True)
    }


def test_what_it_asked_for_and_what_it_got() -> None:
    one = server("t-1", ("r-1", "r-2"), block="b-1", leaf="l-1")
    assert shown(one) == {
        "name": "t-1",
        "id": "id-t-1",
        "status": "ACTIVE",
        "level_asked": "switch",
        "policy": "preferred",
        "level_reached": "numa",
        "devices": {"gpu": 4, "vf": 4},
        "groups": ["4 x gpu:1,vf:1"],
        "core": "",
        "spine": "",
        "block": "b-1",
        "leaf": "l-1",
        "nvlink_domain": "",
        "sub_domain": "",
        "rails": ["r-1", "r-2"],
        "beside": {},
        "faults": [],
        "planned": "",
    }


def test_who_is_beside_it() -> None:
    one = server("t-1", block="b-1", leaf="l-1", nvlink_domain="n-1")
    others = [
        one,
        server("t-6", block="b-1", leaf="l-1"),
        server("t-2", block="b-1", leaf="l-2", nvlink_domain="n-1"),
        server("t-3", block="b-1", leaf="l-1", nvlink_domain="n-2"),
        server("t-4", block="b-1", leaf="l-3"),
        server("t-5", block="b-2", leaf="l-4"),
        server("t-7"),
    ]
    found = shown(one, others)["beside"]
    assert found == {"nvlink_domain": ["t-2"], "leaf": ["t-3", "t-6"], "block": ["t-4"]}
    assert list(found) == ["nvlink_domain", "leaf", "block"]


def test_a_server_of_which_nobody_has_told_anything() -> None:
    bare = {"id": "1", "name": "x", "status": "BUILD"}
    assert set(map(str, shown(bare, [bare]).values())) == {"x", "1", "BUILD", "", "{}", "[]"}
    broken = {**bare, "metadata": {position.KEY: "{", server_devices.KEY: '{"v":7}'}}
    assert shown(broken) == shown(bare)
