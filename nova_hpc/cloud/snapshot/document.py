"""A snapshot as a JSON document with a version, and back.

Reading is strict: whatever is missing, unknown, of the wrong type or absurd is
an error that names the host, the flavor or the server, and the field. A wrong
number here would be a wrong answer everywhere else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from nova_hpc.cloud.snapshot import (
    Alias,
    Device,
    Flavor,
    FlavorWant,
    Node,
    Server,
    ServerCell,
    Snapshot,
    SnapshotError,
    Use,
)
from nova_hpc.cloud.snapshot import plain as snapshot_plain
from nova_hpc.cloud.snapshot.fields import Fields
from nova_hpc.cloud.snapshot.plain import SCHEMA, VERSION
from nova_hpc.placement.model import Cell, HostNode
from nova_hpc.placement.profile import Profile, Shape
from nova_hpc.topology.level import Level, Location

#: More of anything on one node than any machine has.
_MOST: Final = 1_000_000
_MOST_KIB: Final = 1 << 50

_T = TypeVar("_T")


def dumps(snapshot: Snapshot) -> str:
    """The document as text: ASCII, indented, ends with a newline."""
    return json.dumps(snapshot_plain.build(snapshot), indent=1) + "\n"


def read(path: Path) -> Snapshot:
    """Read a file.

    :raises SnapshotError: names the file, and what is wrong in it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SnapshotError(f"{path} cannot be read: {why}") from error
    try:
        return loads(text)
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}") from error


