# SPDX-License-Identifier: Apache-2.0
"""A machine with a systemd of its own: namespaces of this one, and an overlay of its root.

It has its own processes, network, mounts and control groups. With ``legacy`` its control groups are
of version 1 alone, where systemd has no filter of packets and only warns.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs

_TARGET: Final = """[Unit]
Description=What the tests need
Requires=systemd-journald.service dbus.socket
After=systemd-journald.service dbus.socket
"""
#: $1: the folder; $2: legacy or unified.
_BOOT: Final = """
mount -t tmpfs tmpfs "$1"; mkdir "$1/up" "$1/work" "$1/root"; R="$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" "$R"
mount -t proc proc "$R/proc"; mount --rbind /dev "$R/dev"; mount -t sysfs sysfs "$R/sys"
for one in run tmp var/tmp root home; do mount -t tmpfs -o mode=0755 tmpfs "$R/$one"; done
chmod 1777 "$R/tmp" "$R/var/tmp"
if [ "$2" = legacy ]; then
    mount -t tmpfs tmpfs "$R/sys/fs/cgroup"; mkdir "$R/sys/fs/cgroup/systemd"
    mount -t cgroup -o none,name=systemd cgroup "$R/sys/fs/cgroup/systemd"
    more="systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1"
else
    more=
    mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup"
fi
cp -a "$1.files/." "$R/"
echo 11112222333344445555666677778888 > "$R/etc/machine-id"
exec chroot "$R" /usr/bin/env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
    /lib/systemd/systemd --unit=tests.target --log-target=null --show-status=0 $more
"""


@attrs.define
class Machine:
    """One that runs."""

    folder: Path
    legacy: bool
    process: subprocess.Popen[bytes]
    init: int = 0

    def words(self, *command: str) -> list[str]:
        """The command, in the machine."""
        return ["nsenter", "-t", str(self.init), "-a", "-r", "-w", *command]

    def run(self, *command: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.words(*command),
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def state_of(self, unit: str) -> str:
        """``active``, ``inactive``, ``failed`` ..."""
        return self.run("systemctl", "is-active", unit).stdout.strip()

    def pid_of(self, unit: str) -> int:
        """The main process of a unit, by its number in the machine."""
        return int(self.run("systemctl", "show", "-p", "MainPID", "--value", unit).stdout)


def can_boot() -> bool:
    """Whether a systemd can be started here."""
    needed = ("nsenter", "unshare", "ip", "systemctl")
    here = all(map(shutil.which, needed)) and Path("/lib/systemd/systemd").exists()
    return os.geteuid() == 0 and here


@contextlib.contextmanager
def boot_machine(folder: Path, files: Path, legacy: bool = False) -> Iterator[Machine]:
    """Boot one, with some files over those of this machine's root.

    :param folder: where its root is mounted; it must not be below ``/tmp`` of the overlay.
    """
    folder.mkdir(parents=True)
    staged = folder.with_name(f"{folder.name}.files")
    shutil.copytree(files, staged, symlinks=True)
    target = staged / "etc/systemd/system/tests.target"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(_TARGET)
    process = subprocess.Popen(
        [
            *("unshare", "--pid", "--fork", "--mount", "--net", "--uts", "--ipc", "--cgroup"),
            *("--kill-child", "sh", "-ec", _BOOT, "boot", str(folder)),
            "legacy" if legacy else "unified",
        ],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        machine = Machine(folder, legacy, process)
        _await_boot(machine)
        machine.run("ip", "link", "set", "lo", "up")
        yield machine
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(machine.init or process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        shutil.rmtree(staged, ignore_errors=True)


def _await_boot(machine: Machine) -> None:
    end = time.monotonic() + 60
    children = Path(f"/proc/{machine.process.pid}/task/{machine.process.pid}/children")
    while time.monotonic() < end:
        assert machine.process.poll() is None, "the machine did not boot"
        with contextlib.suppress(OSError, ValueError, IndexError):
            machine.init = int(children.read_text().split()[0])
            is_systemd = Path(f"/proc/{machine.init}/comm").read_text() == "systemd\n"
            if is_systemd and "running" in machine.run("systemctl", "is-system-running").stdout:
                return
        time.sleep(0.2)
    raise AssertionError("the machine did not boot within 60 seconds")
