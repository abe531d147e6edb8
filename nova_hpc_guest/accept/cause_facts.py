# SPDX-License-Identifier: Apache-2.0
"""The facts of causes: each function returns its fact in words, or None if it does not hold.

They compare counters, and the facts of both machines. If a fact is that a counter stayed at zero,
this command must have had CPU time itself. Otherwise it would take its own missing samples for
a fact of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from .evidence import Evidence
from .gpus import GPU_USERS

CPU_PROBES: Final = frozenset(("cpu_one", "cpu_all"))
#: Below this part of its time the command was itself kept from running.
LEAST_WATCHED: Final = 0.30
#: A probe that had this part of the time that it had at the baseline ran all the time.
_RAN: Final = 0.90
#: All CPUs together do no more than this part of their sum if each two are one CPU.
_HALF: Final = 0.57
#: An interrupt is taken to stop a guest for ten microseconds, with exit, handler and entry.
_INTERRUPT: Final = 10e-6
#: The host's work has to take half of the time that a CPU lost. A percentile of wakes is late if
#: one of a hundred falls into that work.
_HOST_SHARE: Final = 0.5
_LATE_SHARE: Final = 0.01
#: Two CPUs that are one lose half each; a smaller loss means that only few are pairs.
_STOLEN: Final = 0.30
_SLOW_CLOCKS: Final = frozenset(("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"))


def find_quota(seen: Evidence) -> str | None:
    """Explain that a CPU quota stopped the probe, by the kernel's count of that time; else None."""
    if seen.most(CPU_PROBES, "throttled") <= 0.03:
        return None
    quota = f" ({seen.test.quota})" if seen.test.quota else ""
    return f"the kernel stopped the probe for its CPU quota{quota}"


def find_steal(seen: Evidence) -> str | None:
    """Explain that the host took the CPUs away, by the hypervisor's steal time; else None."""
    steal = seen.most(CPU_PROBES, "steal")
    if steal <= 0.02:
        return None
    return f"the host took the CPUs away for {steal:.0%} of the time (steal)"


def find_host_interrupts(seen: Evidence) -> str | None:
    """Explain that interrupts of the host fired on this guest's CPUs, often enough; else None."""
    work = _find_host_work(seen, [work.interrupts for work in seen.host], _INTERRUPT)
    if work is None:
        return None
    return (
        f"interrupts of the host fired {sum(work.values()):.0f} times a second on a CPU of this "
        f"guest: {_name_first(work)}"
    )


def find_host_threads(seen: Evidence) -> str | None:
    """Explain that kernel threads of the host ran on this guest's CPUs; else None."""
    work = _find_host_work(seen, [work.threads for work in seen.host], 1.0)
    if work is None:
        return None
    return (
        f"kernel threads of the host ran for {sum(work.values()):.1%} of the time on a CPU of this "
        f"guest: {_name_first(work)}"
    )


def _find_host_work(
    seen: Evidence, works: Sequence[Mapping[str, float]], cost: float
) -> Mapping[str, float] | None:
    """Return the work on the CPU that matters, if it accounts for each slow probe of its kind.

    :param works: for each vCPU, the amounts of one kind of the host's work.
    :param cost: part of the time that an amount of 1 takes.
    """
    last = max(seen.test.allowed, default=-1)
    if not 0 <= last < len(works):
        return None
    parts = [cost * sum(work.values()) for work in works]
    # Probes of one CPU take the last one.
    taken = {
        "cpu_one": parts[last],
        "timer_p99": parts[last],
        "cpu_all": sum(parts) / len(parts),
        "oslat": max(parts),
    }
    for probe in taken.keys() & seen.slow:
        ratio = seen.rows[probe].ratio
        if taken[probe] < (_HOST_SHARE * (1 - ratio) if probe in CPU_PROBES else _LATE_SHARE):
            return None
    single = seen.slow & {"cpu_one", "timer_p99"}
    return works[last] if single else max(works, key=lambda work: sum(work.values()))


def _name_first(work: Mapping[str, float]) -> str:
    return ", ".join(sorted(work, key=lambda name: -work[name])[:3])


def find_restriction(seen: Evidence) -> str | None:
    """Explain that this process may use fewer CPUs than there are; else None."""
    allowed, online = seen.test.allowed, seen.test.online
    if not 0 < len(allowed) < len(online):
        return None
    return f"this process may use {len(allowed)} of {len(online)} CPUs"


