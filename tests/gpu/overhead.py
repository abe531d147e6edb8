# SPDX-License-Identifier: Apache-2.0
"""What the way to a share costs: one OpenCL device, used directly, through a slot, and through an
encrypted one, in turns.

``python -m tests.gpu.overhead [ROUNDS]`` prints a table. The device is the CPU, so the figures say
what the way adds, and nothing of a GPU. Each round has all three; a ratio is of one round, and the
interval is from the smallest to the largest of them.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
from pathlib import Path

from nova_hpc_guest.gpu import port_rule
from tests.gpu import two_guests
from tests.gpu.engine_root import prepare_engine_root

_JOB = ("/opt/opencl_job", "measure")
_RUN = ("nova-hpc-guest", "gpu", "run", "--")
#: One CPU computes, so that the engine and its client have another.
_DIRECT = ("env", "OCL_ICD_VENDORS=/opt/icd-cpu", "POCL_CPU_MAX_CU_COUNT=1")
_LIFELINE = two_guests.PORT + port_rule.LIFELINE
_TRIES = 4
#: What the device itself says of a job.
_COMPUTING = "computing-"


def measure(guest, *words):
    """Figures of one run, in microseconds; PoCL-R's client may die while it begins."""
    for _ in range(_TRIES):
        done = guest.run(*words, *_JOB, timeout=120)
        if not done.returncode and "0 wrong" in done.stdout:
            lines = [line.split() for line in done.stdout.splitlines()[2:]]
            return {name: float(value) for name, value in lines}
    raise RuntimeError(done.stdout + done.stderr)


def main(rounds):
    """Measure and print."""
    root = prepare_engine_root()
    found = {"direct": [], "slot": [], "encrypted": []}
    with contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        plain, hidden = (
            stack.enter_context(two_guests.make_two_guests(root, folder)) for folder in folders
        )
        two_guests.attach(*plain)
        two_guests.attach_encrypted(*hidden)
        two_guests.wait_for("the slot", lambda: plain[1].is_open(_LIFELINE), 90)
        inside = port_rule.SHARE_INSIDE
        two_guests.wait_for("the slot", lambda: hidden[1].is_open(_LIFELINE, inside), 90)
        for _ in range(rounds):
            found["direct"].append(measure(plain[0], *_DIRECT))
            found["slot"].append(measure(plain[1], *_RUN))
            found["encrypted"].append(measure(hidden[1], *_RUN))
    for name in found["direct"][0]:
        if not name.startswith(_COMPUTING):
            print(format_times(name, *([run[name] for run in found[way]] for way in found)))
    for name in found["direct"][0]:
        if name.startswith(_COMPUTING):
            print(format_shares(name, found))


def format_times(name, direct, *ways):
    """A row: medians, and ratios to direct use in the same round."""
    cells = [f"{name:14}", f"{statistics.median(direct):10.0f}"]
    for values in ways:
        ratios = [value / base for value, base in zip(values, direct, strict=True)]
        cells.append(
            f"{statistics.median(values):10.0f}  {statistics.median(ratios):7.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
    return "  ".join(cells)


def format_shares(name, found):
    """A row: which part of a job's time the device computes, as the device says, in percent; and
    how many points that is less than with direct use in the same round."""
    job = name.replace(_COMPUTING, "job-")
    direct, *ways = ([100 * run[name] / run[job] for run in runs] for runs in found.values())
    computed = statistics.median(run[name] for run in found["direct"]) / 1000
    cells = [f"share, {computed:.1f} ms", f"{statistics.median(direct):6.1f} %"]
    for values in ways:
        lost = [base - value for value, base in zip(values, direct, strict=True)]
        cells.append(
            f"{statistics.median(values):6.1f} %  {statistics.median(lost):6.1f} "
            f"({min(lost):.1f} to {max(lost):.1f})"
        )
    return "  ".join(cells)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8)
