# SPDX-License-Identifier: Apache-2.0
"""Set virtual functions of adapters: the step that sets them, and puts them back.

The rules, which hold whenever the service is killed:

* what a function is set to, and what it goes back to, is on the disk before the
  function is touched;
* that record goes only when the function was put back;
* no address is given while a record has it, but to the same server.

Everything is done below the lock of this step: netlink and sysfs answer at
once. Values never come from a flavor or an image.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

import attrs

from nova_hpc.tenancy.adapters import apply, find, settings
from nova_hpc.tenancy.adapters.apply import Change
from nova_hpc.tenancy.adapters.find import Backends, Write
from nova_hpc.tenancy.adapters.plan import Planner, Prefix, Record, Records, Work, records_of
from nova_hpc.tenancy.adapters.settings import AdapterError
from nova_hpc.tenancy.ledger import LedgerError, LedgerFile
from nova_hpc.tenancy.owners import Owners
from nova_hpc.tenancy.sign import Sign, Symptom
from nova_hpc.tenancy.step import RefusedError, Step, Tenant, View, Withheld
from nova_hpc.topology.files import Tree
from nova_hpc.topology.model import Node, address_key
from nova_hpc.wire.ledger import Ledger

#: What ``[hpc]set_adapters`` may say.
OFF: Final = "off"
KEEP: Final = "keep"
OWN: Final = "own"


@attrs.frozen
class Outcome:
    """What became of the functions of a server, in words for operators."""

    #: Address -> why the server must not have it; then none was set.
    refused: Mapping[str, str] = attrs.field(factory=dict, hash=False)
    #: Address -> what was left as it is.
    notes: Mapping[str, str] = attrs.field(factory=dict, hash=False)


@attrs.frozen
class Adapters(Step):
    """Sets the virtual functions of one node."""

    name: ClassVar[str] = "adapters"

    root: Path
    ledger: LedgerFile
    prefix: Prefix
    mode: str = KEEP
    #: Makes settings where this process may not.
    write: Write | None = None

    @property
    def strict(self) -> bool:
        """A function that cannot be set is refused, and its own addresses are replaced."""
        return self.mode == OWN

    # -- the protocol -------------------------------------------------------------

    def before_start(self, tenant: Tenant, view: View) -> tuple[str, ...]:
        """Set functions before a server gets them; all or none."""
        mine = sorted(functions(view, tenant.devices), key=address_key)
        wanted = [each for each in mine if each not in tenant.ports]
        ports = [each for each in mine if each in tenant.ports]
        return self._judge(mine, lambda: self.give(tenant.server, view.node, wanted, ports))

    def before_restart(self, tenant: Tenant, view: View) -> tuple[str, ...]:
        """Set functions of a server again that starts again, where they have lost it."""
        mine = functions(view, tenant.devices)
        return self._judge(mine, lambda: self.keep(tenant.server, view.node, tenant.devices))

    @staticmethod
    def _judge(mine: Iterable[str], work: Callable[[], Outcome]) -> tuple[str, ...]:
        total = len(list(mine))
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
                    f"The virtual function {each} could not be set for the server: {why}"
                    for each, why in outcome.refused.items()
                ],
            )
        return tuple(
            f"The virtual function {each} is left as it is: {why}"
            for each, why in outcome.notes.items()
        )

    def after_end(self, server: str, look: Callable[[], View], owners: Owners) -> tuple[str, ...]:
        """Put back what a server had."""
        return self._end(self.take_back, server, look)

    def after_move(self, server: str, look: Callable[[], View], owners: Owners) -> tuple[str, ...]:
        """Put back what a server has that does not run here now.

        Elsewhere it has the same addresses, which must not be in a fabric twice.
        """
        return self._end(self.rest, server, look)

    def _end(
        self,
        work: Callable[[str, Callable[[], Node]], Mapping[str, str]],
        server: str,
        look: Callable[[], View],
    ) -> tuple[str, ...]:
        try:
            return self._quarantine(work(server, lambda: look().node))
        except LedgerError as error:
            return (f"Adapters are not put back yet: {error}",)

    def withhold(self, view: View, owners: Owners) -> Withheld:
        """Put back what no server has any more."""
        notes: tuple[str, ...] = ()
        try:
            # A guest that runs keeps its addresses, whoever has forgotten its server.
            failed = self.sweep(view.node, lambda: owners.busy(self._records()))
        except LedgerError as error:
            failed = dict.fromkeys(functions(view, view.roles), str(error))
            notes = (f"Virtual functions are not offered: {error}",)
        else:
            notes = self._quarantine(failed)
        return Withheld({each: Symptom(Sign.UNREADY, why) for each, why in failed.items()}, notes)

    def _quarantine(self, failed: Mapping[str, str]) -> tuple[str, ...]:
        """Quarantine what could not be put back; one that is there keeps its reason."""
        known = self.ledger.read().quarantined
        reasons = {
            each: f"its addresses could not be taken from it: {why}"
            for each, why in failed.items()
            if each not in known
        }
        notes = [f"PCI device {each} goes into quarantine: {why}" for each, why in reasons.items()]
        try:
            self.ledger.quarantine(reasons)
        except LedgerError as error:
            notes.append(f"It is withheld until it can be quarantined: {error}")
        return tuple(notes)

    # -- a server starts -------------------------------------------------------

    def give(
        self, server: str, node: Node, wanted: Sequence[str], ports: Sequence[str] = ()
    ) -> Outcome:
        """Set functions for a server that gets them; all or none.

        :param server: its UUID.
        :param wanted: addresses of those without a port; the order numbers them.
        :param ports: those of ports, whose addresses others set.
        :raises LedgerError: nothing can be remembered, so nothing may be set.
        """
        if self.mode == OFF:
            # Nothing is set any more, but nobody gets what another server had.
            left = {
                each
                for each, record in self._records().items()
                if each in {*wanted, *ports} and record.server != server
            }
            return Outcome(self._put_back(node, left)) if left else Outcome()
        with self._work(node) as work:
            planner = Planner(self.prefix, self.strict, work, server, self._records())
            for index, each in enumerate(wanted):
                planner.add(each, index)
            for each in ports:
                planner.add_port(each)
            if planner.refused:
                return Outcome(planner.refused, planner.notes)
            refused = self._make(work, planner.records)
            notes = {**planner.notes, **work.left_out}
            return Outcome(dict.fromkeys(planner.records, refused) if refused else {}, notes)

    def keep(self, server: str, node: Node, addresses: Iterable[str]) -> Outcome:
        """Set functions again that a server has already, as they were.

        :raises LedgerError: nobody knows how they were.
        """
        mine = self._of(server) & set(addresses)
        if not mine:
            return Outcome()
        with self._work(node) as work:
            records, refused = {}, {}
            for each, record in self._records().items():
                if each not in mine or record.server != server:
                    continue
                try:
                    function, seen = work.look(each)
                except AdapterError as error:
                    refused[each] = str(error)
                    continue
                before = settings.undone(record.before, record.made, seen)
                work.functions[each] = function
                records[each] = attrs.evolve(record, before=before, resting=False)
            if not refused and (why := self._make(work, records)):
                refused = dict.fromkeys(records, why)
            return Outcome(refused, work.left_out)

    def _make(self, work: Work, records: Mapping[str, Record]) -> str | None:
        """Write the records, then set the functions; why it has failed, then none is set."""
        if not records:
            return None
        self._change(lambda now: {**now, **records})
        changes = [
            Change(work.functions[each], record.before, record.made)
            for each, record in records.items()
        ]
        try:
            unknown = apply.make(work.backends.of, changes, self.strict)
        except AdapterError as error:
            # They were put back; what could not be, the next sweep finds.
            return str(error)
        work.left_out |= {
            each: f"its driver does not know: {', '.join(names)}" for each, names in unknown.items()
        }
        return None

    # -- a server is gone, or moves --------------------------------------------------

    def take_back(self, server: str, read: Callable[[], Node]) -> dict[str, str]:
        """Put the functions of a server back that is gone.

        :param read: a fresh reading of the node, asked for only if there are any.
        :returns: address -> why it could not be put back.
        :raises LedgerError: nobody knows what was set.
        """
        mine = self._of(server)
        return self._put_back(read(), mine, server) if mine else {}

    def rest(self, server: str, read: Callable[[], Node]) -> dict[str, str]:
        """The same for a server that still has them here and runs elsewhere, or not at all."""
        mine = self._of(server)
        return self._put_back(read(), mine, server, rest=True) if mine else {}

    def sweep(self, node: Node, taken: Callable[[], frozenset[str]]) -> dict[str, str]:
        """Put everything back that no server has any more.

        :param taken: asks for the devices that servers have now.
        :returns: address -> why it could not be put back.
        :raises LedgerError: nobody knows what was set.
        """
        # Nova knows who gets a device before its record is written; so a record that
        # is seen first, and is not in the answer, has outlived its server.
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
        mine, failed, done = set(addresses), {}, set()
        with self._work(node) as work:
            mine -= taken() if taken is not None else frozenset()
            for each, record in self._records().items():
                if each not in mine or server not in (None, record.server):
                    continue
                if node.function(each) is None:
                    continue  # when it is there again, there is something to put back
                try:
                    function = find.find(work.tree, node, each)
                except AdapterError as error:
                    failed[each] = str(error)
                    continue
                change = Change(function, record.before, record.made)
                failed |= apply.restore(work.backends.of, [change])
                if each not in failed:
                    done.add(each)
            self._change(
                lambda now: {
                    each: attrs.evolve(record, resting=rest or record.resting)
                    if each in done
                    else record
                    for each, record in now.items()
                    if rest or each not in done
                }
            )
        return failed

    # -- helpers ------------------------------------------------------------------

    def _of(self, server: str) -> set[str]:
        records = self._records()
        return {each for each, record in records.items() if record.server == server}

    def _records(self) -> dict[str, Record]:
        return self._read(self.ledger.known())

    def _read(self, ledger: Ledger) -> dict[str, Record]:
        try:
            return records_of(ledger)
        except ValueError as error:
            text = f"the ledger {self.ledger.path}: {error}; repair or remove it"
            raise LedgerError(text) from error

    def _change(self, edit: Callable[[Records], Records]) -> None:
        """Change the records; *edit* returns all that are to be kept."""

        def change(ledger: Ledger) -> Ledger:
            now = self._read(ledger)
            then = edit(now)
            return ledger.put(
                {
                    each: attrs.evolve(
                        ledger.device(each),
                        adapter=then[each].dumps() if each in then else None,
                    )
                    for each in {*now, *then}
                }
            )

        self.ledger.change(change)

    @contextlib.contextmanager
    def _work(self, node: Node) -> Iterator[Work]:
        with (
            self.ledger.locked(self.name),
            Backends(self.root, self.write) as backends,
        ):
            yield Work(Tree(self.root), node, backends)


def functions(view: View, addresses: Iterable[str]) -> frozenset[str]:
    """Those of *addresses* that are virtual functions of adapters, offered with a role."""
    return frozenset(
        each
        for each in addresses
        if view.roles.get(each) and find.parent_of(view.node, each) is not None
    )
