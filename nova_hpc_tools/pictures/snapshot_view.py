# SPDX-License-Identifier: Apache-2.0
"""The view of a snapshot of a cloud for pictures. Pure."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from nova_hpc.cluster.plan.tree import natural_sort_key
from nova_hpc.fabric.model import TREE, FabricMap, FabricPlace
from nova_hpc_tools.pictures.model import (
    CloudPicture,
    DeviceTile,
    GroupNote,
    HostTile,
    Largest,
    LeafBox,
    NodePicture,
    RoleRow,
    TileState,
)
from nova_hpc_tools.pictures.place_tree import build_place_boxes
from nova_hpc_tools.snapshot import Server, Snapshot, SnapshotDevice, SnapshotNode, engine_host
from nova_hpc_tools.snapshot.largest_sets import measure_largest_sets

_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase
NO_ROLE: Final = "no role"


def view_cloud(
    cloud: Snapshot,
    fabric: FabricMap,
    groups: Sequence[GroupNote] = (),
    leaf: str | None = None,
    problems: Sequence[str] = (),
) -> CloudPicture:
    """Build the picture of all hosts of a snapshot, by their places on the fabric.

    :param fabric: the places of the hosts.
    :param groups: server groups that have a domain.
    :param leaf: only the hosts of this domain of the fabric.
    """
    servers = {server.uuid: server for server in cloud.servers}
    boxes: dict[tuple[tuple[str, str], ...], list[SnapshotNode]] = {}
    for node in sorted(cloud.hosts, key=lambda node: natural_sort_key(node.name)):
        place = fabric.place(node.host) or FabricPlace(host=node.host)
        path = tuple((level.word, name) for level, name in place.path)
        if leaf is None or leaf in (name for _, name in path):
            boxes.setdefault(path, []).append(node)
    shown = {node.host for nodes in boxes.values() for node in nodes}
    leaves = tuple(
        LeafBox(
            path,
            tuple(view_host_tile(node, servers) for node in boxes[path]),
            tuple(note for note in groups if path and (note.level, note.domain) == path[-1]),
        )
        for path in sorted(boxes, key=_order_paths)
    )
    hosts = tuple(host for box in leaves for host in box.hosts)
    listed = tuple(server for server in cloud.servers if server.host in shown)
    return CloudPicture(
        title="Cloud" if leaf is None else leaf,
        facts=(
            f"taken {cloud.taken}, Nova {cloud.nova}",
            *_count_cloud(hosts, len(listed), leaves),
        ),
        leaves=leaves,
        servers=tuple(_list_cloud_servers(cloud, listed)),
        groups=tuple(groups) if leaf is None else tuple(g for box in leaves for g in box.groups),
        problems=(*cloud.problems, *problems),
    )


def _order_paths(path: tuple[tuple[str, str], ...]) -> tuple[object, ...]:
    return (not path, tuple(natural_sort_key(name) for _, name in path))


def _count_cloud(
    hosts: Sequence[HostTile], servers: int, leaves: Sequence[LeafBox]
) -> Iterator[str]:
    counts = [_count_noun(len(hosts), "host"), f"{_count_noun(servers, 'server')} with devices"]
    for level in reversed(TREE):
        number = len({name for box in leaves for word, name in box.path if word == level.word})
        if number:
            counts.append(f"{number} {level.noun(number)}")
    yield ", ".join(counts)
    out = sum(bool(host.out) for host in hosts)
    if out:
        yield f"{_count_noun(out, 'host')} out of service"
    free: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for row in (row for host in hosts for row in host.rows):
        free[row.role] += row.free
        total[row.role] += row.total
    for role in sorted(total):
        yield f"{role}: {free[role]} of {total[role]} free"


def view_host_tile(node: SnapshotNode, servers: Mapping[str, Server]) -> HostTile:
    """Build the tile of one host for the picture of a cloud.

    :param servers: UUID -> server.
    """
    by_role: dict[str, list[SnapshotDevice]] = {}
    for device in node.devices:
        by_role.setdefault(device.role or NO_ROLE, []).append(device)
    rows = tuple(
        RoleRow(role, _group_by_place(node, by_role[role], servers)) for role in sorted(by_role)
    )
    owners = dict.fromkeys(name for row in rows for tile in row.tiles for name in tile.servers)
    return HostTile(
        name=node.name,
        rows=rows,
        largest=measure_free_sets(node),
        out=node.out or "",
        letters=dict(zip(_LETTERS, owners, strict=False)),  # the rest has no letter
        notes=node.unusable,
    )


def measure_free_sets(node: SnapshotNode) -> Largest:
    """Measure the largest device set of each role that the node can still give.

    :returns: role -> level -> number of devices.
    """
    host = engine_host(node, ())
    names = sorted({device.role for device in node.devices if device.role and not device.ports})
    return {role: measure_largest_sets(host, role) for role in names}


def _group_by_place(
    node: SnapshotNode, devices: Iterable[SnapshotDevice], servers: Mapping[str, Server]
) -> tuple[tuple[tuple[DeviceTile, ...], ...], ...]:
    places: dict[int | None, dict[object, list[DeviceTile]]] = {}
    for device in sorted(devices, key=_order_devices):
        place = device.location
        switch = (place.root, place.switches[:1])
        tile = describe_device(node, device, servers)
        places.setdefault(place.numa, {}).setdefault(switch, []).append(tile)
    return tuple(tuple(map(tuple, switches.values())) for switches in places.values())


def _order_devices(device: SnapshotDevice) -> tuple[object, ...]:
    numa = device.location.numa
    return (numa is None, numa or 0, device.address)


def describe_device(
    node: SnapshotNode, device: SnapshotDevice, servers: Mapping[str, Server]
) -> DeviceTile:
    """Build the tile of one device, or of one adapter's functions, with its servers."""
    owners = dict.fromkeys(use.server for use in device.used)
    addresses = {device.address, *(use.address for use in device.used)}
    faults = [node.ailing[address] for address in sorted(addresses & node.ailing.keys())]
    held = [reason for address, reason in node.withheld.items() if address == device.address]
    if device.used and faults:
        state = TileState.FAULTY
    elif device.used and not device.free:
        state = TileState.USED
    elif device.free:
        state = TileState.FREE
    else:
        state = TileState.WITHHELD if held else TileState.UNKNOWN
    details = [*faults, *held]
    if state is TileState.UNKNOWN:
        details.append("it is not free, and no server of the snapshot has it")
    if device.ports is not None:
        details.append(f"for direct ports of {device.ports.network or 'no physical network'}")
    return DeviceTile(
        address=device.address,
        state=state,
        role=device.role or "",
        product=device.resource_class or "",
        free=device.free,
        total=max(1, device.free + len(device.used)),
        servers=tuple(_name_server(servers, uuid) for uuid in owners),
        details=tuple(details),
    )