def find_busy_cpu(seen: Evidence) -> str | None:
    """Explain that other processes of this system ran on the probe's CPUs; else None."""
    probe = _first_cpu_probe(seen)
    waited, others = seen.share(probe, "waited").more, seen.share(probe, "others").more
    if max(waited, others) <= 0.10 or (probe == "cpu_all" and not _may_use_all(seen)):
        return None
    return (
        f"other processes of this system ran on the probe's CPUs for {max(others, 0):.0%} of the "
        f"time, and it was ready and waited for {max(waited, 0):.0%}"
    )


def find_stopped(seen: Evidence) -> str | None:
    """Explain that the probe ran less, was not ready, and no other process ran; else None."""
    if not _is_time_missing(seen) or _ran(seen) >= _RAN:
        return None
    return (
        f"the probe ran for {_ran(seen):.0%} of the time that it had at the baseline, was not "
        "ready for the rest, and nothing else ran: something stops it (SIGSTOP, freezer, debugger)"
    )


def find_governor(seen: Evidence) -> str | None:
    """Explain that the CPUs' governor saves power here, and not at the baseline; else None."""
    if not _is_time_missing(seen) or _ran(seen) < _RAN:
        return None
    if seen.test.governor == seen.base.governor or seen.test.governor != "powersave":
        return None
    return f"the CPUs' governor is powersave, {seen.base.governor} at the baseline"


def find_shared_core(seen: Evidence) -> str | None:
    """Explain that these CPUs share one CPU of the host; else None.

    All CPUs together are then about half of their sum, and no process waits.
    """
    if not _do_cpus_share(seen) or seen.rows["cpu_all"].ratio > _HALF:
        return None
    return (
        "one CPU alone is as fast as ever, all together are not, and nothing waits here: several "
        "of these CPUs are one CPU of the host"
    )


def find_shared_host_cpu(seen: Evidence) -> str | None:
    """Explain that these CPUs share one CPU of the host, by steal time of all together; else None.

    If a host counts steal time, the CPUs of a machine that share one CPU of the host steal from
    each other. One CPU by itself is not slow. It may still lose the time that its sibling needs for
    the system and for this command: a quarter of its time was seen.
    """
    stolen = seen.share("cpu_all", "steal").more
    if "cpu_all" not in seen.slow or "cpu_one" not in seen.rows or not _may_use_all(seen):
        return None
    if len(seen.test.online) < 2 or stolen < _STOLEN:
        return None
    return (
        f"one CPU alone is not slow, and all together lose {stolen:.0%} of their time "
        "(steal): several of these CPUs are one CPU of the host"
    )


def find_shared_threads(seen: Evidence) -> str | None:
    """Explain that the host's threads were handed out as cores; else None.

    All CPUs together are then more than half of their sum, and the machine shows no threads.
    """
    if not _do_cpus_share(seen) or seen.rows["cpu_all"].ratio <= _HALF:
        return None
    if seen.test.threads != 1 or not seen.test.hypervisor:
        return None
    return (
        "all CPUs together do as much as threads that share cores, and this machine shows none: "
        "the host's threads were handed out as cores"
    )


def find_time_taken(seen: Evidence) -> str | None:
    """Explain that the probe ran all the time and did less; else None."""
    if not _is_time_missing(seen) or _ran(seen) < _RAN:
        return None
    return (
        "the probe believes that it ran all the time and did less: the host takes the CPU away "
        "without reporting it, the core is slower or shared, or firmware interrupts (SMI)"
    )


def find_pages_off(seen: Evidence) -> str | None:
    """Explain that large pages are switched off here, and not at the baseline; else None."""
    if seen.test.thp == "never" and seen.base.thp != "never":
        return "large pages are switched off (transparent_hugepage=never)"
    if seen.test.thp_disabled and not seen.base.thp_disabled:
        return "large pages are switched off for this process (prctl)"
    return None


def find_small_pages(seen: Evidence) -> str | None:
    """Explain that less of the memory is in large pages than at the baseline; else None."""
    for probe in ("mem_random", "mem_stream"):
        before, now = seen.large.get(probe, (None, None))
        if before is not None and now is not None and now < before - 0.3:
            return f"{now:.0%} of the memory is in large pages, {before:.0%} at the baseline"
    return None


def find_host_pages(seen: Evidence) -> str | None:
    """Explain that the host uses pages of 4 KiB, by the cloud's document; else None."""
    if seen.promise is None or not any(cell.page_kib == 4 for cell in seen.promise.cells):
        return None
    return "the host backs this machine's memory with pages of 4 KiB (the cloud's document)"


def find_blas_kernel(seen: Evidence) -> str | None:
    """Explain that an environment variable chooses BLAS code for another CPU; else None."""
    core = seen.test.blas_core
    if core is None or core == seen.base.blas_core:
        return None
    return f"OPENBLAS_CORETYPE={core} chooses code for another CPU"


