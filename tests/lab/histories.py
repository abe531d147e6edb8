# SPDX-License-Identifier: Apache-2.0
"""Short random histories of the lab's node: users, operators, faults and kills.

What the functional stack has of it (:mod:`tests.functional.histories`), with the real
libvirt, QEMU and kernel. After each step everything is looked at from outside
(:mod:`tests.lab.history_truth`); at the end of a history every device is free again.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

from nova_hpc.wire import stats
from nova_hpc_lab import bootstrap, observe
from nova_hpc_lab.services import connect
from nova_hpc_lab.state import Paths, Settings
from tests.lab import history_truth
from tests.lab.history_truth import Seen

HOST: Final = "hpc1"
IMAGE: Final = "hpc-guest"
#: Name of a flavor -> how many devices its servers have, and their aliases.
FLAVORS: Final = {"one": (1, "gpu:1"), "vf": (1, "vf:1"), "pair": (2, "gpu:1,vf:1")}
SPECS: Final = {"hw:mem_page_size": "2048", "hw:pci_numa_affinity_policy": "preferred"}
#: Seconds between two updates, and for which anything may take: emulation is slow.
PERIOD: Final = 15
PATIENCE: Final = 480
SETTINGS: Final = "/etc/nova/nova.conf.d/zz-histories.conf"
_MOST: Final = 2
#: In the middle of what nova-compute is killed, some seconds after it was asked.
_KILLED_IN: Final = ("create", "delete", "stop", "start", "hard reboot")


class HistoryError(AssertionError):
    """What must never be has been; the text holds the seed and the history."""


def nova_compute(signal: str) -> str:
    """A script that sends a signal to nova-compute; init starts it again when it ends."""
    return (
        "for each in /proc/[0-9]*; do tr '\\0' ' ' <$each/cmdline 2>/dev/null"
        f" | grep -q 'inside/[c]ompute.py' && kill -{signal} ${{each#/proc/}}; done; true"
    )


@attrs.frozen
class Provider:
    """A device, or the functions of an adapter, in Placement."""

    uuid: str
    resource_class: str
    total: int
    reserved: int
    used: int


class World:
    """The lab's cloud as its users and operators reach it, and its node from inside."""

    def __init__(self, lab: Any) -> None:
        self.lab = lab
        paths = Paths.from_environment(lab.environ)
        settings = Settings.load(paths)
        assert settings is not None
        self.settings = settings
        self.cloud = bootstrap.connect(settings)
        self.image = self.cloud.image.find_image(IMAGE).id
        self.flavors: dict[str, str] = {}
        self.kills = 0
        self.steps: dict[str, int] = {}
        #: Virtual function -> its adapter.
        self.parents = dict(
            line.split()
            for line in lab.inside(
                "cd /sys/bus/pci/devices; for each in *; do test -e $each/physfn &&"
                " echo $each $(basename $(readlink $each/physfn)); done; true"
            ).splitlines()
        )

    # -- Nova and Placement -----------------------------------------------------------

    def compute(self, method: str, path: str, body: Any = None) -> Any:
        """Ask Nova; its answer, or None where it refuses because of the server's state."""
        answer = self.cloud.compute.request(path, method, json=body, raise_exc=False)
        if answer.status_code in (404, 409):
            return None
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else {}

    def placement(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"OpenStack-API-Version": f"placement {bootstrap.PLACEMENT_MICROVERSION}"}
        return self.cloud.placement.request(
            path, method, json=body, headers=headers, raise_exc=False
        )

    def make_flavors(self) -> None:
        for name, (_, alias) in FLAVORS.items():
            made = self.cloud.compute.create_flavor(
                name=f"lab.history.{name}", vcpus=1, ram=256, disk=1
            )
            self.cloud.compute.create_flavor_extra_specs(
                made, {**SPECS, "pci_passthrough:alias": alias}
            )
            self.flavors[name] = made.id

    def servers(self) -> dict[str, Any]:
        body = self.compute("GET", "/servers/detail?all_tenants=1")
        return {each["id"]: each for each in body["servers"]}

    def providers(self) -> dict[str, Provider]:
        """Address -> what Placement has of the node's devices."""
        found = {}
        for each in self.placement("GET", "/resource_providers").json()["resource_providers"]:
            host, _, address = each["name"].rpartition("_")
            if host != HOST:
                continue
            url = f"/resource_providers/{each['uuid']}"
            inventories = self.placement("GET", f"{url}/inventories").json()["inventories"]
            usages = self.placement("GET", f"{url}/usages").json()["usages"]
            for name, one in inventories.items():
                found[address.lower()] = Provider(
                    each["uuid"], name, one["total"], one["reserved"], usages.get(name, 0)
                )
        return found

    def report(self) -> stats.StatsDocument:
        """What the node has said of itself."""
        with connect(self.settings, "nova") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT stats FROM compute_nodes WHERE deleted = 0")
            ((text,),) = cursor.fetchall()
        return stats.read_stats(json.loads(text).get(stats.KEY)) or stats.StatsDocument()

    # -- the node -----------------------------------------------------------------------

    def look(self) -> Seen:
        return history_truth.read(self.lab.inside(history_truth.LOOK))

    def boot(self) -> str:
        """Another one after each start of the node."""
        return self.inside("cat /proc/sys/kernel/random/boot_id")

    def begin_again(self) -> None:
        """Make the cloud as at first, after the node itself has started anew.

        What libvirt has said of guests that ended with the node has no end.
        """
        for each in self.servers():
            self.compute("DELETE", f"/servers/{each}")
        self.until(lambda: not self.servers(), "all servers are deleted")
        self.inside("rm -f /var/log/libvirt/qemu/*.log")
        self.inside(history_truth.START)

    def inside(self, script: str) -> str:
        found: str = self.lab.inside(script)
        return found

    def restarted(self, act: Callable[[], object]) -> None:
        """End nova-compute so, and wait until its successor has reported."""
        act()
        before = time.time()
        self.until(lambda: observe.last_report(self.cloud, HOST) > before + 2, "nova-compute is up")

    def until(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
        return self.lab.until(condition, what, seconds)


class History:
    """One history: a seed, and what has come of it so far."""

    def __init__(self, world: World, first: dict[str, Provider], seed: int) -> None:
        self.world, self.first, self.seed = world, first, seed
        self.random = random.Random(seed)
        self.log: list[str] = []
        self.orphans: list[str] = []
        #: Server -> how many devices its flavor has.
        self.wanted: dict[str, int] = {}
        self.killed = False
        #: Servers of which Nova has lost the thread, as their nova-compute was killed.
        self.stuck: set[str] = set()

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Say in an error how it came to be."""
        try:
            yield
        except Exception as error:
            told = "\n  ".join(self.log)
            raise HistoryError(f"seed {self.seed}: {error}\n  {told}") from error

    def run(self, steps: int) -> None:
        """Let so many things happen, and bring everything in order."""
        with self.told():
            self.log.append(f"create: {self._create()}")
            self._settle()
            self.check()
            for _ in range(steps):
                self._one()
            self.log.append("-- everything is brought in order")
            self._end()

    def _one(self) -> None:
        name, act = self._choose()
        told = act()
        dies = name in _KILLED_IN and not self.killed and self.random.random() < 0.35
        if dies:
            self.killed = True
            pause = self.random.uniform(0, 8)
            time.sleep(pause)
            self.world.restarted(lambda: self.world.inside(nova_compute("KILL")))
            self.world.kills += 1
            told += f"; nova-compute was killed after {pause:.1f} s"
        self._settle()
        shown = {each[:8]: one["status"] for each, one in self.world.servers().items()}
        self.log.append(f"{name}: {told}; then {shown}")
        self.world.steps[name] = self.world.steps.get(name, 0) + 1
        self.check()

    def _choose(self) -> tuple[str, Callable[[], str]]:
        servers = self.world.servers()
        active = [each for each, one in servers.items() if one["status"] == "ACTIVE"]
        off = [each for each, one in servers.items() if one["status"] == "SHUTOFF"]
        choices: list[tuple[int, str, Callable[[], str]]] = [
            (1, "nova-compute is killed", self._kill),
            (2, "libvirt is killed", self._kill_libvirt),
        ]
        if len(servers) < _MOST:
            choices.append((5, "create", self._create))
        if servers:
            choices.append((3, "delete", lambda: self._delete(self.random.choice([*servers]))))
        if active:
            reboot = {"reboot": {"type": "HARD"}}
            choices += [
                (3, "local delete", lambda: self._local_delete(self.random.choice(active))),
                (2, "stop", lambda: self._act(self.random.choice(active), {"os-stop": None})),
                (2, "hard reboot", lambda: self._act(self.random.choice(active), reboot)),
                (3, "guest dies", lambda: self._guest_dies(self.random.choice(active))),
                (3, "guest resets itself", lambda: self._guest_resets(self.random.choice(active))),
            ]
        if off:
            choices.append(
                (4, "start", lambda: self._act(self.random.choice(off), {"os-start": None}))
            )
        if self.orphans:
            choices.append((4, "the allocation is removed", self._unorphan))
        else:
            choices.append((2, "an allocation is left behind", self._orphan))
        ghosts = self._ghosts()
        if ghosts:
            choices.append((4, "a forgotten guest ends", lambda: self._end_ghosts(ghosts[:1])))
        ((_, name, act),) = self.random.choices(choices, [weight for weight, _, _ in choices])
        return name, act

    # -- what users do ------------------------------------------------------------------

    def _create(self) -> str:
        flavor = self.random.choice([*FLAVORS])
        body = {
            "name": f"history-{self.seed}",
            "imageRef": self.world.image,
            "flavorRef": self.world.flavors[flavor],
            "networks": "none",
        }
        server = self.world.compute("POST", "/servers", {"server": body})["server"]["id"]
        self.wanted[server] = FLAVORS[flavor][0]
        return f"{flavor} {server[:8]}"

    def _act(self, server: str, body: dict[str, Any]) -> str:
        answer = self.world.compute("POST", f"/servers/{server}/action", body)
        return server[:8] if answer is not None else f"{server[:8]} refused"

    def _delete(self, server: str) -> str:
        self.world.compute("DELETE", f"/servers/{server}")
        return server[:8]

    def _local_delete(self, server: str) -> str:
        """The server is deleted while nova-compute is away; its guest runs on."""
        world = self.world
        world.inside(nova_compute("STOP"))
        try:
            body = world.compute("GET", f"/os-services?binary=nova-compute&host={HOST}")
            url = f"/os-services/{body['services'][0]['id']}"
            world.compute("PUT", url, {"forced_down": True})
            world.compute("DELETE", f"/servers/{server}")
            world.until(lambda: server not in world.servers(), f"{server} is deleted")
            world.compute("PUT", url, {"forced_down": False})
        finally:
            world.restarted(lambda: world.inside(nova_compute("KILL")))
        return server[:8]

    # -- what happens to guests and services ----------------------------------------------

    def _guest_dies(self, server: str) -> str:
        name = self.world.look().running.get(server)
        if name is None:
            return f"{server[:8]} does not run"
        self.world.inside(f"kill -KILL $(cat /run/libvirt/qemu/{name}.pid)")
        with contextlib.suppress(AssertionError):  # where libvirt was away, Nova hears of it late
            self.world.until(
                lambda: self.world.servers()[server]["status"] != "ACTIVE", "Nova knows", 60
            )
        return server[:8]

    def _guest_resets(self, server: str) -> str:
        self.world.inside(f"virsh -c qemu:///system reset {server} 2>&1 || true")
        return server[:8]

    def _kill(self) -> str:
        self.world.restarted(lambda: self.world.inside(nova_compute("KILL")))
        self.world.kills += 1
        return HOST

    def _kill_libvirt(self) -> str:
        self.world.inside(
            "kill -KILL $(pidof libvirtd);"
            " until virsh -c qemu:///system list >/dev/null 2>&1; do sleep 1; done"
        )
        return HOST

    def _ghosts(self) -> list[str]:
        """Guests that Nova knows nothing of."""
        shown = self.world.servers()
        return [each for each in self.world.look().defined if each not in shown]

    def _end_ghosts(self, ghosts: list[str]) -> str:
        for each in ghosts:
            self.world.inside(
                f"virsh -c qemu:///system destroy {each} 2>&1;"
                f" virsh -c qemu:///system undefine --nvram {each}"
            )
        return " ".join(each[:8] for each in ghosts)

    # -- allocations ------------------------------------------------------------------------

    def _orphan(self) -> str:
        """Somebody whom nobody knows has a free device by Placement."""
        providers = self.world.providers()
        free = [each for each, one in providers.items() if one.total > one.reserved + one.used]
        if not free:
            return "nothing is free"
        address = self.random.choice(sorted(free))
        one = providers[address]
        consumer = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        body = {
            "allocations": {one.uuid: {"resources": {one.resource_class: 1}}},
            "consumer_generation": None,
            "project_id": "nobody",
            "user_id": "nobody",
            "consumer_type": "INSTANCE",
        }
        answer = self.world.placement("PUT", f"/allocations/{consumer}", body)
        assert answer.status_code == 204, answer.text
        self.orphans.append(consumer)
        return f"{consumer[:8]} has {address}"

    def _unorphan(self) -> str:
        """It is named to operators, who remove it."""
        consumer = self.orphans.pop()
        self.world.until(
            lambda: any(consumer in note for note in self.world.report().notes),
            f"the allocation of {consumer} is named",
        )
        self.world.placement("DELETE", f"/allocations/{consumer}")
        return consumer[:8]

    # -- what must be, always ------------------------------------------------------------------

    def _settle(self) -> None:
        """Nova has nothing to do any more; one that a kill has left in BUILD stays so."""

        def busy() -> set[str]:
            return {
                each
                for each, one in self.world.servers().items()
                if one["OS-EXT-STS:task_state"] or one["status"] == "BUILD"
            } - self.stuck

        try:
            patience = PATIENCE / 2 if self.killed else PATIENCE
            self.world.until(lambda: not busy(), "Nova is at rest", patience)
        except AssertionError:
            if not self.killed:
                raise
            self.stuck |= busy()
            self.log.append(f"stuck: {sorted(each[:8] for each in self.stuck)}")

    def check(self) -> None:
        """Raise an error about whatever must not be.

        :raises HistoryError: it is.
        """
        seen = self.world.look()
        problems = history_truth.violations(seen)
        for server, one in self.world.servers().items():
            have = seen.devices(server)
            # One that has just died is ACTIVE until Nova notices.
            runs = one["status"] == "ACTIVE" and server in seen.running
            if runs and len(have) != self.wanted[server]:
                problems.append(f"{server} is ACTIVE with {sorted(have)}")
        if problems:
            raise HistoryError("; ".join(problems))
        # What a guest has that Nova does not know of any more is kept back after a look or two.
        self.world.until(lambda: not self._offered(), "nothing in use is offered")

    def _offered(self) -> list[str]:
        """Providers of which Placement gives what a guest has, or that are not as they were."""
        now, seen = self.world.providers(), self.world.look()
        found = []
        for address, first in self.first.items():
            one = now.get(address)
            if one is None or (one.uuid, one.total) != (first.uuid, first.total):
                found.append(f"{address} was {first} and is {one}")
                continue
            has = [
                device
                for server in seen.running
                for device in seen.devices(server)
                if self.world.parents.get(device, device) == address
            ]
            if one.total - one.reserved - one.used > one.total - len(has):
                found.append(f"{address} is {one}, and guests have {has}")
        return found

    # -- the end ---------------------------------------------------------------------------------

    def _end(self) -> None:
        """What users and operators do until every device is offered again."""
        world = self.world
        while self.orphans:
            self._unorphan()
        for each in world.servers():
            self._delete(each)
        world.until(lambda: not world.servers(), "all servers are deleted")
        self._end_ghosts(self._ghosts())
        world.until(self._is_as_before, "every device is free and offered")
        problems = history_truth.violations(world.look())
        if problems:
            raise HistoryError("; ".join(problems))

    def _is_as_before(self) -> bool:
        seen = self.world.look()
        devices = json.loads(seen.ledger)["devices"].values()
        return (
            self.world.providers() == self.first
            and not seen.defined
            and not any(each.get("server") for each in devices)
        )
