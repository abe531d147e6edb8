# SPDX-License-Identifier: Apache-2.0
"""The files of /proc and /sys that show the host's work on its CPUs, for machines of any size."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc.topology import cpuset
from tests.unit.node_files import put

CPU: Final = "/sys/devices/system/cpu"
#: Interrupts of devices, as a host with NVMe, an adapter and a server's GPU has them.
NVME, ADAPTER, GUEST = "130", "131", "132"
NAMES: Final = {
    NVME: "IR-PCI-MSIX-0000:01:00.0    1-edge      nvme0q1",
    ADAPTER: "IR-PCI-MSIX-0000:19:00.0    2-edge      mlx5_comp1@pci:0000:19:00.0",
    GUEST: "IR-PCI-MSIX-0000:18:00.0    0-edge      vfio-msix[0](0000:18:00.0)",
}
OTHERS: Final = {
    "NMI": "Non-maskable interrupts",
    "LOC": "Local timer interrupts",
    "RES": "Rescheduling interrupts",
    "PIN": "Posted-interrupt notification event",
}
KTHREADD, KCOMPACTD, BOUND, BALANCER = 2, 40, 41, 900
_FLAGS: Final = {KTHREADD: 0x208040, KCOMPACTD: 0x208040, BOUND: 0x4208040, BALANCER: 0x400100}


@attrs.define
class QuietTree:
    """A host that keeps *dedicated* quiet; every counter since its boot is well above 0."""

    root: Path
    online: frozenset[int]
    dedicated: frozenset[int]
    #: What each reading finds more: label -> CPU -> count.
    more: dict[str, dict[int, int]] = attrs.field(factory=dict)
    #: Nanoseconds that a thread has run more.
    ran: dict[int, int] = attrs.field(factory=dict)
    #: Ticks that guests have had more.
    guest: int = 0
    #: Environment of irqbalance; None: it does not run.
    environment: str | None = None
    #: CPUs that kcompactd0 ran on last, and may run on.
    last: int = 0
    allowed: frozenset[int] = frozenset()
    #: Files in whose place is a directory: they cannot be read.
    broken: set[str] = attrs.field(factory=set)
    #: Readings that were waited for.
    passed: int = 0

    @property
    def of_host(self) -> frozenset[int]:
        return self.online - self.dedicated

    def write(self) -> None:
        cpus = cpuset.format_list(self.dedicated)
        for name in ("isolated", "nohz_full"):
            self.put(f"{CPU}/{name}", cpus)
        self.put("/proc/sys/kernel/numa_balancing", "0")
        self.put("/sys/module/kvm/parameters/halt_poll_ns", "200000")
        self.put("/sys/module/kvm_intel/parameters/preemption_timer", "Y")
        for number in NAMES:
            self.direct(number, self.dedicated if number == GUEST else self.of_host)
        self.last, self.allowed = min(self.of_host), self.online
        self.counters()

    def put(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        if path not in self.broken:
            put(self.root, path, text)
        elif not file.is_dir():
            file.unlink(missing_ok=True)
            file.mkdir(parents=True)

    def direct(self, number: str, cpus: Iterable[int]) -> None:
        self.put(f"/proc/irq/{number}/effective_affinity_list", cpuset.format_list(cpus))

    def wait(self, seconds: float) -> None:
        """What ``sleep`` does between two readings: the counters go on."""
        self.passed += 1
        self.counters()

    def counters(self) -> None:
        """Write all counters as they are now."""
        columns = sorted(self.online)
        lines = ["".join(f"{f'CPU{cpu}':>11}" for cpu in columns)]
        lines += [self.row(label, NAMES[label], columns, 40) for label in NAMES]
        lines += [self.row(label, OTHERS[label], columns, 9000) for label in OTHERS]
        lines += ["ERR:          0", "MIS:          0"]
        # put() adds the last line's end; the header begins with spaces, as in the kernel.
        self.put("/proc/interrupts", "\n".join(lines))
        guest = 5000 + self.passed * self.guest
        stat = [f"cpu{cpu} {guest} 0 7 8 0 0 0 0 {guest} 0" for cpu in columns]
        self.put("/proc/stat", "\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *stat, "intr 5 0"]))
        bound = max(self.dedicated)
        self.thread(KTHREADD, "kthreadd", min(self.of_host), self.online)
        self.thread(KCOMPACTD, "kcompactd0", self.last, self.allowed)
        self.thread(BOUND, f"kworker/{bound}:1-mm_percpu_wq", bound, {bound})
        if self.environment is not None:
            self.thread(BALANCER, "irqbalance", min(self.of_host), self.online)
            self.put(f"/proc/{BALANCER}/environ", self.environment)
        else:
            shutil.rmtree(self.root / f"proc/{BALANCER}", ignore_errors=True)

    def row(self, label: str, name: str, columns: Iterable[int], since_boot: int) -> str:
        grown: Mapping[int, int] = self.more.get(label, {})
        if label == "LOC":
            # The tick of the host's own CPUs goes on.
            grown = {**dict.fromkeys(self.of_host, 2000), **grown}
        counts = "".join(
            f" {since_boot + cpu + self.passed * grown.get(cpu, 0):>10}" for cpu in columns
        )
        return f"{label:>4}:{counts}   {name}"

    def thread(self, pid: int, name: str, cpu: int, allowed: Iterable[int]) -> None:
        fields = ["0"] * 50
        fields[0], fields[6], fields[19], fields[36] = "S", str(_FLAGS[pid]), "77", str(cpu)
        self.put(f"/proc/{pid}/stat", f"{pid} ({name}) {' '.join(fields)}")
        # Bound threads run all the time.
        ran = 10**9 + self.passed * self.ran.get(pid, 5_000_000 if pid == BOUND else 0)
        self.put(f"/proc/{pid}/schedstat", f"{ran} 500 60")
        text = f"Name:\t{name}\nCpus_allowed_list:\t{cpuset.format_list(allowed)}"
        self.put(f"/proc/{pid}/status", text)


def interrupted(tree: QuietTree) -> None:
    cpu = max(tree.dedicated)
    tree.direct(NVME, {cpu})
    tree.more[NVME] = {cpu: 3, min(tree.of_host): 9}


def threaded(tree: QuietTree) -> None:
    tree.last, tree.ran[KCOMPACTD] = max(tree.dedicated), 12_000


def ticking(tree: QuietTree) -> None:
    tree.guest, tree.more["LOC"] = 250, dict.fromkeys(tree.dedicated, 2000)


def unbanned(tree: QuietTree) -> None:
    tree.environment = f"LANG=C\0IRQBALANCE_BANNED_CPULIST={min(tree.of_host)}\0"


#: Check -> what makes its fault, and the file without which the fault is unknown.
FAULTS: Final[Mapping[str, tuple[Callable[[QuietTree], object], str]]] = {
    "cpus-interrupted": (interrupted, f"/proc/irq/{NVME}/effective_affinity_list"),
    "cpus-kernel-threads": (threaded, f"/proc/{KCOMPACTD}/status"),
    "cpus-ticking": (ticking, "/sys/module/kvm_intel/parameters/preemption_timer"),
    "irqbalance-unbanned": (unbanned, f"/proc/{BALANCER}/environ"),
    "halt-polling": (
        lambda tree: tree.put("/sys/module/kvm/parameters/halt_poll_ns", "0"),
        "/sys/module/kvm/parameters/halt_poll_ns",
    ),
    "numa-balancing": (
        lambda tree: tree.put("/proc/sys/kernel/numa_balancing", "1"),
        "/proc/sys/kernel/numa_balancing",
    ),
}
