# SPDX-License-Identifier: Apache-2.0
"""Random histories of two nodes: users, operators, faults and kills in any order.

Nova's own stack in one process, with its guests (:mod:`tests.functional.lifecycle`)
and a nova-compute that can die at any of its steps
(:mod:`tests.functional.histories_truth`). A history is made from a seed: one after the
other, something happens, nova-compute may die in the middle of it and starts again, and
after each the node is looked at. At the end everything is brought in order as users and
operators do, and every device must be offered again.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import sqlalchemy
from nova import context as nova_context
from nova import exception
from nova.db.main import api as main_db
from nova.tests.functional.api import client
from nova.virt.libvirt import event as libvirtevent
from placement import db_api as placement_db

from nova_hpc.tenancy import reserve
from nova_hpc.tenancy.ledger import copy_of
from nova_hpc.tenancy.step import View
from tests.functional import fixtures
from tests.functional.driver_base import DriverTest
from tests.functional.histories_truth import KilledError, Mortal, Truth
from tests.functional.lifecycle.domains import FaithfulDomains
from virt_driver_patches.domain import attach

HOSTS: Final = ("alpha", "beta")
#: Two GPUs and two virtual functions below one switch.
SHAPE: Final = fixtures.Shape((fixtures.Switch(gpus=2, pfs=1, vfs=2),))
FLAVORS: Final = {
    "pair": {"pci_passthrough:alias": "gpu:1,vf:1", "hpc:affinity": "switch"},
    "gpu": {"pci_passthrough:alias": "gpu:1", "hpc:affinity": "switch"},
    "stock": {"pci_passthrough:alias": "gpu:1"},
    "all": {"pci_passthrough:alias": "gpu:2,vf:2", "hpc:affinity": "switch"},
}
#: Seconds after which services that still do something are taken for hung: of their own CPU
#: time, since a busy machine lets them wait, and by the clock.
_PATIENCE: Final = (20.0, 1200.0)
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


class HistoryError(AssertionError):
    """What must never be has been; the text holds the seed and the history."""


@attrs.frozen
class Shown:
    """A server by Nova's database."""

    state: str
    task: str | None
    host: str | None

    def __str__(self) -> str:
        task = f" ({self.task})" if self.task else ""
        return f"{self.state}{task} on {self.host}"


@attrs.define
class Totals:
    """What has happened in some histories."""

    histories: int = 0
    operations: int = 0
    kills: int = 0
    by_name: dict[str, int] = attrs.field(factory=dict)
    steps: set[str] = attrs.field(factory=set)
    left_behind: int = 0
    released: int = 0
    lifted: int = 0
    #: Devices that were offered for one update longer than they should be, when a server
    #: was gone that Nova had freed after the node had looked.
    late: int = 0


