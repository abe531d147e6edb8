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
_UPDATES: Final = 2
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
    #: Whether libvirt has moved the guest, and Nova does not know.
    stray: bool
    complaints: tuple[str, ...] = ()


class LiveKillWorld(HistoryTest, LiveBase):
    """Two nodes between which a server moves.

    :cvar WITH_CELLS: its CPUs are pinned.
    """

    WITH_CELLS = False

    def setUp(self) -> None:
        #: Whether libvirt gives up in the middle of a copy.
        self.copy_fails = False
        #: Whether other servers want all devices before a user recovers.
        self.others_want = True
        #: Whether both hosts have a periodic update in the middle of a copy.
        self.updates = True
        super().setUp()
        self.migrate = self._move_domain
        self.flavor = self.make_flavor(CELLS if self.WITH_CELLS else PAIR)
        self.log: list[str] = []
        self.judge = Judge(self, set(), self.log)
        #: The host whose nova-compute dies, and that whose steps count if it is another.
        self.victim = ""
        self.worker = ""

    def host(self, name: str, shape: Any, *args: Any, **options: Any) -> str:
        entries = [{**entry, "live_migratable": "yes"} for entry in shape.device_spec()]
        if self.WITH_CELLS:
            options["cpu_dedicated_set"] = "1-3,5-7"
        return super().host(name, shape, entries, **options)

    def _seize(self, name: str) -> None:
        super()._seize(name)
        # The conductor, which lives on, works no more on a move that it has accepted.
        self.computes[name].driver.hpc_moves.patience = 0.0

    # -- libvirt -------------------------------------------------------------------

    def _move_domain(self, domain: Any, there: Any, params: Mapping[str, str]) -> None:
        """The work of both libvirts, which go on when a nova-compute dies."""
        to, source = there.driver._host.get_connection(), domain._connection
        name = domain.name()
        with self.mortal.inside(None):
            self._libvirt_at_work("the copy begins")
            self._update_living()
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

    def _update_living(self) -> None:
        """The periodic updates, in the middle of a copy."""
        for name in HOSTS if self.updates else ():
            if not self.mortal.is_dead(self.computes[name].manager):
                with contextlib.suppress(KilledError):
                    self.update(name)

    def _libvirt_at_work(self, point: str) -> None:
        """Each nova-compute may die here."""
        for name in HOSTS:
            manager = self.computes[name].manager
            with contextlib.suppress(KilledError):
                self.mortal.step(f"libvirt: {point}", manager)

    # -- one death -------------------------------------------------------------------

    def kill(self, number: int, name: str | None = None) -> Kill:
        """Kill :attr:`victim` at a step of a move, start it again, and let the user recover.

        :param number: of the steps of :attr:`worker`; of those with the *name*, if there is one.
        """
        server = self._begin()
        victim = self.computes[self.victim].manager
        worker = self.worker or self.victim
        self.mortal.arm(number, worker, None if worker == self.victim else victim, name)
        self._ask(server)
        self.settle()
        died = self.mortal.disarm()
        if died is None:
            self.mortal.kill(victim)
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
        stray = self._is_stray(server)
        moves = ", ".join(each.status for each in self._moves(server))
        if self.others_want and number % 2:
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
        return Kill(number, step, str(shown), moves, reset, stray, tuple(complaints))

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

    def _is_stray(self, server: Mapping[str, Any]) -> bool:
        """Whether libvirt has moved the guest, and Nova does not know.

        Then each host keeps the devices that Nova gave it, until the operator ends the guest.
        """
        shown, running = self.servers()[server["id"]], self._running(server["id"])
        return len(running) == 1 and shown.host not in running

    def _lacks_devices(self, server: Mapping[str, Any]) -> bool:
        """Whether Nova has forgotten a part of the devices at the server's own host.

        It frees those of a source one by one. If it dies between two commits, and libvirt has
        moved the guest, the server has the others. It can be deleted.
        """
        taken = self.taken(str(self.servers()[server["id"]].host))
        asked = sum(each.count for each in self.instance(server).pci_requests.requests)
        return 0 < len(taken) < asked

    def _wrong_of(self, server: Mapping[str, Any]) -> Iterator[str]:
        """What is not as it must be of a server whose nodes had their updates."""
        uuid = server["id"]
        shown, running = self.servers()[uuid], self._running(uuid)
        stray = self._is_stray(server)
        # While Nova has it as moving, no update may judge its other host.
        stuck = shown.task == task_states.MIGRATING and not stray
        if not running:
            yield "it runs nowhere"
        if len(running) > 1:
            yield f"it runs on {sorted(running)}"
        for move in self._moves(server):
            if move.status not in _FINAL:
                yield f"a move is still {move.status}"
        if any(len(each) != len(set(each)) for each in running.values()):
            yield f"it has devices twice: {running}"
        if shown.task is not None and not stuck:
            yield f"its task is {shown.task}"
        held = {name: set(running.get(name, ())) for name in HOSTS}
        for name in set(HOSTS) - {shown.host} if stuck else ():
            held[name] = set(self.taken(name))
        if stray:
            held[str(shown.host)] = set(self.taken(str(shown.host)))
        for name in HOSTS:
            for what, found, expected in (
                ("Nova has", set(self.taken(name)), held[name]),
                ("the ledger has", set(self.ledger(name).marked), held[name]),
                ("withheld are", set(self.stats_of(name).withheld), set()),
            ):
                if found != expected:
                    yield f"{name}: {what} {sorted(found)}, not {sorted(expected)}"
        providers = {
            f"{name}_{_provider_of(each).upper()}"
            for name in HOSTS
            for each in (running.get(name, ()) if stuck else held[name])
        }
        allocations = {
            each: {place for place in places if "_" in place}
            for each, places in self.allocations().items()
        }
        lacks = self._lacks_devices(server)
        consumers = {uuid, *(each.uuid for each in self._moves(server))} if stray else {uuid}
        given = set().union(*allocations.values())
        right = given >= providers if lacks else given == providers
        if not right or not consumers.issuperset(allocations):
            yield f"Placement has {allocations}, not {providers}"
        status = {each: self._pci_of(each) for each in HOSTS}
        for name in HOSTS:
            expected = "available", "allocated", "claimed" if stray or stuck else "allocated"
            odd = {a: s for a, s in status[name].items() if s not in expected}
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
        if verb == "delete" or self._lacks_devices(server):
            return reset
        if list(self._running(server["id"])) != [shown.host]:
            verb = "reboot"  # Nova refuses to move a server that it finds shut off
        if self._is_stray(server):
            self._end_strays(server["id"], shown.host)
            self.update_all()
        done = self._reboot if verb == "reboot" else self._move_again
        if not done(server):
            # What the other host still has is free at its next update.
            self.update_all()
            if not done(server):
                raise HistoryError(f"refused: {[each.status for each in self._moves(server)]}")
        for _ in range(_UPDATES):
            self.update_all()
        self.judge.check(HOSTS)
        wrong = "; ".join(self._wrong_of(server))
        if wrong:
            raise HistoryError(wrong)
        return reset

    def _reboot(self, server: Mapping[str, Any]) -> bool:
        before = len(self.domains.given[server["id"]])
        self.api.post_server_action(server["id"], {"reboot": {"type": "HARD"}})
        self.settle()
        return len(self.domains.given[server["id"]]) > before

    def _move_again(self, server: Mapping[str, Any]) -> bool:
        before, self.copy_fails, fails = self.servers()[server["id"]], False, self.copy_fails
        for name in HOSTS:
            for domain in self.known_domains(name).values():
                domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_NONE
        self._ask(server)
        self.settle()
        self.copy_fails = fails
        return self.servers()[server["id"]].host != before.host

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
