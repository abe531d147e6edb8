# SPDX-License-Identifier: Apache-2.0
"""Nodes and requests from CSV, and from the snapshot of a cloud.

A CSV has the form of the openb trace or a simple form of our own; the header decides.
Every error names the file and the line.

The simulation of a snapshot covers the devices of one role, without their adapters, NVLink sets
and the ports of servers. Used devices stay in use.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import attrs

from nova_hpc.placement.flavor import GROUP, has_hpc_keys
from nova_hpc.placement.grouping import FlavorError, takes_ports
from nova_hpc_common.level import AffinityPolicy, Level
from nova_hpc_simulate.model import WHOLE, SimulatedMachine, SimulatedTask, TaskShape
from nova_hpc_tools import snapshot as cloud

#: More than any machine or request has; a larger number is a mistake.
MOST: Final = 1_000_000_000
MOST_GPUS: Final = 64
MOST_LINES: Final = 100_000
_SHOWN: Final = 60

_OPENB_NODES: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_OPENB_TASKS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_OPENB_MORE: Final = (
    "gpu_spec", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time",
)  # fmt: skip
_NODES: Final = ("name", "cpus", "memory_mib", "gpus")
_NODES_MORE: Final = ("type", "count")
_TASKS: Final = ("name", "cpus", "memory_mib", "gpus")
_TASKS_MORE: Final = ("share", "level", "group", "count", "arrives", "leaves")


class TraceError(ValueError):
    """A trace file cannot be used. The text names the file, the line and the cure."""


@attrs.frozen
class _TraceRow:
    where: str
    values: Mapping[str, str]

    def error(self, text: str) -> TraceError:
        return TraceError(f"{self.where}: {text}")

    def text(self, key: str, default: str = "") -> str:
        return (self.values.get(key) or "").strip() or default

    def whole(self, key: str, least: int, most: int = MOST, default: int | None = None) -> int:
        text = self.text(key)
        if not text and default is not None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if not least <= value <= most:
            raise self.error(
                f"{key} is {_quote_shortened(text)}, but must be a whole number from "
                f"{least} to {most}"
            )
        return value

    def number(self, key: str, scale: int = 1) -> float:
        text = self.text(key)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= MOST:
            raise self.error(
                f"{key} is {_quote_shortened(text)}, but must be a number from 0 to {MOST}"
            )
        return value * scale

    def milli(self, key: str) -> int:
        return round(self.number(key, WHOLE))


def read_machines(lines: Iterable[str], source: str) -> list[SimulatedMachine]:
    """Read nodes from a CSV file or the openb trace.

    :raises TraceError: a line is invalid, a name occurs twice, or there is no node.
    """
    machines: list[SimulatedMachine] = []
    names: set[str] = set()
    for openb, row in _read_trace_rows(lines, source, (_OPENB_NODES, ()), (_NODES, _NODES_MORE)):
        if openb:
            name, count = row.text("sn"), 1
            model = SimulatedMachine(
                name=name,
                kind=row.text("model", "node"),
                cpu_milli=row.whole("cpu_milli", 0),
                memory_mib=row.whole("memory_mib", 0),
                gpus=row.whole("gpu", 0, MOST_GPUS),
            )
        else:
            name, count = row.text("name"), row.whole("count", 1, MOST_LINES, 1)
            model = SimulatedMachine(
                name=name,
                kind=row.text("type", "node"),
                cpu_milli=row.milli("cpus"),
                memory_mib=row.whole("memory_mib", 0),
                gpus=row.whole("gpus", 0, MOST_GPUS),
            )
        if not name:
            raise row.error("the node has no name")
        if len(machines) + count > MOST_LINES:
            raise row.error(f"more than {MOST_LINES} nodes")
        for number in range(count):
            machine_name = name if count == 1 else f"{name}-{number + 1}"
            if machine_name in names:
                raise row.error(f"there is a node {_quote_shortened(machine_name)} already")
            names.add(machine_name)
            machines.append(attrs.evolve(model, name=machine_name))
    if not machines:
        raise TraceError(f"{source}: there is no node in it")
    return machines


def read_tasks(lines: Iterable[str], source: str) -> list[SimulatedTask]:
    """Read requests from a CSV file or the openb trace.

    :raises TraceError: a line is invalid, or there is no request.
    """
    tasks: list[SimulatedTask] = []
    for openb, row in _read_trace_rows(
        lines, source, (_OPENB_TASKS, _OPENB_MORE), (_TASKS, _TASKS_MORE)
    ):
        task = _openb_task(row) if openb else _read_plain_task(row)
        if not task.name:
            raise row.error("the request has no name")
        count = 1 if openb else row.whole("count", 1, MOST_LINES, 1)
        if len(tasks) + count > MOST_LINES:
            raise row.error(f"more than {MOST_LINES} requests")
        tasks.extend([task] * count)
    if not tasks:
        raise TraceError(f"{source}: there is no request in it")
    return tasks


def _openb_task(row: _TraceRow) -> SimulatedTask:
    if row.text("gpu_spec"):
        raise row.error(
            f"gpu_spec is {_quote_shortened(row.text('gpu_spec'))}, but requests for a "
            f"model of GPU "
            "are not simulated; use a list without them"
        )
    gpus = row.whole("num_gpu", 0, MOST_GPUS)
    milli = row.whole("gpu_milli", 0, WHOLE)
    shape = TaskShape(
        cpu_milli=row.whole("cpu_milli", 0),
        memory_mib=row.whole("memory_mib", 0),
        gpus=gpus,
        gpu_milli=_check_gpu_share(row, gpus, milli),
    )
    return _task_with_times(row, shape, "creation_time", "deletion_time")


def _read_plain_task(row: _TraceRow) -> SimulatedTask:
    gpus = row.whole("gpus", 0, MOST_GPUS)
    milli = row.milli("share") if row.text("share") else WHOLE
    if not 0 <= milli <= WHOLE:
        raise row.error(
            f"share is {_quote_shortened(row.text('share'))}, but must be above 0, at most 1"
        )
    try:
        level = Level.from_word(row.text("level", Level.HOST.word))
    except ValueError as error:
        raise row.error(f"level {error}") from None
    group = row.whole("group", 0, MOST_GPUS, 0)
    if group and (not gpus or gpus % group):
        raise row.error(f"groups of {group} do not divide {gpus} GPUs")
    shape = TaskShape(
        cpu_milli=row.milli("cpus"),
        memory_mib=row.whole("memory_mib", 0),
        gpus=gpus,
        gpu_milli=_check_gpu_share(row, gpus, milli),
        level=level,
        group=group,
    )
    return _task_with_times(row, shape, "arrives", "leaves")


def _check_gpu_share(row: _TraceRow, gpus: int, milli: int) -> int:
    if not gpus:
        return WHOLE
    if not milli:
        raise row.error(f"{gpus} GPUs are requested, but nothing of each")
    if gpus > 1 and milli != WHOLE:
        raise row.error(
            f"{gpus} GPUs are requested, but only a part of each; that is not simulated"
        )
    return milli


def _task_with_times(row: _TraceRow, shape: TaskShape, arrives: str, leaves: str) -> SimulatedTask:
    start = row.number(arrives) if row.text(arrives) else 0.0
    end = row.number(leaves) if row.text(leaves) else None
    if end is not None and end < start:
        raise row.error(f"{leaves} is {end:g}, before {arrives}, {start:g}")
    return SimulatedTask(row.text("name"), shape, start, end)


_Header = tuple[Sequence[str], Sequence[str]]


def _read_trace_rows(
    lines: Iterable[str], source: str, openb: _Header, simple: _Header
) -> Iterator[tuple[bool, _TraceRow]]:
    """Yield pairs for the rows of a CSV: whether it has openb's form, and the row."""
    reader = csv.reader(lines, strict=True)
    header: list[str] = []
    is_openb = False
    try:
        for values in reader:
            where = f"{source}, line {reader.line_num}"
            if not values or (len(values) == 1 and not values[0].strip()):
                continue
            if not header:
                header = [value.strip().lstrip("\ufeff") for value in values]
                is_openb = set(openb[0]) <= set(header)
                _check_trace_header(header, openb if is_openb else simple, openb, where)
                continue
            if len(values) != len(header):
                raise TraceError(
                    f"{where}: {len(values)} values, but the header has {len(header)} names"
                )
            yield is_openb, _TraceRow(where, dict(zip(header, values, strict=True)))
    except csv.Error as error:
        raise TraceError(f"{source}, line {reader.line_num}: {error}") from error


