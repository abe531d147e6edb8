# SPDX-License-Identifier: Apache-2.0
"""Runs a program of Neutron that can be told to die at a step of the mechanism driver.

``python -m tests.fabric.fatal_steps SCRIPT|-m MODULE ARGUMENTS``. The file that the environment
names holds ``METHOD:before`` or ``METHOD:after``, and perhaps the VIF type of the port in a third
word; who comes there removes the file and gets SIGKILL.
"""

import functools
import importlib
import json
import os
import runpy
import signal
import sys
import time
import types
from pathlib import Path

#: Module, class ("" for none), names.
_STEPS = (
    (
        "neutron_drivers.mechanism",
        "PartitionMechanismDriver",
        (
            *("bind_port", "create_port_precommit", "create_port_postcommit"),
            *("update_port_precommit", "update_port_postcommit"),
            *("delete_port_precommit", "delete_port_postcommit"),
        ),
    ),
    ("neutron.db.provisioning_blocks", "", ("provisioning_complete",)),
)


def _die_at(step, vif):
    path = Path(os.environ["NOVA_HPC_FATAL_STEP"])
    try:
        wanted = path.read_text().split()
        if wanted and wanted[0] == step and (len(wanted) == 1 or wanted[1] == vif):
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    except FileNotFoundError:
        pass


def _deadly(name, function):
    @functools.wraps(function)
    def call(*arguments, **named):
        context = arguments[1] if len(arguments) > 1 else None
        vif = getattr(context, "vif_type", "")
        _die_at(f"{name}:before", vif)
        begun = time.perf_counter()
        result = function(*arguments, **named)
        with Path(os.environ["NOVA_HPC_STEP_TIMES"]).open("a") as stream:
            stream.write(json.dumps([name, time.perf_counter() - begun]) + "\n")
        _die_at(f"{name}:after", vif)
        return result

    return call


def arm():
    """Wrap the steps; all of them have to be there."""
    for module, owner, names in _STEPS:
        place = importlib.import_module(module)
        place = getattr(place, owner) if owner else place
        for name in names:
            setattr(place, name, _deadly(name, getattr(place, name)))
    # When the last block of a port is gone, and its status is not written yet.
    blocks = importlib.import_module("neutron.db.provisioning_blocks")
    publish = _deadly("publish", blocks.registry.publish)
    blocks.registry = types.SimpleNamespace(publish=publish)


def main():
    import neutron  # noqa: F401  # before oslo's libraries: it decides on their threads

    arm()
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
