# SPDX-License-Identifier: Apache-2.0
"""The time of ``nova-hpc when`` in a large cloud, beside that of questions of ``capacity``."""

from __future__ import annotations

import datetime
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

from benchmarks.room.clouds import make_cloud
from nova_hpc.cluster.plan import GangPlan
from nova_hpc.fabric.model import FabricLevel, FabricMap
from nova_hpc_tools.cloud.capacity import measure_flavor
from nova_hpc_tools.cloud.capacity_command import read_synced_map
from nova_hpc_tools.cloud.room.earliest import find_earliest_time
from nova_hpc_tools.cloud.room.end_times import KnownEnd, read_end_times
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.snapshot import Server, Snapshot, document, release_from_node

_Answer = TypeVar("_Answer")
#: Hosts of the cloud in which capacity runs after each end.
_SMALL: Final = 64


@attrs.frozen
class SpeedRow:
    """One question: seconds of the processor, and for ``when`` of the wall clock, too.

    :ivar fits: the hours until then; None if no known end is enough.
    :ivar times: the moments until then at which servers end.
    :ivar capacity_seconds: of one question of capacity about the same cloud.
    """

    hosts: int
    servers: int
    question: str
    fits: float | None
    times: int
    seconds: float
    cpu_seconds: float
    capacity_seconds: float
    #: Of capacity after each of these ends; None if it did not run.
    loop_seconds: float | None = None


def measure_speed(folder: Path, hosts: int) -> tuple[dict[str, Any], list[SpeedRow]]:
    """Time loading, and each question, in a cloud of *hosts*; in a small one with the loop."""
    facts: dict[str, Any] = {}
    rows: list[SpeedRow] = []
    for count in (_SMALL, hosts):
        path = folder / f"cloud-{count}.json"
        if not path.exists():
            path.write_text(document.dump_cloud_snapshot(make_cloud(count)[0]))
        cloud, seconds, _ = _measure(lambda path=path: document.read_snapshot_file(path))
        gc.freeze()  # as the command does
        fabric, _ = read_synced_map(cloud)
        facts[f"load {count}"] = seconds
        rows += [
            _measure_question(cloud, fabric, words, loop=count == _SMALL)
            for words in _list_questions(count)
        ]
    return facts, rows


def _list_questions(hosts: int) -> Iterator[tuple[str, int, FabricLevel | None]]:
    yield "hpc.gpu8", 1, None
    yield "hpc.gpu8", 4, FabricLevel.LEAF
    yield "hpc.gpu8", 16, FabricLevel.LEAF
    yield "hpc.gpu4", 32, FabricLevel.LEAF
    yield "hpc.gpu8", hosts // 2, None
    yield "hpc.gpu4", hosts, None
    yield "hpc.gpu2", 3 * hosts, None
    yield "hpc.gpu1", 7 * hosts, None


def _measure_question(
    cloud: Snapshot, fabric: FabricMap, words: tuple[str, int, FabricLevel | None], loop: bool
) -> SpeedRow:
    name, members, level = words
    question = RoomQuestion.of(cloud, name, fabric, members, level)

    def decide() -> tuple[Any, Sequence[KnownEnd]]:
        asked = RoomQuestion.of(cloud, name, fabric, members, level)
        ends = read_end_times(cloud).ends
        return find_earliest_time(cloud, asked, ends), ends

    (found, ends), seconds, cpu = _measure(decide)
    _, _, one = _measure(lambda: _fits(cloud, question))
    moments = sorted({end.time for end in ends})
    if found is not None:
        moments = [moment for moment in moments if found.time and moment <= found.time]
    loop_seconds = None
    if loop:
        first, _, loop_seconds = _measure(lambda: _run_after_each_end(cloud, question, ends))
        if first != (None if found is None else found.time or True):
            raise AssertionError(f"{question.text}: {first}, not {found}")
    taken = datetime.datetime.fromisoformat(cloud.taken)
    fits = None
    if found is not None:
        fits = 0.0 if found.time is None else (found.time - taken).total_seconds() / 3600
    return SpeedRow(
        hosts=len(cloud.hosts),
        servers=len(cloud.servers),
        question=question.text,
        fits=fits,
        times=len(moments),
        seconds=seconds,
        cpu_seconds=cpu,
        capacity_seconds=one,
        loop_seconds=loop_seconds,
    )


def _fits(cloud: Snapshot, question: RoomQuestion) -> bool:
    return isinstance(question.plan(measure_flavor(cloud, question.flavor).by_host), GangPlan)


def _run_after_each_end(
    cloud: Snapshot, question: RoomQuestion, ends: Sequence[KnownEnd]
) -> datetime.datetime | bool | None:
    """Run capacity now and after each end; returns True for now, None for never."""
    if _fits(cloud, question):
        return True
    nodes = {node.name: node for node in cloud.hosts}
    by_time: dict[datetime.datetime, list[Server]] = {}
    for end in ends:
        by_time.setdefault(end.time, []).append(end.server)
    for moment, servers in by_time.items():
        for server in servers:
            nodes[server.node] = release_from_node(nodes[server.node], server)
        if _fits(attrs.evolve(cloud, hosts=tuple(nodes.values())), question):
            return moment
    return None


def _measure(call: Callable[[], _Answer]) -> tuple[_Answer, float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    answer = call()
    return answer, time.perf_counter() - wall, time.process_time() - cpu


def tabulate_speed(rows: Sequence[SpeedRow]) -> Iterator[list[str]]:
    """Yield the rows of the table, the head first."""
    yield [
        *("hosts", "servers", "request", "fits after", "end times until then", "when, s"),
        *(
            "when, s of CPU",
            "one capacity, s of CPU",
            "when : one capacity",
            "when : capacity at each end",
        ),
    ]
    for row in rows:
        loop = row.loop_seconds
        yield [
            *(f"{row.hosts:,}", f"{row.servers:,}", row.question),
            "never" if row.fits is None else f"{row.fits:.0f} h",
            *(f"{row.times:,}", f"{row.seconds:.2f}", f"{row.cpu_seconds:.2f}"),
            f"{row.capacity_seconds:.2f}",
            f"1 : {row.capacity_seconds / row.cpu_seconds:.1f}",
            "" if loop is None else f"1 : {loop / row.cpu_seconds:.0f}",
        ]
