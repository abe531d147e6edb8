#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""systemctl for a root without systemd: starts a unit's command, and ends all of it.

It reads the unit that the product wrote: User=, Environment= and ExecStart=. Nothing else of a
unit has an effect here. The unit that tries the filter of packets is told to have one, which it has
not: tests/gpu/test_systemd.py has a real systemd.
"""

import contextlib
import os
import pwd
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

UNITS = Path("/run/systemd/system")
RUNNING = Path("/run/unit-runner")


def words_of(text):
    """Words of a line, with systemd's escapes undone."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(text)]


def is_alive(name):
    with contextlib.suppress(OSError, ValueError):
        pid = int((RUNNING / name).read_text())
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state != "Z"
    return False


def start(name):
    if is_alive(name):
        return
    text = (UNITS / name).read_text()
    values = dict(re.findall(r"^(User|ExecStart)=(.*)$", text, re.MULTILINE))
    environment = {"PATH": "/usr/bin:/bin"}
    for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE):
        key, _, value = words_of(line)[0].partition("=")
        environment[key] = value
    user = pwd.getpwnam(values["User"])
    process = subprocess.Popen(
        words_of(values["ExecStart"]),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=Path(f"/run/{name}.log").open("ab"),  # noqa: SIM115
        stderr=subprocess.STDOUT,
        start_new_session=True,
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=(),
    )
    RUNNING.mkdir(exist_ok=True)
    (RUNNING / name).write_text(str(process.pid))


def stop(name):
    with contextlib.suppress(OSError, ValueError):
        session = int((RUNNING / name).read_text())
        os.killpg(session, signal.SIGTERM)
        end = time.monotonic() + 5
        while is_alive(name) and time.monotonic() < end:
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session, signal.SIGKILL)
    with contextlib.suppress(OSError):
        (RUNNING / name).unlink()


FILTER = "nova-hpc-gpu-filter.service"
CLOSED = 4

if __name__ == "__main__":
    verb, names = sys.argv[1], [name for name in sys.argv[2:] if name != FILTER]
    if verb == "show":
        print(CLOSED)
    for unit in names:
        if verb in ("stop", "restart"):
            stop(unit)
        if verb in ("start", "restart"):
            start(unit)
