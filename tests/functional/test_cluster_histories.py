# SPDX-License-Identifier: Apache-2.0
"""Histories of clusters: random commands die at random requests, or lose answers.

The next client gives the command that ``list`` has. In the end the cluster is whole or gone, and
each server, port and server group of the cloud belongs to it. ``CLUSTER_HISTORIES`` says how many,
``CLUSTER_SEED`` which; a failure names the history.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
from collections import Counter
from typing import Any

import pytest
from nova import context as nova_context
from nova import objects

from nova_hpc_common.wire import server_faults
from nova_hpc_guest import host_list
from tests.functional import test_cluster_snapshots
from tests.functional.cluster_client import base

#: State of a cluster at rest -> the status of all its members.
RESTS = {"ACTIVE": "ACTIVE", "STOPPED": "SHUTOFF", "SHELVED": "SHELVED_OFFLOADED"}
HEAD = ("--head", "one")
KINDS = (
    ("--network", base.NETWORK),
    ("--network", base.NETWORK, *HEAD),
    ("--nic", f"net-id={base.NETWORK}"),
    ("--nic", f"net-id={base.NETWORK}", *HEAD),
    ("--nic", f"net-id={base.NETWORK}", "--no-hosts"),
    ("--network", base.NETWORK, "--no-hosts"),
)
#: State -> the commands that have something to do; each command is tried in each state, too.
VERBS = {
    "ACTIVE": (
        *("stop", "shelve", "reboot", "rebuild", "snapshot", "delete"),
        *("scale", "replace", "heal") * 2,
    ),
    "STOPPED": ("start", "start", "shelve", "rebuild", "snapshot", "scale", "delete"),
    "SHELVED": ("unshelve", "unshelve", "unshelve", "delete"),
}
ALL = tuple(sorted({verb for verbs in VERBS.values() for verb in verbs}))
#: Commands that the list's next one may need before the cluster rests.
_MOST = 5


class ClusterHistoryTest(test_cluster_snapshots.SnapshotTest):
    HOSTS = 3

    def setUp(self) -> None:
        super().setUp()
        self.give_each_port_an_address()

    # -- the truth ---------------------------------------------------------------

    def row(self) -> dict[str, Any] | None:
        """The cluster in the list. All that exists is in it; None: nothing exists."""
        rows = self.cluster("list", "--long", "-f", "json").json
        there = [*self.servers(), *self.made_ports(), *self.groups()]
        self.assertEqual(1 if there else 0, len(rows), rows)
        if not rows:
            return None
        (row,) = rows
        self.assertEqual("k", row["Name"])
        if row["State"] not in RESTS:
            self.assertIn("openstack hpc", row["Next"])
        return dict(row)

    def objects(self) -> list[Any]:
        """Everything that a command could have changed."""
        servers = [
            (each["id"], each["name"], each["status"], each["metadata"], each["tags"])
            for each in self.servers()
        ]
        ports = [(port["id"], port["name"], port["device_id"]) for port in self.made_ports()]
        groups = [(group["id"], sorted(group["members"])) for group in self.groups()]
        return [sorted(every, key=str) for every in (servers, ports, groups)]

    def assert_at_rest(self, row: dict[str, Any]) -> None:
        """Exactly its servers, in one status, with their ports; running ones know each other."""
        servers = {each["name"]: each for each in self.servers()}
        members = {name: each for name, each in servers.items() if name != "k-head"}
        self.assertEqual("--head" in self.kind, len(members) < len(servers))
        have, wanted = row["Members"].removesuffix(" + head").split("/")
        self.assertEqual((have, int(have)), (wanted, len(members)))
        self.assertEqual({RESTS[row["State"]]}, {each["status"] for each in servers.values()})
        (group,) = self.groups()
        self.assertEqual({each["id"] for each in members.values()}, set(group["members"]))
        described = [port for port in self.made_ports() if port.get("description")]
        self.assertEqual(
            len(members) if "--nic" in self.kind else 0,
            len({port["device_id"] for port in described}),
        )
        self.assertEqual(
            {each["id"] for each in servers.values()},
            {port["device_id"] for port in self.made_ports()},
        )
        if row["State"] != "ACTIVE" or "--no-hosts" in self.kind:
            return
        truth = {}
        for name, server in servers.items():
            (addresses,) = server["addresses"].values()
            keys = tuple(server["metadata"]["hpc_host_keys"].split())
            truth[name] = (addresses[0]["addr"], keys)
        for server in servers.values():
            told = host_list.read_host_list(host_list.from_items(server["metadata"]))
            told_of = {
                told.name_of(host): (host.address, tuple(host.keys)) for host in told.everyone
            }
            self.assertEqual(truth, told_of)

    def delete_snapshots(self) -> None:
        """Every image of a member is one of a snapshot in the list, whose end leaves none."""
        snapshots = self.openstack("hpc", "snapshot", "list", "-f", "json").json
        listed = {snapshot["ID"] for snapshot in snapshots}
        of_images = {each["properties"]["hpc_cluster_snapshot"] for each in self.images()}
        self.assertEqual(listed, of_images)
        for snapshot in sorted(listed):
            said = self.openstack("hpc", "snapshot", "delete", snapshot)
            self.assertEqual(0, said.status, said.err)
        self.assertEqual([], self.images())

    # -- histories ------------------------------------------------------------------

    def choose(self, row: dict[str, Any] | None) -> tuple[str, ...]:
        """The next command of the user."""
        chance = self.chance
        if row is None:
            self.kind = chance.choice(KINDS)
            size = str(chance.randint(1, 3))
            usual = ("--members", size, "--flavor", "one", "--image", base.IMAGE)
            return ("create", "k", *usual, *self.kind)
        verb = chance.choice(ALL if chance.random() < 0.1 else VERBS[row["State"]])
        if verb == "scale":
            return (verb, "k", "--members", str(chance.randint(1, 4)))
        if verb == "replace":
            return (verb, "k", chance.choice(sorted(each["name"] for each in self.servers())))
        if verb == "heal":
            self.tag_some()
            return (verb, "k", "--force", "--interval", "0.2", "--most-per-hour", "30")
        return (verb, "k")

    def tag_some(self) -> None:
        """What nova-compute does when it sees faults: of one server, or of any number."""
        admin = nova_context.get_admin_context()
        servers = self.servers()
        for server in self.chance.sample(servers, self.chance.choice((1, 1, len(servers)))):
            word = self.chance.choice(list(server_faults.FaultWord))
            tag = objects.Tag(context=admin, resource_id=server["id"], tag=word.tag)
            tag.create()

    def spoil(self, words: tuple[str, ...]) -> str:
        """Run a command that dies, or loses an answer, or whose end nothing disturbs."""
        chance = self.chance
        how = chance.random()
        if how < 0.1:
            before = self.objects()
            said = self.openstack("hpc", "cluster", *words)
            if said.status:
                self.assertEqual(before, self.objects(), said.err)
                return "refused"
            return "undisturbed"
        if how < 0.35:
            self.front.arm()
            self.front.lose = {chance.randint(1, 24)}
            self.openstack("hpc", "cluster", *words)
            self.front.arm()
            return "lost an answer"
        self.front.arm(chance.randint(3, 28), chance.random() < 0.5)
        said = self.openstack("hpc", "cluster", *words)
        self.front.arm()
        return {0: "undisturbed", -signal.SIGKILL: "killed"}.get(said.status, "refused")

    def settle(self, log: list[str]) -> dict[str, Any] | None:
        """Do as the list says until the cluster rests or is gone."""
        for _ in range(_MOST):
            self.wait_until_calm()
            row = self.row()
            if row is None or row["State"] in RESTS:
                return row
            commands = re.findall(r"openstack hpc [^,]+", row["Next"])
            words = shlex.split(self.chance.choice(commands))[1:]
            if words[2] == "heal":
                words += ["--force", "--interval", "0.2", "--most-per-hour", "30"]
            said = self.openstack(*words)
            log.append(f"{row['State']} ({row['Reason']}): {' '.join(words)} -> {said.status}")
            if said.status:
                log.append(said.err)
        raise AssertionError("it does not come to rest")

    @pytest.mark.slow
    def test_histories(self) -> None:
        histories = int(os.environ.get("CLUSTER_HISTORIES", "20"))
        seed = int(os.environ.get("CLUSTER_SEED", "1"))
        self.chance = random.Random(seed)
        self.kind: tuple[str, ...] = ()
        ends: Counter[str] = Counter()
        row = None
        for at in range(1, histories + 1):
            words = self.choose(row)
            log = [f"seed {seed}, history {at}: {' '.join(words)}"]
            try:
                end = self.spoil(words)
                log.append(end)
                row = self.settle(log)
                if row is not None:
                    self.assert_at_rest(row)
                if words[0] == "snapshot":
                    self.delete_snapshots()
            except Exception:
                print("\n".join(log))
                raise
            ends[f"{words[0]} {end}"] += 1
        if row is not None:
            self.cluster("delete", "k")
        self.assert_nothing_left()
        for end, count in sorted(ends.items()):
            print(f"{count:5} {end}")
        disturbed = sum(n for end, n in ends.items() if "killed" in end or "lost" in end)
        print(f"RESULT: seed {seed}: {histories} histories, {disturbed} disturbed, 0 half clusters")
