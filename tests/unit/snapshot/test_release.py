# SPDX-License-Identifier: Apache-2.0
"""What a node has free after a server came or left, in a snapshot."""

from __future__ import annotations

import attrs

from nova_hpc.placement.model import DeviceSet, Pick, WantedCell
from nova_hpc_common.level import Distance, Level
from nova_hpc_tools.snapshot import (
    FunctionUse,
    ServerCell,
    SnapshotNode,
    release_from_node,
    take_from_node,
)
from tests.unit.snapshot.clouds import node, server, vfs

HOST = "node1"


def given(*addresses: str, **more: object) -> SnapshotNode:
    """A host with an adapter whose functions at *addresses* the server "s" has."""
    adapter = attrs.evolve(
        vfs(HOST, 0, free=4 - len(addresses)),
        used=tuple(FunctionUse(each, "s") for each in addresses),
    )
    found = node(HOST, [], **more)
    return attrs.evolve(found, devices=(*found.devices, adapter))


def free(found: SnapshotNode) -> int:
    """Free functions of the adapter."""
    (device,) = found.devices
    return device.free


def test_what_a_server_leaves_is_free() -> None:
    left = release_from_node(given("0000:40:1f.1", "0000:40:1f.2"), server("s", HOST))
    assert free(left) == 4
    assert left.devices[0].used == ()
    assert free(release_from_node(given("0000:40:1f.1"), server("other", HOST))) == 3


def test_a_quarantined_function_is_not_free_when_its_server_leaves() -> None:
    """By its own address, or by its adapter's: the other functions are free."""
    two = given("0000:40:1f.1", "0000:40:1f.2", ailing={"0000:40:1f.2": "no reset"})
    assert free(release_from_node(two, server("s", HOST))) == 3
    whole = given("0000:40:1f.1", "0000:40:1f.2", ailing={"0000:40:1f.0": "fell off the bus"})
    assert free(release_from_node(whole, server("s", HOST))) == 2


def test_pages_are_whole_ones() -> None:
    """A cell of five pages and a half holds six."""
    cell = ServerCell(numa=1, dedicated_cpus=4, memory_kib=5 * 2048 + 1024, page_kib=2048)
    left = release_from_node(given(), server("s", HOST, cells=(cell,)))
    assert [(each.dedicated_cpus, each.pages) for each in left.numa] == [
        (16, {2048: 1024}),
        (20, {2048: 1030}),
    ]
    # A server on its way to another node holds its CPUs and pages there.
    away = attrs.evolve(server("s", "node2", cells=(cell,)))
    assert release_from_node(given(), away).numa == given().numa


def test_what_a_server_takes() -> None:
    devices = DeviceSet(
        picks=(Pick("0:vf", f"{HOST}-0-vf", 0, 0), Pick("0:vf", f"{HOST}-0-vf", 0, 0)),
        level=Level.SWITCH,
        distance=Distance.PIX,
        cells={0: 1},
    )
    cell = WantedCell(0, dedicated_cpus=3, memory_kib=2049, page_kib=2048)
    after = take_from_node(given(), devices, [cell], "s")
    assert free(after) == 2
    assert [use.server for use in after.devices[0].used] == ["s", "s"]
    assert [(each.dedicated_cpus, each.pages) for each in after.numa] == [
        (16, {2048: 1024}),
        (13, {2048: 1022}),
    ]
