# SPDX-License-Identifier: Apache-2.0
"""Watches the devices of this node's servers, and reports their faults.

A thread looks every ``[hpc]watch_interval`` seconds, and at once if the kernel removes a device.
:mod:`nova_hpc.tenancy.watch.rules` decides; here are its inputs and the effects: reports to the
owner, a notification and a log line for operators, and the ledger, which keeps the memory over a
restart of the service. A look reads files of the devices only. It reads servers from Nova if their
devices show a fault, and each other server once, for tags of an earlier run. Once a minute, one
request reads the reports of owners (:mod:`virt_driver_patches.driver.device_reports`), and another
the notices of preemption (:mod:`virt_driver_patches.driver.preemption_notices`).
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import nova.conf
from nova import exception
from nova.objects import fields
from oslo_log import log as logging

from nova_hpc.from_nova import gate
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene import reset as hygiene_reset
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.watch import record, rules
from nova_hpc.tenancy.watch.error_file import ErrorFile
from nova_hpc.tenancy.watch.look import DeviceLook
from nova_hpc.tenancy.watch.reader import DeviceReader
from nova_hpc.tenancy.watch.record import RecordedFault, WatchRecord
from nova_hpc.tenancy.watch.rules import NODE_WORDS, ServerCondition, WatchedDevice, WatchStep
from nova_hpc.tenancy.watch.uevents import RemovedDevices
from nova_hpc.topology.files import FileTree
from nova_hpc.topology.model import try_normalise_address
from nova_hpc.wire.ledger import Ledger
from nova_hpc_common.wire.server_faults import FaultWord
from virt_driver_patches.driver import server_standing
from virt_driver_patches.driver.device_reports import DeviceReports
from virt_driver_patches.driver.fault_reports import OwnerReports
from virt_driver_patches.driver.kept_devices import GuestComparison
from virt_driver_patches.driver.notifications import notify_server_fault
from virt_driver_patches.driver.planned_work import PlannedDeviceReports
from virt_driver_patches.driver.preemption_notices import PreemptionNotices
from virt_driver_patches.driver.server_standing import ServerState

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: Seconds between two checks for news of the kernel, between two looks after such news, and between
#: two looks while a device is suspected.
_TICK: Final = 1.0
_SOON: Final = 2.0
_CLOSELY: Final = 4.0
#: Quick looks after a device was removed.
_QUICK_LOOKS: Final = 2
#: Servers that are read in one look for tags of an earlier run.
_MOST_CHECKED: Final = 8


def used_devices_of(virtapi: Any) -> dict[str, str] | None:
    """Return address -> server of this node's devices, from the memory of Nova's PCI tracker.

    None until Nova has read its records (``ResourceTracker.pci_tracker``,
    nova/compute/resource_tracker.py, releases 32 to 34).
    """
    tracker = getattr(getattr(gate.manager_of(virtapi), "rt", None), "pci_tracker", None)
    if tracker is None:
        return None
    users = {}
    for device in list(tracker.pci_devs.objects):
        if device.status == fields.PciDeviceStatus.ALLOCATED and device.instance_uuid:
            address = try_normalise_address(device.address)
            if address is not None:
                users[address] = str(device.instance_uuid)
    return users


class DeviceWatch:
    """The watch of one node. Its thread has all state, aside from the servers that restart."""

    def __init__(
        self,
        users: Callable[[], Mapping[str, str] | None],
        promises: GuestComparison,
        ledger: Callable[[], LedgerFile],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the watch; nothing is read before it begins.

        :param users: returns address -> server; None while that is unknown.
        :param promises: the comparison that finds devices gone from their guests.
        :param ledger: returns the node's ledger.
        :param clock: seconds of a clock that only goes forward.
        """
        self._users, self._promises = users, promises
        self._find_ledger, self._clock = ledger, clock
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._starting: set[str] = set()
        self._started: set[str] = set()

    # -- the thread -----------------------------------------------------------------

    def begin(self, host: str) -> None:
        """Begin to watch, in a thread of its own unless ``[hpc]watch_interval`` is 0.

        :param host: the service's name for this node.
        :raises nova.exception.InvalidConfiguration: ``[hpc]watch_error_metric`` is no expression.
        """
        self._host = host
        self._root = Path(CONF.hpc.sysfs_root)
        self._ledger = self._find_ledger()
        self._reader = DeviceReader(self._root, _error_file_of(CONF))
        self._removed = RemovedDevices()
        self._reports = OwnerReports()
        self._planned = PlannedDeviceReports(
            self._ledger, self._reports, self._reader.physical_function_of
        )
        self._device_reports = DeviceReports(host, self._ledger)
        self._preemption_notices = PreemptionNotices()
        #: None until the ledger was read.
        self._records: dict[str, WatchRecord] | None = None
        self._devices: dict[str, WatchedDevice] = {}
        self._faults: dict[str, dict[FaultWord, RecordedFault]] = {}
        #: Devices that a look like the last one does not change.
        self._steady: set[str] = set()
        #: Server -> its faults, of all its devices.
        self._words: dict[str, frozenset[FaultWord]] = {}
        #: Servers whose tags were not compared yet -> when they were first watched.
        self._unchecked: dict[str, float] = {}
        self._watched: frozenset[str] = frozenset()
        #: Devices whose record may differ from the ledger's, and whether it cannot be written.
        self._unwritten: set[str] = set()
        self._forgetful = False
        if CONF.hpc.watch_interval > 0:
            self._stop = threading.Event()
            threading.Thread(
                target=self._run, args=(self._stop,), name="hpc-watch", daemon=True
            ).start()

    def end(self) -> None:
        """End the thread. Idempotent."""
        self._stop.set()

    def _run(self, stop: threading.Event) -> None:
        reason = self._removed.open()
        if reason:
            LOG.info("Removed devices are noticed at the next look, not at once: %s", reason)
        quick, due = 0, self._clock()
        while not stop.wait(_TICK):
            if self._removed.read() & self._devices.keys():
                quick, due = _QUICK_LOOKS, self._clock()
            if self._clock() >= due:
                self.look()
                quick = max(0, quick - 1)
                due = self._clock() + self._pause(quick)
        self._removed.close()

    def _pause(self, quick: int) -> float:
        """Return the seconds until the next look."""
        if quick:
            return _SOON
        suspects = any(device.suspected for device in self._devices.values())
        interval: float = CONF.hpc.watch_interval
        return min(_CLOSELY, interval) if suspects else interval

    @contextlib.contextmanager
    def restarting(self, instance: Any) -> Iterator[None]:
        """Expect resets of a server's devices while its guest starts."""
        with self._lock:
            self._starting.add(instance.uuid)
        try:
            yield
        finally:
            with self._lock:
                self._starting.discard(instance.uuid)
                self._started.add(instance.uuid)

    # -- one look -------------------------------------------------------------------

    def look(self) -> None:
        """Look once at all devices that servers have, and report changes. Never raises."""
        try:
            users = self._users()
            if users is None:
                return
            self._promises.look_again()
            self._look(users, self._clock())
        except Exception:
            LOG.exception("The devices of servers are not watched")

    def _look(self, users: Mapping[str, str], moment: float) -> None:
        boot = baseline.boot_of(FileTree(self._root))
        if self._records is None:
            self._restore(users, boot, moment)
        with self._lock:
            restarts = frozenset(self._starting | self._started)
            self._started.clear()
        looks = self._reader.read(users)
        for server, address in self._promises.gone_from_guests():
            if users.get(address) == server:
                looks[address] = attrs.evolve(looks[address], left_guest=True)
        self._drop_former_users(users)
        steps = self._first_steps(users, looks, restarts, moment)
        troubled = {users[address] for address, step in steps.items() if _is_troubled(step)}
        states = server_standing.read_server_states(
            self._host, troubled | self._servers_to_check(moment)
        )
        self._take_steps(users, looks, steps, states, moment)
        self._compare_words(users)
        self._planned.compare(users)
        self._clear_former_tags(states)
        self._reports.send(
            {server: state.tags for server, state in states.items() if state.tags is not None}
        )
        self._planned.record()
        self._unwritten |= steps.keys()
        self._write_records(users, boot)
        self._device_reports.read(users, moment)
        self._preemption_notices.read(users, moment)

    def end_server(self, instance: Any) -> None:
        """Read the last reports of a server's owner, while Nova still lists its devices."""
        self._device_reports.end(instance, self._users())

    def _restore(self, users: Mapping[str, str], boot: str | None, moment: float) -> None:
        """Go on with the memory of an earlier run of this service."""
        self._records = {}
        for address, device in self._ledger.read().devices.items():
            entry = record.load_record(device.watch)
            if entry is None:
                continue
            self._records[address] = entry
            reported = [word for word, fault in entry.faults.items() if fault.reported]
            for word in reported:
                self._reports.restore(entry.server, word)
            self._words[entry.server] = self._words.get(entry.server, frozenset()).union(reported)
            self._devices[address] = record.watched_device_of(entry, boot, moment)
            self._faults[address] = dict(entry.faults)

    def _drop_former_users(self, users: Mapping[str, str]) -> None:
        """End the watch of devices whose server has left them."""
        for address, device in list(self._devices.items()):
            if users.get(address) != device.server:
                for word in list(self._faults.get(address, {})):
                    self._note_change(address, device.server, word, present=False)
                del self._devices[address]
                self._steady.discard(address)

    def _first_steps(
        self,
        users: Mapping[str, str],
        looks: Mapping[str, DeviceLook],
        restarts: frozenset[str],
        moment: float,
    ) -> dict[str, WatchStep]:
        """Return the steps of devices that changed, as if their servers were settled."""
        steps = {}
        for address, server in users.items():
            device = self._devices.get(address)
            if device is None:
                device = self._devices[address] = WatchedDevice(server)
            if server in restarts:
                self._steady.discard(address)
                steps[address] = self._judge_look(
                    device, looks[address], ServerCondition.RESTART, moment
                )
            elif address not in self._steady or looks[address] != device.last:
                steps[address] = self._judge_look(
                    device, looks[address], ServerCondition.SETTLED, moment
                )
        return steps

    @staticmethod
    def _judge_look(
        device: WatchedDevice, look: DeviceLook, standing: ServerCondition, moment: float
    ) -> WatchStep:
        return rules.judge_look(device, look, standing, moment, CONF.hpc.errors_per_hour)

    def _take_steps(
        self,
        users: Mapping[str, str],
        looks: Mapping[str, DeviceLook],
        steps: Mapping[str, WatchStep],
        states: Mapping[str, ServerState],
        moment: float,
    ) -> None:
        """Judge the devices of troubled servers again, now that the servers are known."""
        resets: frozenset[str] | None = None
        for address, step in steps.items():
            server, device = users[address], self._devices[address]
            troubled = _is_troubled(step)
            if troubled and step.device.last is not None:  # else it restarts anyway
                if server not in states:
                    continue  # this look does not count for it
                if resets is None:
                    resets = hygiene_reset.list_busy_resets(self._ledger.locks)
                look = attrs.evolve(looks[address], resetting=address in resets)
                step = self._judge_look(device, look, states[server].standing, moment)
            if step.device == device and device.still and not troubled:
                self._steady.add(address)
            else:
                self._steady.discard(address)
            self._devices[address] = step.device
            for word in step.found:
                self._note_change(address, server, word, present=True)
            for word in step.cleared:
                self._note_change(address, server, word, present=False)

    def _note_change(self, address: str, server: str, word: FaultWord, present: bool) -> None:
        """Write a change for operators, and remember it for the ledger."""
        faults = self._faults.setdefault(address, {})
        if present:
            fault = faults[word] = RecordedFault(time.time())
            LOG.error(
                "PCI device %s of server %s has the fault %s: %s",
                *(address, server, word.value, word.meaning),
            )
        else:
            fault = faults.pop(word)
            LOG.info(
                "PCI device %s of server %s: the fault %s is over", address, server, word.value
            )
        if not faults:
            del self._faults[address]
        notify_server_fault(self._host, address, server, word.value, present, fault.since)

    # -- reports --------------------------------------------------------------------

    def _compare_words(self, users: Mapping[str, str]) -> None:
        """Report the changed faults of each server; two devices with one fault are one."""
        current: dict[str, frozenset[FaultWord]] = {}
        for address, faults in self._faults.items():
            server = users[address]
            current[server] = current.get(server, frozenset()).union(faults)
        for server in self._words.keys() | current.keys():
            before, after = self._words.get(server, frozenset()), current.get(server, frozenset())
            for word in FaultWord:
                if (word in before) != (word in after):
                    self._reports.put(server, word, present=word in after)
        self._words = current

    def _servers_to_check(self, moment: float) -> set[str]:
        """Return servers whose tags may be of an earlier run, or of another node."""
        servers = frozenset(device.server for device in self._devices.values())
        for server in servers - self._watched:
            self._unchecked[server] = moment
        for server in self._unchecked.keys() - servers:
            del self._unchecked[server]
        self._watched = servers
        # A fault that goes on is found before that.
        due = [
            server
            for server, began in self._unchecked.items()
            if moment - began >= rules.PATIENCE_TO_CLEAR
        ]
        return set(due[:_MOST_CHECKED])

    def _clear_former_tags(self, states: Mapping[str, ServerState]) -> None:
        """Remove tags of faults that this run has not found; tags are no proof of a fault."""
        for server, state in states.items():
            unknown = state.tags is None or server in self._reports.waiting
            if server not in self._unchecked or unknown:
                continue
            del self._unchecked[server]
            self._planned.clear_former(server, state.tags or ())
            for word in NODE_WORDS - self._words.get(server, frozenset()):
                if word.tag in (state.tags or ()):
                    self._reports.put(server, word, present=False)

    # -- the ledger -------------------------------------------------------------------

    def _write_records(self, users: Mapping[str, str], boot: str | None) -> None:
        """Write the memory of the devices that changed."""
        before = self._records or {}
        after = {address: entry for address, entry in before.items() if address in users}
        for address in (self._unwritten & users.keys()) | self._faults.keys():
            device = self._devices[address]
            faults = {
                word: attrs.evolve(fault, reported=self._reports.is_reported(device.server, word))
                for word, fault in self._faults.get(address, {}).items()
            }
            self._faults.update({address: faults} if faults else {})
            after[address] = record.record_of(device, boot, faults)
        different = {
            address
            for address in before.keys() | after.keys()
            if before.get(address) != after.get(address)
        }
        if not different:
            self._unwritten.clear()
            return

        def edit(ledger: Ledger) -> Ledger:
            changes = {}
            for address in different:
                entry = after.get(address)
                body = None if entry is None else entry.dumps()
                changes[address] = attrs.evolve(ledger.device(address), watch=body)
            return ledger.put(changes)

        try:
            self._ledger.change(edit)
        except LedgerError as error:
            if not self._forgetful:
                LOG.warning(
                    "A restart of nova-compute would forget the faults of devices: %s", error
                )
            self._forgetful = True
        else:
            self._records, self._forgetful = after, False
            self._unwritten.clear()


def _is_troubled(step: WatchStep) -> bool:
    """Whether the device's server has to be read from Nova."""
    return bool(step.device.suspected or step.device.reported or step.cleared)


def _error_file_of(conf: Any) -> ErrorFile | None:
    try:
        metric = re.compile(conf.hpc.watch_error_metric)
    except re.error as error:
        raise exception.InvalidConfiguration(f"[hpc]watch_error_metric: {error}") from error
    return ErrorFile(conf.hpc.watch_error_file, metric) if conf.hpc.watch_error_file else None
