# SPDX-License-Identifier: Apache-2.0
"""Settings that keep work off a CPU and need no restart, and their undoing, also after a kill.

``python -m benchmarks.jitter.quiet`` is the keeper: it takes files with their old content from
standard input, waits for its end, and writes them back. The kernel closes the input when the
benchmark ends, whatever ended it.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from nova_hpc.topology import cpuset


def list_quiet_files(root: Path, cpu: int) -> dict[Path, str]:
    """Return files of the kernel -> their content that keeps interrupts and kworkers off a CPU.

    An interrupt that may go to no other CPU stays where it is.
    """
    files = {}
    interrupts = sorted(root.glob("proc/irq/[0-9]*/smp_affinity_list"))
    for path in (*interrupts, root / "sys/devices/virtual/workqueue/cpumask"):
        read, write = (
            (cpuset.parse_list, cpuset.format_list)
            if path in interrupts
            else (cpuset.parse_mask, format_mask)
        )
        with contextlib.suppress(OSError, ValueError):
            cpus = read(path.read_text())
            if cpu in cpus and len(cpus) > 1:
                files[path] = write(cpus - {cpu})
    return files


def format_mask(cpus: frozenset[int]) -> str:
    """Format CPUs as the kernel's mask: words of 32 bits, highest first."""
    value = sum(1 << cpu for cpu in cpus)
    words = range(max(cpus, default=0) // 32, -1, -1)
    return ",".join(f"{value >> 32 * word & 0xFFFFFFFF:08x}" for word in words)


def write_files(files: Mapping[Path, str]) -> list[Path]:
    """Write each file; return those that the kernel refused (interrupts that it manages)."""
    refused = []
    for path, text in files.items():
        try:
            path.write_text(text)
        except OSError:
            refused.append(path)
    return refused


@contextlib.contextmanager
def kept_files(files: Mapping[Path, str]) -> Iterator[dict[Path, str]]:
    """Yield the present content of files; they have it again when the block or the process ends."""
    old = {path: path.read_text().strip() for path in files}
    keeper = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.jitter.quiet"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with keeper:
        if keeper.stdin is None or keeper.stdout is None:
            raise RuntimeError("the keeper has no pipes")
        keeper.stdin.write(json.dumps({str(path): text for path, text in old.items()}) + "\n")
        keeper.stdin.flush()
        # Nothing is changed before the keeper has all of it.
        if keeper.stdout.readline() != "kept\n":
            raise RuntimeError("the keeper of old settings did not start")
        yield old


def main() -> None:
    """Keep the old content of files until the end of the input, and write it back."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    old = json.loads(sys.stdin.readline())
    print("kept", flush=True)
    sys.stdin.read()
    write_files({Path(path): text for path, text in old.items()})


if __name__ == "__main__":
    main()