def loads(text: str) -> Snapshot:
    """Read a document.

    :raises SnapshotError: names the host and the field that is wrong.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"it is not JSON: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise SnapshotError(
            "it is no snapshot of a cloud; take one with: nova-hpc simulate snapshot FILE"
        )
    version = data.get("version")
    if type(version) is not int or version != VERSION:
        newer = type(version) is int and version > VERSION
        raise SnapshotError(
            f"version {json.dumps(version)} of the snapshot is "
            + ("newer than" if newer else "not")
            + f" the one that this release reads, {VERSION}; "
            + ("update nova-hpc" if newer else "take the snapshot again")
        )
    top = Fields(data, "")
    top.text("schema")
    top.count("version")
    snapshot = Snapshot(
        taken=top.text("taken"),
        nova=top.text("nova"),
        problems=top.texts("problems"),
        aliases=_unique(top, "aliases", "alias", _read_alias, lambda alias: alias.name),
        flavors=_unique(
            top, "flavors", "flavor", _read_flavor, lambda each: f"{each.name} with {each.image}"
        ),
        hosts=_unique(top, "hosts", "host", _read_node, lambda each: each.name),
        profile=Profile(tuple(_read_shape(shape) for shape in top.finished("profile"))),
        servers=_unique(top, "servers", "server", _read_server, lambda each: each.uuid),
    )
    top.finish()
    _check_references(snapshot)
    return snapshot


def _check_references(snapshot: Snapshot) -> None:
    """Nothing belongs to two, and whatever is named is there."""
    if not snapshot.hosts:
        raise SnapshotError(
            "it has no hosts; take it again where Nova's cells are mapped "
            "(nova-manage cell_v2 discover_hosts)"
        )
    owners: dict[str, str] = {}
    servers = {server.uuid for server in snapshot.servers}
    for node in snapshot.hosts:
        seen: set[str] = set()
        numa = {each.id for each in node.numa}
        if len(numa) != len(node.numa):
            raise SnapshotError(f"host {node.name}: two NUMA nodes have the same id")
        for device in node.devices:
            where = f"host {node.name}: device {device.address}"
            if device.address in seen:
                raise SnapshotError(f"{where} is there twice")
            seen.add(device.address)
            if device.provider in owners:
                raise SnapshotError(
                    f"{where}: provider {device.provider} is also that of {owners[device.provider]}"
                )
            owners[device.provider] = f"{node.name}, {device.address}"
            functions = [use.address for use in device.used]
            if len(set(functions)) != len(functions):
                raise SnapshotError(f"{where}: used: one function is there twice")
            for use in device.used:
                if use.server not in servers:
                    raise SnapshotError(
                        f"{where}: used: server {use.server} is not among the servers"
                    )
        members = {device.provider for device in node.devices}
        for each in node.nvlink:
            for provider in sorted(each - members):
                raise SnapshotError(
                    f"host {node.name}: nvlink: provider {provider} is none of its devices"
                )


def _unique(
    top: Fields,
    key: str,
    kind: str,
    reader: Callable[[Fields], _T],
    name: Callable[[_T], str],
) -> tuple[_T, ...]:
    """A list of objects; in errors each is called by its own name."""
    found: dict[str, _T] = {}
    for item in top.objects(key, kind):
        value = reader(item)
        item.finish()
        if name(value) in found:
            raise SnapshotError(f"{kind} {name(value)} is there twice")
        found[name(value)] = value
    return tuple(found.values())


# -- aliases and flavors ---------------------------------------------------------


def _read_alias(item: Fields) -> Alias:
    return Alias(
        name=item.text("name"),
        resource_class=item.maybe_text("resource_class"),
        traits=frozenset(item.texts("traits")),
        problem=item.maybe_text("problem"),
    )


def _read_flavor(item: Fields) -> Flavor:
    return Flavor(
        name=item.text("name"),
        id=item.text("id"),
        image=item.maybe_text("image"),
        vcpus=item.count("vcpus", _MOST),
        memory_mb=item.count("memory_mb", _MOST_KIB),
        extra_specs=item.pairs("extra_specs"),
        wants=tuple(
            FlavorWant(alias=want.text("alias"), count=want.count("count", 1024, least=1))
            for want in item.finished("wants")
        ),
        cells=tuple(
            Cell(
                id=cell.count("id", _MOST),
                dedicated_cpus=cell.count("dedicated_cpus", _MOST),
                memory_kib=cell.count("memory_kib", _MOST_KIB),
                page_kib=cell.maybe_count("page_kib", _MOST_KIB, least=1),
            )
            for cell in item.finished("cells")
        ),
        numa_policy=item.maybe_text("numa_policy"),
        problem=item.maybe_text("problem"),
    )


def _read_shape(item: Fields) -> Shape:
    try:
        level = Level.from_word(item.text("level"))
    except ValueError as error:
        raise item.error("level", str(error)) from error
    return Shape(
        counts=item.counts("counts", 1024, least=1),
        groups=item.count("groups", 1024, least=1),
        level=level,
        weight=item.count("weight", _MOST_KIB, least=1),
        cpus=item.count("cpus", _MOST),
        memory_kib=item.count("memory_kib", _MOST_KIB),
        page_kib=item.maybe_count("page_kib", _MOST_KIB, least=1),
    )


# -- hosts -------------------------------------------------------------------------


def _read_node(item: Fields) -> Node:
    return Node(
        host=item.text("host"),
        node=item.text("node"),
        zone=item.maybe_text("zone"),
        aggregates=item.nested_pairs("aggregates"),
        out=item.maybe_text("out"),
        numa=tuple(
            HostNode(
                id=each.count("id", _MOST),
                socket=each.maybe_count("socket", _MOST),
                dedicated_cpus=each.maybe_count("dedicated_cpus", _MOST),
                pages=each.maybe_counts("pages", _MOST_KIB),
            )
            for each in item.finished("numa")
        ),
        devices=tuple(_read_device(each) for each in item.finished("devices", "address")),
        nvlink=tuple(frozenset(each) for each in item.text_lists("nvlink")),
        unusable=item.texts("unusable"),
        withheld=item.texts_by_name("withheld"),
        ailing=item.texts_by_name("ailing"),
    )


def _read_device(item: Fields) -> Device:
    switches = item.texts("switches")
    root = item.maybe_text("root")
    if switches and root is None:
        raise item.error("switches", "needs a root")
    return Device(
        provider=item.text("provider"),
        address=item.text("address"),
        free=item.count("free", _MOST),
        location=Location(
            numa=item.maybe_count("numa", _MOST),
            socket=item.maybe_count("socket", _MOST),
            root=root,
            switches=switches,
        ),
        aliases=frozenset(item.texts("aliases")),
        role=item.maybe_text("role"),
        unit=item.maybe_text("unit"),
        resource_class=item.maybe_text("resource_class"),
        traits=frozenset(item.texts("traits")),
        used=tuple(
            Use(address=use.text("address"), server=use.text("server"))
            for use in item.finished("used")
        ),
    )


# -- servers -----------------------------------------------------------------------


def _read_server(item: Fields) -> Server:
    return Server(
        uuid=item.text("uuid"),
        name=item.text("name"),
        host=item.text("host"),
        node=item.text("node"),
        flavor=item.text("flavor"),
        extra_specs=item.pairs("extra_specs"),
        decision=item.maybe_text("decision"),
        cells=tuple(
            ServerCell(
                numa=cell.count("numa", _MOST),
                dedicated_cpus=cell.count("dedicated_cpus", _MOST),
                memory_kib=cell.count("memory_kib", _MOST_KIB),
                page_kib=cell.maybe_count("page_kib", _MOST_KIB, least=1),
            )
            for cell in item.finished("cells")
        ),
    )
