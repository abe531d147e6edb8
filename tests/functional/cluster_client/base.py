# SPDX-License-Identifier: Apache-2.0
"""The base of the tests of ``openstack hpc cluster``: a small cloud and the real command."""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import fixtures
from nova.tests import fixtures as nova_fixtures
from nova.tests.functional import integrated_helpers
from nova.virt import fake

from tests.functional.cluster_client.cloud_front import CloudFront

PROJECT = nova_fixtures.PROJECT_ID
OTHER_PROJECT = "616c6c796f7572626173656172656f73"
IMAGE = "155d900f-4e14-4e4c-a73d-069cbf4541e6"
NETWORK = "private"
_TOP = Path(__file__).resolve().parents[3]
#: Seconds: a slow machine is no failure.
_PATIENCE = 300.0
_KILLED = -signal.SIGKILL
#: Whether commands are killed at each request, and not only at those that change something.
_KILL_READS = bool(os.environ.get("CLUSTER_KILL_READS"))


@attrs.frozen
class Said:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it wrote with ``-f json``."""
        return json.loads(self.out)


@functools.cache
def _start_forks() -> subprocess.Popen[bytes]:
    """The process that runs commands for all tests: importing the client takes two seconds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.functional.cluster_client.openstack_forks"],
        cwd=_TOP,
        stdin=subprocess.PIPE,
        env={key: value for key, value in os.environ.items() if not key.startswith("OS_")},
        start_new_session=True,
    )
    atexit.register(_end_forks)
    return process


def _end_forks() -> None:
    if _start_forks.cache_info().currsize:
        process = _start_forks()
        process.stdin.close()
        process.kill()
        process.wait()
        _start_forks.cache_clear()


class SmallFakeDriver(fake.FakeDriver):
    """A host with room for few servers."""

    vcpus = 2
    memory_mb = 8192
    local_gb = 1024