class HistoryTest(DriverTest):
    """Two nodes in which histories happen, one after the other."""

    CAST_AS_CALL = False

    def setUp(self) -> None:
        super().setUp()
        # Nova's fixture formats every line, which takes longer than what is logged.
        logging.disable(logging.INFO)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.flags(running_deleted_instance_action="noop")
        # Every look tries a suspect device again.
        self.flags(suspect_retry=0.0, suspect_retry_most=0.0, group="hpc")
        self.flags(device_detach_timeout=1, device_detach_attempts=1, group="libvirt")
        self.useFixture(fixtures.fixtures.MonkeyPatch(f"{attach.__name__}._PAUSE", 0.0))
        self.no_libvirt: set[str] = set()
        self.down: set[str] = set()
        self.connections: dict[str, Any] = {}
        self.truth = self.useFixture(Truth(self._host_of))
        self.mortal = self.useFixture(Mortal(self._manager_of))
        self.guests = self.useFixture(FaithfulDomains(self._removed))
        self.useFixture(fixtures.Moves())
        for name in HOSTS:
            self.host(name, SHAPE)
            self._seize(name)
        self.flavors = {name: self.make_flavor(specs) for name, specs in FLAVORS.items()}
        self.totals = Totals()
        self.update_all()
        self.first = {name: self.providers_of(name) for name in HOSTS}

    # -- hosts -----------------------------------------------------------------------

    def _host_of(self, thing: Any) -> str | None:
        for name, tree in self.sysfs.items():
            if thing == tree.root or thing is self.connections.get(name):
                return name
        return None

    def _manager_of(self, root: Path) -> Any:
        name = self._host_of(root)
        return self.computes[name].manager if name in self.computes else None

    def _seize(self, name: str) -> None:
        """Remember the host's libvirt, and let it be away at times."""
        host = self.computes[name].driver._host
        connection = self.connections.setdefault(name, host.get_connection())

        def connect() -> Any:
            if name in self.no_libvirt:
                raise exception.HypervisorUnavailable(host=name)
            return connection

        host.get_connection = connect

    def restart(self, name: str) -> None:
        """nova-compute starts again, with the guests that there are."""
        tree = self.sysfs[name]
        self.flags(sysfs_root=str(tree.root), ledger_file=str(tree.root / "ledger"), group="hpc")
        self.no_libvirt.discard(name)
        if name in self.computes:
            compute = self.computes.pop(name)
            self.compute_rp_uuids.pop(name)
            compute.manager._in_progress_tasks.clear()
            compute.stop()
        cell = self.host_mappings[name].cell_mapping.name
        self.start_compute(name, cell_name=cell, connection=self.connections[name])
        self._seize(name)
        self.down.discard(name)
        self.settle()

    def settle(self) -> None:
        """Wait until no service has anything to do."""
        ends = time.process_time() + _PATIENCE[0], time.monotonic() + _PATIENCE[1]
        while not self.mortal.idle(self.down):
            if time.process_time() > ends[0] or time.monotonic() > ends[1]:
                raise HistoryError("services do not come to rest")
            time.sleep(0.01)

    def update_all(self) -> None:
        """The periodic update of every host; Nova goes on when one fails."""
        for name in HOSTS:
            with contextlib.suppress(exception.HypervisorUnavailable):
                self.update(name)

    def _removed(self, connection: Any, server: str, alias: str) -> None:
        name = self._host_of(connection)
        if name in self.computes:
            self.computes[name].driver.emit_event(libvirtevent.DeviceRemovedEvent(server, alias))

    def known_domains(self, name: str) -> dict[str, Any]:
        """By UUID."""
        return {each.UUIDString(): each for each in self.connections[name]._vms.values()}

    def devices(self, name: str) -> list[str]:
        """What can be given, by address."""
        return [each.address for each in SHAPE.functions() if each.kind != "pf"]

    # Objects of Nova and answers of the API take many times longer than these queries.

    def nova_rows(self, cell: str, query: str) -> list[Any]:
        """Rows of the database of one of Nova's cells."""
        context = nova_context.get_admin_context()
        with nova_context.target_cell(context, self.cell_mappings[cell]) as target:
            engine = main_db.get_context_manager(target).writer.get_engine()
            with engine.connect() as connection:
                return list(connection.execute(sqlalchemy.text(query)))

    def servers(self) -> dict[str, Shown]:
        """What Nova has of servers, by UUID."""
        query = "SELECT uuid, vm_state, task_state, host FROM instances WHERE deleted = 0"
        return {
            server: Shown(state, task, host)
            for cell in self.cell_mappings
            for server, state, task, host in self.nova_rows(cell, query)
        }

    def _pci(self, name: str) -> list[Any]:
        return self.nova_rows(
            self.host_mappings[name].cell_mapping.name,
            "SELECT d.address, d.status, d.instance_uuid FROM pci_devices d "
            "JOIN compute_nodes n ON n.id = d.compute_node_id "
            f"WHERE d.deleted = 0 AND n.deleted = 0 AND n.host = '{name}'",
        )

    def tracked(self, name: str) -> dict[str, str]:
        """Address -> status of the devices that Nova tracks on a host."""
        return {address: status for address, status, _ in self._pci(name)}

    def taken(self, name: str) -> dict[str, str]:
        """Address -> server, by Nova's records."""
        return {
            address: server
            for address, status, server in self._pci(name)
            if status in ("claimed", "allocated")
        }

    def asked(self, query: str) -> list[Any]:
        """Rows of Placement's database."""
        engine = placement_db.placement_context_manager.writer.get_engine()
        with engine.connect() as connection:
            return list(connection.execute(sqlalchemy.text(query)))

    def providers_of(self, name: str) -> dict[str, str]:
        """Name -> UUID of the providers of a host's devices."""
        rows = self.asked("SELECT name, uuid FROM resource_providers")
        return {each: found for each, found in rows if each.startswith(f"{name}_")}

    def _inventories(self, name: str, field: str) -> dict[str, int]:
        rows = self.asked(
            f"SELECT p.name, i.{field} FROM resource_providers p "
            "LEFT JOIN inventories i ON i.resource_provider_id = p.id"
        )
        found: dict[str, int] = {}
        for provider, amount in rows:
            host, _, address = provider.partition("_")
            if host == name and address:
                found[address] = found.get(address, 0) + (amount or 0)
        return found

    def allocations(self) -> dict[str, list[str]]:
        """Consumer -> providers, of everything in Placement."""
        found: dict[str, list[str]] = {}
        for consumer, provider in self.asked(
            "SELECT DISTINCT a.consumer_id, p.name FROM allocations a "
            "JOIN resource_providers p ON p.id = a.resource_provider_id"
        ):
            found.setdefault(consumer, []).append(provider)
        return found

    @contextlib.contextmanager
    def told(self, history: History) -> Iterator[None]:
        """Say in an error how it came to be."""
        try:
            yield
        except Exception as error:
            told = "\n  ".join(history.log)
            text = f"seed {history.seed}: {error}\n  {told}"
            raise HistoryError(text) from error


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

    # -- the course --------------------------------------------------------------------

    def run(self, operations: int) -> None:
        """Let so many things happen, and bring everything in order."""
        world = self.world
        with world.told(self):
            for _ in range(operations):
                self._one()
            self.log.append("-- everything is brought in order")
            self._end()
        world.totals.histories += 1

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
            self.check(())
            self._revive(died[0])
        updated = [name for name in HOSTS if self.random.random() < 0.5]
        for name in updated:
            world.update(name)
        self.check(updated)

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

    # -- what must be, always ------------------------------------------------------------------

    def check(self, updated: Collection[str]) -> None:
        """Raise an error about whatever must not be.

        In an update the node looks first, and then Nova frees the devices of servers that
        have left. Until the next look they are offered, and given to nobody: what is
        checked before a start sees the mark, and the domain.

        :param updated: hosts whose periodic update has run since the last change.
        :raises HistoryError: it is.
        """
        world = self.world
        problems = list(world.truth.violations)
        for name in HOSTS:
            if name in world.down:
                continue
            problems += [f"{name}: {text}" for text in self._wrong(name, name in updated)]
            early = list(self._offered(name)) if name in updated else []
            if early:
                world.totals.late += len(early)
                self.log.append(f"freed after the look: {name}: {'; '.join(early)}")
                world.update(name)
                problems += [f"{name}: {text}" for text in self._offered(name)]
        if problems:
            raise HistoryError("; ".join(problems))

    def _offered(self, name: str) -> Iterator[str]:
        """What is offered although somebody has it, or it is not clean."""
        world = self.world
        tracked, taken = world.tracked(name), world.taken(name)
        free = {each for each, status in tracked.items() if status == "available"}
        for address, server in world.ledger(name).marked.items():
            if address in free and address not in taken:
                yield f"{address} is offered with the mark of {server}"
        for (host, address), server in world.truth.running.items():
            if host == name and address in free:
                yield f"{address} is offered, and {server} has it"
        for (host, address), server in world.truth.traces.items():
            if host == name and address in free:
                yield f"{address} is offered with the traces of {server}"

    def _wrong(self, name: str, updated: bool) -> Iterator[str]:
        world = self.world
        ledger = world.ledger(name)
        if ledger.lost and name not in self.lost:
            yield f"the ledger is lost: {ledger.problems}"
        if not updated:
            return
        tracked = world.tracked(name)
        withheld = world.stats_of(name).withheld
        given = world.given_by_placement(name)
        free = {each for each, status in tracked.items() if status == "available"}
        for address in world.devices(name):
            if address not in tracked and address not in withheld:
                yield f"{address} is lost: neither offered nor withheld"
        if ledger.lost and free:
            yield f"offered without a ledger: {sorted(free)}"
        taken, marked = world.taken(name), ledger.marked
        for place, count in {} if ledger.lost else given.items():
            mine = [each for each in world.devices(name) if place in (each, _adapter(each))]
            free_here = [each for each in mine if each in free and each not in marked]
            if count > len(free_here) + len([each for each in mine if each in taken]):
                yield f"Placement gives {count} of {place}, of which {free_here} are free"
        for address, why in withheld.items():
            left = 0
            if reserve.BY_OPERATOR in why and why != reserve.BY_OPERATOR:
                # A part of an adapter's functions: Placement gives the others.
                left = ledger.providers[address].total - ledger.providers[address].operators
            if given.get(address, 0) > left and address not in tracked and not ledger.lost:
                yield f"{address} is withheld, and Placement gives it"

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
        self.check(HOSTS)
        self._remove_allocations()
        self._release()
        self._lift()
        world.update_all()
        world.update_all()
        self.check(HOSTS)
        self._expect_new()
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
                candidate = View(node.source.read().node, {address: role}).candidate(address)
                refused = node.tenancy.step("hygiene").release(candidate, node.owners(name))
                if refused:
                    raise HistoryError(f"{name} {address} cannot be released: {refused}")
                world.totals.released += 1

    def _lift(self) -> None:
        """Where a ledger was lost, nobody knows any more that the node has reserved a device.

        It is shown as reserved by an operator, who lifts it (docs/source/admin/reserved.rst).
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

    def _expect_new(self) -> None:
        """The nodes are as on their first day."""
        world = self.world
        for name in HOSTS:
            expected = {
                "tracked": dict.fromkeys(world.devices(name), "available"),
                "withheld": {},
                "marked": {},
                "quarantined": {},
                "domains": [],
                "providers": world.first[name],
                "traces": {},
            }
            ledger = world.ledger(name)
            now = {
                "tracked": world.tracked(name),
                "withheld": dict(world.stats_of(name).withheld),
                "marked": ledger.marked,
                "quarantined": ledger.quarantined,
                "domains": sorted(world.known_domains(name)),
                "providers": world.providers_of(name),
                "traces": {k: v for k, v in world.truth.traces.items() if k[0] == name},
            }
            for key, value in expected.items():
                if now[key] != value:
                    raise HistoryError(f"{name}: {key} is {now[key]} at the end, not {value}")
            given = world.given_by_placement(name)
            if sum(given.values()) != len(world.devices(name)):
                raise HistoryError(f"{name}: Placement gives {given} at the end")

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
        self.check(HOSTS)


def _adapter(address: str) -> str:
    """The physical function of a virtual one of :data:`SHAPE`."""
    return f"{address[:-1]}0"
