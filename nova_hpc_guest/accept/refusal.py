# SPDX-License-Identifier: Apache-2.0
"""Reasons to compare nothing: emulation, a busy machine, a foreign baseline."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from ..files import Root
from .counters import measure_busy_cpus, read_counters
from .facts import GuestFacts
from .gpus import list_gpu_users
from .probes import Probe

#: The kind of refusal that concerns only probes of GPUs.
GPU_BUSY: Final = "gpu-busy"
_LOOKS: Final = 3
_SECONDS: Final = 0.4
#: CPUs that the rest of a machine may keep busy: this many, or this part of all.
_BUSY: Final = 0.25
_BUSY_SHARE: Final = 0.05
_MOST_NAMED: Final = 5


class Refusal(NamedTuple):
    """The reason why nothing was measured or compared: its kind, and a text for people."""

    kind: str
    text: str


def refuse_busy_machine(
    root: Root, cpus: Collection[int], sleep: Callable[[float], None] = time.sleep
) -> Refusal | None:
    """Whether other processes keep the CPUs of the probes busy."""
    busy = []
    for _ in range(_LOOKS):
        start, before = time.monotonic(), read_counters(root)
        sleep(_SECONDS)
        after = read_counters(root)
        busy.append(measure_busy_cpus(before, after, cpus, max(time.monotonic() - start, _SECONDS)))
    taken = median(busy)
    if taken <= max(_BUSY, _BUSY_SHARE * len(cpus)):
        return None
    return Refusal(
        "busy",
        f"other processes keep {taken:.1f} of {len(cpus)} CPUs busy: measure when they have "
        "ended, or with --busy, which then names them as a cause",
    )


def refuse_used_gpus(probes: Sequence[Probe], environment: Mapping[str, str]) -> Refusal | None:
    """Whether other processes use NVIDIA's GPUs, if a probe is of GPUs."""
    if not any("gpu" in probe.needs for probe in probes):
        return None
    users = list_gpu_users(environment)
    if users is None:
        return Refusal(
            GPU_BUSY,
            "nvidia-smi fails, so nobody knows who uses the GPUs: see what it prints, leave the "
            "GPUs out with --only, or measure them all the same with --busy",
        )
    if not users:
        return None
    named = ", ".join(map(str, users[:_MOST_NAMED])) + (", ..." if users[_MOST_NAMED:] else "")
    return Refusal(
        GPU_BUSY,
        f"other processes use a GPU (pid {named}): measure when they have ended, leave the GPUs "
        "out with --only, or measure them with --busy, which then names them as a cause",
    )


def refuse_emulation(base: GuestFacts | None, test: GuestFacts) -> Refusal | None:
    """Whether one of two machines is emulated and the other is not."""
    if base is None or base.emulated == test.emulated:
        return None
    which = "this machine" if test.emulated else "the baseline"
    return Refusal(
        "emulated",
        f"{which} is emulated by software (QEMU TCG): a ratio to real hardware says nothing. "
        "Without a baseline the facts and the machine against itself can be judged",
    )
