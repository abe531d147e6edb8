# SPDX-License-Identifier: Apache-2.0
"""Random histories: ports of several networks compete for few GUIDs, and processes are killed.

``python -m tests.fabric.histories --count 500 --seed 1 --result FILE`` starts a control plane of
its own. A history is a few requests at once over two API processes, perhaps with a SIGKILL in
between; then everything has to come to rest with all invariants. Tables are read without pause.
"""

import argparse
import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

from nova_hpc_lab.progress import PlainDisplay
from tests.fabric.matrix import (
    FabricView,
    Sampler,
    bound_ports,
    broken_invariants,
    file_members,
    wait_for_rest,
)
from tests.fabric.plane import running
from tests.fabric.tenants import Tenants, guid_of

KEYS = (0x384, 0x385, 0x386)
PORTS, PLACES = 6, 4
#: Who is killed, and of how many histories in twenty.
KILLS = {"opensm": 3, "fabric-agent": 3, "neutron-2": 1, "neutron-rpc-server": 1}
WISHES = ("bind", "bind", "bind", "unbind", "unbind", "delete")
#: Seconds to come to rest.
REST = 60.0


@attrs.frozen
class Record:
    """One history.

    :ivar wishes: port, wish, place, API process, and the answer.
    :ivar killed: the process that got SIGKILL; "": none.
    :ivar broken: what was not as it has to be after :data:`REST` seconds.
    """

    number: int
    wishes: tuple
    killed: str
    seconds: float
    broken: tuple = ()


class Histories:
    """The ports and networks of all histories on one plane."""

    def __init__(self, plane, view, seed):
        self.plane = plane
        self.view = view
        self.tenants = Tenants(plane)
        self.random = random.Random(seed)
        self.networks = [self.tenants.network("red", key) for key in KEYS]
        self.places = plane.net.ports[3 : 3 + 11 * PLACES : 11]
        self.ports = [self._new_port(number) for number in range(PORTS)]
        allowed = {guid_of(place): set(KEYS) for place in self.places}
        self.sampler = Sampler(plane, allowed)

    def _new_port(self, number):
        return self.tenants.port("red", self.networks[number % len(self.networks)])

    def _perform(self, wish):
        number, what, place, api = wish
        port = self.ports[number]
        if what == "bind":
            return self.tenants.bind(port, self.places[place], api=api)
        if what == "unbind":
            return self.tenants.unbind(port, api=api)
        answer = self.tenants.delete(port, api=api)
        if self.tenants.show(port) is None:
            self.ports[number] = self._new_port(number)
        return answer

    def run_one(self, number):
        """Perform one history, and wait until it has come to rest."""
        chosen = self.random.sample(range(PORTS), self.random.randrange(1, 5))
        wishes = [
            (
                *(port, self.random.choice(WISHES), self.random.randrange(PLACES)),
                self.random.randrange(2),
            )
            for port in chosen
        ]
        lots = [name for name, share in KILLS.items() for _ in range(share)]
        killed = self.random.choice([*lots, *[""] * (20 - len(lots))])
        delay = self.random.random() * 0.8
        begun = time.monotonic()
        with ThreadPoolExecutor(len(wishes)) as pool:
            answers = [pool.submit(self._perform, wish) for wish in wishes]
            if killed:
                time.sleep(delay)
                self.plane.kill(killed)
                self.plane.free_places()
                self.plane.start(killed)
        told = tuple((*wish, one.result()) for wish, one in zip(wishes, answers, strict=True))
        broken = ()
        try:
            wait_for_rest(self.plane, self.view, REST)
        except AssertionError:
            broken = tuple(broken_invariants(self.plane, self.view))
        return Record(number, told, killed, time.monotonic() - begun, broken)

    def close(self):
        """Delete everything; what is left in the file, and what was read wrong."""
        wrong = self.sampler.end()
        for port in self.ports:
            self.tenants.delete(port)
        deadline = time.monotonic() + REST
        while file_members(self.plane) and time.monotonic() < deadline:
            time.sleep(0.1)
        for network in self.networks:
            self.plane.admin.call("DELETE", f"/networks/{network}")
        return file_members(self.plane), wrong


def summarize(records, left, wrong, rounds, seed):
    """The result as a document."""
    kills = [record.killed for record in records if record.killed]
    seconds = sorted(record.seconds for record in records)
    answers = [answer for record in records for *_, answer in record.wishes]
    return {
        "histories": len(records),
        "seed": seed,
        "killed": {name: kills.count(name) for name in KILLS},
        "requests": len(answers),
        "answers": {str(one): answers.count(one) for one in sorted(set(answers), key=str)},
        "not_at_rest": [attrs.asdict(record) for record in records if record.broken],
        "rounds_of_reading": rounds,
        "wrong_tables": wrong[:20],
        "wrong_count": len(wrong),
        "left_in_the_file": sorted(left),
        "seconds": {
            "sum": round(sum(seconds), 1),
            "median": round(seconds[len(seconds) // 2], 2),
            "most": round(seconds[-1], 2),
        },
    }


def run_histories(plane, view, count, seed, tell=None):
    """Run so many histories; the result as a document."""
    found = Histories(plane, view, seed)
    records = []
    try:
        for number in range(count):
            records.append(found.run_one(number))
            if tell is not None:
                tell(records)
            # What is not at rest would be counted against the next ones.
            if records[-1].broken:
                break
    finally:
        left, wrong = found.close()
    assert not bound_ports(plane)
    return summarize(records, left, wrong, found.sampler.rounds, seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--result", type=Path)
    args = parser.parse_args()
    begun = time.monotonic()

    def tell(records):
        if len(records) % 10 == 0 or records[-1].broken:
            kills = sum(1 for record in records if record.killed)
            print(
                f"{time.monotonic() - begun:7.0f} s  {len(records)} of {args.count} histories,"
                f" {kills} with a kill, not at rest: {sum(bool(one.broken) for one in records)}",
                flush=True,
            )

    with running(PlainDisplay(sys.stderr)) as plane:
        view = FabricView(plane)
        document = run_histories(plane, view, args.count, args.seed, tell)
        view.close()
    text = json.dumps(document, indent=1)
    print(text)
    if args.result:
        args.result.write_text(text + "\n")
    good = not (document["not_at_rest"] or document["wrong_count"] or document["left_in_the_file"])
    return 0 if good and document["histories"] == args.count else 1


if __name__ == "__main__":
    sys.exit(main())
