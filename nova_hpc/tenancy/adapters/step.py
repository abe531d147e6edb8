# SPDX-License-Identifier: Apache-2.0
"""The step that sets virtual functions of adapters, and restores them.

These rules hold whenever the service is killed:

* the settings of a function, and the former ones to restore, are on the disk before the
  function is touched;
* the record is deleted only when the function was restored;
* no other server gets an address while a record contains it.

All of this runs under the lock of this step, because netlink and sysfs answer at
once. Values never come from a flavor or an image.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

import attrs

from nova_hpc.tenancy.adapters import function_changes, settings, virtual_functions
from nova_hpc.tenancy.adapters.function_changes import FunctionChange
from nova_hpc.tenancy.adapters.plan import (
    AdapterPlanner,
    AdapterRecord,
    AdapterWork,
    AddressPrefix,
    Records,
    adapter_records_of,
)
from nova_hpc.tenancy.adapters.settings import AdapterError
from nova_hpc.tenancy.adapters.virtual_functions import AdapterBackends, SettingWriter
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.owners import DeviceOwners
from nova_hpc.tenancy.sign import HealthSign, Symptom
from nova_hpc.tenancy.step import DeviceTenant, NodeView, RefusedError, TenancyStep, WithheldDevices
from nova_hpc.topology.files import FileTree
from nova_hpc.topology.model import Node, address_key
from nova_hpc.wire.ledger import Ledger

#: Values of ``[hpc]set_adapters``.
OFF: Final = "off"
KEEP: Final = "keep"
OWN: Final = "own"


@attrs.frozen
class AdapterOutcome:
    """The outcome for the functions of a server, in texts for operators."""

    #: Address -> why the server must not have it; then no function was set.
    refused: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Address -> settings that were not changed, and why.
    notes: Mapping[str, str] = attrs.field(factory=dict, hash=False)


@attrs.frozen
class AdapterStep(TenancyStep):
    """Tenancy step that sets virtual functions of one node before a server, and restores them."""

    name: ClassVar[str] = "adapters"

    root: Path
    ledger: LedgerFile
    prefix: AddressPrefix
    mode: str = KEEP
    #: Makes settings if this process lacks the right.
    write: SettingWriter | None = None

    @property
    def strict(self) -> bool:
        """Whether to refuse a function that cannot be set, and to replace its own addresses."""
        return self.mode == OWN

    # -- the protocol -------------------------------------------------------------

    def before_start(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """Set functions before a server gets them; all or none."""
        addresses = sorted(adapter_functions_of(view, tenant.devices), key=address_key)
        wanted = [address for address in addresses if address not in tenant.ports]
        ports = [address for address in addresses if address in tenant.ports]
        return self._judge(addresses, lambda: self.give(tenant.server, view.node, wanted, ports))

    def before_restart(self, tenant: DeviceTenant, view: NodeView) -> tuple[str, ...]:
        """Set functions again that have lost their settings, before a server restarts."""
        addresses = adapter_functions_of(view, tenant.devices)
        return self._judge(addresses, lambda: self.keep(tenant.server, view.node, tenant.devices))

    @staticmethod
    def _judge(addresses: Iterable[str], work: Callable[[], AdapterOutcome]) -> tuple[str, ...]:
        """Run *work*, and convert its outcome into notes or an error.

        :raises RefusedError: a function could not be set, or no record could be written.
        """
        total = len(list(addresses))
        if not total:
            return ()
        try:
            outcome = work()
        except LedgerError as error:
            raise RefusedError(
                "The node cannot keep records of its network adapters.",
                [f"No adapter can be set: {error}"],
            ) from error
        if outcome.refused:
            raise RefusedError(
                f"The addresses and rights of the {total} virtual functions that were claimed for "
                "the server could not be set.",
                [
                    f"The virtual function {address} could not be set for the server: {reason}"
                    for address, reason in outcome.refused.items()
                ],
            )
        return tuple(
            f"The virtual function {address} is left as it is: {reason}"
            for address, reason in outcome.notes.items()
        )

    def after_end(
        self, server: str, look: Callable[[], NodeView], owners: DeviceOwners
    ) -> tuple[str, ...]:
        """Restore the virtual functions of an ended server; return notes for the log."""
        return self._end(self.take_back, server, look)

    def after_move(
        self, server: str, look: Callable[[], NodeView], owners: DeviceOwners
    ) -> tuple[str, ...]:
        """Restore the functions of a server that does not run here now.

        It has the same addresses elsewhere, and a fabric must not contain them twice.
        """
        return self._end(self.rest, server, look)

    def _end(
        self,
        work: Callable[[str, Callable[[], Node]], Mapping[str, str]],
        server: str,
        look: Callable[[], NodeView],
    ) -> tuple[str, ...]:
        try:
            return self._quarantine(work(server, lambda: look().node))
        except LedgerError as error:
            return (f"Adapters are not put back yet: {error}",)

    def withhold(self, view: NodeView, owners: DeviceOwners) -> WithheldDevices:
        """Restore virtual functions whose server is gone; withhold and quarantine those that fail.

        If the records cannot be read, all virtual functions of adapters are withheld.
        """
        notes: tuple[str, ...] = ()
        try:
            # A running guest keeps its addresses, even if Nova has lost its server.
            failed = self.sweep(view.node, lambda: owners.busy(self._records()))
        except LedgerError as error:
            failed = dict.fromkeys(adapter_functions_of(view, view.roles), str(error))
            notes = (f"Virtual functions are not offered: {error}",)
        else:
            notes = self._quarantine(failed)
        return WithheldDevices(
            {address: Symptom(HealthSign.UNREADY, reason) for address, reason in failed.items()},
            notes,
        )

    def _quarantine(self, failed: Mapping[str, str]) -> tuple[str, ...]:
        """Quarantine functions that could not be restored; a quarantined one keeps its reason.

        :param failed: PCI address -> why it could not be restored.
        :returns: notes for the log.
        """
        quarantined = self.ledger.read().quarantined
        reasons = {
            address: f"its addresses could not be taken from it: {reason}"
            for address, reason in failed.items()
            if address not in quarantined
        }
        notes = [
            f"PCI device {address} goes into quarantine: {reason}"
            for address, reason in reasons.items()
        ]
        try:
            self.ledger.quarantine(reasons)
        except LedgerError as error:
            notes.append(f"It is withheld until it can be quarantined: {error}")
        return tuple(notes)

    # -- a server starts -------------------------------------------------------

    def give(
        self, server: str, node: Node, wanted: Sequence[str], ports: Sequence[str] = ()
    ) -> AdapterOutcome:
        """Set functions for a server that gets them; all or none.

        :param server: its UUID.
        :param wanted: addresses of functions without a port; their order numbers them.
        :param ports: functions of ports, whose addresses libvirt or Nova sets.
        :raises LedgerError: the ledger cannot be written, so no function may be set.
        """
        if self.mode == OFF:
            # Set nothing any more, but remove the settings of another server.
            left = {
                address
                for address, record in self._records().items()
                if address in {*wanted, *ports} and record.server != server
            }
            return AdapterOutcome(self._put_back(node, left)) if left else AdapterOutcome()
        with self._work(node) as work:
            planner = AdapterPlanner(self.prefix, self.strict, work, server, self._records())
            for index, address in enumerate(wanted):
                planner.add(address, index)
            for address in ports:
                planner.add_port(address)
            if planner.refused:
                return AdapterOutcome(planner.refused, planner.notes)
            refused = self._make(work, planner.records)
            notes = {**planner.notes, **work.left_out}
            return AdapterOutcome(dict.fromkeys(planner.records, refused) if refused else {}, notes)

    def keep(self, server: str, node: Node, addresses: Iterable[str]) -> AdapterOutcome:
        """Set a server's functions again, to the recorded settings.

        :raises LedgerError: the records cannot be read.
        """
        own_addresses = self._of(server) & set(addresses)
        if not own_addresses:
            return AdapterOutcome()
        with self._work(node) as work:
            records, refused = {}, {}
            for address, record in self._records().items():
                if address not in own_addresses or record.server != server:
                    continue
                try:
                    function, seen = work.look(address)
                except AdapterError as error:
                    refused[address] = str(error)
                    continue
                before = settings.undo_settings(record.before, record.made, seen)
                work.functions[address] = function
                records[address] = attrs.evolve(record, before=before, resting=False)
            if not refused and (failure := self._make(work, records)):
                refused = dict.fromkeys(records, failure)
            return AdapterOutcome(refused, work.left_out)

    def _make(self, work: AdapterWork, records: Mapping[str, AdapterRecord]) -> str | None:
        """Write the records, then set the functions. Return why none is set, None on success."""
        if not records:
            return None
        self._change(lambda recorded: {**recorded, **records})
        changes = [
            FunctionChange(work.functions[address], record.before, record.made)
            for address, record in records.items()
        ]
        try:
            unknown = function_changes.make_function_changes(work.backends.of, changes, self.strict)
        except AdapterError as error:
            # They were restored; the next sweep finds those that could not be.
            return str(error)
        work.left_out |= {
            address: f"its driver does not know: {', '.join(names)}"
            for address, names in unknown.items()
        }
        return None

    # -- a server is gone, or moves --------------------------------------------------

    def take_back(self, server: str, read: Callable[[], Node]) -> dict[str, str]:
        """Restore the functions of a server that has ended.

        :param read: reads the node afresh; called only if there are functions.
        :returns: address -> why it could not be restored.
        :raises LedgerError: the records cannot be read.
        """
        addresses = self._of(server)
        return self._put_back(read(), addresses, server) if addresses else {}

    def rest(self, server: str, read: Callable[[], Node]) -> dict[str, str]:
        """Do this for a server that still has them here and runs elsewhere, or not at all."""
        addresses = self._of(server)
        return self._put_back(read(), addresses, server, rest=True) if addresses else {}

    def sweep(self, node: Node, taken: Callable[[], frozenset[str]]) -> dict[str, str]:
        """Restore all functions that no longer have a server.

        :param taken: returns the devices that servers have now.
        :returns: address -> why it could not be restored.
        :raises LedgerError: the records cannot be read.
        """
        # Nova records a device's server before this step writes its own record. So a server whose
        # record was read first, and whose device is missing in the answer, has ended.
        left = set(self._records())
        if left:
            left -= taken()
        return self._put_back(node, left, taken=taken) if left else {}

    def _put_back(
        self,
        node: Node,
        addresses: Iterable[str],
        server: str | None = None,
        rest: bool = False,
        taken: Callable[[], frozenset[str]] | None = None,
    ) -> dict[str, str]:
        """Restore functions under the lock of this step, and update their records.

        :param server: restore only the records of this server; None for all.
        :param rest: keep the records, marked as resting, because the server is moving.
        :param taken: called again under the lock; the devices that it returns are left out.
        :returns: address -> why it could not be restored.
        """
        wanted, failed, done = set(addresses), {}, set()
        with self._work(node) as work:
            wanted -= taken() if taken is not None else frozenset()
            for address, record in self._records().items():
                if address not in wanted or server not in (None, record.server):
                    continue
                if node.function(address) is None:
                    continue  # restore it when the device is present again
                try:
                    function = virtual_functions.find_virtual_function(work.tree, node, address)
                except AdapterError as error:
                    failed[address] = str(error)
                    continue
                change = FunctionChange(function, record.before, record.made)
                failed |= function_changes.restore_functions(work.backends.of, [change])
                if address not in failed:
                    done.add(address)
            self._change(
                lambda recorded: {
                    address: attrs.evolve(record, resting=rest or record.resting)
                    if address in done
                    else record
                    for address, record in recorded.items()
                    if rest or address not in done
                }
            )
        return failed

    # -- helpers ------------------------------------------------------------------

    def _of(self, server: str) -> set[str]:
        records = self._records()
        return {address for address, record in records.items() if record.server == server}

    def _records(self) -> dict[str, AdapterRecord]:
        return self._read(self.ledger.known())

    def _read(self, ledger: Ledger) -> dict[str, AdapterRecord]:
        try:
            return adapter_records_of(ledger)
        except ValueError as error:
            text = f"the ledger {self.ledger.path}: {error}; repair or remove it"
            raise LedgerError(text) from error

    def _change(self, edit: Callable[[Records], Records]) -> None:
        """Change the records; *edit* returns all records to keep."""

        def change(ledger: Ledger) -> Ledger:
            before = self._read(ledger)
            after = edit(before)
            return ledger.put(
                {
                    address: attrs.evolve(
                        ledger.device(address),
                        adapter=after[address].dumps() if address in after else None,
                    )
                    for address in {*before, *after}
                }
            )

        self.ledger.change(change)

    @contextlib.contextmanager
    def _work(self, node: Node) -> Iterator[AdapterWork]:
        with self.ledger.locked(self.name), AdapterBackends(self.root, self.write) as backends:
            yield AdapterWork(FileTree(self.root), node, backends)


def adapter_functions_of(view: NodeView, addresses: Iterable[str]) -> frozenset[str]:
    """Return the *addresses* that are virtual functions of adapters, offered with a role."""
    return frozenset(
        address
        for address in addresses
        if view.roles.get(address) and virtual_functions.parent_of(view.node, address) is not None
    )
