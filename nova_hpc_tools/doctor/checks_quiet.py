# SPDX-License-Identifier: Apache-2.0
"""Work of the host on dedicated CPUs, and kernel settings that slow their servers. Pure.

The kernel's counters begin with the boot, when each CPU has interrupts and threads. So only the
difference of two readings counts, a few seconds apart.

Judged are interrupts of the host's devices (the numbered rows), kernel threads that may run on
several CPUs, and timer interrupts (LOC) of a CPU that a guest has for itself. Servers themselves
cause the other rows (RES, CAL, TLB, PIN, NMI of a profiler), interrupts of their own devices
(vfio), and the work of threads that are bound to a CPU (ksoftirqd, kworker/4:1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from nova_hpc.topology import cpuset
from nova_hpc_tools.site import kernel_words
from nova_hpc_tools.site.cures import PREPARE, DoctorCure
from nova_hpc_tools.site.findings import DoctorFinding, join_first_few

TICKS: Final = "LOC"
#: The kernel's lowest frequency of ticks is 100 Hz, with a margin for the time of reading.
_TICKS_A_SECOND: Final = 95
#: Unit of the times in /proc/stat (USER_HZ), and the part of a CPU that a guest has for itself.
#: A guest that sleeps uses the host's timer.
_USER_HZ: Final = 100
_BUSY: Final = 0.99
_COLUMN: Final = re.compile(r"CPU(\d{1,5})", re.ASCII)
_GUEST_DEVICE: Final = "vfio"
_NORMAL_BALANCING: Final = 1


@attrs.frozen
class Interrupt:
    """A row of /proc/interrupts: its text behind the counts, and CPU -> count."""

    text: str
    counts: Mapping[int, int]


@attrs.frozen
class KernelThread:
    """A kernel thread, its last CPU, and the time that it has run in ns."""

    name: str
    cpu: int
    ran: int


@attrs.frozen
class HostCounters:
    """Counters of the kernel at one moment, for some CPUs."""

    #: Seconds of a clock that only goes forward.
    at: float
    #: Label of a row of /proc/interrupts -> row.
    interrupts: Mapping[str, Interrupt] = attrs.field(factory=dict, hash=False)
    #: CPU -> ticks of /proc/stat in guests.
    guest: Mapping[int, int] = attrs.field(factory=dict, hash=False)
    #: Process id and start time -> thread.
    threads: Mapping[tuple[int, int], KernelThread] = attrs.field(factory=dict, hash=False)


@attrs.frozen
class QuietFacts:
    """The facts about a host's work on its dedicated CPUs; None if a fact is unknown."""

    dedicated: frozenset[int] = frozenset()
    #: The online CPUs that are not dedicated.
    of_host: frozenset[int] = frozenset()
    #: CPUs without work of the host: by ``quiet_cpus`` of the declaration, or isolated by the
    #: running kernel for another reason.
    quiet: frozenset[int] = frozenset()
    #: Words of the running kernel that lack some of these CPUs, if the declaration has them.
    lacks: tuple[str, ...] = ()
    numa_balancing: int | None = None
    halt_poll_ns: int | None = None
    #: CPUs that a running irqbalance leaves alone.
    banned: frozenset[int] | None = None
    #: Seconds between the two readings; 0 without any.
    seconds: float = 0
    #: Number of an interrupt -> its name and the quiet CPUs on which it fired.
    fired: Mapping[str, tuple[str, frozenset[int]]] = attrs.field(factory=dict, hash=False)
    #: Process id -> a thread that ran on a quiet CPU, and may run on others.
    threads: Mapping[int, KernelThread] = attrs.field(factory=dict, hash=False)
    #: CPUs that a guest had for itself and whose tick went on.
    ticking: frozenset[int] = frozenset()


def parse_interrupts(text: str, cpus: frozenset[int]) -> dict[str, Interrupt]:
    """Parse the rows of /proc/interrupts by label, with the counts of some CPUs.

    The header names the CPU of each column: an offline CPU has none. A row with fewer numbers than
    columns (ERR, MIS) belongs to no CPU and is left out.

    :raises ValueError: the text has no header.
    """
    head, _, body = text.partition("\n")
    matches = [_COLUMN.fullmatch(word) for word in head.split()]
    columns = [int(match[1]) for match in matches if match]
    if not columns or len(columns) != len(matches):
        raise ValueError("no line with the CPUs of the columns")
    wanted = [(place, cpu) for place, cpu in enumerate(columns) if cpu in cpus]
    rows = {}
    for line in body.splitlines():
        label, _, rest = line.partition(":")
        words = rest.split(None, len(columns))
        numbers = words[: len(columns)]
        if len(numbers) == len(columns) and "".join(numbers).isdigit():
            counts = {cpu: int(numbers[place]) for place, cpu in wanted}
            action = " ".join("".join(words[len(columns) :]).split())
            rows[label.strip()] = Interrupt(action, counts)
    return rows


def find_fired_interrupts(before: HostCounters, after: HostCounters) -> dict[str, frozenset[int]]:
    """Return number of a device's interrupt -> the CPUs on which it fired between two readings.

    A number that has come, gone or been given to another device is unknown.
    """
    fired = {}
    for label, row in after.interrupts.items():
        old = before.interrupts.get(label)
        if not label.isdigit() or old is None or old.text != row.text:
            continue
        if any(word.startswith(_GUEST_DEVICE) for word in row.text.split()):
            continue
        if grown := _find_grown(old.counts, row.counts, 1):
            fired[label] = grown
    return fired


