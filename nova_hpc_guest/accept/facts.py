# SPDX-License-Identifier: Apache-2.0
"""The facts of this machine that affect speed.

They contain no name of a host, no serial number, no address: these facts are stored and shown to
others. No function raises; a fact that cannot be read is None or empty.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ..files import Root
from ..machine import DEVICES
from .rdma_ports import read_rdma_ports, read_rdma_rates

_SIMD: Final = frozenset(("avx", "avx2", "avx512f", "fma", "amx_tile", "asimd", "sve"))
#: Settings of libraries that change which way they take; their values as far as they are words.
_SETTING: Final = re.compile(
    r"OMPI_MCA_(?:btl|pml|mtl)|UCX_TLS|NCCL_(?:IB_DISABLE|P2P_DISABLE|P2P_LEVEL|SHM_DISABLE|NET"
    r"|NET_GDR_LEVEL|NET_PLUGIN|TOPO_FILE|CROSS_NIC)|OMP_NUM_THREADS|OPENBLAS_NUM_THREADS"
)
_WORD: Final = re.compile(r"[\w.,:^=+-]{0,80}", re.ASCII)
_PR_GET_THP_DISABLE: Final = 42
_MOST_CPUS: Final = 1 << 16


class GuestFacts(NamedTuple):
    """Facts of one machine that affect its speed; None for unknown ones."""

    model: str | None = None
    #: The CPU reports that it is a virtual one.
    hypervisor: bool = False
    online: tuple[int, ...] = ()
    #: CPUs that this process may use.
    allowed: tuple[int, ...] = ()
    sockets: int | None = None
    #: NUMA nodes with CPUs.
    nodes: int = 0
    memory_gib: int | None = None
    simd: tuple[str, ...] = ()
    clocksource: str | None = None
    thp: str | None = None
    #: Large pages are switched off only for this process.
    thp_disabled: bool = False
    governor: str | None = None
    idle: str | None = None
    #: Threads of the first core that the kernel shows; None if unknown.
    threads: int | None = None
    #: Quota of the nearest control group that has one, as the kernel writes it.
    quota: str | None = None
    disk_limit: str | None = None
    #: ``openblas``, ``mkl``, ``blis``, ``reference``, ``atlas`` or ``other``; None without a BLAS.
    blas: str | None = None
    blas_core: str | None = None
    malloc: str | None = None
    settings: Mapping[str, str] = {}
    #: Queues with a rate, as ``tbf eth0``.
    shapers: tuple[str, ...] = ()
    #: PCI ids of devices with a driver's name that matter, and how many: ``10de:2330``.
    devices: Mapping[str, int] = {}
    #: RDMA devices -> Gbit/s of their first port that may work.
    rdma: Mapping[str, float] = {}
    kernel: str | None = None
    python: str | None = None

    @property
    def emulated(self) -> bool:
        """QEMU computes each instruction: no ratio to real hardware means anything."""
        return self.model is not None and "QEMU TCG" in self.model


def read_facts(root: Root, environment: Mapping[str, str], shapers: tuple[str, ...]) -> GuestFacts:
    """Look at this machine.

    :param environment: the variables that tools will get.
    :param shapers: queues that ``tc`` showed, which no file shows.
    """
    info = root.text("/proc/cpuinfo") or ""
    flags = set(_find_text(r"^(?:flags|Features)\s*:(.*)$", info, "").split())
    cpu = "/sys/devices/system/cpu"
    page = root.text("/sys/kernel/mm/transparent_hugepage/enabled") or ""
    memory = _find_text(r"^MemTotal:\s+(\d{1,15}) kB", root.text("/proc/meminfo") or "", "")
    siblings = root.text(f"{cpu}/cpu0/topology/thread_siblings_list")
    nodes = root.names("/sys/devices/system/node")
    with_cpus = [
        name
        for name in nodes
        if re.fullmatch(r"node\d{1,4}", name, re.ASCII)
        and root.text(f"/sys/devices/system/node/{name}/cpulist")
    ]
    sockets = set(re.findall(r"^physical id\s*:\s*(\d+)$", info, re.MULTILINE))
    return GuestFacts(
        model=_find_text(r"^model name\s*:\s*(.*)$", info, "")[:80] or None,
        hypervisor="hypervisor" in flags,
        online=read_cpu_list(root.text(f"{cpu}/online")) or find_allowed_cpus(),
        allowed=find_allowed_cpus(),
        sockets=len(sockets) or None,
        nodes=len(with_cpus),
        memory_gib=round(int(memory) / (1 << 20)) if memory else None,
        simd=tuple(sorted(flags & _SIMD)),
        clocksource=root.text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        thp=_find_text(r"\[(\w+)\]", page, "") or None,
        thp_disabled=_are_large_pages_off(),
        governor=root.text(f"{cpu}/cpu0/cpufreq/scaling_governor"),
        idle=root.text(f"{cpu}/cpuidle/current_driver"),
        threads=len(read_cpu_list(siblings)) or None,
        quota=_read_quota(root),
        disk_limit=_read_disk_limit(root),
        blas_core=_take_word(environment.get("OPENBLAS_CORETYPE")),
        malloc=_take_word(environment.get("GLIBC_TUNABLES")),
        settings={
            name: _take_word(value) or "?"
            for name, value in sorted(environment.items())
            if _SETTING.fullmatch(name)
        },
        shapers=shapers,
        devices=_count_devices(root),
        rdma=read_rdma_rates(read_rdma_ports(root)),
        kernel=_find_text(r"^(\d+\.\d+)", root.text("/proc/sys/kernel/osrelease") or "", "")
        or None,
        python=f"{sys.version_info[0]}.{sys.version_info[1]}",
    )


def parse_facts(data: Mapping[str, Any]) -> GuestFacts:
    """Parse the facts in a sample's JSON object; unknown keys are passed over.

    :raises ValueError: a value is of another type.
    """
    values: dict[str, Any] = {}
    for name, default in GuestFacts._field_defaults.items():
        value = data.get(name, default)
        if value is None and default is None:
            continue
        if name in _NUMBERS:
            good = isinstance(value, int) and not isinstance(value, bool)
        elif isinstance(default, bool):
            good = isinstance(value, bool)
        elif isinstance(default, tuple):
            kind = int if name in ("online", "allowed") else str
            good = isinstance(value, (list, tuple)) and all(type(item) is kind for item in value)
            value = tuple(value) if good else value
        elif isinstance(default, Mapping):
            kinds = (int, float) if name in ("devices", "rdma") else (str,)
            good = isinstance(value, Mapping) and all(
                type(item) in kinds for item in value.values()
            )
        else:
            good = isinstance(value, str)
        if not good:
            raise ValueError(f"{name} is {ascii(value)[:60]}")
        values[name] = value
    return GuestFacts(**values)


_NUMBERS: Final = frozenset(("sockets", "nodes", "memory_gib", "threads"))


def find_allowed_cpus() -> tuple[int, ...]:
    """Return the numbers of the CPUs that this process may use."""
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except (OSError, AttributeError):
        return tuple(range(os.cpu_count() or 1))


def read_cpu_list(text: str | None) -> tuple[int, ...]:
    """Parse the numbers in a list of the kernel's, as ``0-3,8``; other parts are passed over."""
    numbers: set[int] = set()
    for part in (text or "").split(","):
        match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part.strip(), re.ASCII)
        if match and len(numbers) < _MOST_CPUS:
            numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(numbers))


