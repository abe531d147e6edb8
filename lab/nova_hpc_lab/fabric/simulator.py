# SPDX-License-Identifier: Apache-2.0
"""ibsim, the simulator of the fabric, as a process of the lab.

Programs reach it by a library that is loaded before libumad. It has ten places for programs. A
killed program keeps its place until the fabric changes.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from pathlib import Path
from typing import Final

import psutil

from nova_hpc_lab.errors import LabError
from nova_hpc_lab.fabric.net import MANAGER, FabricNet
from nova_hpc_lab.process import Process
from nova_hpc_lab.services import Service, program
from nova_hpc_lab.state import Paths, write

#: The library that connects libumad to the simulator, below a folder for the machine's own
#: architecture.
_UMAD_LIBRARY: Final = "*-linux-gnu/umad2sim/libumad2sim.so"
#: Seconds that the simulator takes to send a trap for a link that went away.
_TRAP: Final = 0.1
#: Least room of the simulator, in nodes; unused room costs nothing.
_LEAST_NODES: Final = 512
#: Runs the simulator with a pipe for its commands. The shell opens the pipe for both directions, so
#: that it never ends.
_WITH_CONSOLE: Final = 'exec "$@" <>"$CONSOLE"'


def simulator_name(paths: Paths) -> str:
    """Return the name of the simulator's sockets; each lab has its own."""
    return f"nova-hpc-{zlib.crc32(os.fsencode(paths.state)):08x}"


def umad_library() -> Path:
    """Find the library that programs on the simulated fabric have to load.

    :raises LabError: it is not installed; the text names the package.
    """
    library = next(iter(sorted(Path("/usr/lib").glob(_UMAD_LIBRARY))), None)
    if library is None:
        raise LabError("libumad2sim is not installed; install it with: apt-get install ibsim-utils")
    return library


def client_environ(paths: Paths, node: str = MANAGER) -> dict[str, str]:
    """Return the environment variables of a program that runs on the simulated node *node*.

    The program has a folder ``sys-PID`` in its working directory while it runs.
    """
    return {
        "LD_PRELOAD": str(umad_library()),
        "SIM_HOST": node,
        "IBSIM_SOCKNAME": simulator_name(paths),
    }


def client_folder(paths: Paths) -> Path:
    """Make the working directory for programs on the simulated fabric, and return its path."""
    folder = paths.run / "umad"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def net_file(paths: Paths) -> Path:
    """Return the path of the file of the simulated fabric, in ibsim's format."""
    return paths.config / "fabric" / "net"


def _console(paths: Paths) -> Path:
    return paths.run / "ibsim.console"


def prepare_simulator(paths: Paths, net: FabricNet) -> None:
    """Write the net, and make the pipe for commands."""
    write(net_file(paths), net.text())
    with contextlib.suppress(FileExistsError):
        os.mkfifo(_console(paths), 0o600)
    clear_folder(paths)


def clear_folder(paths: Paths) -> None:
    """Remove the folders of killed programs from the working directory of clients."""
    for folder in client_folder(paths).glob("sys-*"):
        number = folder.name.removeprefix("sys-")
        if not (number.isdigit() and psutil.pid_exists(int(number))):
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            folder.rmdir()


def ibsim_service(paths: Paths, net: FabricNet) -> Service:
    """Return the process of the simulator, not started; call :func:`prepare_simulator` before."""
    nodes = max(_LEAST_NODES, 2 * len(net.all_ports()))
    room = ("-N", str(nodes), "-S", str(_LEAST_NODES), "-P", str(16 * nodes))
    program_line = (program("ibsim", "ibsim-utils"), "-s", *room)
    return Service(
        name="ibsim",
        title="The simulated fabric",
        process=Process("ibsim", paths),
        argv=("/bin/sh", "-c", _WITH_CONSOLE, "ibsim", *program_line, str(net_file(paths))),
        environ={"CONSOLE": str(_console(paths)), "IBSIM_SOCKNAME": simulator_name(paths)},
        probe=lambda: probe_simulator(paths),
    )


def probe_simulator(paths: Paths) -> None:
    """Check that the simulator accepts clients, without using one of its places.

    :raises LabError: it does not yet.
    """
    name = f"@{simulator_name(paths)}:ctl"
    sockets = Path("/proc/net/unix").read_text().splitlines()
    if not any(line.split()[-1].startswith(name) for line in sockets):
        raise LabError("takes no clients yet")


def tell_simulator(paths: Paths, *commands: str) -> None:
    """Send commands to the simulator's console, for example ``Unlink "spare0"``.

    :raises LabError: it does not run.
    """
    if Process("ibsim", paths).pid() is None:
        raise LabError("the simulated fabric does not run")
    for command in commands:
        with _console(paths).open("w") as stream:
            stream.write(command + "\n")
        time.sleep(_TRAP)


def free_client_places(paths: Paths, spare: str = "spare0") -> None:
    """Make the simulator detect killed clients, so that its limited number of clients suffices."""
    tell_simulator(paths, f'Unlink "{spare}"', f'ReLink "{spare}"')