def find_run_threads(before: HostCounters, after: HostCounters) -> dict[int, KernelThread]:
    """Return process id -> kernel thread that ran between two readings, on one of their CPUs."""
    return {
        key[0]: thread
        for key, thread in after.threads.items()
        if key in before.threads and thread.ran > before.threads[key].ran
    }


def find_ticking_cpus(before: HostCounters, after: HostCounters) -> frozenset[int]:
    """Return CPUs with a guest of their own between two readings, whose tick did not stop.

    One runnable thread needs no tick. The timers of a guest that does not sleep are no host's
    timer interrupts if the processor's preemption timer serves them; the caller checks that.
    """
    seconds = after.at - before.at
    old, new = (counters.interrupts.get(TICKS) for counters in (before, after))
    if old is None or new is None:
        return frozenset()
    busy = _find_grown(before.guest, after.guest, _BUSY * _USER_HZ * seconds)
    return busy & _find_grown(old.counts, new.counts, _TICKS_A_SECOND * seconds)


def _find_grown(
    before: Mapping[int, int], after: Mapping[int, int], least: float
) -> frozenset[int]:
    """Return CPUs whose count in both readings has grown by *least* or more."""
    both = before.keys() & after.keys()
    return frozenset(cpu for cpu in both if after[cpu] - before[cpu] >= least)


def check_quiet_cpus(facts: QuietFacts, not_booted: Iterable[str]) -> Iterator[DoctorFinding]:
    """Find work of the host on dedicated CPUs, and settings that slow their servers.

    :param not_booted: prepared words that the next boot of the host will have.
    """
    if not facts.dedicated:
        return
    yield from _check_settings(facts)
    due = any(word.startswith(kernel_words.LISTS) for word in not_booted)
    if facts.lacks and not due:
        yield DoctorFinding(
            "cpus-not-isolated",
            "quiet_cpus is declared, and the kernel was started without all dedicated CPUs in "
            f"{' and '.join(facts.lacks)}: {cpuset.format_list(facts.quiet)}.",
            DoctorCure.of(
                PREPARE, ", run its commands, and restart the host when no server is on it."
            ),
        )
    if facts.banned is not None and facts.quiet - facts.banned:
        yield DoctorFinding(
            "irqbalance-unbanned",
            "irqbalance may move interrupts to dedicated CPUs "
            f"{cpuset.format_list(facts.quiet - facts.banned)}.",
            "Take IRQBALANCE_BANNED_CPULIST and IRQBALANCE_BANNED_CPUS out of "
            "/etc/default/irqbalance (/etc/sysconfig/irqbalance), and systemctl restart "
            "irqbalance: it then leaves isolated CPUs alone.",
        )
    yield from _check_counters(facts)


def _check_settings(facts: QuietFacts) -> Iterator[DoctorFinding]:
    # Other bits are for tiers of memory (Documentation/admin-guide/sysctl/kernel.rst).
    if facts.numa_balancing is not None and facts.numa_balancing & _NORMAL_BALANCING:
        yield DoctorFinding(
            "numa-balancing",
            f"kernel.numa_balancing is {facts.numa_balancing}.",
            DoctorCure.of("sysctl -w kernel.numa_balancing=0, and for each start ", PREPARE, "."),
        )
    if facts.halt_poll_ns == 0:
        yield DoctorFinding(
            "halt-polling",
            "KVM does not poll for a vCPU that waits: halt_poll_ns is 0.",
            "echo 200000 > /sys/module/kvm/parameters/halt_poll_ns, and take halt_poll_ns=0 out of "
            "modprobe.d and the kernel's command line.",
        )


def _check_counters(facts: QuietFacts) -> Iterator[DoctorFinding]:
    host = cpuset.format_list(facts.of_host)
    span = f"In {facts.seconds:.0f} s"
    if facts.fired:
        names = [
            f"{number} {name} ({cpuset.format_list(cpus)})"
            for number, (name, cpus) in facts.fired.items()
        ]
        yield DoctorFinding(
            "cpus-interrupted",
            f"{span}, interrupts of the host fired on dedicated CPUs: {join_first_few(names)}.",
            f"echo {host} > /proc/irq/{next(iter(facts.fired))}/smp_affinity_list, for each of "
            "them and at each start.",
        )
    if facts.threads:
        names = [f"{thread.name} ({thread.cpu})" for thread in facts.threads.values()]
        yield DoctorFinding(
            "cpus-kernel-threads",
            f"{span}, kernel threads ran on dedicated CPUs: {join_first_few(names)}.",
            f"taskset -pc {host} {next(iter(facts.threads))}, for each of them and at each start; "
            f"for kworker the mask of CPUs {host} in /sys/devices/virtual/workqueue/cpumask.",
        )
    if facts.ticking:
        yield DoctorFinding(
            "cpus-ticking",
            f"The tick does not stop on dedicated CPUs {cpuset.format_list(facts.ticking)}, though "
            "each runs one vCPU and no other thread.",
            "echo 1 > /sys/kernel/tracing/events/timer/tick_stop/enable; the lines of "
            "/sys/kernel/tracing/trace name the dependency= that keeps it.",
        )
