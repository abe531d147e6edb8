# SPDX-License-Identifier: Apache-2.0
"""Run the race; exit with 1 if a group is split, a place promised twice or anything left."""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import multiprocessing
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence

from benchmarks.concurrency.stage import Stage, _free_port, _works, stage
from benchmarks.group_races.actors import Client, Cloud, Servers, Where, reaper, scheduler
from nova_hpc.cluster.group_domain.model import ROOM_PREFIX, GroupDomain, Size, room_name
from nova_hpc.cluster.group_domain.records import ProviderRecords
from nova_hpc_tools.snapshot.group_fleet import DomainFleet, reap_all_domains

_SPAWN = multiprocessing.get_context("spawn")


@contextlib.contextmanager
def placements(made: Stage, count: int) -> Iterator[tuple[list[int], list[subprocess.Popen]]]:
    """Run more processes of Placement beside the stage's own."""
    ports = [made.port, *(_free_port() for _ in range(count - 1))]
    running = [serve(made, port) for port in ports[1:]]
    try:
        for port in ports:
            where = Where((port,), "")
            while not _works(lambda where=where: _answers(where)):
                time.sleep(0.2)
        yield ports, running
    finally:
        for each in running:
            each.kill()
            each.wait()


def serve(made: Stage, port: int) -> subprocess.Popen:
    argv = (sys.executable, "-m", "waitress", f"--listen=127.0.0.1:{port}", "--threads=4")
    with (made.logs / f"placement-{port}.log").open("ab") as log:
        return subprocess.Popen(
            [*argv, "--connection-limit=400", "placement.wsgi.api:application"],
            env=os.environ | {"OS_PLACEMENT_CONFIG_DIR": str(made.placement_conf)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _answers(where: Where) -> None:
    if Client(where).get("/").status != 200:
        raise OSError("not yet")


def prepare(made: Stage, where: Where, cloud: Cloud) -> None:
    with contextlib.closing(made.connect("nova")) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS race_servers (uuid CHAR(36) PRIMARY KEY)")
    client = Client(where)
    for leaf, number in itertools.product(range(cloud.leaves), range(cloud.hosts)):
        host = str(uuid.uuid4())
        client.post("/resource_providers", {"name": cloud.host(leaf, number), "uuid": host})
        body = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 1}}}
        assert client.send("PUT", f"/resource_providers/{host}/inventories", body).status == 200


