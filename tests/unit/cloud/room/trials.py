# SPDX-License-Identifier: Apache-2.0
"""One random cloud at a time: the planners against brute force, and the time of both."""

from __future__ import annotations

import datetime
import random
import time
from collections.abc import Callable
from typing import TypeVar

import attrs

from nova_hpc.fabric.model import FabricLevel
from nova_hpc_tools import snapshot
from nova_hpc_tools.cloud.room.earliest import find_earliest_time
from nova_hpc_tools.cloud.room.end_times import read_end_times
from nova_hpc_tools.cloud.room.moves import RoomMiss, RoomPlan, find_room_moves
from nova_hpc_tools.cloud.room.preemption import find_preemption
from nova_hpc_tools.cloud.room.question import RoomQuestion
from nova_hpc_tools.snapshot import Snapshot, SnapshotLease
from tests.unit.cloud.room import random_clouds as drawn

START = datetime.datetime.fromisoformat(drawn.TAKEN)
_Answer = TypeVar("_Answer")


@attrs.frozen
class RoomTrial:
    """Both answers for one cloud.

    :ivar answer: of the engine: a number of moves, a time in hours, or -1 for none.
    :ivar least: of brute force; -1 for none, also if it would take more moves than were tried.
    :ivar proven: whether the engine calls its answer the best.
    :ivar fault: the rule that the engine broke; "" for none.
    """

    seed: int
    answer: float
    least: float
    proven: bool
    engine_seconds: float
    brute_seconds: float
    fault: str = ""


def try_time(seed: int) -> RoomTrial:
    """Try ``when``: no earlier time, of all times one after the other, would do."""
    cloud, fabric, chance = drawn.draw_cloud(seed)
    question = drawn.draw_question(cloud, fabric, chance)
    cloud = with_ends(cloud, chance)
    found, engine = _measure(
        lambda: find_earliest_time(cloud, question, read_end_times(cloud).ends)
    )
    first, brute = _measure(lambda: find_first_time(cloud, question))
    fault = ""
    answer = None if found is None else found.time or START
    if answer != first:
        fault = "another time"
    elif found is not None:
        fault = fault or ("members" * (sum(found.gang.hosts.values()) != question.members))
        fault = fault or ("an end after it" * any(end.time > answer for end in found.leaving))
    return RoomTrial(seed, _hours(answer), _hours(first), True, engine, brute, fault)


def try_moves(seed: int, most: int, seconds: float, agreed: bool) -> RoomTrial:
    """Try ``make-room``: no sequence of fewer moves would do, and each move is possible.

    :param most: brute force tries no more moves.
    :param seconds: the limit of the engine, of this process's time: other load cuts no search.
    :param agreed: only servers may move whose owners have agreed.
    """
    cloud, fabric, chance = drawn.draw_cloud(seed)
    cloud = drawn.draw_consent(cloud, random.Random(seed))
    question = drawn.draw_question(cloud, fabric, chance)
    found, engine = _measure(
        lambda: find_room_moves(cloud, question, seconds, agreed, time.process_time)
    )
    tried = _fix_servers_without_consent(cloud) if agreed else cloud
    least, brute = _measure(lambda: drawn.fewest_moves(tried, fabric, question, most))
    count = -1 if isinstance(found, RoomMiss) else len(found.moves)
    fault = ""
    if isinstance(found, RoomPlan):
        fault = _find_fault_of_plan(tried, question, found)
    if not fault and found.proven:
        if count == -1 and not (isinstance(found, RoomMiss) and found.reason):
            fault = "no reason"
        elif least is None:
            fault = "a shorter plan than any" * (0 <= count <= most)
        elif count != least:
            fault = "another number of moves"
    elif not fault and least is not None and 0 <= count < least:
        fault = "fewer moves than possible"
    return RoomTrial(
        seed, count, -1 if least is None else least, found.proven, engine, brute, fault
    )


