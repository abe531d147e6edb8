# SPDX-License-Identifier: Apache-2.0
"""Histories of healers: members fail, jobs start and end, and healers die at random requests.

Slurm is two folders here: a job starts on each node that is not drained, between any two requests.
In the end, each object of the cloud belongs to the whole cluster, and:

- only faulty members are other servers, each one once, with the ports of the old ones;
- no healer has ended a job without ``--force``, and a drained server never takes a job again;
- no claim is left, and each node without a fault takes jobs.

``CLUSTER_HISTORIES`` gives the number of histories, ``CLUSTER_SEED`` the first one.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

import pytest
from nova import context as nova_context
from nova import objects

from nova_hpc_common.wire import cluster_wish
from nova_hpc_common.wire.server_faults import FaultWord
from tests.functional import test_cluster_histories as histories
from tests.functional.cluster_client import base

#: Words for which a member is replaced, without the code under test.
REPLACED = {"hpc-fault=gone", "hpc-fault=errors", "hpc-fault=link", "hpc-fault=port"}
TAGS = [FaultWord.GONE, FaultWord.ERRORS, FaultWord.LINK, FaultWord.PORT, FaultWord.FIRMWARE]
MOST = "30"
SOON = ("--interval", "0.2", "--most-per-hour", MOST)


class HealHistoryTest(histories.ClusterHistoryTest):
    HOSTS = 4

    def setUp(self) -> None:
        super().setUp()
        self.front.watch = self.watch
        self.lock = threading.Lock()
        self.slurm = self._folder / "slurm"
        for name in ("drained", "jobs"):
            (self.slurm / name).mkdir(parents=True)
        self.journal = self.slurm / "journal"
        self.drain = self.program(
            "drain", f"touch {self.slurm}/drained/$1; echo drain $1 >>{self.journal}; "
            f"[ ! -e {self.slurm}/jobs/$1 ]"
        )  # fmt: skip
        self.undrain = self.program(
            "undrain", f"rm -f {self.slurm}/drained/$1; echo undrain $1 >>{self.journal}"
        )
        #: Ids of servers that were drained, and have been ill since.
        self.never: set[str] = set()
        self.wrong: list[str] = []
        self.verb, self.forced, self.calm = "", False, True
        self.journal_read = self.runs = 0

    # -- Slurm -----------------------------------------------------------------------

    def named(self, folder: str) -> set[str]:
        """Names of the nodes that are drained, or have jobs."""
        return {path.name for path in (self.slurm / folder).iterdir()}

    def watch(self, method: str, path: str) -> None:
        """Called before each request of a client."""
        with self.lock:
            self.read_journal()
            match = re.fullmatch(r"/v2\.1/servers/([0-9a-f-]{36})", path)
            if method == "DELETE" and match:
                self.judge_deletion(match[1])
            if not self.calm and self.luck.random() < 0.15:
                self.start_or_end_job()

    def read_journal(self) -> None:
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        new, self.journal_read = lines[self.journal_read :], len(lines)
        servers = {each["name"]: each for each in self.servers()} if new else {}
        for verb, name in map(str.split, new):
            server = servers.get(name)
            if verb == "drain" and server is not None:
                self.never.add(server["id"])
            elif verb == "undrain" and (server is None or server["status"] != "ACTIVE"):
                self.wrong.append(f"undrain {name}, which does not run: {server}")
            elif verb == "undrain" and self.ill(server):
                self.wrong.append(f"undrain {name}, which is faulty")

    def start_or_end_job(self) -> None:
        servers = {each["name"]: each for each in self.servers() if each["status"] == "ACTIVE"}
        name = self.luck.choice(sorted(servers) or [""])
        job = self.slurm / "jobs" / name
        if not name or name == "k-head":
            return
        if job.exists():
            job.unlink()
            return
        job.touch()
        if name in self.named("drained"):
            job.unlink()
        elif servers[name]["id"] in self.never:
            self.wrong.append(f"a job starts on {name}, which is faulty and was drained")

    def judge_deletion(self, id: str) -> None:
        server = next((each for each in self.servers() if each["id"] == id), None)
        if server is None or self.verb not in ("heal", "create"):
            return
        name = server["name"]
        if not self.ill(server):
            self.wrong.append(f"{self.verb} deletes {name}, which is well")
        if not self.forced and name in self.named("jobs") and server["status"] != "ERROR":
            self.wrong.append(f"{self.verb} deletes {name}, which has a job")

    @staticmethod
    def ill(server: dict[str, Any]) -> bool:
        return server["status"] == "ERROR" or bool(REPLACED & set(server["tags"]))

    # -- the truth -------------------------------------------------------------------

    def every_server(self) -> dict[str, str]:
        """Id of each server that there is or was -> its name."""
        gone = self.admin_api.get_servers(search_opts={"all_tenants": 1, "deleted": True})
        return {each["id"]: each["name"] for each in (*gone, *self.servers())}

    def ports(self) -> dict[str, set[str]]:
        """Name of a server -> ids of the ports that the client has made for it."""
        names = {each["id"]: each["name"] for each in self.servers()}
        found: dict[str, set[str]] = {name: set() for name in names.values()}
        for port in self.made_ports():
            if port.get("description"):
                found[names[port["device_id"]]].add(port["id"])
        return found

    def wish(self) -> cluster_wish.ClusterWish:
        """The newest record of a server, which counts: a dead healer may leave older copies."""
        records = [cluster_wish.from_metadata(each["metadata"]) for each in self.servers()]
        return max(records, key=lambda record: record.order)

    def assert_allocations(self) -> None:
        """Placement knows exactly the servers, each once."""
        holders: Counter[str] = Counter()
        for provider in self._get_all_providers():
            holders.update(self._get_allocations_by_provider_uuid(provider["uuid"]).keys())
        self.assertEqual({each["id"]: 1 for each in self.servers()}, dict(holders))

    # -- histories -------------------------------------------------------------------

    def new_cluster(self) -> None:
        self.kind = self.chance.choice(histories.KINDS)
        size = str(self.chance.randint(1, 5))
        self.call("create", "k", "--members", size, "--flavor", "one", "--image", base.IMAGE,
                  *self.kind, status=0)  # fmt: skip

    def call(self, verb: str, *words: str, status: int | None = None) -> base.Said:
        self.verb, self.forced = verb, "--force" in words
        self.runs += 1
        said = self.openstack("hpc", "cluster", verb, *words)
        if status is not None:
            self.assertEqual(status, said.status, said.err)
        return said

    def harm(self, log: list[str]) -> None:
        """Faults come and go; jobs run on some members."""
        admin, chance = nova_context.get_admin_context(), self.chance
        servers = self.servers()
        for server in servers:
            for tag in server["tags"]:
                if tag.startswith("hpc-fault=") and chance.random() < 0.4:
                    objects.Tag.destroy(admin, server["id"], tag)
                    self.never.discard(server["id"])
                    log.append(f"{server['name']} is well again")
        count = chance.choice((0, 1, 1, 1, 1, 2, 2, len(servers)))
        for server in chance.sample(servers, min(count, len(servers))):
            word = chance.choice(TAGS)
            if word.tag not in server["tags"]:
                objects.Tag(context=admin, resource_id=server["id"], tag=word.tag).create()
            log.append(f"{server['name']} {word.value}")
        if chance.random() < 0.2:
            server = chance.choice(servers)
            self.admin_api.post_server_action(server["id"], {"os-resetState": {"state": "error"}})
            log.append(f"{server['name']} fails")
        for server in servers:
            job = self.slurm / "jobs" / server["name"]
            if server["id"] not in self.never and chance.random() < 0.3:
                if server["name"] not in self.named("drained"):
                    job.touch()
            elif chance.random() < 0.5:
                job.unlink(missing_ok=True)

    def choose_heal(self) -> tuple[str, ...]:
        chance = self.chance
        words = ["k", *SOON, "--at-once", str(chance.randint(1, 3))]
        if chance.random() < 0.2:
            names = sorted(each["name"] for each in self.servers())
            words[1:1] = chance.sample(names, chance.randint(1, len(names)))
        how = chance.random()
        if how < 0.35:
            words.append("--force")
        if how > 0.1:
            words += ["--drain", self.drain, "--undrain", self.undrain]
        return tuple(words)

    def disturb(self, words: tuple[str, ...]) -> str:
        """Run a healer that dies, or loses answers, or beside which another one works."""
        chance = self.chance
        how = chance.random()
        self.front.arm()
        if how < 0.1:
            self.call("heal", *words)
            return "undisturbed"
        if how < 0.25:
            self.front.lose = {chance.randint(1, 30) for _ in range(chance.randint(1, 3))}
            self.call("heal", *words)
            self.front.arm()
            return "lost answers"
        other = self.start_other(words) if how < 0.35 else None
        kill = self._kill

        def kill_once() -> None:
            with contextlib.suppress(ProcessLookupError):
                kill()

        self.front.arm(chance.randint(2, 24), chance.random() < 0.5, chance.random() < 0.5)
        self.front.kill = kill_once
        said = self.call("heal", *words)
        self.front.kill_at = 0
        if other is not None:
            other.terminate()
            other.wait(120)
        end = "killed" if said.status < 0 else "not killed"
        return f"{end} beside another" if other is not None else end

    def start_other(self, words: tuple[str, ...]) -> subprocess.Popen[bytes]:
        """A healer in a process of its own, that has begun to look."""
        command = [sys.executable, "-m", "openstackclient.shell", "hpc", "cluster", "heal"]
        self.runs += 1
        process = subprocess.Popen(
            [*command, *words, "--watch"],
            env=self.own_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while not self.front.requests:
            self.assertIsNone(process.poll())
            time.sleep(0.1)
        return process

    def heal_on(self, words: tuple[str, ...], log: list[str]) -> None:
        """The owner does as the list says, or starts the healer again, until the cluster rests."""
        for _ in range(12):
            self.wait_until_calm()
            row = self.row()
            assert row is not None
            if row["State"] in histories.RESTS:
                break
            commands = re.findall(r"openstack hpc [^,]+", row["Next"])
            there = [each for each in commands if " delete " not in each]
            if self.chance.random() < 0.5 and row["State"] != "ERROR":
                next_words = ["heal", *words]
            else:
                next_words = shlex.split(self.chance.choice(there))[3:]
                if next_words[0] == "heal":
                    next_words = ["heal", *words]
            said = self.call(*next_words)
            text = "; ".join((said.out + said.err).splitlines())
            log.append(f"{row['State']} ({row['Reason']}): {shlex.join(next_words)} -> {text}")
        else:
            raise AssertionError("it does not come to rest")
        # The service is always there.
        said = self.call("heal", *words)
        log.append(f"at rest: heal -> {said.status} " + "; ".join(said.out.splitlines()))

    def judge(
        self, words: tuple[str, ...], known: dict[str, str], sick: dict[str, str], ports: Any,
        healed: int,
    ) -> int:  # fmt: skip
        """Look at every object; returns the number of members that are other servers.

        :param known: all servers before the history; *sick*: those with faults.
        :param healed: replacements in the count before.
        """
        self.wait_until_calm()
        self.read_journal()
        self.assertEqual([], self.wrong)
        row = self.row()
        assert row is not None
        self.assert_at_rest(row)
        self.assert_allocations()
        self.assertEqual(ports, self.ports())
        made = Counter(name for id, name in self.every_server().items() if id not in known)
        self.assertLessEqual(made.keys(), set(sick.values()))
        self.assertLessEqual(max(made.values(), default=0), 1, made)
        there = {each["id"]: each for each in self.servers()}
        gone = {name for id, name in sick.items() if id not in there}
        self.assertEqual(gone, set(made))
        record = self.wish()
        self.assertEqual("", record.turn)
        # A healer counts before it deletes, and may die then.
        count = len(record.healed)
        at_once = int(words[words.index("--at-once") + 1])
        self.assertLessEqual(count, healed + len(made) + at_once * self.runs)
        # Progress: the last healer was not disturbed.
        left = {each["name"] for each in there.values() if self.ill(each)}
        members = [name for name in (each["name"] for each in there.values()) if name != "k-head"]
        scope = set(words[1 : words.index("--interval")]) or set(members)
        failed = {each["name"] for each in there.values() if each["status"] == "ERROR"}
        if len(members) > 1:
            may_heal = 2 * len(left - {"k-head"}) <= len(members)
        else:
            # A failed head cannot keep the record while the only member is replaced.
            may_heal = words[1] != SOON[0] and "k-head" not in failed
        if may_heal and count < int(MOST):
            stay = left & scope
            if "--force" not in words and "--drain" in words:
                stay -= self.named("jobs")
            elif "--force" not in words:
                stay &= failed
            self.assertEqual(set(), stay)
        if "--undrain" in words:
            self.assertLessEqual(self.named("drained") & scope, left)
        return len(made)

    @pytest.mark.slow
    def test_histories(self) -> None:
        number = int(os.environ.get("CLUSTER_HISTORIES", "10"))
        seed = int(os.environ.get("CLUSTER_SEED", "1"))
        ends: Counter[str] = Counter()
        replaced = 0
        for at in range(1, number + 1):
            self.chance, self.luck = random.Random(f"{seed}-{at}"), random.Random(f"{seed}-{at}-j")
            if self.groups() and self.chance.random() < 0.12:
                self.call("delete", "k", status=0)
                for name in ("drained", "jobs"):
                    for path in (self.slurm / name).iterdir():
                        path.unlink()
            if not self.groups():
                self.new_cluster()
            log, self.runs = [f"seed {seed}, history {at}"], 0
            try:
                self.harm(log)
                known, ports = self.every_server(), self.ports()
                sick = {each["id"]: each["name"] for each in self.servers() if self.ill(each)}
                healed = len(self.wish().healed)
                words = self.choose_heal()
                log.append(f"drained {self.named('drained')}, jobs {self.named('jobs')}")
                log.append(shlex.join(words))
                self.calm = False
                end = self.disturb(words)
                self.calm = True
                log.append(end)
                self.heal_on(words, log)
                replaced += self.judge(words, known, sick, ports, healed)
            except BaseException:
                print(
                    "\n".join(log), "\n", self.journal.read_text() if self.journal.exists() else ""
                )
                raise
            ends[end] += 1
        self.call("delete", "k", status=0)
        self.assert_nothing_left()
        print(f"RESULT: seed {seed}: {number} histories, {replaced} replaced, {dict(ends)}")