def find_hidden_simd(seen: Evidence) -> str | None:
    """Explain that the CPU lacks vector instructions of the baseline; else None."""
    hidden = sorted(set(seen.base.simd) - set(seen.test.simd))
    return f"the CPU does not show {', '.join(hidden)}" if hidden else None


def find_reference_blas(seen: Evidence) -> str | None:
    """Explain that another BLAS is loaded than at the baseline; else None."""
    old, new = seen.base.blas, seen.test.blas
    if new is None or new == old:
        return None
    return f"the BLAS is {new}, {old} at the baseline"


def find_mpi_wires(seen: Evidence) -> str | None:
    """Explain that two MPI ranks of one machine use a network interface; else None."""
    old, new = seen.wires.get("mpi_lat", (frozenset(), frozenset()))
    odd = sorted(name for name in new - old if not name.startswith("ib:"))
    if not odd:
        return None
    chosen = {name: value for name, value in seen.test.settings.items() if name[:4] != "NCCL"}
    stated = "".join(f", {name}={value}" for name, value in chosen.items())
    return f"two ranks of one machine talk through {', '.join(odd)}{stated}"


def find_shaper(seen: Evidence) -> str | None:
    """Explain that a queue on an interface limits the rate, but not at the baseline; else None."""
    kinds = [shaper.split()[0] for shaper in seen.base.shapers]
    more = []
    for shaper in seen.test.shapers:
        kind = shaper.split()[0]
        if kind in kinds:
            kinds.remove(kind)
        else:
            more.append(shaper)
    return f"a queue of this machine limits the rate: {', '.join(more)}" if more else None


def find_path_limit(seen: Evidence) -> str | None:
    """Explain that the network path limits the rate; else None.

    The bytes left this machine, and no queue of it has a rate.
    """
    _, wires = seen.wires.get("net_bw", (frozenset(), frozenset()))
    if seen.test.shapers != seen.base.shapers or not wires - {"lo"}:
        return None
    return "several streams together are no faster than one: the path has a limit of its own"


def find_disk_limit(seen: Evidence) -> str | None:
    """Explain that the control group limits reads of the disk; else None."""
    limit = seen.test.disk_limit
    if limit is None or limit == seen.base.disk_limit:
        return None
    return f"a limit of this system: {limit}"


def find_idle_exit(seen: Evidence) -> str | None:
    """Explain that a sleeping CPU wakes late, although it is as fast as ever; else None."""
    if "cpu_one" not in seen.level:
        return None
    if (
        seen.share("timer_p99", "waited").more > 0.10
        or seen.share("timer_p99", "others").more > 0.10
    ):
        return None
    if seen.test.idle is None and not seen.test.hypervisor:
        return None
    return f"a CPU that sleeps wakes late (idle driver: {seen.test.idle or 'none'})"


def find_clocksource(seen: Evidence) -> str | None:
    """Explain that the clock source is another one, or one that is always slow; else None."""
    new, old = seen.test.clocksource, seen.base.clocksource
    if new is None or (new == old and new not in _SLOW_CLOCKS):
        return None
    return f"reading the time leaves user space: the clock source is {new}"


def find_wrong_cell(seen: Evidence) -> str | None:
    """Explain that another NUMA node's memory is nearer, with several promised; else None."""
    if seen.promise is None or len(seen.promise.cells) < 2:
        return None
    return "memory of another NUMA node is nearer to these CPUs than that of their own"


def find_far_gpu(seen: Evidence) -> str | None:
    """Explain that the GPU is near another NUMA node than the promised one; else None."""
    devices = () if seen.promise is None else seen.promise.devices
    if not any(device.cell is not None for device in devices):
        return None
    return "the GPU is nearer to another NUMA node than to the promised one"


def find_gpu_users(seen: Evidence) -> str | None:
    """Explain that other processes computed on a GPU while a probe measured it; else None."""
    texts = [
        word[len(GPU_USERS) :]
        for words in seen.words.values()
        for word in words
        if word.startswith(GPU_USERS)
    ]
    users = max((int(text) for text in texts if text.isdecimal() and len(text) < 9), default=0)
    if not users:
        return None
    return f"{users} other {'processes use' if users > 1 else 'process uses'} a GPU (nvidia-smi)"


def find_redirect(seen: Evidence) -> str | None:
    """Explain that peer-to-peer traffic leaves the switch because of ACS; else None."""
    return _find_peer_reason(seen, ("acs-redirect",), "the host's switches send all of it up (ACS)")


def find_no_ats(seen: Evidence) -> str | None:
    """Explain that peer-to-peer leaves the switch because a device has no ATS; else None."""
    return _find_peer_reason(
        seen, ("no-ats",), "ACS lets translated requests through, and a device has no ATS"
    )


