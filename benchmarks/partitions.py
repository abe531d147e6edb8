# SPDX-License-Identifier: Apache-2.0
"""How long it takes until ports are members: the fabric's part alone, and through Neutron.

``python -m benchmarks.partitions [--alone 1 64 1024] [--ports 1 64] [--result FILE]``, with the
Python of the lab. The fabric is simulated and its messages take no time: what counts is the ratio
to a sweep that the subnet manager makes anyway, and how often it is told.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil
from oslo_config import cfg

from nova_hpc.conf import partitions as options
from nova_hpc.fabric.partitions.backends.base import MemberState
from nova_hpc.fabric.partitions.backends.opensm import OpensmSubnetManager
from nova_hpc.fabric.partitions.members import ACTIVE, DesiredPartitions, PartitionMember
from nova_hpc_lab import config
from nova_hpc_lab.fabric import partition_services, simulator

PKEY: Final = 0x300
_PORTS_OF_A_HOST: Final = 8
_ROUNDS: Final = 5
_CLIENTS: Final = 16
_SERVICES: Final = (
    *("neutron", "neutron-2", "neutron-rpc-server", "fabric-agent", "opensm", "mariadb"),
    *("rabbitmq", "keystone"),
)


# Only the fabric's part.


def measure_alone(counts: list[int]) -> list[dict[str, Any]]:
    """Join and leave of each number of GUIDs at once, on a fabric that is large enough for all."""
    from tests.fabric.bare_fabric import BareFabric

    hosts = -(-max(counts) // _PORTS_OF_A_HOST)
    with tempfile.TemporaryDirectory(prefix="nhf") as folder:
        fabric = BareFabric.make(folder, hosts=max(hosts, 8), ports=_PORTS_OF_A_HOST)
        try:
            fabric.up()
            os.environ["IBSIM_SOCKNAME"] = simulator.simulator_name(fabric.paths)
            manager = _make_manager(fabric)
            try:
                return [_measure_count(fabric, manager, count) for count in counts]
            finally:
                manager.close()
        finally:
            fabric.down()


def _make_manager(fabric: Any) -> OpensmSubnetManager:
    text = config.render(partition_services.agent_options(fabric.paths, fabric.settings))
    file = fabric.paths.config / "agent.conf"
    file.write_text(text)
    (fabric.paths.data / "fabric-agent").mkdir(exist_ok=True)
    conf = cfg.ConfigOpts()
    options.register_agent_options(conf)
    conf([], default_config_files=[str(file)], default_config_dirs=[])
    return OpensmSubnetManager(conf.hpc_fabric_agent)


def _measure_count(fabric: Any, manager: OpensmSubnetManager, count: int) -> dict[str, Any]:
    sweeps = [_time_sweep(fabric) for _ in range(_ROUNDS)]
    joins, leaves, looks, tables, signals = [], [], [], [], []
    for _ in range(_ROUNDS):
        for wanted, times in ((True, joins), (False, leaves)):
            before = manager.signals, manager.reader.tables_read
            begun = time.perf_counter()
            looked = _enforce(fabric, manager, count, wanted)
            times.append(time.perf_counter() - begun)
            looks.append(looked)
            signals.append(manager.signals - before[0])
            tables.append(manager.reader.tables_read - before[1])
        _enforce(fabric, manager, 0, True)
    sweep = statistics.median(sweeps)
    join, leave = statistics.median(joins), statistics.median(leaves)
    return {
        "guids": count,
        "ports_of_the_fabric": len(fabric.net.all_ports()),
        "sweep_seconds": round(sweep, 3),
        "join_seconds": round(join, 3),
        "leave_seconds": round(leave, 3),
        "join_to_sweep": round(join / sweep, 2),
        "leave_to_sweep": round(leave / sweep, 2),
        "signals_of_a_change": max(signals),
        "looks_of_a_change": max(looks),
        "tables_read_of_a_change": max(tables),
        "rounds": _ROUNDS,
    }


_TICKETS: Final = iter(range(1, 1_000_000))


def _enforce(fabric: Any, manager: OpensmSubnetManager, count: int, wanted: bool) -> int:
    """Add or remove *count* members; return the number of readings until all are as desired."""
    members = tuple(
        PartitionMember(
            row=number + 1,
            port_id=f"port-{number}",
            guid=port.guid,
            pkey=PKEY,
            wanted=wanted,
            port_status=ACTIVE if wanted else None,
        )
        for number, port in enumerate(fabric.net.ports[:count])
    )
    desired = DesiredPartitions(next(_TICKETS), members)
    manager.enforce(desired)
    looks = 0
    deadline = time.monotonic() + 60
    while True:
        reading = manager.read_back(desired)
        looks += 1
        states = Counter(one.state for one in reading.members.values())
        if states[MemberState.AS_DESIRED] == count:
            return looks
        if time.monotonic() > deadline:
            raise RuntimeError(f"{dict(states)} of {count} after 60 s: {reading.faults[:2]}")
        time.sleep(0.02)


def _time_sweep(fabric: Any) -> float:
    """Seconds of a sweep without a change: from the signal to the end that opensm logs."""
    log = fabric.files.log
    before = log.read_text().count("SUBNET UP")
    begun = time.perf_counter()
    os.kill(fabric.pid("opensm"), 1)
    while log.read_text().count("SUBNET UP") == before:
        time.sleep(0.002)
    return time.perf_counter() - begun


# Through Neutron.


def measure_ports(counts: list[int]) -> list[dict[str, Any]]:
    """Bind each number of ports at once through two API processes, and delete them."""
    from tests.fabric.plane import running

    with running(hosts=max(8, -(-max(counts) // _PORTS_OF_A_HOST))) as plane:
        _measure_ports(plane, 1, PKEY - 1)  # Neutron's first request of each kind is slow.
        return [_measure_ports(plane, count, PKEY + place) for place, count in enumerate(counts)]


def _measure_ports(plane: Any, count: int, pkey: int) -> dict[str, Any]:
    from tests.fabric.tenants import Tenants

    tenants = Tenants(plane)
    network = tenants.network("red", pkey)
    places = plane.net.ports[:count]
    plane.step_times.unlink(missing_ok=True)
    with ThreadPoolExecutor(_CLIENTS) as pool:
        ports = list(pool.map(lambda at: tenants.port("red", network, api=at % 2), range(count)))
        with _watched(plane) as seen:
            begun = time.perf_counter()
            spent = list(
                pool.map(lambda at: _timed_bind(tenants, ports[at], places[at], at), range(count))
            )
            answered = time.perf_counter() - begun
            while True:
                path = f"/ports?network_id={network}&fields=status"
                states = [one["status"] for one in plane.admin.call("GET", path)[1]["ports"]]
                if states.count("ACTIVE") == count:
                    break
                if time.perf_counter() - begun > 300:
                    raise RuntimeError(f"not ACTIVE after 300 s: {Counter(states)}")
                time.sleep(0.05)
            active = time.perf_counter() - begun
        steps = _read_steps(plane)
        list(pool.map(lambda at: tenants.delete(ports[at], api=at % 2), range(count)))
    deadline = time.monotonic() + 60
    while plane.admin.call("DELETE", f"/networks/{network}")[0] != 204:
        if time.monotonic() > deadline:
            raise RuntimeError("the network cannot be deleted")
        time.sleep(0.2)
    return {
        "ports": count,
        "all_answered_seconds": round(answered, 2),
        "all_active_seconds": round(active, 2),
        "one_answer_median_seconds": round(statistics.median(spent), 2),
        "one_answer_most_seconds": round(max(spent), 2),
        "changes_of_the_file": seen["changes"],
        "sweeps": seen["sweeps"],
        "cpu_seconds": seen["cpu"],
        "driver_seconds": steps,
    }


def _timed_bind(tenants: Any, port: str, place: Any, number: int) -> float:
    begun = time.perf_counter()
    status = tenants.bind(port, place, api=number % 2, timeout=280)
    if status != 200:
        raise RuntimeError(f"a bind was answered {status}")
    return time.perf_counter() - begun


@contextmanager
def _watched(plane: Any) -> Iterator[dict[str, Any]]:
    """CPU seconds of each process, changes of the file, and sweeps during the block."""
    seen: dict[str, Any] = {}
    before = {name: _cpu(plane.pid(name)) for name in _SERVICES}
    sweeps = plane.files.log.read_text().count("SUBNET UP")
    ended = False

    def watch() -> None:
        last = plane.files.partitions.stat().st_ino
        count = 0
        while not ended:
            inode = plane.files.partitions.stat().st_ino
            count += inode != last
            last = inode
            time.sleep(0.002)
        seen["changes"] = count

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            yield seen
        finally:
            ended = True
            watching.result()
    seen["cpu"] = {name: round(_cpu(plane.pid(name)) - before[name], 2) for name in _SERVICES}
    seen["sweeps"] = plane.files.log.read_text().count("SUBNET UP") - sweeps


def _cpu(pid: int) -> float:
    """CPU seconds of a process and of all its child processes."""
    total = 0.0
    for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        times = one.cpu_times()
        total += times.user + times.system
    return total


def _read_steps(plane: Any) -> dict[str, float]:
    """Step of the driver -> seconds of all its calls together."""
    sums: Counter[str] = Counter()
    if plane.step_times.exists():
        for line in plane.step_times.read_text().splitlines():
            name, seconds = json.loads(line)
            sums[name] += seconds
    return {name: round(seconds, 2) for name, seconds in sorted(sums.items())}


def main() -> int:
    """Measure, and print or write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", type=int, nargs="*", default=[1, 64, 1024], metavar="GUIDS")
    parser.add_argument("--ports", type=int, nargs="*", default=[1, 64], metavar="PORTS")
    parser.add_argument("--result", type=Path)
    args = parser.parse_args()
    document: dict[str, Any] = {"cpus": len(os.sched_getaffinity(0))}
    if args.alone:
        document["alone"] = measure_alone(args.alone)
    if args.ports:
        document["neutron"] = measure_ports(args.ports)
    text = json.dumps(document, indent=1)
    print(text)
    if args.result:
        args.result.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