def _check_trace_header(header: Sequence[str], form: _Header, openb: _Header, where: str) -> None:
    required, more = form
    missing = [name for name in required if name not in header]
    unknown = [name for name in header if name not in required and name not in more]
    if missing:
        raise TraceError(
            f"{where}: the header lacks {', '.join(missing)}; it must have "
            f"{', '.join(required)} (or, of the openb trace, {', '.join(openb[0])})"
        )
    if unknown:
        raise TraceError(
            f"{where}: unknown column {_quote_shortened(unknown[0])}; known are "
            f"{', '.join((*required, *more))}"
        )
    if len(set(header)) != len(header):
        raise TraceError(f"{where}: a column occurs twice")


def _quote_shortened(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


#: Value for a node that reports no CPUs or pages: enough for any request.
PLENTY: Final = 1_000_000_000


def machines_of(snapshot: cloud.Snapshot, role: str) -> list[SimulatedMachine]:
    """Return the nodes of a snapshot to which the scheduler gives servers; devices in use are busy.

    CPUs are the free dedicated ones, memory is the free hugepages; both are unlimited if a node
    does not report them.
    """
    machines = []
    for node in snapshot.hosts:
        if node.out is not None:
            continue
        devices = [
            (device, number < device.free)
            for device in sorted(node.devices, key=lambda device: device.address)
            if device.role == role
            for number in range(device.free + len(device.used))
        ]
        cpus = [numa.dedicated_cpus for numa in node.numa]
        pages = [numa.pages for numa in node.numa]
        machines.append(
            SimulatedMachine(
                name=node.name,
                kind=f"{len(devices)} x {role}",
                cpu_milli=PLENTY
                if not cpus or None in cpus
                else 1000 * sum(count or 0 for count in cpus),
                memory_mib=PLENTY
                if not pages or None in pages
                else sum(
                    size * count
                    for node_pages in pages
                    for size, count in (node_pages or {}).items()
                )
                // 1024,
                gpus=len(devices),
                layout=tuple(device.location for device, _ in devices),
                busy=tuple(number for number, (_, free) in enumerate(devices) if not free),
            )
        )
    return machines


def tasks_of(snapshot: cloud.Snapshot, role: str) -> list[SimulatedTask]:
    """Return the requests of a snapshot: one for each running server, or else for each flavor.

    A flavor without a device of *role* is left out. So is a flavor that the scheduler would refuse:
    :func:`not_simulated` lists it.
    """
    shapes = _shapes_of_flavors(snapshot, role)[0]
    running = Counter(server.flavor for server in snapshot.servers if server.flavor in shapes)
    counts = running or Counter(dict.fromkeys(shapes, 1))
    return [
        SimulatedTask(f"{name}-{number + 1}", shapes[name])
        for name in sorted(counts)
        for number in range(counts[name])
    ]


def not_simulated(snapshot: cloud.Snapshot, role: str) -> tuple[str, ...]:
    """List the parts of flavors that :func:`tasks_of` leaves out, one sentence each.

    Ports belong to servers, so no snapshot has them; other devices are not modelled.
    """
    shapes, left_out = _shapes_of_flavors(snapshot, role)
    running = {server.flavor for server in snapshot.servers}
    asked = running if running & shapes.keys() else {*shapes, *left_out}
    flavors = [flavor for flavor in snapshot.flavors if flavor.name in shapes.keys() & asked]
    ports = sorted(flavor.name for flavor in flavors if takes_ports(flavor.extra_specs.get(GROUP)))
    others = sorted(
        flavor.name
        for flavor in flavors
        if sum(want.count for want in flavor.wants) > shapes[flavor.name].gpus
    )
    sentences = []
    if others:
        sentences.append(f"the devices beside {role} of the flavors {', '.join(others)}")
    if ports:
        sentences.append(f"the ports that the flavors {', '.join(ports)} put beside their devices")
    sentences += [f"flavor {name}: {left_out[name]}" for name in sorted(left_out.keys() & asked)]
    return tuple(sentences)


class _LeftOutError(Exception):
    """The scheduler would refuse a flavor, so it is not simulated. The text has the reason."""


def _shapes_of_flavors(
    snapshot: cloud.Snapshot, role: str
) -> tuple[dict[str, TaskShape], dict[str, str]]:
    """Return flavor -> its request for devices of *role*; and refused flavor -> the reason."""
    shapes: dict[str, TaskShape] = {}
    left_out: dict[str, str] = {}
    for flavor in snapshot.flavors:
        try:
            shape = _shape_of_flavor(snapshot, flavor, role)
        except _LeftOutError as error:
            left_out[flavor.name] = str(error)
            continue
        if shape is not None:
            shapes[flavor.name] = shape
    return shapes, left_out


def _shape_of_flavor(snapshot: cloud.Snapshot, flavor: cloud.Flavor, role: str) -> TaskShape | None:
    """Return the request of a flavor; None if it needs no device of *role*.

    :raises _LeftOutError: the scheduler would refuse the flavor.
    """
    if flavor.problem is not None:
        raise _LeftOutError(flavor.problem)
    if not flavor.wants:
        return None
    try:
        roles = cloud.roles_of_wants(snapshot.hosts, flavor.server.wants)
    except FlavorError as error:
        raise _LeftOutError(str(error)) from error
    keys = {key for key, played in roles.items() if played == role}
    gpus = sum(want.count for want in flavor.server.wants if want.key in keys)
    if not gpus:
        return None
    level, group = Level.HOST, gpus
    if has_hpc_keys(flavor.extra_specs):
        try:
            request = cloud.request_of_flavor(flavor, snapshot.hosts)
        except FlavorError as error:
            raise _LeftOutError(str(error)) from error
        if request.policy is AffinityPolicy.REQUIRED:
            level = request.level
        group = gpus // len(request.groups)
    return TaskShape(
        cpu_milli=1000 * sum(cell.dedicated_cpus for cell in flavor.cells),
        memory_mib=sum(cell.memory_kib for cell in flavor.cells if cell.page_kib) // 1024,
        gpus=gpus,
        level=level,
        group=group,
    )
