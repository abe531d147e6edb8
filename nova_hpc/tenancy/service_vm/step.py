# SPDX-License-Identifier: Apache-2.0
"""The stage as a step: due before a server starts, passed before the next one does.

The rules, which hold whenever the service is killed:

* a device's stage is due, on the disk, before its server starts;
* until it has passed the device is given to nobody, offered by nobody, and reserved in
  Placement before Nova frees it;
* what has the device is on the disk before it gets it: its UUID is the device's mark, as a
  server's is, so that hygiene cleans the device after it as after any other;
* a stage begins only when Nova, libvirt and the kernel agree that nobody has the device,
  and below the device's lock until it has ended.

Nothing here waits in a thread of Nova's: the periodic update looks at the ledger, and a
thread of its own attends to what is due.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Final

import attrs

from nova_hpc.tenancy import health_states as policy
from nova_hpc.tenancy.health_states import Moment
from nova_hpc.tenancy.hygiene.cleaning import Cleaning
from nova_hpc.tenancy.hygiene.records import Records
from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.tenancy.owners import Owners
from nova_hpc.tenancy.service_vm import domain, stage
from nova_hpc.tenancy.service_vm.runner import Outcome, Runner
from nova_hpc.tenancy.service_vm.stage import Action, Mode, Phase, Seen
from nova_hpc.tenancy.sign import Sign, Symptom
from nova_hpc.tenancy.step import RefusedError, Step, Tenant, View, Withheld
from nova_hpc.topology.model import address_key
from nova_hpc.wire.ledger import SOMEBODY, Device, Ledger, State

#: Seconds between looks whether Nova has freed the devices of a server that has ended.
_POLL: Final = 2.0
#: Seconds for which that is expected.
_SOON: Final = 60.0


@attrs.define
class _Work:
    """What this process does, beside the ledger."""

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    running: bool = False
    again: bool = False
    #: Until when devices are expected to become free, by time.monotonic().
    soon: float = 0.0
    #: Domains of a killed process, of which the ledger knows nothing, were looked for.
    swept: bool = False
    #: The servers that there were when the service started have made their devices due.
    asked: bool = False
    #: Devices that this process is at work on.
    mine: set[str] = attrs.field(factory=set)
    view: View | None = None
    owners: Owners | None = None
    #: One sentence for each thing that has failed since it was asked last.
    notes: list[str] = attrs.field(factory=list)


def _spawn(attend: Callable[[], None]) -> None:
    threading.Thread(target=attend, name="hpc-stage", daemon=True).start()


@attrs.frozen
class Cleansing(Step):
    """Has the devices of some roles cleaned from within."""

    name: ClassVar[str] = "stage"

    records: Records
    cleaning: Cleaning
    #: Role -> where its devices are cleaned.
    modes: Mapping[str, Mode] = attrs.field(hash=False)
    runners: Mapping[Mode, Runner] = attrs.field(hash=False)
    at_once: int = 1
    #: Starts what attends to the devices.
    spawn: Callable[[Callable[[], None]], None] = _spawn
    _work: _Work = attrs.field(factory=_Work, init=False, eq=False, repr=False)

    def mode(self, role: str | None) -> Mode:
        """Where the devices of a role are cleaned."""
        return self.modes.get(role or "", Mode.NONE)

    # -- the protocol -----------------------------------------------------------

    def before_start(self, tenant: Tenant, view: View) -> tuple[str, ...]:
        """Refuse what is not clean, and write down what is due from now on."""
        try:
            self._owe(tenant, view)
        except LedgerError as error:
            raise RefusedError(
                "The node cannot keep records of its PCI devices.",
                [f"No PCI device can be given: {error}"],
            ) from error
        return ()

    def _owe(self, tenant: Tenant, view: View) -> None:
        refused: dict[str, str] = {}
        wall = self.records.moment().wall
        roles = {each: view.roles.get(each) for each in tenant.devices}
        if not self._concerns(roles):
            return
        self.records.compared(tenant.owners)

        def edit(now: Mapping[str, Device]) -> dict[str, Device]:
            refused.clear()
            then = {}
            for each, role in roles.items():
                known = stage.loads(now[each].stage)
                staged = self.mode(role) is not Mode.NONE
                why = stage.refusal(known, tenant.server)
                if why is not None and (staged or (known and known.phase is Phase.BEGUN)):
                    refused[each] = why
                elif staged:
                    then[each] = attrs.evolve(
                        now[each], stage=stage.owed(known, tenant.server, wall).dumps()
                    )
            return {} if refused else then

        self.records.change(lambda now: edit({each: now.device(each) for each in roles}))
        if refused:
            raise RefusedError(
                f"Of the {len(roles)} PCI devices that were claimed for the server, "
                f"{len(refused)} are being cleaned after another server.",
                [
                    f"PCI device {each} must not be given to the server: {why}"
                    for each, why in refused.items()
                ],
            )

    def _concerns(self, roles: Mapping[str, str | None]) -> bool:
        """Whether any of some devices has a stage, or ever had; the ledger is read only then."""
        staged = any(self.mode(role) is not Mode.NONE for role in roles.values())
        return staged or not self.records.known().staged.isdisjoint(roles)

    def before_restart(self, tenant: Tenant, view: View) -> tuple[str, ...]:
        """Write down what is due of a server that was there before the option was set."""
        wall = self.records.moment().wall
        mine = [each for each in tenant.devices if self.mode(view.roles.get(each)) is not Mode.NONE]
        try:
            self._mark(mine, tenant.server, wall)
        except LedgerError as error:
            return (f"It is not recorded that PCI devices have to be cleaned: {error}",)
        return ()

    def _mark(self, addresses: Collection[str], server: str, wall: float) -> None:
        """Make due what is not."""
        if not addresses:
            return
        self.records.change(
            lambda now: {
                each: attrs.evolve(now.device(each), stage=stage.owed(known, server, wall).dumps())
                for each in addresses
                if (known := stage.loads(now.device(each).stage)) is None or not known.pending
            }
        )

    def after_end(self, server: str, look: Callable[[], View], owners: Owners) -> tuple[str, ...]:
        """Nothing that a delete waits for: what is due was written down before its start."""
        with contextlib.suppress(LedgerError):
            known = self.records.known()
            found = (stage.loads(known.device(each).stage) for each in known.staged)
            if any(one is not None and one.server == server for one in found):
                self._work.soon = time.monotonic() + _SOON
                self._wake()
        return ()

    def withhold(self, view: View, owners: Owners) -> Withheld:
        """Look at the ledger; what is due is attended to elsewhere."""
        work = self._work
        work.view, work.owners = view, owners
        try:
            used = owners.records()
            roles = view.roles
            if not work.asked:
                # Servers that were there before the option was set. Later a device that is
                # used and not due is one that is being given: its own start makes it due.
                self._mark(
                    [each for each in used if self.mode(roles.get(each)) is not Mode.NONE],
                    SOMEBODY,
                    self.records.moment().wall,
                )
                work.asked = True
            now = self._make_due(view, used)
        except LedgerError as error:
            note = f"PCI devices with a stage are not offered: {error}"
            lost = {
                each: Symptom(Sign.UNREADY, str(error))
                for each, role in view.roles.items()
                if self.mode(role) is not Mode.NONE
            }
            return Withheld(lost, (note,))
        findings = {}
        for each in now.staged - used:
            device = now.device(each)
            known = stage.loads(device.stage)
            if known is None or (roles.get(each, "") is not None and self._off(each, roles)):
                continue
            reason = stage.waiting(known)
            if device.state is not State.OFFERED:
                reason = f"{reason}: {device.reason}"
            findings[each] = Symptom(Sign.UNREADY, reason)
        if now.staged or not work.swept:
            self._wake()
        with work.lock:
            notes, work.notes = tuple(dict.fromkeys(work.notes)), []
        return Withheld(findings, notes)

    def _make_due(self, view: View, used: frozenset[str]) -> Ledger:
        """Make due what is free and has no entry: nobody knows who has had it.

        It is new here, or the ledger is; or its role has had no stage until now.
        """
        wall = self.records.moment().wall
        free = [
            each
            for each, role in view.roles.items()
            if self.mode(role) is not Mode.NONE
            and each not in used
            and (each not in view.ill or view.ill[each].sign in policy.CAPPED)
        ]
        return self.records.change(
            lambda now: {
                each: attrs.evolve(now.device(each), stage=stage.owed(None, SOMEBODY, wall).dumps())
                for each in free
                if now.device(each).stage is None
            }
        )

    def _off(self, address: str, roles: Mapping[str, str | None]) -> bool:
        """Whether the role of an offered device has no stage (any more)."""
        return address in roles and self.mode(roles[address]) is Mode.NONE

    # -- the thread that attends to what is due ---------------------------------------

    def _wake(self) -> None:
        work = self._work
        with work.lock:
            work.again = True
            if work.running:
                return
            work.running = True
        try:
            self.spawn(self._attend)
        except RuntimeError as error:  # there are too many threads
            with work.lock:
                work.running = False
            self._note(f"nothing is cleaned from within for now: {error}")

    def _attend(self) -> None:
        work = self._work
        while True:
            with work.lock:
                work.again = False
            try:
                left = self.attend()
            except Exception as error:  # the next update tries again
                self._note(f"nothing is cleaned from within: {type(error).__name__}: {error}")
                left = False
            with work.lock:
                soon = left and time.monotonic() < work.soon
                if not (work.again or soon):
                    work.running = False
                    return
            time.sleep(_POLL)

    def _note(self, text: str) -> None:
        with self._work.lock:
            self._work.notes.append(text)

    def attend(self) -> bool:
        """Do everything that can be done now, and wait for it.

        :returns: whether a device waits for its server to be gone by Nova's records.
        :raises LedgerError: nothing can be remembered.
        """
        view, owners = self._work.view, self._work.owners
        if view is None or owners is None:
            return False
        self._sweep(owners)
        now, used, moment = self.records.known(), owners.records(), self.records.moment()
        actions: dict[Action, list[str]] = defaultdict(list)
        waiting = False
        for each in sorted(now.staged, key=address_key):
            device = now.device(each)
            known = stage.loads(device.stage)
            # What is not offered keeps its entry: it may be offered again.
            gone = each not in view.roles
            early = device.state is State.SUSPECT and not policy.due(
                device.trial, moment, self.records.rules
            )
            seen = Seen(
                known,
                self.mode(view.roles.get(each)),
                taken=each in used,
                mine=each in self._work.mine,
                quarantined=device.state is State.QUARANTINED,
                early=early,
            )
            action = stage.decide(seen)
            waiting = waiting or seen.taken
            if not gone or action is Action.END:
                actions[action].append(each)
        self._forget(actions[Action.FORGET])
        for holder, devices in self._by_holder(actions[Action.END]).items():
            self._end(holder, devices, owners)
        batches = self._batches(actions[Action.BEGIN], now.staged, view)
        if batches:
            with ThreadPoolExecutor(min(self.at_once, len(batches))) as pool:
                list(pool.map(lambda each: self._safely(each, view, owners), batches))
        return waiting

    def _sweep(self, owners: Owners) -> None:
        """End service VMs of which the ledger knows nothing: it was lost."""
        if self._work.swept:
            return
        domains = owners.domains()
        if domains.problem is not None:
            return
        known = self.records.known()
        found = (stage.loads(known.device(each).stage) for each in known.staged)
        holders = {one.holder for one in found if one is not None}
        runner = self.runners[Mode.SERVICE_VM]
        left = [
            each.uuid
            for each in domains.domains
            if each.name.startswith(domain.PREFIX) and each.uuid not in holders
        ]
        notes = [why for each in left if (why := runner.end(each, ())) is not None]
        for why in notes:
            self._note(why)
        self._work.swept = not notes

    def _forget(self, addresses: Collection[str]) -> None:
        if addresses:
            self.records.change(
                lambda now: {each: attrs.evolve(now.device(each), stage=None) for each in addresses}
            )

    def _by_holder(self, addresses: Iterable[str]) -> dict[str, list[str]]:
        now = self.records.known()
        found: dict[str, list[str]] = defaultdict(list)
        for each in addresses:
            known = stage.loads(now.device(each).stage)
            if known is not None:
                found[known.holder].append(each)
        return found

    def _batches(
        self, addresses: Collection[str], staged: frozenset[str], view: View
    ) -> list[list[str]]:
        """Devices that can only be given together; none while one of them is not ready."""
        groups: dict[str, list[str]] = defaultdict(list)
        for each in addresses:
            function = view.node.function(each)
            group = None if function is None else function.iommu_group
            groups[each if group is None else f"group {group}"].append(each)
        ready = []
        for mates in groups.values():
            function = view.node.function(mates[0])
            others = staged & set(view.node.group_members(function)) if function else frozenset()
            if others <= set(mates):
                ready.append(mates)
        return ready

    def _end(self, holder: str, devices: list[str], owners: Owners) -> None:
        """End what a killed process has left; then the devices are due again."""
        runner = self.runners[Mode.HOST if holder == Mode.HOST.value else Mode.SERVICE_VM]
        try:
            with self.records.locks(devices, 0.0):
                if holder:
                    why = runner.end(holder, devices)
                    if why is not None:
                        self._note(f"PCI devices {', '.join(devices)}: {why}")
                        return
                wall = self.records.moment().wall
                self.records.change(
                    lambda now: {
                        each: attrs.evolve(
                            now.device(each),
                            stage=stage.again(stage.loads(now.device(each).stage), wall).dumps(),
                        )
                        for each in devices
                    }
                )
                self._work.again = True
        except LedgerError as error:
            self._note(str(error))

    # -- one stage ----------------------------------------------------------------------

    def _safely(self, batch: list[str], view: View, owners: Owners) -> None:
        with self._work.lock:
            self._work.mine.update(batch)
        try:
            with self.records.locks(batch, 1.0):
                self._one({each: view.roles.get(each) for each in batch}, owners)
        except LedgerError as error:
            self._note(f"PCI devices {', '.join(batch)} are not cleaned from within: {error}")
        finally:
            with self._work.lock:
                self._work.mine.difference_update(batch)

    def _one(self, roles: Mapping[str, str | None], owners: Owners) -> None:
        """The stage of some devices, from its begin to what comes of it; below their locks."""
        now = self.records.known()
        if not now.staged.issuperset(roles) or owners.records() & roles.keys():
            return  # another process was faster, or it is given
        if owners.held(roles.keys()):
            return  # who has it is said by hygiene
        dirty = {each: roles[each] for each in roles if now.device(each).owes}
        if self.cleaning.clean(dirty)[1]:
            return  # likewise
        began = time.monotonic()
        mode = self.mode(next(iter(roles.values())))
        runner = self.runners[mode]
        holder = runner.holder()
        self._begin(holder, roles)
        outcome = runner.run(holder, roles)
        if outcome.problem:
            why = runner.end(holder, list(roles))
            if why is not None:
                self._note(f"PCI devices {', '.join(roles)}: {why}")
                return  # it stays begun: the next look ends it
        held = owners.held(roles.keys())
        if held:
            for each, one in held.items():
                self._note(f"PCI device {each} after its stage: {one.text}")
            return
        unclean = self.cleaning.clean(dict(roles))[1]
        self._settle(roles, outcome, unclean, time.monotonic() - began)

    def _begin(self, holder: str, roles: Mapping[str, str | None]) -> None:
        wall = self.records.moment().wall
        self.records.change(
            lambda now: {
                each: attrs.evolve(
                    now.device(each),
                    stage=stage.begun(stage.loads(now.device(each).stage), holder, wall).dumps(),
                    server=holder,
                )
                for each in roles
            }
        )

    def _settle(
        self,
        roles: Mapping[str, str | None],
        outcome: Outcome,
        unclean: Mapping[str, str],
        seconds: float,
    ) -> None:
        moment = self.records.moment()
        self.records.change(
            lambda now: {
                each: self._settled(
                    now.device(each),
                    None if each in unclean else outcome.symptom(each),
                    each not in unclean,
                    seconds,
                    moment,
                )
                for each in roles
            }
        )
        for each in roles:
            found = outcome.symptom(each)
            if found is not None:
                self._note(f"PCI device {each} has not passed its stage: {found.reason}")

    def _settled(
        self,
        device: Device,
        symptom: Symptom | None,
        clean: bool,
        seconds: float,
        moment: Moment,
    ) -> Device:
        known = stage.loads(device.stage)
        last = known.server if known is not None and known.server else device.last_server
        if clean and symptom is None:
            then = stage.passed(known, seconds, moment.wall)
            found = policy.step(device, (), moment, self.records.rules)
            return attrs.evolve(found, stage=then.dumps(), last_server=last, unreported=True)
        then = stage.again(known, moment.wall)
        if symptom is not None:
            device = policy.step(device, (symptom,), moment, self.records.rules)
            device = attrs.evolve(device, failed=device.failed + 1)
        return attrs.evolve(device, stage=then.dumps(), last_server=last, unreported=False)
