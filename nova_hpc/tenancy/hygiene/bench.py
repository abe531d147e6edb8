"""One device between two servers: look at it, compare, clean, remember.

The steps that the rules of :mod:`nova_hpc.tenancy.hygiene` are made of. Every
one that changes something is taken below the device's own lock.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.tenancy import locked_file, quarantine
from nova_hpc.tenancy.health import is_vfio
from nova_hpc.tenancy.hygiene import baseline
from nova_hpc.tenancy.hygiene import state as hygiene_state
from nova_hpc.tenancy.hygiene.baseline import Difference, Snapshot
from nova_hpc.tenancy.hygiene.cleaner import CleanError, Cleaners
from nova_hpc.tenancy.hygiene.reset import ResetError
from nova_hpc.tenancy.hygiene.state import Record, State
from nova_hpc.tenancy.locked_file import StateError
from nova_hpc.tenancy.quarantine import Quarantine, QuarantineError
from nova_hpc.topology import device
from nova_hpc.topology.device import DEVICES
from nova_hpc.topology.files import FileError, Tree
from nova_hpc.topology.model import Function, Node

_MOST_AT_ONCE: Final = 32


@attrs.frozen
class Candidate:
    """One device and what is known of it from elsewhere."""

    function: Function
    role: str | None = None
    #: Of a virtual function: how many its physical function has.
    vfs: int | None = None

    @classmethod
    def of(cls, node: Node, address: str, role: str | None) -> Candidate | None:
        """The device at *address* of a node that was just read."""
        function = node.function(address)
        if function is None:
            return None
        parent = node.function(function.physical_function or "")
        return cls(function, role, len(parent.virtual_functions) if parent else None)


@attrs.frozen
class Bench:
    """The node's devices, its files, and how its devices are cleaned."""

    root: Path
    state_file: Path
    quarantine_file: Path
    cleaners: Cleaners
    #: Seconds after which a reset is given up.
    timeout: float
    #: Reads configuration spaces where this process may not read all of them.
    read_config: Callable[[Sequence[str]], Mapping[str, bytes]] | None = None

    @contextlib.contextmanager
    def locks(self, addresses: Iterable[str], patience: float) -> Iterator[None]:
        """Keep everybody else from the devices.

        :param patience: seconds to wait for each.
        :raises StateError: somebody else has one for longer.
        """
        with contextlib.ExitStack() as stack:
            # In one order, so that nobody waits for each other.
            for each in sorted(addresses):
                stack.enter_context(locked_file.device_locked(self.state_file, each, patience))
            yield

    def state(self) -> State:
        """What is remembered of all devices.

        :raises StateError: the file is lost.
        """
        state = hygiene_state.read(self.state_file)
        if state.lost:
            raise StateError(f"{state.problems[0]}; repair or remove it")
        return state

    def change(self, edit: Callable[[Mapping[str, Record]], Mapping[str, Record]]) -> State:
        """Remember something; see :func:`nova_hpc.tenancy.hygiene.state.change`."""
        return hygiene_state.change(self.state_file, edit)

    @staticmethod
    def quarantined(wanted: Mapping[str, Candidate], held: Quarantine) -> dict[str, str]:
        """Address -> why, of the devices that are in quarantine."""
        return {
            each: f"in quarantine: {why}"
            for each, found in wanted.items()
            if (why := held.why(each, found.function.physical_function)) is not None
        }

    def look(self, candidates: Iterable[Candidate]) -> dict[str, Snapshot]:
        """Snapshots by address; call it below the locks or only to compare."""
        wanted = list(candidates)
        tree = Tree(self.root)
        addresses = [each.function.address for each in wanted]
        configs = self.read_config(addresses) if self.read_config and addresses else {}
        boot = baseline.boot_of(tree)
        return {
            each.function.address: baseline.take(
                tree, each.function, boot, each.vfs, configs.get(each.function.address)
            )
            for each in wanted
        }

    @staticmethod
    def differences(record: Record, look: Snapshot, function: Function) -> list[Difference]:
        """What is wrong with a device that nobody has."""
        found = baseline.wrong(look, idle(function))
        return (
            found if record.baseline is None else [*found, *baseline.compare(record.baseline, look)]
        )

    def judge(
        self,
        state: State,
        looks: Mapping[str, Snapshot],
        candidates: Mapping[str, Candidate],
    ) -> dict[str, str]:
        """Reasons by address; what is lasting is put in quarantine."""
        reasons: dict[str, str] = {}
        lasting: dict[str, str] = {}
        for each, look in looks.items():
            for found in self.differences(state.record(each), look, candidates[each].function):
                reasons.setdefault(each, found.text)
                if found.lasting:
                    lasting.setdefault(each, found.text)
        self.put(lasting)
        return reasons | lasting

    def put(self, reasons: Mapping[str, str]) -> None:
        """Put devices in quarantine; one that is in it keeps its reason.

        :raises StateError: it cannot be written.
        """
        known = quarantine.read(self.quarantine_file).reasons
        reasons = {each: why for each, why in reasons.items() if each not in known}
        if reasons:
            try:
                quarantine.put_all(self.quarantine_file, reasons)
            except QuarantineError as error:
                raise StateError(str(error)) from error

    def clean(self, roles: Mapping[str, str | None]) -> tuple[State, dict[str, str]]:
        """Clean devices side by side; those that fail go into quarantine.

        Call it below their locks.
        """
        if not roles:
            return self.state(), {}
        state = self.state()
        workers = min(len(roles), _MOST_AT_ONCE)
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            results = dict(
                zip(
                    roles,
                    pool.map(lambda each: self._clean_one(each, roles[each], state), roles),
                    strict=True,
                )
            )
        dirty = {each: why for each, why in results.items() if isinstance(why, str)}
        self.put(dirty)
        after = {each: look for each, look in results.items() if isinstance(look, Snapshot)}

        def edit(records: Mapping[str, Record]) -> dict[str, Record]:
            found = {each: unmarked(records.get(each, Record())) for each in roles}
            for each, look in after.items():
                known = found[each].baseline or look
                found[each] = attrs.evolve(found[each], baseline=known, owed=True)
            return found

        return self.change(edit), dirty

    def _clean_one(self, address: str, role: str | None, state: State) -> Snapshot | str:
        """The device after it was cleaned, or why it is not clean. Never raises."""
        try:
            function = self._read(address)
            if function is None:
                return "it has disappeared"
            self.cleaners.of(role).clean(function)
            function = self._read(address)
            if function is None:
                return "it has disappeared in its reset"
            parent = function.physical_function
            vfs = None if parent is None else self._count_vfs(parent)
            look = self.look([Candidate(function, role, vfs)])[address]
            differences = self.differences(state.record(address), look, function)
        except (CleanError, ResetError, FileError) as error:
            return str(error)
        except Exception as error:
            # A cleaner may be anybody's: whatever it did, the device is not known clean.
            return f"its cleaner failed: {type(error).__name__}: {error}"
        # With its last server gone nothing excuses bus mastering; links may rest.
        bad = [each.text for each in differences if each.lasting]
        if look.master and idle(function):
            bad.append("bus mastering is still on after its reset")
        return "; ".join(bad) if bad else look

    def _read(self, address: str) -> Function | None:
        tree = Tree(self.root)
        if not tree.exists(f"{DEVICES}/{address}"):
            return None
        return device.read(tree, address).function

    def _count_vfs(self, parent: str) -> int:
        names = Tree(self.root).names(f"{DEVICES}/{parent}")
        return sum(1 for name in names if name.startswith("virtfn"))


def idle(function: Function) -> bool:
    """Whether no driver of the host may be using the function."""
    return function.driver is None or is_vfio(function.driver)


def unmarked(record: Record) -> Record:
    """The record of a device that is clean, or in quarantine."""
    return attrs.evolve(record, server=None)
