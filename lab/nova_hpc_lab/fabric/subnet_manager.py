# SPDX-License-Identifier: Apache-2.0
"""opensm, the subnet manager, as a process of the lab: hardened from its first start."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.fabric.net import MANAGER
from nova_hpc_lab.fabric.simulator import client_environ, client_folder
from nova_hpc_lab.process import Process
from nova_hpc_lab.services import Service, program
from nova_hpc_lab.state import Paths, write

#: Limited members of the default partition reach the subnet manager, but not each other.
HARDENED_DEFAULT: Final = "Default=0x7fff, ipoib : ALL=limited, SELF=full ;\n"
_UP: Final = "SUBNET UP"
#: Each fabric has its own random keys: with opensm's well-known ones, any port can read all tables.
_KEYS: Final = ("m_key", "sm_key", "sa_key")
#: Writes opensm's process id to the file that the agent reads, and removes the log of an earlier
#: start. opensm prints its keys to the log, so only its owner may read it.
_START: Final = 'umask 077; rm -f "$LOG"; echo $$ >"$PID_FILE"; cd "$FOLDER"; exec env "$@"'


@attrs.frozen
class ManagerFiles:
    """The paths of the files of one subnet manager: options, partitions, log and pid."""

    #: Its options.
    config: Path
    #: Its partitions, which the agent writes.
    partitions: Path
    #: The administrator's own partitions.
    own_partitions: Path
    log: Path
    #: One line with the process id.
    pid_file: Path
    #: Folder in which it stores GUIDs and LIDs.
    cache: Path


def manager_files(paths: Paths, name: str = "opensm") -> ManagerFiles:
    """Return the paths of the files of the lab's subnet manager; no file is read."""
    data = paths.data / name
    return ManagerFiles(
        config=paths.config / "fabric" / f"{name}.conf",
        partitions=data / "partitions.conf",
        own_partitions=data / "partitions.own.conf",
        log=paths.logs / f"{name}.own.log",
        pid_file=paths.run / f"{name}.own.pid",
        cache=data / "cache",
    )


def manager_options(files: ManagerFiles, keys: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a subnet manager that make partitions isolated."""
    return {
        "sweep_interval": "10",
        "force_log_flush": "TRUE",
        "partition_config_file": str(files.partitions),
        "part_enforce": "both",
        "qos": "FALSE",
        "qos_policy_file": str(files.cache / "none"),
        **keys,
        "m_key_protection_level": "2",
        "m_key_lease_period": "60",
    }


def prepare_manager(paths: Paths, name: str = "opensm") -> ManagerFiles:
    """Write the subnet manager's options; existing keys and partitions are kept.

    :raises LabError: the file with the keys is damaged.
    """
    files = manager_files(paths, name)
    for folder in (files.cache, files.partitions.parent):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = paths.data / "fabric-keys.json"
    if not store.exists():
        fresh = {name: f"0x{secrets.randbits(63) | 1:016x}" for name in _KEYS}
        write(store, json.dumps(fresh), mode=0o600)
    try:
        keys = dict(json.loads(store.read_text()))
    except (OSError, ValueError, TypeError) as err:
        raise LabError(f"{store} is damaged ({err}); remove it") from err
    options = manager_options(files, keys)
    text = "".join(f"{option} {value}\n" for option, value in options.items())
    write(files.config, text, mode=0o600)
    if not files.partitions.exists():
        write(files.partitions, HARDENED_DEFAULT)
    return files


def opensm_service(paths: Paths, name: str = "opensm", node: str = MANAGER) -> Service:
    """Return the process of the subnet manager on the simulated *node*, not started.

    Call :func:`prepare_manager` before.
    """
    files = manager_files(paths, name)
    folder = client_folder(paths)
    inside = {
        **client_environ(paths, node),
        "OSM_TMP_DIR": str(files.cache),
        "OSM_CACHE_DIR": str(files.cache),
    }
    opensm = program("opensm", "opensm")
    words = ("-F", str(files.config), "-f", str(files.log), "--dump_files_dir", str(files.cache))
    return Service(
        name=name,
        title="The subnet manager",
        process=Process(name, paths),
        argv=(
            *("/bin/sh", "-c", _START, name),
            *(f"{variable}={value}" for variable, value in inside.items()),
            *(opensm, *words),
        ),
        environ={"LOG": str(files.log), "PID_FILE": str(files.pid_file), "FOLDER": str(folder)},
        probe=lambda: probe_manager(files, Process(name, paths)),
    )


def probe_manager(files: ManagerFiles, process: Process) -> None:
    """Check that the subnet manager has brought the fabric up since its start.

    :raises LabError: it has not yet.
    """
    try:
        # This file is written after the log of the earlier start was removed.
        begun = files.pid_file.read_text().strip() == str(process.pid())
        text = files.log.read_text(errors="replace") if begun else ""
    except FileNotFoundError:
        text = ""
    if _UP not in text:
        raise LabError("has not brought the fabric up yet")
