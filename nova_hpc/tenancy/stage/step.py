# SPDX-License-Identifier: Apache-2.0
"""The stage as a step: due before a server starts, passed before the next one does.

These rules hold whenever the service is killed:

* a device's stage is due, on the disk, before its server starts;
* until it has passed, no server gets the device, no node offers it, and it is reserved in
  Placement before Nova frees it;
* the disk names the device's holder before that gets it: its UUID is the device's mark, like a
  server's, so hygiene cleans the device after it as after any server;
* a stage begins only if Nova, libvirt and the kernel agree that the device is free,
  and it holds the device's lock until it has ended.

No thread of Nova waits here: the periodic update reads the ledger, and a
separate thread processes due devices.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Final

import attrs

from nova_hpc.tenancy import health_states
from nova_hpc.tenancy.hygiene.cleaner import RoleCleaners
from nova_hpc.tenancy.hygiene.hardware_moves import find_replaced, word_replaced_devices
from nova_hpc.tenancy.hygiene.records import HygieneRecords
from nova_hpc.tenancy.identity import is_hardware_known
from nova_hpc.tenancy.ledger import LedgerError
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.tenancy.stage import (
    device_stage,
    domain,
    ledger_edits,
    reported_checks,
    waiting_tenants,
)
from nova_hpc.tenancy.stage.device_stage import StageAction, StageFacts, StageMode, StagePhase
from nova_hpc.tenancy.stage.runner import StageRunner
from nova_hpc.tenancy.stage.stage_run import StageRun
from nova_hpc.tenancy.stage.work import StageWork, spawn_stage_thread
from nova_hpc.tenancy.step import DeviceTenant, NodeView, RefusedError, TenancyStep, WithheldDevices
from nova_hpc.tenancy.storage import storage_devices_of
from nova_hpc.topology.model import Node, address_key
from nova_hpc.wire.ledger import SOMEBODY, DeviceState, Ledger, LedgerDevice

#: Seconds between two checks whether Nova has freed the devices of a server that has ended.
_POLL: Final = 2.0
#: Seconds within which Nova is expected to free them.
_SOON: Final = 60.0

_CURE_OF_REPLACED: Final = (
    "start the server again when the stage of {address} in nova-hpc device show has passed"
)


@attrs.frozen
class StageStep(TenancyStep):
    """Tenancy step that cleans the devices of some roles from within, between two servers."""

    name: ClassVar[str] = "stage"

    records: HygieneRecords
    cleaners: RoleCleaners
    #: Role -> the place of its stage.
    modes: Mapping[str, StageMode] = attrs.field(hash=False)
    runners: Mapping[StageMode, StageRunner] = attrs.field(hash=False)
    at_once: int = 1
    #: Role -> the checks of devices that their last owner has reported, and their runners.
    tests: Mapping[str, Sequence[str]] = attrs.field(factory=dict, hash=False)
    testers: Mapping[StageMode, StageRunner] = attrs.field(factory=dict, hash=False)
    #: Starts the thread that processes the devices.
    spawn: Callable[[Callable[[], None]], None] = spawn_stage_thread
    _work: StageWork = attrs.field(factory=StageWork, init=False, eq=False, repr=False)

    def mode(self, role: str | None) -> StageMode:
        """Return how a role's devices are cleaned: in a service VM, on the host, or not at all."""
        return self.modes.get(role or "", StageMode.NONE)

    # -- the protocol -----------------------------------------------------------

    def before_start(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """Refuse devices that are not clean, and record the stages that are due from now on."""
        try:
            self._owe(tenant, view)
        except LedgerError as error:
            raise RefusedError.without_records(error) from error
        return ()

    def _owe(self, tenant: DeviceTenant, view: NodeView) -> None:
        total = len(tenant.devices)
        refused = self._owe_or_refuse(tenant, tenant.devices, view)
        if refused:
            what = "are being cleaned after another server"
            raise RefusedError.of_devices(total, refused, what)

    def _owe_or_refuse(
        self, tenant: DeviceTenant, addresses: Collection[str], view: NodeView
    ) -> dict[str, str]:
        """Make the stages of a server's devices due, or refuse its start, all or none.

        :returns: address -> why it must not be given.
        """
        refused: dict[str, str] = {}
        wall = self.records.moment().wall
        roles = {address: view.roles.get(address) for address in addresses}
        if not self._concerns(roles):
            return refused
        self.records.compared(tenant.owners)
        storage = self._read_stays(view.node, addresses)

        def edit(devices: Mapping[str, LedgerDevice]) -> dict[str, LedgerDevice]:
            refused.clear()
            changed = {}
            for address, role in roles.items():
                entry = device_stage.load_stage(devices[address].stage)
                staged = self.mode(role) is not StageMode.NONE
                refusal = device_stage.refusal_of_stage(
                    entry, tenant.server, address in storage, storage.get(address, "")
                )
                if refusal is not None and (staged or (entry and entry.phase is StagePhase.BEGUN)):
                    refused[address] = refusal
                elif staged:
                    changed[address] = attrs.evolve(
                        devices[address],
                        stage=device_stage.make_stage_due(entry, tenant.server, wall).dumps(),
                    )
            return {} if refused else changed

        self.records.change(
            lambda ledger: edit({address: ledger.device(address) for address in roles})
        )
        return refused

    def _concerns(self, roles: Mapping[str, str | None]) -> bool:
        """Whether any of some devices has a stage, or ever had; the ledger is read only then."""
        staged = any(self.mode(role) is not StageMode.NONE for role in roles.values())
        return staged or not self.records.known().staged.isdisjoint(roles)

    def before_restart(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """Record due stages of a server that existed before the option was set.

        Hardware that replaced the server's own must have passed its stage.
        """
        wall = self.records.moment().wall
        addresses = {
            address
            for address in tenant.devices
            if self.mode(view.roles.get(address)) is not StageMode.NONE
        }
        notes: tuple[str, ...] = ()
        try:
            replaced, notes = find_replaced(self.records, tenant, view)
            if replaced:
                self._owe_replaced(tenant, replaced, view)
            self._mark(addresses - replaced, tenant.server, wall)
        except LedgerError as error:
            return (*notes, f"It is not recorded that PCI devices have to be cleaned: {error}")
        return notes

    def _owe_replaced(
        self, tenant: DeviceTenant, replaced: Collection[str], view: NodeView
    ) -> None:
        try:
            refused = self._owe_or_refuse(tenant, replaced, view)
        except LedgerError as error:
            raise RefusedError.without_records(error) from error
        if refused:
            raise word_replaced_devices(len(tenant.devices), refused, _CURE_OF_REPLACED)

    def _mark(self, addresses: Collection[str], server: str, wall: float) -> None:
        """Make stages due that are not yet."""
        if not addresses:
            return
        self.records.change(
            lambda ledger: ledger_edits.make_devices_due(ledger, addresses, server, wall)
        )

    def after_end(
        self, server: str, look: Callable[[], NodeView], owners: DeviceOwners
    ) -> tuple[str, ...]:
        """Wake the thread, without delaying the delete: its stages are already recorded."""
        with contextlib.suppress(LedgerError):
            ledger = self.records.known()
            entries = (
                device_stage.load_stage(ledger.device(address).stage) for address in ledger.staged
            )
            if any(entry is not None and entry.server == server for entry in entries):
                self._work.soon = time.monotonic() + _SOON
                self._wake()
        return ()

    def withhold(self, view: NodeView, owners: DeviceOwners) -> WithheldDevices:
        """Return the devices to withhold, from the ledger; another thread processes them."""
        work = self._work
        work.view, work.owners = view, owners
        try:
            used = owners.records()
            roles = view.roles
            if not work.asked:
                # Servers from before the option was set. Later a used device that is not due
                # is one that is being given: its own start makes it due.
                self._mark(
                    [
                        address
                        for address in used
                        if self.mode(roles.get(address)) is not StageMode.NONE
                    ],
                    SOMEBODY,
                    self.records.moment().wall,
                )
                work.asked = True
            ledger = self._make_due(view, used)
        except LedgerError as error:
            note = f"PCI devices with a stage are not offered: {error}"
            lost = {
                address: Symptom(HealthSign.UNREADY, str(error))
                for address, role in view.roles.items()
                if self.mode(role) is not StageMode.NONE
            }
            return WithheldDevices(lost, (note,))
        findings = {}
        for address in ledger.staged - used:
            device = ledger.device(address)
            entry = device_stage.load_stage(device.stage)
            if entry is None or (roles.get(address, "") is not None and self._off(address, roles)):
                continue
            reason = device_stage.word_waiting_stage(entry)
            if device.state is not DeviceState.OFFERED:
                reason = f"{reason}: {device.reason}"
            findings[address] = Symptom(HealthSign.UNREADY, reason)
        if ledger.staged or not work.swept:
            self._wake()
        with work.lock:
            notes, work.notes = tuple(dict.fromkeys(work.notes)), []
        return WithheldDevices(findings, notes)

    def _make_due(self, view: NodeView, used: frozenset[str]) -> Ledger:
        """Make free devices without an entry due: their last owner is unknown.

        The device is new here, or the ledger is, or its role had no stage before. Hardware that
        replaced a server's own counts as free, because the server has not got it yet.
        """
        wall, known = self.records.moment().wall, self.records.known()
        free = [
            address
            for address, role in view.roles.items()
            if self.mode(role) is not StageMode.NONE
            and (address not in used or known.device(address).replaced)
            and (address not in view.ill or view.ill[address].sign in health_states.CAPPED)
        ]
        storage = self._read_stays(view.node, free)
        return self.records.change(
            lambda ledger: ledger_edits.make_new_devices_due(ledger, free, wall, storage)
        )

    def _read_stays(self, node: Node, addresses: Collection[str]) -> dict[str, str]:
        """Map storage device to its stay (boot and kernel entry); "" if it has a serial number."""
        ledger = self.records.known()
        return {
            address: ""
            if is_hardware_known(ledger.device(address).hardware)
            else self.records.read_stay(address)
            for address in storage_devices_of(node, addresses)
        }

    def _off(self, address: str, roles: Mapping[str, str | None]) -> bool:
        """Whether the role of an offered device has no stage (any more)."""
        return address in roles and self.mode(roles[address]) is StageMode.NONE

    # -- the thread that processes due devices ----------------------------------------

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
        """Process all devices with a stage that can be processed now, and wait for the result.

        :returns: whether a device waits until Nova's records no longer list its server.
        :raises LedgerError: the ledger cannot be written.
        """
        view, owners = self._work.view, self._work.owners
        if view is None or owners is None:
            return False
        self._sweep(owners)
        ledger, moment = self.records.known(), self.records.moment()
        used = waiting_tenants.list_taken_devices(ledger, owners)
        actions: dict[StageAction, list[str]] = defaultdict(list)
        waiting = False
        for address in sorted(ledger.staged, key=address_key):
            device = ledger.device(address)
            entry = device_stage.load_stage(device.stage)
            # A device that is not offered keeps its entry: it may be offered again.
            gone = address not in view.roles
            early = device.state is DeviceState.SUSPECT and not health_states.is_trial_due(
                device.trial, moment, self.records.rules
            )
            seen = StageFacts(
                entry,
                self.mode(view.roles.get(address)),
                taken=address in used,
                mine=address in self._work.mine,
                quarantined=device.state is DeviceState.QUARANTINED,
                early=early,
            )
            action = device_stage.decide_stage_action(seen)
            waiting = waiting or seen.taken
            if not gone or action is StageAction.END:
                actions[action].append(address)
        self._forget(actions[StageAction.FORGET])
        for holder, devices in ledger_edits.group_by_holder(
            self.records.known(), actions[StageAction.END]
        ).items():
            self._end(holder, devices)
        batches = ledger_edits.batch_ready_devices(
            actions[StageAction.BEGIN], ledger.staged, view.node
        )
        known = self.records.known()
        tested = [
            batch
            for batch in batches
            if reported_checks.find_devices_to_test(known, _roles_of(batch, view), self.tests)
        ]
        self._process_beside(tested, view, owners)
        self._process([batch for batch in batches if batch not in tested], view, owners)
        return waiting

    def _process(self, batches: Sequence[list[str]], view: NodeView, owners: DeviceOwners) -> None:
        if batches:
            with ThreadPoolExecutor(min(self.at_once, len(batches))) as pool:
                list(pool.map(lambda batch: self._safely(batch, view, owners), batches))

    def _process_beside(
        self, batches: Sequence[list[str]], view: NodeView, owners: DeviceOwners
    ) -> None:
        """Process devices with a test in a thread of their own: no other device waits for it."""
        work = self._work
        with work.lock:
            if work.testing or not batches:
                return
            work.testing = True

        def process() -> None:
            try:
                self._process(batches, view, owners)
            except Exception as error:  # the next update tries again
                self._note(f"nothing reported is tested: {type(error).__name__}: {error}")
            finally:
                with work.lock:
                    work.testing = False
            self._wake()

        try:
            self.spawn(process)
        except RuntimeError as error:  # there are too many threads
            with work.lock:
                work.testing = False
            self._note(f"reported devices are not cleaned from within for now: {error}")

    def _sweep(self, owners: DeviceOwners) -> None:
        """End running service VMs that have no record in the ledger, once, as after its loss."""
        if self._work.swept:
            return
        domains = owners.domains()
        if domains.problem is not None:
            return
        ledger = self.records.known()
        entries = (
            device_stage.load_stage(ledger.device(address).stage) for address in ledger.staged
        )
        holders = {entry.holder for entry in entries if entry is not None}
        runner = self.runners[StageMode.SERVICE_VM]
        left = [
            vm_domain.uuid
            for vm_domain in domains.domains
            if vm_domain.name.startswith(domain.PREFIX) and vm_domain.uuid not in holders
        ]
        notes = [problem for vm in left if (problem := runner.end(vm, ())) is not None]
        for problem in notes:
            self._note(problem)
        self._work.swept = not notes

    def _forget(self, addresses: Collection[str]) -> None:
        if addresses:
            self.records.change(lambda ledger: ledger_edits.forget_device_stages(ledger, addresses))

    def _end(self, holder: str, devices: list[str]) -> None:
        """End the remains of a killed process; then the devices are due again."""
        runner = self.runners[
            StageMode.HOST if holder == StageMode.HOST.value else StageMode.SERVICE_VM
        ]
        try:
            with self.records.locks(devices, 0.0):
                if holder:
                    problem = runner.end(holder, devices)
                    if problem is not None:
                        self._note(f"PCI devices {', '.join(devices)}: {problem}")
                        return
                wall = self.records.moment().wall
                self.records.change(
                    lambda ledger: ledger_edits.make_devices_due_again(ledger, devices, wall)
                )
                self._work.again = True
        except LedgerError as error:
            self._note(str(error))

    # -- one stage ----------------------------------------------------------------------

    def _safely(self, batch: list[str], view: NodeView, owners: DeviceOwners) -> None:
        with self._work.lock:
            self._work.mine.update(batch)
        try:
            with self.records.locks(batch, 1.0):
                roles = _roles_of(batch, view)
                run = StageRun(
                    *(self.records, self.cleaners, self.runners),
                    *(self.tests, self.testers, self._note),
                )
                run.process(self.mode(next(iter(roles.values()))), roles, owners)
        except LedgerError as error:
            self._note(f"PCI devices {', '.join(batch)} are not cleaned from within: {error}")
        finally:
            with self._work.lock:
                self._work.mine.difference_update(batch)


def _roles_of(addresses: Collection[str], view: NodeView) -> dict[str, str | None]:
    return {address: view.roles.get(address) for address in addresses}