class ClusterClientTest(integrated_helpers.ProviderUsageBaseTestCase):
    """A cloud with hosts of two vCPUs each, and a client in another process."""

    #: Of the command, beside what says where the cloud is.
    environment: dict[str, str] = {}
    compute_driver = "fake.SmallFakeDriver"
    HOSTS = 3
    FRONT = CloudFront

    def setUp(self) -> None:
        # Nova finds drivers below nova.virt alone.
        self.useFixture(fixtures.MonkeyPatch("nova.virt.fake.SmallFakeDriver", SmallFakeDriver))
        self.flags(cpu_allocation_ratio=1.0, initial_cpu_allocation_ratio=1.0)
        # That Nova's answers follow its schemas is what its own tests check.
        self.flags(response_validation="ignore", group="api")
        super().setUp()
        for at in range(self.HOSTS):
            self.start_compute_on(at)
        self.flavor = self._create_flavor(vcpu=1, memory_mb=256, disk=1, ephemeral=0, name="one")
        self.front = self.FRONT(self.api_fixture.app(), self.neutron)
        self.front.glance = self.glance
        self.addCleanup(self.front.stop)
        self.ports_before = set(self.neutron._ports)
        self._folder = Path(tempfile.mkdtemp(prefix="openstack-"))
        self.addCleanup(shutil.rmtree, self._folder, ignore_errors=True)
        self._calls = 0
        self._forks = _start_forks()
        self.addCleanup(self._end_hung_call)
        self.front.kill = self._kill

    def give_each_port_an_address(self) -> None:
        """Each port that is made has an address of its own, which it has not in Nova's fixture."""
        create_port = nova_fixtures.NeutronFixture.create_port
        addresses = itertools.count(50)

        def make_port(neutron: Any, body: Any = None) -> Any:
            made = create_port(neutron, body)
            (fixed,) = made["port"]["fixed_ips"]
            high, low = divmod(next(addresses), 200)
            fixed["ip_address"] = f"192.168.{1 + high}.{2 + low}"
            neutron._ports[made["port"]["id"]]["fixed_ips"] = [dict(fixed)]
            return made

        place = "nova.tests.fixtures.NeutronFixture.create_port"
        self.useFixture(fixtures.MonkeyPatch(place, make_port))

    def start_compute_on(self, at: int) -> None:
        self._start_compute(f"host{at}")

    def _end_hung_call(self) -> None:
        """The next test does not wait for a command of this one."""
        if self._calls and not (self._folder / f"{self._calls}.status").exists():
            _end_forks()

    def _kill(self) -> None:
        os.kill(int(self._wait_for(".pid")), signal.SIGKILL)

    def _wait_for(self, suffix: str) -> str:
        path = self._folder / f"{self._calls}{suffix}"
        end = time.monotonic() + _PATIENCE
        while not path.exists() or not path.read_text():
            self.assertLess(time.monotonic(), end, f"{path} never came")
            self.assertIsNone(self._forks.poll())
            time.sleep(0.02)
        return path.read_text()

    # -- the command -------------------------------------------------------

    def credentials(self, user: str = "fake", project: str = PROJECT) -> dict[str, str]:
        """The environment with which the command finds this cloud, and signs in."""
        return {
            "OS_AUTH_URL": f"{self.front.url}/identity/v3",
            "OS_AUTH_TYPE": "v3password",
            "OS_USERNAME": user,
            "OS_PASSWORD": "x",
            "OS_USER_DOMAIN_ID": "default",
            "OS_PROJECT_ID": project,
            "OS_IDENTITY_API_VERSION": "3",
        }

    def own_environment(self) -> dict[str, str]:
        """The environment of a command in a process of its own."""
        ours = {key: value for key, value in os.environ.items() if not key.startswith("OS_")}
        return {**ours, **self.credentials()}

    def program(self, name: str, text: str) -> str:
        """The path of a new shell script."""
        path = self._folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def openstack(
        self, *words: str, user: str = "fake", project: str = PROJECT, closed: bool = False
    ) -> Said:
        """Run ``openstack`` with these words.

        :param closed: nobody reads what it prints.
        """
        self._calls += 1
        base = self._folder / str(self._calls)
        environment = {**self.credentials(user, project), **self.environment}
        call = {"words": list(words), "environment": environment, "closed": closed}
        base.with_suffix(".json").write_text(json.dumps(call))
        self._forks.stdin.write(f"{self._folder} {self._calls}\n".encode())
        self._forks.stdin.flush()
        status = int(self._wait_for(".status"))
        out, err = (base.with_suffix(each).read_text() for each in (".out", ".err"))
        return Said(status, out, err)

    def cluster(self, verb: str, *words: str, status: int = 0, **keywords: Any) -> Said:
        """Run ``openstack hpc cluster VERB``, which ends with *status*."""
        said = self.openstack("hpc", "cluster", verb, *words, **keywords)
        self.assertEqual(status, said.status, said.err)
        return said

    def create(self, name: str, members: int, *words: str, **keywords: Any) -> Said:
        """Run ``openstack hpc cluster create`` for members of one vCPU."""
        usual = ("--members", str(members), "--flavor", "one", "--image", IMAGE, "-f", "json")
        return self.cluster("create", name, *usual, *words, **keywords)

    def killed(
        self, at: int, before: bool, words: tuple[str, ...], number: int = 9, writes: bool = False
    ) -> bool:
        """Run a command whose process is ended at a request; False: it ended before that."""
        self.front.arm(at, before, writes)
        self.front.kill = lambda: os.kill(int(self._wait_for(".pid")), number)
        said = self.openstack("hpc", "cluster", *words)
        self.front.arm()
        if number == signal.SIGKILL:
            self.assertIn(said.status, (-signal.SIGKILL, 0), said.err)
        return said.status != 0

    def kill_at_each_step(
        self, words: tuple[str, ...], prepare: Callable[[], object] = tuple
    ) -> Iterator[bool]:
        """Kill a command before and after each of its steps, until it ends by itself.

        A step is a request that changes something. A command keeps nothing between two requests,
        so a kill at a read leaves the cloud as the last step left it. With CLUSTER_KILL_READS in
        the environment each read is a step, too.

        After each time it yields whether the next client goes on: in half of the cases, so that
        the others can be undone.

        :param prepare: brings the cloud into the state from which the command begins.
        """
        at, tried, died = 1, 0, True
        while died:
            died = False
            for before in (True, False):
                prepare()
                if self.killed(at, before, words, writes=not _KILL_READS):
                    died = True
                    tried += 1
                yield before == bool(at % 2)
            at += 1
        self.assertGreater(tried, 2)
        kind = "requests" if _KILL_READS else "writes"
        print(f"RESULT: {' '.join(words)}: {at - 2} {kind}, killed {tried} times")

    def wait_until_calm(self) -> None:
        """Nova ends what it was asked for, whoever asked."""
        for _ in range(600):
            states = {each["OS-EXT-STS:task_state"] for each in self.servers()}
            if not states - {None}:
                return
            time.sleep(0.05)

    # -- the truth -----------------------------------------------------------

    def servers(self) -> list[dict[str, Any]]:
        """All servers of all projects."""
        return self.admin_api.get_servers(search_opts={"all_tenants": 1})

    def made_ports(self) -> list[dict[str, Any]]:
        """Ports that are there and were not before."""
        return [p for id, p in self.neutron._ports.items() if id not in self.ports_before]

    def groups(self) -> list[dict[str, Any]]:
        """All server groups of all projects."""
        found = self.admin_api.api_get("/os-server-groups?all_projects=1")
        return found.body["server_groups"]

    def assert_all_is_listed(self, name: str = "k") -> None:
        """Whatever exists belongs to the one cluster in the list, with a command for it."""
        there = [*self.servers(), *self.made_ports(), *self.groups()]
        rows = self.cluster("list", "--long", "-f", "json").json
        self.assertEqual(1 if there else 0, len(rows), rows)
        for row in rows:
            self.assertEqual(name, row["Name"])
            if row["State"] != "ACTIVE":
                self.assertIn("openstack hpc cluster", row["Next"])

    def assert_nothing_left(self) -> None:
        """No server, port, group or allocation of anybody's."""
        self.assertEqual([], self.servers())
        self.assertEqual([], self.made_ports())
        self.assertEqual([], self.groups())
        for provider in self._get_all_providers():
            usages = self._get_provider_usages(provider["uuid"])
            self.assertEqual(set(), {name for name, used in usages.items() if used})
        self.assertEqual([], self.cluster("list", "-f", "json").json)

    def assert_complete(self, name: str, numbers: list[int], ports_each: int = 0) -> None:
        """Exactly these members, all active, each with its ports."""
        servers = self.servers()
        self.assertEqual(
            sorted(f"{name}-{each}" for each in numbers), sorted(each["name"] for each in servers)
        )
        self.assertEqual({"ACTIVE"}, {each["status"] for each in servers})
        ids = {each["id"] for each in servers}
        (group,) = self.groups()
        self.assertEqual(ids, set(group["members"]))
        mine = [port for port in self.made_ports() if port.get("description")]
        self.assertEqual(len(numbers) * ports_each, len(mine))
        self.assertLessEqual({port["device_id"] for port in mine}, ids)
        (row,) = self.cluster("list", "-f", "json").json
        self.assertEqual(("ACTIVE", name), (row["State"], row["Name"]))
