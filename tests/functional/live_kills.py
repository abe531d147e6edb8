# SPDX-License-Identifier: Apache-2.0
"""A server moves live, and nova-compute of one of its hosts is killed at a step of the move."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs
from nova import context as nova_context
from nova import exception, objects
from nova.compute import task_states
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional.histories import world
from tests.functional.histories.judge import Judge
from tests.functional.histories.truth import KilledError
from tests.functional.histories.world import HOSTS, HistoryError, HistoryTest
from tests.functional.kills.hypervisor import devices_of
from tests.functional.live_base import LiveBase

PAIR: Final = {"pci_passthrough:alias": "gpu:1,vf:1", "hpc:affinity": "switch"}
CELLS: Final = {
    **PAIR,
    "hw:numa_nodes": "1",
    "hw:cpu_policy": "dedicated",
    "hw:pci_numa_affinity_policy": "preferred",
}
#: Statuses of moves that Nova works on no more.
_FINAL: Final = frozenset({"completed", "failed", "error", "cancelled", "done"})
#: Updates after which a node is as its server's records say.
_UPDATES: Final = 3
#: Nova's verbs for a user whose server was moving, one after the other.
VERBS: Final = ("delete", "reboot", "move")


@attrs.frozen
class Kill:
    """One death, and what was left behind."""

    number: int
    #: The step that was not done; None: the move has fewer steps.
    step: str | None
    #: The server by Nova, after the restart.
    server: str
    #: By status.
    moves: str
    #: Whether its host had to be told with ``reset-state`` before.
    reset: bool
    complaints: tuple[str, ...] = ()


class LiveKillWorld(HistoryTest, LiveBase):
    """Two nodes between which a server moves.

    :cvar WITH_CELLS: its CPUs are pinned.
    """

    WITH_CELLS = False

    def setUp(self) -> None:
        #: Whether libvirt gives up in the middle of a copy.
        self.copy_fails = False
        super().setUp()
        self.migrate = self._move_domain
        self.flavor = self.make_flavor(CELLS if self.WITH_CELLS else PAIR)
        self.log: list[str] = []
        self.judge = Judge(self, set(), self.log)
        self.victim = ""

    def host(self, name: str, shape: Any, *args: Any, **options: Any) -> str:
        entries = [{**entry, "live_migratable": "yes"} for entry in shape.device_spec()]
        if self.WITH_CELLS:
            options["cpu_dedicated_set"] = "1-3,5-7"
        return super().host(name, shape, entries, **options)

    # -- libvirt -------------------------------------------------------------------

    def _move_domain(self, domain: Any, there: Any, params: Mapping[str, str]) -> None:
        """The work of both libvirts, which go on when a nova-compute dies."""
        to, source = there.driver._host.get_connection(), domain._connection
        name = domain.name()
        with self.mortal.inside(None):
            self._libvirt_at_work("the copy begins")
            new = to.defineXML(params["destination_xml"])
            new.createWithFlags(fakelibvirt.VIR_DOMAIN_START_PAUSED)
            self._libvirt_at_work("the memory is copied")
            if self.copy_fails:
                new.destroy()
                new.undefine()
                domain.fail_job()
                return
            new._state = fakelibvirt.VIR_DOMAIN_RUNNING
            domain.complete_job()
            source._vms[name].destroy()
            source._vms[name].undefine()
            self._libvirt_at_work("the copy has ended")

    def _libvirt_at_work(self, point: str) -> None:
        """Updates run meanwhile, and each nova-compute may die here."""
        for name in HOSTS:
            manager = self.computes[name].manager
            with contextlib.suppress(KilledError):
                self.mortal.step(f"libvirt: {point}", manager)

    # -- one death -------------------------------------------------------------------

    def kill(self, number: int) -> Kill:
        """Kill :attr:`victim` at a step of a move, start it again, and let the user recover."""
        server = self._begin()
        self.mortal.arm(number, self.victim)
        self._ask(server)
        self.settle()
        died = self.mortal.disarm()
        if died is None:
            self.mortal.kill(self.computes[self.victim].manager)
        self._return(deliver=bool(number % 2))
        return self._judge_kill(server, number, died and died[1])

    def _begin(self) -> dict[str, Any]:
        body = self._build_server(flavor_id=self.flavor, networks="none", host="alpha")
        server = self.api.post_server({"server": body})
        self.settle()
        if self.servers()[server["id"]].state != "active":
            raise HistoryError(f"the world is not in order: {self.servers()}")
        return dict(server)

    def _return(self, deliver: bool) -> None:
        """The other host's update, the restart, and updates of both.

        :param deliver: the dead service's messages have outlived it.
        """
        self.down.add(self.victim)
        (other,) = set(HOSTS) - {self.victim}
        self.update(other)
        self.judge.check([other])
        self.restart(self.victim)
        held, self.mortal.held = self.mortal.held, []
        for message in held if deliver else ():
            with contextlib.suppress(exception.NovaException):
                message(self.computes[self.victim].manager)
        self.settle()
        for _ in range(_UPDATES):
            self.update_all()
        self.judge.check(HOSTS)

    def _judge_kill(self, server: dict[str, Any], number: int, step: str | None) -> Kill:
        complaints = list(self._wrong_of(server))
        shown = self.servers()[server["id"]]
        moves = ", ".join(each.status for each in self._moves(server))
        self._want_all()
        reset, verb = False, VERBS[number % len(VERBS)]
        try:
            reset = self._recover(server, verb)
        except (HistoryError, AssertionError) as error:
            complaints.append(f"{verb}: {error}")
        try:
            self._end(server)
        except (HistoryError, AssertionError) as error:
            complaints.append(f"the end: {error}")
        return Kill(number, step, str(shown), moves, reset, tuple(complaints))

    def _moves(self, server: Mapping[str, Any]) -> list[objects.Migration]:
        context = nova_context.get_admin_context()
        found = objects.MigrationList.get_by_filters(context, {"instance_uuid": server["id"]})
        return sorted(found, key=lambda each: each.id)

    def _running(self, server: str) -> dict[str, list[str]]:
        """Host -> devices of the server's domain that runs there."""
        return {
            name: devices_of(domains[server].XMLDesc(0))
            for name in HOSTS
            if server in (domains := self.known_domains(name)) and domains[server].isActive()
        }

    def _wrong_of(self, server: Mapping[str, Any]) -> Iterator[str]:
        """What is not as it must be of a server whose nodes had their updates."""
        uuid = server["id"]
        shown, running = self.servers()[uuid], self._running(uuid)
        yield from (f"{each} runs nowhere" for each in [uuid] if not running)
        yield from (f"it runs on {sorted(running)}" for _ in [uuid] if len(running) > 1)
        if list(running) != [shown.host]:
            yield f"Nova has it on {shown.host}, and it runs on {sorted(running)}"
        for move in self._moves(server):
            if move.status not in _FINAL:
                yield f"a move is still {move.status}"
        if shown.task is not None:
            yield f"its task is {shown.task}"
        held = {name: set(running.get(name, ())) for name in HOSTS}
        for name in HOSTS:
            for what, found in (
                ("Nova has", set(self.taken(name))),
                ("the ledger has", set(self.ledger(name).marked)),
                ("withheld are", set(self.stats_of(name).withheld)),
            ):
                expected = set() if what.startswith("withheld") else held[name]
                if found != expected:
                    yield f"{name}: {what} {sorted(found)}, and its domains {sorted(held[name])}"
        providers = {
            f"{name}_{_provider_of(each).upper()}" for name in HOSTS for each in held[name]
        }
        allocations = {
            each: {place for place in places if "_" in place}
            for each, places in self.allocations().items()
        }
        if allocations != {uuid: providers}:
            yield f"Placement has {allocations}, not {providers}"
        status = {each: self._pci_of(each) for each in HOSTS}
        for name in HOSTS:
            odd = {a: s for a, s in status[name].items() if s not in ("available", "allocated")}
            if odd:
                yield f"{name}: {odd}"

    def _pci_of(self, name: str) -> dict[str, str]:
        tracker = self.computes[name].manager.rt.pci_tracker
        mine = {device.address: device.status for device in tracker.pci_devs}
        if mine != self.tracked(name):
            return {each: f"{mine[each]} in memory only" for each in mine}
        return mine

    # -- what users and operators do --------------------------------------------------

    def _want_all(self) -> None:
        """Another server wants every device of each node before anybody has recovered."""
        for name in HOSTS:
            body = self._build_server(flavor_id=self.flavors["all"], networks="none", host=name)
            greedy = self.api.post_server({"server": body})
            self.settle()
            self.judge.check(())
            self.api.delete_server(greedy["id"])
            self.settle()
        self.update_all()

    def _recover(self, server: dict[str, Any], verb: str) -> bool:
        """Use a verb of Nova, and see that all is in order; whether the state was reset before."""
        shown = self.servers()[server["id"]]
        reset = shown.task is not None or shown.state != "active"
        if reset:
            self.api.post_server_action(server["id"], {"os-resetState": {"state": "active"}})
        if verb == "delete":
            return reset
        if list(self._running(server["id"])) != [shown.host]:
            verb = "reboot"  # Nova refuses to move a server that it finds shut off
        if verb == "reboot":
            self._end_strays(server["id"], shown.host)
            self.api.post_server_action(server["id"], {"reboot": {"type": "HARD"}})
            self.settle()
        else:
            self.copy_fails, before = False, self.copy_fails
            for name in HOSTS:
                for domain in self.known_domains(name).values():
                    domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_NONE
            self._ask(server)
            self.settle()
            self.copy_fails = before
            if self.servers()[server["id"]].host == shown.host:
                status = [each.status for each in self._moves(server)]
                raise HistoryError(f"the server cannot move again: {status}")
        for _ in range(_UPDATES):
            self.update_all()
        self.judge.check(HOSTS)
        wrong = "; ".join(self._wrong_of(server))
        if wrong:
            raise HistoryError(wrong)
        return reset

    def _end_strays(self, server: str, host: str | None) -> None:
        """The operator ends a guest that Nova does not have there."""
        for name in self._running(server):
            if name != host:
                self.log.append(f"a guest is ended on {name}")
                self.known_domains(name)[server].destroy()
                self.known_domains(name)[server].undefine()

    def _end(self, server: Mapping[str, Any]) -> None:
        """The server is deleted, and the nodes are as on the first day."""
        self.api.delete_server(server["id"])
        self.settle()
        if self.servers():
            raise HistoryError(f"the server cannot be deleted: {self.servers()}")
        self._end_strays(server["id"], None)
        for _ in range(_UPDATES):
            self.update_all()
        self.judge.check(HOSTS)
        if self.allocations():
            raise HistoryError(f"left in Placement: {self.allocations()}")
        self.judge.expect_new()


def _provider_of(address: str) -> str:
    """The function that Placement counts; that of :data:`world.SHAPE`."""
    kinds = {each.address: each.kind for each in world.SHAPE.functions()}
    return f"{address[:-1]}0" if kinds[address] == "vf" else address


MIGRATING: Final = task_states.MIGRATING