def read_group_file(root: Root, controller: str, name: str) -> str | None:
    """Read a file of this process's own control group, or of the nearest group above that has it.

    Both versions of control groups work. None if no group has the file.
    """
    for line in (root.text("/proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controller in controllers.split(","):
            mounts = [f"/sys/fs/cgroup/{controller}", f"/sys/fs/cgroup/{controllers}"]
        elif number == "0":
            mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for mount in mounts:
            for length in range(len(parts), -1, -1):
                value = root.text("/".join((mount, *parts[:length], name)))
                if value is not None:
                    return value
    return None


def _read_quota(root: Root) -> str | None:
    text = read_group_file(root, "cpu", "cpu.max")
    if text is not None:
        return None if text.startswith("max") else text
    text = read_group_file(root, "cpu", "cpu.cfs_quota_us")
    return None if text is None or text.startswith("-") else text


def _read_disk_limit(root: Root) -> str | None:
    text = read_group_file(root, "blkio", "blkio.throttle.read_iops_device")
    return (text or read_group_file(root, "io", "io.max") or None) and " ".join(
        (text or read_group_file(root, "io", "io.max") or "").split()
    )


def _are_large_pages_off() -> bool:
    with contextlib.suppress(OSError, AttributeError):
        return int(ctypes.CDLL(None).prctl(_PR_GET_THP_DISABLE, 0, 0, 0, 0)) == 1
    return False


def _count_devices(root: Root) -> dict[str, int]:
    """Count GPUs, accelerators and adapters: ``vendor:product`` -> number."""
    counts: dict[str, int] = {}
    for address in root.names(DEVICES):
        kind = root.text(f"{DEVICES}/{address}/class") or ""
        if kind.startswith(("0x03", "0x12", "0x0207")):
            vendor = (root.text(f"{DEVICES}/{address}/vendor") or "")[2:]
            product = (root.text(f"{DEVICES}/{address}/device") or "")[2:]
            key = f"{vendor}:{product}"
            if re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{4}", key, re.ASCII):
                counts[key] = counts.get(key, 0) + 1
    return counts


def _take_word(text: str | None) -> str | None:
    return text if text and _WORD.fullmatch(text) else None


def _find_text(pattern: str, text: str, default: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1].strip() if match else default
