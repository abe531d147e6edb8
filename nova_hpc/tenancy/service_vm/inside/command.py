# SPDX-License-Identifier: Apache-2.0
"""The program of a service VM: put each device through its checks, and say what came of it.

The kernel's command line says the nonce of this run and the names of the checks. The
devices are behind the root ports that :mod:`nova_hpc.tenancy.service_vm.domain` has made.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from nova_hpc.tenancy.hygiene import clean_check
from nova_hpc.tenancy.hygiene.clean_errors import UnableError, UncleanError
from nova_hpc.tenancy.service_vm import report

_DEVICES = Path("/sys/bus/pci/devices")
_CHECKS = Path("/checks")
_FIRST_SLOT = 0x10
_MOST = 15
#: Seconds between two sayings of the answer.
_PAUSE = 2.0


def words(text: str) -> dict[str, str]:
    """The arguments of the kernel."""
    return {key: value for key, _, value in (word.partition("=") for word in text.split())}


def behind(number: int, devices: Path = _DEVICES) -> Path | None:
    """The function behind the root port of a number; None: there is no such port.

    :raises UnableError: there is none, or more than one.
    """
    port = devices / f"0000:00:{_FIRST_SLOT + number:02x}.0"
    if not port.exists():
        return None
    found = [each for each in port.resolve().iterdir() if (each / "vendor").is_file()]
    if len(found) != 1:
        raise UnableError(f"{len(found)} functions are behind its root port, not one")
    return found[0]


def look(device: Path, checks: list[str], pins: dict[str, Any]) -> dict[str, Any]:
    """Put one device through its checks, until one fails."""
    found: dict[str, Any] = {}
    for check in checks:
        own = clean_check.own(check)
        found[check] = own(device, pins) if own else program(_CHECKS / check, device)
    return {"ok": True, **found}


def program(path: Path, device: Path) -> str:
    """An operator's own check: status 0 is well; its last line says what it has found.

    :raises UnableError: it is not there, or cannot be run, or was killed.
    :raises UncleanError: the device did not pass.
    """
    try:
        done = subprocess.run(
            [path, device.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
    except OSError as error:
        raise UnableError(f"check {path.name} cannot be run: {error.strerror}") from error
    lines = done.stdout.decode("ascii", "replace").strip().splitlines() or [""]
    if done.returncode < 0:
        raise UnableError(f"check {path.name} was killed by signal {-done.returncode}")
    if done.returncode:
        text = lines[-1] or f"status {done.returncode}"
        raise UncleanError(f"check {path.name}: {text}")
    return lines[-1]


def results(arguments: dict[str, str], devices: Path = _DEVICES) -> dict[str, dict[str, Any]]:
    """What came of all devices, by their numbers."""
    checks = [each for each in arguments.get("nova_hpc.checks", "").split(",") if each]
    packed = arguments.get("nova_hpc.pins", "")
    pins = json.loads(base64.urlsafe_b64decode(packed)) if packed else {}
    found = {}
    for number in range(_MOST):
        try:
            device = behind(number, devices)
            if device is None:
                continue
            result = look(device, checks, pins.get(str(number), {}))
        except UncleanError as error:
            result = {"ok": False, "reason": str(error)}
        except Exception as error:
            said = isinstance(error, UnableError)
            text = str(error) if said else f"{type(error).__name__}: {error}"
            result = {"ok": False, "unable": True, "reason": text}
        found[str(number)] = result
    return found


def main() -> None:
    """Say it until somebody ends the VM."""
    arguments = words(Path("/proc/cmdline").read_text())
    text = report.line(arguments["nova_hpc.nonce"], results(arguments))
    while True:
        # On a line of its own, whatever the kernel has said before.
        os.write(sys.stdout.fileno(), f"\n{text}\n".encode("ascii"))
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
