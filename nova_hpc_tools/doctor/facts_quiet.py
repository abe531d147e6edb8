# SPDX-License-Identifier: Apache-2.0
"""Facts about a host's work on its dedicated CPUs, for ``nova-hpc doctor``.

A file that cannot be read makes its fact unknown, which is no finding.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import attrs

from nova_hpc.topology import cpuset
from nova_hpc.topology.files import FileError, FileTree, decode_kernel_text
from nova_hpc.topology.model import Node
from nova_hpc_tools.adopt.quiet_host import BOOT_CPU
from nova_hpc_tools.doctor import checks_quiet
from nova_hpc_tools.doctor.checks_quiet import HostCounters, Interrupt, KernelThread, QuietFacts
from nova_hpc_tools.site import kernel_words

#: Time between the two readings.
SECONDS: Final = 2.0
#: 256 CPUs and 2,000 interrupts are 6 MB.
_LONGEST: Final = 1 << 26
_PIECE: Final = 1 << 20
_CPUS: Final = "/sys/devices/system/cpu"
#: Fields of /proc/PID/stat behind the name (proc_pid_stat(5)), and PF_KTHREAD of its flags.
_FLAGS, _START, _CPU = 6, 19, 36
_KERNEL_THREAD: Final = 0x00200000
_STAT: Final = re.compile(r"\d+ \((.*)\) (.*)", re.DOTALL)
#: Field of a CPU's line of /proc/stat behind its name: the time of guests in USER_HZ.
_GUEST_TIME: Final = 8
_BALANCER: Final = "irqbalance"
_NUMBER: Final = re.compile(r"\d{1,18}", re.ASCII)
_ALLOWED: Final = re.compile(r"^Cpus_allowed_list:\s*(\S+)$", re.MULTILINE)


def read_quiet_facts(
    root: Path | None,
    node: Node,
    dedicated: frozenset[int],
    declared: bool,
    on_this_machine: bool,
) -> QuietFacts:
    """Read the facts of a host; counters only of this machine, and only if its CPUs are isolated.

    :param root: the folder with the host's files; None if unknown.
    :param declared: the declaration has ``quiet_cpus``.
    """
    if root is None or not dedicated:
        return QuietFacts()
    tree = FileTree(root)
    isolated, tickless = (_read_cpus(tree, f"{_CPUS}/{name}") for name in ("isolated", "nohz_full"))
    wanted = dedicated - {BOOT_CPU}
    quiet = wanted if declared else wanted & (isolated or frozenset())
    lacks = tuple(
        word.rstrip("=")
        for word, cpus in ((kernel_words.ISOLATED, isolated), (kernel_words.TICKLESS, tickless))
        if declared and cpus is not None and quiet - cpus
    )
    facts = QuietFacts(
        dedicated=dedicated,
        of_host=node.cpus - node.offline_cpus - dedicated,
        quiet=quiet,
        lacks=lacks,
        numa_balancing=_read_number(tree, "/proc/sys/kernel/numa_balancing"),
        halt_poll_ns=_read_number(tree, "/sys/module/kvm/parameters/halt_poll_ns"),
    )
    if not quiet or lacks or not on_this_machine:
        return facts
    before, _ = read_host_counters(root, quiet)
    sleep(SECONDS)
    after, balancer = read_host_counters(root, quiet)
    timer = _read_text(tree, "/sys/module/kvm_intel/parameters/preemption_timer")
    ticking = checks_quiet.find_ticking_cpus(before, after) & (tickless or frozenset())
    return attrs.evolve(
        facts,
        seconds=SECONDS,
        fired=dict(keep_present_interrupts(tree, before, after)),
        threads=dict(keep_movable_threads(tree, before, after)),
        ticking=ticking if timer == "Y" else frozenset(),
        banned=_read_banned_cpus(
            tree, balancer, (isolated or frozenset()) | (tickless or frozenset())
        ),
    )


def read_host_counters(root: Path, cpus: frozenset[int]) -> tuple[HostCounters, int | None]:
    """Read the counters of *cpus*, and the process id of irqbalance; None if it does not run."""
    tree = FileTree(root)
    threads: dict[tuple[int, int], KernelThread] = {}
    balancer = None
    at = monotonic()
    interrupts = read_interrupts(tree, cpus)
    for pid, name, fields in _read_processes(tree):
        if int(fields[_FLAGS]) & _KERNEL_THREAD:
            cpu = int(fields[_CPU])
            ran = _read_number(tree, f"/proc/{pid}/schedstat") if cpu in cpus else None
            if ran is not None:
                threads[pid, int(fields[_START])] = KernelThread(name, cpu, ran)
        elif name == _BALANCER:
            balancer = pid
    return HostCounters(at, interrupts, _read_guest_times(tree, cpus), threads), balancer


def read_interrupts(tree: FileTree, cpus: frozenset[int]) -> dict[str, Interrupt]:
    """Read /proc/interrupts for some CPUs; no rows if it cannot be read."""
    path = "/proc/interrupts"
    try:
        data = tree.read(path, _LONGEST, _read_to_the_end)
        return checks_quiet.parse_interrupts(decode_kernel_text(data or b"", path), cpus)
    except (FileError, ValueError):
        return {}


def _read_to_the_end(handle: int, limit: int) -> bytes:
    """Read an open file whose reads end at a line rather than a page."""
    pieces = []
    while limit > 0 and (piece := os.read(handle, min(_PIECE, limit))):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)


def _read_processes(tree: FileTree) -> Iterator[tuple[int, str, list[str]]]:
    """Yield process id, name and the fields of /proc/PID/stat behind the name."""
    try:
        names = tree.names("/proc")
    except FileError:
        return
    for name in names:
        match = name.isdigit() and _STAT.fullmatch(_read_text(tree, f"/proc/{name}/stat") or "")
        fields = match[2].split() if match else []
        numbers = "".join(fields[at] for at in (_FLAGS, _START, _CPU) if at < len(fields))
        if match and len(fields) > _CPU and numbers.isdigit():
            yield int(name), match[1], fields


def _read_guest_times(tree: FileTree, cpus: frozenset[int]) -> dict[int, int]:
    times = {}
    for line in (_read_text(tree, "/proc/stat") or "").splitlines():
        name, *fields = line.split() or [""]
        number = name.removeprefix("cpu")
        if number.isdigit() and int(number) in cpus and len(fields) > _GUEST_TIME:
            times[int(number)] = int(fields[_GUEST_TIME])
    return times


def keep_present_interrupts(
    tree: FileTree, before: HostCounters, after: HostCounters
) -> Iterator[tuple[str, tuple[str, frozenset[int]]]]:
    """Yield interrupts that fired and that are still directed to one of these CPUs.

    An interrupt that exists on each CPU (a timer of Arm) has no effective affinity.
    """
    for number, cpus in checks_quiet.find_fired_interrupts(before, after).items():
        directed = _read_cpus(tree, f"/proc/irq/{number}/effective_affinity_list")
        if directed and directed & cpus:
            words = after.interrupts[number].text.split() or [""]
            yield number, (words[-1], cpus)


def keep_movable_threads(
    tree: FileTree, before: HostCounters, after: HostCounters
) -> Iterator[tuple[int, KernelThread]]:
    """Yield process id and thread of those that ran and that may run on several CPUs."""
    for pid, thread in checks_quiet.find_run_threads(before, after).items():
        match = _ALLOWED.search(_read_text(tree, f"/proc/{pid}/status") or "")
        allowed = _parse_cpus(match[1]) if match else None
        if allowed and len(allowed) > 1:
            yield pid, thread


def _read_banned_cpus(
    tree: FileTree, pid: int | None, isolated: frozenset[int]
) -> frozenset[int] | None:
    """Return the CPUs that irqbalance leaves alone; None if it does not run or this is unknown.

    Its environment decides, else the kernel's isolated and tickless CPUs (irqbalance(1)).
    """
    try:
        data = tree.read(f"/proc/{pid}/environ") if pid is not None else None
    except FileError:
        return None  # only root reads it
    if data is None:
        return None
    words = data.decode("utf-8", "replace").split("\0")
    environment: Mapping[str, str] = dict(word.split("=", 1) for word in words if "=" in word)
    for name, parse in (
        ("IRQBALANCE_BANNED_CPULIST", cpuset.parse_list),
        ("IRQBALANCE_BANNED_CPUS", cpuset.parse_mask),
    ):
        if environment.get(name):
            try:
                return parse(environment[name])
            except ValueError:
                return None
    return isolated


def _read_cpus(tree: FileTree, path: str) -> frozenset[int] | None:
    text = _read_text(tree, path)
    # A kernel without nohz_full= on its command line prints a null pointer.
    return _parse_cpus("" if text == "(null)" else text)


def _parse_cpus(text: str | None) -> frozenset[int] | None:
    try:
        return None if text is None else cpuset.parse_list(text)
    except ValueError:
        return None


def _read_number(tree: FileTree, path: str) -> int | None:
    match = _NUMBER.match(_read_text(tree, path) or "")
    return None if match is None else int(match[0])


def _read_text(tree: FileTree, path: str) -> str | None:
    try:
        return tree.text(path)
    except FileError:
        return None
