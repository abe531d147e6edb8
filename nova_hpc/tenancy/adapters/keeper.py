"""Virtual functions of adapters around a server: set, kept, put back.

The rules, which hold whenever the service is killed:

* what a function is set to, and what it goes back to, is on the disk before the
  function is touched;
* that record goes only when the function was put back;
* no address is given while a record has it, but to the same server.

Everything is done below the lock of the state file: netlink and sysfs answer
at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.tenancy import locked_file
from nova_hpc.tenancy.adapters import addresses as address
from nova_hpc.tenancy.adapters import apply, find, settings, state
from nova_hpc.tenancy.adapters.apply import Change
from nova_hpc.tenancy.adapters.find import Backends, Write
from nova_hpc.tenancy.adapters.settings import AdapterError
from nova_hpc.tenancy.adapters.state import Record
from nova_hpc.tenancy.adapters.work import Planner, Work
from nova_hpc.topology.files import Tree
from nova_hpc.topology.model import Node

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
class Keeper:
    """Sets the virtual functions of one node."""

    root: Path
    state_file: Path
    prefix: address.Prefix
    mode: str = KEEP
    #: Makes settings where this process may not.
    write: Write | None = None

    @property
    def strict(self) -> bool:
        """A function that cannot be set is refused, and its own addresses are replaced."""
        return self.mode == OWN

    # -- a server starts -------------------------------------------------------

    def give(
        self, server: str, node: Node, wanted: Sequence[str], ports: Sequence[str] = ()
    ) -> Outcome:
        """Set functions for a server that gets them; all or none.

        :param server: its UUID.
        :param wanted: addresses of those without a port; the order numbers them.
        :param ports: those of ports, whose addresses others set.
        :raises StateError: nothing can be remembered, so nothing may be set.
        """
        if self.mode == OFF:
            # Nothing is set any more, but nobody gets what another server had.
            left = {
                each
                for each, record in state.load(self.state_file).items()
                if each in {*wanted, *ports} and record.server != server
            }
            return Outcome(self._put_back(node, left)) if left else Outcome()
        with self._work(node) as work:
            planner = Planner(self.prefix, self.strict, work, server, state.load(self.state_file))
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

        :raises StateError: nobody knows how they were.
        """
        mine = self._of(server) & set(addresses)
        if not mine:
            return Outcome()
        with self._work(node) as work:
            records, refused = {}, {}
            for each, record in state.load(self.state_file).items():
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
        state.change(self.state_file, lambda now: {**now, **records})
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
        :raises StateError: nobody knows what was set.
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
        :raises StateError: nobody knows what was set.
        """
        # Nova knows who gets a device before its record is written; so a record that
        # is seen first, and is not in the answer, has outlived its server.
        left = set(state.load(self.state_file))
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
            for each, record in state.load(self.state_file).items():
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
            state.change(
                self.state_file,
                lambda now: {
                    each: attrs.evolve(record, resting=rest or record.resting)
                    if each in done
                    else record
                    for each, record in now.items()
                    if rest or each not in done
                },
            )
        return failed

    # -- helpers ------------------------------------------------------------------

    def _of(self, server: str) -> set[str]:
        records = state.load(self.state_file)
        return {each for each, record in records.items() if record.server == server}

    @contextlib.contextmanager
    def _work(self, node: Node) -> Iterator[Work]:
        with (
            locked_file.locked(self.state_file, state.WHAT),
            Backends(self.root, self.write) as backends,
        ):
            yield Work(Tree(self.root), node, backends)
