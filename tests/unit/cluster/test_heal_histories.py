# SPDX-License-Identifier: Apache-2.0
"""Histories of healers over a cloud in memory: members fail, jobs run, healers die at any request.

Slurm is two sets here: between any two requests a job may start on a node that is not drained.
``HEAL_HISTORIES`` gives the number of histories, ``HEAL_SEED`` the first one.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import attrs
import pytest

from nova_hpc_client.cluster.life_cycle import commands, healing
from nova_hpc_client.cluster.life_cycle import run as life_cycle_run
from nova_hpc_client.cluster.life_cycle.commands import Nearness
from nova_hpc_client.cluster.life_cycle.healer import Healer, HealTools
from nova_hpc_client.cluster.life_cycle.healing import HealTerms
from nova_hpc_client.cluster.life_cycle.run import ClusterError, Pace
from nova_hpc_client.cluster.members.model import ClusterMember
from nova_hpc_client.cluster.wish import Secrets
from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.cluster_wish import ClusterWish, Nic
from nova_hpc_common.wire.server_faults import FaultWord
from nova_hpc_guest.host_list import HEAD
from tests.unit.cluster.model_cloud import Killed, ModelCloud

DATE = 1_800_000_000.0
#: Words for which a member is replaced, without the code under test.
REPLACED = {f"hpc-fault={word}" for word in ("gone", "errors", "link", "port")}
WORDS = [FaultWord.GONE, FaultWord.ERRORS, FaultWord.LINK, FaultWord.PORT, FaultWord.FIRMWARE]
PORTS = (Nic("net", "normal"), Nic("fabric", "direct"))
#: Changes of the cloud in each history.
EVENTS = 6


def ill(server: dict[str, Any]) -> bool:
    return server["status"] == "ERROR" or bool(REPLACED & set(server["tags"]))


class World(ModelCloud):
    """The cloud, and a Slurm whose nodes are the members.

    :ivar wrong: violations: the sentences of what must never be.
    :ivar made: names of the servers that were created, in order.
    """

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.drained: set[str] = set()
        self.jobs: set[str] = set()
        self.never: set[str] = set()
        self.wrong: list[str] = []
        self.made: list[str] = []
        self.forced = False
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.work()

    def named(self) -> dict[str, dict[str, Any]]:
        return {server["name"]: server for server in self.servers.values()}

    def _change(self, what: str, effect: Any) -> Any:
        self.work()
        return super()._change(what, effect)

    def work(self) -> None:
        """A job starts, or ends."""
        if self.chance.random() > 0.2:
            return
        servers = {n: s for n, s in self.named().items() if s["status"] == "ACTIVE"}
        name = self.chance.choice(sorted(servers) or [""])
        if name in self.jobs:
            self.jobs.discard(name)
        elif name and name != "k-head" and name not in self.drained:
            if servers[name]["id"] in self.never:
                self.wrong.append(f"a job starts on {name}, which was drained and is faulty")
            self.jobs.add(name)

    def _make_server(self, server: Any, name: str, ports: Any) -> str:
        self.made.append(name)
        return super()._make_server(server, name, ports)

    def delete_server(self, server: str) -> None:
        record = self.servers.get(server)
        if record is not None and not self._dead:
            name = record["name"]
            if not ill(record):
                self.wrong.append(f"{name} is deleted, which is well")
            if name in self.jobs and not self.forced and record["status"] != "ERROR":
                self.wrong.append(f"{name} is deleted, which has a job")
        super().delete_server(server)

    def tick(self) -> None:
        super().tick()
        self.jobs &= self.named().keys()

    # -- Slurm's programs ----------------------------------------------------------

    def drain(self, member: ClusterMember) -> bool:
        self.work()
        before = member.name in self.jobs
        self.drained.add(member.name)
        self.never.add(member.id)
        return not before and member.name not in self.jobs

    def undrain(self, member: ClusterMember) -> bool:
        self.work()
        server = self.named().get(member.name)
        if server is None or server["status"] != "ACTIVE" or ill(server):
            self.wrong.append(f"{member.name} takes jobs, although it is faulty or gone: {server}")
        self.drained.discard(member.name)
        return True


@attrs.define
class History:
    chance: random.Random
    world: World
    log: list[str] = attrs.Factory(list)
    ends: Counter[str] = attrs.Factory(Counter)
    replaced: int = 0

    def begin(self) -> None:
        chance = self.chance
        size = chance.choice((1, 2, 3, 4, 5, 6))
        head = {"head": "9", "head_image": "img"} if chance.random() < 0.3 else {}
        wish = ClusterWish(
            "k",
            frozenset(range(1, size + 1)),
            "42",
            image="img",
            nics=PORTS if chance.random() < 0.6 else (),
            hosts=chance.random() < 0.5,
            **head,
        )
        pace = Pace(limit=0.0, sleep=self.world.sleep, clock=lambda: self.world.now)
        commands.create_cluster(self.world, wish, Secrets(), Nearness(), "a77e", pace)
        self.log.append(str(wish))

    def harm(self) -> None:
        chance, world = self.chance, self.world
        servers = list(world.servers.values())
        for server in servers:
            if chance.random() < 0.3 and any(tag in REPLACED for tag in server["tags"]):
                server["tags"] = [t for t in server["tags"] if not t.startswith("hpc-fault=")]
                world.never.discard(server["id"])
                self.log.append(f"{server['name']} is well again")
        count = chance.choice((0, 1, 1, 1, 1, 2, 2, len(servers)))
        for server in chance.sample(servers, min(count, len(servers))):
            word = chance.choice(WORDS)
            server["tags"] = [*server["tags"], word.tag]
            self.log.append(f"{server['name']} {word.value}")
        if chance.random() < 0.2:
            server = chance.choice(servers)
            server |= {"status": "ERROR", "fault": {"message": "it broke"}}
            self.log.append(f"{server['name']} fails")
        # Now and then its host takes no server for a while.
        world.fates = ["No valid host"] * chance.choice((0, 0, 0, 0, 1, 2))

    def choose(self) -> HealTerms:
        chance, names = self.chance, {}
        if chance.random() < 0.25:
            known = [self.number_of(name) for name in self.world.named()]
            names = {"named": frozenset(chance.sample(known, chance.randint(1, len(known))))}
        drains = chance.random() < 0.8
        return HealTerms(
            "first",
            10.0,
            most_per_hour=chance.choice((1, 4, 30)),
            at_once=chance.randint(1, 3),
            drains=drains,
            undrains=drains,
            force=chance.random() < 0.4,
            **names,
        )

    @staticmethod
    def number_of(name: str) -> int:
        return HEAD if name == "k-head" else int(name.removeprefix("k-"))

    def heal(self, terms: HealTerms) -> tuple[bool, list[str]]:
        world, lines = self.world, list[str]()
        world.forced = terms.force
        tools = HealTools(
            drain=world.drain,
            undrain=world.undrain,
            check=lambda cluster, numbers, freed: None,
            count_endings=lambda server: 0,
            settle=lambda cluster, numbers: None,
            tell=lines.append,
            date=lambda: DATE + world.now,
        )
        (group,) = world.groups
        pace = Pace(limit=2000.0, sleep=world.sleep, clock=lambda: world.now)
        try:
            well = Healer(world, group, terms, tools, Secrets(), pace).heal(watch=False)
        except ClusterError as error:
            well, lines = False, [*lines, f"error: {error}"]
        finally:
            self.log.append(f"  {terms.healer}: {'; '.join(lines)}")
        return well, lines

    def run(self) -> None:
        """One fault or some, a healer that dies, and the healers that come after it."""
        world, chance = self.world, self.chance
        self.harm()
        world.made.clear()
        before = {id: server["name"] for id, server in world.servers.items()}
        sick = {id: name for id, name in before.items() if ill(world.servers[id])}
        ports = self.ports()
        failures = len(world.fates)
        terms = self.choose()
        self.log.append(f"drained {world.drained}, jobs {world.jobs}, {terms}")
        count = len(self.record().healed)
        world.calls = 0
        kinds = ("kill", "kill-after") * 2 + ("lose", "lose-after")
        world.faults = {
            chance.randint(1, 12): chance.choice(kinds) for _ in range(chance.choice((0, 1, 1, 2)))
        }
        self.log.append(f"faults {world.faults}, fates {world.fates}")
        try:
            self.heal(terms)
            self.ends["lost" if min(world.faults, default=99) <= world.calls else "whole"] += 1
        except Killed:
            self.ends["killed"] += 1
        runs = 1
        for _ in range(6):
            world.revive()
            world.fates = []
            world.tick()
            _, lines = self.heal(attrs.evolve(terms, healer=f"next{runs}"))
            runs += 1
            (cluster,) = world.clusters()
            if cluster.state.value in ("ACTIVE", "ERROR"):
                break
            # Its owner does as the healer says.
            assert "openstack hpc cluster create --resume" in lines[-1], lines
            pace = Pace(limit=0.0, sleep=world.sleep, clock=lambda: world.now)
            commands.resume_cluster(world, cluster, None, Secrets(), pace)
        self.judge(before, sick, ports, terms, count, runs, failures)

    def record(self) -> ClusterWish:
        """The newest record of a server, which counts: a dead healer may leave older copies."""
        servers = self.world.servers.values()
        records = [cluster_wish.from_metadata(server["metadata"]) for server in servers]
        return max(records, key=lambda record: record.order)

    def ports(self) -> dict[str, set[str]]:
        return {
            server["name"]: {
                port["id"] for port in self.world.ports.values() if port["device_id"] == id
            }
            for id, server in self.world.servers.items()
        }

    def judge(
        self,
        before: dict[str, str],
        sick: dict[str, str],
        ports: dict[str, set[str]],
        terms: HealTerms,
        count: int,
        runs: int,
        failures: int,
    ) -> None:
        """Look at every object."""
        world = self.world
        assert world.wrong == []
        names = [server["name"] for server in world.servers.values()]
        assert sorted(names) == sorted(before.values())
        assert {server["OS-EXT-STS:task_state"] for server in world.servers.values()} == {None}
        (group,) = world.groups.values()
        members = [id for id, server in world.servers.items() if server["name"] != "k-head"]
        assert sorted(group["members"]) == sorted(members)
        assert self.ports() == ports
        assert {port["device_id"] for port in world.ports.values()} <= world.servers.keys()
        # Only what was faulty is another server, and once; a build that failed is made again.
        made = Counter(world.made)
        assert made.keys() <= set(sick.values()), made
        assert all(number <= 1 + failures for number in made.values()), made
        assert failures or max(made.values(), default=0) <= 1, made
        gone = {name for id, name in sick.items() if id not in world.servers}
        assert gone == made.keys()
        self.replaced += len(gone)
        record = self.record()
        assert record.turn == ""
        fresh = [at for at in record.healed if at > DATE + world.now - healing.HOUR]
        most = terms.most_per_hour
        left = {server["name"] for server in world.servers.values() if ill(server)}
        if terms.undrains:
            scope = {name for name in names if self.number_of(name) in terms.named} or {
                name for name in names if name != "k-head"
            }
            assert world.drained & scope <= left
            stay = left & scope
            if not terms.force:
                stay -= world.jobs | world.drained
            several = len(members) > 1
            failed = {s["name"] for s in world.servers.values() if s["status"] == "ERROR"}
            # A failed head cannot keep the record while the only member is replaced.
            lone = bool(terms.named) and not several and "k-head" not in failed
            few = 2 * len(left - {"k-head"}) <= len(members)
            if (few if several else lone) and len(fresh) < most:
                assert stay == set()


def test_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_cycle_run, "IN_FLIGHT", 1)
    number = int(os.environ.get("HEAL_HISTORIES", "20"))
    seed = int(os.environ.get("HEAL_SEED", "1"))
    ends: Counter[str] = Counter()
    replaced = 0
    for at in range(seed, seed + number):
        chance = random.Random(at)
        history = History(chance, World(chance), [f"seed {at}"])
        try:
            history.begin()
            for _ in range(EVENTS):
                history.run()
        except BaseException:
            print("\n".join(history.log))
            raise
        ends += history.ends
        replaced += history.replaced
    assert replaced > number
    print(f"RESULT: {number} histories from seed {seed}: {replaced} replaced, {dict(ends)}")
