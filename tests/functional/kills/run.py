# SPDX-License-Identifier: Apache-2.0
"""The course of a run: trace a clean one, then kill at each step and recover."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from tests.functional.kills import agent, verdict
from tests.functional.kills.faults import NOBODY, PHASES, Fault, Phase
from tests.functional.kills.life import LOG, KilledError, Life, LifeError
from tests.functional.kills.verdict import Facts

#: The point after the last step.
END: Final = "the end"
#: Of a world's log that are kept with a complaint.
_LINES: Final = 60
#: Looks after which the devices must be as on the first day, where more than
#: nova-compute has died.
_LOOKS: Final = 3
#: Phases that are entered in one world.
_ENTERED: Final = 25


@attrs.frozen
class Step:
    """One point to die at."""

    phase: Phase
    number: int
    name: str
    #: How many of its name there are in its phase up to it: where a step of another name
    #: comes earlier or later, as in resets side by side, it is still the same.
    which: int = 1
    fault: Fault = Fault.KILL


@attrs.frozen
class Row:
    """What became of one kill."""

    phase: str
    number: int
    step: str
    #: The server's status after the restart; gone: the API knows it no more.
    status: str
    #: What became of a server that wants every device, before anybody recovered.
    meanwhile: str
    devices: str
    complaints: list[str]
    seconds: float
    #: What happened at the step, a value of :class:`Fault`.
    fault: str = Fault.KILL.value
    #: What the services have warned of, where there are complaints.
    log: list[str] = attrs.field(factory=list)

    @property
    def verdict(self) -> str:
        return "; ".join(self.complaints) or "ok"


class Runner:
    """Kills lives in worlds below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trace = folder / "trace"
        self.worlds = 0
        #: Whether GPUs have a stage in the world that there is.
        self.stage = False
        #: Whether only a vendor's cleaner resets its devices.
        self.vendor = False
        #: Phases that were entered in it.
        self.entered = 0
        self.life: Life
        self.first: dict[str, Any]
        self.flavors: dict[str, str]

    @property
    def world(self) -> Path:
        return self.folder / f"w{self.worlds}"

    def begin(self, stage: bool = False, vendor: bool = False) -> None:
        """A world where nothing has happened, and a life in it.

        :param stage: GPUs have a stage between two servers.
        :param vendor: only a vendor's cleaner resets devices.
        """
        self.worlds += 1
        self.entered = 0
        self.stage, self.vendor = stage, vendor
        self.life = Life(self.world, stage=stage, vendor=vendor)
        self.flavors = self.life.ask("flavors")
        # Nobody knew who had the devices: what is due at a first start, and what Nova records.
        for each in ("clean", "update") if stage else ("update",):
            self.life.ask(each)
        self.first = self.life.ask("facts")
        complaints = verdict.clean(self.first, self.first)
        if complaints or not self.first["tracked"]:
            raise LifeError(f"a new world is not clean: {complaints}")

    def enter(self, phase: Phase) -> None:
        """Go on in a world of this kind."""
        self.entered += 1
        # A service that is not killed leaves threads behind when it is started again.
        other = (phase.stage, phase.vendor) != (self.stage, self.vendor)
        if other or self.entered > _ENTERED:
            self.life.kill()
            self.begin(phase.stage, phase.vendor)

    def steps(self, phases: Sequence[Phase] = PHASES) -> list[Step]:
        """The steps of a clean run, in their order, and the end of each phase."""
        found = []
        for phase in phases:
            self.enter(phase)
            server = self._before(phase)
            with self._traced():
                server = self._do(phase, server)
                self.life.ask("disarm")
                names = [*self._names(), END]
            found += [
                Step(phase, number, name, names[:number].count(name))
                for number, name in enumerate(names, 1)
            ]
            if phase.act == "create":
                self.life.ask("delete", server)
            complaints = self._look(self.first)[1]
            if complaints:
                raise LifeError(f"the clean run leaves {complaints}")
        return found

    def _before(self, phase: Phase) -> str:
        """What a phase begins with; the server that is there then, or "".

        :raises LifeError: it cannot begin.
        """
        if phase.act == "create":
            return ""
        server, status, fault = self.life.ask("create", self.flavors["one"])
        if status != "ACTIVE":
            raise LifeError(f"{status}: {fault}")
        if phase.act == "delete":
            return str(server)
        self.life.ask("delete", server)
        self.life.ask("update")
        return ""

    def _do(self, phase: Phase, server: str) -> str:
        """What a phase is about, without a fault; its server.

        :raises LifeError: it fails.
        """
        if phase.act == "create":
            server, status, fault = self.life.ask("create", self.flavors["one"])
            if status != "ACTIVE":
                raise LifeError(f"the clean run: {status}: {fault}")
            return str(server)
        self.life.ask(*self._order(phase, server))
        return server

    def _order(self, phase: Phase, server: str) -> tuple[str, ...]:
        words = {
            "create": ("create", self.flavors["one"]),
            "delete": ("delete", server),
            "clean": ("clean",),
        }
        return words[phase.act]

    def _look(self, first: Facts) -> tuple[Facts, list[str]]:
        """An update, and where GPUs have a stage what it needs to pass; what is not as before."""
        self.life.ask("update")
        if self.stage:
            self.life.ask("clean")
        facts = self.life.ask("facts")
        return facts, verdict.clean(first, facts)

    @contextlib.contextmanager
    def _traced(self, at: Step | None = None) -> Iterator[None]:
        self.trace.write_text("")
        # Also for services that are not root.
        self.trace.chmod(0o666)
        where = "" if at is None else f"{at.which} {at.name}"
        fault = "" if at is None or at.fault.kills else at.fault.value
        environ = {agent.TRACE: str(self.trace), agent.AT: where, agent.WITH: fault}
        self.life.ask("arm", environ)
        yield

    def _names(self) -> list[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []

    # -- one step ----------------------------------------------------------------

    def kill(self, step: Step) -> Row:
        """Die at a step, start again, recover; the next step goes on from there."""
        started = time.monotonic()
        try:
            server = self._die(step)
            status, meanwhile, devices, complaints = self._recover(server, step.fault)
        except (KilledError, LifeError) as error:
            status, meanwhile, devices = "?", "?", "?"
            complaints = [f"{type(error).__name__}: {error}"]
        log = self._log() if complaints else []
        if complaints:
            # What comes next must not suffer from it.
            self.life.kill()
            self.begin(self.stage, self.vendor)
        return Row(
            phase=step.phase.name,
            number=step.number,
            step=step.name,
            status=status,
            meanwhile=meanwhile,
            devices=devices,
            complaints=complaints,
            seconds=round(time.monotonic() - started, 1),
            fault=step.fault.value,
            log=log,
        )

    def _log(self) -> list[str]:
        """The last warnings and errors of the services."""
        path = self.world / LOG
        return path.read_text().splitlines()[-_LINES:] if path.exists() else []

    def _die(self, step: Step) -> str:
        """Let the fault happen at a step; the server that it was about, or "": it is new, or gone.

        :raises LifeError: the step was not reached.
        """
        self.enter(step.phase)
        server = self._before(step.phase)
        order = self._order(step.phase, server)
        at = None if step.name == END else step
        with self._traced(at):
            try:
                self.life.ask(*order)
            except KilledError:
                return server
        struck = self.life.ask("disarm")
        if at is not None and not struck:
            raise LifeError("the step was not reached")
        if step.fault.kills:
            self.life.kill()
        elif at is None:
            self.life.ask("strike", step.fault.value)
        return server

    def _deleted(self) -> list[str]:
        """Users delete their servers while nova-compute is down."""
        life = Life(self.world, compute=False)
        life.ask("force_down", True)
        servers = life.ask("servers")
        complaints = [
            f"server {each} cannot be deleted locally"
            for each in servers
            if not life.ask("delete", each)
        ]
        life.kill()
        return complaints

    def _recover(self, server: str, fault: Fault) -> tuple[str, str, str, list[str]]:
        """Start nova-compute again, if it has died, and do what users and operators do."""
        complaints = self._deleted() if fault is Fault.LOCAL_DELETE else []
        if fault.kills:
            self.life = Life(self.world, stage=self.stage, vendor=self.vendor)
        life = self.life
        if fault is Fault.LOCAL_DELETE:
            life.ask("force_down", False)
        life.ask("return")
        life.ask("update")
        complaints += verdict.violations(life.ask("facts"))
        servers = life.ask("servers")
        status = ", ".join(servers.values()) or "gone"
        if len(servers) > 1 or (server and set(servers) - {server}):
            complaints.append(f"servers: {servers}")
        # Somebody wants everything, before anybody has recovered anything.
        greedy, meanwhile, _ = life.ask("create", self.flavors["all"])
        complaints += verdict.violations(life.ask("facts"))
        for each in [greedy, *servers]:
            if not life.ask("delete", each):
                complaints.append(f"server {each} cannot be deleted")
        facts, more = self._settled(fault)
        complaints += more
        devices = verdict.state(self.first, facts)
        if not complaints and meanwhile != "ACTIVE":
            complaints += self._take_all()
        return status, meanwhile, devices, complaints

    def _settled(self, fault: Fault) -> tuple[dict[str, Any], list[str]]:
        """The facts when no server is left, and what is not as on the first day."""
        life, complaints = self.life, []
        life.ask("update")
        facts = life.ask("facts")
        if fault is Fault.KILL and not self.stage:
            return facts, verdict.clean(self.first, facts)
        complaints += verdict.held(facts) + verdict.violations(facts)
        if fault in (Fault.LOCAL_DELETE, Fault.LIBVIRT):
            # Where libvirt was away, Nova has left a domain that is defined.
            life.ask("reap")
        if fault is Fault.ALLOCATION:
            # Nobody is named before the second look.
            life.ask("update")
            if NOBODY not in " ".join(life.ask("facts")["notes"]):
                complaints.append("nobody says that an allocation was left behind")
            life.ask("remove")
        # What is suspect is tried again, and what is clean is offered, by the next looks.
        for _ in range(_LOOKS):
            facts, more = self._look(self.first)
            if not more:
                break
        return facts, complaints + more

    def _take_all(self) -> list[str]:
        """Nothing is lost: one server gets every device, and gives it back."""
        server, status, fault = self.life.ask("create", self.flavors["all"])
        if status != "ACTIVE":
            return [f"no server can have all devices: {status}: {fault}"]
        complaints = verdict.taken(self.first, self.life.ask("facts"), server)
        self.life.ask("delete", server)
        return complaints + self._look(self.first)[1]


def chosen(steps: Sequence[Step], wanted: Sequence[str]) -> list[Step]:
    """Those whose ``phase:name`` holds any of the texts; without a text all.

    :raises ValueError: a text chooses nothing.
    """
    if not wanted:
        return list(steps)
    found = []
    for text in wanted:
        mine = [step for step in steps if text in f"{step.phase.name}: {step.name}"]
        if not mine:
            raise ValueError(f"no step holds {text!r}")
        found += [step for step in mine if step not in found]
    return found
