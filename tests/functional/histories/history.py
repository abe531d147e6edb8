# SPDX-License-Identifier: Apache-2.0
"""Random histories of two nodes: users, operators, faults and kills in any order.

Nova's own stack in one process, with its guests (:mod:`tests.functional.lifecycle`)
and a nova-compute that can die at any of its steps (:mod:`.truth`). A history is made
from a seed: one after the other, something happens, nova-compute may die in the middle of
it and starts again, and after each the node is looked at (:mod:`.judge`). At the end
everything is brought in order as users and operators do, and every device must be offered
again.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

from nova.tests.functional.api import client

from nova_hpc.tenancy.ledger import copy_of
from nova_hpc.tenancy.step import NodeView
from nova_hpc_tools.device.upkeep import DeviceUpkeep
from tests.functional.histories.judge import Judge
from tests.functional.histories.truth import KilledError
from tests.functional.histories.world import FLAVORS, HOSTS, HistoryError, HistoryTest

_MOST_SERVERS: Final = 4
_UUID: Final = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{4}:[0-9a-f:.]{7}"
#: In what nova-compute is killed, by how it begins -> about how many steps it has.
_STEPS: Final = {
    "create": 26,
    "delete": 24,
    "cold migrate": 30,
    "resize": 30,
    "confirm": 12,
    "revert": 20,
    "stop": 5,
    "start": 8,
    "hard reboot": 8,
    "update": 3,
}


class History:
    """One history: a seed, and what has come of it so far."""

    def __init__(self, world: HistoryTest, seed: int) -> None:
        self.world, self.seed = world, seed
        self.random = random.Random(seed)
        self.log: list[str] = []
        self.servers: list[str] = []
        self.orphans: list[str] = []
        #: (host, address) -> what makes it well again.
        self.ill: dict[tuple[str, str], Callable[[], None]] = {}
        #: Hosts whose ledger cannot be read.
        self.lost: set[str] = set()
        #: Those whose ledger was removed.
        self.begun_anew: set[str] = set()
        self.judge = Judge(world, self.lost, self.log)

    # -- the course --------------------------------------------------------------------

    def run(self, operations: int) -> None:
        """Let so many things happen, and bring everything in order."""
        world = self.world
        with self._told():
            for _ in range(operations):
                self._one()
            self.log.append("-- everything is brought in order")
            self._end()
        world.totals.histories += 1

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Say in an error how it came to be."""
        try:
            yield
        except Exception as error:
            told = "\n  ".join(self.log)
            text = f"seed {self.seed}: {error}\n  {told}"
            raise HistoryError(text) from error

    def _one(self) -> None:
        world = self.world
        name, act = self._choose()
        dies = self._may_die(name)
        try:
            told = act()
        except client.OpenStackApiException as error:
            told = f"refused: {error.response.status_code}"
        except KilledError:
            told = "killed"
        world.settle()
        died = world.mortal.disarm() if dies else None
        if dies and died is None and self.random.random() < 0.3:
            world.mortal.kill(world.computes[self.random.choice(HOSTS)].manager)
            died = world.mortal.died
        self.log.append(f"{name}: {told}" + (f"; {died[0]} died at: {died[1]}" if died else ""))
        world.totals.operations += 1
        world.totals.by_name[name] = world.totals.by_name.get(name, 0) + 1
        if died is not None:
            world.totals.kills += 1
            world.totals.steps.add(re.sub(_UUID, "*", died[1]))
            self.judge.check(())
            self._revive(died[0])
        updated = [name for name in HOSTS if self.random.random() < 0.5]
        for name in updated:
            world.update(name)
        self.judge.check(updated)

    def _may_die(self, name: str) -> bool:
        """Let a nova-compute die in the middle of something, perhaps."""
        steps = next((most for word, most in _STEPS.items() if name.startswith(word)), 0)
        if not steps or self.random.random() < 0.4:
            return False
        self.world.mortal.arm(self.random.randint(1, steps))
        return True

    def _revive(self, victim: str) -> None:
        """Start nova-compute again; it may die once more at its start."""
        world = self.world
        world.down.add(victim)
        while self.random.random() < 0.2:
            world.mortal.arm(self.random.randint(1, 6))
            try:
                world.restart(victim)
            except KilledError:
                self.log.append(f"{victim} died at its start: {world.mortal.died}")
            finally:
                world.mortal.disarm()
        world.restart(victim)

    def _choose(self) -> tuple[str, Callable[[], str]]:
        """Something that can happen now."""
        shown = self.world.servers()
        self.servers = [each for each in self.servers if each in shown]
        by_state: dict[str, list[str]] = {}
        for each in self.servers:
            by_state.setdefault(shown[each].state, []).append(each)
        active, off = by_state.get("active", []), by_state.get("stopped", [])
        moved = by_state.get("resized", [])
        choices: list[tuple[int, str, Callable[[], str]]] = [
            (2, "update", self._update),
            (1, "restart", self._restart),
            (2, "device falls ill", self._falls_ill),
            (1, "libvirt goes away", self._libvirt_away),
        ]
        if len(self.servers) < _MOST_SERVERS:
            choices.append((9, "create", self._create))
        if self.servers:
            choices.append((6, "delete", self._of(self.servers, self._delete)))
            choices.append((2, "local delete", self._of(self.servers, self._local_delete)))
        if active:
            reboot = {"reboot": {"type": "HARD"}}
            choices += [
                (2, "stop", self._of(active, self._act, {"os-stop": None})),
                (2, "hard reboot", self._of(active, self._act, reboot)),
                (1, "suspend", self._of(active, self._act, {"suspend": None})),
                (3, "guest dies", self._of(active, self._guest_dies)),
                (3, "guest resets itself", self._of(active, self._guest_resets)),
            ]
        if off:
            choices.append((3, "start", self._of(off, self._act, {"os-start": None})))
        if active or off:
            flavor = self.random.choice(list(FLAVORS))
            resize = {"resize": {"flavorRef": self.world.flavors[flavor]}}
            choices += [
                (3, "cold migrate", self._of(active + off, self._act, {"migrate": None})),
                (3, f"resize to {flavor}", self._of(active + off, self._act, resize)),
            ]
        if moved:
            choices += [
                (5, "confirm", self._of(moved, self._act, {"confirmResize": None})),
                (5, "revert", self._of(moved, self._act, {"revertResize": None})),
            ]
        choices.append((2, "an allocation is left behind", self._orphan))
        if self.orphans:
            choices.append((2, "the allocation is removed", self._unorphan))
        if self.ill:
            choices.append((3, "device recovers", self._recovers))
        if self.lost:
            choices.append((6, "the ledger is removed", self._cure_ledger))
        else:
            choices.append((1, "ledger damaged", self._damage))
        ghosts = self._ghosts()
        if ghosts:
            choices.append((4, "a forgotten guest ends", self._end_ghost))
        weights = [weight for weight, _, _ in choices]
        ((_, name, act),) = self.random.choices(choices, weights)
        return name, act

    def _of(self, servers: list[str], act: Callable[..., str], *more: Any) -> Callable[[], str]:
        return lambda: act(self.random.choice(servers), *more)

    # -- what users do -------------------------------------------------------------------

    def _create(self) -> str:
        flavor = self.random.choice(list(FLAVORS))
        world = self.world
        body = world._build_server(flavor_id=world.flavors[flavor], networks="none")
        server = world.api.post_server({"server": body})["id"]
        self.servers.append(server)
        world.settle()
        return f"{flavor}: {self._shown(server)}"

    def _shown(self, server: str) -> str:
        found = self.world.servers().get(server)
        return f"{server[:8]} {found or 'gone'}"

    def _act(self, server: str, body: dict[str, Any]) -> str:
        self.world.api.post_server_action(server, body)
        self.world.settle()
        return self._shown(server)

    def _delete(self, server: str) -> str:
        self.world.api.delete_server(server)
        self.world.settle()
        return self._shown(server)

    def _local_delete(self, server: str) -> str:
        """The server is deleted while its nova-compute is down; its guest runs on."""
        world = self.world
        name = world.servers()[server].host
        if name is None:
            return self._delete(server)
        world.mortal.disarm()
        (service,) = world.api.get_services(host=name, binary="nova-compute")
        world.down.add(name)
        world.computes[name].stop()
        world.api.put_service_force_down(service["id"], True)
        world.api.delete_server(server)
        world.settle()
        told = self._shown(server)
        world.restart(name)
        world.api.put_service_force_down(service["id"], False)
        return f"{told}; it was on {name}"

    # -- what happens to guests and hosts ---------------------------------------------------

    def _domain(self, server: str) -> tuple[str, Any] | None:
        for name in HOSTS:
            domain = self.world.known_domains(name).get(server)
            if domain is not None and domain.isActive():
                return name, domain
        return None

    def _guest_dies(self, server: str) -> str:
        found = self._domain(server)
        if found is None:
            return f"{server[:8]} does not run"
        found[1].destroy()
        return f"{server[:8]} on {found[0]}"

    def _guest_resets(self, server: str) -> str:
        found = self._domain(server)
        if found is None:
            return f"{server[:8]} does not run"
        self.world.guests.reset(found[1])
        return f"{server[:8]} on {found[0]}"

    def _ghosts(self) -> list[tuple[str, str]]:
        """Guests that Nova knows nothing of where they are: (host, UUID)."""
        shown = self.world.servers()
        return [
            (name, server)
            for name in HOSTS
            for server in self.world.known_domains(name)
            if server not in shown
        ]

    def _end_ghost(self) -> str:
        name, server = self.random.choice(self._ghosts())
        self._end_domain(name, server)
        return f"{server[:8]} on {name}"

    def _end_domain(self, name: str, server: str) -> None:
        domain = self.world.known_domains(name)[server]
        if domain.isActive():
            domain.destroy()
        domain.undefine()

    def _update(self) -> str:
        self.world.update_all()
        return "both"

    def _restart(self) -> str:
        self.world.mortal.disarm()
        name = self.random.choice(HOSTS)
        self.world.restart(name)
        return name

    def _libvirt_away(self) -> str:
        name = self.random.choice(HOSTS)
        self.world.no_libvirt.add(name)
        try:
            self.world.update_all()
            told = self._create() if self.random.random() < 0.5 else "an update"
            self.world.settle()
        finally:
            self.world.no_libvirt.discard(name)
        return f"{name}: {told}"

    # -- allocations ------------------------------------------------------------------------

    def _orphan(self) -> str:
        """Somebody whom nobody knows has a device by Placement."""
        world = self.world
        name = self.random.choice(HOSTS)
        providers = world.providers_of(name)
        place = self.random.choice(sorted(providers))
        url = f"/resource_providers/{providers[place]}/inventories"
        inventories = world.placement.get(url).body["inventories"]
        if not inventories:
            return f"{place} has nothing"
        consumer = str(uuid.UUID(int=self.random.getrandbits(128), version=4))
        body = {
            "allocations": {providers[place]: {"resources": dict.fromkeys(inventories, 1)}},
            "consumer_generation": None,
            "project_id": "p",
            "user_id": "u",
            "consumer_type": "INSTANCE",
        }
        answer = world.placement.put(f"/allocations/{consumer}", body, version="1.38")
        if answer.status != 204:
            return f"{place} is not free"
        self.orphans.append(consumer)
        return f"{consumer[:8]} has {place}"

    def _unorphan(self) -> str:
        consumer = self.orphans.pop(self.random.randrange(len(self.orphans)))
        self.world.placement.delete(f"/allocations/{consumer}")
        return consumer[:8]

    # -- devices ----------------------------------------------------------------------------

    def _falls_ill(self) -> str:
        world = self.world
        name = self.random.choice(HOSTS)
        address = self.random.choice(world.devices(name))
        if (name, address) in self.ill:
            return f"{name} {address} is ill already"
        path = world.sysfs[name].devices / address
        how = self.random.choice(["driver", "reset fails", "no way to reset"])
        if how == "driver":
            if (name, address) in world.truth.running:
                return f"{name} {address} is in use"
            world.sysfs[name].bind(address, "nvidia")
            well = functools.partial(world.sysfs[name].bind, address, "vfio-pci")
        else:
            file = path / ("reset" if how == "reset fails" else "reset_method")
            text = file.read_text()
            file.unlink()
            well = functools.partial(file.write_text, text)
        self.ill[name, address] = well
        return f"{name} {address}: {how}"

    def _recovers(self) -> str:
        place = self.random.choice(sorted(self.ill))
        self.ill.pop(place)()
        return " ".join(place)

    # -- the ledger -------------------------------------------------------------------------

    def _damage(self) -> str:
        name = self.random.choice(HOSTS)
        path = self.world.ledger_file(name).path
        how = self.random.choice(["cut in half", "copy cut in half", "lost"])
        files = {"cut in half": [path], "copy cut in half": [copy_of(path)]}
        for each in files.get(how, [path, copy_of(path)]):
            if each.exists():
                each.write_text(each.read_text()[: each.stat().st_size // 2])
        if how == "lost":
            self.lost.add(name)
        return f"{name}: {how}"

    def _cure_ledger(self) -> str:
        name = min(self.lost)
        self.lost.remove(name)
        self.begun_anew.add(name)
        path = self.world.ledger_file(name).path
        for each in (path, copy_of(path)):
            each.unlink(missing_ok=True)
        return name

    # -- the end ---------------------------------------------------------------------------------

    def _end(self) -> None:
        """What users and operators do until every device is offered again."""
        world = self.world
        for place in sorted(self.ill):
            self.ill.pop(place)()
        while self.lost:
            self._cure_ledger()
        for consumer in self.orphans:
            world.placement.delete(f"/allocations/{consumer}")
        self.orphans.clear()
        world.update_all()
        for each in world.servers():
            self._delete(each)
        if world.servers():
            raise HistoryError(f"servers cannot be deleted: {world.servers()}")
        for name, server in self._ghosts():
            self._end_domain(name, server)
        world.update_all()
        self.judge.check(HOSTS)
        self._remove_allocations()
        self._release()
        self._lift()
        world.update_all()
        world.update_all()
        self.judge.check(HOSTS)
        self.judge.expect_new()
        if self.seed % 4 == 0:
            self._expect_all()

    def _remove_allocations(self) -> None:
        """Every allocation that is left must be named to operators, who remove it."""
        world = self.world
        left = world.allocations()
        if not left:
            return
        # Nobody is named before the second look.
        world.update_all()
        world.update_all()
        notes = [note for name in HOSTS for note in world.stats_of(name).notes]
        # What a failed move has left behind the node has removed by then.
        for consumer, providers in world.allocations().items():
            devices = [each for each in providers if "_" in each]
            if devices and not any(consumer in note for note in notes):
                raise HistoryError(f"{consumer} has {devices} for ever, and nobody says so")
            world.totals.left_behind += 1
            self.log.append(f"left behind: {consumer} has {providers}")
            world.placement.delete(f"/allocations/{consumer}")

    def _release(self) -> None:
        world = self.world
        for name in HOSTS:
            for address, why in world.ledger(name).quarantined.items():
                self.log.append(f"released: {name} {address}: {why}")
                node = world.computes[name].driver.hpc_node
                role = "gpu" if address.endswith(".0") else "vf"
                candidate = NodeView(node.source.read().node, {address: role}).candidate(address)
                upkeep = DeviceUpkeep.of(node.tenancy.step("hygiene"))
                refused = upkeep.release(candidate, node.owners(name))
                if refused:
                    raise HistoryError(f"{name} {address} cannot be released: {refused}")
                world.totals.released += 1

    def _lift(self) -> None:
        """Where a ledger was lost, nobody knows any more that the node has reserved a device.

        It is shown as reserved by an operator, who lifts it (docs/source/admin/device-states.rst).
        """
        world = self.world
        for name in sorted(self.begun_anew):
            shown = world.stats_of(name).withheld
            for place, provider in world.providers_of(name).items():
                address = place.removeprefix(f"{name}_")
                mine = [each for each in shown if each[:-1] == address[:-1]]
                if not any("by an operator" in shown[each] for each in mine):
                    continue
                url = f"/resource_providers/{provider}/inventories"
                body = world.placement.get(url).body
                for fields in body["inventories"].values():
                    fields["reserved"] = 0
                answer = world.placement.put(url, body, version="1.26")
                if answer.status != 200:
                    raise HistoryError(f"{place} cannot be lifted: {answer.body}")
                # Nova keeps what Placement said for five minutes.
                world.computes[name].manager.rt.reportclient.clear_provider_cache()
                world.totals.lifted += 1
                self.log.append(f"lifted: {place}")

    def _expect_all(self) -> None:
        """On each node a server gets all devices, and gives them back."""
        world = self.world
        servers = []
        for _ in HOSTS:
            body = world._build_server(flavor_id=world.flavors["all"], networks="none")
            servers.append(world.api.post_server({"server": body})["id"])
            world.settle()
        told = [self._shown(each) for each in servers]
        if not all(" active" in each for each in told):
            raise HistoryError(f"not every device is to be had at the end: {told}")
        for each in servers:
            self._delete(each)
        world.update_all()
        self.judge.check(HOSTS)
