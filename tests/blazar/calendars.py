# SPDX-License-Identifier: Apache-2.0
"""Random calendars of leases, and brute force that judges each answer.

``python -m tests.blazar.calendars 1000`` prints the numbers of our plug-in and of Blazar's own, on
the same calendars. Brute force visits every hour of every host and knows nothing of the plug-in.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import re
import sys
from collections import Counter
from typing import Any, Final

import attrs
from blazar import exceptions as common_exceptions
from blazar.db import api as db_api
from blazar.manager import exceptions

from tests.blazar.blazar_world import (
    NOON,
    OURS,
    STOCK,
    BlazarWorld,
    open_world,
    text_at,
)

#: Hours after the beginning that the brute force visits.
_HOURS: Final = range(-6, 60)
#: Calendars of one printed line.
_PART: Final = 10
_VFS: Final = 8
_PCPUS: Final = 128
#: Flavor -> what one member needs, and the level of its cluster.
_FLAVORS: Final[dict[str, tuple[dict[str, int], str]]] = {
    "g8": ({"gpu": 8, "pcpu": 16}, "leaf"),
    "g4": ({"gpu": 4, "vf": 4, "pcpu": 16}, "leaf"),
    "g3": ({"gpu": 3, "pcpu": 16}, "leaf"),
    "v2": ({"vf": 2, "pcpu": 32}, "leaf"),
    "b8": ({"gpu": 8, "pcpu": 16}, "block"),
    "c1": ({"pcpu": 48}, "any"),
}
#: The refusals after which Blazar keeps a lease as it was.
_REFUSALS: Final = (
    common_exceptions.InvalidInput,
    exceptions.CantUpdateParameter,
    exceptions.MalformedParameter,
    exceptions.NotEnoughHostsAvailable,
)


@attrs.define
class Tally:
    """What happened in calendars.

    :ivar overbooked: calendars in which a host had more members than devices at one instant.
    :ivar split: leases whose members were in several domains of their level.
    :ivar wrongly_refused: leases that were refused although brute force found hosts.
    :ivar begins: later begins that refusals named.
    :ivar wrong_begins: refusals whose begin is not the earliest one of brute force.
    """

    calendars: int = 0
    overbooked: int = 0
    leases: int = 0
    split: int = 0
    refused: int = 0
    wrongly_refused: int = 0
    begins: int = 0
    wrong_begins: int = 0
    moved_while_running: int = 0
    updates: int = 0
    updates_refused: int = 0
    started: int = 0
    faults: Counter[str] = attrs.Factory(Counter)


class Calendar:
    """One random calendar, played to Blazar's manager."""

    def __init__(self, world: BlazarWorld, seed: int, tally: Tally) -> None:
        self.world, self.tally = world, tally
        self.random = random.Random(seed)
        self.ours = world.resource_type == OURS
        self.hour = 0.0
        self.flavor_of: dict[str, str] = {}
        self.overbooked = False
        #: Lease that runs -> its hosts.
        self.running: dict[str, Counter[str]] = {}
        self.block_of: dict[str, str] = {}
        self._build()

    def _build(self) -> None:
        leaves = self.random.randint(2, 4)
        for number in range(leaves):
            hosts = {
                f"n{number}{letter}": self.random.choice((4, 8, 8, 8))
                for letter in "abc"[: self.random.randint(1, 3)]
            }
            block = f"b{number // 2}"
            self.world.add_leaf(f"l{number}", block, hosts)
            self.block_of |= dict.fromkeys(hosts, block)
        for name, (needs, level) in _FLAVORS.items():
            specs = {"hw:cpu_policy": "dedicated"}
            alias = ",".join(f"{key}:{needs[key]}" for key in ("gpu", "vf") if key in needs)
            if alias:
                specs["pci_passthrough:alias"] = alias
            if level != "any":
                specs["hpc:fabric"] = level
            self.world.cloud.add_flavor(name, needs["pcpu"], 1024, **specs)

    # -- brute force -------------------------------------------------------------------------

    def _held(self, without: str | None = None) -> list[tuple[float, float, str, Counter[str]]]:
        """List begin and end in hours, flavor and hosts of all leases."""
        held = []
        for lease, flavor in self.flavor_of.items():
            record = db_api.lease_get(lease)
            if record is None or lease == without:
                continue
            begin, end = (
                (record[key] - NOON).total_seconds() / 3600 for key in ("start_date", "end_date")
            )
            if record["reservations"][0]["status"] == "active":
                begin = float(_HOURS[0])
            held.append((begin, end, flavor, self.world.placed(lease)))
        return held

    def _used(self, held: list[Any], host: str, resource: str, hour: float) -> int:
        return sum(
            hosts[host] * _FLAVORS[flavor][0].get(resource, 0)
            for begin, end, flavor, hosts in held
            if begin <= hour < end
        )

    def _capacity(self, host: str, resource: str) -> int:
        return {"gpu": self.world.gpus[host], "vf": _VFS, "pcpu": _PCPUS}[resource]

    def _domain(self, host: str, level: str) -> str:
        return {"leaf": self.world.leaf_of[host], "block": self.block_of[host], "any": ""}[level]

    def room(
        self, flavor: str, begin: float, end: float, without: str | None = None
    ) -> Counter[str]:
        """Count the members that fit on each host, hour by hour."""
        held = self._held(without)
        hours = [hour for hour in _HOURS if begin <= hour < end]
        return Counter(
            {
                host: min(
                    (self._capacity(host, resource) - self._used(held, host, resource, hour))
                    // need
                    for hour in hours
                    for resource, need in _FLAVORS[flavor][0].items()
                )
                for host in self.world.gpus
            }
        )

    def fits(
        self, flavor: str, amount: int, begin: float, end: float, without: str | None = None
    ) -> bool:
        """Whether any domain has room for a whole cluster."""
        level = _FLAVORS[flavor][1]
        in_domain: Counter[str] = Counter()
        for host, count in self.room(flavor, begin, end, without).items():
            in_domain[self._domain(host, level)] += max(0, count)
        return max(in_domain.values()) >= amount

    def check(self) -> None:
        """Check all hosts at all hours, and all leases."""
        held = self._held()
        for host in self.world.gpus:
            for resource in ("gpu", "vf", "pcpu"):
                most = max(self._used(held, host, resource, hour) for hour in _HOURS)
                self.overbooked |= most > self._capacity(host, resource)
        for lease in list(self.flavor_of):
            record = db_api.lease_get(lease)
            if record is None:
                del self.flavor_of[lease]
                self.running.pop(lease, None)
                continue
            reservation, placed = record["reservations"][0], self.world.placed(lease)
            if reservation["status"] == "deleted":
                self.running.pop(lease, None)
            elif self.ours and sum(placed.values()) != reservation["amount"]:
                self.tally.faults["members are missing"] += 1
            if reservation["status"] == "active":
                if self.running.setdefault(lease, placed) != placed:
                    self.tally.moved_while_running += 1
                if self.ours and self.world.started(lease) != placed:
                    self.tally.faults["not started as planned"] += 1

    def _is_split(self, lease: str) -> bool:
        level = _FLAVORS[self.flavor_of[lease]][1]
        return len({self._domain(host, level) for host in self.world.placed(lease)}) > 1

    # -- what happens ------------------------------------------------------------------------

    def create(self) -> None:
        flavor = self.random.choice(list(_FLAVORS))
        amount = self.random.choice((1, 1, 2, 2, 3, 4, 6, 8))
        begin = int(self.hour) + self.random.choice((-2, 1, 1, 2, 3, 5, 8, 12))
        end = begin + self.random.choice((-1, 1, 2, 2, 4, 6, 9))
        possible = end > begin > self.hour
        fits = possible and self.fits(flavor, amount, begin, end)
        try:
            lease = self.world.lease(begin, end, amount, flavor)
        except Exception as error:
            self._expect(error, _REFUSALS)
            if possible:
                self.tally.refused += 1
                self.tally.wrongly_refused += fits
                if self.ours and isinstance(error, exceptions.NotEnoughHostsAvailable):
                    self._check_begin(str(error), flavor, amount, begin, end)
            return
        self.flavor_of[lease] = flavor
        self.tally.leases += 1
        self.tally.split += self._is_split(lease)
        if not possible:
            self.tally.faults["a lease of the past"] += 1

    def _check_begin(self, text: str, flavor: str, amount: int, begin: int, end: int) -> None:
        """Compare the begin that a refusal names with that of brute force, hour by hour."""
        latest = range(begin, _HOURS[-1] - (end - begin))
        first = [h for h in latest if self.fits(flavor, amount, h, h + end - begin)][:1]
        named = re.search(r"lease them from (\S+ \S+) to (\S+ \S+), ", text)
        self.tally.begins += named is not None
        times = [text_at(hour) for hour in (first[0], first[0] + end - begin)] if first else []
        self.tally.wrong_begins += times != list(named.groups() if named else ())

    def _expect(self, error: Exception, kinds: tuple[type[Exception], ...]) -> None:
        # Blazar restores a lease only after errors of exactly these types.
        if type(error) not in kinds:
            self.tally.faults[f"{type(error).__name__}: {error}"[:120]] += 1

    def update(self) -> None:
        if not self.flavor_of:
            return
        lease = self.random.choice(list(self.flavor_of))
        before, placed = self.world.show(lease), self.world.placed(lease)
        begin, end = (
            (before[key] - NOON).total_seconds() / 3600 for key in ("start_date", "end_date")
        )
        values: dict[str, Any] = {}
        kind = self.random.choice(("move", "end", "end", "amount"))
        amount = before["reservations"][0]["amount"]
        if kind == "move":
            shift = self.random.choice((-3, -1, 1, 4))
            begin, end = begin + shift, end + shift
            values["start_date"] = text_at(begin)
        if kind == "amount":
            amount = values["amount"] = self.random.choice((1, 2, 3, 5))
        else:
            end = end + self.random.choice((-2, -1, 1, 3)) if kind == "end" else end
            values["end_date"] = text_at(end)
        status = before["reservations"][0]["status"]
        flavor = self.flavor_of[lease]
        fits = end > begin and self.fits(flavor, amount, begin, end, lease)
        own_room = self.room(flavor, begin, end, lease) if end > begin else Counter()
        self.tally.updates += 1
        try:
            self.world.update(lease, **values)
        except Exception as error:
            self.tally.updates_refused += 1
            self._expect(error, _REFUSALS)
            if isinstance(error, exceptions.NotEnoughHostsAvailable):
                if status == "active":
                    fits = all(own_room[host] >= count for host, count in placed.items())
                self.tally.wrongly_refused += fits
            after = self.world.show(lease)
            kept = all(after[key] == before[key] for key in ("start_date", "end_date", "status"))
            if self.ours and (not kept or self.world.placed(lease) != placed):
                self.tally.faults["a refusal changed the lease"] += 1
            return
        self.tally.split += self._is_split(lease)

    def delete(self) -> None:
        if self.flavor_of:
            try:
                self.world.delete(self.random.choice(list(self.flavor_of)))
            except Exception as error:
                self._expect(error, ())

    def pass_time(self, hours: float) -> None:
        self.hour += hours
        self.world.set_clock(self.hour)
        self.world.run_events()
        for lease in self.flavor_of:
            record = db_api.lease_get(lease)
            if record is not None and record["status"] == "ACTIVE" and lease not in self.running:
                self.tally.started += 1
                own = record["reservations"][0]["id"]
                for number in range(record["reservations"][0]["amount"]):
                    self.world.cloud.servers[f"{own}-{number}"] = own

    def lose_server(self) -> None:
        servers = sorted(self.world.cloud.servers)
        if servers:
            del self.world.cloud.servers[self.random.choice(servers)]

    def play(self, steps: int) -> None:
        """Play so many random events, then let all leases end."""
        self.world.set_clock(self.hour)
        for _ in range(steps):
            step = self.random.random()
            if step < 0.5:
                self.create()
            elif step < 0.68:
                self.update()
            elif step < 0.74:
                self.delete()
            elif step < 0.92:
                self.pass_time(self.random.choice((0.25, 1, 1, 2, 5)))
            elif step < 0.96:
                # A clock is set back.
                self.pass_time(-self.random.choice((0.5, 2)))
            else:
                self.lose_server()
            self.check()
        self.pass_time(60 - self.hour)
        self.check()
        if self.ours:
            self._check_end()
        self.tally.calendars += 1
        self.tally.overbooked += self.overbooked

    def _check_end(self) -> None:
        cloud = self.world.cloud
        left = [
            *db_api.host_allocation_get_all_by_values(),
            *cloud.classes,
            *cloud.servers,
            *(each for each in cloud.aggregates.values() if "reservation" in each["metadata"]),
            *(name for name in cloud.flavors if name not in _FLAVORS),
        ]
        if left:
            self.tally.faults["something is left"] += 1


def play_calendars(first: int, count: int, ours: bool, steps: int = 14) -> Tally:
    """Play calendars with our plug-in, or with Blazar's own for flavors."""
    plugin, resource_type = ("hpc.cluster", OURS) if ours else ("flavor.instance.plugin", STOCK)
    tally = Tally()
    for seed in range(first, first + count):
        with open_world(plugin, resource_type) as world:
            Calendar(world, seed, tally).play(steps)
    return tally


def main() -> int:
    """Print the numbers of both plug-ins on the same calendars."""
    parser = argparse.ArgumentParser(description="Play random calendars of leases.")
    parser.add_argument("count", type=int)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", choices=("ours", "stock"))
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for first in range(args.first, args.first + args.count, _PART):
        count = min(_PART, args.first + args.count - first)
        for word in ("ours", "stock"):
            if args.only in (None, word):
                tally = play_calendars(first, count, word == "ours")
                line = {"plug-in": word, "first": first} | attrs.asdict(tally)
                print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
