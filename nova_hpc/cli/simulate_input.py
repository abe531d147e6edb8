"""The files of ``nova-hpc simulate``."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nova_hpc import conf
from nova_hpc.cloud.simulate import inputs, model
from nova_hpc.cloud.simulate.model import Layout, Machine, Task
from nova_hpc.cloud.snapshot import SnapshotError
from nova_hpc.cloud.snapshot import document as snapshot_document
from nova_hpc.offer import roles
from nova_hpc.topology import lstopo
from nova_hpc.topology.model import InventoryError

BUILT_IN: Final = "dgx"
#: Unpacked, a file is at most so long: a bomb is no trace.
MOST_BYTES: Final = 512 * 1024 * 1024


def read(
    node_file: Path | None, request_file: Path | None, snapshot_file: Path | None, role: str
) -> tuple[list[Machine], list[Task]]:
    """Nodes and requests.

    :raises ValueError: a file cannot be used; the text names it, and the line.
    """
    machines: list[Machine] = []
    tasks: list[Task] = []
    if snapshot_file is not None:
        try:
            cloud = snapshot_document.read(snapshot_file)
        except SnapshotError as error:
            raise ValueError(str(error)) from error
        machines = inputs.machines_of(cloud, role)
        tasks = inputs.tasks_of(cloud, role)
        if not any(machine.gpus for machine in machines):
            raise ValueError(f"{snapshot_file}: no node has a device of role {role!r}")
        if request_file is None and not tasks:
            raise ValueError(
                f"{snapshot_file}: no flavor asks for a device of role {role!r}; "
                "give the requests with --requests"
            )
    if node_file is not None:
        machines = inputs.read_machines(_lines(node_file), str(node_file))
    if request_file is not None:
        tasks = inputs.read_tasks(_lines(request_file), str(request_file))
    return machines, tasks


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ValueError(f"{path} cannot be read: {why}") from error
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path} is longer than {MOST_BYTES} bytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not UTF-8") from error
    return text.splitlines(keepends=True)


def with_topology(machines: list[Machine], given: Sequence[str]) -> list[Machine]:
    """The machines with the layouts that --topology names.

    :raises ValueError: the text names the option and what is wrong.
    """
    kinds = {machine.kind for machine in machines}
    for text in given:
        kind, equals, source = text.rpartition("=")
        if equals and kind not in kinds:
            raise ValueError(
                f"--topology {text}: no node of type {kind!r}; there are {', '.join(sorted(kinds))}"
            )
        if not equals and source != BUILT_IN:
            raise ValueError(f"--topology {text}: write {BUILT_IN}, or TYPE=FILE, or TYPE=dgx")
        mine = [machine for machine in machines if not equals or machine.kind == kind]
        try:
            if source == BUILT_IN:
                changed = model.all_dgx(mine)
            else:
                changed = model.with_layout(mine, {kind: _layout(Path(source))})
        except ValueError as error:
            raise ValueError(f"--topology {text}: {error}") from error
        by_name = {machine.name: machine for machine in changed}
        machines = [by_name.get(machine.name, machine) for machine in machines]
    return machines


def _layout(path: Path) -> Layout:
    try:
        node = lstopo.read(path)
    except InventoryError as error:
        raise ValueError(str(error)) from error
    table = roles.strict(conf.roles.DEFAULT_ROLES)
    places = tuple(
        function.location for function in node.functions if table.role_of(function) == "gpu"
    )
    if not places:
        raise ValueError(f"{path} has no GPU")
    return places
