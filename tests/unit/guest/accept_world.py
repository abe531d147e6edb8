# SPDX-License-Identifier: Apache-2.0
"""A directory of tools that print what a file says, and a machine whose files say what we like.

The tools are real processes; ``rates`` holds what each gives, by its name.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nova_hpc_guest import command
from nova_hpc_guest.accept import measuring
from nova_hpc_guest.accept.tools import ToolRun, run_tool

_SYSBENCH = """#!/bin/sh
case "$*" in *--version*) echo "sysbench 1.0.20"; exit ;; esac
name=$1; case "$*" in *access-mode=rnd*) name=random ;; *memory*) name=memory ;; esac
[ "$1" = cpu ] && case "$*" in *--threads=*) name=all ;; esac
[ -n "$GLIBC_TUNABLES" ] && [ -f "$RATES/$name-large" ] && name=$name-large
. "$RATES/$name"
"""

#: Two rates of its memory, as its tool tells them.
SLOW = 'echo "6144.00 MiB transferred (5000.00 MiB/sec)"\n'
FAST = 'echo "6144.00 MiB transferred (9000.00 MiB/sec)"\n'


class AcceptWorld:
    """A machine with fake tools."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.tools = folder / "bin"
        self.rates = folder / "rates"
        for path in (self.root, self.tools, self.rates):
            path.mkdir()
        self.write("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
        self.write("proc/cpuinfo", "model name\t: Some CPU\nflags\t\t: fpu avx2 fma\n")
        self.write("sys/devices/system/cpu/online", "0-1\n")
        self.write("proc/meminfo", "MemTotal:       16777216 kB\n")
        clock = "sys/devices/system/clocksource/clocksource0/current_clocksource"
        self.write(clock, "tsc\n")
        self.tool("sysbench", _SYSBENCH)
        self.cpu(1000.0)
        self.rate("memory", FAST)
        self.rate("random", 'echo "128.00 MiB transferred (300.00 MiB/sec)"\n')

    def write(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def tool(self, name: str, text: str) -> None:
        place = self.tools / name
        place.write_text(text)
        place.chmod(place.stat().st_mode | stat.S_IXUSR)

    def rate(self, name: str, text: str) -> None:
        (self.rates / name).write_text(text)

    def cpu(self, rate: float, together: float | None = None) -> None:
        """Events a second of one CPU, and of both."""
        both = 2 * rate if together is None else together
        self.rate("cpu", f'echo "total time: {1200 / rate:.5f}s"\n')
        self.rate("all", f'echo "total time: {2400 / both:.5f}s"\n')

    @property
    def environment(self) -> dict[str, str]:
        """Only these tools, and what a shell script needs."""
        return {
            **{name: value for name, value in os.environ.items() if name[:4] in ("NOVA", "TMPD")},
            "PATH": f"{self.tools}:/bin:/usr/bin" if self.open else f"{self.tools}",
            "RATES": str(self.rates),
        }

    #: Also the tools of this machine.
    open = False

    def run(self, *arguments: str, only: str | None = "mem_stream") -> tuple[int, str, str]:
        """The command in this process; that other tests share its CPUs is not seen."""
        chosen = [] if only is None else ["--only", only]
        out, err = io.StringIO(), io.StringIO()
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(self.environment)
        try:
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                pytest.MonkeyPatch.context() as patched,
            ):
                patched.setattr(measuring, "run_tool", run_tool_alone)
                status = command.main(
                    [
                        "accept",
                        "--root",
                        str(self.root),
                        "--busy",
                        "--scale",
                        "1",
                        *chosen,
                        *arguments,
                    ]
                )
        finally:
            os.environ.clear()
            os.environ.update(before)
        return status, out.getvalue(), err.getvalue()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The command as a process of its own."""
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "nova_hpc_guest.command",
                "accept",
                "--root",
                str(self.root),
                "--busy",
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environment, "PYTHONPATH": str(Path(command.__file__).parents[1])},
        )


def read_result(world: AcceptWorld, *arguments: str, **more: Any) -> Any:
    """The result that the command gives as JSON, which says its status."""
    status, out, _ = world.run("--format", "json", *arguments, **more)
    data = json.loads(out)
    assert data["status"] == status
    return data


def run_tool_alone(*arguments: Any, **more: Any) -> ToolRun:
    """Run a tool, and leave out how this machine's load treated it: that is no part of a world."""
    return run_tool(*arguments, **more)._replace(cpu=0.0, waited=0.0)


def list_processes(word: str) -> list[str]:
    """Command lines of living processes that have a word."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            text = place.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if word in text and int(place.parent.name) != os.getpid():
                found.append(text)
    return found
