# SPDX-License-Identifier: Apache-2.0
"""The program of a service VM: it runs the checks of each device, and prints the results.

The kernel's command line contains the nonce of this run and the names of the checks. The
devices are behind the root ports that :mod:`nova_hpc.tenancy.stage.domain` has created.
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
from nova_hpc.tenancy.stage import report

_DEVICES = Path("/sys/bus/pci/devices")
_CHECKS = Path("/checks")
_FIRST_SLOT = 0x10
_MOST = 15
#: Seconds between two prints of the answer.
_PAUSE = 2.0


def parse_kernel_arguments(text: str) -> dict[str, str]:
    """Parse the kernel's command line: key -> value, "" without a value."""
    return {key: value for key, _, value in (word.partition("=") for word in text.split())}


def find_function_behind_port(number: int, devices: Path = _DEVICES) -> Path | None:
    """Return the function behind the root port of a number; None if there is no such port.

    :raises UnableError: the port has no function, or more than one.
    """
    port = devices / f"0000:00:{_FIRST_SLOT + number:02x}.0"
    if not port.exists():
        return None
    functions = [folder for folder in port.resolve().iterdir() if (folder / "vendor").is_file()]
    if len(functions) != 1:
        raise UnableError(f"{len(functions)} functions are behind its root port, not one")
    return functions[0]


def check_one_device(device: Path, checks: list[str], pins: dict[str, Any]) -> dict[str, Any]:
    """Run the checks of one device inside the service VM, until one fails by raising.

    :returns: a JSON object: ``ok`` is True, and the answer of each check by its name.
    """
    answers: dict[str, Any] = {}
    for check in checks:
        own = clean_check.own_check_of(check)
        answers[check] = own(device, pins) if own else run_operator_check(_CHECKS / check, device)
    return {"ok": True, **answers}


def run_operator_check(path: Path, device: Path) -> str:
    """Run an operator's own check: status 0 means passed; its last line is its result.

    :raises UnableError: it is missing, cannot be run, or was killed.
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


def check_all_devices(
    arguments: dict[str, str], devices: Path = _DEVICES
) -> dict[str, dict[str, Any]]:
    """Run the checks of all devices of the service VM, found by the number of their PCIe port.

    :param arguments: of the kernel; they contain the checks and the pinned values.
    :returns: number, as text -> result as JSON object.
    """
    checks = [check for check in arguments.get("nova_hpc.checks", "").split(",") if check]
    packed = arguments.get("nova_hpc.pins", "")
    pins = json.loads(base64.urlsafe_b64decode(packed)) if packed else {}
    results_by_number = {}
    for number in range(_MOST):
        try:
            device = find_function_behind_port(number, devices)
            if device is None:
                continue
            result = check_one_device(device, checks, pins.get(str(number), {}))
        except UncleanError as error:
            result = {"ok": False, "reason": str(error)}
        except Exception as error:
            is_unable = isinstance(error, UnableError)
            text = str(error) if is_unable else f"{type(error).__name__}: {error}"
            result = {"ok": False, "unable": True, "reason": text}
        results_by_number[str(number)] = result
    return results_by_number


def main() -> None:
    """Print the answer repeatedly until the VM is ended."""
    arguments = parse_kernel_arguments(Path("/proc/cmdline").read_text())
    text = report.format_report_line(arguments["nova_hpc.nonce"], check_all_devices(arguments))
    while True:
        # On a line of its own, whatever the kernel has printed before.
        os.write(sys.stdout.fileno(), f"\n{text}\n".encode("ascii"))
        time.sleep(_PAUSE)


if __name__ == "__main__":
    main()