def try_preemption(seed: int) -> RoomTrial:
    """Try ``make-room --preempt``: no choice of fewer preemptible servers would do."""
    cloud, fabric, chance = drawn.draw_cloud(seed)
    cloud = drawn.draw_preemptible(cloud, chance)
    names = [each.name for each in cloud.flavors if "hpc:fabric" not in each.extra_specs]
    level = chance.choice([None, FabricLevel.LEAF])
    question = RoomQuestion.of(cloud, chance.choice(names), fabric, chance.randint(1, 4), level)
    found, engine = _measure(lambda: find_preemption(cloud, question, clock=time.process_time))
    least, brute = _measure(lambda: drawn.fewest_removed(cloud, question))
    fault, answer = "", -1
    if isinstance(found, RoomMiss):
        fault = "" if found.reason else "no reason"
    else:
        uuids = [server.uuid for server in found.servers]
        answer = len(uuids)
        devices = [use.server for n in cloud.hosts for d in n.devices for use in d.used]
        if least is not None and least != (answer, sum(each in uuids for each in devices)):
            fault = "other servers"
        elif any(each.extra_specs.get("hpc:preemptible") != "yes" for each in found.servers):
            fault = "a server that is not preemptible"
        elif not drawn.fits(drawn.without(cloud, uuids), question):
            fault = "it does not fit then"
        elif sum(found.gang.hosts.values()) != question.members:
            fault = "members"
    if (answer == -1) != (least is None):
        fault = "one finds a plan, and the other none"
    return RoomTrial(
        seed, answer, -1 if least is None else least[0], found.proven, engine, brute, fault
    )


def _find_fault_of_plan(cloud: Snapshot, question: RoomQuestion, plan: RoomPlan) -> str:
    for move in plan.moves:
        (before,) = [each for each in cloud.servers if each.uuid == move.server.uuid]
        after = drawn.move(cloud, question.fabric, move.server.uuid, move.target)
        if after is None or before.host != move.server.host:
            return f"{move.server.uuid} cannot go to {move.target}"
        if move.agreed != drawn.has_agreed(before):
            return f"consent of {move.server.uuid}"
        cloud = after
    if not drawn.fits(cloud, question):
        return "it does not fit then"
    return "members" * (sum(plan.gang.hosts.values()) != question.members)


def _fix_servers_without_consent(cloud: Snapshot) -> Snapshot:
    return attrs.evolve(
        cloud,
        servers=tuple(
            each if drawn.has_agreed(each) else attrs.evolve(each, immobile="no consent")
            for each in cloud.servers
        ),
    )


def with_ends(cloud: Snapshot, chance: random.Random) -> Snapshot:
    """Some servers get an end time, others a bad one, and some a lease."""
    servers = []
    for server in cloud.servers:
        time = START + datetime.timedelta(hours=chance.randint(-2, 6))
        text = chance.choice([time.isoformat(), time.isoformat(), "soon", None])
        servers.append(attrs.evolve(server, until=text))
    leases = [
        SnapshotLease(
            f"lease{number}",
            (START + datetime.timedelta(hours=chance.randint(-1, 6))).isoformat(),
            tuple(each.uuid for each in servers if chance.random() < 0.3),
        )
        for number in range(chance.randint(0, 2))
    ]
    return attrs.evolve(cloud, servers=tuple(servers), leases=tuple(leases))


def ends_of(cloud: Snapshot) -> dict[str, datetime.datetime]:
    """Server -> its end, read once more."""
    found: dict[str, datetime.datetime] = {}
    texts = [(each.uuid, each.until) for each in cloud.servers]
    texts += [(uuid, lease.until) for lease in cloud.leases for uuid in lease.servers]
    for uuid, text in texts:
        if text is not None and text != "soon":
            time = datetime.datetime.fromisoformat(text)
            if time > START:
                found[uuid] = min(time, found.get(uuid, time))
    return found


def find_first_time(cloud: Snapshot, question: RoomQuestion) -> datetime.datetime | None:
    """Find the first end after which the request fits, with a new count at every end."""
    ends = ends_of(cloud)
    for time_ in [START, *sorted(set(ends.values()))]:
        left = cloud
        for server in cloud.servers:
            if ends.get(server.uuid, time_ + datetime.timedelta(1)) <= time_:
                hosts = (snapshot.release_from_node(node, server) for node in left.hosts)
                left = attrs.evolve(left, hosts=tuple(hosts))
        if drawn.fits(left, question):
            return time_
    return None


def _measure(call: Callable[[], _Answer]) -> tuple[_Answer, float]:
    start = time.process_time()
    return call(), time.process_time() - start


def _hours(moment: datetime.datetime | None) -> float:
    return -1 if moment is None else (moment - START) / datetime.timedelta(hours=1)
