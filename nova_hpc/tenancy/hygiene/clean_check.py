# SPDX-License-Identifier: Apache-2.0
"""The checks of a device's stage by their names, and the program that runs one on the host.

A check is a function of the device's folder in sysfs and of the operator's pinned values. It
returns its findings as values for JSON. Further checks are entry
points of the namespace ``nova_hpc.checks`` on the host, and programs in a service VM.

``python -m nova_hpc.tenancy.hygiene.clean_check FOLDER JSON`` runs the checks that the JSON
names and writes one JSON object. It is a separate process because a vendor's library may
hang, and it ends when its standard input closes. It needs only the standard library.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from nova_hpc.tenancy.hygiene.clean_errors import UnableError, UncleanError

NAMESPACE: Final = "nova_hpc.checks"

Check = Callable[[Path, Mapping[str, Any]], Any]

#: Name -> module and function; loaded on first use.
OWN: Final[Mapping[str, tuple[str, str]]] = {
    "memory": ("nova_hpc.tenancy.stage.inside.memory", "clean"),
    "nvidia": ("nova_hpc.tenancy.hygiene.clean_nvidia", "check"),
    "amd": ("nova_hpc.tenancy.hygiene.clean_amd", "check"),
    "nic": ("nova_hpc.tenancy.hygiene.clean_nic", "check"),
    "nvme": ("nova_hpc.tenancy.hygiene.clean_nvme", "check"),
}


def own_check_of(name: str) -> Check | None:
    """Return this project's check of a name; None if there is none."""
    if name not in OWN:
        return None
    module, function = OWN[name]
    check: Check = getattr(importlib.import_module(module), function)
    return check


def find_stage_check(name: str) -> Check:
    """Return the function that checks a device on the host, by the check's name.

    :raises UnableError: there is none, or it cannot be loaded.
    """
    from importlib.metadata import entry_points

    own_check = own_check_of(name)
    if own_check is not None:
        return own_check
    try:
        (point,) = entry_points(group=NAMESPACE, name=name)
        check: Check = point.load()
    except Exception as error:
        raise UnableError(f"check {name} cannot be loaded: {error}") from error
    return check


def run_device_checks(device: Path, names: list[str], pins: Mapping[str, Any]) -> dict[str, Any]:
    """Run the named checks on one PCI device in order, until one fails. Never raises.

    :param device: the device's folder in sysfs.
    :param names: names of entry points of the checks.
    :param pins: expected values, passed to each check.
    :returns: a JSON object: ``ok`` is True with the answer of each check by its name. Otherwise
        ``ok`` is False with ``reason``, and ``unable`` is True if the check itself could not run.
    """
    answers: dict[str, Any] = {}
    for name in names:
        try:
            answers[name] = find_stage_check(name)(device, pins)
        except UncleanError as error:
            return {"ok": False, "reason": str(error)}
        except UnableError as error:
            return {"ok": False, "unable": True, "reason": str(error)}
        except Exception as error:
            text = f"check {name} failed: {type(error).__name__}: {error}"
            return {"ok": False, "unable": True, "reason": text}
    return {"ok": True, **answers}


def _exit_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(3)


def main() -> None:
    """Run the checks of one device."""
    folder, text = sys.argv[1:]
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    asked = json.loads(text)
    os.write(
        1, json.dumps(run_device_checks(Path(folder), asked["checks"], asked["pins"])).encode()
    )
    os._exit(0)


if __name__ == "__main__":
    main()