def _name_server(servers: Mapping[str, Server], uuid: str) -> str:
    server = servers.get(uuid)
    return server.name if server is not None else uuid


def view_snapshot_node(cloud: Snapshot, node: SnapshotNode) -> NodePicture:
    """Build the picture of one node of a snapshot."""
    servers = {server.uuid: server for server in cloud.servers}
    switches = {
        point: f"switch {point}" for device in node.devices for point in device.location.switches
    }
    titles = {numa.id: f"NUMA node {numa.id}" for numa in node.numa}
    for numa in node.numa:
        if numa.dedicated_cpus is not None:
            titles[numa.id] += f" · {_count_noun(numa.dedicated_cpus, 'dedicated CPU')} free"
    located = [
        (device.location, describe_device(node, device, servers))
        for device in sorted(node.devices, key=_order_devices)
    ]
    facts = [f"taken {cloud.taken}, Nova {cloud.nova}"]
    facts += [f"out of service for hpc: flavors: {node.out}"] if node.out else []
    facts += [
        f"{row.role}: {row.free} of {row.total} free" for row in view_host_tile(node, servers).rows
    ]
    problems = [*node.unusable, *(f"{at} withheld: {why}" for at, why in node.withheld.items())]
    own = [
        server for server in cloud.servers if (server.host, server.node) == (node.host, node.node)
    ]
    return NodePicture(
        name=node.name,
        facts=tuple(facts),
        boxes=build_place_boxes(located, titles, switches, empty=sorted(titles)),
        largest=measure_free_sets(node),
        servers=tuple(
            (server.name, server.flavor, _count_devices_of(server, (node,))) for server in own
        ),
        problems=tuple(problems),
    )


def _list_cloud_servers(
    cloud: Snapshot, servers: Iterable[Server]
) -> Iterator[tuple[str, str, str, str]]:
    nodes: dict[str, list[SnapshotNode]] = {}
    for node in cloud.hosts:
        nodes.setdefault(node.host, []).append(node)
    for server in servers:
        own = nodes.get(server.host, ())
        yield server.name, server.host, server.flavor, _count_devices_of(server, own)


def _count_devices_of(server: Server, nodes: Iterable[SnapshotNode]) -> str:
    counts = Counter(
        device.role or NO_ROLE
        for node in nodes
        for device in node.devices
        for use in device.used
        if use.server == server.uuid
    )
    return ", ".join(f"{number} {role}" for role, number in sorted(counts.items()))


def _count_noun(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
