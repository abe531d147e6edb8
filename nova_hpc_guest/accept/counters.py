# SPDX-License-Identifier: Apache-2.0
"""The kernel's counters: CPU time, time lost to a quota, bytes sent.

Their difference before and after a probe shows how others disturbed it. A counter that a machine
does not have (no /proc/stat, no control groups) is 0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ..files import Root
from ..rdma_devices import list_rdma_devices
from .facts import read_group_file

#: Fewer bytes are the noise of a machine that does nothing.
_LEAST_BYTES: Final = 10_000
#: Fields of a line of /proc/stat: user, nice, system; irq, softirq; steal.
_BUSY: Final = (0, 1, 2, 5, 6)
_STEAL: Final = 7


class CounterReading(NamedTuple):
    """All counters of the kernel at one moment: busy and steal seconds by CPU, and bytes sent."""

    #: CPU -> time that it was busy, and time that was stolen from it.
    cpus: Mapping[int, tuple[float, float]]
    throttled: float
    sent: Mapping[str, int]


class Counters(NamedTuple):
    """The changes of counters between two moments, on the CPUs of a probe."""

    #: CPU time of everything but the probe.
    others: float
    steal: float
    throttled: float
    sent: dict[str, int]


def read_counters(root: Root) -> CounterReading:
    """Read the kernel's counters now."""
    tick = os.sysconf("SC_CLK_TCK") or 100
    cpus: dict[int, tuple[float, float]] = {}
    for line in (root.text("/proc/stat") or "").splitlines():
        match = re.match(r"cpu(\d{1,5}) ([\d ]+)$", line)
        if match:
            fields = [int(field) for field in match[2].split()]
            fields += [0] * (8 - len(fields))
            busy = sum(fields[index] for index in _BUSY)
            cpus[int(match[1])] = (busy / tick, fields[_STEAL] / tick)
    return CounterReading(cpus, _read_throttled(root), _read_sent(root))


def share_counters(
    before: CounterReading, after: CounterReading, cpus: Iterable[int], own: float
) -> Counters:
    """Return the difference of two moments.

    :param cpus: CPUs that the probe may have run on.
    :param own: CPU time of the probe itself, in seconds.
    """
    busy = steal = 0.0
    for cpu in cpus:
        old, new = before.cpus.get(cpu), after.cpus.get(cpu)
        if old is not None and new is not None:
            busy += new[0] - old[0]
            steal += new[1] - old[1]
    sent = {
        name: amount - before.sent.get(name, 0)
        for name, amount in after.sent.items()
        if amount - before.sent.get(name, 0) > _LEAST_BYTES
    }
    return Counters(
        others=max(0.0, busy - own),
        steal=max(0.0, steal),
        throttled=max(0.0, after.throttled - before.throttled),
        sent=sent,
    )


def measure_busy_cpus(
    before: CounterReading, after: CounterReading, cpus: Iterable[int], seconds: float
) -> float:
    """Return how many of some CPUs were busy between two moments, on average.

    :param seconds: time between the moments.
    """
    total = sum(
        after.cpus[cpu][0] - before.cpus[cpu][0]
        for cpu in cpus
        if cpu in before.cpus and cpu in after.cpus
    )
    return max(0.0, total / seconds) if seconds > 0 else 0.0


def _read_throttled(root: Root) -> float:
    text = read_group_file(root, "cpu", "cpu.stat") or ""
    for key, scale in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
        match = re.search(rf"^{key} (\d{{1,18}})$", text, re.MULTILINE)
        if match:
            return int(match[1]) / scale
    return 0.0


def _read_sent(root: Root) -> dict[str, int]:
    sent: dict[str, int] = {}
    for line in (root.text("/proc/net/dev") or "").splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) > 8 and fields[8].isdigit():
            sent[name.strip()] = int(fields[8])
    for device in list_rdma_devices(root):
        folder = f"/sys/class/infiniband/{device}/ports/1/counters"
        text = root.text(f"{folder}/port_xmit_data") or ""
        if text.isdigit():
            # The counter is in words of four bytes.
            sent[f"ib:{device}"] = 4 * int(text)
    return sent
