# SPDX-License-Identifier: Apache-2.0
"""The start of a host that keeps its own work off the dedicated CPUs. Pure.

``[compute]cpu_dedicated_set`` of nova-compute is the only list of these CPUs. The means:

``isolcpus=managed_irq,domain``
    The scheduler moves no process to the CPUs. ``CPUAffinity`` of systemd does not reach far
    enough: runc gives containers all CPUs again (opencontainers/runc, pull request 4858), and
    Linux before 6.2 does the same to services when a guest gets a cpuset (systemd, issue 23748).
    An isolated partition of cgroup v2 does not fit: the emulator threads of a server are in the
    cgroup of its vCPUs, and run on the host's CPUs.
``nohz_full``, ``rcu_nocbs``, ``irqaffinity``
    The tick stops while one thread runs; RCU's callbacks and interrupts are for the host's CPUs.
``CPUAffinity``
    Services that start a thread for each of their CPUs count only the host's.
``tmpfiles.d``, ``sysctl.d``
    Idle states that are quick to leave, the governor, and work that wakes on each CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from nova_hpc.topology import cpuset
from nova_hpc.topology.model import Node
from nova_hpc_tools.site import configured, kernel_words
from nova_hpc_tools.site.kernel_options import KernelOptions

#: The CPU that starts the kernel: nohz_full never contains it (kernel/time/tick-sched.c).
BOOT_CPU: Final = 0
#: Longest time in microseconds to leave an idle state: C1 and C1E of present processors, no C6.
_WAKES_IN: Final = 10


@attrs.frozen
class QuietCpus:
    """The CPUs without work of the host, and the CPUs that have it."""

    cpus: frozenset[int]
    of_host: frozenset[int]


def plan_quiet_cpus(node: Node, dedicated: str | None) -> tuple[QuietCpus | None, list[str]]:
    """Return the plan for a node that declares ``quiet_cpus``, and sentences about omitted CPUs.

    :param dedicated: ``[compute]cpu_dedicated_set``.
    :returns: None in place of the plan if no CPU can be quiet.
    """
    if dedicated is None:
        return None, [
            "quiet_cpus has no effect yet: [compute]cpu_dedicated_set is not set. Run nova-hpc "
            "configure --write, then nova-hpc prepare again."
        ]
    named = configured.parse_cpus(dedicated)
    if named is None:
        return None, [f"quiet_cpus has no effect: {dedicated!r} is no set of CPUs."]
    present = node.cpus | node.unplaced_cpus
    cpus = (named & present) - {BOOT_CPU}
    if not cpus or not present - cpus:
        return None, [
            f"quiet_cpus has no effect: [compute]cpu_dedicated_set is {dedicated}, and the host "
            "needs CPUs beside it."
        ]
    notes = []
    if BOOT_CPU in named:
        notes.append(
            f"CPU {BOOT_CPU} starts the host and keeps its work: take it out of "
            "[compute]cpu_dedicated_set."
        )
    return QuietCpus(cpus, present - cpus), notes


def choose_quiet_words(
    quiet: QuietCpus, kernel: KernelOptions
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of the kernel's command line, and a sentence about each excluded one.

    The words are all written or none: an operator who isolates CPUs has an own set.
    """
    cpus = cpuset.format_list(quiet.cpus)
    words, notes = kernel_words.choose_words(
        (
            f"{kernel_words.ISOLATED}managed_irq,domain,{cpus}",
            f"{kernel_words.TICKLESS}{cpus}",
            f"{kernel_words.CALLBACKS}{cpus}",
            f"{kernel_words.INTERRUPTS}{cpuset.format_list(quiet.of_host)}",
        ),
        kernel,
    )
    return (() if notes else tuple(words)), tuple(notes)


def quiet_sysctl_lines() -> Iterator[str]:
    """Yield the settings of kernel work that wakes on each CPU or NUMA node."""
    yield "# Compaction ahead of need wakes a thread of each NUMA node twice a second."
    yield "-vm.compaction_proactiveness = 0"
    yield "# The memory counters of each CPU are collected every 10 s, not every second."
    yield "vm.stat_interval = 10"


def quiet_tmpfiles_lines(quiet: QuietCpus) -> Iterator[str]:
    """Yield the lines that keep dedicated CPUs ready: idle states and frequency."""
    yield f"# Dedicated CPUs: no idle state that takes more than {_WAKES_IN} us to leave."
    for cpu in sorted(quiet.cpus):
        folder = f"/sys/devices/system/cpu/cpu{cpu}"
        yield f"w {folder}/power/pm_qos_resume_latency_us - - - - {_WAKES_IN}"
        yield f"w {folder}/cpufreq/scaling_governor - - - - performance"


def quiet_systemd_lines(quiet: QuietCpus) -> Iterator[str]:
    """Yield the lines that keep services on the host's CPUs."""
    yield "[Manager]"
    yield f"CPUAffinity={cpuset.format_list(quiet.of_host)}"
