# SPDX-License-Identifier: Apache-2.0
"""Counts the host's own work on the CPUs of a guest while the guest is measured.

The doctor's readers do it, and leave out the work that guests cause themselves. Unreadable counters
count nothing, and are named.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from nova_hpc.topology.files import FileTree
from nova_hpc_guest.accept.evidence import HostWork
from nova_hpc_guest.accept.sample import take_text
from nova_hpc_tools.doctor import facts_quiet


@attrs.define
class HostWatch:
    """Count of interrupts and kernel threads over all turns of a guest.

    :ivar root: folder with the host's files.
    :ivar cpus: for each vCPU, its CPU of the host.
    """

    root: Path
    cpus: Sequence[int]
    _seconds: float = attrs.field(default=0.0, init=False)
    #: Name and CPU -> how often it fired, or for how many nanoseconds it ran.
    _fired: Counter[tuple[str, int]] = attrs.field(factory=Counter, init=False)
    _ran: Counter[tuple[str, int]] = attrs.field(factory=Counter, init=False)
    #: Names of the counters that a turn could not read.
    unread: set[str] = attrs.field(factory=set, init=False)

    @contextlib.contextmanager
    def count_turn(self) -> Iterator[None]:
        """Add the work of the host during the block."""
        before, _ = facts_quiet.read_host_counters(self.root, frozenset(self.cpus))
        yield
        after, _ = facts_quiet.read_host_counters(self.root, frozenset(self.cpus))
        # Each CPU has interrupts and kernel threads, so a reading without any has failed.
        if not (before.interrupts and after.interrupts):
            self.unread.add("interrupts")
        if not (before.threads and after.threads):
            self.unread.add("kernel threads")
        tree = FileTree(self.root)
        self._seconds += after.at - before.at
        for number, (name, cpus) in facts_quiet.keep_present_interrupts(tree, before, after):
            for cpu in cpus:
                counts = (side.interrupts[number].counts[cpu] for side in (after, before))
                self._fired[take_text(f"{number} {name}"), cpu] += next(counts) - next(counts)
        movable = dict(facts_quiet.keep_movable_threads(tree, before, after))
        for key, thread in after.threads.items():
            if key[0] in movable:
                name = take_text(thread.name)
                self._ran[name, thread.cpu] += thread.ran - before.threads[key].ran

    @property
    def work(self) -> tuple[HostWork, ...]:
        """For each vCPU, the host's work on its CPU; empty before the first turn."""
        if not self._seconds:
            return ()
        return tuple(
            HostWork(
                _divide(self._fired, cpu, self._seconds),
                _divide(self._ran, cpu, 1e9 * self._seconds),
            )
            for cpu in self.cpus
        )


def _divide(counts: Counter[tuple[str, int]], cpu: int, divisor: float) -> dict[str, float]:
    return {name: count / divisor for (name, place), count in counts.items() if place == cpu}