def race(
    made: Stage, where: Where, cloud: Cloud, sizes: Sequence[int], arguments: argparse.Namespace,
    running: list[subprocess.Popen], ports: list[int],
) -> int:  # fmt: skip
    """Play one round; return the number of errors."""
    jobs, results = _SPAWN.Queue(), _SPAWN.Queue()
    wanted = []
    servers: list[str] = []
    with contextlib.closing(made.connect("nova")) as connection, connection.cursor() as cursor:
        for size in sizes:
            group = str(uuid.uuid4())
            for _ in range(size):
                server = str(uuid.uuid4())
                cursor.execute("INSERT INTO race_servers VALUES (%s)", [server])
                servers.append(server)
                wanted.append((group, size, server))
    # In random order, members of all groups take turns, so several of a group are in flight.
    random.shuffle(wanted)
    for each in wanted:
        jobs.put(each)
    victims = arguments.kill
    crew = [
        _SPAWN.Process(
            target=scheduler,
            args=(where, cloud, jobs, results, number if number < victims else None),
            daemon=True,
        )
        for number in range(victims + arguments.processes)
    ]
    stop = _SPAWN.Event()
    if arguments.reaper:
        crew.append(_SPAWN.Process(target=reaper, args=(where, stop), daemon=True))
    begin = time.monotonic()
    for each in crew:
        each.start()
    if arguments.kill_placement:
        threading.Thread(target=_kill, args=(made, running, ports, stop), daemon=True).start()
    seen: dict[str, tuple[str, str, str, float]] = {}
    dead = 0
    while len(seen) + dead < len(wanted):
        with contextlib.suppress(queue.Empty):
            group, server, word, text, seconds = results.get(timeout=1)
            seen[server] = (group, word, text, seconds)
        dead = sum(each.exitcode == -9 for each in crew[:victims])
        if time.monotonic() - begin > 900:
            break
    # The requests of dead schedulers are repeated, as their users would do.
    lost = [each for each in wanted if each[2] not in seen]
    for each in lost:
        jobs.put(each)
    for _ in lost:
        with contextlib.suppress(queue.Empty):
            group, server, word, text, seconds = results.get(timeout=120)
            seen[server] = (group, word, text, seconds)
    for _ in crew:
        jobs.put(None)
    stop.set()
    for each in crew:
        each.join(30)
    wall = time.monotonic() - begin
    words = collections.Counter(word for _, word, _, _ in seen.values())
    leaves: dict[str, set[str]] = {}
    for group, word, leaf, _ in seen.values():
        if word == "placed":
            leaves.setdefault(group, set()).add(leaf)
    split = sum(len(each) > 1 for each in leaves.values())
    twice = _host_twice(made)
    fleet = DomainFleet.of(ProviderRecords(Client(where)).providers())
    over = sum(
        sum(room.members for room in tree.rooms if room.record) > cloud.hosts
        for tree in fleet.trees
    )
    times = sorted(seconds for *_, seconds in seen.values())
    for server in servers:
        Client(where).delete(f"/allocations/{server}")
    with contextlib.closing(made.connect("nova")) as connection, connection.cursor() as cursor:
        cursor.execute("DELETE FROM race_servers")
    reap_all_domains(lambda: ProviderRecords(Client(where)), Servers(where))
    left = [
        each.name
        for each in ProviderRecords(Client(where)).providers()
        if each.name.startswith((ROOM_PREFIX, "hpc-"))
    ]
    missing = len(wanted) - len(seen)
    print(
        f"RESULT: {len(sizes)} groups, {len(wanted)} members, {arguments.processes} schedulers, "
        f"{dead} killed, {wall:.1f} s: {dict(words)}, split {split}, promised twice {over}, host "
        f"twice {twice}, unknown {missing}, left {len(left)}; a member p50 "
        f"{statistics.median(times):.2f} s, p95 {times[int(len(times) * 0.95)]:.2f} s",
        flush=True,
    )
    for _, word, text, _ in seen.values():
        if word not in ("placed", "refused"):
            print(text)
    # A refusal is wrong if there is room for all. Groups of different sizes can leave gaps.
    roomy = len(set(sizes)) == 1 and len(sizes) <= cloud.leaves * (cloud.hosts // sizes[0])
    refused = words["refused"] if roomy else 0
    return split + over + twice + missing + len(left) + refused + words["broken"]


def _host_twice(made: Stage) -> int:
    with (
        contextlib.closing(made.connect("placement")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(
            "SELECT COUNT(*) FROM (SELECT resource_provider_id FROM allocations "
            "GROUP BY resource_provider_id HAVING SUM(used) > 1) AS x"
        )
        return int(cursor.fetchone()[0])


def _kill(made: Stage, running: list[subprocess.Popen], ports: list[int], stop: object) -> None:
    """Kill one process of Placement each second with SIGKILL, and start it again."""
    while not stop.wait(1.0):  # type: ignore[attr-defined]
        number = random.randrange(len(running))
        running[number].send_signal(signal.SIGKILL)
        running[number].wait()
        running[number] = serve(made, ports[1 + number])


def measure_rooms(where: Where, cloud: Cloud) -> None:
    """Print the cost of a room of n places: of a checked one, and of one with unit slots."""
    client = Client(where)
    records = ProviderRecords(client)
    domain = GroupDomain("leaf", "race/measured")
    records.make_domain(domain)
    for members in (4, 16, 64, 256):
        begin, sent = time.monotonic(), client.sent
        room = str(uuid.uuid4())
        records.make(room_name("g", members, Size("aa", 1)), room, domain.uuid)
        records.tree(domain.uuid)
        checked, posts = time.monotonic() - begin, client.sent - sent
        records.remove(room)
        begin = time.monotonic()
        slots = [str(uuid.uuid4()) for _ in range(members)]
        for number, slot in enumerate(slots):
            records.make(f"slot:{number}", slot, domain.uuid)
        units = time.monotonic() - begin
        for slot in slots:
            records.remove(slot)
        print(
            f"RESULT: a room for {members}: checked {1e3 * checked:.0f} ms ({posts} requests), "
            f"unit slots {1e3 * units:.0f} ms ({members} requests)",
            flush=True,
        )
    records.remove(domain.uuid)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.group_races")
    parser.add_argument("--processes", type=int, default=4, help="schedulers (default: 4)")
    parser.add_argument("--placements", type=int, default=3, help="Placement processes")
    parser.add_argument("--leaves", type=int, default=32)
    parser.add_argument("--hosts", type=int, default=16, help="hosts of a leaf")
    parser.add_argument("--groups", type=int, default=20)
    parser.add_argument("--members", type=int, nargs="+", default=[16], help="sizes, in turns")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kill", type=int, default=0, help="schedulers killed at request 0, 1, ..")
    parser.add_argument("--kill-placement", action="store_true")
    parser.add_argument("--reaper", action="store_true", help="with a reaper without mercy")
    parser.add_argument("--measure", action="store_true", help="only what rooms cost")
    arguments = parser.parse_args()
    cloud = Cloud(arguments.leaves, arguments.hosts)
    wrong = 0
    with stage() as made, placements(made, arguments.placements) as (ports, running):
        where = Where(tuple(ports), str(made.socket))
        if arguments.measure:
            measure_rooms(where, cloud)
            return 0
        prepare(made, where, cloud)
        for _ in range(arguments.rounds):
            sizes = [
                size
                for size, _ in zip(
                    itertools.cycle(arguments.members), range(arguments.groups), strict=False
                )
            ]
            wrong += race(made, where, cloud, sizes, arguments, running, ports)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
