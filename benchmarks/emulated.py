# SPDX-License-Identifier: Apache-2.0
"""Machines of QEMU that are emulated on this one: their network, clock and remote shell."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from pathlib import Path
from typing import Final

#: Seconds for the boot of an emulated Debian on a busy machine.
_BOOT: Final = 900


class MachineError(Exception):
    """A machine does not start, or a command in it fails."""


def make_network(stack: contextlib.ExitStack, namespace: str, *addresses: str) -> None:
    """Make a namespace with two taps on the bridge ``br0``, which has these addresses."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    ip("netns", "add", namespace)
    stack.callback(ip, "netns", "del", namespace)
    ip("-n", namespace, "link", "set", "lo", "up")
    ip("-n", namespace, "link", "add", "br0", "type", "bridge")
    for address in addresses:
        ip("-n", namespace, "addr", "add", address, "dev", "br0")
    ip("-n", namespace, "link", "set", "br0", "up")
    for number in range(2):
        ip("-n", namespace, "tuntap", "add", f"tap{number}", "mode", "tap")
        ip("-n", namespace, "link", "set", f"tap{number}", "master", "br0", "up")


def clock_words() -> str:
    """Words for the kernel's command line. Without them, the clock of a machine that waits for
    the host's processor is wrong."""
    return f"tsc=reliable tsc_early_khz={_processor_khz()} no_timer_check nohz=off"


def _processor_khz() -> int:
    match = re.search(r"^cpu MHz\s*: ([0-9.]+)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return round(float(match[1]) * 1000) if match else 2_000_000


def ssh_words(namespace: str, key: Path, address: str, sockets: Path | None = None) -> list[str]:
    """The beginning of a command that runs in the machine, as root.

    :param sockets: a folder with a short name, if commands are to share one connection. A new
        connection takes half a minute on an emulated processor of a busy machine.
    """
    common = ("-o", "ControlMaster=auto", "-o", "ControlPersist=60")
    return [
        *("ip", "netns", "exec", namespace, "ssh", "-i", str(key)),
        *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
        *(() if sockets is None else (*common, "-o", f"ControlPath={sockets}/%h")),
        *("-o", "LogLevel=ERROR", f"root@{address}"),
    ]


def wait_for_line(process: subprocess.Popen[bytes], folder: Path, name: str, line: str) -> None:
    """Wait until the console of a machine has the line.

    :param folder: contains ``NAME.log``, its console, and ``NAME.err``, the errors of QEMU.
    :raises MachineError: the machine has ended before, or the line does not come in time.
    """
    log = folder / f"{name}.log"
    end = time.monotonic() + _BOOT
    while True:
        text = log.read_text(errors="replace") if log.exists() else ""
        if line in text:
            return
        if process.poll() is not None or time.monotonic() > end:
            said = (folder / f"{name}.err").read_text(errors="replace")
            raise MachineError(f"{name} does not come up: {said}{text[-2000:]}")
        time.sleep(0.5)
