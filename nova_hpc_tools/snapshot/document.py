# SPDX-License-Identifier: Apache-2.0
"""A snapshot as a JSON document with a version, and back.

Reading is strict. A field that is missing, unknown, of the wrong type or absurd is an error, which
names the field and its host, flavor or server. A wrong number here would give a wrong answer
everywhere else. A reader refuses unknown keys, so each change of the keys needs a new version.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any, Final

import attrs
import cattrs

from nova_hpc.placement.model import WantedCell
from nova_hpc.placement.profile import FlavorShape, Profile
from nova_hpc.wire import strict
from nova_hpc.wire.strict import ANY_TEXT, WrongError, number_field
from nova_hpc_common.level import Level, Location
from nova_hpc_common.wire.version import WireError, show_json_value
from nova_hpc_tools.snapshot import Flavor, Snapshot, SnapshotDevice, SnapshotError
from nova_hpc_tools.wire.documents import SNAPSHOT

_MOST_KIB: Final = 1 << 50
#: The greatest count of one kind: more than any server has.
_MOST_DEVICES: Final = 1024
_FIELDS: Final = {
    "memory_mb": number_field(most=_MOST_KIB),
    "memory_kib": number_field(most=_MOST_KIB),
    "page_kib": number_field(1, _MOST_KIB),
    "pages": (Mapping[int, int], lambda value, kind: _structure_pages(value, kind)),
    "weight": number_field(1, _MOST_KIB),
    "count": number_field(1, _MOST_DEVICES),
    "counts": number_field(1, _MOST_DEVICES),
    "most": number_field(1, _MOST_DEVICES),
    "withheld_of": number_field(1, _MOST_DEVICES),
    "groups": number_field(1, _MOST_DEVICES),
    "extra_specs": ANY_TEXT,
    "aggregates": ANY_TEXT,
}
_SINGULAR: Final = {
    "aliases": "alias",
    "flavors": "flavor",
    "groups": "group",
    "hosts": "host",
    "leases": "lease",
    "servers": "server",
}
#: Fields of a device in the document that the model has in the device's location.
_PLACE: Final = tuple(field.name for field in attrs.fields(Location))


def dump_cloud_snapshot(snapshot: Snapshot) -> str:
    """Dump the snapshot as JSON text: ASCII, indented, with a newline at the end."""
    return json.dumps(build_snapshot_document(snapshot), indent=1) + "\n"


def build_snapshot_document(snapshot: Snapshot) -> dict[str, Any]:
    """Return the snapshot as a JSON object."""
    return {**SNAPSHOT.head(), **_CONVERTER.unstructure(snapshot)}


def read_snapshot_file(path: Path) -> Snapshot:
    """Read a snapshot from a file.

    :raises SnapshotError: the file cannot be read or used; the text names the file and the error.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SnapshotError(f"{path} cannot be read: {reason}") from error
    try:
        return load_cloud_snapshot(text)
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}") from error


def load_cloud_snapshot(text: str) -> Snapshot:
    """Parse a snapshot from JSON text.

    :raises SnapshotError: the document is invalid; the text names the host and the wrong field.
    """
    try:
        data = SNAPSHOT.load(text)
    except WireError as error:
        raise SnapshotError(str(error)) from error
    body = {key: value for key, value in data.items() if key not in SNAPSHOT.head()}
    if data[SNAPSHOT.key] < 4:
        _add_owner_words(body)
    try:
        snapshot = strict.structure_document(_CONVERTER, body, Snapshot, _SINGULAR)
    except WireError as error:
        raise SnapshotError(str(error)) from error
    for problem in _find_contradictions(snapshot):
        raise SnapshotError(problem)
    return snapshot


def _add_owner_words(body: dict[str, Any]) -> None:
    """Add the fields that version 3 did not have: owners' words, server groups and leases."""
    body.setdefault("groups", [])
    body.setdefault("leases", [])
    servers = body.get("servers")
    for server in servers if isinstance(servers, list) else ():
        if isinstance(server, dict):
            for key in ("project", "until", "movable", "immobile", "live"):
                server.setdefault(key, None)