def find_no_gdr(seen: Evidence) -> str | None:
    """Explain that NCCL goes through InfiniBand without GPUDirect RDMA; else None."""
    words = seen.words.get("nccl_pair", ())
    if "ib" not in words or "gdrdma" in words:
        return None
    return "NCCL goes through InfiniBand without GPUDirect RDMA"


def find_nccl_sockets(seen: Evidence) -> str | None:
    """Explain that NCCL uses sockets, by its log or by counters of interfaces; else None."""
    _, wires = seen.wires.get("nccl_pair", (frozenset(), frozenset()))
    if "socket" in seen.words.get("nccl_pair", ()):
        return "NCCL says that it uses sockets"
    if seen.test.rdma and wires and not any(name.startswith("ib:") for name in wires):
        return f"no counter of InfiniBand moved, {', '.join(sorted(wires))} did"
    return None


def find_crossed_rails(seen: Evidence) -> str | None:
    """Explain that NCCL uses fewer rails than were promised; else None."""
    devices = () if seen.promise is None else seen.promise.devices
    promised = len({device.rail for device in devices if device.rail is not None})
    for word in seen.words.get("nccl_pair", ()):
        if word.startswith("rails="):
            used = len(word[6:].split(","))
            if 1 <= used < promised:
                return f"NCCL uses {used} of the {promised} rails that were promised"
    return None


def find_flat_tree(seen: Evidence) -> str | None:
    """Explain that the tree is not as promised, or flat without NCCL's file; else None."""
    if "tree" in seen.wrong_kinds():
        return "the tree of devices is not the promised one (nova-hpc-guest check)"
    flat = seen.promise is not None and seen.promise.topology == "flat"
    if flat and "NCCL_TOPO_FILE" not in seen.test.settings:
        return "the machine shows a flat tree, and NCCL was not told the real one"
    return None


def find_narrow_link(seen: Evidence) -> str | None:
    """Return the text about the first PCIe link with fewer lanes than promised; else None."""
    return next(iter(seen.links.narrow), None)


def find_slow_link(seen: Evidence) -> str | None:
    """Return the text about the first PCIe link that is slower than promised; else None."""
    return next(iter(seen.links.slow), None)


def find_missing_cells(seen: Evidence) -> str | None:
    """Return the text about NUMA nodes that are not the promised ones; else None."""
    texts = [one.text for one in seen.findings if one.kind == "cells" and one.wrong]
    return texts[0] if texts else None


def _find_peer_reason(seen: Evidence, reasons: tuple[str, ...], says: str) -> str | None:
    for peers in () if seen.promise is None else seen.promise.peers:
        if peers.path == "root" and peers.why in reasons:
            return f"traffic of device {peers.device} and its adapters leaves their switch: {says}"
    return None


def _first_cpu_probe(seen: Evidence) -> str:
    return "cpu_one" if "cpu_one" in seen.slow else "cpu_all"


def _may_use_all(seen: Evidence) -> bool:
    return len(seen.test.allowed) >= len(seen.test.online)


def _ran(seen: Evidence) -> float:
    """Return the part of time that the probe ran, divided by that of the baseline; at most 1.0."""
    own = seen.share(_first_cpu_probe(seen), "own")
    return min(1.0, own.test / own.base) if own.base > 0 else 1.0


def _is_time_missing(seen: Evidence) -> bool:
    """Return whether one CPU lacks time that no counter here explains, seen by this command."""
    probe = _first_cpu_probe(seen)
    counted = ("throttled", "steal", "waited", "others")
    if probe not in seen.slow or any(seen.share(probe, what).more > 0.02 for what in counted[:2]):
        return False
    if any(seen.share(probe, what).more > 0.10 for what in counted[2:]):
        return False
    if seen.share(probe, "watched").test < LEAST_WATCHED:
        return False
    return probe == "cpu_one" or (_may_use_all(seen) and _ran(seen) < _RAN)


def _do_cpus_share(seen: Evidence) -> bool:
    if not {"cpu_all"} <= seen.slow or "cpu_one" in seen.slow or not _may_use_all(seen):
        return False
    if len(seen.test.online) < 2 or _ran(seen) < _RAN:
        return False
    if seen.share("cpu_all", "watched").test < LEAST_WATCHED:
        return False
    if seen.most(("cpu_all",), "throttled") > 0.02 or seen.most(("cpu_all",), "steal") > 0.02:
        return False
    return max(seen.most(("cpu_all",), "waited"), seen.most(("cpu_all",), "others")) <= 0.10