def _find_contradictions(snapshot: Snapshot) -> Iterator[str]:
    """Yield a sentence for each object with two owners, and for each name of a missing object."""
    if not snapshot.hosts:
        yield (
            "it has no hosts; take it again where Nova's cells are mapped "
            "(nova-manage cell_v2 discover_hosts)"
        )
    yield from _find_repeated_names("alias ", (alias.name for alias in snapshot.aliases))
    yield from _find_repeated_names(
        "flavor ", (f"{flavor.name} with {flavor.image}" for flavor in snapshot.flavors)
    )
    yield from _find_repeated_names("host ", (node.name for node in snapshot.hosts))
    yield from _find_repeated_names("server ", (server.uuid for server in snapshot.servers))
    yield from _find_repeated_names("group ", (group.uuid for group in snapshot.groups))
    yield from _find_repeated_names("lease ", (lease.name for lease in snapshot.leases))
    owners: dict[str, str] = {}
    servers = {server.uuid for server in snapshot.servers}
    for node in snapshot.hosts:
        node_prefix = f"host {node.name}: "
        if len({numa.id for numa in node.numa}) != len(node.numa):
            yield f"{node_prefix}two NUMA nodes have the same id"
        yield from _find_repeated_names(
            f"{node_prefix}device ", (device.address for device in node.devices)
        )
        for device in node.devices:
            where = f"{node_prefix}device {device.address}: "
            if device.location.switches and device.location.root is None:
                yield f"{where}switches needs a root"
            if device.provider in owners:
                yield f"{where}provider {device.provider} is also that of {owners[device.provider]}"
            owners[device.provider] = f"{node.name}, {device.address}"
            yield from _find_repeated_names(
                f"{where}used: function ", (use.address for use in device.used)
            )
            for use in device.used:
                if use.server not in servers:
                    yield f"{where}used: server {use.server} is not among the servers"
        if frozenset() in node.nvlink:
            yield f"{node_prefix}nvlink has a set without devices"
        members = {device.provider for device in node.devices}
        for provider in sorted(
            {provider for nvlink_set in node.nvlink for provider in nvlink_set} - members
        ):
            yield f"{node_prefix}nvlink: provider {provider} is none of its devices"


def _find_repeated_names(what: str, names: Iterable[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{what}{name} is there twice"


# -- differences between the document and the model ----------------------------------


def _structure_level(value: Any, kind: Any) -> Level:
    try:
        return Level.from_word(value)
    except (ValueError, TypeError):
        words = ", ".join(level.word for level in Level)
        raise WrongError(f"is {show_json_value(value)}, not one of: {words}") from None


def _structure_pages(value: Any, _: Any) -> dict[int, int]:
    """Read page size in KiB, a text in JSON -> the number of pages.

    :raises WrongError: a size or a number has another form.
    """
    for size in value if isinstance(value, dict) else ():
        if not (size.isascii() and size.isdigit() and len(size) <= 15 and int(size)):
            raise WrongError(f"has the size {show_json_value(size)}, not a number of KiB above 0")
    counts = _COUNTS.structure(value, dict[str, int])
    return {int(size): count for size, count in counts.items()}


def _unstructure_pages(pages: Mapping[int, int]) -> dict[str, int]:
    return {str(size): pages[size] for size in sorted(pages)}


def _unstructure_sets(sets: Iterable[frozenset[str]]) -> list[list[str]]:
    return sorted(map(sorted, sets))


def _register_profile_hooks(made: cattrs.Converter) -> None:
    """Write a profile as the list of its shapes."""
    read = made.get_structure_hook(tuple[FlavorShape, ...])
    made.register_structure_hook(Profile, lambda value, _: Profile(read(value, None)))
    made.register_unstructure_hook(Profile, lambda profile: made.unstructure(profile.shapes))


def _register_device_hooks(made: cattrs.Converter) -> None:
    """Write the fields of a device's location among its own, without an object for the location."""
    read, write = made.get_structure_hook(SnapshotDevice), made.get_unstructure_hook(SnapshotDevice)

    def structure(value: Any, kind: Any) -> SnapshotDevice:
        if isinstance(value, dict):
            value = dict(value)
            value["location"] = {key: value.pop(key) for key in _PLACE if key in value}
        device: SnapshotDevice = read(value, kind)
        return device

    def unstructure(device: SnapshotDevice) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for key, value in write(device).items():
            document.update(value if key == "location" else {key: value})
        return document

    made.register_structure_hook(SnapshotDevice, structure)
    made.register_unstructure_hook(SnapshotDevice, unstructure)


def _make_snapshot_converter() -> cattrs.Converter:
    made = strict.make_strict_converter(
        _FIELDS,
        omit={
            WantedCell: {"host_node", "nodes"},
            Flavor: {"ports", "port_roles"},
            Snapshot: {"complete"},
        },
    )
    made.register_structure_hook(Level, _structure_level)
    made.register_unstructure_hook(Level, lambda level: level.word)
    made.register_unstructure_hook_func(partial(eq, Mapping[int, int]), _unstructure_pages)
    made.register_unstructure_hook_func(partial(eq, tuple[frozenset[str], ...]), _unstructure_sets)
    _register_profile_hooks(made)
    _register_device_hooks(made)
    return made


_COUNTS: Final = strict.make_strict_converter({})
_COUNTS.register_structure_hook(*number_field(most=_MOST_KIB))
_CONVERTER: Final = _make_snapshot_converter()
